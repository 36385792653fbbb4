"""Accuracy against the GP limit: errors against known ones, McNemar's test by hand, kernel-target alignment."""

import json

import numpy as np
import pytest
import xarray as xr
from arviz_stats import mcse
from scipy import stats
from scipy.signal import lfilter

import bayesattn as ba
from bayesattn.checks import accuracy, alignment, theory_predictions
from bayesattn.checks.alignment import Alignment
from bayesattn.checks.diagnostics import summary
from bayesattn.theory.predictor import right
from tests.statistics import likely, near

CHAINS, DRAWS = 4, 240


def batch_means(rng, repetitions, correlation, shared, examples, scale):
    """Means over four batches a chain of autoregressive draws, whose errors the examples share, around 0."""
    steps = rng.normal(size=(repetitions, CHAINS, DRAWS, shared))
    steps[:, :, 1:] *= np.sqrt(1 - correlation**2)
    draws = lfilter([1.0], [1.0, -correlation], steps, axis=2)
    means = draws.reshape(repetitions, CHAINS * theory_predictions.BATCHES_PER_CHAIN, -1, shared).mean(2)
    loadings = rng.normal(size=(repetitions, shared, examples)) / np.sqrt(shared)
    return scale * means @ loadings


@pytest.mark.parametrize(("correlation", "scale"), [(0.0, 0.1), (0.8, 0.3)])
def test_the_monte_carlo_error_is_that_of_the_accuracy(correlation, scale):
    """Over 700 data sets of 400 examples with exact mean predictors known; half of the square is a fifth of the error."""
    repetitions, examples = 700, 400
    rng = np.random.default_rng(0)
    labels = rng.choice([-1.0, 1.0], examples)
    exact = 0.3 * labels + 0.35 * rng.normal(size=(repetitions, examples))
    batches = exact[:, None] + batch_means(rng, repetitions, correlation, 3, examples, scale)
    means = batches.mean(1)
    missed = right(means, labels).mean(1) - right(exact, labels).mean(1)
    stated = [accuracy.monte_carlo_error(*each, labels) for each in zip(means, batches, strict=True)]
    apart, square = np.square(stated) - missed**2, np.mean(missed**2)
    near(np.mean(apart) / square, 0.0, stats.sem(apart) / square, repetitions - 1, finds=0.5)


@pytest.mark.parametrize("batches", [2, 16])
def test_the_error_of_one_example_near_the_boundary(batches):
    """One mean predictor h standard errors from 0, the others far away: error^2 = Phi(-h) / n^2, whatever the batches."""
    examples, distance = 50, 1.0
    means = np.ones((batches, examples))
    means[:, 0] = stats.zscore(np.arange(batches), ddof=1) * np.sqrt(batches) + distance
    error = accuracy.monte_carlo_error(means.mean(0), means, np.ones(examples))
    flips = round((error * examples) ** 2 * accuracy.RESAMPLES)
    likely(stats.binomtest(flips, accuracy.RESAMPLES, stats.norm.cdf(-distance)).pvalue)


def test_no_error_where_no_example_is_near_the_boundary_and_none_known_of_one_batch():
    far = np.outer([1.0, 1.01, 0.99], [1.0, -2.0, 3.0])
    assert accuracy.monte_carlo_error(far.mean(0), far, np.ones(3)) == 0
    assert np.isnan(accuracy.monte_carlo_error(far[0], far[:1], np.ones(3)))
    unknown = accuracy.Gain(0.5, 60, 10, 100, float("nan"))
    assert unknown.outcome == "cannot tell"
    assert json.loads(json.dumps(unknown.to_dict()))["monte_carlo_error"] is None


def test_an_output_of_zero_is_right_half_of_the_time_and_a_class_where_its_output_is_the_largest():
    assert right(np.array([2.0, -1.0, 0.0, 1.0]), np.array([1.0, 1.0, -1.0, 3.0])).tolist() == [1, 0, 0.5, 1]
    labels, outputs = np.eye(3)[[2, 0, 2]], np.array([[0.1, 0.2, 0.9], [0.5, 0.5, 0.1], [0.3, 0.2, 0.1]])
    assert right(outputs, labels).tolist() == [1.0, 0.5, 0.0]
    assert accuracy.share_right(outputs.ravel(), labels) == 0.5


def test_the_error_of_a_share():
    assert accuracy.binomial_error(0.964, 1000) == pytest.approx(np.sqrt(0.964 * 0.036 / 1000), rel=0.01)
    # Exactly the share that two of three Bernoulli trials, and one half more of either outcome, give.
    assert accuracy.binomial_error(2 / 3, 3) == pytest.approx(np.sqrt(2.5 / 4 * 1.5 / 4 / 4))
    assert 0 < accuracy.binomial_error(1.0, 1000) < 1 / 1000


