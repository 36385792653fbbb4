"""Conditional distributions of a Gaussian process given U: predictions, leave-one-out densities, and drawn labels."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bayesattn.kernels.energies import cholesky
from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.kernels.path_inputs import Factor, Features, OrderParameter, by_label, mixed

LEAST_PIVOT = 1e5
"""Multiple of the rounding of K that a pivot must exceed for the energy to have six digits.

With K of rank 3 the energy had 5.5 digits at 1e4 and 6.5 at 1e5 (6 to 40 examples), and all digits in feature space.
At about 1000 and below (40 and 100 examples, K of rank 6 and 10), the search for the saddle point reported convergence
at wrong points.
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


def leave_one_out(process: GaussianProcess, order_parameter: OrderParameter) -> Float[Array, " example"]:
    """log p(Y_i | Y of all other examples, U) of each example, without one solve per example.

    With A = K + T I, it is the log density of a normal distribution with mean Y_i - B^{-1} (A^{-1} Y)_i and covariance
    B^{-1}, where B = (A^{-1})_ii is the block of the example's outputs (Sundararajan and Keerthi 2001; Rasmussen and
    Williams 2006, equations 5.10 to 5.12).
    """
    kernel = process.kernel_of(order_parameter)
    _, whitened, labels = process.whitened(kernel, jnp.eye(len(kernel)))
    solution = (whitened.T @ labels).reshape(process.labels.shape)
    columns = whitened.reshape(len(kernel), *process.labels.shape)
    blocks = jnp.einsum("xec,xed->ecd", columns, columns)
    squares = jnp.einsum("ec,ec->e", solution, jnp.linalg.solve(blocks, solution[..., None])[..., 0])
    return (jnp.linalg.slogdet(blocks / (2 * np.pi))[1] - squares) / 2


def sample_labels(process: GaussianProcess, key: Key[Array, ""], factor: Factor) -> Float[Array, "example output"]:
    """Labels drawn given U: Normal(0, K + T I)."""
    prior_key, noise_key = jax.random.split(key)
    return process.noisy(noise_key, factor, process.sample_prior_projection(prior_key, factor))


def is_singular(process: GaussianProcess, factor: Factor) -> Array:
    """Whether K + T I has a pivot so close to rounding that the energy's gradient may be meaningless."""
    kernel = process.kernel(factor)
    pivots = jnp.diag(cholesky(kernel, process.temperature)) ** 2
    # Negated, so that NaN counts as singular.
    return ~(jnp.min(pivots) > LEAST_PIVOT * len(kernel) * jnp.finfo(float).eps * jnp.max(jnp.diag(kernel)))
