"""Attention blocks: the network, its log density and what is made of draws against loops over the definition."""

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from scipy import stats
from scipy.special import erf

import bayesattn as ba
from bayesattn.errors import BayesattnError
from bayesattn.models import TokenAttention
from bayesattn.models.attention_blocks import Blocks
from bayesattn.models.sampled_attention import number_of_weights
from tests import dense
from tests.models.test_attention_model import some_sites
from tests.posteriors import weighed_mean
from tests.statistics import agree

KEY = jax.random.key(0)
PHI = {
    "linear": lambda value: value,
    "relu": lambda value: max(0.0, value),
    "gelu": lambda value: value * (1 + erf(value / np.sqrt(2))) / 2,
}


def attention_model(examples=4, tokens=4, features=3, outputs=1, masked=False, **changes):
    """Random sequences, four and two; the first of each without its first and last token if they are masked."""
    rng = np.random.default_rng(2)
    settings = {
        "heads": (2, 3),
        "widths": (3, 4, 2),
        "variances": (1.2, 0.9, 1.1, 0.7),
        "key_width": 2,
        "query_variance": (1.5, 0.8),
        "key_variance": (0.6, 1.7),
        "temperature": 0.5,
    } | changes
    inputs = rng.normal(size=(examples, tokens, features))
    labels = rng.normal(size=(examples, outputs) if outputs > 1 else examples)
    test = rng.normal(size=(2, tokens, features))
    masks = {"mask": np.ones((examples, tokens), bool), "test_mask": np.ones((2, tokens), bool)} if masked else {}
    for mask in masks.values():
        mask[0, [0, -1]] = False
    return ba.AttentionModel(inputs=inputs, labels=labels, test_inputs=test, outputs=outputs, **settings | masks)


def weights_of(model, sites):
    """Weights by name as NumPy arrays, queries and keys with their prior deviations."""
    weights = {name: np.asarray(value) for name, value in sites.items()}
    for layer, variances in enumerate(zip(model.query_variance, model.key_variance, strict=True), start=1):
        for kind, variance in zip(("queries", "keys"), variances, strict=True):
            weights[f"{kind}_{layer}"] = np.sqrt(variance) * weights.pop(f"whitened_{kind}_{layer}")
    return weights


def network_by_loops(model, weights, x, mask=None):
    """f and the attention matrices of one sequence of tokens x, from the formulas."""
    tokens, arch = range(len(x)), model.architecture
    real = [True] * len(x) if mask is None else mask
    z = [weights["V_0"] @ x[t] / np.sqrt(len(x[t])) for t in tokens]
    matrices = []
    for layer in range(1, arch.depth + 1):
        values, queries, keys = (weights[f"{kind}_{layer}"] for kind in ("V", "queries", "keys"))
        y = x if model.attention_on == "inputs" else [each / np.sqrt(len(each)) for each in z]
        skip = arch.skips[layer - 1]
        following = [skip * z[t] if skip else np.zeros(len(values[0])) for t in tokens]
        matrix = np.zeros((len(values), len(x), len(x)))
        for h in range(len(values)):
            for q in tokens:
                allowed = [k for k in tokens if k == q or (real[k] and (k <= q or not model.causal))]
                share = {k: np.exp((keys[h] @ y[k]) @ (queries[h] @ y[q]) / np.sqrt(model.key_width)) for k in allowed}
                for k in allowed:
                    matrix[h, q, k] = share[k] / sum(share.values())
                    v = values[h] @ z[k] / np.sqrt(len(z[k]))
                    phi = np.array([PHI[model.values](each) for each in v])
                    mixed = v + model.values_strength * (phi - v)
                    following[q] = following[q] + matrix[h, q, k] * mixed / np.sqrt(len(values))
        z = following
        matrices.append(matrix)
    places = [t for t in tokens if real[t]]
    read = {"last": places[-1:], "first": places[:1], "mean": places}[model.readout]
    return weights["a"] @ sum(z[t] for t in read) / len(read) / np.sqrt(len(z[0])), matrices


