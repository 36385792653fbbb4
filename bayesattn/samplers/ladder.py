"""Warm-up of parallel tempering: powers of the likelihood and metrics of replicas, from statistics of its windows."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import erfinv
from jaxtyping import Array, Float, Int

from bayesattn.samplers.exchanges import PerReplica

TRANSITIONS_PER_DRAW = 3
"""Assumed number of transitions per independent draw, for the shrinkage of a metric's correlations."""
Replicas = Float[Array, "replica coordinate"]


class Seen(NamedTuple):
    """Statistics of the transitions in a warm-up window: mean position, sum of products, sum of exchange probabilities."""

    count: Int[Array, ""]
    mean: Replicas
    products: Array
    exchanged: Float[Array, " neighbours"]


class Adapted(NamedTuple):
    """Powers of the likelihood, and step sizes and metrics of their replicas: S^{1/2}, or a scale of each coordinate.

    `step_size` is the step size of the replica at power 1.
    """

    powers: PerReplica
    step_sizes: PerReplica
    scales: Array

    @property
    def step_size(self) -> Float[Array, "..."]:
        """Step size of the replica at power 1, of each chain if there are several."""
        return self.step_sizes[..., 0]


def even_powers(powers: PerReplica, rejected: Float[Array, " neighbours"]) -> PerReplica:
    """Powers between which exchanges are rejected equally often (Syed et al. 2022, section 5.1).

    Distances between powers add up, rejections near 1 do not: of normal log likelihoods, a rejection r is a distance
    erfinv(r). The sum from power 1 down is interpolated linearly in the fourth root of the power, which resolves powers near
    0, the prior.
    """
    distances = erfinv(jnp.clip(rejected, 1e-3, 1 - 1e-6))
    barrier = jnp.append(0.0, jnp.cumsum(distances))
    roots = jnp.interp(jnp.linspace(0.0, 1.0, len(powers)) * barrier[-1], barrier, powers**0.25)
    return (roots**4).at[0].set(1.0).at[-1].set(0.0)


def empty_statistics(shape: tuple[int, ...]) -> Seen:
    """Statistics of a window without transitions; `shape` is that of the metrics of all replicas."""
    return Seen(jnp.array(0), jnp.zeros(shape[:2]), jnp.zeros(shape), jnp.zeros(shape[0] - 1))


def added_to_statistics(seen: Seen, replicas: Replicas, exchanged: Array) -> Seen:
    """Statistics of a window with one more transition, by Welford's recursion."""
    count = seen.count + 1
    before = replicas - seen.mean
    mean = seen.mean + before / count
    after = replicas - mean
    dense = seen.products.ndim == 3
    products = before[:, :, None] * after[:, None, :] if dense else before * after
    return Seen(count, mean, seen.products + products, seen.exchanged + exchanged)


def metrics(seen: Seen) -> Array:
    """S^{1/2} of each replica, with S the covariance in a window, shrunk towards its diagonal; or standard deviations."""
    covariance = seen.products / jnp.maximum(seen.count - 1, 1)
    if covariance.ndim == 2:
        return jnp.sqrt(jnp.maximum(covariance, jnp.finfo(float).tiny))
    size = covariance.shape[-1]
    shrinkage = size / (size + seen.count / TRANSITIONS_PER_DRAW)
    diagonal = covariance * jnp.eye(size)
    shrunk = covariance + shrinkage * (diagonal - covariance)
    # The jitter keeps the scale of a replica that has not moved above 0.
    return jax.lax.map(jnp.linalg.cholesky, shrunk + 1e-12 * jnp.eye(size))
