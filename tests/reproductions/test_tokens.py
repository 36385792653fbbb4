"""Experiments on exchangeable tokens: their claims at other seeds and in full, and laws by brute force."""

import jax
import numpy as np
import pytest
from scipy import special

from bayesattn.questions import exchangeable as ex
from bayesattn.questions.exchangeable import rates
from reproductions.tokens import EXPERIMENTS, chains, descent, learning, networks, smoothing, stream, urns
from reproductions.tokens.simulation import NOISE, PRIOR
from tests.reproductions.test_paths import check
from tests.statistics import near


@pytest.mark.heavy
@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize(("seed", "fast"), [(1, True), (2, True), (0, False), (1, False), (2, False)])
def test_claims_hold_at_other_seeds_and_in_full(name, seed, fast):
    check(name, seed, fast)


@pytest.mark.parametrize("seed", [4, 11, 28])
def test_tokens_are_moved_at_every_seed(seed):
    """A permutation that happened to leave the token read in its place had nothing to tell apart."""
    check("positions", seed)


def test_experiments_share_no_random_numbers():
    """The same numbers whenever seed and name are the same, and others otherwise."""
    drawn = [stream(*settings).random() for settings in ((0, "urn"), (0, "urn"), (1, "urn"), (0, "forward"))]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 3


def test_an_urn_that_remembers_is_not_exchangeable():
    first, second = urns.law([[0, 0, 1], [0, 1, 0]], [1.0, 1.0], repeat=1.0)
    assert first == pytest.approx(0.5 * 3 / 4 * 1 / 5)
    assert second == pytest.approx(0.5 * 1 / 4 * 2 / 5)


def test_covariance_by_attention_is_that_of_the_latent():
    rng = np.random.default_rng(0)
    keys, queries, values = rng.normal(size=(9, 3)), rng.normal(size=(4, 3)), rng.normal(size=(9, 2))
    latent = ex.latent_posterior(keys, values, NOISE, PRIOR)
    found = ex.cme_covariance(queries, keys, noise=NOISE, prior=PRIOR, kernel="linear")
    np.testing.assert_allclose(found, queries @ np.asarray(latent.covariance) @ queries.T, atol=1e-12)


def test_attention_to_a_grid_is_attention_to_many_tokens():
    """By a mean over the circle, for one layer and for two."""
    rng = np.random.default_rng(0)
    data, *_ = networks.all_many_tokens()
    some = jax.tree.map(lambda leaf: leaf[::500], data)
    query, values = np.asarray(some.queries)[0], np.asarray(some.values)[0]
    latents = np.linalg.lstsq(networks.grid(), values, rcond=None)[0].T
    scores, readout = rng.normal(size=(2, 2, 2))
    below = np.array([[1.5, 0.4], [0.4, -0.7]])
    angles = np.linspace(0, 2 * np.pi, 401)[:-1]
    points = np.stack([np.cos(angles), np.sin(angles)], 1)
    first = special.softmax(points @ below @ points.T, axis=1) @ points @ latents.T
    weights = special.softmax(query @ scores @ points.T)
    parameters = np.concatenate([scores.ravel(), readout.ravel()])
    found = learning.attend(parameters, some)[0]
    np.testing.assert_allclose(found, readout @ (weights @ points @ latents.T), atol=1e-12)
    found = networks.two_layers(np.r_[1.5, 0.4, -0.7, parameters], some)[0]
    np.testing.assert_allclose(found, readout @ (weights @ first), atol=1e-12)


def test_fluctuation_of_many_tokens_is_the_known_law():
    for kappa in (1.0, 4.0):
        known = rates.softmax_variance(kappa, 2, NOISE, PRIOR, 2) / float(ex.bessel_ratio(1, kappa, 2)) ** 2
        assert float(networks._fluctuation(kappa, NOISE, PRIOR)) == pytest.approx(known, rel=1e-12)


def test_optimum_of_many_tokens_is_that_of_a_large_number():
    found = learning.population_optimum(10**5).parameters
    assert networks.many_tokens().kappa == pytest.approx(found[0], rel=1e-3)


def test_moments_are_those_of_one_head():
    rng = np.random.default_rng(0)
    parameters = learning.population_optimum(8).parameters
    batch = learning.expected_targets(learning.draw_sequences(rng, 4000, 8))
    found = networks.moments(parameters, *batch, network=learning.attend)
    hessian, second = learning.moments(parameters, *batch)
    np.testing.assert_allclose(found.hessian, hessian, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.second_moment, second, rtol=1e-10, atol=1e-12)


