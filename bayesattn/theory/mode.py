"""Mode of the collapsed posterior, with its Laplace covariance."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from scipy import optimize
from scipy.sparse.linalg import LinearOperator, eigsh

from bayesattn._util.checks import Checked
from bayesattn.architecture import Architecture
from bayesattn.kernels.choice import compressed
from bayesattn.kernels.conditionals import is_singular
from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.theory.bartlett import layer_shapes, mirrored, narrow, narrowed, stretched, unwhiten
from bayesattn.theory.minimise import (
    STEPS_EACH,
    Found,
    Local,
    hessian_times,
    minimum,
    minimum_by_gradients,
    value_and_gradient,
)
from bayesattn.theory.problem import MOST_COORDINATES, Point, Problem, Shapes, local_potential, potential, problem_of
from bayesattn.theory.saddle_point import (
    GRADIENT_TOLERANCE,
    MOST_FOR_HESSIAN,
    ROUGH,
    SMALLEST_GRADIENT_SCALE,
    NotConverged,
    likely_cause,
    rough_saddle_point,
)
from bayesattn.theory.whitening import Whitening

LEADING, LANCZOS_TOLERANCE = 100, 1e-3
"""Directions of greatest curvature that whitening knows then, and the relative error of their curvatures."""
SEARCHES, MOST_SEARCHED, NEGLIGIBLE = 4, 200, 5.0
"""Searches of another mode, the most coordinates with which they are made, and nats below which it does not matter."""
SAME = 0.3
"""Laplace standard deviations within which two searches have ended in the same minimum."""
CURVED, FLAT = 1e-4, 0.05
"""Step of the differences that tell a curvature, and the least that counts, in the same coordinates."""
PRIOR_CURVATURE = 0.5
"""Of minus the log prior density, in the coordinates in which that of the entropy, twice as much, is 1."""


class Mode(NamedTuple):
    """Mode of the collapsed posterior and its Laplace covariance, V at the mode, and its relative gradient.

    Or another centre of the expansion, the saddle point, with V left out (NaN).
    """

    whitening: Whitening
    potential: Float[Array, ""]
    gradient_norm: Float[Array, ""]

    @property
    def point(self) -> Point:
        """The mode."""
        return self.whitening.centre


def find_mode(
    likelihood: GaussianProcess, arch: Architecture, max_steps: int = 200, start: Point | None = None
) -> tuple[Mode, Problem]:
    """Mode of the collapsed posterior with its Laplace covariance, and the arrays of the posterior.

    The search starts at `start`, such as the saddle point's, without the columns that a narrow layer lacks, or at the GP
    limit; where a layer is narrow, always at the saddle point, which tells the order of its rows. Raises NotConverged if the
    mode was not found.
    """
    likelihood = compressed(likelihood, arch)
    problem, shapes = problem_of(likelihood, arch), layer_shapes(arch)
    size = sum(shape.size for shape in shapes)
    if start is None and narrow(shapes):
        start = rough_saddle_point(likelihood, arch, max_steps).point
    if start is None:
        start = unwhiten(jnp.zeros(size), shapes, problem.widths)
    elif narrow(shapes) or len(start) != size:
        full = layer_shapes(arch, full=True)
        start, order = narrowed(start, full, shapes, problem.widths, problem.variances, problem.skips)
        problem = problem._replace(order=order)
    if size > MOST_COORDINATES:
        mode = _mode_of_many(problem, start, shapes, max_steps)
    else:
        if size > MOST_FOR_HESSIAN:
            origin, stretch = stretched(shapes, problem.widths)
            start = origin + stretch * _by_gradients(problem, start, shapes, max_steps, ROUGH).point
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


class Basin(NamedTuple):
    """A minimum of V, the scale of its Laplace covariance, and the log of the mass that a Gaussian of that has."""

    centre: np.ndarray
    scale: np.ndarray
    log_mass: float


def basins(problem: Problem, shapes: Shapes, starts: Checked, max_steps: int = 200) -> list[Basin]:
    """Minima of V that searches by gradients from several points end in, one of its images each, greatest mass first.

    They need not be at rest: a proposal is made of them. Curvatures are differences of gradients, and no less than `FLAT`.
    """
    origin, stretch = (np.asarray(each) for each in stretched(shapes, problem.widths))
    data, signs = (problem, origin, stretch), mirrored(shapes, problem.order)

    def numbers(whitened: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = jax.device_get(value_and_gradient(_whitened_potential, shapes, whitened, data))
        return (float(value), gradient) if np.isfinite(value) else (np.inf, np.zeros_like(whitened))

    found: list[Basin] = []
    options = {"maxiter": STEPS_EACH * max_steps, "maxls": 40, "ftol": 1e-8, "gtol": 1e-3}
    for start in starts:
        end = optimize.minimize(numbers, (start - origin) / stretch, jac=True, method="L-BFGS-B", options=options)
        centre = origin + stretch * end.x
        apart = (np.linalg.solve(basin.scale, (signs * centre - basin.centre).T) for basin in found)
        known = (np.linalg.norm(each, axis=0).min() < SAME for each in apart)
        if not np.isfinite(end.fun) or any(known):
            continue
        steps = CURVED * np.eye(len(centre))
        slopes = np.array([numbers(end.x + step)[1] - numbers(end.x - step)[1] for step in steps]) / (2 * CURVED)
        if not np.isfinite(slopes).all():
            continue
        curvatures, directions = np.linalg.eigh((slopes + slopes.T) / 2)
        lengths = 1 / np.sqrt(np.maximum(np.abs(curvatures), FLAT))
        log_volume = np.sum(np.log(lengths * np.sqrt(2 * np.pi) * stretch))
        found.append(Basin(centre, stretch[:, None] * directions * lengths, float(log_volume - end.fun)))
    return sorted(found, key=lambda basin: -basin.log_mass)


def is_only_mode(mode: Mode, problem: Problem, shapes: Shapes, key: Key[Array, ""]) -> bool:
    """Whether searches from points as far apart as prior draws end in this mode, or in others of hardly any Laplace mass.

    With many coordinates, where a search costs as much as all else, it is taken for granted.
    """
    size = len(mode.point)
    if size > MOST_SEARCHED:
        return True
    origin, stretch = stretched(shapes, problem.widths)
    prior_scale = stretch / np.sqrt(PRIOR_CURVATURE)
    own = mode.whitening.log_volume() - mode.potential
    for start in origin + prior_scale * jax.random.normal(key, (SEARCHES, size)):
        other = _mode(problem, start, shapes, 200)
        mass = other.whitening.log_volume() - other.potential
        apart = jnp.linalg.norm(mode.whitening.whitened(other.point)) > SAME
        if jnp.isfinite(other.gradient_norm) & apart & (mass > own - NEGLIGIBLE):
            return False
    return True


def _by_gradients(problem: Problem, start: Point, shapes: Shapes, max_steps: int, tolerance: float) -> Found:
    """The minimum of V, or a point as near to it as the tolerance says, in whitened coordinates."""
    origin, stretch = stretched(shapes, problem.widths)
    begin = np.asarray((start - origin) / stretch)
    return minimum_by_gradients(_whitened_potential, (problem, origin, stretch), shapes, begin, max_steps, tolerance)


@partial(jax.jit, static_argnames="shapes")
def _mode(problem: Problem, start: Point, shapes: Shapes, max_steps: int) -> Mode:
    local = local_potential(problem, shapes)
    origin, stretch = stretched(shapes, problem.widths)

    def whitened_local(whitened):
        at = local(origin + stretch * whitened)
        return Local(at.value, stretch * at.gradient, at.hessian * jnp.outer(stretch, stretch))

    def whitened_potential(whitened):
        return _whitened_potential(whitened, problem, origin, stretch, shapes)

    best, at, gradient, _ = minimum(whitened_potential, whitened_local, (start - origin) / stretch, max_steps)
    scale = stretch[:, None] * spanning(at.hessian)
    return _mode_at(best, Whitening(origin, scale), at.value, gradient, problem, origin, stretch, shapes)


def _mode_of_many(problem: Problem, start: Point, shapes: Shapes, max_steps: int) -> Mode:
    """The same without the curvature in all pairs of entries of U.

    Of the Laplace covariance only the directions that the data know most of are had, by Lanczos' method; in all others it is
    the prior's.
    """
    (origin, stretch), size = stretched(shapes, problem.widths), len(start)
    data = problem, origin, stretch
    # Twice at most: the slope at the start, which the tolerance is relative to, may be far greater than at the mode.
    for _ in range(2):
        found = _by_gradients(problem, start, shapes, max_steps, GRADIENT_TOLERANCE / 10)
        whitening = _leading(found.point, size, data, shapes)
        mode = _mode_at(found.point, whitening, found.value, found.gradient, *data, shapes)
        if mode.gradient_norm <= GRADIENT_TOLERANCE or found.iterations >= STEPS_EACH * max_steps:
            break
        start = mode.whitening.centre
    return mode


def _leading(point: Checked, size: int, data: tuple[Any, ...], shapes: Shapes) -> Whitening:
    """Whitening along the directions of greatest curvature at a point, by the prior in all others."""
    _, origin, stretch = data

    def times(direction: np.ndarray) -> np.ndarray:
        return np.asarray(hessian_times(_whitened_potential, shapes, jnp.asarray(direction), point, data))

    curved: Any = LinearOperator((size, size), matvec=times, dtype=np.float64)  # pyright: ignore[reportCallIssue]
    options: Any = {"which": "LA", "tol": LANCZOS_TOLERANCE, "v0": np.ones(size)}
    curvatures, directions = eigsh(curved, min(LEADING, size // 4), **options)
    shrinks = np.sqrt(PRIOR_CURVATURE / curvatures)
    return Whitening(origin, stretch / np.sqrt(PRIOR_CURVATURE), jnp.asarray(directions), jnp.asarray(shrinks))


def _whitened_potential(whitened, problem: Problem, origin: Point, stretch: Point, shapes: Shapes):
    return potential(origin + stretch * whitened, problem, shapes)


@partial(jax.jit, static_argnames="shapes")
def _mode_at(best, whitening, value, gradient, problem: Problem, origin: Point, stretch: Point, shapes: Shapes) -> Mode:
    """The mode where V has such a value and largest slope, with its whitening, which is centred here."""
    point = origin + stretch * best
    slope = stretch * jax.grad(lambda p: problem.likelihood.energy(problem.factor(p, shapes)))(point)
    norm = gradient / jnp.maximum(jnp.max(jnp.abs(slope)) / 2, SMALLEST_GRADIENT_SCALE)
    # A Hessian that is not positive definite has no Cholesky factor, and the point is no mode.
    singular = is_singular(problem.likelihood, problem.factor(point, shapes))
    norm = jnp.where(jnp.isfinite(whitening.log_volume()) & ~singular, norm, jnp.inf)
    return Mode(whitening._replace(centre=point), jnp.asarray(value), norm)


def spanning(hessian: Float[Array, "coordinate coordinate"]) -> Float[Array, "coordinate coordinate"]:
    """Columns that span S = H^-1: those of L^-T, where H = L L^T."""
    return jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(hessian), jnp.eye(len(hessian)), lower=True).T
