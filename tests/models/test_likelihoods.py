"""Likelihoods beside the Gaussian: classes, Student-t, counts, and one's own; chains: test_one_posterior.py."""

import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import bayesattn as ba
from bayesattn import likelihoods, runs
from bayesattn.class_scores import class_scores
from bayesattn.errors import BayesattnError
from bayesattn.likelihoods import require_by_example
from bayesattn.models import collapsed, latent_outputs, left_out
from bayesattn.prediction import PosteriorPrediction
from bayesattn.questions import calibration, joint_law
from tests import dense
from tests.conftest import relative_error
from tests.statistics import likely, near
from tests.zoo import classes

CLASSES = {
    # heads, widths, skips, outputs, examples, features
    "three classes": ((2,), (2, 2), (), 3, 5, 9),
    "a skip": ((2,), (3, 3), (1.0,), 2, 12, 2),
    "two classes, one output": ((2, 2), (3, 2, 2), (), 1, 8, 12),  # far fewer labels than Z has entries
    "a width of one": ((2,), (1, 1), (0.7,), 3, 6, 4),
    "a weak first path": ((2,), (1, 1), (), 1, 10, 3),
}
NO_THEORY = r"likelihood must be bayesattn\.Gaussian for the theory"


def model_of_classes(name, temperature=0.5):
    heads, widths, skips, outputs, examples, features = CLASSES[name]
    arch = ba.Architecture(heads, widths, (1.2,) * (len(heads) + 2), skips, outputs)
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(examples, arch.paths, features))
    labels = rng.permutation(np.arange(examples) % max(outputs, 2))
    if name == "a weak first path":
        # Labels that the other tells leave open which sign it has beside that.
        inputs[:, 0] *= 0.03
        labels, temperature = (inputs[:, 1, 0] > 0).astype(int), 0.1
    return ba.Model(
        path_inputs=inputs,
        labels=2.0 * labels - 1 if outputs == 1 else ba.one_hot(labels).labels,
        architecture=arch,
        likelihood=ba.Categorical(temperature),
        test_path_inputs=rng.normal(size=(3, arch.paths, features)),
    )


@pytest.mark.parametrize("name", ["three classes", "two classes, one output"])
def test_latents_are_whitened_by_the_curvature_at_their_mode(name):
    model = model_of_classes(name)
    shape = model.architecture.rows, collapsed.structure(model)[0].columns
    factor = jnp.asarray(np.random.default_rng(1).normal(size=shape))

    def potential(latents):
        outputs = latent_outputs.outputs_given(model.gaussian_process, factor, latents)
        return latents @ latents / 2 - jnp.sum(model.likelihood.log_prob(outputs, jnp.asarray(model.labels)))

    whitening = latent_outputs.whitening_at(model.gaussian_process, model.likelihood, factor)
    # Entries of Z, or coefficients of a root of K.
    assert whitening.centre.size == (shape[1] * 9 if name == "three classes" else 8)
    slope, hessian = jax.jit(lambda at: (jax.grad(potential)(at), jax.hessian(potential)(at)))(whitening.centre)
    assert np.max(np.abs(slope)) < 1e-9
    assert relative_error(whitening.scale.T @ hessian @ whitening.scale, np.eye(len(hessian))) < 1e-9


def test_what_has_no_theory_says_so():
    model = model_of_classes("three classes")
    by_u = partial(ba.theory.predict, np.eye(6))
    for use in (ba.theory.solve, ba.theory.evidence, ba.theory.finite_width, by_u):
        with pytest.raises(ValueError, match=NO_THEORY):
            use(model)
    assert ba.theory.gp_order_parameter(model.architecture).shape == (6, 6)
    plain = model.replace(likelihood=ba.Gaussian(model.temperature))
    assert ba.theory.solve(plain).order_parameter.shape == (6, 6)


def test_a_run_of_classes_comes_back(zoo):
    run = ba.runs.Run(zoo.run("classes"))
    assert run.model.likelihood == classes().likelihood
    assert ba.predict(run, run.model.test_path_inputs).probabilities.shape == (5, 3)
    assert "classes, by the softmax" in repr(run.model)


