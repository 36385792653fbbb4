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
from bayesattn._util.run_once import jit_once
from bayesattn.architecture import Architecture
from bayesattn.kernels.forms import compressed
from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.theory.bartlett import (
    layer_shapes,
    narrow,
    narrowed,
    strengths_of_rows,
    unwhiten,
)
from bayesattn.theory.minimise import (
    LBFGS_STEPS_PER_NEWTON_STEP,
    LbfgsResult,
    Local,
    hessian_times,
    minimum,
    minimum_by_gradients,
    value_and_gradient,
)
from bayesattn.theory.potential import (
    MOST_COORDINATES,
    Point,
    Posed,
    Problem,
    Shapes,
    Whitening,
    WithNumbers,
    potential,
    problem_of,
)
from bayesattn.theory.saddle_point import (
    GRADIENT_TOLERANCE,
    MOST_COORDINATES_FOR_HESSIAN,
    SMALLEST_GRADIENT_SCALE,
    NotConverged,
    likely_cause,
    rough_saddle_point,
)

LEADING_DIRECTIONS, LANCZOS_TOLERANCE = 100, 1e-3
"""Directions of largest curvature that whitening uses with many coordinates, and the relative error of their curvatures."""
MODE_SEARCHES, MOST_COORDINATES_SEARCHED, NEGLIGIBLE_LOG_MASS = 4, 200, 5.0
"""Searches for another mode, the most coordinates for which they are made, and nats below which a mode is negligible."""
MOST_STEPS = 1000
"""Newton steps of a search. At T = 1e-6, along a nearly flat valley of three narrow layers, 200 were too few."""
SAME_MINIMUM_DISTANCE = 0.3
"""Laplace standard deviations within which two searches have ended in the same minimum."""
DIFFERENCE_STEP, LEAST_CURVATURE = 1e-4, 0.05
"""Step of finite differences for a curvature, and the least curvature that counts, in whitened coordinates."""
PRIOR_CURVATURE = 0.5
"""Curvature of minus the log prior density in coordinates in which the entropy, twice this function, has curvature 1."""


class FlatMode(NotConverged):
    """The search ended where the curvature vanishes in some direction, as on a ring of modes of a narrow network.

    The posterior is proper there, but has no Laplace approximation. `.problem` has the arrays of the posterior.
    """

    def __init__(self, message: str, solution: "Mode", problem: Problem):
        super().__init__(message, solution)
        self.problem = problem


class Mode(NamedTuple):
    """Mode of the collapsed posterior and its Laplace covariance, V at the mode, and its relative gradient.

    Also used for another centre of the expansion, the saddle point, without V (NaN).
    """

    whitening: Whitening
    potential: Float[Array, ""]
    gradient_norm: Float[Array, ""]

    @property
    def point(self) -> Point:
        """The mode itself."""
        return self.whitening.centre


def find_mode(
    process: GaussianProcess, arch: Architecture, max_steps: int = MOST_STEPS, start: Point | None = None
) -> tuple[Mode, Problem]:
    """Mode of the collapsed posterior with its Laplace covariance, and the arrays of the posterior.

    The search starts at `start`, such as the saddle point, without the columns that a narrow layer lacks, or at the GP
    limit. If a layer is narrow, it always starts at the saddle point, which determines the order of its rows. Raises
    NotConverged if the mode was not found, FlatMode if it is not a single point.
    """
    process = compressed(process, arch)
    problem, shapes = problem_of(process, arch), layer_shapes(arch)
    size = sum(shape.size for shape in shapes)
    if start is None and narrow(shapes):
        start = rough_saddle_point(process, arch).point
    if start is None:
        start = jnp.asarray(unwhiten(np.zeros(size), shapes, problem.widths))
    elif narrow(shapes) or len(start) != size:
        full = layer_shapes(arch, full=True)
        strengths = strengths_of_rows(process.features, arch)
        start, order = narrowed(start, full, shapes, problem.widths, problem.variances, problem.skips, strengths)
        problem = problem._replace(order=order)
    if size > MOST_COORDINATES:
        mode = _mode_of_many(problem, start, shapes, max_steps)
    else:
        if size > MOST_COORDINATES_FOR_HESSIAN:
            # A Newton step takes as long as hundreds of gradients, so few are left for it.
            origin, stretch = problem.affine(shapes)
            start = origin + stretch * _by_gradients(problem, start, shapes, max_steps, GRADIENT_TOLERANCE / 10).point
        mode = _mode(problem, start, shapes, max_steps)
    _require_found(mode, problem, arch)
    return mode, problem


