import jax
import numpy as np
import pytest

import bayesattn as ba
from tests.conftest import relative_error


def test_path_inputs_match_the_reference(layers):
    normalisation = np.sqrt(layers.arch.variances[0] / (layers.path_inputs.shape[2] * layers.arch.paths))
    reference = layers.stored["path_inputs"].transpose(0, 2, 1)
    assert relative_error(layers.path_inputs * normalisation, reference) < 1e-12


def test_given_matrices_give_the_same_paths(layers):
    matrices = ba.attention.matrices(layers.inputs, layers.weights)
    paths = ba.attention.paths_from_matrices(layers.inputs, matrices, readout=layers.readout)
    assert relative_error(paths, layers.path_inputs) < 1e-13


def test_query_key_heads_equal_their_bilinear_form(two_layers):
    rng = np.random.default_rng(0)
    features, key_features = two_layers.inputs.shape[2], 7
    pairs = [tuple(rng.normal(size=(2, heads, key_features, features))) for heads in (2, 3)]
    bilinear = [np.einsum("hgi,hgj->hij", key, query) / np.sqrt(key_features) for query, key in pairs]
    assert (
        relative_error(
            ba.attention.path_inputs(two_layers.inputs, pairs), ba.attention.path_inputs(two_layers.inputs, bilinear)
        )
        < 1e-12
    )


def test_hardmax_is_the_limit_of_large_logits(two_layers):
    hard = ba.attention.path_inputs(two_layers.inputs, two_layers.weights, nonlinearity="hardmax")
    large = [1e6 * heads for heads in two_layers.weights]
    assert relative_error(ba.attention.path_inputs(two_layers.inputs, large), hard) < 1e-12


def test_hardmax_shares_ties():
    inputs = np.arange(12.0).reshape(1, 4, 3)
    tied = ba.attention.path_inputs(inputs, [np.zeros((1, 3, 3))], nonlinearity="hardmax")
    np.testing.assert_allclose(tied[0, 0], inputs[0].mean(0))


def test_no_array_of_all_examples_and_tokens_squared_is_held():
    examples, tokens, features = 4000, 64, 8
    inputs = np.random.default_rng(1).normal(size=(examples, tokens, features))
    weights = tuple(np.zeros((2, features, features)) for _ in range(2))
    compiled = (
        jax.jit(ba.attention.traced_path_inputs.__wrapped__, static_argnames=("readout", "nonlinearity"))
        .lower(inputs, weights, "last", "softmax")
        .compile()
    )
    one_layer_of_all_examples = 8 * examples * 2 * tokens**2
    assert compiled.memory_analysis().temp_size_in_bytes < one_layer_of_all_examples


@pytest.fixture(scope="module")
def padded():
    """Sequences of five to one tokens, their padding on both sides of them, and a causal layer of heads among others."""
    rng = np.random.default_rng(0)
    mask = np.array(
        [[True] * 5, [False, True, True, True, False], [False] * 4 + [True], [True, True, False, False, False]]
    )
    inputs = np.where(mask[..., None], rng.normal(size=(4, 5, 3)), 1e3)
    return inputs, mask, [rng.normal(size=(2, 3, 3)), tuple(rng.normal(size=(2, 3, 4, 3)))]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("readout", ["last", "first", "mean", "all"])
def test_padded_sequences_are_those_by_themselves(padded, readout, causal):
    inputs, mask, weights = padded
    options = {"readout": readout, "causal": causal, "skips": (True, False)}
    together = ba.attention.path_inputs(inputs, weights, mask=mask.astype(int), **options)
    alone = [ba.attention.path_inputs(x[real][None], weights, **options) for x, real in zip(inputs, mask, strict=True)]
    assert together.shape == (mask.sum() if readout == "all" else 4, 3 * 3, 3)
    assert relative_error(together, np.concatenate(alone)) < 1e-12
    matrices = ba.attention.matrices(inputs, weights, causal=causal, mask=mask)
    given = ba.attention.paths_from_matrices(inputs, matrices, readout, mask, (True, False))
    assert relative_error(given, together) < 1e-12


