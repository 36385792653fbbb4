"""Fixed attention as arrays: matrices from queries and keys, and path inputs from matrices (THEORY sections 1 and 2).

The attention that a path pays to each token is accumulated backwards from the readout token, layer by layer. So the
largest array in memory is one layer's attention matrices for a batch of examples, never (examples, paths, tokens, tokens).
"""

import math
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayesattn._util.checks import (
    Checked,
    entries,
    finite,
    finite_array,
    number,
    one_of,
    readable,
    real_array,
    require_memory,
    shown,
    truth,
)
from bayesattn._util.settings import with_own_settings
from bayesattn.errors import BayesattnError

READOUTS = ("last", "first", "mean")
EVERY_POSITION = "all"
"""Readout at every position: each position becomes an example."""
NONLINEARITIES = ("softmax", "hardmax")
BATCH_BYTES = 2**26
"""Approximate memory of the attention matrices that are formed at a time; it sets the number of examples in a batch."""
NOT_A_SHARE = 0.1
"""Distance from [0, 1] at which an entry of attention looks like a logit."""
ROW_TOLERANCE = 1e-5
"""Largest deviation of the sums of rows from 1, and of weights on padding from 0."""
TIE_ROUNDING = 4.0
"""Logits of hardmax are equal if they differ by less than this multiple of the rounding of a sum over the features."""
HALF_PRECISION_DEVIATION = 0.02
"""Deviation of a row's sum from 1 that half precision explains.

Weights rounded to bfloat16, with 8 significant bits, sum to 1 within 2^-8 = 0.004; a softmax in bfloat16 adds a
few times that.
"""
LayerWeights = Float[Array, "head feature feature"]
QueryKeyWeights = tuple[Float[Array, "head key_feature feature"], Float[Array, "head key_feature feature"]]


@with_own_settings
def path_inputs(
    inputs: Checked,
    weights: Checked,
    readout: str = "last",
    nonlinearity: str = "softmax",
    causal: bool = False,
    mask: Checked = None,
    skips: Checked = None,
) -> Float[Array, "example path feature"]:
    """Path inputs xi of an attention network (THEORY section 2), without any normalisation.

    Uniform attention over two tokens, the second of which is padding:

    >>> path_inputs([[[1.0], [3.0]]], [[[[0.0]]]], mask=[[True, False]]).tolist()
    [[[1.0]]]

    Args:
        inputs: token sequences, shape (P, T, N_0).
        weights: one entry per layer, first layer first: either bilinear heads W of shape (H_l, N_0, N_0), with logits
            x_key^T W x_query, or a pair (Q, K) of query and key projections, each of shape (H_l, G, N_0), with logits
            (K x_key).(Q x_query) / sqrt(G).
        readout: the token that is read out: "last", "first", or the "mean" over tokens; or "all", which makes each
            position an example. Examples from one sequence then depend on each other, and the posterior does not
            correct for this dependence.
        nonlinearity: "softmax" over keys, or "hardmax", its limit of infinite logits (ties share equally).
        causal: whether tokens attend to no later tokens.
        mask: shape (P, T), True (or 1) for tokens and False (or 0) for padding. No token attends to padding, no readout
            counts it, and its inputs may be NaN; "last" and "first" are the last and first token that is not padding.
        skips: for each layer, whether it has a skip connection, which is attention of a token to itself, listed
            before the heads.

    Returns:
        Array of shape (P, Pi, N_0), paths in C order with the first layer's head slowest. With readout "all", P counts
        the tokens of all sequences, one sequence after the other, without padding.

    Raises:
        ValueError: wrong shapes, entries that are not finite, an unknown readout or nonlinearity, a sequence of
            padding alone.
    """
    one_of("nonlinearity", nonlinearity, NONLINEARITIES)
    one_of("readout", readout, (*READOUTS, EVERY_POSITION))
    truth("causal", causal)
    inputs, mask = checked_tokens("inputs", inputs, mask)
    weights = jax.tree.map(jnp.asarray, checked_heads(weights, inputs.shape[2]))
    skips = checked_skips(skips, len(weights))
    paths = math.prod(_heads(layer) + skip for layer, skip in zip(weights, skips, strict=True))
    examples = len(inputs) * (inputs.shape[1] if readout == EVERY_POSITION else 1)
    require_memory(f"path inputs of {paths} paths", 8 * examples * paths * inputs.shape[2], "use fewer heads")
    xi = traced_path_inputs(jnp.asarray(inputs), weights, readout, nonlinearity, causal, mask, skips)
    return xi if readout != EVERY_POSITION else _examples_by_position(xi, inputs.shape[1], mask)


