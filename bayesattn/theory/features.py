"""Path inputs as the likelihood holds them, and their products with factors of U and with readouts."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bayesattn.theory.kernels import input_scale

BLOCK_BYTES = 2**27


def blocks(columns: Float[Array, "example column feature"], paths: int) -> Float[Array, "block example column few"]:
    """Features in blocks: the Gram matrix of all columns of all paths may not fit into memory."""
    examples, number, features = columns.shape
    count = max(1, min(features, BLOCK_BYTES // (8 * paths**2 * features)))
    padded = jnp.pad(columns, ((0, 0), (0, 0), (0, -features % count)))
    return jnp.moveaxis(padded.reshape(examples, number, -1, count), 2, 0)


def scaled_features(path_inputs: Any, input_variance: Any) -> Float[Array, "example feature path"]:
    """Path inputs of shape (P, Pi, N_0) as `Likelihood` holds them."""
    return _scaled(path_inputs, input_scale(input_variance, *path_inputs.shape[1:]))


@jax.jit
def _scaled(path_inputs: Any, scale: Any) -> Array:
    return jnp.swapaxes(path_inputs, 1, 2) * scale


def mixed(
    features: Float[Array, "example feature path"], factor: Float[Array, "row column"], outputs: int
) -> Float[Array, "label mixed_column"]:
    """X F with a row for each label: rows of F are (path, output) pairs."""
    # Of two axes, as the product with one that has three has a slow derivative.
    product = features.reshape(-1, features.shape[2]) @ factor.reshape(features.shape[2], -1)
    if outputs == 1:
        return product.reshape(len(features), -1)
    by_output = product.reshape(len(features), -1, outputs, factor.shape[1])
    return jnp.swapaxes(by_output, 1, 2).reshape(len(features) * outputs, -1)


def of_outputs(features: Float[Array, "example feature path"], outputs: int) -> Float[Array, "label feature row"]:
    """Path inputs of each label, with paths of each output: those of other outputs are 0."""
    if outputs == 1:
        return features
    examples, size, paths = features.shape
    return jnp.einsum("efp,cd->ecfpd", features, jnp.eye(outputs)).reshape(examples * outputs, size, paths * outputs)


def outputs_of(
    features: Float[Array, "example feature path"], readout: Float[Array, "row feature"], outputs: int
) -> Float[Array, " label"]:
    """f at scaled path inputs by a readout g: sum over paths of g^pi . xi^pi of each output."""
    flat = features.reshape(len(features), -1)
    if outputs == 1:
        return flat @ readout.T.reshape(-1)
    by_output = jnp.moveaxis(readout.reshape(features.shape[2], outputs, -1), 2, 0)
    return (flat @ by_output.reshape(-1, outputs)).reshape(-1)
