"""The learning coefficient by chains, against quadrature, reweighted prior draws, the evidence, and known limits."""

import json
import re
from dataclasses import replace

import jax
import numpy as np
import pytest
from scipy import special, stats

import bayesattn as ba
from bayesattn.errors import BayesattnError
from bayesattn.jobs import plots
from bayesattn.models import Path
from bayesattn.network import effective_weights
from bayesattn.questions.singular.best_fit import BestFit, best_fit_of, reduced
from bayesattn.questions.singular.expected_loss import loss
from tests.conftest import model_of
from tests.posteriors import weighed_mean
from tests.singular.networks import DEEP_LINEAR, WITH_HEADS, between, network
from tests.statistics import DRAWS_PER_DEGREE, near

SEARCH = "bayesattn.questions.singular.best_fit.least_squares"
SHORT = {"chains": 2, "warmup": 300, "draws": 500}
"""Of all chains here: networks of one head, widths of 4 or more and three features then share their programs."""


@jax.jit
def log_densities(process, factors):
    return jax.lax.map(process.log_density, factors)


def by_quadrature(model):
    """lambda_hat of one path and output: U is a product of two chi squared numbers."""
    levels = (np.arange(80) + 0.5) / 80
    # Midpoints of equal prior probability miss the smallest U, which matter most: levels are squeezed towards 0.
    chi = [stats.chi2.ppf(levels**6, width) / width for width in model.architecture.widths]
    factors = np.sqrt(np.outer(*chi).reshape(-1, 1, 1))
    log_prior = np.log(np.outer(levels**5, levels**5)).ravel()
    weights = special.softmax(log_prior + log_densities(model.gaussian_process, factors))
    return weights @ loss(model.gaussian_process, factors).mean


@pytest.fixture(scope="module")
def one_path():
    return ba.learning_coefficient(network((1,), (4, 5), 3), [1e-2, 1e-4, 1e-6], **SHORT)


def test_one_path_by_quadrature(one_path):
    """Values and slopes at each temperature, and means of lambda_hat over log T, to which slopes are corrections.

    The coldest value is lambda = 3/2 of widths 4 and 5 with three features.
    """
    logs = np.linspace(np.log(1e-6), np.log(1e-2), 33)
    exact = np.array([by_quadrature(one_path.model.replace(temperature=float(np.exp(each)))) for each in logs])
    ends = [-1, 16, 0]
    degrees = one_path.ess / DRAWS_PER_DEGREE
    near(one_path.value, exact[ends], one_path.error, degrees, finds=0.2)
    near(one_path.value[-1], 1.5, one_path.error[-1], degrees[-1], finds=0.05)
    near(one_path.slope, np.gradient(exact, logs)[ends], one_path.slope_error, degrees, finds=0.1)
    means = [np.trapezoid(exact[part], logs[part]) / np.log(100) for part in (slice(16, 33), slice(0, 17))]
    near(between(one_path).value, means, between(one_path).error, degrees.min(), finds=0.12, allowed=0.005)
    values_agree(one_path, finds=0.15)


def values_agree(found, *, finds):
    """Means of lambda_hat over log T by chains are those by differences of the evidence."""
    chains, evidence = between(found), found.from_evidence
    np.testing.assert_allclose(chains.temperatures, evidence.temperatures)
    error, degrees = np.hypot(chains.error, evidence.error), found.ess.min() / DRAWS_PER_DEGREE
    near(chains.value, evidence.value, error, degrees, finds=finds)


@pytest.mark.heavy
def test_evidence_of_a_narrow_network_with_noise(noisy):
    values_agree(noisy, finds=0.5)


@pytest.mark.heavy
@pytest.mark.parametrize("case", DEEP_LINEAR[:6] + WITH_HEADS[:3] + WITH_HEADS[10:13], ids=str)
def test_three_routes(case):
    """At four temperatures: chains, the evidence, and differences of two temperatures of independent chains."""
    temperatures = [0.1, 0.03, 0.01, 0.003]
    first, second = (ba.learning_coefficient(network(*case), temperatures, draws=2000, seed=seed) for seed in (0, 1))
    degrees = min(first.ess.min(), second.ess.min()) / DRAWS_PER_DEGREE
    for one, other in ((between(first), first.from_evidence), (first.two_temperature, second.two_temperature)):
        near(one.value, other.value, np.hypot(one.error, other.error), degrees, finds=1)