@with_own_settings
def matrices(
    inputs: Checked, weights: Checked, nonlinearity: str = "softmax", causal: bool = False, mask: Checked = None
) -> list[Float[Array, "example head query key"]]:
    """Attention matrices of each layer, shape (P, H_l, T, T); rows sum to 1. Arguments as for `path_inputs`.

    Padding also attends to itself, so that its rows sum to 1 too.
    """
    one_of("nonlinearity", nonlinearity, NONLINEARITIES)
    inputs, mask = checked_tokens("inputs", inputs, mask)
    weights = jax.tree.map(jnp.asarray, checked_heads(weights, inputs.shape[2]))
    allowed = allowed_keys(inputs.shape[1], truth("causal", causal), mask)
    needed = 8 * inputs.shape[0] * inputs.shape[1] ** 2 * sum(map(_heads, weights))
    require_memory("attention matrices", needed, "use fewer examples or tokens")
    return [attention_matrices(jnp.asarray(inputs), layer, nonlinearity, allowed) for layer in weights]


@with_own_settings
def paths_from_matrices(
    inputs: Checked,
    matrices: Checked,
    readout: str = "last",
    mask: Checked = None,
    skips: Checked = None,
    *,
    renormalise: Checked = None,
) -> Float[Array, "example path feature"]:
    """Path inputs xi from given attention matrices, for any attention that is a fixed function of the input.

    One head with uniform attention, read out at the last of two tokens:

    >>> paths_from_matrices([[[1.0], [3.0]]], [[[[[0.5, 0.5], [0.5, 0.5]]]]]).tolist()
    [[[2.0]]]

    Args:
        inputs: token sequences, shape (P, T, N_0).
        matrices: per layer, first layer first: attention of shape (P, H_l, T_query, T_key) whose rows sum to 1.
        readout: "last", "first", "mean" or "all", as for `path_inputs`.
        mask: shape (P, T), True for tokens and False for padding. "last", "first" and "mean" refer to tokens, and
            inputs and rows (queries) of padding may be NaN.
        skips: for each layer, whether it has a skip connection, which is listed before its heads and is not part
            of `matrices`.
        renormalise: largest accepted deviation of the sums of rows from 1, such as 0.005 for a model in half precision.
            Rows are then divided by their sums. A warning states the largest deviation if it is above 1e-5.

    Returns:
        Array of shape (P, Pi, N_0).

    Raises:
        ValueError: wrong shapes, entries that are not finite; rows of tokens that do not sum to 1 within 1e-5, or
            within `renormalise`, or that attend to padding.
    """
    one_of("readout", readout, (*READOUTS, EVERY_POSITION))
    inputs, mask = checked_tokens("inputs", inputs, mask)
    checked = tuple(checked_matrices(matrices, len(inputs), inputs.shape[1], mask, renormalise))
    xi = _through(inputs, checked, mask, readout, checked_skips(skips, len(checked)))
    return xi if readout != EVERY_POSITION else _examples_by_position(xi, inputs.shape[1], mask)


@partial(jax.jit, static_argnames=("readout", "skips"))
def _through(inputs: Checked, matrices: Checked, mask: Checked, readout: str, skips: tuple[bool, ...]) -> Array:
    """Path inputs through matrices of all layers; with readout "all", of each path and position, padding included."""
    rows = readout_rows(inputs.shape[1], readout, mask)
    attention = jnp.broadcast_to(rows, (len(inputs), *rows.shape[1:]))
    for layer, skip in zip(reversed(matrices), reversed(skips), strict=True):
        attention = one_layer_back(attention, layer, skip)
    return jnp.einsum("ept,etf->epf", attention, inputs)


def checked_skips(skips: Checked, layers: int) -> tuple[bool, ...]:
    """Whether each layer has a skip connection; raises ValueError unless `skips` is one truth value per layer."""
    if skips is None:
        return (False,) * layers
    expected = f"a list of true or false for each of {layers} layers"
    if len(flags := entries("skips", skips, expected)) != layers:
        raise BayesattnError(f"skips must be {expected}, got {shown(skips)}")
    return tuple(truth(f"skips[{layer}]", skip) for layer, skip in enumerate(flags))


