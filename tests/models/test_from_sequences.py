"""Models of sequences: `Model.from_sequences` finds classes, makes paths and keeps a test part."""

import numpy as np
import pytest

import bayesattn as ba

EXAMPLES = 10
rng = np.random.default_rng(0)
X = rng.normal(size=(EXAMPLES, 3, 2))
ONE, TWO = (rng.dirichlet(np.ones(3), size=(EXAMPLES, heads, 3)) for heads in (2, 1))
Y = rng.normal(size=EXAMPLES)
THIRDS = np.arange(EXAMPLES) % 3
MASK = np.arange(3) < np.array([2, 3] * 5)[:, None]
PADDED = ONE * MASK[:, None, None] * MASK[:, None, :, None]
PADDED = PADDED / np.where(MASK[:, None, :, None], PADDED.sum(-1, keepdims=True), 1)


def made(**changes):
    return ba.Model.from_sequences(**{"x": X, "matrices": [ONE, TWO], "y": Y, "widths": 4} | changes)


def test_paths_and_labels_are_those_of_the_same_sequences():
    model = made(widths=(4, 5, 6), variances=(1.0, 2.0, 1.0, 1.0), temperature=0.3, seed=1)
    assert model.architecture == ba.Architecture((2, 1), (4, 5, 6), (1.0, 2.0, 1.0, 1.0))
    assert model.temperature == 0.3
    found = np.concatenate([model.labels, model.test_labels])
    places = [int(np.flatnonzero(label == Y)[0]) for label in found]
    assert sorted(places) == [*range(EXAMPLES)]
    paths = np.asarray(ba.attention.paths_from_matrices(X, [ONE, TWO]))
    np.testing.assert_allclose(np.concatenate([model.path_inputs, model.test_path_inputs]), paths[places])
    np.testing.assert_array_equal(model.tokens.inputs, X[places[:8]])
    np.testing.assert_allclose(model.tokens.matrices[0], ONE[places[:8]])


def test_the_split_is_the_seeds():
    assert made().fingerprint == made(seed=0).fingerprint != made(seed=1).fingerprint
    assert made(test_share=0).test_path_inputs is None
    assert made(test_share=0.5).examples == 5
    chosen = made(test_share=[7, 2])
    np.testing.assert_array_equal(chosen.test_labels, Y[[2, 7]])
    np.testing.assert_array_equal(chosen.labels, np.delete(Y, [2, 7]))


def test_masks_skips_and_one_layer_without_a_list():
    model = made(matrices=PADDED, mask=MASK, skips=(1.0,), readout="mean", test_share=0, head_names=[["a", "b"]])
    expected = ba.attention.paths_from_matrices(X, [PADDED], "mean", MASK, [True])
    np.testing.assert_allclose(model.path_inputs, expected, atol=1e-12)
    assert model.head_names == (("a", "b"),)
    np.testing.assert_array_equal(model.tokens.mask, MASK)
    assert "readout      the mean over tokens" in repr(model)
    assert "readout      the last token" in repr(made())


SIGNS = np.where(THIRDS > 0, 1, -1)
ANSWERS = {
    "numbers": (Y, None, Y),
    "column": (Y[:, None], None, Y),
    "columns": (np.stack([Y, Y + 1], 1), None, np.stack([Y, Y + 1], 1)),
    "signs": (SIGNS, None, SIGNS),
    "two strings": (np.where(THIRDS > 0, "yes", "no"), ("no", "yes"), SIGNS),
    "truth values": ((THIRDS > 0).tolist(), ("False", "True"), SIGNS),
    "zero and one": ((THIRDS > 0).astype(int), ("0", "1"), SIGNS),
    "three whole numbers": (THIRDS, ("0", "1", "2"), np.eye(3)[THIRDS]),
    "three of two signs": (THIRDS - 1, ("-1", "0", "1"), np.eye(3)[THIRDS]),
    "two beside -1": (np.where(THIRDS > 0, 2, -1), ("-1", "2"), SIGNS),
    "three large": (100 * THIRDS + 1, ("1", "101", "201"), np.eye(3)[THIRDS]),
    "objects": (np.array([*map(float, Y)], object), None, Y),
    "different objects": (np.array([*range(EXAMPLES)], object), None, np.arange(EXAMPLES)),
    "three strings": (np.array(["a", "b", "c"])[THIRDS], ("a", "b", "c"), np.eye(3)[THIRDS]),
    "one-hot": (ba.one_hot(THIRDS), ("0", "1", "2"), np.eye(3)[THIRDS]),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_classes_are_found(kind):
    answers, names, labels = ANSWERS[kind]
    model = made(y=answers, test_share=0)
    assert model.output_names == names
    np.testing.assert_array_equal(model.labels, labels)


def test_counts_are_no_classes():
    model = made(y=THIRDS, likelihood=ba.Poisson(), test_share=0)
    assert model.output_names is None
    np.testing.assert_array_equal(model.labels, THIRDS)


SHARES = "test_share must be a share, or a list of different whole numbers from 0 to 9"
SWAPPED = "got a row at .* off by .*; columns do: the axes of queries and keys are swapped"
REFUSED = [
    ({"y": Y[:5]}, "y must have an answer for each of 10 sequences, got 5"),
    ({"y": None}, "y must be whole numbers or strings, one for each example, got None"),
    ({"y": ["a"] * EXAMPLES}, r"y must be of two or more classes, all different, got \['a'\]$"),
    ({"y": np.full(EXAMPLES, np.nan)}, r"y must be finite, got nan at index \(0,\)"),
    ({"x": np.swapaxes(X, 1, 2)}, r"x, of shape .*, got \(10, 2, 3\) and \(10, 2, 3, 3\)"),
    ({"matrices": ONE[0]}, "matrices must be a list of one array per layer"),
    ({"x": X[0]}, "x must have shape"),
    ({"readout": "all"}, "readout must be one of 'last', 'first', 'mean', got 'all'"),
    ({"test_share": 1}, "test_share must be at least 0 and below 1, got 1"),
    ({"test_share": 0.99}, "test_share must leave sequences for training, got 0.99 of 10"),
    ({"test_share": [1, 1]}, rf"{SHARES}.*, got \[1, 1\]"),
    ({"test_share": [10]}, SHARES),
    ({"test_share": [True, False]}, SHARES),
    ({"test_share": range(10)}, "that leave some for training"),
    ({"matrices": np.swapaxes(TWO, 2, 3)}, SWAPPED),
    ({"matrices": np.swapaxes(PADDED, 2, 3), "mask": MASK}, SWAPPED),
    (
        {"matrices": TWO * (np.arange(3) < 2)[:, None]},
        "got a row at .* off by 1; rows of zeros are padding, which mask= tells",
    ),
    ({"widths": (4, 4)}, "widths"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        made(**changes)
