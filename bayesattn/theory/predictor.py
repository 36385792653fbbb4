"""Predictor given an order parameter (THEORY section 5)."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayesattn._util.checks import Checked, is_traced
from bayesattn._util.settings import with_own_settings
from bayesattn.errors import BayesattnError
from bayesattn.kernels.conditionals import Prediction, conditional_moments, rounding_of_mean
from bayesattn.kernels.energies import one_by_one
from bayesattn.kernels.forms import compressed
from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.kernels.path_inputs import checked_path_inputs, input_scale, scaled_features, symmetric
from bayesattn.theory.arguments import gaussian_density

LARGEST_ROUNDING = 1e-4
"""Largest error of the mean by rounding, relative to the largest label, at which `predict` returns it."""


@with_own_settings
def predict(order_parameter: Checked, model: Checked, test_path_inputs: Checked = None) -> Prediction:
    """mean = k_*^T (K + T I)^{-1} Y, variance = k_** - k_*^T (K + T I)^{-1} k_* (THEORY section 5).

    JAX can trace and differentiate it in the order parameter and the test inputs.

    Args:
        order_parameter: U of shape (Pi, Pi), or (Pi m, Pi m) for m outputs; mean and variance then have shape (P_test, m).
        model: the posterior, a `bayesattn.Model` with Gaussian labels.
        test_path_inputs: xi of shape (P_test, Pi, N_0), by default those of the model.

    Raises:
        ValueError: not a model, or a model of classes; no test inputs, wrong shapes, entries that are not finite, U
            that is not symmetric, or with which K(U) + T I is not positive definite, or singular in float64.
    """
    density, arch = gaussian_density(model), model.architecture
    test = model.test_path_inputs if test_path_inputs is None else test_path_inputs
    if test is None:
        raise BayesattnError("predict() needs test_path_inputs, got a model that has none")
    test = checked_path_inputs("test_path_inputs", test, arch, features=density.features.shape[1])
    order_parameter = symmetric("order_parameter", order_parameter, arch.rows)
    order_parameter = jnp.asarray(order_parameter)
    found, rounding = _predict(order_parameter, density, scaled_features(test, arch.input_variance))
    if not is_traced(found.mean) and not np.isfinite(np.asarray(found.mean)).all():
        raise BayesattnError("order_parameter must leave K(U) + T I positive definite, got one that does not")
    if not is_traced(found.mean) and rounding > LARGEST_ROUNDING:
        raise BayesattnError(
            "temperature must be larger: K(U) + T I is singular in float64, and the mean has an error of about"
            f" {float(rounding):.1g} times the largest label, got temperature {float(density.temperature):g}"
        )
    return found


@jax.jit
def _predict(order_parameter, process: GaussianProcess, features) -> tuple[Prediction, Array]:
    """Moments, and the rounding error of the mean; one program, so that both may share K + T I and its factor."""
    return conditional_moments(process, order_parameter, features), rounding_of_mean(process, order_parameter)


def right(outputs: Checked, labels: Checked) -> Float[Array | np.ndarray, "*draws example"]:
    """Whether each output has the sign of its label: 1 or 0, and 1/2 for an output of 0, which is a guess.

    Accuracy is the mean over examples (THEORY section 5). With several outputs, whose labels have shape (P, m), the
    question is whether the largest output is at the largest label; if k outputs tie for the largest, each is a guess:
    1/k. Outputs of all examples may be in one row, those of the first example first.
    """
    if np.ndim(labels) == 2:
        outputs = (
            outputs.reshape(*outputs.shape[:-1], -1, labels.shape[1]) if outputs.shape[-2:] != labels.shape else outputs
        )
        greatest = outputs == outputs.max(-1, keepdims=True)
        return (greatest & (labels == labels.max(-1, keepdims=True))).sum(-1) / greatest.sum(-1)
    product = outputs * labels
    return (product > 0) + 0.5 * (product == 0)


def outputs_at(readouts: np.ndarray, path_inputs: np.ndarray) -> Float[np.ndarray, "draw label"]:
    """f at path inputs (P, Pi, N_0) for each of several readouts, with the outputs of an example side by side."""
    by_output = readouts.reshape(len(readouts), path_inputs.shape[1], -1, path_inputs.shape[2])
    return np.einsum("dpcf,epf->dec", by_output, path_inputs, optimize=True).reshape(len(readouts), -1)


@with_own_settings
def readouts(
    order_parameters: Checked, model: Checked, temperature: Checked = None
) -> Float[Array, "draw row feature"]:
    """Readout g of the mean predictor given each of many U, without checks: the mean of f is sum_pi g^pi . xi^pi.

    g^pi = s_0^2 / (N_0 Pi) sum_pi' U^{pi pi'} sum_mu xi_mu^pi' ((K(U) + T I)^{-1} Y)_mu (THEORY section 5).
    """
    density, arch = gaussian_density(model, temperature), model.architecture
    _, features, paths = density.features.shape
    scale = input_scale(arch.input_variance, paths, features)
    return _readouts(jnp.asarray(order_parameters), compressed(density, arch), scale)


@jax.jit
def _readouts(order_parameters, process: GaussianProcess, scale):
    return scale * one_by_one(process.readout_of, order_parameters)


def have_accuracy(labels: Float[np.ndarray, " *labels"]) -> bool:
    """Whether a prediction of labels can be right: of classes, and of numbers of which some are negative, by their sign."""
    return are_classes(labels) or (labels.ndim == 1 and bool(np.min(labels) < 0))


def are_classes(labels: Float[np.ndarray, " *labels"]) -> bool:
    """Whether labels are -1 and 1, or of several outputs with one high value, at the class, and equal low ones."""
    if labels.ndim == 1:
        return bool(np.all(np.abs(labels) == 1))
    return len(np.unique(labels)) == 2 and bool(np.all((labels == labels.max()).sum(1) == 1))