def test_scores_of_classes():
    rng = np.random.default_rng(0)
    chances = rng.dirichlet(np.ones(3), size=20_000)
    classes = (rng.random((len(chances), 1)) > np.cumsum(chances, axis=1)[:, :2]).sum(1)
    labels = np.eye(3)[classes]
    found = class_scores(chances, labels)
    assert found.accuracy == np.mean(chances.argmax(1) == classes)
    assert found.log_score == pytest.approx(np.log(chances[np.arange(len(chances)), classes]).mean())
    assert found.by_class @ found.examples / len(labels) == pytest.approx(found.accuracy)
    assert found.examples.tolist() == labels.sum(0).tolist()
    confidence, accuracy, sizes = found.bins[:, found.bins[2] > 0]
    assert sizes.sum() == len(chances)
    assert found.calibration_error == pytest.approx(np.abs(confidence - accuracy) @ sizes / len(chances))
    right = stats.binom(sizes, confidence)
    likely(2 * np.minimum(right.cdf(accuracy * sizes), right.sf(accuracy * sizes - 1)))
    assert found.calibration_error < 3 * found.calibration_by_chance
    sharper = chances**2 / np.sum(chances**2, axis=1, keepdims=True)
    assert class_scores(sharper, labels).calibration_error > 10 * found.calibration_by_chance
    # Of few errors as many as expected; 20 of 20 right are not certain; two classes that are equally probable are a guess.
    sure = class_scores(np.full(20, 0.999), np.ones(20))
    assert sure.calibration_by_chance == pytest.approx(2 * 0.001 * 0.999)
    assert (sure.accuracy, sure.accuracy_error > 0.02) == (1, True)
    assert class_scores(np.array([0.5, 1.0]), np.array([-1.0, 1.0])).accuracy == 0.75
    for labels in (np.array([1.0, -1.0, 1.0]), np.array([[1.0], [-1.0], [1.0]])):
        two = class_scores(np.array([0.9, 0.2, 0.4]), labels)
        assert two.accuracy == pytest.approx(2 / 3)
        np.testing.assert_allclose(two.by_class, [1.0, 0.5])
        assert (two.names, two.examples.tolist()) == (("-1", "+1"), [1.0, 2.0])
        assert two.calibration_error == pytest.approx((0.1 + 0.2 + 0.6) / 3)
    with pytest.raises(ValueError, match=r"probabilities must be at least 0 and add up to 1, got .*, sums 1\.5"):
        class_scores(np.full((2, 3), 1 / 2), np.eye(3)[:2])
    with pytest.raises(ValueError, match=r"labels must have shape \(2, 3\), got \(2,\): bayesattn.one_hot\(labels\)"):
        class_scores(np.full((2, 3), 1 / 3), np.ones(2))


def test_classes_of_the_gaussian_likelihood_have_accuracy_alone():
    means = np.array([[0.9, 0.1, 0.0], [0.2, 0.1, -0.4], [-0.1, -0.3, -0.2], [0.0, 0.1, 0.3]])
    classes = ba.one_hot(["a", "b", "a", "c"])
    told = PosteriorPrediction(means, np.ones((4, 3)), *np.zeros((2, 4, 3)), None, None)
    scores = told.scores(classes.labels)
    assert scores.accuracy == 0.75
    assert scores.accuracy_error == pytest.approx(np.sqrt(0.7 * 0.3 / 5))  # Half an example more on either side.
    assert scores.by_class.tolist() == [1.0, 0.0, 1.0]
    with pytest.raises(
        AttributeError, match=r"^log_score is of probabilities .* with likelihood=bayesattn\.Categorical"
    ):
        _ = scores.log_score
    with pytest.raises(AttributeError, match=r"^ClassAccuracy has no acuracy$"):
        _ = scores.acuracy
    assert pickle.loads(pickle.dumps(scores)).accuracy == 0.75
    with pytest.raises(ValueError, match="labels must be 1 at the class of each example"):
        told.scores(means)
    one_output = PosteriorPrediction(means[:, 0], np.ones(4), *np.zeros((2, 4)), None, None)
    with pytest.raises(ValueError, match=r"^scores are of classes, .*Categorical.*, got a prediction of other numbers"):
        one_output.scores(np.ones(4))


