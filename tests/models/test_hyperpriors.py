"""Temperature, other numbers of a likelihood, and variances with priors of their own.

Densities are held against plain NumPy at values of all of them, draws against prior draws weighed by the likelihood.
"""

from types import SimpleNamespace
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import xarray as xr
from scipy import stats

import bayesattn as ba
from bayesattn.jobs.cli.sample import _named
from bayesattn.jobs.plots.run import run_title
from bayesattn.models import hyper_parameterisations, path
from bayesattn.models.arviz import axis_names
from bayesattn.models.conditional import conditional_of, new_inputs
from bayesattn.models.hyper_parameterisations import HYPER
from bayesattn.models.hyperpriors import table_of
from bayesattn.models.parameterisation import NO_FLOAT32
from bayesattn.models.posterior import parameterisation_of
from bayesattn.models.stored_model import described as description_of
from bayesattn.models.stored_model import model_in, restored
from bayesattn.network import effective_weights
from bayesattn.questions import calibration
from bayesattn.questions.preferred_attention import conditional_evidence
from bayesattn.samplers.smc import anneal_logits
from tests import dense
from tests.conftest import relative_error
from tests.models.attention_networks import attention_model
from tests.models.test_dense import POINTS, require_equal
from tests.models.test_extended import extended_model
from tests.posteriors import evidence_of, tiny_model, weighed_mean
from tests.statistics import agree, likely

T, S_0, S_A, S_Q = (
    dist.LogNormal(-0.7, 0.6),
    dist.InverseGamma(4.0, 3.0),
    dist.LogNormal(0.1, 0.4),
    dist.Gamma(3.0, 2.0),
)
EXACT = {
    T: stats.lognorm(0.6, scale=np.exp(-0.7)),
    S_0: stats.invgamma(4.0, scale=3.0),
    S_A: stats.lognorm(0.4, scale=np.exp(0.1)),
    S_Q: stats.gamma(3.0, scale=0.5),
}


def two_heads():
    return tiny_model(heads=(2,), widths=(3, 3)).replace(temperature=T, variances=(S_0, 0.9, S_A))


def two_layers():
    """Smaller labels, which more prior draws explain."""
    model = tiny_model(heads=(1, 2), widths=(3, 3, 3), variances=(1.0,) * 4)
    return model.replace(temperature=T, variances=(1.2, S_0, 0.8, S_A), labels=model.labels / 3)


NETWORKS = {
    "two heads": two_heads,
    "N_1 = 1": lambda: tiny_model(widths=(1, 4)).replace(temperature=T, variances=(S_0, 0.9, 1.1)),
    "a skip and two outputs": lambda: extended_model("a skip and two outputs", temperature=1.0).replace(temperature=T),
    "two layers": two_layers,
}


def log_prior_of(priors, position):
    """Log density of a position, whose entries are logarithms."""
    return sum(EXACT[prior].logpdf(np.exp(at)) + at for prior, at in zip(priors, position, strict=True))


def known_at(model, position):
    """The model at a position, by `replace` alone."""
    values = iter(np.exp(position))
    temperature = next(values)
    variances = [next(values) if isinstance(each, dist.Distribution) else each for each in model.architecture.variances]
    return model.replace(temperature=temperature, variances=variances)


@pytest.mark.parametrize("name", NETWORKS)
def test_weights_and_numbers(name):
    model, rng = NETWORKS[name](), np.random.default_rng(0)
    priors, features = model.hyperpriors.priors, model.path_inputs.shape[2]
    positions = rng.normal(size=(POINTS, len(priors)))
    sites = [dense.random_weights(known_at(model, at).architecture, features, rng) | {HYPER: at} for at in positions]

    def log_density(site):
        weights = {name: value for name, value in site.items() if name != HYPER}
        known = known_at(model, site[HYPER])
        prior = dense.log_prior_of_weights(known.architecture, weights) + log_prior_of(priors, site[HYPER])
        return prior + dense.log_likelihood(known, dense.outputs(known.architecture, weights, model.path_inputs))

    posterior = hyper_parameterisations.HyperPath.of(model)
    found = require_equal(posterior, sites, log_density, lambda posterior, site: posterior.central(site))
    np.testing.assert_allclose(found["temperature"], np.exp(positions[0, 0]), rtol=1e-12)
    if model.tokens is not None:
        require_equal(hyper_parameterisations.HyperToken.of(model), sites, log_density)