def test_another_best_fit(one_path):
    """Moves lambda_hat by S* / 2T, and its mean over log T by that of S* / 2T; differences of two temperatures stay."""
    square, temperatures = 1e-6, one_path.temperatures
    moved = replace(one_path, value=one_path.value - square / (2 * temperatures), best_fit=BestFit(square, "given"))
    assert moved.value[-1] < one_path.value[-1] - 0.4
    np.testing.assert_allclose(moved.two_temperature.value, one_path.two_temperature.value, atol=1e-9)
    means = np.diff(square / (2 * temperatures)) / np.log(100)
    np.testing.assert_allclose(moved.from_evidence.value, one_path.from_evidence.value - means, atol=1e-9)


def test_a_best_fit_above_what_is_attained_is_refused(one_path):
    message = re.escape("best_fit must not be above the |Y - f|^2 that the network attains")
    with pytest.raises(ValueError, match=message):
        ba.learning_coefficient(one_path.model, 1e-4, best_fit=1e-3, **SHORT)
    with pytest.raises(ValueError, match=message):  # Of three draws the error is not known.
        ba.learning_coefficient(one_path.model, 1e-4, best_fit=1e-3, **SHORT | {"draws": 3})
    with pytest.raises(ValueError, match=message):
        ba.learning_coefficient(one_path.model, losses=np.full(100, 0.1) + np.arange(100) * 1e-6, best_fit=1.0)


@pytest.fixture(scope="module")
def noisy():
    """More examples of two outputs than one neuron can fit: S* is found, and the data leave a residual."""
    rng = np.random.default_rng(5)
    arch = ba.Architecture((1,), (1, 2), (1.0,) * 3, outputs=2)
    model = model_of(rng.normal(size=(40, 1, 2)), rng.normal(size=(40, 2)), arch, 0.5)
    return ba.learning_coefficient(model, [2.0, 1.0, 0.5], **SHORT)


def test_noise_on_a_narrow_network(noisy):
    """S* found, and a residual; a chain of weights gives the same number, with a larger error."""
    model = noisy.model
    inputs, labels = model.path_inputs, model.labels
    assert noisy.best_fit.how == "found"
    # The best function of rank one takes the larger singular value of Q^T Y; the rest and the residual are left.
    basis = np.linalg.qr(inputs[:, 0])[0]
    least = np.sum(labels**2) - np.linalg.svd(basis.T @ labels, compute_uv=False)[0] ** 2
    assert noisy.best_fit.square == pytest.approx(least, rel=1e-6)
    statistics = ba.Dataset.gather((inputs, labels), model.architecture)
    gathered, residual = reduced(ba.Model(dataset=statistics, architecture=model.architecture, temperature=0.5))
    assert best_fit_of(gathered, residual=residual).square == pytest.approx(least, rel=1e-6)
    smaller = reduced(model)[0]
    settings = {"sampler": "nuts", "keep": ["order_parameter"], "options": {"target_accept_prob": 0.95}}
    draws = ba.sample(smaller, chains=2, warmup=300, draws=1000, seed=5, progress=False, **settings)
    weights = ba.weights(draws, model=smaller)
    readout = np.einsum("cdoa,cdham,cdmf->cdof", weights["a"], weights["V_1"], weights["V_0"]) / np.sqrt(2 * 1 * 2)
    squares = np.sum((np.einsum("ehf,cdof->cdeo", inputs, readout) - labels) ** 2, axis=(-1, -2))
    estimate = ba.learning_coefficient(model, losses=squares)
    error = np.hypot(estimate.error, noisy.error[-1])
    near(estimate.value, noisy.value[-1], error, estimate.ess / DRAWS_PER_DEGREE, finds=0.3)
    assert estimate.rhat < 1.1
    assert estimate.error > noisy.error[-1] / 2


