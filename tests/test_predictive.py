"""Predictions at new inputs and further groups for ArviZ, against quadrature, refits, closed forms and draws."""

import warnings

import arviz_stats
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import xarray as xr
from scipy import stats
from scipy.signal import lfilter

import bayesattn as ba
from bayesattn import arviz_groups, prediction, runs
from bayesattn.class_scores import class_scores
from bayesattn.kernels.conditionals import conditional_moments, leave_one_out
from bayesattn.kernels.path_inputs import outputs_of, scaled_features
from bayesattn.models.conditional import conditional_of, new_inputs
from bayesattn.models.prior_draws import _prior_by_weights
from bayesattn.models.stored_model import ATTRIBUTE
from bayesattn.prediction import score
from tests.posteriors import exact_scalar_posterior, tiny_model
from tests.statistics import agree, likely, mean_of, near
from tests.zoo import LIGHT
from tests.zoo import model as zoo_model

WIDTHS = (1, 3)
SETTINGS = {"chains": 4, "warmup": 300, "draws": 1300}


@pytest.fixture(scope="module")
def model():
    """Of widths 3 and 4; of another width it is replaced."""
    model = tiny_model(temperature=0.3)
    return model.replace(labels=np.sign(model.labels))


@pytest.fixture(scope="module")
def drawn(model):
    return {width: ba.sample(of_width(model, width), seed=width, **SETTINGS) for width in WIDTHS}


def of_width(model, width):
    return model if width == 3 else model.replace(width=width)


def given_u(order_parameter, count):
    """Draws that are one U, many times over."""
    drawn = xr.Dataset({"order_parameter": (("chain", "draw", "path", "other_path"), [[order_parameter] * count])})
    return xr.DataTree.from_dict({"posterior": drawn})


@pytest.mark.parametrize("width", WIDTHS)
def test_predictions_are_those_of_quadrature_and_of_the_draws(model, drawn, width):
    predicted = ba.predict(drawn[width], model.test_path_inputs)
    _, exact, _ = exact_scalar_posterior(of_width(model, width))
    near(predicted.mean, exact, predicted.error, degrees=100, finds=0.13)
    assert np.all(predicted.error < 0.02 * np.sqrt(predicted.variance))
    sampled = drawn[width]["posterior"].to_dataset()["prediction"]
    agree(sampled, predicted.mean, finds=0.3)
    spread = arviz_stats.mcse(sampled, method="sd").values
    near(sampled.std(("chain", "draw")).values, np.sqrt(predicted.variance), spread, finds=0.13)
    agree((sampled > 0).astype(float), predicted.probabilities, finds=0.3)
    of_labels = xr.apply_ufunc(stats.norm.cdf, sampled / np.sqrt(model.temperature))
    agree(of_labels, predicted.label_probabilities, finds=0.3)
    assert predicted.draws is None


def test_blocks_and_folders_give_the_same(model, monkeypatch, tmp_path):
    run = runs.sample(model, tmp_path / "run", **LIGHT)
    memory = run.draws().load()
    inputs = np.random.default_rng(5).normal(size=(7, *model.path_inputs.shape[1:]))
    whole = ba.predict(memory, inputs, keep_draws=True, seed=4)
    assert whole.draws.shape == (2, 60, 7)
    names = ("mean", "variance", "error", "probabilities", "label_probabilities", "draws")
    of_folder = ba.predict(str(run.path), inputs, keep_draws=True, seed=4)
    assert all(np.array_equal(getattr(of_folder, name), getattr(whole, name)) for name in names)
    monkeypatch.setattr(prediction, "BLOCK_ENTRIES", 3 * 120)  # Of 120 draws.
    seen, outputs = [], prediction._outputs
    monkeypatch.setattr(prediction, "_outputs", lambda *a: seen.append(a[2].shape) or outputs(*a))
    parts = ba.predict(memory, inputs, keep_draws=True, seed=4)
    assert seen == [(3, 1, 4)] * 3 * 2  # Of 64 draws, then of 56.
    for name in names:
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-10, atol=1e-12)
    thinned = ba.predict(memory, inputs, thin=15)
    kept = memory["posterior"].to_dataset().isel(draw=slice(14, None, 15))
    at_once = ba.predict(xr.DataTree.from_dict({"posterior": kept}), inputs, model=model)
    np.testing.assert_allclose(thinned.mean, at_once.mean, rtol=1e-12)
    turned = memory.copy()
    turned["posterior"] = xr.DataTree(memory["posterior"].to_dataset().transpose("draw", "chain", ...))
    np.testing.assert_allclose(ba.predict(turned, inputs).error, whole.error, rtol=1e-12)


