"""Moves of the replicas of parallel tempering: trajectories, draws from the prior, exchanges of neighbours."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

MOST_LEAPFROG_STEPS = 64
"""Leapfrog steps of the longest trajectory: exchanges move a replica far, long trajectories do not."""
PerReplica = Float[Array, " replica"]


def each_of(function: Callable, items: PyTree[Array]) -> PyTree[Array]:
    """Results of a function of each item: one after the other on a CPU, in one batch elsewhere.

    Trajectories differ in their number of steps, and a batch takes as many as the longest.
    """
    return jax.lax.map(function, items) if jax.default_backend() == "cpu" else jax.vmap(function)(items)


class Moved(NamedTuple):
    """Result of a trajectory: next position, its log likelihood, acceptance probability, energy error and cost."""

    position: Float[Array, " coordinate"]
    log_likelihood: Float[Array, ""]
    accept_prob: Float[Array, ""]
    energy_error: Float[Array, ""]
    gradients: Int[Array, ""]


Leap = tuple[Array, Array, tuple[Array, tuple[Array, Array]]]
"""Position, momentum, and the potential with its slopes in position and power."""


def at_prior(potential: Callable, drawn: Array, before: Array) -> Moved:
    """Move of the replica at power 0 to a draw from the prior; it stays if the draw is at an edge of a site's support."""
    position = jnp.where(jnp.all(jnp.isfinite(drawn)), drawn, before)
    value, slope = jax.jvp(partial(potential, position), (jnp.ones(()),), (jnp.ones(()),))
    log_likelihood = jnp.where(jnp.isfinite(value), -slope, -jnp.inf)
    return Moved(position, log_likelihood, jnp.ones(()), jnp.zeros(()), jnp.array(1))


def trajectory(potential: Callable, length: Array, arguments: tuple[Array, ...]) -> Moved:
    """Hamiltonian trajectory of a replica, from (key, position, power, step size, scale), with Metropolis acceptance."""
    key, start, power, step, scale = arguments
    momentum_key, accept_key = jax.random.split(key)
    times, transposed = (jnp.matmul, scale.T) if scale.ndim == 2 else (jnp.multiply, scale)
    # The potential is linear in the power: its slope is minus the log likelihood.
    sloped = jax.value_and_grad(potential, argnums=(0, 1))

    def leap(_: Array, at: Leap) -> Leap:
        position, momentum, (_, (gradient, _)) = at
        momentum = momentum - step / 2 * times(transposed, gradient)
        position = position + step * times(scale, momentum)
        value_and_slopes = sloped(position, power)
        return position, momentum - step / 2 * times(transposed, value_and_slopes[1][0]), value_and_slopes

    leaps = jnp.clip(jnp.ceil(length / step), 1, MOST_LEAPFROG_STEPS).astype(int)
    momentum = jax.random.normal(momentum_key, start.shape)
    begin = sloped(start, power)
    position, turned, end = jax.lax.fori_loop(0, leaps, leap, (start, momentum, begin))
    error = end[0] - begin[0] + (turned @ turned - momentum @ momentum) / 2
    error = jnp.where(jnp.isfinite(error), error, jnp.inf)
    accept_prob = jnp.exp(-jnp.maximum(error, 0))
    accepted = jax.random.uniform(accept_key) < accept_prob
    position, slope = (jnp.where(accepted, *pair) for pair in ((position, start), (end[1][1], begin[1][1])))
    return Moved(position, -slope, accept_prob, error, leaps + 1)


def exchanges(
    key: Key[Array, ""], powers: PerReplica, log_likelihoods: PerReplica, transition: Int[Array, ""]
) -> tuple[Int[Array, " replica"], Float[Array, " neighbours"]]:
    """Replica that each power has next, and acceptance probability of the exchange of each pair of neighbours.

    Exchanges of pairs with an even first index are proposed in even transitions, those with an odd one in odd transitions.
    """
    differences = jnp.diff(log_likelihoods)
    # NaN is the difference of two likelihoods of 0.
    probability = jnp.exp(jnp.minimum((powers[:-1] - powers[1:]) * jnp.nan_to_num(differences, nan=-jnp.inf), 0.0))
    proposed: Bool[Array, " neighbours"] = jnp.arange(len(probability)) % 2 == transition % 2
    moved = (proposed & (jax.random.uniform(key, probability.shape) < probability)).astype(int)
    return jnp.arange(len(powers)).at[:-1].add(moved).at[1:].add(-moved), probability