@pytest.mark.filterwarnings("ignore:chains have not mixed")
def test_a_found_best_fit_is_lowered_by_draws(monkeypatch):
    """A search that stops early is caught by the chains."""
    model = network((1,), (1, 2), 2, outputs=2, labels=np.random.default_rng(3).normal(size=(2, 2)))
    exact = best_fit_of(model).square
    monkeypatch.setattr(SEARCH, lambda model, seed: exact + 1.0)
    found = ba.learning_coefficient(model, [0.1, 1e-3], **SHORT | {"draws": 100})
    assert exact <= found.best_fit.square < exact + 1e-2
    assert found.value[-1] > 0


def test_reduced_examples_have_no_tokens_and_no_warnings_of_labels_that_are_not_the_users(recwarn):
    rng, arch = np.random.default_rng(0), ba.Architecture((1,), (2, 2), (1.0,) * 3)
    reduced(model_of(rng.normal(size=(500, 1, 2)), rng.normal(size=500), arch, 1.0))
    assert not len(recwarn)
    model = ba.load_model("digits", width=10)
    assert model.tokens is not None
    smaller = reduced(model)[0]
    assert smaller.tokens is None
    assert len(smaller.path_inputs) < model.examples


def test_reweighted_prior_draws_of_several_outputs_with_a_skip_and_labels():
    """Draws of all weights but V_0 under the prior, weighted by p(Y | U)."""
    rng = np.random.default_rng(1)
    model = network((2,), (3, 3), 2, outputs=2, temperature=0.3, labels=rng.normal(size=(6, 2)), skips=(0.7,))
    found = ba.learning_coefficient(model, 0.3, **SHORT)
    assert found.best_fit.how == "found"
    posterior, keys = Path.of(model), jax.random.split(jax.random.key(0), 40_000)
    rows = jax.lax.map(lambda key: effective_weights(posterior.draw_prior(key), posterior.skips), keys)
    process, factors = model.gaussian_process, rows / np.sqrt(rows.shape[2])
    mean, error = weighed_mean(log_densities(process, factors), loss(process, factors).mean, least=100)
    exact = mean - found.best_fit.square / (2 * model.temperature)
    near(found.value, exact, np.hypot(found.error, error), found.ess / DRAWS_PER_DEGREE, finds=0.5)


def test_any_number_of_examples():
    """Compressed examples, plain ones and their triangle have the same lambda_hat; labels off the model only add to S*."""
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(60, 1, 3)), rng.normal(size=60)
    arch = ba.Architecture((1,), (4, 5), (1.0,) * 3)
    gathered = ba.Model(dataset=ba.Dataset.gather((inputs, labels), arch), architecture=arch, temperature=0.1)
    first = ba.learning_coefficient(model_of(inputs, labels, arch, 0.1), [1.0, 0.1], **SHORT)
    second = ba.learning_coefficient(gathered, 0.1, **SHORT)
    np.testing.assert_allclose(first.value[-1:], second.value, rtol=1e-6)
    residual = np.sum((labels - inputs[:, 0] @ np.linalg.lstsq(inputs[:, 0], labels)[0]) ** 2)
    for found in (first, second):
        assert found.best_fit == (pytest.approx(residual), "not needed")
    assert first.singular_fluctuation is not None
    assert second.singular_fluctuation is None
    values_agree(first, finds=0.15)


@pytest.fixture(scope="module")
def rank_one():
    """Network of one neuron and labels of rank two, for which S* is searched, and losses with lambda_hat = 3.9."""
    labels = np.random.default_rng(3).normal(size=(4, 2))
    model = network((1,), (1, 3), 4, outputs=2, temperature=0.01, labels=labels)
    least = np.linalg.svd(labels, compute_uv=False)[1] ** 2
    losses = least + 2 * model.temperature * np.random.default_rng(4).gamma(3.9, size=(4, 2000))
    return model, least, losses


