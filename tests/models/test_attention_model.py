"""Networks whose queries and keys are sampled: two parameterisations, prior draws, and what is computed from draws."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
import xarray as xr
from numpyro.infer.util import log_density
from scipy import stats

import bayesattn as ba
from bayesattn.errors import BayesattnError
from bayesattn.models import Collapsed, CollapsedAttention, TokenAttention, collapsed
from bayesattn.models.conditional import conditional_of
from bayesattn.models.draws import opened
from bayesattn.models.queries_keys import heads_of
from bayesattn.models.stored_model import model_in
from bayesattn.network import network
from bayesattn.questions import calibration
from bayesattn.questions.reference.quantities import quantities_of_draws
from bayesattn.samplers.smc import anneal, anneal_logits
from bayesattn.theory.bartlett import layer_shapes
from tests import dense
from tests.models.attention_networks import NETWORKS, attention_model, weighed_prior_draws
from tests.statistics import agree, likely, near

KEEP = ("order_parameter", "prediction", "queries_keys")
SETTINGS = {"chains": 2, "warmup": 200, "draws": 400, "seed": 3}


@pytest.fixture(scope="module")
def model():
    return attention_model(watched=(0, 2))


@pytest.fixture(scope="module")
def draws(model):
    return ba.sample(model, keep=KEEP, **SETTINGS, progress=False)


def some_sites(posterior, seed):
    """Normal numbers of the shapes of a prior draw."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(posterior.draw_prior, jax.random.key(0))
    return {name: jnp.asarray(rng.normal(size=shape.shape)) for name, shape in shapes.items()}


def require_posterior(draws, model, weighed, annealed, finds):
    """Quantities of draws, and the evidence by annealing, are those of weighed prior draws."""
    mean, error, evidence, evidence_error = weighed
    u, f = (draws["posterior"][name].values for name in ("order_parameter", "prediction"))
    agree(xr.DataArray(quantities_of_draws(u, f, model), dims=("chain", "draw", "quantity")), mean, error)
    both = np.hypot(annealed.error, evidence_error)
    near(annealed.log_evidence, evidence, both, len(annealed.islands) - 1, finds=finds)


@pytest.mark.parametrize(
    "settings",
    [
        *NETWORKS.values(),
        {"skips": (0.7,), "causal": True, "padded": True},
        {"heads": (1, 2), "widths": (2, 2, 2), "skips": (0.5, 0)},
    ],
    ids=str,
)
def test_path_inputs_and_outputs_are_those_of_the_same_heads_held_fixed(settings):
    model = attention_model(**settings)
    posterior = TokenAttention.of(model)
    sites = some_sites(posterior, 1)
    fixed = model.given(heads_of(posterior.prior.named(sites)))
    found = jax.jit(CollapsedAttention.given)(CollapsedAttention.of(model), sites)
    scale = np.sqrt(fixed.architecture.input_variance / fixed.path_inputs[0].size)
    assert np.swapaxes(found.kernels.features, 1, 2) == pytest.approx(scale * fixed.path_inputs, abs=1e-14)
    assert found.test_path_inputs == pytest.approx(fixed.test_path_inputs, abs=1e-14)
    weights = {name: value for name, value in sites.items() if not name.startswith("whitened")}
    expected = np.asarray(jax.jit(network)(weights, fixed.path_inputs, fixed.architecture.optional_skips))
    assert jax.jit(TokenAttention.function)(posterior, sites) == pytest.approx(expected, abs=1e-13)


def test_without_query_variance_the_posterior_is_that_of_uniform_heads(model):
    uniform = model.replace(query_variance=0.0)
    posterior = CollapsedAttention.of(uniform)
    sites = some_sites(posterior, 2)
    fixed = model.given([(np.zeros((2, 2, 2)), np.ones((2, 2, 2)))])
    other = Collapsed.of(fixed, **collapsed.prepare(fixed, "prior"))
    of_heads = sum(stats.norm.logpdf(value).sum() for name, value in sites.items() if "_" in name)
    mine = jax.jit(CollapsedAttention.log_density)(posterior, sites)
    theirs = jax.jit(Collapsed.log_density)(other, {"whitened": sites["whitened"]})
    assert mine == pytest.approx(float(theirs + of_heads), rel=1e-12)


