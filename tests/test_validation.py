"""Verdicts: a right theory holds, a wrong one is caught, poor draws cannot tell; levels and power by simulation."""

import dataclasses
import itertools
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from scipy import stats

import bayesattn as ba
from bayesattn.checks import alignment, theory_predictions, validation
from bayesattn.checks.comparison import Compared, along_directions, joint_p_of, next_order
from bayesattn.checks.scaling import remainder, scaling
from bayesattn.checks.theory_predictions import Predicted, predicted
from bayesattn.checks.thresholds import CANNOT_TELL, DOES_NOT_HOLD, HOLDS, LEVEL, overall, percent
from bayesattn.jobs import plots
from tests.posteriors import exact_scalar_posterior, random_network, tiny_model
from tests.statistics import agree, likely, mean_of

GOOD_PATH = {"path": 0, "other_path": 0}


@pytest.fixture(scope="module")
def model(hidden_markov_model):
    return hidden_markov_model(10)


@pytest.fixture(scope="module")
def reference_draws(model):
    return ba.sample(model, warmup=100, draws=1000)


@pytest.fixture(scope="module")
def reference_validation(model, reference_draws):
    return ba.validate(reference_draws, model=model)


def test_good_path_at_width_ten(reference_draws, hidden_markov):
    """A long independent run gave 14.86 +- 0.03 for U_00; the saddle point says 13.37."""
    entry = reference_draws["posterior"]["order_parameter"].isel(GOOD_PATH)
    agree(entry, 14.86, 0.03, finds=0.3)
    found = mean_of(entry)
    assert abs(found.value - hidden_markov["order_parameter_10"][0, 0]) > 10 * found.error


@pytest.mark.heavy
def test_good_path_at_width_ten_by_weights(model):
    draws = ba.sample(model, parameterisation="path", warmup=300, draws=1000)
    agree(draws["posterior"]["order_parameter"].isel(GOOD_PATH), 14.86, 0.03, finds=0.45)


@pytest.fixture(scope="module")
def without_test_examples(model, reference_draws):
    """Of U alone, which is quicker: a function from draws and the theory's U to the verdict."""
    model = model.replace(test_path_inputs=None, test_labels=None)

    def validated(corrected, draws=reference_draws, first_order=1e-9, variance=0.1, **settings):
        theory = Predicted(corrected * (1 - first_order), corrected, variance, None)
        return ba.validate(draws, model=model, prediction=theory, **settings)

    return validated


def test_theory_holds_on_the_reference_task(reference_validation):
    found = reference_validation
    assert found.holds, found.statement()
    assert found.doubts() == []
    assert len(found.to_dict()["directions"]["names"]) == 6
    said = f"holds: theory and posterior differ by at most {100 * found.bound:.2g} % of |U| and the mean predictor; a"
    assert found.statement().startswith(said)
    # The saddle point alone does not hold at this width: the expected deviation is seen, and larger than the error.
    assert found.deviation[0, 0] > 10 * found.error[0, 0]
    assert found.expected[0, 0] == pytest.approx(found.deviation[0, 0], rel=0.2)
    # Combining paths beats the GP limit.
    gain = found.accuracy.gains["all paths"]
    assert gain.difference == pytest.approx(found.accuracy.draws - found.accuracy.gp)
    assert gain.outcome == found.alignment.outcome == "higher"


def test_mean_predictor_by_two_routes(model, reference_draws, reference_validation):
    """The mean of f over the draws, and of its conditional mean given U, at every test input."""
    batches = np.tensordot(reference_validation.readouts, model.test_path_inputs, ((1, 2), (1, 2)))
    drawn = reference_draws["posterior"]["prediction"]
    error = batches.std(0, ddof=1) / np.sqrt(len(batches))
    agree(drawn, batches.mean(0), error, len(batches) - 1, finds=0.4)


@pytest.mark.parametrize("changes", [{"temperature": 0.02}, {"width": 11}])
def test_a_wrong_temperature_or_width_fails(model, reference_draws, changes):
    wrong = ba.validate(reference_draws, model=model, prediction=predicted(model.replace(**changes)))
    assert wrong.usable
    assert wrong.verdict == DOES_NOT_HOLD
    assert not wrong.holds
    assert "by the theory" in wrong.failures()[0]
    apart = np.abs(wrong.remaining) > wrong.allowance
    assert not wrong.agrees.all()
    assert apart[~wrong.agrees].all()
    assert (wrong.agrees == wrong.agrees.T).all()
    assert np.sum(~wrong.agrees[np.tril_indices(4)]) == np.sum(~wrong.entries.agrees)
    assert wrong.statement().startswith("does not hold: U[")