def find_mode_with_numbers(problem: WithNumbers, arch: Architecture, start: Point) -> Mode:
    """Mode of U and of the numbers that have priors, together, with its Laplace covariance.

    The search starts at `start`, such as the mode at the medians of the priors, and at these. Raises NotConverged.
    """
    mode = _mode(problem, jnp.append(start, problem.centre), layer_shapes(arch), MOST_STEPS)
    _require_found(mode, problem, arch)
    return mode


def _require_found(mode: Mode, problem: Posed, arch: Architecture) -> None:
    """Raise NotConverged, or FlatMode, if a search has not ended in a mode."""
    # Rounding of the gradient of a density with N degrees of freedom, in units of 1 / sqrt(N).
    widest, shapes = max(arch.widths), layer_shapes(arch)
    rounding = np.finfo(float).eps * np.sqrt(widest) * np.log(widest) / SMALLEST_GRADIENT_SCALE
    if float(mode.gradient_norm) <= max(GRADIENT_TOLERANCE, rounding):
        return
    flat = np.isfinite(mode.potential) and not np.isfinite(mode.whitening.log_volume())
    if narrow(shapes) and flat and not problem.singular(mode.point, shapes):
        raise FlatMode(
            "the mode of the collapsed posterior is not a single point: the posterior is flat in some direction there,"
            " as that of a narrow network may be if a head sees nothing, and has no Laplace approximation",
            mode,
            problem.known if isinstance(problem, WithNumbers) else problem,
        )
    raise NotConverged(
        f"the mode of the collapsed posterior was not found: relative gradient {float(mode.gradient_norm):.1e},"
        f" expected at most {GRADIENT_TOLERANCE:.0e}; {likely_cause(problem.process, arch)}",
        mode,
    )


class Basin(NamedTuple):
    """Minimum of V, scale of its Laplace covariance, and log mass of a Gaussian with this covariance."""

    centre: np.ndarray
    scale: np.ndarray
    log_mass: float