@pytest.mark.parametrize("name", NETWORKS)
def test_bartlett_coordinates_and_numbers(name):
    """U has the variances of the draw, s_0^2 excepted, whatever the scale of the features is."""
    model, rng = NETWORKS[name](), np.random.default_rng(1)
    priors = model.hyperpriors.priors
    size = len(hyper_parameterisations.HyperCollapsed.prepare(model, "prior")["centre"])
    prepared = {"centre": rng.normal(size=size), "scale": np.eye(size) + 0.1 * rng.normal(size=(size, size))}

    def at(site):
        joint = prepared["centre"] + prepared["scale"] @ site["whitened"]
        known = known_at(model, joint[-len(priors) :])
        bartletts, prior = dense.bartlett(known.architecture, joint[: -len(priors)])
        factor = dense.factor(known.architecture, bartletts)
        return known, factor @ factor.T, prior + log_prior_of(priors, joint[-len(priors) :])

    def log_density(site):
        known, u, prior = at(site)
        return prior + np.linalg.slogdet(prepared["scale"])[1] + dense.log_evidence(known, u)

    sites = [{"whitened": 0.3 * rng.normal(size=size)} for _ in range(POINTS)]
    posterior = hyper_parameterisations.HyperCollapsed.of(model, **prepared)
    found = require_equal(posterior, sites, log_density, lambda posterior, site: posterior.central(site))
    known, u, _ = at(sites[0])
    assert relative_error(found["order_parameter"], u) < 1e-12
    if "variances" in found:
        np.testing.assert_allclose(found["variances"], known.architecture.variances, rtol=1e-12)


BLOCKS = {"values": "gelu", "attention_on": "hidden"}


def sampled_attention(**settings):
    """Five numbers with priors, of all kinds; each layer's query variance has its own."""
    model = attention_model(heads=(2, 1), widths=(3, 3, 3), **settings)
    return model.replace(
        temperature=T, variances=(S_0, 0.9, 1.2, S_A), query_variance=S_Q, key_variance=(1.5, dist.Delta(2.0))
    )


@pytest.mark.parametrize(("kind", "settings"), [("collapsed", {}), ("token", {}), ("token", BLOCKS)])
def test_sampled_attention_given_its_numbers(kind, settings):
    """Densities, U and predictions are those of the model at the values, up to the prior of the numbers."""
    model = sampled_attention(**settings)
    names = ("temperature", "variances[0]", "variances[3]", "query_variance[0]", "query_variance[1]")
    assert model.hyperpriors.names == names
    posterior = parameterisation_of(model, kind).of(model)
    at = jax.jit(lambda posterior, sites: (posterior.log_density(sites), posterior.central(sites)))
    for key in jax.random.split(jax.random.key(1), 2):
        sites = posterior.draw_prior(key)
        numbers = np.exp(sites[HYPER])
        variances = (numbers[1], 0.9, 1.2, numbers[2])
        known = model.at({"temperature": numbers[0], "variances": variances, "query_variance": numbers[3:]})
        assert known.key_variance == (1.5, 2.0)
        inner = {name: value for name, value in sites.items() if name != HYPER}
        given = parameterisation_of(known, kind).of(known)
        prior = log_prior_of((T, S_0, S_A, S_Q, S_Q), sites[HYPER])
        (density, mine), (density_given, theirs) = at(posterior, sites), at(given, inner)
        assert abs(density - density_given - prior) < 1e-9
        np.testing.assert_allclose(mine["order_parameter"], theirs["order_parameter"], rtol=1e-10)
        np.testing.assert_allclose(mine["query_variance"], known.query_variance, rtol=1e-12)