def test_draws_given_u_have_the_moments_of_theory():
    """Jointly on all examples, with U of rank 2 and 4 paths: 40,000 draws of f against its Gaussian law."""
    model, count = tiny_model(heads=(2, 2), widths=(2, 3, 4), variances=(1.2, 0.9, 1.1, 0.8)), 40_000
    factor = np.random.default_rng(0).normal(size=(4, 2))
    order_parameter, test = factor @ factor.T, model.test_path_inputs
    predicted = ba.predict(given_u(order_parameter, count), test, model=model, keep_draws=True)
    exact = ba.theory.predict(order_parameter, model)
    np.testing.assert_allclose(predicted.mean, exact.mean, rtol=1e-10)
    np.testing.assert_allclose(predicted.variance, exact.variance, rtol=1e-10)
    train = model.path_inputs
    within, across, new = (
        np.asarray(ba.theory.kernel(order_parameter, *pair, model.architecture))
        for pair in ((train, train), (train, test), (test, test))
    )
    covariance = new - across.T @ np.linalg.solve(within + model.temperature * np.eye(len(train)), across)
    [draws] = predicted.draws
    near(draws.mean(0), exact.mean, np.sqrt(np.diag(covariance) / count), finds=0.03)
    error = np.sqrt((np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2) / count)
    near(np.cov(draws.T), covariance, error, finds=0.03)


@pytest.mark.parametrize("outputs", [1, 2])
def test_moments_and_draws_at_a_narrow_factor_are_those_at_u(outputs):
    """Mean and variance by K(U) of all labels; f drawn with the same random numbers from a square root of U."""
    arch = ba.Architecture((2, 2), (3, 3, 3), (1.2, 0.9, 1.1, 0.8), (1.0, 0.5), outputs)
    random, columns, key = np.random.default_rng(0), arch.factor_columns, jax.random.key(1)
    path_inputs, labels = random.normal(size=(9, arch.paths, 3)), random.normal(size=(9, outputs)[:outputs])
    model = ba.Model(path_inputs=path_inputs, labels=labels, architecture=arch, temperature=0.2)
    factor, new = random.normal(size=(arch.rows, columns)), jnp.asarray(random.normal(size=(5, arch.paths, 3)))
    assert columns < arch.rows
    order_parameter, process = jnp.asarray(factor @ factor.T), model.gaussian_process
    conditional = conditional_of(model)
    found = jax.jit(lambda *given: conditional.outputs(*given))({"order_parameter": order_parameter}, new, key)
    features = scaled_features(new, arch.input_variance)
    values, vectors = np.linalg.eigh(order_parameter)
    root = vectors * np.sqrt(np.where(values > 1e-9, values, 0))  # Without roots of rounding, which are 1e-8.
    projection = jax.jit(type(process).sample_projection)(process, key, root)
    drawn = jax.jit(outputs_of, static_argnums=2)(features, root @ np.asarray(projection), outputs)
    moments = jax.jit(conditional_moments)(process, order_parameter, features)
    for value, expected in zip(found, (*moments, drawn), strict=True):
        np.testing.assert_allclose(value, np.reshape(expected, value.shape), rtol=1e-10)


def exact_leave_one_out(model):
    """log p(Y_i | Y of the others) of each example, by quadrature with and without it."""
    without = []
    for example in range(len(model.labels)):
        rest = {name: np.delete(getattr(model, name), example, axis=0) for name in ("path_inputs", "labels")}
        without.append(exact_scalar_posterior(model.replace(**rest, tokens=None))[2])
    return exact_scalar_posterior(model)[2] - np.array(without)