def checked_tokens(
    name: str, inputs: Checked, mask: Checked, shape: Sequence[int | str] = ("examples", "tokens", "features")
) -> tuple[Any, np.ndarray | None]:
    """Inputs and mask as arrays, with 0 at padding; raises ValueError as `path_inputs` does."""
    inputs = real_array(name, inputs, shape)
    mask = checked_mask(mask, len(inputs), inputs.shape[1], "test_mask" if name == "test_inputs" else "mask")
    if mask is not None:
        inputs = np.where(mask[..., None], inputs, 0.0)
    return finite(name, inputs), mask


def checked_mask(mask: Checked, examples: int, tokens: int, name: str = "mask") -> np.ndarray | None:
    """Mask as an array of truth values, or None; raises ValueError for another shape or type, or padding alone."""
    if mask is None:
        return None
    try:
        mask = np.asarray(readable(mask))
    except ValueError:  # Rows of different lengths.
        raise BayesattnError(f"{name} must be an array of shape {(examples, tokens)}, got {shown(mask)}") from None
    if mask.dtype.kind in "iu" and np.isin(mask, (0, 1)).all():  # As tokenisers return it.
        mask = mask.astype(bool)
    if mask.dtype != bool or mask.shape != (examples, tokens):
        raise BayesattnError(
            f"{name} must hold True for tokens and False for padding, of shape {(examples, tokens)},"
            f" got {mask.dtype} of shape {mask.shape}"
        )
    if not mask.any(1).all():
        raise BayesattnError(
            f"{name} must leave each sequence a token, got padding alone in example {np.argmin(mask.any(1))}"
        )
    return mask


def _examples_by_position(
    xi: Float[Array, "sequence path_and_token feature"], tokens: int, mask: np.ndarray | None
) -> Float[Array, "example path feature"]:
    """Path inputs at all tokens that are not padding, one after the other."""
    by_position = jnp.swapaxes(xi.reshape(len(xi), -1, tokens, xi.shape[-1]), 1, 2)
    return by_position.reshape(-1, *by_position.shape[2:]) if mask is None else by_position[mask]


def are_swapped(matrix: np.ndarray, mask: np.ndarray | None, tolerance: float = ROW_TOLERANCE) -> bool:
    """Whether attention sums to 1 over queries, at all keys that are no padding."""
    columns = matrix.sum(-2, dtype=float)
    real = np.broadcast_to(True if mask is None else mask[:, None], columns.shape)
    return bool(np.abs(columns[real] - 1).max() <= tolerance)


def _hint(matrix: np.ndarray, mask: np.ndarray | None) -> str:
    """What may be wrong with rows that do not sum to 1."""
    if are_swapped(matrix, mask):
        return "; columns do: the axes of queries and keys are swapped"
    sums = matrix.sum(-1)
    if mask is None and np.all((np.abs(sums - 1) < ROW_TOLERANCE) | (sums == 0)):
        return "; rows of zeros are padding, which mask= tells"
    shares = np.all((matrix > -NOT_A_SHARE) & (matrix < 1 + NOT_A_SHARE))
    return "" if shares else "; these look like logits, whose softmax over the last axis is attention"


def checked_matrices(
    matrices: Checked, examples: int, tokens: int, mask: np.ndarray | None, renormalise: Checked = None
) -> list[np.ndarray]:
    """Attention matrices of each layer as arrays; raises ValueError as `paths_from_matrices` does."""
    _refuse_one_layer("matrices", matrices, 5)
    layers = entries("matrices", matrices, "a list of one array per layer", most_axes=5)
    if not layers:
        raise BayesattnError("matrices must hold one array per layer, got none")
    tolerance = max(checked_tolerance(renormalise), ROW_TOLERANCE)
    padding = None if mask is None else ~mask[:, None, :, None]
    checked, deviations = [], []
    for layer, matrix in enumerate(layers):
        name = f"matrices[{layer}]"
        matrix = finite(name, real_array(name, matrix, (examples, "heads", tokens, tokens)), padding)
        sums = matrix.sum(-1, keepdims=True)
        if padding is not None:
            sums = np.where(padding, 1, sums)
            lost = np.where(~padding & np.swapaxes(padding, 2, 3), np.abs(matrix), 0).max()
            if lost > ROW_TOLERANCE:
                raise BayesattnError(f"{name} must not attend to padding, got a weight of {lost:.2g} on it")
        deviations.append(np.abs(sums - 1).max())
        if deviations[layer] > tolerance:
            place = tuple(map(int, np.unravel_index(np.argmax(np.abs(sums - 1)), sums.shape)[:-1]))
            hints = _renormalise_hint(sums, renormalise) + _hint(matrix, mask)
            raise BayesattnError(
                f"{name} must have rows (last axis, keys) that sum to 1, got a row at index"
                f" {place} off by {deviations[layer]:.2g}{hints}"
            )
        checked.append(matrix if renormalise is None else matrix / sums)
    if renormalise is not None and max(deviations) > ROW_TOLERANCE:
        warnings.warn(
            f"rows of matrices were divided by their sums, which were off 1 by up to {max(deviations):.2g}, in layer"
            f" {np.argmax(deviations) + 1}",
            stacklevel=4,  # The wrapper that sets JAX's settings adds a frame.
        )
    return checked