@pytest.mark.heavy
def test_draws_of_sampled_attention_and_numbers():
    """Predictions and densities are of the values of a draw; the model is restored; what needs numbers says so."""
    model = sampled_attention()
    keep = ("order_parameter", "prediction", "queries_keys")
    tree = ba.sample(model, "nuts", chains=2, warmup=50, draws=50, seed=1, keep=keep, progress=False)
    assert model_in(tree).fingerprint == model.fingerprint
    assert tree["posterior"]["query_variance"].dims == ("chain", "draw", "layer")
    rows = [row["quantity"] for row in ba.checks.diagnostics.summary(tree)]
    assert rows.count("query_variance") == 2
    few = tree.isel(draw=[3], chain=[1])
    each = few["posterior"].to_dataset().isel(chain=0, draw=0)
    values = {name: each[name].values for name in ("temperature", "variances", "query_variance")}
    same = conditional_of(model.at(values))
    drawn = {name: jnp.asarray(each[name].values) for name in same.variables}
    mean, variance, _ = same.outputs(drawn, new_inputs(model, model.test_inputs, None), None)
    found = ba.predict(few, model.test_inputs)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(found.variance, variance, rtol=1e-9)
    joint = ba.with_groups(few, "log_likelihood", joint=True)["log_likelihood"]["labels"].values
    assert abs(joint[0, 0] - same.log_likelihood(drawn)) < 1e-8
    parts = ba.with_groups(tree, "log_likelihood", "log_prior", joint=True)
    total = sum(parts["log_prior"].to_dataset().data_vars.values()) + parts["log_likelihood"]["labels"]
    assert np.ptp(total.values - tree["sample_stats"]["lp"].values) < 1e-8
    for call in (anneal_logits, lambda m: conditional_evidence(m, [(np.ones((1, 2, 2)), np.ones((1, 2, 2)))])):
        with pytest.raises(ValueError, match="temperature must be a number for the theory"):
            call(model)


def described(drawn, layers):
    """Logarithms of the numbers that have priors, variances of these layers among them, and of tr U, and asinh of f."""
    numbers = [drawn["temperature"], *(drawn["variances"][layer] for layer in layers), *drawn.get("query_variance", ())]
    size = jnp.trace(drawn["order_parameter"])
    return jnp.concatenate([jnp.log(jnp.stack([*numbers, size])), jnp.arcsinh(drawn["prediction"]).ravel()])


def require_prior_draws(tree, prior, log_likelihoods, layers, least):
    """Means and squares of what describes the draws of a tree are those of weighed prior draws."""
    posterior = tree["posterior"].to_dataset()
    names = ("temperature", "variances", "query_variance", "order_parameter", "prediction")
    arrays = {name: posterior[name].values for name in names if name in posterior}
    each = jax.vmap(jax.vmap(lambda drawn: described(drawn, layers)))(arrays)
    found = xr.DataArray(np.asarray(each), dims=("chain", "draw", "entry"))
    for power in (1, 2):
        agree(found**power, *weighed_mean(log_likelihoods, prior**power, least))


@pytest.mark.heavy
@pytest.mark.parametrize(("kind", "settings"), [("collapsed", {}), ("token", {}), ("token", BLOCKS)])
def test_chains_of_sampled_attention_and_numbers_agree_with_weighed_prior_draws(kind, settings):
    model = sampled_attention(**settings)
    weights = parameterisation_of(model, "token").of(model)

    @jax.jit
    @jax.vmap
    def draw(key):
        sites = weights.draw_prior(key)
        known, inner, _ = weights.given(sites)
        log_likelihood = jnp.sum(known.given_uniform.likelihood.log_prob(known.function(inner), known.labels))
        return described(weights.quantities(sites, key), (0, 3)), log_likelihood

    batches = [draw(jax.random.split(key, 2**14)) for key in jax.random.split(jax.random.key(3), 32)]
    tree = ba.sample(model, "nuts", kind, chains=4, warmup=1000, draws=5000, seed=2, progress=False)
    require_prior_draws(tree, *(np.concatenate(each) for each in zip(*batches, strict=True)), (0, 3), 1000)


@pytest.fixture(scope="module")
def drawn():
    model = two_heads()
    return model, ba.sample(model, "nuts", chains=2, warmup=300, draws=2500, seed=1, progress=False)


