"""Models in the hands of others: NumPyro's MCMC and Predictive, and functions of flat vectors."""

from copy import copy
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoLowRankMultivariateNormal
from numpyro.infer.util import log_density
from scipy import stats

import bayesattn as ba
from bayesattn.checks.theory_predictions import readout_batches
from bayesattn.checks.thresholds import VERDICTS
from bayesattn.errors import BayesattnError
from bayesattn.models import Collapsed, LatentModel
from bayesattn.questions.exchangeable import latent_posterior
from tests import zoo as models
from tests.posteriors import tiny_model
from tests.samplers.test_external import REFERENCE, SEED, require_like
from tests.statistics import near

DRAWS = 2000
"""Of each of two chains: all draws of collapsed coordinates here are 4,000 at once, of one compiled program."""
KEY = jax.random.key(0)


MODELS = {
    "one layer": lambda: models.model("two"),
    "narrow": lambda: tiny_model(heads=(1, 2), widths=(2, 2, 2), variances=(1.0, 1.1, 0.9, 1.0), temperature=0.3),
    "three classes": lambda: models.model("classes"),
}
EACH = [pytest.param(name, marks=[pytest.mark.heavy] * (name != "one layer")) for name in MODELS]


@pytest.fixture(scope="module", params=EACH)
def model(request):
    return MODELS[request.param]()


@pytest.fixture(scope="module")
def reference(model, zoo):
    if model is models.model("two"):
        return zoo.draws("two", REFERENCE, SEED)
    return ba.sample(model, "auto", chains=4, warmup=300, draws=2000, seed=1)


@cache
def mcmc_of(model, parameterisation):
    settings = {"num_warmup": 400, "num_samples": DRAWS, "num_chains": 2, "chain_method": "sequential"}
    mcmc = MCMC(NUTS(model.numpyro(parameterisation)), **settings, progress_bar=False)
    mcmc.run(jax.random.key(3), extra_fields=("energy", "num_steps", "accept_prob"))
    return mcmc


@pytest.mark.parametrize(
    "parameterisation", ["collapsed", *(pytest.param(name, marks=pytest.mark.heavy) for name in ("path", "token"))]
)
def test_numpyros_chains_are_draws_like_ours(model, reference, parameterisation):
    if parameterisation == "token" and model.tokens is None:
        pytest.skip("a model without tokens")
    mcmc = mcmc_of(model, parameterisation)
    tree = ba.from_numpyro(mcmc, model, parameterisation, weights=True)
    recorded = mcmc.get_samples(group_by_chain=True)["order_parameter"]
    np.testing.assert_allclose(tree["posterior"]["order_parameter"], recorded, rtol=1e-9, atol=1e-12)
    require_like(tree, reference)
    assert {"lp", "energy", "acceptance_rate", "n_steps", "diverging"} <= {*tree["sample_stats"].data_vars}
    assert {"V_0", "V_1", "a", "prediction"} <= {*tree["posterior"].data_vars}
    # What takes draws takes these.
    assert ba.diagnose(tree).draws == DRAWS
    assert ba.predict(tree, model.test_path_inputs).mean.shape[0] == len(model.test_path_inputs)
    if model.has_theory:
        assert ba.validate(tree, model=model).verdict in VERDICTS
    same = ba.from_numpyro(dict(mcmc.get_samples(group_by_chain=True)), model, parameterisation)
    np.testing.assert_array_equal(same["sample_stats"]["lp"], tree["sample_stats"]["lp"])
    (thinned := copy(mcmc)).thinning = 3
    draws = ba.from_numpyro(thinned, model, parameterisation)["posterior"]["draw"]
    np.testing.assert_array_equal(draws, np.arange(2, 3 * DRAWS, 3))


@pytest.mark.parametrize("parameterisation", ["path", "token"])
def test_the_log_density_of_weights_is_that_of_a_program_and_of_draws_from_elsewhere(parameterisation):
    """Of NumPyro's programs; what it is, tests/models/test_dense.py knows."""
    model = MODELS["one layer"]()
    density, program = model.log_density(parameterisation), model.numpyro(parameterisation)
    vector = density.initial(KEY)
    weights, expected = density.sites(vector), float(jax.jit(density.function)(vector))
    assert density.size == vector.size == sum(value.size for value in weights.values())

    @jax.jit
    def traced(weights):
        value, trace = log_density(program, (), {}, weights)
        return value, trace["order_parameter"]["value"]

    value, order_parameter = traced(weights)
    assert float(value) == pytest.approx(expected, rel=1e-12)
    sites = {name: value[None, None] for name, value in (weights | {"order_parameter": order_parameter}).items()}
    tree = ba.from_numpyro(sites, model, parameterisation, weights=True)
    assert tree["sample_stats"]["lp"].item() == pytest.approx(expected, rel=1e-12)
    for name, value in sites.items():
        np.testing.assert_allclose(tree["posterior"][name], value, rtol=1e-12)


def test_other_parts_of_numpyro_take_the_model_too():
    model = MODELS["one layer"]()
    program = model.numpyro()
    drawn = Predictive(program, num_samples=5)(KEY)
    np.testing.assert_array_equal(drawn["labels"], np.broadcast_to(model.labels, (5, 6)))
    replicated = Predictive(numpyro.handlers.uncondition(program), num_samples=5)(KEY)["labels"]
    assert len(np.unique(replicated)) == 30
    assert numpyro.infer.inspect.get_model_relations(program)["observed"] == ["labels"]