def outputs_by_loops(model, weights, inputs, mask=None):
    masks = [None] * len(inputs) if mask is None else mask
    return np.array([network_by_loops(model, weights, *each)[0] for each in zip(inputs, masks, strict=True)])


SKIP = {"skips": (0.6, 0.0), "widths": (3, 3, 2)}
HIDDEN = {"attention_on": "hidden", "values": "relu", "causal": True, "watched": (1, 0)}
CASES = {
    "hidden, relu": HIDDEN | SKIP | {"masked": True, "outputs": 2, "readout": "mean"},
    "hidden, gelu": HIDDEN | {"values": "gelu", "causal": False, "values_strength": 0.7, "readout": "first"},
    "hidden, linear": HIDDEN | {"values": "linear", "masked": True, "skips": (0, 0.5), "widths": (3, 4, 4)},
    "inputs, gelu": {"values": "gelu", "values_strength": 1.3, "causal": True, "masked": True, "watched": (0,)},
}


@pytest.mark.parametrize("case", CASES)
def test_network_is_its_definition(case):
    model = attention_model(**CASES[case])
    posterior = Blocks.of(model)
    sites = some_sites(posterior, 0)
    weights = weights_of(model, sites)
    outputs = outputs_by_loops(model, weights, model.inputs, model.mask)
    found, quantities = jax.jit(lambda of, sites: (of.function(sites), of.quantities(sites, KEY)))(posterior, sites)
    np.testing.assert_allclose(found, outputs, rtol=1e-12, atol=1e-14)
    tests = outputs_by_loops(model, weights, model.test_inputs, model.test_mask)
    np.testing.assert_allclose(quantities["prediction"], tests, rtol=1e-12, atol=1e-14)
    for sequence, test in enumerate(model.watched):
        mask = None if model.test_mask is None else model.test_mask[test]
        for layer, matrix in enumerate(network_by_loops(model, weights, model.test_inputs[test], mask)[1], start=1):
            np.testing.assert_allclose(quantities[f"attention_{layer}"][sequence], matrix, rtol=1e-12, atol=1e-14)


def log_joint(model, sites):
    """Log density of weights and labels, from normal densities and loops."""
    whitened = sum(stats.norm.logpdf(value).sum() for name, value in sites.items() if name.startswith("whitened"))
    return dense.log_prior_of_weights(model.architecture, sites) + whitened + log_likelihood(model, sites)


def log_likelihood(model, sites):
    return dense.log_likelihood(model, outputs_by_loops(model, weights_of(model, sites), model.inputs, model.mask))


@jax.jit
def joint_of(posterior, sites):
    return posterior.log_density(sites)


@pytest.fixture(scope="module")
def masked():
    """A model with padding, its posterior, and some weights."""
    model = attention_model(**CASES["hidden, relu"])
    posterior = Blocks.of(model)
    return model, posterior, some_sites(posterior, 1)


def test_log_density_is_that_of_weights_and_labels(masked):
    model, posterior, sites = masked
    assert joint_of(posterior, sites) == pytest.approx(log_joint(model, sites), rel=1e-12)
    density = model.log_density("token")
    vector = density.initial(jax.random.key(2))
    expected = log_joint(model, density.sites(vector))
    assert float(jax.jit(density.function)(vector)) == pytest.approx(expected, rel=1e-12)
    assert density.size == number_of_weights(model)
    program = model.numpyro("token")

    @jax.jit
    def both(sites):
        with numpyro.handlers.trace() as trace, numpyro.handlers.substitute(data=sites):
            program()
        return trace["order_parameter"]["value"], posterior.central(sites)["order_parameter"]

    np.testing.assert_allclose(*both(sites), rtol=1e-12)
    other = posterior.with_labels(posterior.labels + 1)
    assert joint_of(other, sites) == pytest.approx(log_joint(model.replace(labels=model.labels + 1), sites), rel=1e-12)


