"""The exact law of the order parameter to first order in 1/N, around its mode in Bartlett coordinates.

Derived for this project: with V minus the log posterior density of a point of `bayesattn.theory.bartlett`, m its mode,
S the inverse of V's Hessian there and T3 its third derivative,

    E[g] = g(m) + grad g . shift + tr(Hess g S) / 2,   shift = -S (T3 : S) / 2,   Cov[g] = grad g S grad g^T,

up to relative errors O(1/N^2) of the mean. Unlike the saddle point this keeps the shapes of the chi-squared laws.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayesattn._checks import Checked
from bayesattn.architecture import Architecture
from bayesattn.theory.action import checked_data
from bayesattn.theory.bartlett import cholesky_factors, layer_shapes, log_prior, unwhiten
from bayesattn.theory.kernels import checked_path_inputs, path_kernels
from bayesattn.theory.minimise import minimum
from bayesattn.theory.predictor import Prediction, conditional_prediction
from bayesattn.theory.saddle_point import GRADIENT_TOLERANCE, SMALLEST_GRADIENT_SCALE, NotConverged, bartlett_energy


class Laplace(NamedTuple):
    """Mode of the collapsed posterior, columns that span S = scale scale^T, shift of the mean, and V at the mode.

    `gradient_norm` is the gradient of V at the mode relative to that of the energy.
    """

    mode: Float[Array, " coordinate"]
    scale: Float[Array, "coordinate coordinate"]
    shift: Float[Array, " coordinate"]
    potential: Float[Array, ""]
    gradient_norm: Float[Array, ""]


class FiniteWidth(NamedTuple):
    """Posterior mean and standard deviation of U, and the predictor, with their corrections of order 1/N.

    `prediction` is None without test examples; its variance is the mean of variances plus the variance of means.
    """

    order_parameter: Float[Array, "path path"]
    order_parameter_std: Float[Array, "path path"]
    prediction: Prediction | None
    laplace: Laplace


def finite_width(
    path_inputs: Any,
    labels: Any,
    arch: Architecture,
    temperature: Checked,
    test_path_inputs: Any = None,
    *,
    max_steps: int = 1000,
) -> FiniteWidth:
    """Order parameter and predictor at finite width, to first order beyond the saddle point.

    Args:
        path_inputs: xi of shape (P, Pi, N_0).
        labels: Y of shape (P,).
        arch: the network.
        temperature: T, variance of the likelihood.
        test_path_inputs: xi of shape (P_test, Pi, N_0) at which the predictor is wanted.
        max_steps: most quasi-Newton steps to the mode.

    Raises:
        ValueError: wrong shapes, entries that are not finite, a temperature that is not above 0.
        NotConverged: the mode was not found.
    """
    path_inputs, labels, temperature = checked_data(path_inputs, labels, arch, temperature)
    test = None
    if test_path_inputs is not None:
        test = checked_path_inputs("test_path_inputs", test_path_inputs, arch, features=path_inputs.shape[2])
        test = jnp.asarray(test)
    kernels, labels, widths = path_kernels(jnp.asarray(path_inputs), arch), jnp.asarray(labels), _floats(arch.widths)
    variances, shapes = _floats(arch.variances), layer_shapes(arch)
    mode = _mode(kernels, labels, widths, variances, temperature, shapes, max_steps)
    result = _finite_width(
        mode, kernels, jnp.asarray(path_inputs), labels, test, widths, variances, temperature, shapes
    )
    _require_converged(result.laplace.gradient_norm, result)
    return result


def potential(point, kernels, labels, widths, variances, temperature, shapes) -> Float[Array, ""]:
    """Minus the log of prior density times likelihood, both normalised, at a point of Bartlett coordinates."""
    energy = bartlett_energy(point, kernels, labels, temperature, shapes, widths, variances)
    return energy / 2 + len(labels) * np.log(2 * np.pi) / 2 - log_prior(point, shapes, widths)


@partial(jax.jit, static_argnames=("shapes", "max_steps"))
def _mode(kernels, labels, widths, variances, temperature, shapes, max_steps):
    """Mode, columns that span the inverse Hessian, and relative gradient; traceable."""

    def energy(whitened):
        point = unwhiten(whitened, shapes, widths)
        return bartlett_energy(point, kernels, labels, temperature, shapes, widths, variances)

    def of_point(point):
        return potential(point, kernels, labels, widths, variances, temperature, shapes)

    start = jnp.zeros(sum(shape.size for shape in shapes))
    best, gradient, _ = minimum(lambda w: of_point(unwhiten(w, shapes, widths)), start, max_steps)
    mode = unwhiten(best, shapes, widths)
    # H = L L^T, S = L^-T L^-1: the columns of L^-T span S.
    cholesky = jnp.linalg.cholesky(
        _columns(lambda v: jax.jvp(jax.grad(of_point), (mode,), (v,))[1], jnp.eye(len(mode)))
    )
    scale = jax.scipy.linalg.solve_triangular(cholesky, jnp.eye(len(mode)), lower=True).T
    norm = gradient / jnp.maximum(jnp.max(jnp.abs(jax.grad(energy)(best))) / 2, SMALLEST_GRADIENT_SCALE)
    return mode, scale, norm


def _floats(numbers) -> Float[Array, " number"]:
    return jnp.array(numbers, float)


def mode_and_scale(path_inputs: Any, labels: Any, arch: Architecture, temperature: Checked, max_steps: int = 1000):
    """Mode of the collapsed posterior in Bartlett coordinates and columns that span its Laplace covariance.

    Raises NotConverged if the mode was not found, or ValueError as `finite_width` does.
    """
    path_inputs, labels, temperature = checked_data(path_inputs, labels, arch, temperature)
    kernels = path_kernels(jnp.asarray(path_inputs), arch)
    mode, scale, norm = _mode(
        kernels,
        jnp.asarray(labels),
        _floats(arch.widths),
        _floats(arch.variances),
        temperature,
        layer_shapes(arch),
        max_steps,
    )
    _require_converged(norm, None)
    return mode, scale


def _require_converged(norm, result) -> None:
    if not norm <= GRADIENT_TOLERANCE:
        raise NotConverged(
            f"the mode of the collapsed posterior was not found: relative gradient {float(norm):.1e},"
            f" expected at most {GRADIENT_TOLERANCE:.0e}; raise max_steps or the temperature",
            result,
        )


def _laplace(mode, scale, norm, of_point) -> Laplace:
    def curvature_gradient(column):
        """Gradient of column^T Hess V column: one term of T3 : S."""
        slope = jax.grad(of_point)
        return jax.jvp(lambda p: jax.jvp(slope, (p,), (column,))[1], (mode,), (column,))[1]

    third = jnp.sum(_columns(curvature_gradient, scale), axis=1)
    return Laplace(mode, scale, -scale @ (scale.T @ third) / 2, of_point(mode), norm)


def expansion(function, approximation: Laplace):
    """Posterior mean of a function of the point to first order, and its derivatives along the columns of `scale`."""

    def along(column):
        return jax.jvp(lambda p: jax.jvp(function, (p,), (column,))[1], (approximation.mode,), (column,))

    slopes, curvatures = jax.lax.map(along, approximation.scale.T)
    value, shifted = jax.jvp(function, (approximation.mode,), (approximation.shift,))
    mean = jax.tree.map(lambda v, s, c: v + s + jnp.sum(c, axis=0) / 2, value, shifted, curvatures)
    return mean, slopes


def _columns(function, directions):
    return jax.lax.map(function, directions.T).T


@partial(jax.jit, static_argnames="shapes")
def _finite_width(mode, kernels, path_inputs, labels, test, widths, variances, temperature, shapes) -> FiniteWidth:
    def of_point(point):
        return potential(point, kernels, labels, widths, variances, temperature, shapes)

    approximation = _laplace(mode[0], mode[1], mode[2], of_point)

    def order_parameter(point):
        factor = cholesky_factors(point, shapes, widths, variances)[0]
        return factor @ factor.T

    mean, slopes = expansion(order_parameter, approximation)
    prediction = None
    if test is not None:

        def predictor(point):
            return conditional_prediction(order_parameter(point), path_inputs, labels, test, variances[0], temperature)

        moments, moment_slopes = expansion(predictor, approximation)
        prediction = Prediction(moments.mean, moments.variance + jnp.sum(moment_slopes.mean**2, axis=0))
    return FiniteWidth(mean, jnp.sqrt(jnp.sum(slopes**2, axis=0)), prediction, approximation)