@pytest.mark.parametrize(("outputs", "temperature"), [(1, 0.03), (1, 1.0), (3, 0.3)])
def test_left_out_outputs_are_integrated_over(outputs, temperature):
    """The first example's integral by many draws of its outputs given the others, from the covariance of all."""
    rng = np.random.default_rng(2)
    arch = ba.Architecture((2,), (3, 3), outputs=outputs)
    classes = np.arange(4) % max(outputs, 2)
    model = ba.Model(
        path_inputs=rng.normal(size=(4, 2, 20)),
        labels=2.0 * classes - 1 if outputs == 1 else ba.one_hot(classes).labels,
        architecture=arch,
        likelihood=ba.Categorical(temperature),
    )
    root = rng.normal(size=(arch.rows, arch.rows))
    u, f = root @ root.T, rng.normal(size=model.labels.shape)
    leave_one_out = jax.jit(partial(left_out.leave_one_out, model.gaussian_process, model.likelihood))
    found = leave_one_out(u, f, model.labels, f[None])
    kernel = dense.kernel(arch, u, model.path_inputs, model.path_inputs)
    own, across, others = kernel[:outputs, :outputs], kernel[outputs:, :outputs], kernel[outputs:, outputs:]
    slope = np.linalg.solve(others, across).T
    drawn = rng.multivariate_normal(slope @ f.reshape(-1)[outputs:], own - slope @ across, size=200_000)
    chances = np.exp(model.likelihood.log_prob(jnp.asarray(drawn[:, 0] if outputs == 1 else drawn), model.labels[0]))
    error = chances.std() / np.sqrt(len(chances))
    # 256 points stand for the integral to within a percent.
    near(np.exp(found[0]) / chances.mean(), 1, error / chances.mean(), allowed=0.01, finds=0.03)


@pytest.mark.heavy
@pytest.mark.parametrize("parameterisation", ["collapsed", "path"])
def test_samplers_of_classes_are_calibrated(parameterisation):
    model = model_of_classes("a skip")
    assert joint_law.joint_test(model, parameterisation=parameterisation).holds
    if parameterisation == "collapsed":
        simulations = calibration.simulate(model, 200, seed=1)
        found = calibration.calibrate(model, simulations)
        assert found.holds, dict(zip(found.names, found.p_values, strict=True))
        hotter = calibration.calibrate(model.replace(temperature=1.0), simulations)
        assert not hotter.holds


FEW = {"chains": 1, "warmup": 20, "draws": 20}
NETWORKS = {
    # heads, widths, skips, outputs, examples, features
    "one layer": ((2,), (3, 3), (), 1, 7, 4),
    "two layers, narrow": ((1, 2), (2, 2, 2), (), 1, 6, 5),
    "a skip": ((2,), (3, 3), (0.8,), 1, 9, 3),
    "two outputs": ((2,), (3, 2), (), 2, 5, 6),
}
CASES = [(network, kind) for network in NETWORKS for kind in ("outliers", "counts")]


class Laplace(ba.Likelihood):
    """Labels with noise of two-sided exponential law."""

    scale: float = 0.5
    weights: np.ndarray | None = None

    def log_prob(self, outputs, labels):
        """log density of each example."""
        return -jnp.abs(labels - outputs) / self.scale - jnp.log(2 * self.scale)

    def sample(self, key, outputs):
        """f plus noise."""
        return outputs + self.scale * jax.random.laplace(key, outputs.shape)


def laplace(factor):
    """A class of one name and one field, whatever the factor of its density."""

    class OfTwoSides(ba.Likelihood):
        scale: float = 0.5

        def log_prob(self, outputs, labels):
            return -factor * jnp.abs(labels - outputs) / self.scale

        def sample(self, key, outputs):
            return outputs

    return OfTwoSides()