def checked_tolerance(renormalise: Checked) -> float:
    """Largest accepted deviation of the sums of rows from 1; raises ValueError unless it is from 0 to below 1."""
    if renormalise is None:
        return ROW_TOLERANCE
    expected = "a number of at least 0 and below 1"
    if not 0 <= (tolerance := number("renormalise", renormalise, expected)) < 1:
        raise BayesattnError(f"renormalise must be {expected}, got {tolerance:g}")
    return tolerance


def _renormalise_hint(sums: np.ndarray, renormalise: float | None) -> str:
    """End of the error about row sums: the limit exceeded, or advice if the cause of the deviation from 1 is known."""
    if renormalise is not None:
        return f", more than renormalise, {renormalise:g}"
    off = np.abs(sums - 1).max()
    advice = f"; renormalise={min(2 * off, (1 + off) / 2):.2g} divides rows by their sums"
    return f": {cause}{advice}" if (cause := cause_of_sums(sums.min(), sums.max())) else ""


def cause_of_sums(lowest: float, highest: float) -> str:
    """What explains rows whose sums are not 1: rounding has both signs, a missing share only one."""
    if lowest > 0 and highest <= 1 + ROW_TOLERANCE:
        return "a share is missing, as that of attention sinks"
    return "half precision explains this" if max(1 - lowest, highest - 1) <= HALF_PRECISION_DEVIATION else ""


def _refuse_one_layer(name: str, value: Checked, axes: int) -> None:
    """Raise ValueError for the array of one layer where one for each layer is expected."""
    if 0 < (got := getattr(value, "ndim", axes)) < axes:
        raise BayesattnError(
            f"{name} must be a list of one array per layer, got one array of {got} axes: for one layer, give [{name}]"
        )


def checked_heads(weights: Checked, features: int) -> tuple:
    """Heads of each layer as an array, or as a pair of query and key arrays; raises ValueError as `path_inputs` does."""
    _refuse_one_layer("weights", weights, 4)
    layers = entries("weights", weights, "a list of the heads of each layer", most_axes=4)
    if not layers:
        raise BayesattnError("weights must hold the heads of at least one layer, got none")
    checked = []
    for layer, heads in enumerate(layers):
        if isinstance(heads, tuple):
            if len(heads) != 2:
                raise BayesattnError(
                    f"weights[{layer}] must be one array or a pair (Q, K), got a tuple of {len(heads)}"
                )
            query = finite_array(f"weights[{layer}][0] (queries)", heads[0], ("heads", "key_features", features))
            key = finite_array(f"weights[{layer}][1] (keys)", heads[1], query.shape)
            checked.append((query, key))
        else:
            checked.append(finite_array(f"weights[{layer}]", heads, ("heads", features, features)))
    return tuple(checked)


def _heads(layer: LayerWeights | QueryKeyWeights) -> int:
    return jax.tree.leaves(layer)[0].shape[0]


@partial(jax.jit, static_argnames=("tokens", "causal"))
def allowed_keys(tokens: int, causal: bool, mask: Checked) -> Array | None:
    """Whether each query may attend to each key, shape (P, T, T) or (1, T, T); None if all may."""
    if mask is None:
        return jnp.tril(jnp.ones((1, tokens, tokens), bool)) if causal else None
    keys = jnp.asarray(mask)[:, None]
    allowed = jnp.tril(jnp.broadcast_to(keys, (len(keys), tokens, tokens))) if causal else keys
    # Without the diagonal, a query at padding might be allowed no key at all.
    return allowed | jnp.eye(tokens, dtype=bool)