def test_few_draws_cannot_tell(model, reference_draws):
    """4 x 200 draws leave about 3 % of Monte Carlo error, 2.4 errors, so that they cannot show agreement within 2 %.

    They show agreement within a margin that is wide enough.
    """
    draws, theory = reference_draws.isel(draw=slice(200)), predicted(model)
    few, wide = (ba.validate(draws, model=model, margin=margin, prediction=theory) for margin in (0.02, 0.2))
    assert few.usable, few.doubts()
    assert few.verdict == CANNOT_TELL
    assert not few.holds
    assert few.decided_by == "Monte Carlo error"
    assert "draw more" in few.statement()
    assert wide.verdict == HOLDS
    assert wide.bound == few.bound


def test_nine_of_ten_entries_low_are_seen_jointly(without_test_examples, reference_validation):
    """By 1.3 to 3.3 Monte Carlo errors, none of which is much by itself."""
    errors = np.zeros((4, 4))
    errors[np.tril_indices(4)] = [*np.linspace(1.3, 3.3, 9), 0]
    errors += np.tril(errors, -1).T
    found = without_test_examples(reference_validation.order_parameter + errors * reference_validation.error)
    assert found.entries.agrees.all()
    assert found.verdict == DOES_NOT_HOLD
    assert found.joint_p < found.level / 2
    [failure] = found.failures()
    assert "differ jointly, 9 of 10 below the theory" in failure


def test_what_the_theory_leaves_out_is_allowed_and_does_not_count_as_agreement(
    without_test_examples, reference_validation
):
    """A theory 10 % off that leaves out 20 % = 40 % (40 % + 10 %) neither fails nor holds; more draws would not help."""
    far = 1.1 * reference_validation.order_parameter
    assert without_test_examples(far).verdict == DOES_NOT_HOLD
    vague = without_test_examples(far, first_order=0.4)
    assert vague.verdict == CANNOT_TELL
    assert vague.decided_by == "allowance"
    assert "to first order in 1/N the theory leaves out up to 20 %; draw a wider network" in vague.statement()


@pytest.mark.parametrize("beyond", [0.1, 0.9])
def test_what_is_compatible_exceeds_what_would_have_been_flagged_only_with_the_reason(
    without_test_examples, reference_validation, beyond
):
    """A theory off by what it leaves out and a share of what Monte Carlo error explains, in that with most of it."""
    drawn = without_test_examples(reference_validation.order_parameter)
    entries = drawn.entries
    entry, left_out = int(np.argmax(entries.noise / entries.size)), 0.1
    path, other = (int(numbers[entry]) for numbers in np.tril_indices(4))
    assert path == other
    corrected = drawn.order_parameter.copy()
    corrected[path, path] = (corrected[path, path] - beyond * entries.noise[entry]) / (1 + left_out)
    # The first order changes this entry alone, by 1 %, and the variance is such that 10 % are left out.
    first_order = 0.01 * (np.arange(4) == path)
    found = without_test_examples(
        corrected, first_order=np.diag(first_order), variance=left_out / 0.01 - 0.01, margin=0.9
    )
    assert found.entries.allowance[entry] == pytest.approx(left_out * corrected[path, path])
    assert found.verdict == HOLDS
    allowance, noise = found.detectable_difference()
    assert f"differ by at most {percent(found.bound)} of |U|; a" in found.statement()
    assert f"above {percent(allowance + noise)} would" in found.statement()
    assert (found.bound > allowance + noise) == (beyond == 0.9)
    assert ("which is less, since U[" in found.statement()) == (beyond == 0.9)


@pytest.mark.parametrize(
    ("first_order", "said"),
    [(0.2, "smaller than the first-order change, so the"), (0.01, "more, 17 %, which")],
)
def test_a_failure_says_whether_the_next_order_can_be_the_cause(
    without_test_examples, reference_validation, first_order, said
):
    """Draws a sixth below theory, which leaves out 4 % and 0.01 %."""
    far = 1.2 * reference_validation.order_parameter
    found = without_test_examples(far, first_order=first_order, variance=0.0)
    assert found.verdict == DOES_NOT_HOLD
    assert "theory to first order in 1/N, which changes U by up to" in found.statement()
    assert said in found.statement()