def basins(problem: Posed, shapes: Shapes, starts: Checked, max_steps: int = 200) -> list[Basin]:
    """Minima of V at the ends of gradient searches from several points, one image of each, largest mass first.

    The searches need not converge fully, because the minima only define a proposal. Curvatures are differences of
    gradients, and at least `LEAST_CURVATURE`.
    """
    origin, stretch = map(np.asarray, problem.affine(shapes))
    data, signs = (problem, origin, stretch), problem.signs(shapes)

    def numbers(whitened: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = jax.device_get(value_and_gradient(_whitened_potential, shapes, whitened, data))
        return (float(value), gradient) if np.isfinite(value) else (np.inf, np.zeros_like(whitened))

    minima: list[Basin] = []
    options = {"maxiter": LBFGS_STEPS_PER_NEWTON_STEP * max_steps, "maxls": 40, "ftol": 1e-8, "gtol": 1e-3}
    for start in starts:
        end = optimize.minimize(numbers, (start - origin) / stretch, jac=True, method="L-BFGS-B", options=options)
        centre = origin + stretch * end.x
        apart = (np.linalg.solve(basin.scale, (signs * centre - basin.centre).T) for basin in minima)
        repeats = (np.linalg.norm(each, axis=0).min() < SAME_MINIMUM_DISTANCE for each in apart)
        if not np.isfinite(end.fun) or any(repeats):
            continue
        steps = DIFFERENCE_STEP * np.eye(len(centre))
        slopes = np.array([numbers(end.x + step)[1] - numbers(end.x - step)[1] for step in steps]) / (
            2 * DIFFERENCE_STEP
        )
        if not np.isfinite(slopes).all():
            continue
        curvatures, directions = np.linalg.eigh((slopes + slopes.T) / 2)
        lengths = 1 / np.sqrt(np.maximum(np.abs(curvatures), LEAST_CURVATURE))
        log_volume = np.sum(np.log(lengths * np.sqrt(2 * np.pi) * stretch))
        minima.append(Basin(centre, stretch[:, None] * directions * lengths, float(log_volume - end.fun)))
    return sorted(minima, key=lambda basin: -basin.log_mass)


def is_only_mode(mode: Mode, problem: Posed, shapes: Shapes, key: Key[Array, ""]) -> bool:
    """Whether searches from points as far apart as prior draws end in this mode, or in others of negligible Laplace mass.

    With many coordinates, with which a search costs as much as everything else, the mode is assumed to be the only one.
    """
    size = len(mode.point)
    if size > MOST_COORDINATES_SEARCHED:
        return True
    origin, stretch = map(np.asarray, problem.affine(shapes))
    prior_scale = stretch / np.sqrt(PRIOR_CURVATURE)
    own = mode.whitening.log_volume() - mode.potential
    for start in origin + prior_scale * np.asarray(jax.random.normal(key, (MODE_SEARCHES, size))):
        other = _mode(problem, start, shapes, 200)
        mass = other.whitening.log_volume() - other.potential
        apart = np.linalg.norm(mode.whitening.whitened(other.point)) > SAME_MINIMUM_DISTANCE
        if np.isfinite(other.gradient_norm) and apart and mass > own - NEGLIGIBLE_LOG_MASS:
            return False
    return True


def _by_gradients(problem: Posed, start: Point, shapes: Shapes, max_steps: int, tolerance: float) -> LbfgsResult:
    """Minimum of V, or a point as near to it as the tolerance says, in whitened coordinates."""
    origin, stretch = problem.affine(shapes)
    begin = np.asarray((start - origin) / stretch)
    return minimum_by_gradients(_whitened_potential, (problem, origin, stretch), shapes, begin, max_steps, tolerance)


@partial(jit_once, static_argnames="shapes")
def _mode(problem: Posed, start: Point, shapes: Shapes, max_steps: int) -> Mode:
    local = problem.local(shapes)
    origin, stretch = problem.affine(shapes)

    def whitened_local(whitened):
        at = local(origin + stretch * whitened)
        return Local(at.value, stretch * at.gradient, at.hessian * jnp.outer(stretch, stretch))

    def whitened_potential(whitened):
        return _whitened_potential(whitened, problem, origin, stretch, shapes)

    best, at, gradient, _ = minimum(whitened_potential, whitened_local, (start - origin) / stretch, max_steps)
    scale = stretch[:, None] * spanning(at.hessian)
    return _mode_at(best, Whitening(origin, scale), at.value, gradient, problem, origin, stretch, shapes)


def _mode_of_many(problem: Posed, start: Point, shapes: Shapes, max_steps: int) -> Mode:
    """Mode without the curvature in all pairs of entries of U.

    The Laplace covariance is computed only in the best-determined directions, by Lanczos' method; in all others it
    is the prior's.
    """
    (origin, stretch), size = problem.affine(shapes), len(start)
    data = problem, origin, stretch
    # Twice at most: the tolerance is relative to the slope at the start, which may be far larger than at the mode.
    for _ in range(2):
        end = _by_gradients(problem, start, shapes, max_steps, GRADIENT_TOLERANCE / 10)
        whitening = _leading(end.point, size, data, shapes)
        mode = _mode_at(end.point, whitening, end.value, end.gradient, *data, shapes)
        if mode.gradient_norm <= GRADIENT_TOLERANCE or end.iterations >= LBFGS_STEPS_PER_NEWTON_STEP * max_steps:
            break
        start = mode.whitening.centre
    return mode


def _leading(point: Checked, size: int, data: tuple[Posed, Point, Point], shapes: Shapes) -> Whitening:
    """Whitening by the directions of largest curvature at a point, and by the prior in all other directions."""
    _, origin, stretch = data

    def times(direction: np.ndarray) -> np.ndarray:
        return np.asarray(hessian_times(_whitened_potential, shapes, jnp.asarray(direction), point, data))

    curved = LinearOperator((size, size), matvec=times, dtype=np.float64)  # pyright: ignore[reportCallIssue]
    options: Any = {"which": "LA", "tol": LANCZOS_TOLERANCE, "v0": np.ones(size)}
    curvatures, directions = eigsh(curved, min(LEADING_DIRECTIONS, size // 4), **options)
    shrinks = np.sqrt(PRIOR_CURVATURE / curvatures)
    return Whitening(origin, stretch / np.sqrt(PRIOR_CURVATURE), jnp.asarray(directions), jnp.asarray(shrinks))


def _whitened_potential(whitened, problem: Posed, origin: Point, stretch: Point, shapes: Shapes):
    return potential(origin + stretch * whitened, problem, shapes)


@partial(jax.jit, static_argnames="shapes")
def _mode_at(best, whitening, value, gradient, problem: Posed, origin: Point, stretch: Point, shapes: Shapes) -> Mode:
    """Mode at a point with this value and largest slope of V, and with its whitening, which is centred here."""
    point = origin + stretch * best
    slope = stretch * jax.grad(lambda p: problem.energy(p, shapes))(point)
    norm = gradient / jnp.maximum(jnp.max(jnp.abs(slope)) / 2, SMALLEST_GRADIENT_SCALE)
    # A Hessian that is not positive definite has no Cholesky factor, and the point is not a mode.
    singular = problem.singular(point, shapes)
    norm = jnp.where(jnp.isfinite(whitening.log_volume()) & ~singular, norm, jnp.inf)
    return Mode(whitening._replace(centre=point), jnp.asarray(value), norm)


def spanning(hessian: Float[Array, "coordinate coordinate"]) -> Float[Array, "coordinate coordinate"]:
    """Columns that span S = H^-1: those of L^-T, with H = L L^T."""
    return jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(hessian), jnp.eye(len(hessian)), lower=True).T