def test_the_likelihood_given_a_draw_is_that_of_its_heads_held_fixed():
    model, rng = attention_model(heads=(3,), widths=(4, 4)), np.random.default_rng(0)
    conditional, root = conditional_of(model), rng.normal(size=(3, 3))
    heads, u = rng.normal(size=(2, 3, 2, 2)), root @ root.T
    found = jax.jit(type(conditional).log_likelihood)(
        conditional, {"order_parameter": u, "queries_1": heads[0], "keys_1": heads[1]}
    )
    assert found == pytest.approx(dense.log_evidence(model.given([tuple(heads)]), u), rel=1e-10)


def test_prior_and_likelihood_of_sampled_attention_add_up_to_what_was_sampled(draws, model):
    few = draws.isel(draw=slice(0, 5))
    parts = ba.with_groups(few, "log_prior", "log_likelihood", joint=True)
    total = parts["log_prior"]["bartlett"] + parts["log_prior"]["queries_keys"] + parts["log_likelihood"]["labels"]
    assert np.ptp(total.values - few["sample_stats"]["lp"].values) < 1e-8
    assert ba.heads(few).prior.shape == (2,)  # Though sequences are watched.
    few["posterior"] = xr.DataTree(few["posterior"].to_dataset().drop_vars("keys_1"))
    with pytest.raises(BayesattnError, match="keep 'queries_keys'"):
        ba.with_groups(few, "log_prior", model=model)


def test_draws_have_queries_keys_and_attention_of_watched_sequences(draws, model):
    posterior = draws["posterior"].to_dataset()
    assert posterior["queries_1"].dims == ("chain", "draw", "head_1", "key_feature", "feature")
    assert posterior["attention_1"].dims == ("chain", "draw", "sequence", "head_1", "query", "key")
    first = {name: posterior[name].values[1, 7] for name in ("queries_1", "keys_1")}
    [matrices] = ba.attention.matrices(model.test_inputs, [(first["queries_1"], first["keys_1"])])
    assert posterior["attention_1"].values[1, 7] == pytest.approx(np.asarray(matrices)[[0, 2]], abs=1e-12)
    assert (posterior["queries_1"].values[0, 0] != posterior["queries_1"].values[0, -1]).all()


def test_chains_agree_with_weighed_prior_draws(draws, model):
    weighed = weighed_prior_draws(model, batches=8, least=1000)
    annealed = anneal(model, islands=16, particles=128)
    assert annealed.reliable
    require_posterior(draws, model, weighed, annealed, finds=0.25)
    assert annealed.draws["posterior"]["queries_1"].shape[:2] == (16, 128)
    with pytest.raises(BayesattnError, match=r"islands must be .* at least 2"):
        anneal(model, islands=1)
    with pytest.raises(BayesattnError, match="particles must be a multiple of moves = 8, got 100"):
        anneal(model, particles=100)


@pytest.mark.filterwarnings("ignore:the variance of f has a heavy tail")
def test_predictions_are_the_mean_over_draws_of_those_given_queries_and_keys(draws, model):
    found = ba.predict(draws, model.test_inputs)
    kept = draws["posterior"]["prediction"]
    agree(kept, found.mean, found.error)
    assert found.variance == pytest.approx(kept.var(("chain", "draw")).values, rel=0.3)
    few = draws.copy()
    few["posterior"] = few["posterior"].to_dataset().drop_vars("queries_1")
    with pytest.raises(BayesattnError, match="keep 'queries_keys'"):
        ba.predict(few, model.test_inputs)
    # Sequences with padding have the outputs of those without.
    padded = np.concatenate([model.test_inputs, np.full((5, 2, 2), np.nan)], axis=1)
    mask = np.arange(5) < np.full((5, 1), 3)
    assert ba.predict(draws, padded, mask=mask).mean == pytest.approx(found.mean, abs=1e-12)


def test_prior_draws_are_independent_normals(model):
    drawn = jax.jit(jax.vmap(TokenAttention.of(model).draw_prior))(jax.random.split(jax.random.key(0), 4000))
    deviations = dict(zip(("V_0", "V_1", "a"), np.sqrt(model.architecture.variances), strict=True))
    flat = [np.reshape(value, (4000, -1)) / deviations.get(name, 1.0) for name, value in drawn.items()]
    everything = np.concatenate(flat, axis=1)
    likely(stats.kstest(everything, "norm", axis=0).pvalue)
    assert np.abs(np.corrcoef(everything.T) - np.eye(everything.shape[1])).max() < 0.1


