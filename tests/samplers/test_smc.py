"""Annealing: the error that it states, and powers of likelihoods that differ by far."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from bayesattn.errors import BayesattnError
from bayesattn.models import LatentModel
from bayesattn.samplers import smc
from bayesattn.samplers.smc import anneal, anneal_logits
from bayesattn.theory.particles import Particles, annealed, longest_rise, metric_factor, metrics_of_others
from tests.models.attention_networks import NETWORKS, attention_model
from tests.statistics import agree, likely, near


def estimate(log_evidence, variance):
    """Of islands with these values."""
    islands = Particles.at(np.zeros((2, 1)), 2)._replace(islands=log_evidence, variance=variance)
    return islands.log_evidence, islands.error, islands.reliable


def test_powers_begin_as_low_as_the_likelihood_needs_and_rise_at_once_if_it_is_flat():
    """By a bracket of 40 nats, log likelihoods that span 1e18 ended in an error of SciPy."""
    for span in (1e3, 1e150):
        likelihoods = -span * np.random.default_rng(0).uniform(size=(4, 100))
        weights = special.softmax(longest_rise(likelihoods, 1.0, 0.5) * likelihoods)
        assert 1 / np.sum(weights**2) == pytest.approx(0.5 * weights.size, rel=1e-6)
    assert longest_rise(np.zeros((2, 50)), 0.3, 0.5) == 0.3


@pytest.mark.parametrize("islands", [4, 8, 16])
@pytest.mark.parametrize("spread", [0.05, 0.3, 1.0, 2.0, 3.0])
def test_two_errors_hold_nine_times_in_ten(islands, spread):
    """Log-normal estimates of islands, with a mean of 1: nineteen times in twenty unless the islands differ by nats."""
    logs = spread * np.random.default_rng(1).normal(size=(1000, islands)) - spread**2 / 2
    found, errors, reliable = np.array([estimate(each, 0.0) for each in logs]).T
    beyond = np.abs(found) > 2 * errors
    likely(stats.binom.sf(beyond.sum() - 1, len(logs), 0.05 if spread <= 0.3 else 0.1))
    likely(stats.binom.sf(np.sum(beyond[reliable == 1]) - 1, len(logs), 0.07))
    assert np.mean(reliable) > 0.6 if spread <= 0.3 else np.mean(reliable) < 0.25


def test_islands_that_agree_by_chance_have_the_error_of_independent_particles():
    assert estimate(np.zeros(4), 0.04) == pytest.approx((0.0, 0.2, True))


def test_the_metric_of_an_island_is_from_others():
    rng = np.random.default_rng(0)
    points, weights = rng.normal(size=(4, 6, 3)), np.full((4, 6), 1 / 6)
    first = metrics_of_others(points, weights)
    assert first[0] == pytest.approx(metric_factor(points[1], weights[1]), rel=1e-12)
    others = metrics_of_others(np.concatenate([5 * points[:1], points[1:]]), weights)
    assert others[:3] == pytest.approx(first[:3], rel=1e-12)
    assert others[3] == pytest.approx(5 * first[3], rel=1e-12)
    assert metrics_of_others(rng.normal(size=(4, 6, 4)), weights).shape == (4, 4), "standard deviations"
    # An island whose whole weight is on one particle has no metric to give.
    weights[1] = np.eye(6)[0]
    flat = points.reshape(-1, 3), weights.ravel() / 4
    assert metrics_of_others(points, weights)[0] == pytest.approx(metric_factor(*flat), rel=1e-12)
    # Copies of one point, between which rounding alone is left, and particles that agree in one coordinate.
    copies = np.broadcast_to(points[:, :1], points.shape) * [1.0, 300.0, 1e-5]
    equal = np.full((4, 6), 1 / 6)
    assert metrics_of_others(copies, equal) == pytest.approx(np.broadcast_to(np.eye(3), (4, 3, 3)))
    points[..., 1] = 7.0
    for metric in metrics_of_others(points, equal):
        assert metric == pytest.approx(np.diag(np.diag(metric)))
        assert np.diag(metric)[1] == 1.0
        assert np.diag(metric)[0] != 1.0
    assert metric_factor(copies[0], np.full(6, 1 / 6)) == pytest.approx(np.ones(3))
    assert metric_factor(points[0], np.eye(6)[0]) == pytest.approx(np.ones(3))
    deviations = metric_factor(points[0], np.full(6, 1 / 6))
    assert deviations == pytest.approx([points[0, :, 0].std(), 1.0, points[0, :, 2].std()])


def conjugate(features, tokens=15, seed=0):
    """Normal latent of features^2 coordinates, with log p(values) and posterior mean in closed form."""
    rng = np.random.default_rng(seed)
    phi, latent = 3 / np.sqrt(features) * rng.normal(size=(tokens, features)), rng.normal(size=(features, features))
    values = phi @ latent.T + rng.normal(size=(tokens, features))
    law = stats.multivariate_normal(cov=phi @ phi.T + np.eye(tokens))
    mean = np.linalg.solve(phi.T @ phi + np.eye(features), phi.T @ values).T
    return LatentModel(features=phi, values=values, noise=1.0, prior=1.0), law.logpdf(values.T).sum(), mean


def test_evidence_and_means_of_a_conjugate_normal_with_the_error_asked_for():
    """Metrics of an island's own particles make log p(Y) of 100 coordinates half a nat too small."""
    model, exact, mean = conjugate(10)
    found = anneal(model, "latent", islands=16, particles=128, error=0.16)
    assert found.reliable
    assert found.particles > 16 * 128
    near(found.log_evidence, exact, found.error, len(found.islands) - 1, finds=2)
    assert found.draws["posterior"]["latent"].shape == (16, found.particles // 16, 10, 10)
    agree(found.draws["posterior"]["latent"], mean)
    assert found.shares.values == pytest.approx(special.softmax(found.islands))
    few = anneal(model, "latent", islands=16, particles=8, error=5.0)
    assert few.particles == 16 * 128, "as many as coordinates"


def test_an_error_out_of_reach_warns_and_one_that_is_none_is_refused(monkeypatch):
    monkeypatch.setattr(smc, "MOST_PARTICLES", 64)
    model = conjugate(2)[0]
    settings = {"islands": 2, "particles": 16}
    with pytest.warns(UserWarning, match=r"its error is .*, above 1e-06: use more than 32 particles an island"):
        found = anneal(model, "latent", error=1e-6, **settings)
    with pytest.warns(UserWarning, match="above"):
        same = anneal(model, "latent", islands=2, particles=32, error=1e-7)
    assert found.particles == 64
    assert np.array_equal(found.islands, same.islands)
    with pytest.raises(BayesattnError, match="error must be"):
        anneal(model, "latent", error=0, **settings)


def hold(found, exact):
    """Reliable in four fifths of the seeds at least, and off by more than two errors in one of twenty."""
    reliable = np.array([each.reliable for each in found])
    beyond = np.abs([each.log_evidence for each in found] - exact) > 2 * np.array([each.error for each in found])
    likely(stats.binom.cdf(reliable.sum(), len(found), 0.8))
    likely(stats.binom.sf(np.sum(beyond & reliable) - 1, len(found), 0.05))


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:log p.Y. of the 8 islands differs")
def test_the_error_holds_over_a_hundred_seeds():
    model, exact, _ = conjugate(10)
    hold([anneal(model, "latent", seed=seed) for seed in range(100)], exact)


@pytest.mark.heavy
def test_the_error_holds_in_900_dimensions():
    class Conjugate(NamedTuple):
        labels: jax.Array

        def log_densities(self, point):
            return -point @ point / 2, -jnp.sum((self.labels - point) ** 2) / 20 - 450 * jnp.log(20 * jnp.pi)

    found, exact = [], []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        labels = rng.normal(0, np.sqrt(11), size=900)
        draws = Particles.at(rng.normal(size=(8 * 512, 900)), 8)
        found.append(annealed(jax.random.key(seed), draws, Conjugate(jnp.array(labels)), moves=8))
        exact.append(stats.norm(0, np.sqrt(11)).logpdf(labels).sum())
    hold(found, np.array(exact))


def test_an_island_without_weight_ends_annealing_in_words():
    class Hopeless(NamedTuple):
        def log_densities(self, point):
            return -point @ point / 2, jnp.where(point[0] > 0, 0.0, -jnp.inf)

    points = np.concatenate([-np.ones((8, 2)), np.ones((8, 2))])
    with pytest.raises(FloatingPointError, match="no particle of an island of annealing has weight"):
        annealed(jax.random.key(0), Particles.at(points, 2), Hopeless(), moves=8)


def test_islands_of_uniform_attention_keep_their_weights(monkeypatch):
    """One whose estimate there is e^3 times another's has as much more of the evidence of the whole."""
    first_pass, model = smc._pass, attention_model(**NETWORKS["padded"])

    def passed(*arguments):
        found, excluded = first_pass(*arguments)
        return found._replace(islands=np.array(weights)), excluded

    monkeypatch.setattr(smc, "_pass", passed)
    weights = [0.0, 0.0]
    equal = anneal_logits(model, islands=2, particles=16)
    weights = [0.0, 3.0]
    other = anneal_logits(model, islands=2, particles=16)
    assert np.diff(other.islands) - np.diff(equal.islands) == pytest.approx(3.0)
    ratios = equal.islands - special.logsumexp(equal.islands)
    gain = special.logsumexp(ratios + weights) - np.log(np.mean(np.exp(weights)))
    assert other.log_evidence - equal.log_evidence == pytest.approx(gain)


def test_logits_may_be_annealed_instead():
    """The evidence is that of 2 million weighed prior draws; draws are those of the posterior."""
    model = attention_model(**NETWORKS["padded"])
    found = anneal_logits(model, islands=4, particles=256)
    near(found.log_evidence, -4.5333, np.hypot(found.error, 0.0006), 3, finds=np.inf)
    assert found.error < 0.15
    assert found.powers[[0, -1]].tolist() == [0, 1]
    assert np.all(np.diff(found.powers) > 0)
    assert dict(found.draws["posterior"].sizes)["chain"] == 4
    with pytest.raises(BayesattnError, match=r"model must be a bayesattn\.AttentionModel, got LatentModel"):
        anneal_logits(LatentModel(features=np.zeros((1, 1)), values=np.zeros((1, 1)), noise=1.0, prior=1.0))
    with pytest.raises(BayesattnError, match="particles must be a multiple of moves = 8, got 12"):
        anneal_logits(model, particles=12)