def classes_of(factor):
    class OfClasses(ba.Likelihood):
        def log_prob(self, outputs, labels):
            return jnp.sum(labels * jax.nn.log_softmax(factor * outputs), axis=1)

        def sample(self, key, outputs):
            return outputs

    return OfClasses()


def model_of(network, kind, likelihood=None):
    heads, widths, skips, outputs, examples, features = NETWORKS[network]
    arch = ba.Architecture(heads, widths, (1.1,) * (len(heads) + 2), skips, outputs)
    rng = np.random.default_rng(len(network))
    shape = (examples, outputs) if outputs > 1 else (examples,)
    labels = rng.poisson(1.5, shape) if kind == "counts" else 0.7 * rng.standard_t(2, shape)
    return ba.Model(
        path_inputs=rng.normal(size=(examples, arch.paths, features)),
        labels=labels.astype(float),
        architecture=arch,
        likelihood=likelihood or (ba.Poisson() if kind == "counts" else ba.StudentT(scale=0.9, freedom=3.0)),
        test_path_inputs=rng.normal(size=(2, arch.paths, features)),
    )


@partial(jax.jit, static_argnums=0)
def labels_of(likelihood, keys, outputs):
    return jax.vmap(lambda key: likelihood.sample(key, outputs))(keys)


@pytest.mark.parametrize("outputs", [(3,), (3, 2)])
def test_densities_are_those_of_scipy_and_samples_theirs(outputs):
    rng = np.random.default_rng(0)
    f = rng.normal(size=outputs)
    for likelihood, law in (
        (ba.StudentT(0.3, 4.0), stats.t(4.0, loc=f, scale=0.3)),
        (ba.Poisson(), stats.poisson(np.exp(f))),
    ):
        keys = jax.random.split(jax.random.key(1), 20_000)
        drawn = np.asarray(labels_of(likelihood, keys, f))
        assert drawn.shape[1:] == outputs
        density = law.logpmf if isinstance(likelihood, ba.Poisson) else law.logpdf
        expected = density(drawn[0]).reshape(outputs[0], -1).sum(1)
        np.testing.assert_allclose(likelihood.log_prob(jnp.asarray(f), jnp.asarray(drawn[0])), expected, rtol=1e-12)
        # The median of the heavy tails, the mean of counts.
        below, number = (drawn <= law.median()).sum(0), stats.binom(len(drawn), law.cdf(law.median()))
        likely(2 * np.minimum(number.cdf(below), number.sf(below - 1)))


def test_fields_of_a_likelihood_tell_models_apart_and_come_back(tmp_path):
    model = model_of("one layer", "outliers")
    other = model.replace(likelihood=ba.StudentT(scale=0.9, freedom=4.0))
    own = model.replace(likelihood=Laplace(0.3, weights=np.arange(3.0)))
    run = runs.sample(own, tmp_path / "run", **FEW)
    tree = ba.sample(own, **FEW)
    np.testing.assert_array_equal(run.draws()["posterior"]["order_parameter"], tree["posterior"]["order_parameter"])
    assert ba.predict(run, own.test_path_inputs).mean.shape == (2,)
    restored = runs.Run(run.path).model.likelihood
    assert (type(restored), restored.scale) == (Laplace, 0.3)
    np.testing.assert_array_equal(restored.weights, np.arange(3.0))
    one, another = ba.sample(model, **FEW), ba.sample(other, **FEW)
    assert not np.array_equal(one["posterior"]["order_parameter"], another["posterior"]["order_parameter"])
    with pytest.raises(ValueError, match=r"got one with likelihood"):
        ba.predict(one, model.test_path_inputs, model=other)
    assert pickle.loads(pickle.dumps(other)).likelihood.freedom == 4.0
    with pytest.raises(likelihoods.UnknownLikelihood, match="must be of a class that is defined here, got Elsewhere"):
        likelihoods.restored("Elsewhere", {})
    with pytest.raises(BayesattnError, match="field weights of likelihood Laplace must be a number or an array"):
        own.replace(likelihood=Laplace(weights=len)).table()