def test_minibatches_scale_the_log_likelihood(masked):
    """The two halves of the examples, each scaled to all, have the log density of all on average."""
    model, posterior, sites = masked
    halves = [posterior.minibatch(jnp.array(half)) for half in ((0, 2), (3, 1))]
    densities = [joint_of(half, sites) for half in halves]
    assert np.mean(densities) == pytest.approx(float(joint_of(posterior, sites)), rel=1e-12)
    only = model.replace(inputs=model.inputs[[0, 2]], labels=model.labels[[0, 2]], mask=model.mask[[0, 2]])
    assert densities[0] == pytest.approx(log_joint(only, sites) + log_likelihood(only, sites), rel=1e-12)


def test_identity_and_strength_zero_are_the_linear_network():
    model = attention_model(masked=True, causal=True, values="relu", **SKIP)
    linear = Blocks.of(model.replace(values_strength=0.0))
    assert type(linear) is type(Blocks.of(model.replace(values="linear"))) is TokenAttention
    drawn = (each.draw_prior(KEY) for each in (linear, Blocks.of(model)))
    assert jax.tree.all(jax.tree.map(np.array_equal, *drawn))


def test_only_linear_networks_have_path_inputs():
    model = attention_model(**HIDDEN)
    for changes in ({}, {"attention_on": "inputs"}, {"values": "linear"}):
        with pytest.raises(ValueError, match="needs attention on the inputs and linear values"):
            model.replace(**changes).log_density("collapsed")
    classes = {"labels": ba.one_hot([0, 1, 2, 0]).labels, "outputs": 3, "likelihood": ba.Categorical(0.7)}
    for changes, keeps in (({}, False), ({"attention_on": "inputs", "values": "linear"}, True)):
        posterior = Blocks.of(model.replace(**classes | changes))
        quantities = jax.eval_shape(posterior.quantities, jax.eval_shape(posterior.draw_prior, KEY), KEY)
        assert ("readout" in quantities) == keeps
        assert quantities["prediction"].shape == (2, 3)


def test_memory_does_not_grow_with_the_number_of_paths():
    """No path inputs are formed: of a network of a million paths those alone would take 100 MB."""
    deep = {"heads": (10,) * 6, "widths": (2,) * 7, "variances": (1.0,) * 8, "query_variance": 1.0, "key_variance": 1.0}
    model = attention_model(tokens=2, **HIDDEN | deep | {"watched": ()})
    assert model.architecture.paths == 10**6
    needed = Blocks.bytes_needed(model, chains=3)
    assert 3 * 8 * number_of_weights(model) < needed < 10**6


ONE_LAYER = {"heads": (2,), "widths": (2, 3), "variances": (1.0,) * 3, "query_variance": 1.5, "key_variance": 0.6}


@pytest.fixture(scope="module")
def run():
    """A network of one layer and labels of two values, and its draws."""
    model = attention_model(tokens=3, **HIDDEN | ONE_LAYER | {"watched": (1,)})
    model = model.replace(labels=np.sign(model.labels), temperature=0.4)
    keep = ("order_parameter", "prediction", "queries_keys", "weights")
    settings = {"chains": 2, "warmup": 20, "draws": 8, "seed": 1, "progress": False, "options": {"max_tree_depth": 3}}
    return model, ba.sample(model, "nuts", "token", keep=keep, **settings)


def test_a_short_run_keeps_all_weights_and_what_follows_from_them(run):
    model, draws = run[0], run[1]["posterior"].to_dataset()
    assert {str(name): variable.dims[2:] for name, variable in draws.data_vars.items()} == {
        "order_parameter": ("path", "other_path"),
        "prediction": ("test_example",),
        "V_0": ("width_1", "feature"),
        "V_1": ("head_1", "readout_width", "width_1"),
        "a": ("readout_width",),
        "queries_1": ("head_1", "key_feature", "width_1"),
        "keys_1": ("head_1", "key_feature", "width_1"),
        "attention_1": ("sequence", "head_1", "query", "key"),
    }
    assert np.ptp(draws["queries_1"].values, axis=(0, 1)).min() > 0
    for draw in range(8):
        weights = {str(name): values.values[1, draw] for name, values in draws.data_vars.items()}
        outputs = outputs_by_loops(model, weights, model.test_inputs)
        np.testing.assert_allclose(weights["prediction"], outputs, rtol=1e-10)
        matrices = network_by_loops(model, weights, model.test_inputs[1])[1]
        np.testing.assert_allclose(weights["attention_1"], matrices, rtol=1e-10)
        u = dense.order_parameter(model.architecture, weights)
        np.testing.assert_allclose(weights["order_parameter"], u, rtol=1e-10)