def test_what_is_computed_of_a_draw_is_of_its_numbers(drawn):
    """Predictions, weights, densities: those of models with these numbers; the model is restored from its draws."""
    model, tree = drawn
    few = tree.isel(draw=slice(0, 2), chain=[0])
    assert model_in(few).fingerprint == model.fingerprint
    weights, new = ba.weights(few), model.test_path_inputs + 1.0
    joint = ba.with_groups(few, "log_likelihood", "log_prior", joint=True)
    for place in range(2):
        each = few["posterior"].to_dataset().isel(chain=0, draw=place)
        position = np.log([each["temperature"], each["variances"][0], each["variances"][2]])
        known, u = known_at(model, position), each["order_parameter"].values
        found, exact = ba.predict(few.isel(draw=[place]), new), ba.theory.predict(u, known, new)
        np.testing.assert_allclose(found.mean, exact.mean, rtol=1e-9)
        np.testing.assert_allclose(found.variance, exact.variance, rtol=1e-9)
        arch, own = known.architecture, weights.isel(chain=0, draw=place)
        assert relative_error(dense.order_parameter(arch, {name: own[name].values for name in own}), u) < 1e-10
        density = joint["log_likelihood"]["labels"].values[0, place]
        assert abs(density - dense.log_evidence(known, u)) < 1e-8
        prior = joint["log_prior"]["numbers"].values[0, place]
        assert abs(prior - log_prior_of(model.hyperpriors.priors, position)) < 1e-10
    without = few.copy()
    without["posterior"] = xr.DataTree(few["posterior"].to_dataset().drop_vars("temperature"))
    with pytest.raises(ValueError, match=r"draws must have posterior\['temperature'\], a number that has a prior"):
        ba.weights(without)
    with pytest.raises(ValueError, match="temperature must be a number for the theory"):
        ba.validate(tree)
    assert "T = LogNormal(loc=-0.7, scale=0.6)" in run_title(few)
    parts = joint["log_prior"]["bartlett"] + joint["log_prior"]["numbers"] + joint["log_likelihood"]["labels"]
    assert np.ptp(parts.values - few["sample_stats"]["lp"].values) < 1e-8


def layers_with_priors(model):
    return [layer for layer, each in enumerate(model.architecture.variances) if isinstance(each, dist.Distribution)]


def prior_draws(model, count):
    """What describes networks drawn from the prior, weights scaled one layer at a time, and log p(Y | f) of each."""
    arch, priors, layers = model.architecture, model.hyperpriors.priors, layers_with_priors(model)
    unit = path.Path.of(model.replace(temperature=1.0, variances=(1.0,) * len(arch.variances)))
    inputs, new, skips = jnp.asarray(model.path_inputs), jnp.asarray(model.test_path_inputs), arch.optional_skips

    @jax.jit
    @jax.vmap
    def draw(key):
        numbers_key, key = jax.random.split(key)
        keys = jax.random.split(numbers_key, len(priors))
        temperature, *values = (prior.sample(each) for prior, each in zip(priors, keys, strict=True))
        variances = [*arch.variances]
        for layer, value in zip(layers, values, strict=True):
            variances[layer] = value
        weights = unit.draw_prior(key)
        for name, variance in zip([*weights], variances, strict=True):
            weights[name] = jnp.sqrt(variance) * weights[name]
        paths, f = effective_weights(weights, skips), path.network(weights, inputs, skips)
        log_likelihood = jax.scipy.stats.norm.logpdf(jnp.asarray(model.labels), f, jnp.sqrt(temperature)).sum()
        found = {"temperature": temperature, "variances": variances, "prediction": path.network(weights, new, skips)}
        return described(found | {"order_parameter": paths @ paths.T / paths.shape[1]}, layers), log_likelihood

    return map(np.asarray, draw(jax.random.split(jax.random.key(3), count)))


def test_draws_are_those_of_weighed_prior_draws(drawn):
    model, tree = drawn
    require_prior_draws(tree, *prior_draws(model, 100_000), layers_with_priors(model), 100)


