"""The loss given the order parameter: its expectation, an attained value, and the spread of each example's loss.

Given U, f is a Gaussian process, so the sum of squares S = |Y - f|^2 has an expectation in closed form,
E[S | U, Y] = T (P m - T dE/dT), where E(U, T) = log det(K + T I) + Y^T (K + T I)^{-1} Y. The expectation of
S / (2 T) is at once the derivative of log p(Y | U) + P m log(T) / 2 by log T.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayesattn.kernels import Factor, GaussianProcess
from bayesattn.kernels.energies import cholesky
from bayesattn.kernels.gaussian_process import smaller_by_features
from bayesattn.models.model import Model
from bayesattn.theory.bartlett import layer_shapes
from bayesattn.theory.potential import Problem, Shapes, problem_of


class Loss(NamedTuple):
    """Expectation of S / (2 T) given U, and its derivative by log T, for each draw."""

    mean: Float[np.ndarray, "*draw"]
    slope: Float[np.ndarray, "*draw"]


def factors(model: Model, points: Float[np.ndarray, "draw coordinate"]) -> Float[Array, "draw row column"]:
    """Factors F of draws, U = F F^T, from their Bartlett coordinates, which keep more digits than U."""
    arch = model.architecture
    return _factors(problem_of(model.gaussian_process, arch), jnp.asarray(points), layer_shapes(arch))


@partial(jax.jit, static_argnames="shapes")
def _factors(problem: Problem, points: Array, shapes: Shapes) -> Array:
    return jax.vmap(lambda point: problem.factor(point, shapes))(points)


def loss(process: GaussianProcess, drawn: Float[Array, "draw row column"]) -> Loss:
    """Expected S / (2 T) given each draw of U, and its derivative by log T."""
    return Loss(*map(np.asarray, _loss(process, drawn)))


@jax.jit
def _loss(process: GaussianProcess, drawn: Float[Array, "draw row column"]) -> tuple[Array, Array]:
    def one(factor: Factor) -> tuple[Array, Array]:
        def mean(log_temperature: Array) -> Array:
            energy = lambda log_t: process.at(jnp.exp(log_t)).energy(factor)  # noqa: E731
            return (process.labels.size - jax.grad(energy)(log_temperature)) / 2

        return jax.value_and_grad(mean)(jnp.log(process.temperature))

    return jax.lax.map(one, drawn)


@jax.jit
def attained(process: GaussianProcess, drawn: Float[Array, "draw row column"]) -> Float[Array, " draw"]:
    """|Y - E[f | U, Y]|^2 at each draw of U, T^2 |A^{-1} Y|^2: some weights attain it, so it bounds S* from above."""

    def one(factor: Factor) -> Array:
        # The gradient of Y^T A^{-1} Y by Y is 2 A^{-1} Y.
        slope = jax.grad(lambda labels: process.with_labels(labels).energy(factor))(process.labels)
        return jnp.sum((process.temperature * slope / 2) ** 2)

    return jax.lax.map(one, drawn)


@jax.jit
def example_losses(process: GaussianProcess, drawn: Float[Array, "draw row column"]) -> tuple[Array, Array]:
    """Mean and variance of |Y_i - f_i|^2 / (2 T) given each draw of U, shape (draw, example).

    This loss is minus the log density of the labels of an example, up to a constant.
    f_i | U, Y is Gaussian; with r = Y_i - f_i of mean d and covariance C, |r|^2 has mean |d|^2 + tr C and variance
    2 tr C^2 + 4 d^T C d.
    """

    def one(factor: Factor) -> tuple[Array, Array]:
        outputs, labels = process.outputs, process.flat_labels
        temperature, mixed = process.temperature, process.mixed(factor)
        if smaller_by_features(factor.shape[1], process.features.shape[1], labels.size):
            lower = cholesky(mixed.T @ mixed, temperature)
            rows = jax.scipy.linalg.solve_triangular(lower, mixed.T, lower=True).T.reshape(-1, outputs, len(lower))
            covariance = temperature * jnp.einsum("eal,ebl->eab", rows, rows)
            missed = labels - rows.reshape(len(labels), -1) @ (rows.reshape(len(labels), -1).T @ labels)
        else:
            lower = cholesky(process.kernel(factor), temperature)
            columns = jax.scipy.linalg.solve_triangular(lower, jnp.eye(len(lower)), lower=True)
            missed = temperature * (columns.T @ (columns @ labels))
            by_example = columns.reshape(len(lower), -1, outputs)
            precision = jnp.einsum("lea,leb->eab", by_example, by_example)
            covariance = temperature * (jnp.eye(outputs) - temperature * precision)
        missed = missed.reshape(-1, outputs)
        mean = jnp.sum(missed**2, 1) + jnp.trace(covariance, axis1=1, axis2=2)
        variance = 2 * jnp.sum(covariance**2, (1, 2)) + 4 * jnp.einsum("ea,eab,eb->e", missed, covariance, missed)
        return mean / (2 * temperature), variance / (2 * temperature) ** 2

    return jax.lax.map(one, drawn)