@pytest.mark.filterwarnings("ignore::pandas.errors.Pandas4Warning")  # of arviz_stats.compare
def test_leave_one_out_and_comparison_are_those_of_refits(model, drawn):
    """Pointwise and summed, at two widths: 1 / p(Y_i | others) is the mean of 1 / p(Y_i | others, U) over draws."""
    scored, exact = {}, {}
    for width, draws in drawn.items():
        extended = ba.with_groups(draws, "log_likelihood")
        scored[f"N = {width}"], exact[width] = extended, exact_leave_one_out(of_width(model, width))
        whole = arviz_stats.loo(extended, pointwise=True)
        assert np.all(whole.pareto_k < 0.7)
        log_likelihood = extended["log_likelihood"].to_dataset()["labels"]
        assert log_likelihood.dims == ("chain", "draw", "example")
        ratios = np.exp(exact[width] - log_likelihood)
        each, total = mean_of(ratios), mean_of(ratios.sum("example"))
        near(whole.elpd_i.values, exact[width], each.error, each.degrees, finds=0.25)
        near(whole.elpd, exact[width].sum(), total.error, total.degrees, finds=0.6)
    compared = arviz_stats.compare(scored)
    right = sorted(exact, key=lambda width: -exact[width].sum())
    assert list(compared.index) == [f"N = {width}" for width in right]


def test_leave_one_out_given_u_is_that_of_a_refit(hidden_markov_model):
    """Densities of one label given 99 others, with a singular U too, by the law of a Gaussian's conditional."""
    model = hidden_markov_model(10)
    for factor in (np.linalg.cholesky(np.eye(4) + 0.3), np.array([[1.0], [0.5], [0.2], [0.1]])):
        order_parameter, given = factor @ factor.T, np.asarray(jax.jit(leave_one_out)(model.gaussian_process, factor))
        for example in (0, 57, 99):
            rest = {name: np.delete(getattr(model, name), example, axis=0) for name in ("path_inputs", "labels")}
            one = ba.theory.predict(order_parameter, model.replace(**rest), model.path_inputs[[example]])
            law = stats.norm(one.mean[0], np.sqrt(one.variance[0] + model.temperature))
            assert given[example] == pytest.approx(law.logpdf(model.labels[example]), rel=1e-8)


def readout_draws(innovations, correlation=0.9):
    """Model of 200 features and one path, and draws of a readout whose entries are independent sequences AR(1)."""
    chains, count, features = innovations.shape
    innovations[:, 1:] *= np.sqrt(1 - correlation**2)
    readout = lfilter([1.0], [1.0, -correlation], innovations, axis=1)
    axes = ("chain", "draw", "path")
    drawn = {"order_parameter": ((*axes, "other_path"), np.ones((chains, count, 1, 1)))}
    drawn["readout"] = ((*axes, "feature"), readout[:, :, None])
    inputs = np.random.default_rng(1).normal(size=(3, 1, features))
    arch = ba.Architecture((1,), (3, 3), (1.0, 1.0, 1.0))
    model = ba.Model(path_inputs=inputs, labels=np.ones(3), architecture=arch, likelihood=ba.StudentT(1.0, 4.0))
    return model, xr.DataTree.from_dict({"posterior": xr.Dataset(drawn)})


def test_errors_of_variances_are_those_of_independent_draws():
    """Outputs at the 400 unit vectors are independent, with variance 1: their errors are as large as stated."""
    random = np.random.default_rng(0)
    model, draws = readout_draws(random.normal(size=(4, 1000, 400)))
    predicted = ba.predict(draws, np.eye(400)[:, None], model=model)
    scores = (predicted.variance - 1) / predicted.variance_error
    likely(2 * stats.t.sf(np.abs(scores), 40))  # Of 4000 squares at an autocorrelation of 0.81, as good as 420.
    squares = stats.chi2(400)
    likely(2 * min(squares.cdf(np.sum(scores**2)), squares.sf(np.sum(scores**2))))
    heavy, draws = readout_draws(random.standard_t(2.2, size=(4, 1000, 400)), correlation=0.0)
    with pytest.warns(UserWarning, match=r"the variance of f has a heavy tail: Pareto k is [01]\.\d\d, above 0\.7"):
        ba.predict(draws, np.eye(400)[:, None], model=heavy)


