"""The network function through path inputs (THEORY section 2)."""

import jax.numpy as jnp
from jaxtyping import Array, Float

Weights = dict[str, Array]
"""V_0 (N_1, N_0), V_l (H_l, N_{l+1}, N_l), a (N_a,)."""


def effective_weights(weights: Weights) -> Float[Array, "path width"]:
    """w^pi = a V_L^{h_L} .. V_1^{h_1} / sqrt(N_a N_L .. N_2), one row per path."""
    paths = weights["a"][None, :] / jnp.sqrt(weights["a"].size)
    depth = len(weights) - 2
    for layer in range(depth, 0, -1):
        values = weights[f"V_{layer}"]
        scale = 1.0 if layer == 1 else 1 / jnp.sqrt(values.shape[2])
        paths = jnp.einsum("pm,hmn->hpn", paths, values).reshape(-1, values.shape[2]) * scale
    return paths


def path_readouts(weights: Weights) -> Float[Array, "path feature"]:
    """g^pi = V_0^T w^pi / sqrt(N_0 N_1 Pi): whatever its weights, the network is linear in its path inputs."""
    paths, (width, features) = effective_weights(weights), weights["V_0"].shape
    return paths @ weights["V_0"] / jnp.sqrt(features * width * len(paths))


def network(weights: Weights, path_inputs: Float[Array, "any_example path feature"]) -> Float[Array, " any_example"]:
    """f = sum_pi g^pi . xi^pi = sum_pi w^pi . (V_0 xi^pi) / sqrt(N_0 N_1 Pi)."""
    return path_inputs.reshape(len(path_inputs), -1) @ path_readouts(weights).reshape(-1)