@pytest.mark.heavy
@pytest.mark.parametrize("name", NETWORKS)
def test_all_parameterisations_and_the_evidence_agree_with_weighed_prior_draws(name):
    model, settings = NETWORKS[name](), {"chains": 4, "warmup": 500, "draws": 4000, "progress": False}
    kinds = ("collapsed", "path", "token") if model.tokens is not None else ("collapsed", "path")
    prior, log_likelihoods = prior_draws(model, 400_000)
    tempered = ba.sample(model, "tempered", seed=9, **settings)
    for tree in (*(ba.sample(model, "nuts", kind, seed=seed, **settings) for seed, kind in enumerate(kinds)), tempered):
        require_prior_draws(tree, prior, log_likelihoods, layers_with_priors(model), 100)
    exact, error = evidence_of(log_likelihoods)
    for found in (ba.tempering(tempered), *(ba.theory.evidence(model, seed=seed) for seed in range(3))):
        likely(2 * stats.norm.sf(abs(found.log_evidence - exact) / np.hypot(found.error, error)))
        assert found.error < 0.1
        assert found.reliable


@pytest.mark.heavy
def test_calibration_of_numbers_and_what_it_finds():
    """Ranks of T and of both variances among all others; a wrong prior of T is found."""
    model, settings = two_heads(), {"sampler": "nuts", "draws": 63, "thin": 4, "warmup": 200}
    simulations = calibration.simulate(model, 400, seed=0)
    found = calibration.calibrate(model, simulations, **settings)
    assert found.holds
    assert {*model.hyperpriors.names} <= {*found.names}
    wrong = calibration.calibrate(model.replace(temperature=dist.LogNormal(0.3, 0.6)), simulations, **settings)
    assert wrong.holds is False
    assert wrong.p_values[found.names.index("temperature")] < 1e-6


def with_temperature(prior):
    return tiny_model().replace(temperature=prior)


