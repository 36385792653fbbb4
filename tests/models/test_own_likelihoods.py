"""Likelihoods beside the Gaussian and classes: Student-t, counts, and one's own; their chains: test_one_posterior.py."""

import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import bayesattn as ba
from bayesattn import likelihoods, runs
from bayesattn.errors import BayesattnError
from bayesattn.likelihoods import require_by_example
from bayesattn.questions import calibration
from tests.statistics import likely, near

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


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["outliers", "counts"])
def test_chains_are_calibrated(kind):
    model = model_of("one layer", kind)
    simulations = calibration.simulate(model, 100, seed=1)
    found = calibration.calibrate(model, simulations)
    assert found.holds, dict(zip(found.names, found.p_values, strict=True))
    wider = model.replace(architecture=ba.Architecture((2,), (3, 3), (4.0, 1.1, 1.1)))
    assert not calibration.calibrate(wider, simulations).holds


def test_a_number_for_each_example_is_not_that_of_the_first():
    """Known noise of each example: its leave-one-out density would be by the noise of the first."""
    model = model_of("one layer", "outliers", Laplace(scale=np.linspace(0.5, 1.0, 7)))
    message = "likelihood must not hold a number for each example for "
    with pytest.raises(ValueError, match=message + "sampler 'sgld', which takes examples one by one"):
        ba.sample(model, "sgld", "path", options={"minibatch": 1}, progress=False)
    with pytest.raises(ValueError, match=message + "leave-one-out densities"):
        require_by_example(model.likelihood, model.labels, "leave-one-out densities")
    require_by_example(Laplace(), model.labels, "leave-one-out densities")