@pytest.mark.parametrize("nonlinearity", ["softmax", "hardmax"])
def test_a_causal_network_does_not_see_what_comes_after(padded, nonlinearity):
    """Each of its positions is the last of a shorter sequence."""
    inputs, _, weights = padded
    options = {"nonlinearity": nonlinearity, "causal": True, "skips": (False, True)}
    at_each = ba.attention.path_inputs(inputs[:1], weights, "all", **options)
    for end in range(1, 6):
        shorter = ba.attention.path_inputs(inputs[:1, :end], weights, "last", **options)
        assert relative_error(at_each[end - 1], shorter[0]) < 1e-12


def test_a_skip_is_a_head_that_attends_to_itself(layers):
    identity = np.broadcast_to(np.eye(layers.inputs.shape[1]), (len(layers.inputs), 1, *[layers.inputs.shape[1]] * 2))
    matrices = [np.asarray(matrix) for matrix in ba.attention.matrices(layers.inputs, layers.weights)]
    with_heads = [np.concatenate([identity, matrix], axis=1) for matrix in matrices]
    expected = ba.attention.paths_from_matrices(layers.inputs, with_heads)
    skips = (True,) * len(matrices)
    assert relative_error(ba.attention.path_inputs(layers.inputs, layers.weights, skips=skips), expected) < 1e-12


GOOD = np.ones((2, 3, 4))
PADDED = np.array([[True, True, False], [True, True, True]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ba.attention.path_inputs(np.ones((3, 4)), [np.ones((1, 4, 4))]), r"inputs must have shape \(examples"),
        (lambda: ba.attention.path_inputs(GOOD, []), "weights must hold the heads of at least one layer"),
        (lambda: ba.attention.path_inputs(GOOD, [np.ones((1, 4, 5))]), r"weights\[0\] must have shape \(heads, 4, 4\)"),
        (lambda: ba.attention.path_inputs(GOOD, [(np.ones((1, 2, 4)),)]), r"a pair \(Q, K\)"),
        (lambda: ba.attention.path_inputs(GOOD * np.nan, [np.ones((1, 4, 4))]), r"inputs must be finite, got nan at"),
        (lambda: ba.attention.path_inputs(GOOD, [np.ones((1, 4, 4))], readout="middle"), "readout must be one of"),
        (lambda: ba.attention.path_inputs(GOOD, [np.ones((1, 4, 4))], nonlinearity="max"), "nonlinearity must be"),
        (lambda: ba.attention.paths_from_matrices(GOOD, [np.ones((2, 1, 3, 3))]), "rows .* that sum to 1"),
        (lambda: ba.attention.paths_from_matrices(GOOD, [np.ones((2, 1, 3, 2))]), r"matrices\[0\] must have shape"),
        (lambda: ba.attention.paths_from_matrices("abc", [GOOD]), "inputs must be an array of real numbers"),
        (lambda: ba.attention.path_inputs(GOOD, [np.ones((1, 4, 4))], mask=np.ones((2, 3))), "mask must hold True"),
        (lambda: ba.attention.path_inputs(GOOD, [np.ones((1, 4, 4))], mask=PADDED[:, :2]), r"of shape \(2, 3\), got"),
        (
            lambda: ba.attention.path_inputs(GOOD, [np.ones((1, 4, 4))], mask=PADDED & False),
            "padding alone in example 0",
        ),
        (
            lambda: ba.attention.path_inputs(GOOD, [np.ones((1, 4, 4))], skips=(0.5,)),
            r"skips\[0\] must be true or false, got 0.5",
        ),
        (lambda: ba.attention.path_inputs(GOOD, [np.ones((1, 4, 4))], skips=[True] * 2), "each of 1 layers, got"),
        (
            lambda: ba.attention.path_inputs(GOOD, [np.ones((1, 4, 4))], causal="no"),
            "causal must be true or false, got 'no'",
        ),
        (
            lambda: ba.attention.paths_from_matrices(GOOD, [np.full((2, 1, 3, 3), 1 / 3)], mask=PADDED),
            r"matrices\[0\] must not attend to padding, got a weight of 0.33",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