@pytest.mark.parametrize("noise", [0.1, 0.3])
def test_the_luckiest_minibatch_is_not_the_best_fit(rank_one, noise):
    """Losses with noise have the same mean; with the least of them for S*, lambda_hat would be 7 and 24 too large."""
    model, least, exact = rank_one
    losses = exact + noise * np.random.default_rng(5).uniform(-1, 1, exact.shape) * np.sqrt(3)
    with pytest.warns(UserWarning, match=r"below S\* = .* \(found\): state noise, 0 if each loss is of all examples"):
        unsaid = ba.learning_coefficient(model, losses=losses)
    for found in (unsaid, ba.learning_coefficient(model, losses=losses, noise=noise)):
        near(found.value, 3.9, found.error, found.ess / DRAWS_PER_DEGREE, finds=1.8)
    with pytest.warns(UserWarning, match=r"\(given\): state noise"):
        assert ba.learning_coefficient(model, losses=losses, best_fit=least).value == pytest.approx(unsaid.value)
    # Said to be of all examples, the least of them is attained.
    lowered = ba.learning_coefficient(model, losses=losses, noise=0)
    assert lowered.value == pytest.approx(unsaid.value + (least - losses.min()) / (2 * model.temperature), rel=1e-6)
    with pytest.raises(BayesattnError, match="best_fit must not be above"):
        ba.learning_coefficient(model, losses=losses, best_fit=least, noise=0)


def test_losses_of_all_examples_give_what_they_gave(rank_one, monkeypatch):
    """Without a word of noise where S* was found; a search that ended above them is caught by losses said to be exact."""
    model, least, losses = rank_one
    found = ba.learning_coefficient(model, losses=losses)
    colder = ba.learning_coefficient(model.replace(temperature=1.0), model.temperature, losses=losses)
    assert (colder.value, colder.temperatures) == (found.value, model.temperature)
    assert (found.singular_fluctuation, found.fit.used, np.isnan(found.slope).all()) == (None, 0, True)
    near(found.value, 3.9, found.error, found.ess / DRAWS_PER_DEGREE, finds=0.25)
    monkeypatch.setattr(SEARCH, lambda model, seed: least + 0.3)
    exact = np.mean(losses - losses.min()) / (2 * model.temperature)
    assert ba.learning_coefficient(model, losses=losses, noise=0).value == pytest.approx(exact)
    monkeypatch.setattr(SEARCH, lambda model, seed: 2 * losses.mean())
    with pytest.warns(UserWarning, match=r"the search for S\* ended at .* is not known: give best_fit"):
        assert np.isnan(ba.learning_coefficient(model, losses=losses).value)
    with pytest.raises(BayesattnError, match="noise must be a number of at least 0, got -1"):
        ba.learning_coefficient(model, losses=losses, noise=-1)


def test_chains_that_are_draws_are_warned_of(rank_one):
    model, _, losses = rank_one
    with pytest.warns(UserWarning, match=r"losses must have shape \(chain, draw, ..\), got 2000 chains of 4"):
        ba.learning_coefficient(model, losses=losses.T)


def test_best_fit_of_narrow_layers_is_that_of_reduced_rank_regression(rank_one):
    """One head of width 1 with an orthonormal design: what the first singular value of the regression leaves."""
    model, least, _ = rank_one
    assert best_fit_of(model) == (pytest.approx(least, rel=1e-9), "found")
    wide = best_fit_of(network((1,), (2, 3), 4, outputs=2, labels=model.labels))
    assert wide == (0.0, "not needed")


def test_singular_fluctuation_of_a_wide_network_is_that_of_its_gaussian_process():
    """Half the sum of the variances of |Y_i - f_i|^2 / 2T: at large width U does not vary."""
    model = network((1,), (10**5, 10**5), 3, temperature=0.5, labels=np.array([1.0, -0.5, 0.2]))
    found = ba.learning_coefficient(model, 0.5, **SHORT)
    # K = I: f_i ~ Normal(Y_i / (1 + T), T / (1 + T)).
    missed, variance = model.labels * 0.5 / 1.5, 0.5 / 1.5
    exact = np.sum(2 * variance**2 + 4 * missed**2 * variance) / (2 * 4 * 0.5**2)
    assert found.singular_fluctuation.value[0] == pytest.approx(exact, rel=0.02)
    assert found.value[0] == pytest.approx((3 / 1.5 + 0.5 * np.sum(model.labels**2) / 1.5**2) / 2, rel=0.02)


