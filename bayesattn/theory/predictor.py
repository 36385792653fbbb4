"""The predictor given an order parameter (THEORY section 5)."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bayesattn._checks import Checked, finite_array
from bayesattn.architecture import Architecture
from bayesattn.theory.action import checked_data
from bayesattn.theory.kernels import (
    PathKernels,
    checked_path_inputs,
    cross_kernel,
    diagonal_kernel,
    path_kernels,
    refuse_contradictions,
    unpack,
)
from bayesattn.theory.of_model import of_model

READOUTS_AT_ONCE = 16


class Prediction(NamedTuple):
    """Mean and variance of the network's output f on each test example (without the label noise T)."""

    mean: Float[Array, "*batch test_example"]
    variance: Float[Array, "*batch test_example"]


@of_model
def predict(
    order_parameter: Any,
    path_inputs: Any,
    labels: Any,
    test_path_inputs: Any,
    arch: Architecture,
    temperature: Checked,
) -> Prediction:
    """mean = k_*^T (K + T I)^{-1} Y, variance = k_** - k_*^T (K + T I)^{-1} k_* (THEORY section 5).

    Args:
        order_parameter: U of shape (Pi, Pi).
        path_inputs: xi of shape (P, Pi, N_0); a Model here stands for all that it holds.
        labels: Y of shape (P,).
        test_path_inputs: xi of shape (P_test, Pi, N_0).
        arch: the network.
        temperature: T, variance of the likelihood.

    Raises:
        ValueError: wrong shapes, entries that are not finite, a temperature that is not above 0.
    """
    path_inputs, labels, temperature = checked_data(path_inputs, labels, arch, temperature)
    test = checked_path_inputs("test_path_inputs", test_path_inputs, arch, features=path_inputs.shape[2])
    order_parameter = finite_array("order_parameter", order_parameter, (arch.paths, arch.paths))
    refuse_contradictions(path_inputs, labels, arch, temperature)
    return conditional_prediction(order_parameter, path_inputs, labels, test, arch.variances[0], temperature)


@partial(jax.jit)
def conditional_prediction(
    order_parameter: Float[Array, "path path"],
    path_inputs: Float[Array, "example path feature"],
    labels: Float[Array, " example"],
    test_path_inputs: Float[Array, "test_example path feature"],
    input_variance: Any,
    temperature: Any,
) -> Prediction:
    """Mean and variance of f given U and the labels, without checks."""
    train = cross_kernel(order_parameter, path_inputs, path_inputs, input_variance)
    cross = cross_kernel(order_parameter, path_inputs, test_path_inputs, input_variance)
    own = diagonal_kernel(order_parameter, test_path_inputs, input_variance)
    cholesky = jnp.linalg.cholesky(train + temperature * jnp.eye(len(labels)))
    # K + T I = L L^T: mean = (L^-1 k_*)^T L^-1 Y, explained variance = |L^-1 k_*|^2
    whitened = jax.scipy.linalg.solve_triangular(cholesky, jnp.column_stack([labels, cross]), lower=True)
    return Prediction(whitened[:, 1:].T @ whitened[:, 0], own - jnp.sum(whitened[:, 1:] ** 2, axis=0))


def right(outputs: Any, labels: Any) -> Any:
    """Whether each output has the sign of its label: 1 or 0, and 1/2 for an output of 0, which is a guess.

    Accuracy is its mean over examples (THEORY section 5).
    """
    product = outputs * labels
    return (product > 0) + 0.5 * (product == 0)


def readouts(
    order_parameters: Any, path_inputs: Any, labels: Any, arch: Architecture, temperature: Checked
) -> Float[Array, "draw path feature"]:
    """Readout g of the mean predictor given each of many U, without checks: its mean of f is sum_pi g^pi . xi^pi.

    g^pi = s_0^2 / (N_0 Pi) sum_pi' U^{pi pi'} sum_mu xi_mu^pi' ((K(U) + T I)^{-1} Y)_mu (THEORY section 5).
    """
    kernels = path_kernels(jnp.asarray(path_inputs), arch)
    return _readouts(jnp.asarray(order_parameters), kernels, jnp.asarray(labels), arch.variances[0], temperature)


@jax.jit
def _readouts(order_parameters, kernels: PathKernels, labels, input_variance, temperature):
    examples, paths, features = kernels.features.shape

    def one(order_parameter: Float[Array, "path path"]) -> Float[Array, "path feature"]:
        covariance = unpack(kernels.of(order_parameter), examples) + temperature * jnp.eye(examples)
        coefficients = jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(covariance), True), labels)
        return order_parameter @ jnp.tensordot(coefficients, kernels.features, 1)

    # kernels.features are scaled by the root of s_0^2 / (N_0 Pi).
    scale = jnp.sqrt(input_variance / (features * paths))
    return scale * jax.lax.map(one, order_parameters, batch_size=READOUTS_AT_ONCE)