REFUSED = [
    (lambda: with_temperature(dist.Normal(0.0, 1.0)), "temperature must be .* got Normal, whose support is not"),
    (lambda: with_temperature(dist.LogNormal(0.0, 1.0).expand([2])), r"temperature must be .* got one of shape \(2,\)"),
    (lambda: with_temperature(dist.TruncatedNormal(0.0, low=0.1)), "temperature must be .* that numbers determine"),
    (lambda: with_temperature(dist.LogNormal(0.0, 1.0).mask(False)), "temperature must be .* that numbers determine"),
    (lambda: with_temperature(dist.InverseGamma(0.01, 0.01)), "some draws from which are 0 or infinite"),
    (lambda: tiny_model().replace(variances=(1.0, dist.Poisson(3.0), 1.0)), r"variances\[1\] must be .* got Poisson"),
    (lambda: ba.theory.solve(two_heads()), r"temperature must be a number for the theory .* LogNormal\(loc=-0.7"),
    (lambda: ba.learning_coefficient(two_heads()), "temperature must be a number for the theory"),
    (
        lambda: ba.theory.kernel(np.eye(2), *2 * [np.ones((3, 2, 4))], two_heads().architecture),
        r"\[0\] must be a number here",
    ),
    (lambda: hyper_parameterisations.HyperPath.of(two_heads()).with_float32_gradients(), NO_FLOAT32),
    (
        lambda: hyper_parameterisations.HyperCollapsed.with_float32_gradients(
            SimpleNamespace(known=Mock(), priors=two_heads().hyperpriors)
        ),
        "options.float32_gradients must be false where T has a prior, got true",
    ),
    (lambda: two_heads().at({"temprature": 0.2}), "value must be one of .*, got 'temprature'; did you mean"),
    (lambda: two_heads().at({"temperature": np.ones(3)}), "temperature must be a finite number above 0"),
    (lambda: two_heads().at({"variances": 0.5}), "variances must be 3 numbers"),
    (lambda: tiny_model().at({"temperature": 0.2}), "values must be empty for a model without priors"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_priors_and_values_that_cannot_be_used_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_numbers_of_a_likelihood_are_restored_from_the_description():
    model = tiny_model().replace(likelihood=ba.StudentT(T, dist.Gamma(2.0, 0.1)))
    assert model.table()["likelihood"] == {}  # Medians, which are of random numbers, identify nothing.
    assert "scale = LogNormal(loc=-0.7" in repr(model)
    arrays = {array: getattr(model, array) for array in (*model.posterior_names, "temperature")}
    assert restored(description_of(model), arrays).fingerprint == model.fingerprint


def test_labels_that_no_input_explains_tell_of_the_temperature():
    """The density of T given weights is the same for gathered examples."""
    rng, arch = np.random.default_rng(0), ba.Architecture((2,), (3, 3))
    data = rng.normal(size=(20, 2, 2)), rng.normal(size=20)
    weights = dense.random_weights(arch, 2, rng)
    rises = []
    for dataset in (ba.Dataset(path_inputs=data[0], labels=data[1]), ba.Dataset.gather(data, arch)):
        posterior = hyper_parameterisations.HyperPath.of(ba.Model(dataset=dataset, architecture=arch, temperature=T))
        rises.append(np.diff([float(posterior.log_density(weights | {HYPER: np.array([at])})) for at in (-2.0, 1.0)]))
    np.testing.assert_allclose(*rises, rtol=1e-10)


def test_a_minibatch_of_all_examples_has_the_density_of_all():
    posterior = hyper_parameterisations.HyperPath.of(two_heads())
    sites = posterior.draw_prior(jax.random.key(0))
    every = posterior.minibatch(jnp.arange(len(posterior.labels)))
    np.testing.assert_allclose(every.log_density(sites), posterior.log_density(sites), rtol=1e-12)


def test_wide_priors_and_labels_that_medians_do_not_explain():
    model = tiny_model()
    twice = model.path_inputs[[0, 0, *range(2, model.examples)]]
    wide = model.replace(path_inputs=twice, labels=np.arange(6.0) - 2.5, temperature=dist.LogNormal(-60.0, 30.0))
    assert wide.has_priors
    assert model.replace(temperature=dist.Beta(2.0, 2.0)).has_priors


def test_a_point_mass_is_its_number():
    model = tiny_model()
    same = model.replace(temperature=dist.Delta(0.5), variances=tuple(map(dist.Delta, model.architecture.variances)))
    assert not same.has_priors
    assert same.fingerprint == model.fingerprint


HEAD = "[architecture]\nwidth = 5\n[task]\nname = 'hidden_markov'\n"
GAMMA = "{distribution = 'Gamma', concentration = 2.0, rate = 2.0}"
PRIORS = f"""[priors]
variances = [1.0, {GAMMA}, 1.0, 1.0]
temperature = {{distribution = 'LogNormal', loc = -2.0, scale = 1.0}}
{HEAD}"""
ATTENTION = f"""temperature = 0.1
[priors]
query_variance = {GAMMA}
key_variance = [0.5, {GAMMA}]
{HEAD}[attention]
key_width = 2
"""


def test_a_model_file_has_priors(tmp_path):
    (file := tmp_path / "mine.toml").write_text(PRIORS)
    model = ba.load_model(file)
    assert table_of("T", model.temperature) == {"distribution": "LogNormal", "loc": -2.0, "scale": 1.0}
    assert model.hyperpriors.names == ("temperature", "variances[1]")
    assert "LogNormal(loc=-2, scale=1)" in repr(model)
    file.write_text(ATTENTION)
    assert ba.load_model(file).hyperpriors.names == ("query_variance[0]", "query_variance[1]", "key_variance[1]")
    for content, message in (
        (PRIORS.replace("'LogNormal'", "'LogNormel'"), "priors.temperature.distribution must be the name of one"),
        (PRIORS.replace("scale", "sd"), "priors.temperature must have the parameters of LogNormal"),
        ("temperature = 0.1\n" + PRIORS, "needs temperature or priors.temperature, and not both"),
        (PRIORS.replace("variances", "query_variance"), r"needs a table \[attention\] for priors.query_variance"),
        (ATTENTION + "key_variance = 1.0\n", "needs attention.key_variance or priors.key_variance, and not both"),
    ):
        file.write_text(content)
        with pytest.raises(ValueError, match=message):
            ba.load_model(file)


def test_layers_of_queries_and_keys_are_counted_from_one():
    assert axis_names(sampled_attention())["layer"] == [1, 2]
    assert _named({"quantity": "key_variance", "variance": "2"}) == "key_variance of layer 2"
