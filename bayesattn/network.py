"""The network function through path inputs (THEORY sections 2 and 8)."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Weights = dict[str, Array]
"""V_0 (N_1, N_0), V_l (H_l, N_{l+1}, N_l), a (N_a,), or (m, N_a) for m outputs."""
Skips = Sequence[float | Array | None]
"""rho_l of each layer, None for layers without a skip."""


@jax.jit
def effective_weights(weights: Weights, skips: Skips | None = None) -> Float[Array, "row width"]:
    """w^pi = a V_L^{h_L} .. V_1^{h_1} / sqrt(N_a N_L .. N_2), one row per path, or per path and output, outputs fastest.

    `skips` are rho_l, one per layer and None for layers without a skip. A skip contributes sqrt(H_l N_l) rho_l
    in place of V_l.
    """
    paths = jnp.atleast_2d(weights["a"]) / jnp.sqrt(weights["a"].shape[-1])
    depth = len(weights) - 2
    for layer in range(depth, 0, -1):
        values = weights[f"V_{layer}"]
        heads, _, width = values.shape
        scale = 1.0 if layer == 1 else 1 / jnp.sqrt(width)
        of_heads = jnp.einsum("pm,hmn->hpn", paths, values).reshape(-1, width) * scale
        skip = None if skips is None else skips[layer - 1]
        if skip is not None:
            of_skip = skip * jnp.sqrt(float(heads * width)) * scale * paths
            of_heads = jnp.concatenate([of_skip, of_heads])
        paths = of_heads
    return paths


def path_readouts(weights: Weights, skips: Skips | None = None) -> Float[Array, "row feature"]:
    """g^pi = V_0^T w^pi / sqrt(N_0 N_1 H_1 .. H_L): for any weights, the network is linear in its path inputs."""
    width, features = weights["V_0"].shape
    heads = math.prod(weights[f"V_{layer}"].shape[0] for layer in range(1, len(weights) - 1))
    return effective_weights(weights, skips) @ weights["V_0"] / jnp.sqrt(features * width * heads)


def network(
    weights: Weights, path_inputs: Float[Array, "any_example path feature"], skips: Skips | None = None
) -> Float[Array, "*labels"]:
    """f = sum_pi g^pi . xi^pi = sum_pi w^pi . (V_0 xi^pi) / sqrt(N_0 N_1 H_1 .. H_L); shape (P, m) for m > 1 outputs."""
    flat, readouts = path_inputs.reshape(len(path_inputs), -1), path_readouts(weights, skips)
    if weights["a"].ndim == 1:
        return flat @ readouts.reshape(-1)
    by_output = jnp.moveaxis(readouts.reshape(path_inputs.shape[1], -1, path_inputs.shape[2]), 1, 2)
    return flat @ by_output.reshape(flat.shape[1], -1)
