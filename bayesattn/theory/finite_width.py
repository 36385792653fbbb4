"""The exact law of the order parameter to first order in 1/N, around its mode in Bartlett coordinates.

Derived for this project: with V minus the log posterior density of a point of `bayesattn.theory.bartlett`, m its mode,
S the inverse of V's Hessian there and T3 its third derivative,

    E[g] = g(m) + grad g . shift + tr(Hess g S) / 2,   shift = -S (T3 : S) / 2,   Cov[g] = grad g S grad g^T,

up to relative errors O(1/N^2) of the mean. Unlike the saddle point this keeps the shapes of the chi-squared laws.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayesattn._checks import Checked
from bayesattn.architecture import Architecture
from bayesattn.theory.action import checked_data
from bayesattn.theory.bartlett import LayerShape, cholesky_factors, layer_shapes, log_prior, unwhiten
from bayesattn.theory.kernels import PathKernels, checked_path_inputs, energy_model, is_singular, path_kernels
from bayesattn.theory.minimise import Local, minimum
from bayesattn.theory.predictor import Prediction, conditional_prediction
from bayesattn.theory.saddle_point import (
    GRADIENT_TOLERANCE,
    SMALLEST_GRADIENT_SCALE,
    NotConverged,
    bartlett_energy,
    composite,
    likely_cause,
)

Point = Float[Array, " coordinate"]
Shapes = tuple[LayerShape, ...]


class Problem(NamedTuple):
    """Arrays that the posterior of a point depends on, besides the shapes of its layers."""

    kernels: PathKernels
    labels: Float[Array, " example"]
    widths: Float[Array, " layer"]
    variances: Float[Array, " layer_and_input"]
    temperature: Float[Array, ""]


class Mode(NamedTuple):
    """Mode of the collapsed posterior, columns that span S = scale scale^T, V at the mode, and its relative gradient."""

    point: Point
    scale: Float[Array, "coordinate coordinate"]
    potential: Float[Array, ""]
    gradient_norm: Float[Array, ""]


class FiniteWidth(NamedTuple):
    """Posterior mean and standard deviation of U, and the predictor, with their corrections of order 1/N.

    `prediction` is None without test examples; its variance is the mean of variances plus the variance of means.
    """

    order_parameter: Float[Array, "path path"]
    order_parameter_std: Float[Array, "path path"]
    prediction: Prediction | None
    gradient_norm: Float[Array, ""]


def finite_width(
    path_inputs: Any,
    labels: Any,
    arch: Architecture,
    temperature: Checked,
    test_path_inputs: Any = None,
    *,
    max_steps: int = 200,
) -> FiniteWidth:
    """Order parameter and predictor at finite width, to first order beyond the saddle point.

    Args:
        path_inputs: xi of shape (P, Pi, N_0).
        labels: Y of shape (P,).
        arch: the network.
        temperature: T, variance of the likelihood.
        test_path_inputs: xi of shape (P_test, Pi, N_0) at which the predictor is wanted.
        max_steps: most Newton steps to the mode.

    Raises:
        ValueError: wrong shapes, entries that are not finite, a temperature that is not above 0.
        NotConverged: the mode was not found.
    """
    mode, problem = find_mode(path_inputs, labels, arch, temperature, max_steps)
    mean, std = _order_parameter(mode, problem, layer_shapes(arch))
    prediction = None
    if test_path_inputs is not None:
        features = np.shape(path_inputs)[2]
        test = checked_path_inputs("test_path_inputs", test_path_inputs, arch, features=features)
        prediction = _predictor(mode, problem, jnp.asarray(path_inputs), jnp.asarray(test), layer_shapes(arch))
    return FiniteWidth(mean, std, prediction, mode.gradient_norm)


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
    path_inputs: Any, labels: Any, arch: Architecture, temperature: Checked, max_steps: int = 200
) -> tuple[Mode, Problem]:
    """Mode of the collapsed posterior with its Laplace covariance, and the arrays of the posterior.

    Raises ValueError if the arrays do not fit, NotConverged if the mode was not found.
    """
    problem, shapes = checked_problem(path_inputs, labels, arch, temperature), layer_shapes(arch)
    mode = _mode(problem, shapes, max_steps)
    if not mode.gradient_norm <= GRADIENT_TOLERANCE:
        raise NotConverged(
            f"the mode of the collapsed posterior was not found: relative gradient {float(mode.gradient_norm):.1e},"
            f" expected at most {GRADIENT_TOLERANCE:.0e}; {likely_cause(path_inputs, labels, arch, float(temperature))}",
            mode,
        )
    return mode, problem


def potential(point: Point, problem: Problem, shapes: Shapes) -> Float[Array, ""]:
    """Minus the log of prior density times likelihood, both normalised, at a point of Bartlett coordinates."""
    kernels, labels, widths, variances, temperature = problem
    energy = bartlett_energy(point, kernels, labels, temperature, shapes, widths, variances)
    return energy / 2 + len(labels) * np.log(2 * np.pi) / 2 - log_prior(point, shapes, widths)


def local_potential(problem: Problem, shapes: Shapes) -> Callable[[Point], Local]:
    """Value, gradient and Hessian of `potential`, by `energy_model`."""
    kernels, labels, widths, variances, temperature = problem

    def model(point):
        factor = cholesky_factors(point, shapes, widths, variances)[0]
        return energy_model(kernels, factor, labels, temperature)

    def rest(point):
        return len(labels) * np.log(2 * np.pi) / 2 - log_prior(point, shapes, widths)

    return composite(model, 0.5, lambda point: _order_parameter_at(point, problem, shapes), rest)


def expansion(function: Callable, potential: Callable, mode: Mode):
    """Posterior mean of a function of the point to first order, and its derivatives along the columns of `scale`."""

    def second(f, column):
        """First and second derivative of f at the mode along a column."""
        return jax.jvp(lambda p: jax.jvp(f, (p,), (column,))[1], (mode.point,), (column,))

    columns = mode.scale.T
    # Gradient of column^T Hess V column, summed over columns: T3 : S
    third = jnp.sum(jax.lax.map(lambda column: second(jax.grad(potential), column)[1], columns), axis=0)
    shift = -mode.scale @ (mode.scale.T @ third) / 2
    slopes, curvatures = jax.lax.map(partial(second, function), columns)
    value, shifted = jax.jvp(function, (mode.point,), (shift,))
    mean = jax.tree.map(lambda v, s, c: v + s + jnp.sum(c, axis=0) / 2, value, shifted, curvatures)
    return mean, slopes


@partial(jax.jit, static_argnames=("shapes", "max_steps"))
def _mode(problem: Problem, shapes: Shapes, max_steps: int) -> Mode:
    kernels, labels, widths, variances, temperature = problem

    local = local_potential(problem, shapes)
    start = jnp.zeros(sum(shape.size for shape in shapes))
    origin = unwhiten(start, shapes, widths)
    # Whitened coordinates are stretched, each by a factor of its own.
    stretch = unwhiten(jnp.ones_like(start), shapes, widths) - origin

    def whitened_local(whitened):
        at = local(origin + stretch * whitened)
        return Local(at.value, stretch * at.gradient, at.hessian * jnp.outer(stretch, stretch))

    def whitened_potential(whitened):
        return potential(origin + stretch * whitened, problem, shapes)

    best, at, gradient, _ = minimum(whitened_potential, whitened_local, start, max_steps)
    # H = L L^T, S = L^-T L^-1: the columns of L^-T span S.
    cholesky = jnp.linalg.cholesky(at.hessian / jnp.outer(stretch, stretch))
    scale = jax.scipy.linalg.solve_triangular(cholesky, jnp.eye(len(start)), lower=True).T
    point = origin + stretch * best
    slope = stretch * jax.grad(lambda p: bartlett_energy(p, kernels, labels, temperature, shapes, widths, variances))(
        point
    )
    norm = gradient / jnp.maximum(jnp.max(jnp.abs(slope)) / 2, SMALLEST_GRADIENT_SCALE)
    # A Hessian that is not positive definite has no Cholesky factor, and the point is no mode.
    singular = is_singular(kernels(cholesky_factors(point, shapes, widths, variances)[0]), len(labels), temperature)
    norm = jnp.where(jnp.isfinite(scale).all() & ~singular, norm, jnp.inf)
    return Mode(point, scale, at.value, norm)


def _order_parameter_at(point: Point, problem: Problem, shapes: Shapes) -> Float[Array, "path path"]:
    factor = cholesky_factors(point, shapes, problem.widths, problem.variances)[0]
    return factor @ factor.T


@partial(jax.jit, static_argnames="shapes")
def _order_parameter(mode: Mode, problem: Problem, shapes: Shapes):
    mean, slopes = expansion(
        lambda p: _order_parameter_at(p, problem, shapes), lambda p: potential(p, problem, shapes), mode
    )
    return mean, jnp.sqrt(jnp.sum(slopes**2, axis=0))


@partial(jax.jit, static_argnames="shapes")
def _predictor(mode: Mode, problem: Problem, path_inputs, test_path_inputs, shapes: Shapes) -> Prediction:
    def at_point(point):
        return conditional_prediction(
            _order_parameter_at(point, problem, shapes),
            path_inputs,
            problem.labels,
            test_path_inputs,
            problem.variances[0],
            problem.temperature,
        )

    mean, slopes = expansion(at_point, lambda p: potential(p, problem, shapes), mode)
    return Prediction(mean.mean, mean.variance + jnp.sum(slopes.mean**2, axis=0))
