import jax
import ml_dtypes
import numpy as np
import pytest

import bayesattn as ba
from bayesattn import fixed_attention, models
from tests.conftest import relative_error
from tests.tensor import Tensor


def test_path_inputs_match_the_reference(layers):
    normalisation = np.sqrt(layers.arch.variances[0] / (layers.path_inputs.shape[2] * layers.arch.paths))
    reference = layers.stored["path_inputs"].transpose(0, 2, 1)
    assert relative_error(layers.path_inputs * normalisation, reference) < 1e-12


def test_query_key_heads_equal_their_bilinear_form(two_layers):
    rng = np.random.default_rng(0)
    features, key_features = two_layers.inputs.shape[2], 7
    pairs = [tuple(rng.normal(size=(2, heads, key_features, features))) for heads in (2, 3)]
    bilinear = [np.einsum("hgi,hgj->hij", key, query) / np.sqrt(key_features) for query, key in pairs]
    assert relative_error(*(ba.attention.path_inputs(two_layers.inputs, heads) for heads in (pairs, bilinear))) < 1e-12


def test_hardmax_is_the_limit_of_large_logits(two_layers):
    hard = ba.attention.path_inputs(two_layers.inputs, two_layers.weights, nonlinearity="hardmax")
    large = [1e6 * heads for heads in two_layers.weights]
    assert relative_error(ba.attention.path_inputs(two_layers.inputs, large), hard) < 1e-12