def predictors(both, better, worse, neither):
    """Outputs of two predictors with labels +1, right together, alone, and not at all on so many examples."""
    ours = np.repeat([1.0, 1.0, -1.0, -1.0], (both, better, worse, neither))
    theirs = np.repeat([1.0, -1.0, 1.0, -1.0], (both, better, worse, neither))
    return ours, theirs, np.ones(len(ours))


def test_mcnemar_by_hand():
    """12 against 3 examples of 100: p = 2 (1 + 15 + 105 + 455) / 2^15."""
    found = accuracy.gain(*predictors(60, 12, 3, 25))
    assert (found.better, found.worse, found.examples) == (12, 3, 100)
    assert found.difference == pytest.approx(0.09)
    assert found.p_value == pytest.approx(1152 / 32768)
    assert found.test_error == pytest.approx(np.sqrt(16 - 81 / 101) / 101)
    assert found.outcome == "cannot tell"
    assert accuracy.gain(*predictors(70, 0, 0, 30)).p_value == 1


def test_a_gain_is_seen_either_way_unless_the_draws_are_too_few():
    found = accuracy.gain(*predictors(600, 100, 40, 260), monte_carlo_error=0.001)
    assert found.outcome == "higher"
    assert found.verdict() == "finite width beats the GP limit by 6.0 ± 1.2 points (McNemar p = 4e-07)"
    assert accuracy.gain(*predictors(600, 40, 100, 260)).verdict().startswith("the GP limit beats finite width by 6.0")
    poor = accuracy.gain(*predictors(600, 100, 40, 260), monte_carlo_error=0.03)
    assert poor.outcome == "cannot tell"
    assert "cannot be distinguished: +6.0 ± 3.2 points" in poor.verdict()


def test_equally_good_predictors_are_called_different_in_one_case_of_a_hundred_at_most():
    """5000 test sets of 500; draws move the accuracy by a normal error of 2 %, of which McNemar's test knows nothing."""
    rng, cases, examples, spread = np.random.default_rng(0), 5000, 500, 0.02
    counts = rng.multinomial(examples, [0.7, 0.1, 0.1, 0.1], size=cases)
    moved = np.rint(spread * examples * rng.normal(size=cases)).astype(int)
    gains = [
        accuracy.Gain((b - c + k) / examples, int(b + max(k, 0)), int(c + max(-k, 0)), examples, spread)
        for (_, b, c, _), k in zip(counts, moved, strict=True)
    ]
    law = stats.binom(cases, accuracy.LEVEL)
    likely(law.sf(sum(gain.outcome != "cannot tell" for gain in gains) - 1))
    assert law.sf(sum(gain.p_value <= accuracy.LEVEL for gain in gains) - 1) < 1e-9


@pytest.fixture(scope="module")
def model(hidden_markov_model):
    return hidden_markov_model(10).replace(path_groups={"good path": (0,)})


def around(order_parameter, draws=40):
    """Draws of U that scatter by 2 % about a matrix: a congruence with random diagonals keeps them positive definite."""
    factors = 1 + 0.01 * np.random.default_rng(0).normal(size=(CHAINS, draws, len(order_parameter)))
    return factors[..., :, None] * np.asarray(order_parameter) * factors[..., None, :]


def accuracies(model, order_parameter):
    batches = theory_predictions.outputs_of(model, theory_predictions.readout_batches(model, around(order_parameter)))
    at_saddle = theory_predictions.mean_predictor(model, order_parameter)
    by_theory = {"theory": at_saddle, "corrected": at_saddle, "gp": theory_predictions.gp_mean(model)}
    return accuracy.accuracy_of(model, by_theory, batches)


def test_a_gain_over_the_gp_limit_is_seen_where_there_is_one(model, hidden_markov):
    """At the saddle point of N = 10 combining paths pays; in the GP limit itself, and against it, nothing is gained."""
    found = accuracies(model, hidden_markov["order_parameter_10"])
    assert found.gains["all paths"].outcome == found.theory_gains["all paths"].outcome == "higher"
    assert found.gains["all paths"].difference == pytest.approx(found.draws - found.gp)
    assert found.gains["good path"].difference == pytest.approx(found.draws - found.gp_of_groups["good path"])
    assert found.gains["all paths"].monte_carlo_error == found.error
    assert found.test_error == accuracy.binomial_error(found.draws, 200)
    none = accuracies(model, ba.theory.gp_order_parameter(model.architecture))
    assert none.gains["all paths"].outcome == none.theory_gains["all paths"].outcome == "cannot tell"
    assert none.theory_gains["all paths"].difference == 0
    content = json.loads(json.dumps(found.to_dict()))
    assert content["gains"]["good path"]["p_value"] == found.gains["good path"].p_value
    assert content["test_error"] == found.test_error