def test_gap_of_a_penalised_linear_model_is_its_trace():
    """Ridge regression on one feature: Newton's step is exact, and m x gap tends to tr((H + ridge)^-1 (J - g g^T))."""
    rng, ridge, count = np.random.default_rng(0), 1.0, 2000
    x, noise = rng.normal(size=(2, 4000, count))
    y = 2 * x + noise
    fitted = np.mean(x * y, 1) * 2 / (2 * np.mean(x * x, 1) + ridge)
    best = 4 / (2 + ridge)
    risk = lambda at: (2 - at) ** 2 + 1  # noqa: E731
    gap = lambda at: risk(at) - np.mean((y - at[:, None] * x) ** 2, 1)  # noqa: E731
    gaps = gap(fitted) - gap(np.full(4000, best))  # The latter is 0 in the mean.
    left = 2 - best
    # Gradient -2 x (y - best x) = -2 (left x^2 + x noise); E x^4 = 3.
    law = networks.penalised_trace(ridge, np.array([-2 * left]), np.array([[2.0]]), np.array([[4 * (3 * left**2 + 1)]]))
    near(count * gaps.mean(), law, count * gaps.std() / np.sqrt(4000), finds=0.5)


def test_law_of_unlearnt_risk_turns_with_its_coordinates():
    """Along the axes by its formula for each of them, and the same in coordinates that are turned."""
    rng, step = np.random.default_rng(0), 0.4
    eigenvalues, spread, away = np.array([0.3, 1.0, 2.5]), np.array([0.5, 2.0, 1.0]), rng.normal(size=3)
    kept = (1 - step * eigenvalues) ** np.array(descent.STEPS)[:, None]
    unlearnt, fitted = kept**2 @ (eigenvalues * away**2) / 2, (1 - kept) ** 2 @ (spread / eigenvalues) / 2
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    for basis in (np.eye(3), turn):
        hessian, second = (basis @ np.diag(values) @ basis.T for values in (eigenvalues, spread))
        found = descent.excess_law(hessian, second, basis @ away, step)
        np.testing.assert_allclose(found, [unlearnt, fitted])


def test_bound_on_the_weak_direction_holds_for_every_readout():
    rng, variances = np.random.default_rng(0), np.array([1.0, 0.1, 0.01])
    known = smoothing.population(rng, 10, 12, variances, 2, 0.3, PRIOR)
    readouts = rng.normal(size=(100, len(smoothing.SCORES)))
    ratios = smoothing.excess(readouts, known.downstream) / smoothing.excess(readouts, known.pretraining)
    assert ratios.max() <= 100


def test_population_of_masked_tokens_by_drawn_queries():
    """Averages over masked queries by quadrature against many drawn ones, from the same sequences."""
    variances, settings = np.array([1.0, 0.3]), (2, 0.3, PRIOR)
    found = smoothing.population(np.random.default_rng(0), 5, 12, variances, *settings)
    rng = np.random.default_rng(0)
    keys = np.sqrt(variances) * rng.normal(size=(5, 12, 2))
    latents = PRIOR * rng.normal(size=(5, 2, 2))
    values = keys @ latents + 0.3 * rng.normal(size=(5, 12, 2))
    queries = np.sqrt(variances) * np.random.default_rng(1).normal(size=(1, 100_000, 2))
    answers = smoothing.heads(queries, keys, values, variances)
    square = np.einsum("hsqv,gsqv->hg", answers, answers, optimize=True) / 5 / 100_000
    np.testing.assert_allclose(found.pretraining[0], square, rtol=0.1)
    weak = np.einsum("hsqv,q->hsv", answers, queries[0, :, 1], optimize=True) / 100_000 / variances[1]
    np.testing.assert_allclose(found.downstream[0], np.einsum("hsv,gsv->hg", weak, weak) / 10, rtol=0.2)


def test_counts_are_sufficient_for_a_state_that_never_changes():
    for stay, loses in ((1.0, False), (0.8, True)):
        chain = chains.Chain(stay, 0.7, 5)
        joint = chain.joint(chain.sequences())
        lost = chains.entropy(chains.without_order(joint, chain.sequences())) - chains.entropy(joint)
        assert (lost > 1e-3) == loses
        assert lost > -1e-12
