"""Quadrature over one output, at all scales around known values."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

STEPS = np.geomspace(1e-7, 40.0, 64)
"""Distances of the ends of intervals from each known value of an output, in units of the spread of its prior."""

Integrand = Callable[[Float[Array, ""]], Array]
Known = Float[Array, " value"]


def log_integral(log_integrand: Integrand, known: Known) -> Float[Array, ""]:
    """Log integral of a function by the midpoint rule on a grid that is geometric about 0 and each known value."""
    values, ends = _on_grid(log_integrand, known)
    return jax.scipy.special.logsumexp(values, b=jnp.diff(ends))


def mean_and_variance(log_integrand: Integrand, known: Known) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Moments of the distribution with this unnormalised density, on the same grid."""
    values, ends = _on_grid(log_integrand, known)
    masses, middles = jax.nn.softmax(values + jnp.log(jnp.diff(ends))), (ends[1:] + ends[:-1]) / 2
    mean = masses @ middles
    return mean, masses @ (middles - mean) ** 2


def _on_grid(log_integrand: Integrand, known: Known) -> tuple[Float[Array, " interval"], Float[Array, " end"]]:
    """Values in the middle of intervals (-inf where NaN), and the ends of these."""
    around = np.concatenate([-STEPS[::-1], [0.0], STEPS])
    ends = jnp.sort((jnp.append(known, 0.0)[:, None] + around).ravel())
    values = jax.vmap(log_integrand)((ends[1:] + ends[:-1]) / 2)
    return jnp.where(jnp.isnan(values), -jnp.inf, values), ends