def test_what_the_theory_leaves_out_is_allowed_on_networks_with_a_known_answer():
    """One head, 6 examples: E[U] and E[f] by quadrature at 27 widths, temperatures and data sets, no sampling.

    Where the first order cancels by chance more is left out, but not as much as 0.1 %, a fifth of the Monte Carlo error of
    4000 independent draws at N = 40. With so few examples remainder and allowance of U both fall as N^-3.
    """
    remainders, allowances = [], []
    for temperature, seed in itertools.product((0.03, 0.3, 1.0), range(3)):
        rng, model = np.random.default_rng(seed), tiny_model(temperature=temperature)
        inputs, labels = rng.normal(size=model.path_inputs.shape), rng.normal(size=model.labels.shape)
        for width in (10, 20, 40):
            case = model.replace(path_inputs=inputs, labels=labels, width=width)
            saddle, corrected, relative_variance, means = predicted(case)
            exact, exact_f, _ = exact_scalar_posterior(case, points=150)
            of_f = (exact_f, means["corrected"], means["theory"])
            for answer, final, start in ((exact, corrected, saddle), of_f):
                size = np.linalg.norm(final)
                remainders.append(np.linalg.norm(answer - final) / size)
                allowances.append(next_order(np.linalg.norm(final - start) / size, float(relative_variance[0, 0])))
    remainders, allowances = np.reshape(remainders, (9, 3, 2)), np.reshape(allowances, (9, 3, 2))
    assert (remainders < np.maximum(allowances, 0.001)).all()
    assert np.mean(remainders < allowances) > 0.9
    assert np.median(np.log2(allowances[:, 1, 0] / allowances[:, 2, 0])) == pytest.approx(3, abs=0.3)


@pytest.mark.parametrize("seed", [1, 3])
def test_level_on_small_networks_with_a_skip_and_two_outputs(seed):
    """It holds; about the mode, with no more than the square of the first order allowed, it does not, by these draws."""
    model = random_network((2,), (1.0,), 2, 12, 0.3, seed, examples=12).replace(test_path_inputs=None)
    found = ba.validate(
        ba.sample(model, chains=4, warmup=200, draws=1500, seed=seed, keep=("order_parameter",)), model=model
    )
    assert found.holds, found.statement()


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("letter", "heads", "skips", "outputs"),
    [("A", (2,), (1.0,), 3), ("B", (2, 2), (1.0, 1.0), 1), ("C", (2, 2), (), 1)],
    ids=["a skip and three outputs", "two skips", "no skips"],
)
def test_level_and_power_on_random_networks(letter, heads, skips, outputs):
    """Twenty networks of each kind at N = 20 and 40, T from 0.01 to 1, P = 30, labels that are noise; 4 x 1000 draws.

    A right theory does not hold no more often than the level says, by its binomial law. A wrong one is found: another
    temperature or width, and the saddle point alone in the place of the first order.
    """
    false, hold, found = [], 0, Counter()
    for number in range(20):
        rng = np.random.default_rng([ord(letter), number])
        temperature, seed = float(10 ** rng.uniform(-2, 0)), int(rng.integers(1 << 30))
        model = random_network(heads, skips, outputs, (20, 40)[number % 2], temperature, seed)
        draws = ba.sample(model, chains=4, warmup=200, draws=1000, seed=number, keep=("order_parameter",))
        theory = predicted(model)
        right = ba.validate(draws, model=model, prediction=theory)
        assert right.usable, right.statement()
        hold += right.holds
        if right.verdict == DOES_NOT_HOLD:
            false.append(right.statement())
        means = theory.mean_predictors
        before = {"corrected": means["theory"], "theory": 2 * means["theory"] - means["corrected"], "gp": means["gp"]}
        alone = Predicted(2 * theory.saddle - theory.corrected, theory.saddle, theory.relative_variance, before)
        wider = model.replace(width=model.architecture.widths[0] * 3 // 2)
        for name, wrong in (
            ("temperature x 2", predicted(model.replace(temperature=2 * temperature))),
            ("width x 1.5", predicted(wider)),
            ("saddle point alone", alone),
        ):
            found[name] += ba.validate(draws, model=model, prediction=wrong).verdict == DOES_NOT_HOLD
    print(f"{len(false)} false alarms, {hold} hold; of wrong theories found {dict(found)}, of 20 each", *false)
    likely(stats.binom.sf(len(false) - 1, 20, LEVEL))
    assert min(found.values()) >= 10, found


@pytest.mark.parametrize(
    ("change", "doubt"),
    [
        (lambda u: u * xr.DataArray([2, 1, 1, 1], dims="chain"), "chains differ; draw longer"),
        (lambda u: u[:1], "one chain alone cannot show that it has mixed"),
        (lambda u: u[:, :3], "R-hat of U is not defined: draw more"),
        (lambda u: u[:, :10], "effective sample size of U is"),
    ],
)
@pytest.mark.filterwarnings("ignore:order_parameters must have shape")
def test_poor_draws_decide_nothing_whatever_they_say(without_test_examples, reference_draws, change, doubt):
    draws = reference_draws["posterior"]["order_parameter"]
    tree = xr.DataTree.from_dict({"posterior": change(draws).to_dataset(name="order_parameter")})
    for factor in (1, 2):
        found = without_test_examples(factor * draws.mean(("chain", "draw")).values, tree)
        assert found.verdict == CANNOT_TELL
        assert any(doubt in each for each in found.doubts())
        assert "nan" not in repr(found)
        assert found.statement().startswith("cannot tell: ")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"uncrossed": ["a and b"]}, "the sign of U between a and b never changes in a chain"),
        ({"repeated": 0.5}, "the same draws occur in several chains"),
    ],
)
def test_signs_that_never_change_and_copies_of_chains_decide_nothing(reference_validation, changed, said):
    diagnostics = dataclasses.replace(reference_validation.diagnostics, **changed)
    found = dataclasses.replace(reference_validation, diagnostics=diagnostics)
    assert reference_validation.verdict == HOLDS
    assert found.verdict == CANNOT_TELL
    assert said in found.statement()