def test_groups_and_the_model_of_draws(draws, model):
    tree = ba.with_groups(draws, prior_draws=1000)
    assert tree["log_likelihood"]["labels"].shape == (2, 400, 4)
    assert tree["prior"]["prediction"].shape == (1, 1000, 5)
    prior = tree["prior"]["order_parameter"].values[0]
    diagonal = np.einsum("dpp->dp", prior)
    near(diagonal.mean(0), 1, diagonal.std(0) / np.sqrt(1000), finds=0.5)
    scores = ba.heads(draws)
    assert "heads of a layer are exchangeable" in repr(scores)
    near(*scores.scores, np.hypot(*scores.error), finds=0.2)


@pytest.mark.parametrize(
    "settings",
    [
        {"padded": True, "causal": True, "name": "x"},
        {"outputs": 2, "likelihood": ba.StudentT(0.5, 4.0), "temperature": None},
    ],
)
def test_a_model_is_restored_from_its_draws(settings):
    model = attention_model(**settings)
    sites = some_sites(CollapsedAttention.of(model), 0)
    sites = {name: value[None, None] for name, value in jax.device_get(sites).items()}
    again = model_in(opened(ba.from_numpyro(sites, model, "collapsed")))
    assert repr(again) == repr(model)
    assert again.test_mask is None if model.test_mask is None else np.array_equal(again.test_mask, model.test_mask)


def test_numpyro_and_flat_vectors(model):
    def drawn():
        with numpyro.handlers.seed(rng_seed=0), numpyro.handlers.trace() as trace:
            model.numpyro()()
        return {name: site["value"] for name, site in trace.items() if site["type"] == "sample"}

    assert {"whitened_queries_1", "V_0", "a"} <= jax.eval_shape(drawn).keys()
    function, density = model.numpyro("collapsed"), model.log_density()
    assert density.size == 2 * 2 * 4 + sum(shape.size for shape in layer_shapes(model.architecture))
    vector = density.initial(jax.random.key(1))

    @jax.jit
    def of_program(sites):
        value, trace = log_density(function, (), {}, sites)
        return value, trace["order_parameter"]["value"]

    value, order_parameter = of_program(density.sites(vector))
    assert jax.jit(density.function)(vector) == pytest.approx(float(value), rel=1e-12)
    assert order_parameter.shape == (2, 2)
    assert ba.from_vectors(vector[None, None], model)["posterior"]["queries_1"].shape == (1, 1, 2, 2, 2)


