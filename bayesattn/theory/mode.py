"""Mode of the collapsed posterior, with its Laplace covariance."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.sparse.linalg import LinearOperator, eigsh

from bayesattn.architecture import Architecture
from bayesattn.theory.bartlett import layer_shapes, narrow, narrowed, unwhiten
from bayesattn.theory.likelihood import Likelihood
from bayesattn.theory.minimise import Local, hessian_times, minimum, minimum_by_gradients
from bayesattn.theory.problem import Point, Problem, Shapes, local_potential, potential, problem_of, refuse_many
from bayesattn.theory.saddle_point import (
    GRADIENT_TOLERANCE,
    SMALLEST_GRADIENT_SCALE,
    NotConverged,
    likely_cause,
    saddle_point,
)

MOST_PATHS = 100
"""Beyond them the curvature in all pairs of entries of U, paths^4 numbers, is gone without."""
LEADING, LANCZOS_TOLERANCE = 100, 1e-3
"""Directions of greatest curvature that whitening knows then, and the relative error of their curvatures."""
PRIOR_CURVATURE = 0.5
"""Of minus the log prior density, in the coordinates in which that of the entropy, twice as much, is 1."""


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
    mode = (_mode if arch.paths <= MOST_PATHS else _mode_of_many)(problem, start, shapes, max_steps)
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
    origin, stretch = _stretched(shapes, problem.widths)

    def whitened_local(whitened):
        at = local(origin + stretch * whitened)
        return Local(at.value, stretch * at.gradient, at.hessian * jnp.outer(stretch, stretch))

    def whitened_potential(whitened):
        return _whitened_potential(whitened, problem, origin, stretch, shapes)

    best, at, gradient, _ = minimum(whitened_potential, whitened_local, (start - origin) / stretch, max_steps)
    return _mode_at(best, spanning(at.hessian), at.value, gradient, problem, origin, stretch, shapes)


def _mode_of_many(problem: Problem, start: Point, shapes: Shapes, max_steps: int) -> Mode:
    """The same without the curvature in all pairs of entries of U.

    Of the Laplace covariance only the directions that the data know most of are had, by Lanczos' method; in all others it is
    the prior's.
    """
    origin, stretch = _stretched(shapes, problem.widths)
    data, size = (problem, origin, stretch), len(start)
    begin = np.asarray((start - origin) / stretch)
    found = minimum_by_gradients(_whitened_potential, data, shapes, begin, max_steps, GRADIENT_TOLERANCE / 10)

    def times(direction: np.ndarray) -> np.ndarray:
        return np.asarray(hessian_times(_whitened_potential, shapes, jnp.asarray(direction), found.point, data))

    curved: Any = LinearOperator((size, size), matvec=times, dtype=np.float64)  # pyright: ignore[reportCallIssue]
    options: Any = {"which": "LA", "tol": LANCZOS_TOLERANCE, "v0": np.ones(size)}
    curvatures, directions = eigsh(curved, min(LEADING, size // 4), **options)
    scale = np.eye(size) / np.sqrt(PRIOR_CURVATURE)
    scale += (directions * (1 / np.sqrt(curvatures) - 1 / np.sqrt(PRIOR_CURVATURE))) @ directions.T
    return _mode_at(found.point, jnp.asarray(scale), found.value, found.gradient, *data, shapes)


def _stretched(shapes: Shapes, widths: Float[Array, " layer"]) -> tuple[Point, Point]:
    """Bartlett coordinates where whitened ones are 0, and the factors by which these are stretched."""
    zeros = jnp.zeros(sum(shape.size for shape in shapes))
    origin = unwhiten(zeros, shapes, widths)
    return origin, unwhiten(zeros + 1, shapes, widths) - origin


def _whitened_potential(whitened, problem: Problem, origin: Point, stretch: Point, shapes: Shapes):
    return potential(origin + stretch * whitened, problem, shapes)


@partial(jax.jit, static_argnames="shapes")
def _mode_at(whitened, scale, value, gradient, problem: Problem, origin: Point, stretch: Point, shapes: Shapes) -> Mode:
    """The mode where V has such a value and largest slope, its scale by that of whitened coordinates."""
    point = origin + stretch * whitened
    slope = stretch * jax.grad(lambda p: problem.likelihood.energy(problem.factor(p, shapes)))(point)
    norm = gradient / jnp.maximum(jnp.max(jnp.abs(slope)) / 2, SMALLEST_GRADIENT_SCALE)
    # A Hessian that is not positive definite has no Cholesky factor, and the point is no mode.
    singular = problem.likelihood.is_singular(problem.factor(point, shapes))
    norm = jnp.where(jnp.isfinite(scale).all() & ~singular, norm, jnp.inf)
    return Mode(point, stretch[:, None] * scale, jnp.asarray(value), norm)


def spanning(hessian: Float[Array, "coordinate coordinate"]) -> Float[Array, "coordinate coordinate"]:
    """Columns that span S = H^-1: those of L^-T, where H = L L^T."""
    return jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(hessian), jnp.eye(len(hessian)), lower=True).T
