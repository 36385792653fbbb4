"""Minimum of a smooth function in a few dozen dimensions, to a gradient at rounding error."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optimistix
from jaxtyping import Array, Float, Int

NEWTON_STEPS = 8


class Minimum(NamedTuple):
    """Where the search ended, the largest entry of the gradient there (infinite if not a number), and its steps."""

    point: Float[Array, " coordinate"]
    gradient: Float[Array, ""]
    iterations: Int[Array, ""]


def minimum(
    function: Callable, start: Float[Array, " coordinate"], max_steps: int, tolerance: float | Array = 1e-11
) -> Minimum:
    """Quasi-Newton steps to the neighbourhood of a minimum, then Newton's method on the gradient, to `tolerance`.

    Differences of the function drown in rounding near its minimum, where BFGS's line search must stop; the gradient's do
    not. The better of both ends is returned.
    """
    gradient = jax.grad(function)
    rough = optimistix.minimise(
        lambda point, _: function(point),
        optimistix.BFGS(rtol=1e-8, atol=1e-8),
        start,
        max_steps=max_steps,
        throw=False,
    )

    def unfinished(state):
        step, _, slope = state
        return (step < NEWTON_STEPS) & (jnp.max(jnp.abs(slope)) > tolerance)

    def newton_step(state):
        step, point, slope = state
        point = point - jnp.linalg.solve(hessian(function, point), slope)
        return step + 1, point, gradient(point)

    steps, polished, slope = jax.lax.while_loop(unfinished, newton_step, (0, rough.value, gradient(rough.value)))
    rough_size, polished_size = (jnp.max(jnp.abs(s)) for s in (gradient(rough.value), slope))
    # Newton's method also ends at saddles and maxima: its end must not lie higher.
    better = (polished_size <= rough_size) & (function(polished) <= function(rough.value) + 1e-6)
    size = jnp.where(better, polished_size, rough_size)
    return Minimum(
        jnp.where(better, polished, rough.value),
        jnp.where(jnp.isfinite(size), size, jnp.inf),
        rough.stats["num_steps"] + steps,
    )


def hessian(function: Callable, point: Float[Array, " coordinate"]) -> Float[Array, "coordinate coordinate"]:
    """Second derivatives, one column after the other: all at once would hold a kernel for each."""
    slope = jax.grad(function)
    return jax.lax.map(lambda direction: jax.jvp(slope, (point,), (direction,))[1], jnp.eye(len(point)))
