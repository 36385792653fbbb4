"""Minimum of a smooth function in a few dozen dimensions, to a gradient at rounding error."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optimistix
from jaxtyping import Array, Float, Int


class Minimum(NamedTuple):
    """Where the search ended, the largest entry of the gradient there (infinite if not a number), and its steps."""

    point: Float[Array, " coordinate"]
    gradient: Float[Array, ""]
    iterations: Int[Array, ""]


def minimum(function: Callable, start: Float[Array, " coordinate"], max_steps: int) -> Minimum:
    """Quasi-Newton steps to the neighbourhood of a minimum, then Newton's method on the gradient.

    Differences of the function drown in rounding near its minimum, where BFGS's line search must stop; the gradient's do
    not. The better of both ends is returned.
    """
    gradient = jax.grad(function)
    rough = optimistix.minimise(
        lambda point, _: function(point),
        optimistix.BFGS(rtol=1e-6, atol=1e-6),
        start,
        max_steps=max_steps,
        throw=False,
    )
    polished = optimistix.root_find(
        lambda point, _: gradient(point),
        optimistix.Newton(rtol=1e-12, atol=1e-12),
        rough.value,
        max_steps=20,
        throw=False,
    )

    def largest(point):
        size = jnp.max(jnp.abs(gradient(point)))
        return jnp.where(jnp.isfinite(size), size, jnp.inf)

    rough_size, polished_size = largest(rough.value), largest(polished.value)
    # Newton's method also ends at saddles and maxima: its end must not lie higher.
    better = (polished_size <= rough_size) & (function(polished.value) <= function(rough.value) + 1e-6)
    return Minimum(
        jnp.where(better, polished.value, rough.value),
        jnp.where(better, polished_size, rough_size),
        rough.stats["num_steps"] + polished.stats["num_steps"],
    )
