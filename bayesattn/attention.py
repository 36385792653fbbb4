"""From fixed attention heads to path inputs (THEORY sections 1 and 2).

The attention a path pays to each token is collected backwards from the readout token, layer by layer, so the largest
array held is one layer's attention matrices for a batch of examples, never (examples, paths, tokens, tokens).
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayesattn._checks import finite_array, one_of, require_memory

READOUTS = ("last", "first", "mean")
NONLINEARITIES = ("softmax", "hardmax")
BATCH_BYTES = 2**26
"""Attention matrices of so many examples are formed at a time that they take about this much memory."""

LayerWeights = Float[Array, "head feature feature"]
QueryKeyWeights = tuple[Float[Array, "head key_feature feature"], Float[Array, "head key_feature feature"]]


def path_inputs(
    inputs: Any, weights: Sequence[Any], readout: str = "last", nonlinearity: str = "softmax"
) -> Float[Array, "example path feature"]:
    """Path inputs xi of an attention network (THEORY section 2), without any normalisation.

    Args:
        inputs: token sequences, shape (P, T, N_0).
        weights: one entry per layer, first layer first: either bilinear heads W of shape (H_l, N_0, N_0), with logits
            x_key^T W x_query, or a pair (Q, K) of query and key projections, each of shape (H_l, G, N_0), with logits
            (K x_key).(Q x_query) / sqrt(G).
        readout: the token that is read out: "last", "first", or the "mean" over tokens.
        nonlinearity: "softmax" over keys, or "hardmax", its limit of infinite logits (ties share equally).

    Returns:
        Array of shape (P, Pi, N_0), paths in C order with the first layer's head slowest.

    Raises:
        ValueError: wrong shapes, entries that are not finite, an unknown readout or nonlinearity.
    """
    one_of("nonlinearity", nonlinearity, NONLINEARITIES)
    one_of("readout", readout, READOUTS)
    inputs, weights = _checked_heads(inputs, weights)
    paths = math.prod(_heads(layer) for layer in weights)
    require_memory(f"path inputs of {paths} paths", 8 * len(inputs) * paths * inputs.shape[2], "use fewer heads")
    return traced_path_inputs(jnp.asarray(inputs), weights, readout, nonlinearity)


def matrices(
    inputs: Any, weights: Sequence[Any], nonlinearity: str = "softmax"
) -> list[Float[Array, "example head query key"]]:
    """Attention matrices of each layer, shape (P, H_l, T, T); rows sum to 1. Arguments as for `path_inputs`."""
    one_of("nonlinearity", nonlinearity, NONLINEARITIES)
    inputs, weights = _checked_heads(inputs, weights)
    needed = 8 * inputs.shape[0] * inputs.shape[1] ** 2 * sum(map(_heads, weights))
    require_memory("attention matrices", needed, "use fewer examples or tokens")
    return [_attention_matrices(jnp.asarray(inputs), layer, nonlinearity) for layer in weights]


def paths_from_matrices(
    inputs: Any, matrices: Sequence[Any], readout: str = "last"
) -> Float[Array, "example path feature"]:
    """Path inputs xi from given attention matrices, for any attention that is a fixed function of the input.

    One head that attends evenly, read out at the last of two tokens:

    >>> paths_from_matrices([[[1.0], [3.0]]], [[[[[0.5, 0.5], [0.5, 0.5]]]]]).tolist()
    [[[2.0]]]

    Args:
        inputs: token sequences, shape (P, T, N_0).
        matrices: per layer, first layer first: attention of shape (P, H_l, T_query, T_key) whose rows sum to 1.
        readout: "last", "first" or "mean".

    Returns:
        Array of shape (P, Pi, N_0).

    Raises:
        ValueError: wrong shapes, entries that are not finite, rows that do not sum to 1 within 1e-5.
    """
    one_of("readout", readout, READOUTS)
    inputs = finite_array("inputs", inputs, ("examples", "tokens", "features"))
    checked = checked_matrices(matrices, *inputs.shape[:2])
    attention = readout_weights(inputs.shape[1], readout)
    attention = jnp.broadcast_to(attention, (len(inputs), 1, inputs.shape[1]))
    for layer in reversed(checked):
        attention = _one_layer_back(attention, jnp.asarray(layer))
    return jnp.einsum("ept,etf->epf", attention, jnp.asarray(inputs))


def checked_matrices(matrices: Sequence[Any], examples: int, tokens: int) -> list[np.ndarray]:
    """The attention matrices of each layer as arrays; raises ValueError as `paths_from_matrices` says."""
    if len(matrices) == 0:
        raise ValueError("matrices must hold one array per layer, got none")
    checked = []
    for layer, matrix in enumerate(matrices):
        matrix = finite_array(f"matrices[{layer}]", matrix, (examples, "heads", tokens, tokens))
        deviation = np.abs(matrix.sum(-1) - 1).max()
        if deviation > 1e-5:
            raise ValueError(
                f"matrices[{layer}] must have rows (last axis, keys) that sum to 1, got a row off by {deviation:.2g}"
            )
        checked.append(matrix)
    return checked


def _checked_heads(inputs: Any, weights: Sequence[Any]) -> tuple[np.ndarray, tuple]:
    inputs = finite_array("inputs", inputs, ("examples", "tokens", "features"))
    features = inputs.shape[-1]
    if len(weights) == 0:
        raise ValueError("weights must hold the heads of at least one layer, got none")
    checked = []
    for layer, heads in enumerate(weights):
        if isinstance(heads, tuple):
            if len(heads) != 2:
                raise ValueError(f"weights[{layer}] must be one array or a pair (Q, K), got a tuple of {len(heads)}")
            query = finite_array(f"weights[{layer}][0] (queries)", heads[0], ("heads", "key_features", features))
            key = finite_array(f"weights[{layer}][1] (keys)", heads[1], query.shape)
            checked.append((jnp.asarray(query), jnp.asarray(key)))
        else:
            checked.append(jnp.asarray(finite_array(f"weights[{layer}]", heads, ("heads", features, features))))
    return inputs, tuple(checked)


def _heads(layer: LayerWeights | QueryKeyWeights) -> int:
    return jax.tree.leaves(layer)[0].shape[0]


@partial(jax.jit, static_argnames="nonlinearity")
def _attention_matrices(
    inputs: Float[Array, "example token feature"], heads: LayerWeights | QueryKeyWeights, nonlinearity: str
) -> Float[Array, "example head query key"]:
    if isinstance(heads, tuple):
        query, key = (jnp.einsum("etf,hgf->ehtg", inputs, projection) for projection in heads)
        logits = jnp.einsum("ehqg,ehkg->ehqk", query, key) / jnp.sqrt(query.shape[-1])
    else:
        query = jnp.einsum("hfg,eqg->ehqf", heads, inputs)
        logits = jnp.einsum("ehqf,ekf->ehqk", query, inputs)
    if nonlinearity == "softmax":
        return jax.nn.softmax(logits, axis=-1)
    largest = (logits == logits.max(axis=-1, keepdims=True)).astype(logits.dtype)
    return largest / largest.sum(axis=-1, keepdims=True)


def readout_weights(tokens: int, readout: str) -> Float[Array, " token"]:
    """Weight of each token in the readout: one-hot, or 1 / T for the mean."""
    if readout == "mean":
        return jnp.full(tokens, 1 / tokens)
    return jnp.zeros(tokens).at[0 if readout == "first" else -1].set(1.0)


def _one_layer_back(
    attention: Float[Array, "example path token"], matrices: Float[Array, "example head token token"]
) -> Float[Array, "example longer_path token"]:
    """Attention paid by the readout through one more layer; the new layer's head becomes the slowest path index."""
    longer = jnp.einsum("epq,ehqk->ehpk", attention, matrices)
    return longer.reshape(len(longer), -1, longer.shape[-1])


@partial(jax.jit, static_argnames=("readout", "nonlinearity"))
def traced_path_inputs(
    inputs: Float[Array, "example token feature"], weights: tuple, readout: str, nonlinearity: str
) -> Float[Array, "example path feature"]:
    """`path_inputs` of arrays, for use inside JAX transformations: nothing is checked."""
    tokens = inputs.shape[1]

    def one_example(tokens_of_example: Float[Array, "token feature"]) -> Float[Array, "path feature"]:
        attention = readout_weights(tokens, readout)[None, None]
        for heads in reversed(weights):
            attention = _one_layer_back(attention, _attention_matrices(tokens_of_example[None], heads, nonlinearity))
        return attention[0] @ tokens_of_example

    most_heads = max(map(_heads, weights))
    batch = max(1, BATCH_BYTES // (8 * most_heads * tokens**2))
    return jax.lax.map(one_example, inputs, batch_size=min(batch, len(inputs)))