@partial(jax.jit, static_argnames="nonlinearity")
def attention_matrices(
    inputs: Float[Array, "example token feature"],
    heads: LayerWeights | QueryKeyWeights,
    nonlinearity: str,
    allowed: Checked = None,
) -> Float[Array, "example head query key"]:
    """Attention matrices of one layer, for use inside JAX transformations; `allowed` is that of `allowed_keys`."""
    if isinstance(heads, tuple):
        query, key = (jnp.einsum("etf,hgf->ehtg", inputs, projection) for projection in heads)
        logits = jnp.einsum("ehqg,ehkg->ehqk", query, key) / jnp.sqrt(query.shape[-1])
    else:
        query, key = jnp.einsum("hfg,eqg->ehqf", heads, inputs), inputs[:, None]
        logits = jnp.einsum("ehqf,ekf->ehqk", query, inputs)
    if allowed is not None:
        logits = jnp.where(allowed[:, None], logits, -jnp.inf)
    if nonlinearity == "softmax":
        return jax.nn.softmax(logits, axis=-1)
    # Sums of equal terms may round differently at different places of a matrix product.
    sizes = jnp.linalg.norm(query, axis=-1, keepdims=True) * jnp.linalg.norm(key, axis=-1).max(-1)[..., None, None]
    rounding = TIE_ROUNDING * inputs.shape[-1] * jnp.finfo(logits.dtype).eps * sizes
    largest = (logits >= logits.max(axis=-1, keepdims=True) - rounding).astype(logits.dtype)
    return largest / largest.sum(axis=-1, keepdims=True)


@partial(jax.jit, static_argnames=("tokens", "readout"))
def readout_rows(tokens: int, readout: str, mask: Checked) -> Float[Array, "example_or_one row token"]:
    """Weight of each token in the readout: one row, or one per position; with a mask, such rows for each example."""
    if readout == EVERY_POSITION:
        return jnp.eye(tokens)[None]
    if mask is None:
        weights = np.full(tokens, 1 / tokens) if readout == "mean" else np.eye(tokens)[0 if readout == "first" else -1]
        return jnp.asarray(weights)[None, None]
    mask = jnp.asarray(mask)
    if readout == "mean":
        return (mask / mask.sum(1, keepdims=True))[:, None]
    place = jnp.argmax(mask, axis=1) if readout == "first" else tokens - 1 - jnp.argmax(mask[:, ::-1], axis=1)
    return jax.nn.one_hot(place, tokens, dtype=float)[:, None]


def one_layer_back(
    attention: Float[Array, "example path token"],
    matrices: Float[Array, "example head token token"],
    skip: bool = False,
) -> Float[Array, "example longer_path token"]:
    """Attention paid by the readout through one more layer; the new layer's head becomes the slowest path index."""
    longer = jnp.einsum("epq,ehqk->ehpk", attention, matrices)
    if skip:
        longer = jnp.concatenate([attention[:, None], longer], axis=1)
    return longer.reshape(len(longer), -1, longer.shape[-1])


@partial(jax.jit, static_argnames=("readout", "nonlinearity", "causal", "skips"))
def traced_path_inputs(
    inputs: Float[Array, "example token feature"],
    weights: tuple,
    readout: str,
    nonlinearity: str,
    causal: bool = False,
    mask: Checked = None,
    skips: tuple[bool, ...] | None = None,
) -> Float[Array, "example path feature"]:
    """`path_inputs` without checks, for use inside JAX transformations.

    With readout "all", those of each path and position, padding included, the position being the fastest index.
    """
    tokens, layers = inputs.shape[1], list(zip(weights, skips or (False,) * len(weights), strict=True))

    def one_example(example) -> Float[Array, "path feature"]:
        tokens_of_example, real = example
        real = None if real is None else real[None]
        attention, allowed = readout_rows(tokens, readout, real), allowed_keys(tokens, causal, real)
        for heads, skip in reversed(layers):
            matrices = attention_matrices(tokens_of_example[None], heads, nonlinearity, allowed)
            attention = one_layer_back(attention, matrices, skip)
        return (attention @ tokens_of_example)[0]

    most_heads = max(map(_heads, weights))
    rows = tokens if readout == EVERY_POSITION else 1
    batch = max(1, BATCH_BYTES // (8 * most_heads * max(tokens, rows * most_heads ** (len(weights) - 1)) * tokens))
    return jax.lax.map(one_example, (inputs, mask), batch_size=min(batch, len(inputs)))