def test_a_series_with_a_negative_mean_square_decides_nothing(reference_validation):
    corrected = reference_validation.corrected.copy()
    corrected[0, 0] = -0.01
    found = dataclasses.replace(reference_validation, corrected=corrected)
    assert found.verdict == CANNOT_TELL
    assert "is below 0: the series does not converge at N =" in found.statement()
    assert "nan" not in repr(found)


@pytest.mark.parametrize(
    ("power", "said"),
    [(-2, "as the next order does"), (-3, "as the next order does"), (-1, "slower than the next order")],
)
def test_the_remainder_falls_as_the_next_order_or_not(power, said):
    def with_remainder(size, error=1e-5, usable=True):
        of_each = [(n, {"relative_remaining": size * float(n) ** power}) for n in (10, 20, 40)]
        return remainder([SimpleNamespace(width=n, **r, relative_error=error, usable=usable) for n, r in of_each])

    sentence = with_remainder(1.0)
    assert said in sentence
    assert f"misses falls as N^({power}." in sentence
    assert with_remainder(1e-9) is None
    assert with_remainder(1.0, usable=False) is None  # Chains that did not mix say nothing.
    if power > -3:  # A slope with a large error fits both orders.
        noisy = with_remainder(1.0, error=20.0**power / 3.1)
        assert "which may be the next order, N^(-2), or the first, N^(-1): draw more" in noisy


def test_verdict_of_several_widths():
    assert overall((HOLDS, HOLDS)) == HOLDS
    assert overall((HOLDS, CANNOT_TELL)) == CANNOT_TELL
    assert overall((CANNOT_TELL, DOES_NOT_HOLD, HOLDS)) == DOES_NOT_HOLD


def compared(difference, error, freedom, level):
    """Quantities of size 1, of which the theory leaves out nothing."""
    ones, names = np.ones(len(error)), [str(entry) for entry in range(len(error))]
    return Compared(names, difference, error, freedom * ones, 0 * ones, ones, level, level)


@pytest.mark.parametrize(("entries", "factors"), [(10, 2), (136, 16)])
def test_levels_of_single_and_joint_tests(entries, factors):
    """1000 simulations of 400 correlated draws: false alarms as often as the level says.

    Of a theory whose entries are all 2 errors too high the joint test finds more than the single ones.
    """
    rng = np.random.default_rng(0)
    loadings = rng.normal(size=(factors, entries)) + 0.5
    simulations, count, level = 1000, 400, 0.05
    rejected = {(shift, name): 0 for shift in (0, -2) for name in ("single", "joint")}
    for _ in range(simulations):
        draws = rng.normal(size=(count, factors)) @ loadings + rng.normal(size=(count, entries))
        error = draws.std(0, ddof=1) / np.sqrt(count)
        for shift in (0, -2):
            found = compared(draws.mean(0) + shift * error, error, count / validation.DRAWS_PER_FREEDOM, level)
            rejected[shift, "single"] += not found.agrees.all()
            rejected[shift, "joint"] += joint_p_of(found, draws) < level
    law = stats.binom(simulations, level)
    likely([law.sf(rejected[0, "single"] - 1), law.sf(rejected[0, "joint"] - 1), law.cdf(rejected[0, "joint"])])
    assert rejected[-2, "joint"] > rejected[-2, "single"] > rejected[0, "single"]
    assert rejected[-2, "joint"] / simulations > 0.5


