"""Arguments that make no sense, or whose sense is likely another: arrays, numbers, names, options, sizes."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

import bayesattn as ba
from bayesattn import attention, fixed_attention, models
from bayesattn.models import bytes_needed
from bayesattn.samplers import SAMPLERS, Job
from bayesattn.samplers.program import kernel
from bayesattn.tasks import HiddenMarkov
from tests.attacks import conftest
from tests.posteriors import tiny_model

RNG = np.random.default_rng(0)
XI, Y = RNG.normal(size=(6, 2, 3)), np.array([1.0, -1.0] * 3)
ARCH = ba.Architecture((2,), (5, 5), (1.0, 1.0, 1.0))
THREE, THIRDS = ba.Architecture((2,), (5, 5), (1.0, 1.0, 1.0), outputs=3), np.full((6, 3), 1 / 3)
FIELDS = {"path_inputs": XI, "labels": Y, "architecture": ARCH, "temperature": 0.1}
CLASSES = {"likelihood": ba.Categorical(0.5)}


def refused(call, *expected):
    conftest.refused(call, " must ", *expected)


ARRAYS = [
    (Y + 0j, "complex128"),
    (Y.astype(str), "str"),
    ([1, None, 1, -1, 1, -1], "object"),
    ([[1], [1, 2], 3, 4, 5, 6], "list"),
    (Y.astype("M8[D]"), "datetime64"),
    (Y.astype("m8[D]"), "timedelta64"),
    (np.zeros(6, [("label", "f8")]), "structured"),
    ({"labels": Y}, "got {'labels': array("),
    (np.full(6, np.longdouble("1e400")), "finite"),  # Too large for float64.
    (Y * np.nan, "finite"),
]


@pytest.mark.parametrize(("value", "expected"), ARRAYS)
def test_labels_that_are_no_numbers(value, expected):
    refused(lambda: ba.Model(**FIELDS | {"labels": value}), "labels must be", expected)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda value: ba.Model(**FIELDS | {"validation_path_inputs": value}), "validation_path_inputs"),
        (lambda value: ba.attention.path_inputs(value, [np.zeros((1, 3, 3))]), "inputs"),
        (lambda value: ba.attention.paths_from_matrices(value, [np.full((6, 1, 2, 2), 0.5)]), "inputs"),
        (lambda value: ba.attention.matrices(np.ones((6, 2, 3)), [value[:2, :1, :] * np.ones((2, 3, 3))]), "weights"),
        (lambda value: ba.theory.kernel(np.eye(2), value, XI, ARCH), ""),
        (lambda value: ba.theory.predict(np.eye(2), ba.Model(**FIELDS), value), ""),
        (lambda value: models.LatentModel(features=value[0], values=Y[:2, None], noise=1.0, prior=1.0), "features"),
    ],
)
def test_complex_arrays_are_refused_wherever_they_come_in(call, name):
    refused(lambda: call(XI + 0.5j), name, "real numbers", "complex128")


@pytest.mark.parametrize("dtype", ["float16", "float32", "longdouble", "int8", "uint64", "bool", "bfloat16"])
def test_other_numbers_are_taken_as_they_are(dtype):
    value = np.asarray(jnp.asarray(XI, dtype)) if dtype == "bfloat16" else abs(XI).astype(dtype)
    model = ba.Model(**FIELDS | {"path_inputs": value})
    np.testing.assert_array_equal(model.path_inputs, value.astype(float))
    assert model.path_inputs.dtype == float  # Products of path inputs of one byte exceed it.


@pytest.mark.parametrize("value", [float("nan"), 0, "0.1", True, 0.1 + 0j, np.ones(2), 10**400], ids=repr)
def test_numbers_that_make_no_sense(value):
    refused(lambda: ba.Model(**FIELDS | {"temperature": value}), "temperature must be a finite number above 0")
    refused(lambda: ba.Architecture((2,), (5, 5), (1.0, value, 1.0)), "variances[1] must be a finite number")
    refused(lambda: ba.StudentT(value, 3), "scale must be a finite number above 0")
    refused(lambda: ba.StudentT(1, value), "freedom must be a finite number above 0")


@pytest.mark.parametrize("width", [0, 2.0, True, "3", 10**13, 2**70])
def test_widths_that_make_no_sense(width):
    refused(lambda: ba.Architecture((2,), (5, width), (1.0, 1.0, 1.0)), "widths[1] must be a whole number")


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, None])
@pytest.mark.parametrize("of", [Job, HiddenMarkov, partial(ba.theory.evidence, ba.Model(**FIELDS))])
def test_seeds_that_make_no_sense(of, seed):
    refused(lambda: of(seed=seed), "seed must be a whole number")


@pytest.mark.parametrize("names", [["a\x1b[31m", "b"], ["", "b"], ["a", 3], "ab", ["a", "\u202eb"]])
def test_names_that_cannot_be_printed(names):
    refused(lambda: ba.Model(**FIELDS, head_names=[names]), "head_names[0] must be")


def test_paths_of_one_name_are_told_apart():
    assert ba.Model(**FIELDS, head_names=[["a", "a"]]).path_names == ["a (1)", "a (2)"]
    arch = ba.Architecture((2, 2), (5, 5, 5), (1.0,) * 4)
    assert arch.path_names([["a", "b"], ["c", "c"]]) == ["a -> c (1)", "a -> c (2)", "b -> c (1)", "b -> c (2)"]
    assert len(set(arch.path_names([["a", "a -> b"], ["b -> c", "c"]]))) == 4


UNUSUAL = [
    ({"labels": Y > 0}, r"labels are 0 and 1: .*use -1 and \+1"),
    ({"labels": 1.5 + Y / 2}, r"labels are 1 and 2: .*use -1 and \+1"),
    ({"labels": 1e3 * Y}, "labels are .* times larger than the prior expects of these path_inputs; rescale inputs"),
    ({"labels": 1e-3 * Y}, "labels are .* times smaller than the prior expects of these path_inputs; rescale inputs"),
    ({"test_path_inputs": XI, "test_labels": Y > 0}, "test_labels are 0 and 1"),
]


@pytest.mark.parametrize(("fields", "message"), UNUSUAL)
def test_labels_that_were_likely_meant_otherwise_get_one_warning(fields, message):
    with pytest.warns(UserWarning, match=message):
        model = ba.Model(**FIELDS | fields)
    model.replace(width=7, temperature=0.2)  # Any further warning is an error.


@pytest.mark.parametrize("scale", [0.03, 1.0, 30.0])
def test_usual_labels_get_none(scale):
    ba.Model(**FIELDS | {"labels": scale * Y}, test_path_inputs=XI, test_labels=Y)


def test_examples_that_contradict_each_other_are_refused_at_no_temperature():
    twice, opposite, equal = np.concatenate([XI, XI]), np.concatenate([Y, -Y]), np.concatenate([Y, Y])
    fields = FIELDS | {"path_inputs": twice, "labels": opposite}
    for make in (ba.Model(**fields).replace, partial(ba.Model, **fields)):
        refused(partial(make, temperature=1e-15), "labels of examples 0 and 6 must be equal", "temperature")
    for path_inputs, labels, temperature in ((twice, equal, 1e-15), (twice, opposite, 1e-6), (XI, Y, 1e-15)):
        given = {"path_inputs": path_inputs, "labels": labels, "temperature": temperature}
        assert ba.Model(**FIELDS | given).temperature == temperature


OPTIONS = [
    ("nuts", {"max_tree_dept": 3}, "did you mean 'max_tree_depth'?"),
    ("nuts", {"steps": 3}, "options of sampler 'nuts' must be some of adapt_mass_matrix, "),
    ("nuts", {"init_strategy": print}, "options of sampler 'nuts' must be some of"),
    ("nuts", {"max_tree_depth": 64}, "at most 30"),
    ("nuts", {"max_tree_depth": [3, 4, 5]}, "a pair of depths"),
    ("nuts", {"max_tree_depth": [5, 0]}, "options.max_tree_depth must be a whole number of at least 1, got 0"),
    ("nuts", {"step_size": float("nan")}, "options.step_size must be a finite number above 0"),
    ("nuts", {"target_accept_prob": 1.0}, "options.target_accept_prob must be a probability below 1"),
    ("nuts", {"adapt_step_size": "false"}, "options.adapt_step_size must be true or false, got 'false'"),
    ("hmc", {"trajectory_length": float("inf")}, "options.trajectory_length must be a finite number"),
    ("ula", {"steps": 2.5}, "options.steps must be a whole number"),
    ("underdamped", {"length": 0}, "options.length must be a finite number above 0"),
    ("underdamped", {"damping_length": -2}, "options.damping_length must be a finite number"),
    ("tempered", {"replicas": 1}, "options.replicas must be a whole number of at least 2, got 1"),
    ("mclmc", {"desired_energy_var": float("nan")}, "options.desired_energy_var must be a finite number"),
    ("nuts", ["max_tree_depth"], "options must be a dictionary"),
]


@pytest.mark.parametrize(("sampler", "options", "expected"), OPTIONS)
def test_options_that_make_no_sense(sampler, options, expected):
    refused(lambda: Job(sampler=sampler, options=options), expected)


@pytest.mark.parametrize("sampler", sorted(SAMPLERS))
def test_each_sampler_tells_its_options(sampler):
    job = partial(Job, sampler=sampler, parameterisation="path" if sampler == "sgld" else "collapsed")
    refused(lambda: job(options={"step_sise": 0.1}), "did you mean 'step_size'?")
    job(options={"step_size": 0.1, "adapt_mass_matrix": True})


def test_a_pair_of_depths_is_for_warmup_and_after_it():
    job = Job(sampler="nuts", options={"max_tree_depth": [5, 8]})
    assert kernel(job.kernel, models.Collapsed, job.options)._max_tree_depth == (5, 8)


JOBS = [
    ({"sampler": "nutz"}, "did you mean 'nuts'?"),
    ({"keep": ["weight"]}, "did you mean 'weights'?"),
    ({"keep": "weights"}, "keep must be a list"),
    ({"keep": []}, "keep must be a list of some of order_parameter, latent, prediction"),
    ({"chains": 2**60}, "chains must be a whole number of at most"),
    ({"draws": -5}, "draws must be a whole number of at least 1, got -5"),
    ({"warmup": 0.5}, "warmup must be a whole number of at least 0, got 0.5"),
    ({"draws": 10, "thin": 3}, "thin must divide draws"),
    ({"thin": 0}, "thin must be a whole number of at least 1, got 0"),
    ({"cains": 3}, "setting of a job must be one of", "did you mean 'chains'?"),
    ({"num_samples": 10}, "draws= must be given, as it is called here, got num_samples="),
    ({"tune": 10}, "warmup= must be given", "got tune="),
    ({"num_warmup": 10}, "warmup= must be given", "got num_warmup="),
    ({"num_chains": 2}, "chains= must be given", "got num_chains="),
    ({"chain_method": "vectorized"}, "did you mean 'vectorised'?"),
    ({"parameterisation": "colapsed"}, "did you mean 'collapsed'?"),
    ({"parameterisation": "latent"}, "parameterisation of a Model must be one of"),
]


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_jobs_that_make_no_sense(model, job):
    settings, *expected = job
    refused(lambda: ba.sample(model, **settings), *expected)


def test_draws_that_memory_cannot_hold(model):
    with pytest.raises(ValueError, match=r"take .* GiB of memory"):
        ba.sample(model, draws=10**12, parameterisation="path")


@pytest.mark.parametrize("parameterisation", ["path", "token"])
def test_weights_that_memory_cannot_hold(model, parameterisation):
    with pytest.raises(ValueError, match=r"must fit into memory, .* use parameterisation 'collapsed'"):
        models.require_memory(model.replace(width=20_000), parameterisation, chains=10**3)
    refused(lambda: ba.sample(model.replace(width=10**7), parameterisation=parameterisation), "at N = 10000000")


def test_the_bytes_that_a_model_needs_are_those_of_its_weights():
    model = tiny_model(heads=(2, 3), widths=(7, 5, 4), variances=(1.0,) * 4)
    weights = 7 * 4 + 2 * 5 * 7 + 3 * 4 * 5 + 4
    assert model.architecture.number_of_weights(4) == weights
    more = bytes_needed(model, "path", chains=3) - bytes_needed(model, "path", chains=2)
    assert more == 8 * 8 * weights
    assert bytes_needed(model, "token") - bytes_needed(model, "path") == 8 * 6 * 5 * 5**2  # Attention.
    assert bytes_needed(model, "collapsed") == bytes_needed(model.replace(width=10**6), "collapsed")
    settings = {"heads": (2, 3), "widths": (3, 3, 3), "key_width": 1, "temperature": 0.5}
    inputs = np.ones((4, 3, 2)) * np.arange(1, 5)[:, None, None]
    sampled = ba.AttentionModel(inputs=inputs, labels=np.ones(4), **settings)
    more = bytes_needed(sampled, "collapsed", chains=3) - bytes_needed(sampled, "collapsed", chains=2)
    # All queries of the first layer and one of the last, path inputs, K; and the gradients of these.
    assert more == 8 * 2 * (4 * (2 * 3 * 3 + 3 * 3 + 6 * 2) + 4 * 4)


def test_memory_counts_labels_of_all_outputs_and_no_more_rows_than_are_looked_at():
    rng = np.random.default_rng(0)

    def needed(examples, features, outputs):
        inputs, labels = rng.normal(size=(examples, 2, features)), rng.normal(size=(examples, outputs))
        arch = ba.Architecture((2,), (4, 4), (1.0,) * 3, outputs=outputs)
        model = ba.Model(path_inputs=inputs, labels=labels, architecture=arch, temperature=1.0)
        return bytes_needed(model, "collapsed")

    # Four P m x P m matrices.
    assert needed(60, 300, 3) - needed(60, 300, 1) > 8 * 4 * ((3 * 60) ** 2 - 60**2)
    # Path inputs and features, however many examples.
    assert needed(40_000, 3, 1) - needed(20_000, 3, 1) == 8 * 2 * 20_000 * 2 * 3


def test_path_inputs_that_memory_cannot_hold():
    heads = [jnp.zeros((400, 3, 3))] * 5
    refused(lambda: attention.path_inputs(np.ones((2, 2, 3)), heads), "path inputs of 10240000000000 paths must fit")


def test_attention_is_made_when_it_is_asked_for(monkeypatch):
    made, honest = [], fixed_attention.matrices
    monkeypatch.setattr(fixed_attention, "matrices", lambda *arguments: made.append(1) or honest(*arguments))
    model = tiny_model()
    models.Path.of(model.replace(temperature=0.7, width=9))
    assert not made
    [matrix] = model.tokens.matrices
    assert matrix.shape == (6, 1, 5, 5)
    assert len(made) == 1


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"labls": Y}, "lists, got 'labls'; did you mean 'labels' or 'test_labels'?"),
        ({"labels": Y[:3]}, "labels must have shape (6,)"),
        ({"width": 0}, "widths[0] must be"),
        ({"architecture": ba.Architecture((3,), (5, 5), (1.0,) * 3)}, "path_inputs must have 3 paths"),
        ({"architecture": "wide"}, "architecture must be a bayesattn.Architecture"),
        ({"path_inputs": XI[:3]}, "labels must have shape (3,)"),
        ({"test_path_inputs": XI[:, :, :2]}, "test_path_inputs must have shape"),
        ({"test_path_inputs": XI, "test_labels": Y[:3]}, "test_labels must have shape (6,)"),
        ({"path_groups": {"x": (7,)}}, "path_groups['x'] must hold paths below 2"),
        ({"path_groups": {"none": []}}, "path_groups['none'] must hold at least one path, got none"),
        ({"head_names": [["a"]]}, "head_names must name"),
        ({"likelihood": "softmax"}, "likelihood must be a bayesattn.Likelihood, such as"),
        (CLASSES | {"test_path_inputs": XI, "test_labels": 0 * Y}, "test_labels must be +1 or -1"),
        (CLASSES | {"architecture": THREE, "labels": THIRDS}, "labels must be 1 at the class of"),
        ({"likelihood": ba.Poisson(), "labels": 1.5 + 0 * Y}, "labels must be counts, whole numbers of at least 0"),
        ({"tokens": models.Tokens(np.ones((6, 5, 3)), [np.full((6, 1, 5, 5), 0.2)], "last")}, "heads per layer"),
    ],
    ids=str,
)
def test_what_is_changed_is_checked_as_what_is_new(changes, expected):
    refused(lambda: ba.Model(**FIELDS).replace(**changes), expected)
