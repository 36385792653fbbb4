"""Mode of the collapsed posterior, with its Laplace covariance."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayesattn.architecture import Architecture
from bayesattn.theory.bartlett import layer_shapes, narrow, narrowed, unwhiten
from bayesattn.theory.likelihood import Likelihood
from bayesattn.theory.minimise import Local, minimum
from bayesattn.theory.problem import Point, Problem, Shapes, local_potential, potential, problem_of, refuse_many
from bayesattn.theory.saddle_point import (
    GRADIENT_TOLERANCE,
    SMALLEST_GRADIENT_SCALE,
    NotConverged,
    likely_cause,
    saddle_point,
)


class Mode(NamedTuple):
    """Mode of the collapsed posterior, columns that span S = scale scale^T, V at the mode, and its relative gradient.

    Or another centre of the expansion, the saddle point, with V left out (NaN).
    """

    point: Point
    scale: Float[Array, "coordinate coordinate"]
    potential: Float[Array, ""]
    gradient_norm: Float[Array, ""]


def find_mode(
    likelihood: Likelihood, arch: Architecture, max_steps: int = 200, start: Point | None = None
) -> tuple[Mode, Problem]:
    """Mode of the collapsed posterior with its Laplace covariance, and the arrays of the posterior.

    The search starts at `start`, such as the saddle point's, without the columns that a narrow layer lacks, or at the GP
    limit; where a layer is narrow, always at the saddle point, which tells the order of its rows. Raises NotConverged if the
    mode was not found.
    """
    problem, shapes = problem_of(likelihood, arch), layer_shapes(arch)
    refuse_many("the mode of the collapsed posterior", shapes)
    size = sum(shape.size for shape in shapes)
    if start is None and narrow(shapes):
        start = saddle_point(likelihood, arch, max_steps).point
    if start is None:
        start = unwhiten(jnp.zeros(size), shapes, problem.widths)
    elif narrow(shapes) or len(start) != size:
        full = layer_shapes(arch, full=True)
        start, order = narrowed(start, full, shapes, problem.widths, problem.variances)
        problem = problem._replace(order=order)
    mode = _mode(problem, start, shapes, max_steps)
    # The gradient of a density of N degrees of freedom, in units of 1 / sqrt(N), is rounded by this much.
    widest = max(arch.widths)
    rounding = np.finfo(float).eps * np.sqrt(widest) * np.log(widest) / SMALLEST_GRADIENT_SCALE
    if not mode.gradient_norm <= max(GRADIENT_TOLERANCE, rounding):
        raise NotConverged(
            f"the mode of the collapsed posterior was not found: relative gradient {float(mode.gradient_norm):.1e},"
            f" expected at most {GRADIENT_TOLERANCE:.0e}; {likely_cause(likelihood, arch)}",
            mode,
        )
    return mode, problem


@partial(jax.jit, static_argnames=("shapes", "max_steps"))
def _mode(problem: Problem, start: Point, shapes: Shapes, max_steps: int) -> Mode:
    local = local_potential(problem, shapes)
    origin = unwhiten(jnp.zeros_like(start), shapes, problem.widths)
    # Whitened coordinates are stretched, each by a factor of its own.
    stretch = unwhiten(jnp.ones_like(start), shapes, problem.widths) - origin

    def whitened_local(whitened):
        at = local(origin + stretch * whitened)
        return Local(at.value, stretch * at.gradient, at.hessian * jnp.outer(stretch, stretch))

    def whitened_potential(whitened):
        return potential(origin + stretch * whitened, problem, shapes)

    best, at, gradient, _ = minimum(whitened_potential, whitened_local, (start - origin) / stretch, max_steps)
    scale = spanning(at.hessian / jnp.outer(stretch, stretch))
    point = origin + stretch * best
    slope = stretch * jax.grad(lambda p: problem.likelihood.energy(problem.factor(p, shapes)))(point)
    norm = gradient / jnp.maximum(jnp.max(jnp.abs(slope)) / 2, SMALLEST_GRADIENT_SCALE)
    # A Hessian that is not positive definite has no Cholesky factor, and the point is no mode.
    singular = problem.likelihood.is_singular(problem.factor(point, shapes))
    norm = jnp.where(jnp.isfinite(scale).all() & ~singular, norm, jnp.inf)
    return Mode(point, scale, at.value, norm)


def spanning(hessian: Float[Array, "coordinate coordinate"]) -> Float[Array, "coordinate coordinate"]:
    """Columns that span S = H^-1: those of L^-T, where H = L L^T."""
    return jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(hessian), jnp.eye(len(hessian)), lower=True).T