@pytest.mark.parametrize("likelihood", ["Gaussian", "StudentT"])
def test_predictions_of_nonlinear_networks_are_means_over_draws_of_their_weights(likelihood, run):
    """At the test inputs against the draws themselves; densities and labels against loops over the training inputs."""
    model, tree = run
    if likelihood == "StudentT":
        model = model.replace(likelihood=ba.StudentT(0.5, 4.0))
        rng, shapes = np.random.default_rng(0), some_sites(Blocks.of(model), 0)
        sites = {name: rng.normal(size=(2, 8, *value.shape)) for name, value in shapes.items()}
        tree = ba.from_numpyro(sites, model, "token", weights=True)
    draws = tree["posterior"].to_dataset()
    found = ba.predict(tree, model.test_inputs, keep_draws=True)
    np.testing.assert_allclose(found.draws, draws["prediction"].values, rtol=1e-10)
    np.testing.assert_allclose(found.mean, draws["prediction"].mean(("chain", "draw")), rtol=1e-10)
    np.testing.assert_allclose(found.variance, draws["prediction"].var(("chain", "draw")), rtol=1e-9)
    if likelihood == "Gaussian":
        np.testing.assert_allclose(found.probabilities, (draws["prediction"] > 0).mean(("chain", "draw")))
    else:
        assert found.probabilities is None
    more = ba.with_groups(tree, "log_likelihood", "posterior_predictive")
    outputs = np.empty((2, 8, model.examples))
    for chain, draw in np.ndindex(2, 8):
        weights = {str(name): values.values[chain, draw] for name, values in draws.items()}
        outputs[chain, draw] = outputs_by_loops(model, weights, model.inputs)
    np.testing.assert_allclose(more["log_likelihood"]["labels"], dense.log_likelihoods(model, outputs), rtol=1e-8)
    assert more["posterior_predictive"]["labels"].shape == (2, 8, model.examples)
    few = tree.copy()
    few["posterior"] = few["posterior"].to_dataset().drop_vars("V_0")
    with pytest.raises(BayesattnError, match=r"must have posterior\['V_0'\], got draws without: keep 'weights'"):
        ba.predict(few, model.test_inputs)


@pytest.mark.heavy
@pytest.mark.parametrize("sampler", ["nuts", "adjusted_mclmc"])
def test_draws_agree_with_weighted_draws_of_the_prior(sampler):
    tiny = {"heads": (1,), "widths": (2, 2), "variances": (1.2, 0.9, 1.1), "causal": False, "watched": ()}
    model = attention_model(examples=3, tokens=2, features=2, **HIDDEN | ONE_LAYER | tiny)
    posterior = Blocks.of(model)

    @jax.jit
    @jax.vmap
    def draw(key):
        sites = posterior.draw_prior(key)
        quantities = posterior.quantities(sites, key)
        return posterior.function(sites), quantities["prediction"], quantities["order_parameter"][0]

    outputs, *quantities = map(np.asarray, draw(jax.random.split(KEY, 1_000_000)))
    log_weights = stats.norm.logpdf(model.labels, outputs, np.sqrt(model.temperature)).sum(-1)
    drawn = ba.sample(model, sampler, "token", chains=4, warmup=1000, draws=5000, seed=3)["posterior"]
    for draws, values in zip((drawn["prediction"], drawn["order_parameter"][..., 0]), quantities, strict=True):
        assert float(arviz_stats.rhat(draws).max()) < 1.02
        for power in (1, 2):
            assert float(arviz_stats.ess(draws**power).min()) > 400
            agree(draws**power, *weighed_mean(log_weights, values**power, least=1e4))