def test_a_likelihood_of_ones_own_is_known_by_its_density(tmp_path):
    model = model_of("one layer", "outliers")
    first = model.replace(likelihood=laplace(1))
    run, tree = runs.sample(first, tmp_path / "run", **FEW), ba.sample(first, **FEW)
    same = model.replace(likelihood=laplace(1))
    assert ba.predict(tree, model.test_path_inputs, model=same).mean.shape == (2,)
    other = model.replace(likelihood=laplace(2))
    for read in (
        lambda: ba.predict(tree, model.test_path_inputs, model=other),
        lambda: ba.predict(tree, model.test_path_inputs),
        lambda: runs.Run(run.path).model,
        lambda: runs.sample(other, run.path, **FEW),
    ):
        with pytest.raises(ValueError, match="another log_prob"):
            read()
    shifted = [classes_of(factor) for factor in (1, 3)]  # All outputs alike would not tell these apart.
    labels = np.eye(3)[[0, 2]]
    assert len({likelihoods.density_of(each, labels) for each in shifted}) == 2


class StudentT(ba.Likelihood):
    """Another law by a name, and with fields, that the package has."""

    scale: float = 0.9
    freedom: float = 3.0

    def log_prob(self, outputs, labels):
        """log density of each example."""
        return -jnp.abs(labels - outputs) / 100

    def sample(self, key, outputs):
        """f plus noise."""
        return outputs + 100 * jax.random.laplace(key, outputs.shape)


class Clipped(ba.Gaussian):
    """A Gaussian law whose errors count up to 1."""

    def log_prob(self, outputs, labels):
        """log density of each example, up to a constant."""
        return -jnp.minimum((labels - outputs) ** 2, 1.0) / (2 * self.temperature)


def test_a_class_of_ones_own_is_not_that_of_the_same_name():
    model = model_of("one layer", "outliers")
    drawn = ba.sample(model, **FEW)
    with pytest.raises(ValueError, match="got one with"):
        ba.predict(drawn, model.test_path_inputs, model=model.replace(likelihood=StudentT()))
    replicated = ba.with_groups(drawn, "posterior_predictive")["posterior_predictive"]["labels"]
    assert replicated.std() < 20
    assert isinstance(likelihoods.restored(likelihoods.name_of(StudentT()), {}), StudentT)


def test_densities_of_another_shape_are_named():
    class Summed(Laplace):
        def log_prob(self, outputs, labels):
            return super().log_prob(outputs, labels).sum()

    with pytest.raises(BayesattnError, match=r"log_prob of likelihood Summed must have a number for each example"):
        model_of("one layer", "outliers").replace(likelihood=Summed())
    with pytest.raises(BayesattnError, match="temperature must be left out with a likelihood that has none"):
        model_of("one layer", "outliers").replace(temperature=0.3)


def test_large_rates_are_drawn_right():
    rate = np.exp([11.9, 12.1, 18.0])
    keys = jax.random.split(jax.random.key(0), 20_000)
    drawn = np.asarray(labels_of(ba.Poisson(), keys, np.log(rate)))
    near((drawn.mean(0) - rate) / np.sqrt(rate), 0, 1 / np.sqrt(len(keys)), finds=0.05)
    near(drawn.std(0) / np.sqrt(rate), 1, 1 / np.sqrt(2 * len(keys)), finds=0.05)
    np.testing.assert_allclose(ba.Poisson().sample(keys[0], jnp.array([60.0, 400.0])), np.exp([60.0, 400.0]), rtol=1e-9)


def test_a_number_for_each_example_is_not_that_of_the_first():
    """Known noise of each example: its leave-one-out density would be by the noise of the first."""
    model = model_of("one layer", "outliers", Laplace(scale=np.linspace(0.5, 1.0, 7)))
    message = "likelihood must not hold a number for each example for "
    with pytest.raises(ValueError, match=message + "sampler 'sgld', which takes examples one by one"):
        ba.sample(model, "sgld", "path", options={"minibatch": 1}, progress=False)
    with pytest.raises(ValueError, match=message + "leave-one-out densities"):
        require_by_example(model.likelihood, model.labels, "leave-one-out densities")
    require_by_example(Laplace(), model.labels, "leave-one-out densities")
