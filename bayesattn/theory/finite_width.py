"""The exact law of the order parameter to first order in 1/N.

Derived for this project: with V minus the log posterior density of a point of `bayesattn.theory.bartlett`, c a centre, S the
inverse of V's Hessian there and T3 its third derivative,

    E[g] = g(c) + grad g . shift + tr(Hess g S) / 2,   shift = -S (grad V + T3 : S / 2),   Cov[g] = grad g S grad g^T,

up to relative errors O(1/N^2) of the mean. There are two centres. The mode of V in Bartlett coordinates keeps the shapes of
the chi-squared laws, but those have N, N - 1, N - 2, .. degrees of freedom, which treats path pieces unequally and fails
where a layer is hardly wider than their number, let alone narrower. About the saddle point all of V that does not grow with
N counts as a perturbation, so that every path is treated alike.

The predictor depends on the point through U alone. With dU_c the derivatives of U along columns c that span S, its mean is
g(U(c)) + Dg[E[U] - U(c)] + sum_c D^2 g[dU_c, dU_c] / 2, and the derivatives of g are known in closed form.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayesattn._checks import Checked, one_of
from bayesattn.architecture import Architecture
from bayesattn.theory.action import checked_data
from bayesattn.theory.bartlett import (
    LayerShape,
    Order,
    cholesky_factors,
    layer_shapes,
    log_prior,
    narrow,
    narrowed,
    unwhiten,
)
from bayesattn.theory.kernels import (
    PathKernels,
    checked_path_inputs,
    energy_model,
    gaussian_energy,
    is_singular,
    path_kernels,
    unpack,
)
from bayesattn.theory.minimise import Local, minimum
from bayesattn.theory.of_model import of_model
from bayesattn.theory.predictor import Prediction
from bayesattn.theory.saddle_point import (
    GRADIENT_TOLERANCE,
    SMALLEST_GRADIENT_SCALE,
    NotConverged,
    composite,
    likely_cause,
    solve,
)

Point = Float[Array, " coordinate"]
Shapes = tuple[LayerShape, ...]
WIDE = 2
"""Times a layer must be wider than the number of its path pieces for an expansion about the mode."""


class Problem(NamedTuple):
    """Arrays that the posterior of a point depends on, besides the shapes of its layers."""

    kernels: PathKernels
    labels: Float[Array, " example"]
    widths: Float[Array, " layer"]
    variances: Float[Array, " layer_and_input"]
    temperature: Float[Array, ""]
    order: Order = None

    def factors(self, point: Point, shapes: Shapes) -> list[Float[Array, "row column"]]:
        """F_1, .., F_L, F_a at a point."""
        return cholesky_factors(point, shapes, self.widths, self.variances, self.order)

    def energy(self, point: Point, shapes: Shapes) -> Float[Array, ""]:
        """Energy of THEORY section 4 at a point."""
        return gaussian_energy(self.kernels(self.factors(point, shapes)[0]), self.labels, self.temperature)


class Mode(NamedTuple):
    """Mode of the collapsed posterior, columns that span S = scale scale^T, V at the mode, and its relative gradient.

    Or another centre of the expansion, the saddle point, with V left out (NaN).
    """

    point: Point
    scale: Float[Array, "coordinate coordinate"]
    potential: Float[Array, ""]
    gradient_norm: Float[Array, ""]


class Moments(NamedTuple):
    """E[U] to first order, and the derivatives of U along the columns of `Mode.scale`, which span its covariance."""

    mean: Float[Array, "path path"]
    slopes: Float[Array, "coordinate path path"]


class FiniteWidth(NamedTuple):
    """Posterior mean and standard deviation of U, and the predictor, with their corrections of order 1/N.

    `prediction` is None without test examples; its variance is the mean of variances plus the variance of means. `about` is
    the centre of the expansion.
    """

    order_parameter: Float[Array, "path path"]
    order_parameter_std: Float[Array, "path path"]
    prediction: Prediction | None
    gradient_norm: Float[Array, ""]
    about: str


@of_model
def finite_width(
    path_inputs: Any,
    labels: Any,
    arch: Architecture,
    temperature: Checked,
    test_path_inputs: Any = None,
    *,
    about: str | None = None,
    variances: bool = True,
    max_steps: int = 200,
) -> FiniteWidth:
    """Order parameter and predictor at finite width, to first order beyond the saddle point.

    Args:
        path_inputs: xi of shape (P, Pi, N_0); a Model here stands for all that it holds.
        labels: Y of shape (P,).
        arch: the network.
        temperature: T, variance of the likelihood.
        test_path_inputs: xi of shape (P_test, Pi, N_0) at which the predictor is wanted.
        about: "mode" or "saddle", the centre of the expansion; by default the saddle point where a layer is narrower than
            twice the number of its path pieces, H_l .. H_L.
        variances: whether its variances are wanted too, which cost most; NaN otherwise.
        max_steps: most Newton steps to the mode.

    Raises:
        ValueError: wrong shapes, entries that are not finite, a temperature that is not above 0.
        NotConverged: the mode was not found.
    """
    full = layer_shapes(arch, full=True)
    if about is None:
        wide = all(width >= WIDE * shape.rows for width, shape in zip(arch.widths, full, strict=True))
        about = "mode" if wide else "saddle"
    if one_of("about", about, ("mode", "saddle")) == "mode":
        (centre, problem), shapes = find_mode(path_inputs, labels, arch, temperature, max_steps), layer_shapes(arch)
    else:
        saddle = solve(path_inputs, labels, arch, temperature, max_steps=max_steps)
        problem, shapes = checked_problem(path_inputs, labels, arch, temperature), full
        centre = Mode(saddle.point, _scale(saddle.point, problem, shapes), jnp.array(jnp.nan), saddle.gradient_norm)
        if not np.isfinite(centre.scale).all():
            raise NotConverged(
                "the curvature at the saddle point is not positive definite in float64;"
                f" {likely_cause(path_inputs, labels, arch, float(temperature))}",
                centre,
            )
    moments = _moments(centre, problem, shapes)
    prediction = None
    if test_path_inputs is not None:
        features = np.shape(path_inputs)[2]
        test = checked_path_inputs("test_path_inputs", test_path_inputs, arch, features=features)
        prediction = _predictor(centre, moments, problem, jnp.asarray(test), shapes, variances)
    std = jnp.sqrt(jnp.sum(moments.slopes**2, axis=0))
    return FiniteWidth(moments.mean, std, prediction, centre.gradient_norm, about)


def checked_problem(path_inputs: Any, labels: Any, arch: Architecture, temperature: Checked) -> Problem:
    """The arrays of a posterior; raises ValueError if they do not fit."""
    path_inputs, labels, temperature = checked_data(path_inputs, labels, arch, temperature)
    return Problem(
        path_kernels(jnp.asarray(path_inputs), arch),
        jnp.asarray(labels),
        jnp.array(arch.widths, float),
        jnp.array(arch.variances),
        jnp.asarray(temperature),
    )


def find_mode(
    path_inputs: Any,
    labels: Any,
    arch: Architecture,
    temperature: Checked,
    max_steps: int = 200,
    start: Point | None = None,
) -> tuple[Mode, Problem]:
    """Mode of the collapsed posterior with its Laplace covariance, and the arrays of the posterior.

    The search starts at `start`, such as the saddle point's, without the columns that a narrow layer lacks, or at the GP
    limit; where a layer is narrow, always at the saddle point, which tells the order of its rows. Raises ValueError if the
    arrays do not fit, NotConverged if the mode was not found.
    """
    problem, shapes = checked_problem(path_inputs, labels, arch, temperature), layer_shapes(arch)
    size = sum(shape.size for shape in shapes)
    if start is None and narrow(shapes):
        start = solve(path_inputs, labels, arch, temperature, max_steps=max_steps).point
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
            f" expected at most {GRADIENT_TOLERANCE:.0e}; {likely_cause(path_inputs, labels, arch, float(temperature))}",
            mode,
        )
    return mode, problem


def potential(point: Point, problem: Problem, shapes: Shapes) -> Float[Array, ""]:
    """Minus the log of prior density times likelihood, both normalised, at a point of Bartlett coordinates."""
    constant = len(problem.labels) * np.log(2 * np.pi) / 2
    return problem.energy(point, shapes) / 2 + constant - log_prior(point, shapes, problem.widths)


def local_potential(problem: Problem, shapes: Shapes) -> Callable[[Point], Local]:
    """Value, gradient and Hessian of `potential`, by `energy_model`."""

    def model(point):
        factor = problem.factors(point, shapes)[0]
        return energy_model(problem.kernels, factor, problem.labels, problem.temperature)

    def rest(point):
        return len(problem.labels) * np.log(2 * np.pi) / 2 - log_prior(point, shapes, problem.widths)

    return composite(model, 0.5, lambda point: _order_parameter_at(point, problem, shapes), rest)


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
    scale = _spanning(at.hessian / jnp.outer(stretch, stretch))
    point = origin + stretch * best
    slope = stretch * jax.grad(problem.energy)(point, shapes)
    norm = gradient / jnp.maximum(jnp.max(jnp.abs(slope)) / 2, SMALLEST_GRADIENT_SCALE)
    # A Hessian that is not positive definite has no Cholesky factor, and the point is no mode.
    kernel = problem.kernels(problem.factors(point, shapes)[0])
    singular = is_singular(kernel, len(problem.labels), problem.temperature)
    norm = jnp.where(jnp.isfinite(scale).all() & ~singular, norm, jnp.inf)
    return Mode(point, scale, at.value, norm)


def _order_parameter_at(point: Point, problem: Problem, shapes: Shapes) -> Float[Array, "path path"]:
    factor = problem.factors(point, shapes)[0]
    return factor @ factor.T


def _spanning(hessian: Float[Array, "coordinate coordinate"]) -> Float[Array, "coordinate coordinate"]:
    """Columns that span S = H^-1: those of L^-T, where H = L L^T."""
    return jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(hessian), jnp.eye(len(hessian)), lower=True).T


@partial(jax.jit, static_argnames="shapes")
def _scale(point: Point, problem: Problem, shapes: Shapes) -> Float[Array, "coordinate coordinate"]:
    return _spanning(local_potential(problem, shapes)(point).hessian)


@partial(jax.jit, static_argnames="shapes")
def _moments(mode: Mode, problem: Problem, shapes: Shapes) -> Moments:
    local = local_potential(problem, shapes)
    covariance = mode.scale @ mode.scale.T
    # Gradient of tr(Hess V S) at fixed S: T3 : S
    third = jax.grad(lambda point: jnp.sum(local(point).hessian * covariance))(mode.point)

    def order_parameter(point: Point) -> Float[Array, "path path"]:
        return _order_parameter_at(point, problem, shapes)

    def along(column: Point):
        """First and second derivative at the mode."""
        return jax.jvp(lambda p: jax.jvp(order_parameter, (p,), (column,))[1], (mode.point,), (column,))

    # Of V at the saddle point only the prior's degrees of freedom have a gradient; Hessian and T3 have none of them.
    shift = -covariance @ (local(mode.point).gradient + third / 2)
    value, shifted = jax.jvp(order_parameter, (mode.point,), (shift,))
    slopes, curvatures = jax.vmap(along)(mode.scale.T)
    return Moments(value + shifted + jnp.sum(curvatures, axis=0) / 2, slopes)


@partial(jax.jit, static_argnames=("shapes", "variances"))
def _predictor(
    mode: Mode, moments: Moments, problem: Problem, test_path_inputs, shapes: Shapes, variances: bool
) -> Prediction:
    """By A = K(U) + T I = L L^T, Z = L^{-1} X with X the scaled path inputs, v = X^T A^{-1} Y.

    The mean is x . r with the readout r = U v, whose derivatives along D are r' = D v - U u and r'' = 2 (U Z^T Z D u - D u),
    u = Z^T Z D v. The variance is x . U x - |Z U x|^2; with R = x - Z^T Z U x its derivatives are R . D R and -2 |Z D R|^2.
    """
    kernels, labels = problem.kernels, problem.labels
    factor = problem.factors(mode.point, shapes)[0]
    at, change = factor @ factor.T, moments.mean - factor @ factor.T
    examples, paths, features = kernels.features.shape
    cholesky = jnp.linalg.cholesky(unpack(kernels(factor), examples) + problem.temperature * jnp.eye(examples))
    flat = kernels.features.reshape(examples, -1)
    # L^-1 (X, Y)
    solved = jax.scipy.linalg.solve_triangular(cholesky, jnp.column_stack([flat, labels]), lower=True)
    whitened, pulled = solved[:, :-1], (solved[:, :-1].T @ solved[:, -1]).reshape(paths, features)

    def through(vector: Float[Array, "path feature"]) -> Float[Array, "path feature"]:
        return (whitened.T @ (whitened @ vector.reshape(-1))).reshape(paths, features)

    def derivatives(direction: Float[Array, "path path"]):
        first = through(direction @ pulled)
        return direction @ pulled - at @ first, 2 * (at @ through(direction @ first) - direction @ first)

    slopes, curvatures = jax.vmap(derivatives)(moments.slopes)
    readout = at @ pulled + derivatives(change)[0] + jnp.sum(curvatures, axis=0) / 2
    test = test_path_inputs * jnp.sqrt(problem.variances[0] / (features * paths))
    flat_test = test.reshape(len(test), -1)
    mean = flat_test @ readout.reshape(-1)
    if not variances:
        return Prediction(mean, jnp.full_like(mean, jnp.nan))
    weighed = jnp.einsum("pq,eqf->epf", at, test).reshape(len(test), -1)
    explained = weighed @ whitened.T
    residual = (flat_test - explained @ whitened).reshape(test.shape)

    def bend(direction: Float[Array, "path path"]) -> Float[Array, " test_example"]:
        turned = jnp.einsum("pq,eqf->epf", direction, residual).reshape(len(test), -1)
        return jnp.sum((turned @ whitened.T) ** 2, axis=1)

    variance = jnp.sum(flat_test * weighed, axis=1) - jnp.sum(explained**2, axis=1)
    variance += jnp.einsum("epf,pq,eqf->e", residual, change, residual)
    variance -= jnp.sum(jax.lax.map(bend, moments.slopes), axis=0)
    of_means = jnp.sum((flat_test @ slopes.reshape(len(slopes), -1).T) ** 2, axis=1)
    return Prediction(mean, variance + of_means)
