"""What a user hands over: arrays that others go on writing to, and forms that have one plain meaning."""

import copy
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow
import pytest

import bayesattn as ba
from bayesattn import attention, tasks
from bayesattn._util.checks import owned
from bayesattn.class_scores import class_accuracy
from bayesattn.classes import many_classes
from bayesattn.compressed import Compressed
from bayesattn.errors import BayesattnError
from bayesattn.gather import gather
from bayesattn.models import LatentModel, Tokens
from bayesattn.questions.exchangeable.finite import FiniteLatent
from tests.tensor import Tensor

ARCH = ba.Architecture((2,), (5, 5), (1.0, 1.0, 1.0))
INPUTS = np.random.default_rng(0).normal(size=(6, 2, 3))
LABELS = np.array([1.0, -1.0, 1.0, 1.0, -1.0, -1.0])


def model_of(labels=LABELS, path_inputs=INPUTS, architecture=ARCH, **more):
    return ba.Model(path_inputs=path_inputs, labels=labels, architecture=architecture, temperature=0.5, **more)


def held_by_a_file(values, file):
    np.save(file, values)
    return np.load(file, mmap_mode="r"), lambda: np.load(file, "r+").put(0, 7.0)


def held_by_another_view(values, _):
    base = values.copy()
    view = base[...]
    view.flags.writeable = False
    return view, lambda: base.put(0, 7.0)


def frozen_after_a_view(values, _):
    base = values.copy()
    earlier = base[...]
    base.flags.writeable = False
    return base, lambda: earlier.put(0, 7.0)