def test_summary_figure_and_json(one_path):
    summary = one_path.summary()
    columns = ["value", "error", "slope", "slope_error", "ess", "rhat", "fluctuation", "fluctuation_error"]
    assert ([*summary.columns], [*summary.index]) == (columns, [1e-2, 1e-4, 1e-6])
    assert plots.learning_coefficient_figure(one_path).axes[0].get_xlabel() == "temperature T (1 / β of L_n = S / 2n)"
    statement = json.loads(json.dumps(one_path.to_dict()))["statement"]
    assert statement == "cannot tell: 3 temperatures are too few, at least 4 are needed"
    assert "coldest" in repr(one_path)
    assert one_path.doubts == []
    apart = replace(one_path, rhat=np.array([1.0, 1.5, 1.0]))
    assert apart.doubts == ["chains did not mix at T = 0.0001, which the limit leaves out: R-hat is above 1.02"]
    assert "one chain alone cannot show" in replace(one_path, rhat=np.full(3, np.nan)).doubts[0]
    assert "2 usable temperatures of 3 are too few" in apart.fit.statement
    with pytest.raises(ValueError, match=r"found must be a result of bayesattn\.learning_coefficient, got 3"):
        plots.learning_coefficient_figure(3)


def test_default_temperatures_end_where_float64_does(one_path):
    def fails(model, **job):
        if model.temperature < 1e-3:
            raise ba.theory.NotConverged("no mode", None)
        return ba.sample(model, **job)

    found = ba.learning_coefficient(one_path.model, chains=1, warmup=300, draws=50, sample=fails)
    np.testing.assert_allclose(found.temperatures, [0.1, 0.01, 0.001])
    assert found.stopped == "float64 does not suffice at T = 0.0001: no mode"


def test_command_goes_on(command, tmp_path):
    np.savez("mine.npz", path_inputs=np.random.default_rng(0).normal(size=(6, 1, 3)), labels=np.zeros(6))
    task = '[task]\nname = "arrays"\nfile = "mine.npz"\n'
    (tmp_path / "mine.toml").write_text("temperature = 0.1\n[architecture]\nheads = [1]\nwidth = 5\n" + task)
    temperatures = ["--temperature", "0.1", "--temperature", "0.01"]
    line = ["learning-coefficient", "mine.toml", *temperatures, "--chains", 2, "--warmup", 300, "--draws", 100]
    code, first, _ = command(*line, "--json")
    assert code == 2  # Two temperatures tell no limit.
    assert len(list((tmp_path / "out/learning-coefficient-mine").iterdir())) == 2
    _, again, _ = command(*line, "--figure", "figure.png")
    assert re.search("cannot tell: .* temperatures .*are too few", " ".join(again.split()))
    assert (tmp_path / "figure.png").exists()
    assert f"{json.loads(first)['value'][0]:.3f}" in again


MODEL = network((1,), (2, 2), 2)
LINE = MODEL.replace(path_inputs=np.ones((6, 1, 2)), labels=np.tile([-1.0, 1.0], 3))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"temperatures": [0.1, -1]}, "temperatures must be a finite number above 0, got -1"),
        ({"temperatures": [0.1, 0.1]}, "temperatures must be different numbers above 0, at least one, got [0.1, 0.1]"),
        ({"best_fit": -1}, "best_fit must be at least 0, what no linear function of the path inputs explains, got -1"),
        ({"noise": 0.1}, "noise must be that of losses, which are not given, got 0.1"),
        ({"losses": np.ones(5), "temperatures": [1.0, 0.1]}, "temperatures must be one, that of the losses, got [1.0"),
        ({"chains": 0}, "chains must be a whole number of at least 1, got 0"),
        ({"model": MODEL.replace(path_inputs=np.zeros((2, 1, 2)))}, "inputs must not all be 0"),
        ({"model": MODEL.replace(likelihood=ba.StudentT(1.0, 5.0))}, "Gaussian"),
        ({"model": LINE, "losses": np.linspace(1, 2, 50)}, "losses must have a mean of at least 6, the least sum"),
        ({"losses": [[1.0, -1.0, 2.0, 3.0]]}, "losses must be sums of squares of shape (draw,) or (chain, draw)"),
        ({"losses": [1.0, np.nan, 2.0, 3.0]}, "losses must be"),
    ],
)
def test_bad_input(change, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        ba.learning_coefficient(**{"model": MODEL} | change)