NO_TEST = {"test_inputs": None, "test_mask": None}
BAD = {
    "inputs must have shape": {"inputs": np.ones((3, 2))},
    "key_width must be a whole number of at least 1, got 0": {"key_width": 0},
    "query_variance must be a number of at least 0, got -1": {"query_variance": -1},
    "key_variance must be a number, or one for each of 1 layers, got 2": {"key_variance": (1.0, 2.0)},
    "architecture must be given, or its fields, heads and widths among them, got None": {"heads": None},
    "heads must not be given together with architecture": {"architecture": ba.Architecture((2,), (3, 3))},
    "readout must be one of 'last', 'first', 'mean', got 'all'": {"readout": "all"},
    "attention_on must be one of 'inputs', 'hidden', got 'x'": {"attention_on": "x"},
    "values must be one of 'linear', 'relu', 'gelu', got 'tanh'": {"values": "tanh"},
    r"mask must be an array of shape \(4, 3\), got": {"mask": [[True] * 3] * 3 + [[True]]},
    "test_mask must leave each sequence a token": {"test_mask": np.zeros((5, 3), bool)},
    "test_labels need test_inputs, got None for the latter": NO_TEST | {"test_labels": [1.0]},
    "watched need test_inputs": NO_TEST | {"watched": (0,)},
    r"watched\[0\] must be a whole number of at most 4, got 5": {"watched": (5,)},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_refused_in_one_sentence(message):
    good = attention_model()
    fields = {name: getattr(good, name) for name in ("inputs", "labels", "test_inputs")}
    fields |= {"heads": (2,), "widths": (3, 3), "key_width": 2, "temperature": 0.5}
    with pytest.raises(BayesattnError, match=f"^{message}"):
        ba.AttentionModel(**fields | BAD[message])


def test_equal_sequences_with_different_labels_are_refused_where_t_is_lost_in_rounding(model):
    twice, labels = np.repeat(model.inputs[:1], 2, 0), [1.5, -1.5]
    settings = {"key_width": 1, "heads": (1,), "widths": (2, 2), "temperature": 1e-17}
    with pytest.raises(ValueError, match="labels of examples 0 and 1 must be equal"):
        ba.AttentionModel(inputs=twice, labels=labels, **settings)
    # Of another length they are other sequences, though padding is 0.
    twice[1, -1] = 0
    ba.AttentionModel(inputs=twice, labels=labels, mask=np.arange(3) < [[3], [2]], **settings)


def test_what_padding_holds_changes_nothing():
    padded = attention_model(**NETWORKS["padded"])
    for value in (np.nan, 1e160, np.finfo(float).max):
        inputs = np.where(padded.mask[..., None], padded.inputs, value)
        assert np.array_equal(padded.replace(inputs=inputs).inputs, padded.replace(inputs=padded.inputs).inputs)


def test_attention_maps_are_kept_whatever_else_is(model):
    small = {"sampler": "mala", "parameterisation": "token", "options": {"steps": 2}, "warmup": 5, "draws": 5}
    few = ba.sample(model, keep=("prediction",), chains=1, progress=False, **small)
    assert set(few["posterior"].data_vars) == {"attention_1", "prediction"}


def test_particles_of_no_likelihood_count_for_nothing():
    """Poisson rates of outputs of a hundred overflow: most prior draws have log density minus infinity."""
    inputs = 100 * np.random.default_rng(0).normal(size=(3, 4, 2))
    network = {"key_width": 1, "heads": (1,), "widths": (3, 3), "variances": (4.0, 4.0, 400.0)}
    counts = ba.AttentionModel(inputs=inputs, labels=[1.0, 0, 3], likelihood=ba.Poisson(), **network)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        annealed = anneal(counts, "token", islands=2, particles=64, moves=1)
    assert np.isfinite(annealed.log_evidence)
    assert 64 < annealed.excluded < annealed.particles == 128
    assert f"excluded      {annealed.excluded} of 128 draws" in repr(annealed)
    doubt = [str(each.message)[:31] for each in warned]
    assert doubt == ["log p(Y) of the 2 islands diffe"] * (not annealed.reliable)


def test_what_needs_fixed_attention_says_so(model):
    for call in (ba.theory.solve, ba.theory.evidence):
        with pytest.raises(BayesattnError, match=r"model must have fixed attention .* model\.given\("):
            call(model)
    with pytest.raises(BayesattnError, match="queries_and_keys must have \\(2,\\) heads per layer, got \\(1,\\)"):
        model.given([(np.ones((1, 2, 2)), np.ones((1, 2, 2)))])
    message = "parameterisation of an AttentionModel must be one of 'token', 'collapsed', got 'path'"
    with pytest.raises(BayesattnError, match=message):
        ba.sample(model, parameterisation="path")


@pytest.mark.heavy
@pytest.mark.parametrize("name", NETWORKS)
def test_both_parameterisations_agree_with_weighed_prior_draws(name):
    """Chains, tempered particles and prior draws; and the evidence by replicas and by the scale of the logits."""
    model = attention_model(**NETWORKS[name])
    weighed = weighed_prior_draws(model, batches=128, least=4000)
    replicas = ba.sample(model, "tempered", warmup=300, draws=3000, options={"replicas": 6}, progress=False)
    for found in (anneal_logits(model, islands=16, particles=512), ba.tempering(replicas)):
        near(found.log_evidence, weighed[2], np.hypot(found.error, weighed[3]), 15, finds=0.5)
    for parameterisation in ("collapsed", "token"):
        draws = ba.sample(model, parameterisation=parameterisation, chains=4, warmup=1000, draws=5000, progress=False)
        require_posterior(draws, model, weighed, anneal(model, parameterisation, islands=16, particles=128), finds=0.5)


@pytest.mark.heavy
@pytest.mark.parametrize("parameterisation", ["collapsed", "token"])
def test_ranks_are_uniform_and_find_a_wrong_prior_variance_of_keys(parameterisation):
    model = attention_model()
    simulated = calibration.simulate(model, 300)
    settings = {"sampler": "nuts", "parameterisation": parameterisation, "warmup": 300, "thin": 10}
    right = calibration.calibrate(model, simulated, **settings)
    assert "|K|^2 1,2" in right.names
    assert right.holds, dict(zip(right.names, right.p_values, strict=True))
    wrong = calibration.calibrate(model.replace(key_variance=0.75), simulated, **settings)
    assert wrong.holds is False
    assert wrong.p_values[wrong.names.index("|K|^2 1,1")] < 1e-6
