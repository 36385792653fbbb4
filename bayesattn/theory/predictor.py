"""The predictor given an order parameter (THEORY section 5)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayesattn._checks import Checked
from bayesattn._settings import with_own_settings
from bayesattn.architecture import Architecture
from bayesattn.theory.features import scaled_features
from bayesattn.theory.kernels import checked_path_inputs, input_scale, refuse_contradictions, symmetric
from bayesattn.theory.likelihood import Likelihood, Prediction, likelihood_of
from bayesattn.theory.of_model import of_model


@with_own_settings
@of_model
def predict(
    order_parameter: Any,
    path_inputs: Any,
    labels: Any,
    test_path_inputs: Any,
    arch: Architecture,
    temperature: Checked,
    *,
    likelihood: Likelihood | None = None,
) -> Prediction:
    """mean = k_*^T (K + T I)^{-1} Y, variance = k_** - k_*^T (K + T I)^{-1} k_* (THEORY section 5).

    Args:
        order_parameter: U of shape (Pi, Pi), or (Pi m, Pi m) of m outputs; mean and variance are then (P_test, m).
        path_inputs: xi of shape (P, Pi, N_0); a Model here stands for all that it holds.
        labels: Y of shape (P,), or (P, m).
        test_path_inputs: xi of shape (P_test, Pi, N_0).
        arch: the network.
        temperature: T, variance of the likelihood.
        likelihood: of these data, where it is at hand (`bayesattn.Model.likelihood`), so that it is not made again.

    Raises:
        ValueError: wrong shapes, entries that are not finite, a temperature that is not above 0, U that is not symmetric.
    """
    given = likelihood_of(path_inputs, labels, arch, temperature, likelihood, once=True)
    features = given.features.shape[1]
    test = checked_path_inputs("test_path_inputs", test_path_inputs, arch, features=features)
    order_parameter = symmetric("order_parameter", order_parameter, arch.rows)
    refuse_contradictions(given.flat, given.labels, max(arch.path_variances), given.temperature)
    return _predict(jnp.asarray(order_parameter), given, scaled_features(test, arch.input_variance))


@jax.jit
def _predict(order_parameter, likelihood: Likelihood, features) -> Prediction:
    return likelihood.prediction_of(order_parameter, features)


def right(outputs: Any, labels: Any) -> Any:
    """Whether each output has the sign of its label: 1 or 0, and 1/2 for an output of 0, which is a guess.

    Accuracy is its mean over examples (THEORY section 5). Of several outputs, whose labels have shape (P, m), it is whether
    the greatest is that of the greatest label; of k that are equally great, each is a guess: 1/k. Outputs of all examples
    may come in one row, those of the first example first.
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
    """f at path inputs (P, Pi, N_0) by each of several readouts, those of an example side by side."""
    by_output = readouts.reshape(len(readouts), path_inputs.shape[1], -1, path_inputs.shape[2])
    return np.einsum("dpcf,epf->dec", by_output, path_inputs, optimize=True).reshape(len(readouts), -1)


@with_own_settings
def readouts(order_parameters: Any, likelihood: Likelihood, arch: Architecture) -> Float[Array, "draw row feature"]:
    """Readout g of the mean predictor given each of many U, without checks: its mean of f is sum_pi g^pi . xi^pi.

    g^pi = s_0^2 / (N_0 Pi) sum_pi' U^{pi pi'} sum_mu xi_mu^pi' ((K(U) + T I)^{-1} Y)_mu (THEORY section 5).
    """
    _, features, paths = likelihood.features.shape
    scale = input_scale(arch.input_variance, paths, features)
    return scale * _readouts(jnp.asarray(order_parameters), likelihood.condensed(arch))


@jax.jit
def _readouts(order_parameters, likelihood: Likelihood):
    # One after the other: XLA's threads have been seen to wait for each other for ever in Cholesky factors of a batch.
    return jax.lax.map(likelihood.readout_of, order_parameters)