def held_by_jax(values, _):
    """JAX uses an array as it is, without a copy of its own, that begins at a multiple of 64 bytes."""
    buffer = np.zeros(values.nbytes + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    base = buffer[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    base[...] = values
    return jax.device_put(base), lambda: base.put(0, 7.0)


def held_by_a_bytearray(values, _):
    buffer = bytearray(values.tobytes())
    return np.frombuffer(buffer).reshape(values.shape), lambda: np.frombuffer(buffer).put(0, 7.0)


def unpickled(values, _):
    base = pickle.loads(pickle.dumps(np.concatenate([values.ravel(), np.ones(100_000)])))
    earlier, view = base[...], base[: values.size].reshape(values.shape)
    base.flags.writeable = view.flags.writeable = False
    return view, lambda: earlier.put(0, 7.0)


HOLDERS = (held_by_a_file, held_by_another_view, frozen_after_a_view, held_by_jax, held_by_a_bytearray, unpickled)


@pytest.mark.parametrize("hold", HOLDERS)
def test_a_model_stays_what_it_is_when_its_data_change(hold, tmp_path):
    flat = np.triu(np.column_stack([INPUTS.reshape(6, -1), LABELS]))
    arrays = (LABELS, INPUTS, INPUTS, flat)
    given = [hold(values, tmp_path / f"{number}.npy") for number, values in enumerate(arrays)]
    labels, inputs, test, triangle = (array for array, _ in given)
    model = model_of(labels, inputs, test_path_inputs=test)
    latent = LatentModel(features=test[:, 0], values=test[:, 1], query_features=test[:, 0], noise=1, prior=1)
    statistics = Compressed(triangle, 6, 2, 3)
    before = model.fingerprint, latent.fingerprint
    for _, change in given:
        change()
    assert np.asarray(labels)[0] == 7.0
    np.testing.assert_array_equal(model.labels, LABELS)
    np.testing.assert_array_equal(model.path_inputs, INPUTS)
    np.testing.assert_array_equal(model.test_path_inputs, INPUTS)
    np.testing.assert_array_equal(latent.query_features, INPUTS[:, 0])
    np.testing.assert_array_equal(statistics.triangle, flat)
    assert (model.fingerprint, latent.fingerprint) == before


def test_tokens_are_those_that_a_model_was_made_of():
    data = tasks.TokenDataset(
        inputs=np.random.default_rng(0).normal(size=(6, 4, 3)),
        labels=LABELS.copy(),
        test_inputs=np.ones((1, 4, 3)),
        test_labels=np.ones(1),
        weights=[np.ones((1, 3, 3)), (np.ones((1, 2, 3)), np.ones((1, 2, 3)))],
        head_names=(("a",), ("b",)),
        path_groups={"all": [0]},
        mask=np.array([[True] * 4] * 5 + [[True, True, False, False]]),
    )
    made = ba.Model.from_tokens(data, (4, 4, 4), (1.0,) * 4, 0.5)
    matrices = [np.array(matrix) for matrix in made.tokens.matrices]
    given = made.replace(tokens=Tokens(data.inputs, own := [matrix.copy() for matrix in matrices], "last", data.mask))
    inputs, mask = np.where(data.mask[..., None], data.inputs, 0.0), data.mask.copy()
    for array in (data.inputs, data.mask, data.weights[0], *data.weights[1], *own):
        array[...] = 0
    data.path_groups["all"].append(1)
    for model in (made, given):
        np.testing.assert_array_equal(model.tokens.inputs, inputs)
        np.testing.assert_array_equal(model.tokens.mask, mask)
        for matrix, expected in zip(model.tokens.matrices, matrices, strict=True):
            np.testing.assert_array_equal(matrix, expected)
    assert made.path_groups == {"all": (0,)}


def test_lists_and_tables_of_a_model_are_its_own():
    names, groups, task, heads = [["a", "b"]], {"first": [0]}, {"name": "arrays", "of": [1]}, [2]
    arch = ba.Architecture(heads, [5, 5], np.ones(3))
    model = model_of(head_names=names, path_groups=groups, task=task).replace(architecture=arch)
    names[0][0], heads[0] = "z", 3
    groups["first"].append(1)
    task["of"].append(2)
    assert model.path_names == ["a", "b"]
    assert model.path_groups == {"first": (0,)}
    assert model.task == {"name": "arrays", "of": [1]}
    assert model.architecture == ARCH


def arrays_of(thing):
    state = vars(thing)
    if state.get("dataset") is not None:
        yield from arrays_of(state["dataset"])
    if state.get("tokens") is not None:
        yield from arrays_of(state["tokens"])
        yield from state["tokens"].attention
    yield from (value for value in state.values() if isinstance(value, np.ndarray))


@pytest.mark.parametrize("copied", [lambda x: x, copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_arrays_handed_out_cannot_be_written_to(copied):
    tokens = Tokens(np.ones((6, 4, 3)), [np.full((6, 2, 4, 4), 0.25)], "last", np.ones((6, 4), bool))
    things = [
        model_of(test_path_inputs=INPUTS, test_labels=LABELS, tokens=tokens),
        LatentModel(features=INPUTS[:, 0].copy(), values=INPUTS[:, 1].copy(), noise=1.0, prior=1.0),
        gather((INPUTS, LABELS), ARCH),
        FiniteLatent(np.array([0.5, 0.5]), np.eye(2)),
    ]
    found = [[*arrays_of(copied(thing))] for thing in things]
    for array in (array for arrays in found for array in arrays):
        with pytest.raises(ValueError, match="read-only"):
            array.flat[0] = 7
        with pytest.raises(ValueError, match="cannot set WRITEABLE"):
            array.flags.writeable = True
    assert [len(arrays) for arrays in found] == [7, 2, 1, 2]


def test_arrays_that_are_owned_are_not_copied_again():
    own = model_of().labels
    assert owned(own) is own
    assert np.shares_memory(owned(own[1:]), own)
    assert model_of(own).labels is own
    assert not np.shares_memory(model_of(own.copy()).labels, own)


FORMS = [
    list,
    iter,
    pd.Series,
    jnp.asarray,
    Tensor,
    lambda values: values[:, None],
    lambda values: pd.DataFrame({"y": values}),
    lambda values: pd.Series(values, dtype="Float64", index=[f"row {i}" for i in range(len(values))]),
    lambda values: pyarrow.array(values),
    lambda values: dict(enumerate(values)).values(),
    lambda values: [Tensor(value) for value in values],
    lambda values: Tensor(values.astype(np.float32), "torch.bfloat16"),
]


@pytest.mark.parametrize("form", FORMS)
def test_labels_in_any_form_that_has_one_meaning(form):
    np.testing.assert_array_equal(model_of(form(LABELS)).labels, LABELS)
    gathered = gather([(Tensor(INPUTS), form(LABELS))], ARCH)
    np.testing.assert_array_equal(gathered.triangle, gather((INPUTS, LABELS), ARCH).triangle)


ODD_LABELS = [
    (LABELS[None], r"^labels must have shape \(6,\), got \(1, 6\)$"),
    (np.stack([LABELS] * 3, 1), r"got \(6, 3\): an architecture with outputs = 3 takes these$"),
    (set(LABELS), r"^labels must be an array of real numbers, got \{.*\}$"),
    (pd.Series([1.0, None] * 3, dtype="Float64"), r"^labels must be finite, got nan at index \(1,\)"),
]


@pytest.mark.parametrize(("labels", "message"), ODD_LABELS)
def test_labels_of_no_plain_meaning_are_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        model_of(labels)


@pytest.mark.parametrize("form", [list, iter, pd.Series, np.asarray, Tensor])
def test_an_architecture_takes_columns_and_arrays(form):
    arch = ba.Architecture(form((2, 2)), form((5, 5, 5)), form((1, 2, 1, 3)), form((0, 1)), np.int64(2))
    assert arch == ba.Architecture((2, 2), (5, 5, 5), (1.0, 2.0, 1.0, 3.0), (0.0, 1.0), 2)
    assert {type(number) for number in (*arch.heads, *arch.widths, arch.outputs)} == {int}
    assert {type(number) for number in (*arch.variances, *arch.skips)} == {float}


@pytest.mark.parametrize("heads", [{2: 2}, {2, 3}, np.ones((2, 2), int), 2])
def test_what_is_no_sequence_of_heads_is_named(heads):
    with pytest.raises(ValueError, match="heads must be a sequence of numbers"):
        ba.Architecture(heads, (5, 5, 5), (1.0,) * 4)


@pytest.mark.parametrize("form", [np.array, pd.Series, iter, lambda names: [pd.Index(heads) for heads in names]])
def test_names_and_groups_in_any_form(form):
    two = ba.Architecture((2, 2), (5, 5, 5), (1.0,) * 4)
    names = form([["a", "b"], ["c", "d"]])
    groups = {"first": np.array([0, 1]), "second": pd.Series([0, 1])}
    model = model_of(path_inputs=np.ones((6, 4, 2)), architecture=two, head_names=names, path_groups=groups)
    assert model.path_names == ["a -> c", "a -> d", "b -> c", "b -> d"]
    assert {type(name) for heads in model.head_names for name in heads} == {str}
    assert model.path_groups == {"first": (0, 1), "second": (0, 1)}
    assert two.row_names(None, pd.Series(["only"])) == two.path_names()


def test_whole_numbers_of_numpy_are_whole_numbers(tmp_path):
    whole = np.int64
    model = ba.load_model(
        "hidden_markov", width=whole(3), seed=whole(1), task={"examples": whole(8), "test_examples": np.int32(4)}
    )
    plain = ba.load_model("hidden_markov", width=3, seed=1, task={"examples": 8, "test_examples": 4})
    assert model.fingerprint == plain.fingerprint
    job = ba.samplers.Job(chains=whole(2), warmup=np.uint8(5), draws=jnp.int32(6), seed=np.array(1))
    assert job == ba.samplers.Job(chains=2, warmup=5, draws=6, seed=1)
    assert model.replace(width=whole(4)).architecture.widths == (4, 4, 4)
    steps = ba.samplers.Job(sampler="mala", options={"steps": whole(3), "step_size": np.array(0.5)}).options
    assert (type(steps["steps"]), type(steps["step_size"])) == (int, float)
    with pytest.raises(ValueError, match="draws must be a whole number of at least 1, got True"):
        ba.samplers.Job(chains=2, warmup=5, draws=True, seed=1)


KINDS = ["dog", "cat", "dog"]


CLASSES = [
    (KINDS, ("cat", "dog")),
    (np.array(KINDS), ("cat", "dog")),
    (np.array(KINDS, dtype=object)[:, None], ("cat", "dog")),
    (pd.Series(KINDS, dtype="string[pyarrow]", index=[5, 3, 1]), ("cat", "dog")),
    (pd.DataFrame({"kind": KINDS}), ("cat", "dog")),
    (pyarrow.chunked_array([KINDS]).dictionary_encode(), ("cat", "dog")),
    (iter(KINDS), ("cat", "dog")),
    (pd.Series(KINDS, dtype="category"), ("cat", "dog")),
    (pd.Categorical(KINDS, categories=["dog", "cat", "eel"]), ("dog", "cat", "eel")),
    (pd.DataFrame({"kind": pd.Categorical(KINDS, categories=["dog", "cat"])}), ("dog", "cat")),
    (pd.cut(pd.Series([9.0, 1.0, 9.0]), [0, 5, 10]), ("(0, 5]", "(5, 10]")),
    ([True, False, True], ("False", "True")),
    (pd.Series([7, 2, 7], dtype="Int64"), ("2", "7")),
    (np.array([7.0, 2.0, 7.0]), ("2", "7")),
    (jnp.array([7, 2, 7]), ("2", "7")),
    ([Tensor(7), Tensor(2), Tensor(7)], ("2", "7")),
]


@pytest.mark.parametrize(("classes", "names"), CLASSES)
def test_classes_in_any_form(classes, names):
    found = ba.one_hot(classes)
    assert found.names == names
    # Examples 0 and 2 are of one class: "dog", true, the larger number.
    of_first = names.index("dog") if "dog" in names else 1
    of_second = names.index("cat") if "cat" in names else 0
    np.testing.assert_array_equal(found.labels, np.eye(len(names))[[of_first, of_second, of_first]])


def test_names_of_classes_in_any_form():
    for form in (np.array, pd.Series, iter, pd.Index):
        found = ba.one_hot(pd.Categorical(KINDS), form(["dog", "cat"]))
        assert found.names == ("dog", "cat")
        np.testing.assert_array_equal(found.labels, np.eye(2)[[0, 1, 0]])
    assert ba.one_hot([True, False], names=[0, 1]).names == ("0", "1")
    with pytest.raises(ValueError, match=r"classes\[1\] must be one of \['a', 'b'\], got 'c'"):
        ba.one_hot(["a", "c"], names=["a", "b"])


NO_CLASSES = [
    ([0.5, 1.0], r"^classes must be whole numbers or strings, one for each example, got 0.5 at classes\[0\]$"),
    (["a", None], r"got None at classes\[1\]$"),
    (pd.Series([1, None], dtype="Int64"), r"got <NA> at classes\[1\]$"),
    (pd.Series(["a", None, "b"], dtype="category"), r"^classes\[1\] must be one of .*, got a missing value$"),
    (["a", 1], "and not both, got 'a' and 1$"),
    (np.eye(3), r"got float64 of shape \(3, 3\)$"),
    (pd.Series(pd.to_datetime(["2020-01-01", "2020-01-02"])), "one for each example, got datetime64"),
    ("ab", "one for each example, got 'ab'$"),
    ({"a"}, "one for each example, got {'a'}$"),
    (None, "one for each example, got None$"),
    (["a", "a"], r"^classes must be of two or more classes, all different, got \['a'\]; give names="),
]


@pytest.mark.parametrize(("classes", "message"), NO_CLASSES)
def test_what_are_no_classes_is_named(classes, message):
    with pytest.raises(ValueError, match=message):
        ba.one_hot(classes)


COUNTED = np.array([0.0, 1.0, 2.0, 1.0, 0.0, 2.0])


@pytest.mark.parametrize("labels", [COUNTED, COUNTED + 1, COUNTED * 7, np.array([0, 1, 2, 3, 4, 0])])
def test_numbers_of_classes_get_a_warning(labels):
    values = len(np.unique(labels))
    with pytest.warns(UserWarning, match=f"labels are .*bayesattn.one_hot.*outputs = {values}$"):
        model_of(labels)
    with pytest.warns(UserWarning, match=r"^labels of batches\[0\] are .*one_hot"):
        gather([(INPUTS, labels), (INPUTS, LABELS)], ARCH)
    model = model_of(test_path_inputs=INPUTS)
    with pytest.warns(UserWarning, match="^test_labels are .*one_hot"):
        model.replace(test_labels=labels)
    classes = ba.one_hot(labels)
    assert model_of(classes.labels, architecture=ba.Architecture((2,), (5, 5), (1.0,) * 3, outputs=values)) is not None


@pytest.mark.parametrize("labels", [COUNTED - 1, COUNTED / 2, np.arange(6.0), COUNTED + np.eye(6)[5] * 200, LABELS])
def test_values_of_a_function_get_no_warning(labels):
    model_of(labels)
    gather((INPUTS, labels), ARCH)


def test_labels_of_classes_are_asked_for_by_name():
    three = ba.Architecture((2,), (5, 5), (1.0,) * 3, outputs=3)
    message = r"^labels must have shape \(6, 3\), got \(6,\): bayesattn.one_hot\(labels\) makes such labels of classes$"
    for labels in (COUNTED, COUNTED[:, None]):
        with pytest.raises(ValueError, match=message):
            model_of(labels, architecture=three)
    with pytest.raises(ValueError, match=r"^labels must be \+1 or -1 to be classes, got 0; bayesattn.one_hot makes"):
        model_of(COUNTED, likelihood=ba.Categorical(0.5))


def test_labels_of_one_hot_are_taken_whole_with_their_names():
    """As labels of models and sequences; classes of other names are not those of the training labels."""
    labels, other = ba.one_hot(["cat", "dog", "cat", "dog"]), ba.one_hot(["cat", "cow", "cat", "cow"])
    inputs, shape = INPUTS[:4], {"heads": (2,), "widths": (3, 3), "outputs": 2, "temperature": 0.5}
    model = ba.Model(path_inputs=inputs, labels=labels, test_path_inputs=inputs, test_labels=labels, **shape)
    sequences = ba.AttentionModel(inputs=inputs, labels=labels, key_width=2, **shape)
    for array in (model.labels, model.test_labels, sequences.labels):
        np.testing.assert_array_equal(array, labels.labels)
    assert model.output_names == sequences.output_names == ("cat", "dog")
    assert class_accuracy(labels.labels, labels).accuracy == 1
    renamed = model.replace(test_path_inputs=None, test_labels=None, labels=other)
    assert renamed.output_names == ("cat", "cow")
    with pytest.raises(BayesattnError, match=r"^test_labels must be of classes cat, dog, got cat, cow: give one_h"):
        model.replace(test_labels=other)


def test_many_whole_numbers_in_a_row_are_said_to_be_taken_as_values():
    numbers = np.arange(90) % 30
    assert many_classes("labels", numbers).startswith("labels are 30 whole numbers in a row and are taken as values")
    inputs = np.ones((90, 2, 3)) + numbers[:, None, None]
    with pytest.warns(UserWarning, match=r"use bayesattn.one_hot\(labels\) and an architecture with outputs = 30"):
        model_of(numbers, inputs)
    for others in (numbers[:60], numbers + 5, 2 * numbers, np.arange(90) % 20, np.array([])):
        assert many_classes("labels", others) == ""


TOKENS, MATRIX = np.ones((5, 4, 3)), np.full((5, 2, 4, 4), 0.25)
MASKED = np.ma.masked_array(TOKENS[:1], TOKENS[:1] > np.arange(3))
CATS = np.array(["cat", "dog", "cat", "dog", "cat"])
OF_CLASSES = ": bayesattn.one_hot makes labels of classes"
OF_TOKENS = ": bayesattn.attention.path_inputs and paths_from_matrices make path inputs of token"
SETTINGS, ONES = {"architecture": ARCH, "temperature": 1.0}, np.ones(5)
SEQUENCES = {"heads": (1,), "widths": (2, 2), "key_width": 1, "temperature": 1.0}
MISTAKES = [
    # Strings as labels: of a model, in a column, in batches, of sequences.
    (lambda: ba.Model(path_inputs=TOKENS[:, :2], labels=CATS, **SETTINGS), f"one of str96 of shape (5,){OF_CLASSES}"),
    (lambda: ba.Dataset(path_inputs=TOKENS, labels=CATS.astype(object)), f"one of object of shape (5,){OF_CLASSES}"),
    (lambda: ba.Dataset.gather([(TOKENS[:, :2], CATS)], ARCH), "labels of batches[0] must be an array of real numbers"),
    (lambda: ba.AttentionModel(inputs=TOKENS, labels=CATS, **SEQUENCES), OF_CLASSES),
    # Masked entries, which NumPy would take as they are.
    (lambda: ba.Dataset(path_inputs=MASKED, labels=ONES[:1]), "got one with masked entries: fill or rem"),
    (lambda: ba.Dataset(path_inputs=[MASKED[0]], labels=ONES[:1]), "got one with masked entries: fill or rem"),
    # Tokens, or features, as path inputs.
    (lambda: ba.Model(path_inputs=TOKENS, labels=ONES, **SETTINGS), f"got shape (5, 4, 3){OF_TOKENS}"),
    (lambda: ba.Dataset(path_inputs=TOKENS[:, 0], labels=ONES), f"(examples, paths, features), got (5, 3){OF_TOKENS}"),
    # One of what there should be a list of.
    (lambda: attention.paths_from_matrices(TOKENS, MATRIX), "got one array of 4 axes: for one layer, give [matri"),
    (lambda: attention.path_inputs(TOKENS, np.ones((2, 3, 3))), "got one array of 3 axes: for one layer, give [weig"),
    (lambda: ba.Architecture((2,), width=3), "widths= must be given, a sequence of numbers with an entry for each"),
    (lambda: ba.Architecture((2,), (3, 3), variance=1.0), "variances= must be given, a sequence"),
]


@pytest.mark.parametrize(("call", "message"), MISTAKES)
def test_frequent_mistakes_are_told_what_is_meant(call, message):
    with pytest.raises(BayesattnError, match=re.escape(message)) as caught:
        call()
    assert len(str(caught.value).splitlines()) == 1