def test_scores_of_stored_predictions_are_those_of_predict(model, drawn, zoo):
    """Of classes exactly, of the Gaussian likelihood up to the Monte Carlo error of draws of f given U."""
    stored, predicted = score(drawn[3]), ba.predict(drawn[3], model.test_path_inputs)
    expected = predicted.scores(model.test_labels)
    assert stored.accuracy == expected.accuracy
    signed = drawn[3]["posterior"].to_dataset()["prediction"] * model.test_labels
    right = xr.apply_ufunc(stats.norm.cdf, signed / np.sqrt(model.temperature))
    of_labels = predicted.label_probabilities
    chances = np.where(model.test_labels > 0, of_labels, 1 - of_labels)
    error = mean_of((right / chances).mean("test_example")).error
    near(stored.log_score, expected.log_score, error, finds=0.3)
    nothing = drawn[3].copy(deep=True)
    nothing["posterior"]["prediction"][:] = 0.0  # f = 0 is a guess.
    assert score(nothing).log_score == pytest.approx(np.log(0.5))
    classes = zoo_model("classes").replace(temperature=0.7)
    draws = xr.DataTree.from_dict({"posterior": zoo.draws("classes")["posterior"].to_dataset()})
    predicted = ba.predict(draws, classes.test_path_inputs, model=classes)
    one, all_at_once = score(draws, model=classes), predicted.scores(classes.test_labels)
    for name in ("accuracy", "log_score", "calibration_error"):
        assert getattr(one, name) == pytest.approx(getattr(all_at_once, name), rel=1e-12)
    of_means = draws["posterior"]["prediction"].values.mean((0, 1)).argmax(1) == classes.test_labels.argmax(1)
    assert score(draws, model=classes.replace(likelihood=ba.Gaussian(0.7))).accuracy == of_means.mean()
    draws["posterior"]["prediction"][0, 0, 0, 0] = np.nan
    flipped = model.replace(test_labels=-model.test_labels)
    for of, draws_of_it, message in (
        (model, given_u([[1.0]], 2), r"draws must have posterior\['prediction'\], got none: keep it when you "),
        (flipped, drawn[3], "draws must have predictions at the test examples of"),
        (model.replace(test_labels=None), drawn[3], r"score\(\) needs a model with test_labels, got none"),
        (classes, draws, r"draws must be finite, got posterior\['prediction'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            score(draws_of_it, model=of)


def test_noise_of_labels_is_that_of_each_draw_where_it_has_a_prior(model):
    rng = np.random.default_rng(0)
    unknown, shape = model.replace(temperature=dist.LogNormal(-1.0, 0.5)), (2, 3)
    outputs, noise = rng.normal(size=(*shape, model.test_examples)), rng.uniform(0.1, 2, size=shape)
    variables = {"order_parameter": rng.uniform(1, 2, size=(*shape, 1, 1)), "temperature": noise, "prediction": outputs}
    dims = {"order_parameter": ("path", "other_path"), "temperature": (), "prediction": ("test_example",)}
    drawn = {name: (("chain", "draw", *dims[name]), values) for name, values in variables.items()}
    tree = xr.DataTree.from_dict({"posterior": xr.Dataset(drawn)})
    by_draw = stats.norm.cdf(outputs / np.sqrt(noise)[..., None])
    expected = class_scores(by_draw.mean((0, 1)), model.test_labels)
    assert score(tree, model=unknown).log_score == pytest.approx(expected.log_score, rel=1e-12)
    each = []
    for chain, draw in np.ndindex(shape):
        known = model.replace(temperature=noise[chain, draw])
        moments = ba.theory.predict(variables["order_parameter"][chain, draw], known)
        each.append(stats.norm.cdf(moments.mean / np.sqrt(moments.variance + noise[chain, draw])))
    found = ba.predict(tree, model.test_path_inputs, model=unknown)
    np.testing.assert_allclose(found.label_probabilities, np.mean(each, axis=0), rtol=1e-9)
    sure = tree.copy(deep=True)
    sure["posterior"]["prediction"][:] = 100.0 * model.test_labels
    assert abs(score(sure, model=unknown).log_score) < 1e-12
    sure["posterior"]["prediction"][:] = -100.0 * model.test_labels
    assert score(sure, model=unknown).log_score == pytest.approx(np.log(np.finfo(float).epsneg), rel=1e-3)


def test_scores_are_of_the_sequences_that_were_predicted(zoo):
    """A mask of tokens alone is none."""
    draws, sequences = zoo.draws("attention"), zoo_model("attention")
    sequences = sequences.replace(test_labels=np.array([1.0, -1.0, 1.0, 1.0, -1.0]))
    tokens = np.ones(sequences.test_inputs.shape[:2], bool)
    expected = score(draws, model=sequences).accuracy
    assert score(draws, model=sequences.replace(test_mask=tokens)).accuracy == expected
    draws["constant_data"]["test_inputs"][:, -1] = 0.0
    sequences = sequences.replace(test_inputs=draws["constant_data"]["test_inputs"].values)
    assert score(draws, model=sequences).accuracy == expected
    tokens[:, -1] = False
    padded = sequences.replace(mask=np.broadcast_to(tokens[:1], sequences.inputs.shape[:2]))
    with pytest.raises(ValueError, match="mask of new sequences must be given, since those of training are padded"):
        new_inputs(padded, sequences.test_inputs, None)
    for name, values in (("test_inputs", -sequences.test_inputs), ("test_mask", tokens)):
        with pytest.raises(ValueError, match=f"predictions at the test examples .* their {name} differ"):
            score(draws, model=sequences.replace(**{name: values}))


def test_random_numbers_of_draws_are_their_own():
    """Draws that are almost the same: what is drawn given them is not, as that of chains one after the other must not be."""
    network, rng = zoo_model("two"), np.random.default_rng(0)
    vectors = rng.normal(size=(1, 5, network.log_density("collapsed").size))
    one, other, again = (ba.from_vectors(each, network) for each in (vectors, vectors * (1 + 1e-6), vectors))

    def drawn(tree):
        weights = ba.weights(tree, model=network)
        predicted = ba.predict(tree, network.test_path_inputs, model=network, keep_draws=True)
        replicated = ba.with_groups(tree, "posterior_predictive", model=network)["posterior_predictive"]["labels"]
        return [tree["posterior"]["prediction"].values, weights["V_0"].values, predicted.draws, replicated.values]

    for first, second, same in zip(drawn(one), drawn(other), drawn(again), strict=True):
        assert np.abs(first - second).max() > 0.1
        np.testing.assert_array_equal(first, same)


def test_replicated_labels_have_the_moments_of_predictions(model, drawn):
    draws = drawn[3]
    replicated = ba.with_groups(draws, "posterior_predictive", seed=2)["posterior_predictive"].to_dataset()["labels"]
    assert replicated.dims == ("chain", "draw", "example")
    np.testing.assert_array_equal(replicated["draw"], draws["posterior"]["draw"])
    predicted = ba.predict(draws, model.path_inputs)
    agree(replicated, predicted.mean, finds=0.22)
    spread = arviz_stats.mcse(replicated, method="sd").values
    deviation = np.sqrt(predicted.variance + model.temperature)
    near(replicated.std(("chain", "draw")).values, deviation, spread, finds=0.09)


def test_the_prior_has_the_moments_of_the_gp_limit():
    """E U is the GP limit's, at any width; labels and f on test inputs have the covariance of one function."""
    model, count = tiny_model(heads=(2,), widths=(3, 2)), 20_000
    draws = given_u(np.eye(2), 2)
    prior = ba.with_groups(draws, "prior", "prior_predictive", model=model, prior_draws=count, seed=3)
    drawn = prior["prior"].to_dataset()["order_parameter"].values[0]
    gp = ba.theory.gp_order_parameter(model.architecture)
    near(drawn.mean(0), gp, drawn.std(0) / np.sqrt(count), finds=0.1)
    labels, outputs = prior["prior_predictive"]["labels"].values[0], prior["prior"]["prediction"].values[0]
    both = np.hstack([labels, outputs])
    inputs = np.concatenate([model.path_inputs, model.test_path_inputs])
    noise = model.temperature * (np.arange(len(inputs)) < len(model.labels))
    covariance = np.asarray(ba.theory.kernel(gp, inputs, inputs, model.architecture)) + np.diag(noise)
    products = both[:, :, None] * both[:, None, :]
    near(products.mean(0), covariance, products.std(0) / np.sqrt(count), finds=0.5)


def test_weights_quantities_and_labels_of_a_prior_draw_have_their_own_random_numbers():
    class Keys(eqx.Module):
        """What each key gives."""

        numbers = ()

        def draw_prior(self, key):
            return {"order_parameter": jax.random.bits(key)}

        def quantities(self, sites, key):
            return sites | {"prediction": jax.random.bits(key)}

        def draw_labels(self, key, sites):
            return jax.random.bits(key)

    drawn = _prior_by_weights(jax.random.split(jax.random.key(0), 2), Keys())
    assert len({int(bits) for values in drawn.values() for bits in values}) == 6


def test_prior_and_likelihood_for_power_scaling_add_up_to_what_was_sampled(model, drawn):
    """Prior and likelihood add up to the density that was sampled, up to the volume of whitening."""
    draws = drawn[3]
    extended = ba.with_groups(draws, "log_prior", "log_likelihood", joint=True)
    prior, likelihood = extended["log_prior"]["bartlett"], extended["log_likelihood"]["labels"]
    assert prior.dims == likelihood.dims == ("chain", "draw")
    rest = draws["sample_stats"]["lp"].values - prior.values - likelihood.values
    assert np.ptp(rest) < 1e-8
    for group in ("prior", "likelihood"):
        found = arviz_stats.psense(extended, var_names=["order_parameter"], group=group)
        assert np.all(np.isfinite(found["order_parameter"].values))
        assert np.all(found["order_parameter"].values > 0.01)
    with pytest.raises(ValueError, match="group 'log_prior' is the density of U's Bartlett coordinates, which only c"):
        ba.with_groups(given_u([[1.0]], 4), "log_prior", model=model)
    without = ba.with_groups(given_u([[1.0]], 4), model=model, prior_draws=5)
    assert set(without.children) == {"posterior", *arviz_groups.GROUPS} - {"log_prior"}


def test_other_groups_stay_and_draws_are_left_alone(model, drawn):
    draws = drawn[3]
    before = set(draws.children)
    extended = ba.with_groups(draws, prior_draws=5)
    assert set(extended.children) == before | set(arviz_groups.GROUPS)
    assert set(draws.children) == before
    again = ba.with_groups(extended, "prior", prior_draws=7)
    assert again["prior"].sizes["draw"] == 7
    assert again["log_likelihood"].identical(extended["log_likelihood"])
    xr.testing.assert_equal(
        ba.with_groups(draws, "posterior_predictive")["posterior_predictive"].to_dataset(),
        extended["posterior_predictive"].to_dataset(),
    )


def test_labels_of_other_sizes_have_no_probabilities(model):
    other = model.replace(labels=1.5 * model.labels)
    assert ba.predict(given_u([[1.0]], 4), model.test_path_inputs, model=other).probabilities is None


def test_what_cannot_be_predicted_is_said(model, drawn):
    draws, inputs = drawn[3], model.test_path_inputs
    singular = model.replace(path_inputs=np.repeat(model.path_inputs[:1], 6, 0), labels=np.ones(6), temperature=1e-18)
    with pytest.raises(FloatingPointError, match="a prediction is not finite: K"):
        ba.predict(given_u([[1.0]], 2), inputs, model=singular.replace(tokens=None))
    anonymous, wrong = draws.copy(), draws.copy()
    anonymous.attrs, wrong.attrs = {}, {ATTRIBUTE: "{"}
    bare = xr.DataTree.from_dict({"posterior": xr.Dataset({"a": 1.0})})
    narrow = tiny_model(heads=(2, 2), widths=(2, 3, 4), variances=(1.2, 0.9, 1.1, 0.8))
    for of, changes, message in (
        (anonymous, {}, "draws must say what model they are of, .* or pass model=$"),
        (wrong, {}, "draws must say what model they are of"),
        (bare, {"model": model}, r"draws must have posterior\['order_parameter'\]"),
        (given_u(np.eye(2), 3), {"model": model}, "network of paths head0, got "),
        (given_u(np.eye(4), 3), {"model": narrow}, "must have rank 2 or less at these widths, got rank 4"),
        (draws.isel(example=slice(0, 2)), {}, "attribute 'bayesattn' describes, got data of"),
        (draws, {"new_path_inputs": inputs[:, :, :2]}, r"new_path_inputs must have shape \(.*\), got \(3, 1, 2\)"),
        (draws, {"new_path_inputs": inputs * np.nan}, "new_path_inputs must be finite"),
        (draws, {"thin": 0}, "thin must be a whole number of at least 1, got 0"),
        (draws, {"thin": 2000}, "draws must hold at least 2000 of each chain, got 1300"),
        (draws, {"seed": -1}, "seed must be a whole number"),
    ):
        with pytest.raises(ValueError, match=message):
            ba.predict(of, **{"new_path_inputs": inputs} | changes)
    with pytest.raises(ValueError, match=r"group must be one of .*did you mean 'log_likelihood'"):
        ba.with_groups(draws, "likelihood")
    for name, value in {"prior_draws": 0, "seed": -1}.items():
        with pytest.raises(ValueError, match=f"{name} must be a whole number"):
            ba.with_groups(draws, "prior", **{name: value})


def test_of_a_single_draw_the_error_is_not_known(model):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        single = ba.predict(given_u([[1.0]], 1), model.test_path_inputs, model=model)
        ba.with_groups(given_u([[1.0]], 1).isel(chain=[0, 0]), model=model, prior_draws=5)
        ba.sample(model, **SETTINGS | {"draws": 1}, progress=False)
    assert np.isnan(single.error).all()