def test_bound_covers_the_greatest_difference():
    """Of ten differences, with errors from 16 batches each, the bound is too small in 1 % of 2000 cases at most."""
    rng = np.random.default_rng(1)
    true = np.linspace(-0.05, 0.05, 10)
    wrong = 0
    for _ in range(2000):
        batches = true + 0.04 * rng.normal(size=(16, 10))
        found = compared(batches.mean(0), batches.std(0, ddof=1) / 4, 15.0, 0.01)
        wrong += found.bound.max() < 0.05
    likely(stats.binom.sf(wrong - 1, 2000, 0.01))


def test_predictors_are_compared_along_the_finite_width_effect():
    """Half the effect is missing in the draws, which their root mean square over 1000 noisy test examples does not show."""
    rng = np.random.default_rng(2)
    gp, effect = rng.normal(size=(2, 1000))
    predictors = {"gp": gp, "theory": gp + 0.1 * effect, "corrected": gp + 0.1 * effect + 1e-6 * rng.normal(size=1000)}
    batches = gp + 0.05 * effect + rng.normal(size=(16, 1000))
    found = along_directions(predictors, batches, 0.01, level=0.01)
    apart = np.sqrt(np.mean((batches.mean(0) - predictors["corrected"]) ** 2))
    assert apart == pytest.approx(np.sqrt(np.mean(batches.var(0, ddof=1) / 16)), rel=0.1)
    assert list(np.array(found.names)[~found.agrees]) == ["the finite-width effect"]
    right = along_directions(predictors, batches + 0.05 * effect, 0.01, level=0.01)
    assert right.agrees.all()


def test_a_single_draw_has_no_error_and_no_warning():
    predictors = {"gp": np.ones(4), "theory": np.arange(4.0), "corrected": np.arange(1.0, 5.0)}
    found = along_directions(predictors, np.ones((1, 4)), 0.01, level=0.01)
    assert np.isnan(found.error).all()
    assert not found.agrees.any()
    unknown = np.full(2, np.nan)
    assert np.isnan(joint_p_of(compared(np.zeros(2), unknown, unknown, 0.01), np.ones((1, 2))))


def test_margins_and_levels_that_make_no_sense_are_refused(reference_draws):
    with pytest.raises(ValueError, match="margin must be a finite number above 0, got 0"):
        ba.validate(reference_draws, margin=0)
    with pytest.raises(ValueError, match="level must be a probability below 1, got 1"):
        ba.validate(reference_draws, level=1)


def test_gp_limit_of_a_group_is_a_network_of_those_paths(model):
    inputs = {name: getattr(model, name)[:, [2]] for name in ("path_inputs", "test_path_inputs")}
    alone = model.replace(**inputs, architecture=ba.Architecture((1, 1), 10))
    np.testing.assert_allclose(alignment.gp_kernel(model, [2]), alignment.gp_kernel(alone), rtol=1e-12)
    expected = ba.theory.predict([[1.0]], alone)
    np.testing.assert_allclose(theory_predictions.gp_mean(model, [2]), expected.mean, rtol=1e-9)


def test_figures_of_u_have_one_scale(reference_validation):
    figure = plots.validation_figure([reference_validation])
    assert len({image.get_clim() for axes in figure.axes for image in axes.images}) == 1


@pytest.mark.parametrize("scatter", [0.0, 0.3])
def test_the_slope_of_deviations_is_that_of_weighted_least_squares(scatter):
    """Its error is inflated if the points do not lie on a line; deviations below three errors do not count."""
    widths = np.array([10, 20, 50, 100, 200])
    off = scatter * np.array([1.0, -1.0, -1.0, 1.0, 0.5])
    errors = 0.001 * np.array([1.0, 2.0, 1.0, 0.5, 0.2])
    deviations = 2 / widths * np.exp(off + 0.001 * np.array([1, 2, -1, 1, -2]))
    points = [*zip(widths, deviations, errors, strict=True), (400, 0.01, 0.004)]
    found = scaling([SimpleNamespace(width=w, relative_deviation=d, relative_error=e) for w, d, e in points])
    covariance = True if scatter else "unscaled"
    fit = np.polyfit(np.log(widths), np.log(deviations), 1, w=deviations / errors, cov=covariance)
    assert (found.slope, found.error) == pytest.approx((fit[0][0], np.sqrt(fit[1][0, 0])), rel=1e-9)
    assert found.widths == tuple(widths)
    assert scaling([SimpleNamespace(width=10, relative_deviation=0.1, relative_error=0.01)]) is None
