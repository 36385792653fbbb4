"""Conditional distributions of a Gaussian process given U: predictions, leave-one-out densities, and drawn labels."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bayesattn.kernels.energies import cholesky, log_det, lower_inverse
from bayesattn.kernels.gaussian_process import GaussianProcess, smaller_by_features
from bayesattn.kernels.path_inputs import Factor, Features, Number, OrderParameter, by_label, mixed

LEAST_PIVOT = 1e5
"""Multiple of the rounding of K that a pivot must exceed for the energy to have six digits.

With K of rank 3 the energy had 5.5 digits at 1e4 and 6.5 at 1e5 (6 to 40 examples), and all digits in feature space.
At about 1000 and below (40 and 100 examples, K of rank 6 and 10), the search for the saddle point reported convergence
at wrong points.
"""
LEAST_DETERMINANT = 1e-6
"""Smallest determinant of I - C_i^T C_i at which leave-one-out densities come from feature space; below it digits cancel.

This happens for an example that alone decides a direction of feature space. At determinants of 1e-8 and 1e-14,
densities from feature space had errors of 3e-10 and 4e-4 (24 examples, T = 0.01, compared with 60 digits).
"""


class Prediction(NamedTuple):
    """Mean and variance of the network's output f on each test example (without the label noise T).

    With several outputs, the last axis runs over outputs.
    """

    mean: Float[Array, "*batch test_example"]
    variance: Float[Array, "*batch test_example"]


def conditional_moments(process: GaussianProcess, order_parameter: OrderParameter, features: Features) -> Prediction:
    """Mean k_*^T (K + T I)^{-1} Y and variance k_** - k_*^T (K + T I)^{-1} k_* of f given U, at scaled path inputs."""
    outputs = process.outputs
    weighed, test = mixed(features, order_parameter, outputs), by_label(features, outputs)
    train, test = by_label(process.features, outputs), test.reshape(len(test), -1)
    cross = train.reshape(len(train), -1) @ weighed.T
    # K + T I = L L^T: mean = (L^-1 k_*)^T L^-1 Y, explained variance = |L^-1 k_*|^2
    _, whitened, labels = process.whitened(process.kernel_of(order_parameter), cross)
    variance = jnp.sum(weighed * test, axis=1) - jnp.sum(whitened**2, axis=0)
    return Prediction(process.by_example(whitened.T @ labels), process.by_example(variance))


def moments_at_factor(process: GaussianProcess, factor: Factor, features: Features) -> Prediction:
    """`conditional_moments` at U = F F^T, by the smaller of two matrices, as the energy.

    With B = X F on the training inputs, B_* = X_* F on the new ones and M = B^T B + T I = L L^T, the mean is
    B_* M^{-1} B^T Y, and the variance is T times the diagonal of B_* M^{-1} B_*^T, in which nothing cancels.
    """
    new = mixed(features, factor, process.outputs)
    # A product with the inverse takes half the time of solving for every new input.
    if in_feature_space(process, factor):
        inverse = lower_inverse(process.latent_cholesky(factor))
        whitened, labels = new @ inverse.T, inverse @ process.pulled_to_latents(factor, process.flat_labels)
        variance = process.temperature * jnp.sum(whitened**2, axis=1)
    else:
        inverse = lower_inverse(cholesky(process.kernel(factor), process.temperature))
        whitened, labels = (new @ process.mixed(factor).T) @ inverse.T, inverse @ process.flat_labels
        variance = jnp.sum(new**2, axis=1) - jnp.sum(whitened**2, axis=1)
    return Prediction(process.by_example(whitened @ labels), process.by_example(variance))


def in_feature_space(process: GaussianProcess, factor: Factor) -> bool:
    """Whether the matrix with one row per feature and column of F is smaller than the one with one row per label."""
    return smaller_by_features(factor.shape[1], process.features.shape[1], process.labels.size)


def leave_one_out(process: GaussianProcess, factor: Factor) -> Float[Array, " example"]:
    """log p(Y_i | Y of all other examples, U) of each example at U = F F^T, without one solve per example.

    With A = K + T I, it is the log density of a normal distribution with mean Y_i - B^{-1} (A^{-1} Y)_i and covariance
    B^{-1}, where B = (A^{-1})_ii is the block of the example's outputs (Sundararajan and Keerthi 2001; Rasmussen and
    Williams 2006, equations 5.10 to 5.12). In feature space A^{-1} = (I - C^T C) / T, where L C = (X F)^T and
    L L^T = (X F)^T X F + T I.
    """
    if not in_feature_space(process, factor):
        return _by_inverse(process, factor)
    columns = process.mixed(factor) @ lower_inverse(process.latent_cholesky(factor)).T
    residual = process.flat_labels - columns @ (process.flat_labels @ columns)
    by_example = columns.reshape(*process.labels.shape, -1)
    rest = jnp.eye(process.outputs) - jnp.einsum("ecx,edx->ecd", by_example, by_example)
    lower = jnp.linalg.cholesky(rest)
    kept = jnp.min(jax.vmap(log_det)(lower)) > np.log(LEAST_DETERMINANT)
    solution, lower = (
        residual.reshape(process.labels.shape) / process.temperature,
        lower / jnp.sqrt(process.temperature),
    )
    densities = _left_out_densities(solution, lower)
    return jax.lax.cond(kept, lambda: densities, lambda: _by_inverse(process, factor))


def _by_inverse(process: GaussianProcess, factor: Factor) -> Float[Array, " example"]:
    """Leave-one-out densities from the inverse of K + T I, which keeps all digits."""
    root = lower_inverse(cholesky(process.kernel(factor), process.temperature))
    columns = root.reshape(len(root), *process.labels.shape)
    blocks = jnp.einsum("xec,xed->ecd", columns, columns)
    solution = (root.T @ (root @ process.flat_labels)).reshape(process.labels.shape)
    return _left_out_densities(solution, jnp.linalg.cholesky(blocks))


def _left_out_densities(
    solution: Float[Array, "example output"], lower: Float[Array, "example output other_output"]
) -> Float[Array, " example"]:
    """Log densities of left-out labels from A^{-1} Y and the Cholesky factors of the diagonal blocks of A^{-1}."""
    whitened = jax.scipy.linalg.solve_triangular(lower, solution[..., None], lower=True)[..., 0]
    log_determinants = jax.vmap(log_det)(lower) - solution.shape[1] * np.log(2 * np.pi)
    return (log_determinants - jnp.sum(whitened**2, axis=1)) / 2


def sample_labels(process: GaussianProcess, key: Key[Array, ""], factor: Factor) -> Float[Array, "example output"]:
    """Labels drawn given U: Normal(0, K + T I)."""
    prior_key, noise_key = jax.random.split(key)
    return process.noisy(noise_key, factor, process.sample_prior_projection(prior_key, factor))


def is_singular(process: GaussianProcess, factor: Factor) -> Array:
    """Whether K + T I has a pivot so close to rounding that the energy's gradient may be meaningless."""
    return _has_small_pivot(process.kernel(factor), process.temperature)


@jax.jit
def is_singular_of(process: GaussianProcess, order_parameter: OrderParameter) -> Array:
    """`is_singular` at U itself."""
    return _has_small_pivot(process.kernel_of(order_parameter), process.temperature)


def _has_small_pivot(kernel: Array, temperature: Number) -> Array:
    pivots = jnp.diag(cholesky(kernel, temperature)) ** 2
    # Negated, so that NaN counts as singular.
    return ~(jnp.min(pivots) > LEAST_PIVOT * len(kernel) * jnp.finfo(float).eps * jnp.max(jnp.diag(kernel)))


def rounding_of_mean(process: GaussianProcess, order_parameter: OrderParameter) -> Array:
    """Error of the mean of f at U by rounding of K, relative to the largest label: eps max K |(K + T I)^{-1} Y|."""
    kernel = process.kernel_of(order_parameter)
    lower = cholesky(kernel, process.temperature)
    solution = jax.scipy.linalg.cho_solve((lower, True), process.flat_labels)
    error = jnp.finfo(float).eps * jnp.max(jnp.diag(kernel)) * jnp.linalg.norm(solution)
    return error / jnp.maximum(jnp.max(jnp.abs(process.labels)), jnp.finfo(float).tiny)