def test_kernel_target_alignment_weighs_eigenvectors_by_eigenvalues():
    rng = np.random.default_rng(0)
    labels, root = rng.choice([-1.0, 1.0], 12), rng.normal(size=(12, 12))
    kernel = root @ root.T
    eigenvalues, found = np.linalg.eigvalsh(kernel)[::-1], np.asarray(ba.theory.alignment(kernel, labels))
    expected = np.sum(eigenvalues * found**2) / np.linalg.norm(eigenvalues)
    assert ba.theory.kernel_target_alignment(kernel, labels) == pytest.approx(expected)
    assert found.min() >= 0
    assert ba.theory.kernel_target_alignment(np.outer(labels, labels), labels) == pytest.approx(1)
    assert ba.theory.kernel_target_alignment(np.eye(12), labels) == pytest.approx(1 / np.sqrt(12))
    assert np.isnan(ba.theory.kernel_target_alignment(np.zeros((12, 12)), labels))


def test_alignment_over_draws(model, hidden_markov):
    """Mean and Monte Carlo error over the draws that are looked at, 25 of each chain."""
    saddle = hidden_markov["order_parameter_10"]
    draws, inputs, labels = around(saddle, draws=25), model.path_inputs, model.labels
    kernels = [ba.theory.kernel(u, inputs, inputs, model.architecture) for u in draws.reshape(-1, 4, 4)]
    each = [ba.theory.kernel_target_alignment(kernel, labels) for kernel in kernels]
    leading = [ba.theory.alignment(kernel, labels) for kernel in kernels]
    found = alignment.alignment_over_draws(model, saddle, draws)
    assert found.draws == pytest.approx(np.mean(each))
    of_chains = xr.DataArray(np.reshape(each, (CHAINS, 25)), dims=("chain", "draw"))
    assert found.error == pytest.approx(float(mcse(of_chains)))
    np.testing.assert_allclose(found.eigenvectors, np.mean(leading, 0), rtol=1e-6, atol=1e-9)
    assert found.theory == pytest.approx(found.draws, rel=0.01)
    assert found.outcome == "higher"
    limit = ba.theory.gp_order_parameter(model.architecture)
    none = alignment.alignment_over_draws(model, limit, around(limit, draws=25))
    assert none.theory == pytest.approx(none.gp)
    assert none.outcome == "cannot tell"
    assert "cannot be distinguished" in none.verdict()
    few = alignment.alignment_over_draws(model, saddle, draws[:1, :2])
    assert few.outcome == "cannot tell"
    assert json.loads(json.dumps(few.to_dict()))["eigenvectors_error"] == [None] * 100


def test_the_accuracy_of_stored_predictions_has_both_errors():
    rng = np.random.default_rng(0)
    predictions, labels = 0.1 + rng.normal(size=(2, 22, 30)), np.ones(30)
    posterior = xr.Dataset({"prediction": (("chain", "draw", "test_example"), predictions)})
    constant = xr.Dataset({"test_labels": ("test_example", labels)})
    (row,) = summary(xr.DataTree.from_dict({"posterior": posterior, "constant_data": constant}))
    mean = predictions.mean((0, 1))
    assert row["mean"] == pytest.approx(np.mean(mean > 0))
    assert row["test_error"] == accuracy.binomial_error(row["mean"], 30)
    # Independent draws: errors of 1 / sqrt(44) in each example, so that each flips with probability Phi(-|mean| sqrt(44)).
    flips = stats.norm.cdf(-np.abs(mean) * np.sqrt(44))
    bias = np.sum(np.sign(mean) * flips)
    assert row["error"] == pytest.approx(np.hypot(bias, np.sqrt(np.sum(flips * (1 - flips)))) / 30, rel=0.4)


def test_a_kernel_of_one_direction_is_aligned_as_its_limit():
    """With one path draws of the alignment differ by rounding, which is far beyond their Monte Carlo error."""
    eigenvectors = np.ones((3, 2))
    assert Alignment(0.3 + 1e-16, 1e-18, 0.3, 0.3, *eigenvectors).outcome == "cannot tell"
    assert Alignment(0.3 + 1e-3, 1e-5, 0.3, 0.3, *eigenvectors).outcome == "higher"