def test_a_latent_model_has_its_exact_law_in_numpyro():
    """The density of its program at three points, and what is made of draws."""
    latent = LatentModel(features=[[1.0], [2.0]], values=[[0.5], [1.5]], noise=0.5, prior=1.0, query_features=[[1.0]])
    exact = latent_posterior(latent.features, latent.values, latent.noise, latent.prior)
    law = stats.norm(exact.mean.item(), np.sqrt(exact.covariance.item()))
    points = np.array([-1.0, 0.5, 2.0]).reshape(3, 1, 1)
    program = latent.numpyro("latent")
    values = jax.jit(jax.vmap(lambda point: log_density(program, (), {}, {"latent": point})[0]))(points)
    tree = ba.from_numpyro({"latent": points[None]}, latent, "latent")
    for found in (values, tree["sample_stats"]["lp"].values[0]):
        np.testing.assert_allclose(np.diff(found), np.diff(law.logpdf(points.ravel())), rtol=1e-10)
    for name in ("latent", "prediction"):
        np.testing.assert_allclose(tree["posterior"][name], points[None], rtol=1e-12)


def test_sites_of_another_model_and_single_precision_are_refused():
    model = MODELS["one layer"]()
    mcmc = mcmc_of(model, "collapsed")
    with pytest.raises(BayesattnError, match="model and parameterisation must be those of the sites"):
        ba.from_numpyro(mcmc, model.replace(temperature=0.01), "collapsed")
    density, program = model.log_density("path"), model.numpyro()
    vector = density.initial(KEY)
    for use in (lambda: density.function(vector), numpyro.handlers.seed(program, 0)):
        with jax.enable_x64(False), pytest.raises(BayesattnError, match="jax_enable_x64 must be on"):
            use()
    with pytest.raises(
        BayesattnError, match=rf"vector must have shape \({density.size},\), got \({density.size - 1},\)"
    ):
        density.function(vector[1:])


def test_draws_are_awaited_before_another_program_runs(monkeypatch):
    # Two chains of NumPyro's SA at a time waited for each other for ever: programs that factorise batches must not overlap.
    model, ready = MODELS["one layer"](), []
    size, prepare = model.log_density("collapsed").size, Collapsed.prepare
    monkeypatch.setattr(Collapsed, "prepare", lambda model: ready.append(vectors.is_ready()) or prepare(model))
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 100, lambda _, y: jnp.tanh(y @ y), x)[None, :1, :size])
    vectors = slow(jnp.ones((500, 500)) / 500)
    ba.from_vectors(vectors, model, "collapsed")
    assert ready == [True]


@pytest.mark.parametrize("key", [pytest.param(KEY, id="key", marks=pytest.mark.heavy), jax.random.PRNGKey(0)])
def test_predictive_draws_collapsed_coordinates_from_the_prior(key):
    model = MODELS["one layer"]()
    drawn = Predictive(model.numpyro("collapsed"), num_samples=8000)(key)["order_parameter"]
    limit = np.asarray(ba.theory.gp_order_parameter(model.architecture))  # also the prior mean at any width
    near((drawn.mean(0) - limit) / drawn.std(0), 0, 1 / np.sqrt(8000), finds=0.1)


SITES = {"V_0": np.zeros((2, 3, 3, 4)), "V_1": np.zeros((2, 3, 2, 4, 3)), "a": np.zeros((2, 3, 4))}
SWAPPED = {name: np.repeat(values, 2, axis=0) for name, values in SITES.items()}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m: m.numpyro("paths"), "parameterisation of a Model must be .*, got 'paths'; did you mean 'path'"),
        (lambda m: m.log_density("latent"), "parameterisation of a Model must be one of .*, got 'latent'"),
        (lambda m: m.replace(tokens=None).numpyro("token"), "parameterisation 'token' needs a model with tokens"),
        (lambda m: ba.from_numpyro(MCMC(NUTS(m.numpyro()), num_warmup=1, num_samples=1), m), "MCMC that has run"),
        (lambda m: ba.from_numpyro(3, m), "mcmc_or_sites must be a numpyro.infer.MCMC or sites by name, got 3"),
        (lambda m: ba.from_numpyro({"a": SITES["a"]}, m), "sites must hold V_0, V_1, a, got a, without V_0"),
        (lambda m: ba.from_numpyro(SITES | {"a": SITES["a"][:, :2]}, m), r"a'\] must have shape \(2, 3, 4\)"),
        (lambda m: ba.from_numpyro(SITES | {"a": np.nan * SITES["a"]}, m), r"sites\['a'\] must be finite, got nan"),
        (lambda m: ba.from_vectors(np.zeros((2, 3, 5)), m), r"vectors must have shape \(chains, draws, 4\), got"),
        # More chains than draws are warned of; warnings are errors in the tests.
        (
            lambda m: ba.from_numpyro(SWAPPED, m),
            "got 4 chains of 3 draws: swap the first two axes if these are 3 chains",
        ),
        (lambda m: ba.from_vectors(np.zeros((5, 4, 4)), m), r"vectors must have shape .*, got 5 chains of 4"),
        (lambda m: readout_batches(m, np.ones((5, 4, 2, 2))), "order_parameters must have shape .* got 5 chains of 4"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises((BayesattnError, UserWarning), match=message):
        make(MODELS["one layer"]())


@pytest.mark.parametrize("parameterisation", ["collapsed", pytest.param("path", marks=pytest.mark.heavy)])
def test_variational_inference_takes_the_model(parameterisation):
    program = MODELS["one layer"]().numpyro(parameterisation)
    svi = SVI(program, AutoLowRankMultivariateNormal(program), numpyro.optim.Adam(0.01), Trace_ELBO())
    losses = svi.run(KEY, 300, progress_bar=False).losses
    assert np.isfinite(losses).all()
    assert losses[-50:].mean() < losses[:50].mean()