def test_equal_tokens_share_in_hardmax_whatever_their_places_round():
    """Keys of one token differ in the last bits at different places of a matrix product."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        inputs = np.broadcast_to(rng.normal(size=33), (2, 5, 33)).copy()
        inputs[:, 1] = rng.normal(size=33)
        heads = [tuple(rng.normal(size=(2, 3, 4, 33)))]
        matrices = ba.attention.matrices(inputs, heads, nonlinearity="hardmax")
        rows = np.asarray(matrices[0]).reshape(-1, 5)
        assert {*map(tuple, rows)} <= {(0, 1, 0, 0, 0), (0.25, 0, 0.25, 0.25, 0.25)}
        found = ba.attention.path_inputs(inputs, heads, "all", nonlinearity="hardmax")
        assert relative_error(found, ba.attention.paths_from_matrices(inputs, matrices, "all")) < 1e-12


def test_no_array_of_all_examples_and_tokens_squared_is_held():
    examples, tokens, features = 4000, 64, 8
    inputs = np.random.default_rng(1).normal(size=(examples, tokens, features))
    weights = tuple(np.zeros((2, features, features)) for _ in range(2))
    traced = fixed_attention.traced_path_inputs.__wrapped__
    lowered = jax.jit(traced, static_argnames=("readout", "nonlinearity")).lower(inputs, weights, "last", "softmax")
    one_layer_of_all_examples = 8 * examples * 2 * tokens**2
    assert lowered.compile().memory_analysis().temp_size_in_bytes < one_layer_of_all_examples


@pytest.fixture(scope="module")
def padded():
    """Sequences of five to one tokens, their padding on both sides of them, and a causal layer of heads among others."""
    rng = np.random.default_rng(0)
    mask = np.array(
        [[True] * 5, [False, True, True, True, False], [False] * 4 + [True], [True, True, False, False, False]]
    )
    inputs = np.where(mask[..., None], rng.normal(size=(4, 5, 3)), 1e3)
    weights = [rng.normal(size=(2, 3, 3)), tuple(rng.normal(size=(2, 3, 4, 3)))]
    return inputs, mask, weights, [np.array(matrix) for matrix in ba.attention.matrices(inputs, weights, mask=mask)]


@pytest.mark.parametrize(
    ("readout", "causal"),
    [("last", True), ("last", False), ("first", False), ("mean", True), ("all", False), ("all", True)],
)
def test_padded_sequences_are_those_by_themselves(padded, readout, causal):
    inputs, mask, weights, _ = padded
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
    inputs, _, weights, _ = padded
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


@pytest.mark.parametrize("lost", [np.nan, np.inf])
@pytest.mark.parametrize("readout", ["last", "mean", "all"])
def test_what_stands_at_padding_is_of_no_account(padded, readout, lost):
    """Patterns of a transformer have NaN at queries that may attend to nothing, and inputs there may be anything."""
    inputs, mask, weights, matrices = padded
    expected = ba.attention.paths_from_matrices(inputs, matrices, readout, mask)
    spoiled = [np.where(mask[:, None, :, None], matrix, lost) for matrix in matrices]
    beside = np.where(mask[..., None], inputs, lost)
    np.testing.assert_array_equal(ba.attention.paths_from_matrices(beside, spoiled, readout, mask), expected)
    assert relative_error(ba.attention.path_inputs(beside, weights, readout, mask=mask), expected) < 1e-12
    for real, padding in zip(ba.attention.matrices(beside, weights, mask=mask), matrices, strict=True):
        np.testing.assert_array_equal(np.asarray(real)[0, :, :2], padding[0, :, :2])
    one_token = np.array(spoiled[0])
    one_token[0, 1, 3, 2] = lost  # The first sequence has no padding.
    with pytest.raises(ValueError, match=rf"matrices\[0\] must be finite, got {lost} at index \(0, 1, 3, 2\)"):
        ba.attention.paths_from_matrices(inputs, [one_token, spoiled[1]], readout, mask)


def test_tokens_of_a_model_take_what_stands_at_padding(padded):
    inputs, mask, _, matrices = padded
    spoiled = [np.where(mask[:, None, :, None], matrix, np.nan) for matrix in matrices]
    tokens = models.Tokens(np.where(mask[..., None], inputs, np.nan), spoiled, "last", mask)
    assert all(np.isfinite(array).all() for array in (tokens.inputs, *tokens.matrices))


@pytest.mark.parametrize(("dtype", "least", "most"), [(np.float16, 1e-5, 2**-11), (ml_dtypes.bfloat16, 2**-11, 2**-8)])
def test_rows_in_half_precision_are_divided_by_their_sums_on_request(padded, dtype, least, most):
    inputs, mask, _, matrices = padded
    rounded = [matrix.astype(dtype) for matrix in matrices]
    sums = [np.where(mask[:, None], matrix.astype(float).sum(-1), 1.0) for matrix in rounded]
    off = max(np.abs(total - 1).max() for total in sums)
    assert least < off < most
    with pytest.raises(
        ValueError, match=r"sum to 1, got a row at .* off by .*; renormalise=\S+ divides rows"
    ) as raised:
        ba.attention.paths_from_matrices(inputs, rounded, mask=mask)
    named = float(str(raised.value).partition("renormalise=")[2].split()[0])
    with pytest.warns(UserWarning, match=f"divided by their sums, which were off 1 by up to {off:.2g}, in layer [12]$"):
        found = ba.attention.paths_from_matrices(inputs, rounded, mask=mask, renormalise=max(named, off))
    by_hand = [matrix.astype(float) / total[..., None] for matrix, total in zip(rounded, sums, strict=True)]
    assert relative_error(found, ba.attention.paths_from_matrices(inputs, by_hand, mask=mask)) < 1e-12
    with pytest.raises(ValueError, match=f"got a row at .* off by .*, more than renormalise, {off / 10:g}$"):
        ba.attention.paths_from_matrices(inputs, rounded, mask=mask, renormalise=off / 10)


def test_renormalising_leaves_rows_that_sum_to_1(padded):
    inputs, mask, _, matrices = padded
    given = ba.attention.paths_from_matrices(inputs, matrices, mask=mask, renormalise=0.0)
    assert relative_error(given, ba.attention.paths_from_matrices(inputs, matrices, mask=mask)) < 1e-12


def test_tensors_and_iterators_are_taken(padded):
    inputs, mask, weights, matrices = padded
    expected = ba.attention.paths_from_matrices(inputs, matrices, mask=mask)
    skips = iter([False, False])
    found = ba.attention.paths_from_matrices(Tensor(inputs), map(Tensor, matrices), mask=Tensor(mask), skips=skips)
    np.testing.assert_array_equal(found, expected)
    pairs = [Tensor(weights[0]), tuple(map(Tensor, weights[1]))]
    found = ba.attention.path_inputs(Tensor(inputs), iter(pairs), mask=Tensor(mask.astype(int)))
    np.testing.assert_array_equal(found, ba.attention.path_inputs(inputs, weights, mask=mask))


GOOD, HEADS, THIRDS = np.ones((2, 3, 4)), [np.ones((1, 4, 4))], [np.full((2, 1, 3, 3), 1 / 3)]
PADDED = np.array([[True, True, False], [True, True, True]])
BAD_PATHS = [
    ({"inputs": np.ones((3, 4))}, r"inputs must have shape \(examples"),
    ({"inputs": GOOD * np.nan}, r"inputs must be finite, got nan at"),
    ({"weights": []}, "weights must hold the heads of at least one layer"),
    ({"weights": [np.ones((1, 4, 5))]}, r"weights\[0\] must have shape \(heads, 4, 4\)"),
    ({"weights": [(np.ones((1, 2, 4)),)]}, r"a pair \(Q, K\)"),
    ({"readout": "middle"}, "readout must be one of"),
    ({"nonlinearity": "max"}, "nonlinearity must be"),
    ({"mask": np.ones((2, 3))}, "mask must hold True"),
    ({"mask": PADDED[:, :2]}, r"of shape \(2, 3\), got"),
    ({"mask": PADDED & False}, "padding alone in example 0"),
    ({"skips": (0.5,)}, r"skips\[0\] must be true or false, got 0.5"),
    ({"skips": [True] * 2}, "each of 1 layers, got"),
    ({"causal": "no"}, "causal must be true or false, got 'no'"),
]
BAD_MATRICES = [
    ({"matrices": [-np.ones((2, 1, 3, 3))]}, "off by 4; these look like logits, whose softmax .* is attention"),
    ({"matrices": [np.ones((2, 1, 3, 3))]}, r"rows .* that sum to 1, got a row at index \(0, 0, 0\) off by 2$"),
    ({"matrices": [np.ones((2, 1, 3, 2))]}, r"matrices\[0\] must have shape"),
    ({"inputs": "abc", "matrices": [GOOD]}, "inputs must be an array of real numbers"),
    ({"mask": PADDED}, r"matrices\[0\] must not attend to padding, got a weight of 0.33"),
    ({"renormalise": 1.0}, "^renormalise must be a number of at least 0 and below 1, got 1$"),
    ({"renormalise": True}, "^renormalise must be a number of at least 0 and below 1, got True"),
]


@pytest.mark.parametrize(("change", "message"), BAD_PATHS)
def test_bad_heads_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        ba.attention.path_inputs(**{"inputs": GOOD, "weights": HEADS} | change)


@pytest.mark.parametrize(("change", "message"), BAD_MATRICES)
def test_bad_matrices_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        ba.attention.paths_from_matrices(**{"inputs": GOOD, "matrices": THIRDS} | change)
