"""Fit of a network to its data: log evidence and predictions, of the whole network or without some of its paths."""

import warnings
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from scipy import special

from bayesattn.compressed import Compressed
from bayesattn.kernels.conditionals import conditional_moments
from bayesattn.kernels.energies import one_by_one
from bayesattn.kernels.forms import compressed
from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.kernels.path_inputs import scaled_features
from bayesattn.models.model import Model
from bayesattn.theory.predictor import are_classes, right
from bayesattn.theory.saddle_point import solve


@dataclass(frozen=True)
class Fit:
    """Log evidence of a network, possibly up to a constant, and predictions.

    `mean` and `variance` of f given each draw have shape (draw, example), with several outputs (draw, example, output);
    they are None without test examples or labels.
    """

    log_evidence: float
    mean: np.ndarray | None
    variance: np.ndarray | None

    def accuracy(self, model: Model) -> np.ndarray:
        """1 for each test example that the mean over draws classifies correctly, else 0, half for a tie; shape (example,).

        Empty if test labels are missing or not classes.
        """
        if self.mean is None or model.test_labels is None or not are_classes(model.test_labels):
            return np.empty(0)
        return np.asarray(right(self.mean.mean(0), model.test_labels), float)

    def log_score(self, model: Model) -> np.ndarray:
        """Log predictive density of each test example, summed over outputs, in nats; shape (example,).

        Empty without test labels.
        """
        if self.mean is None or self.variance is None or model.test_labels is None:
            return np.empty(0)
        variance = np.maximum(self.variance, 0) + model.temperature
        log_densities = -(np.log(2 * np.pi * variance) + (model.test_labels - self.mean) ** 2 / variance) / 2
        mixed: Any = special.logsumexp(log_densities, axis=0) - np.log(len(self.mean))
        return np.asarray(mixed).reshape(len(model.test_labels), -1).sum(-1)


def at_saddle_point(model: Model) -> Fit:
    """Fit to leading order at large width: log p(Y) up to a constant of the architecture, and predictions.

    Raises NotConverged if the saddle point is not found.
    """
    solved = solve(model)
    log_evidence = -float(solved.energy + solved.entropy) / 2
    mean, variance = predictions(model, np.asarray(solved.order_parameter)[None])
    return Fit(log_evidence, mean, variance)


def without_paths(model: Model, paths: Bool[np.ndarray, " path"]) -> Model:
    """Model with the path inputs of `paths` set to 0; its posterior of the other paths is that without `paths`."""
    return with_scaled_paths(model, np.where(paths, 0.0, 1.0))


def with_scaled_paths(model: Model, scale: Float[np.ndarray, " path"]) -> Model:
    """Model whose path inputs are multiplied by one number for each path."""
    data = model.dataset
    inputs = data.path_inputs * scale[:, None]
    changes: dict[str, Any] = {"path_inputs": inputs}
    if data.compressed is not None:
        changes = {"compressed": Compressed.restored(inputs, data.labels, data.compressed.residual)}
    if data.test_path_inputs is not None:
        changes["test_path_inputs"] = data.test_path_inputs * scale[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The whole model has already warned about its labels.
        return model.replace(tokens=None, **changes)


def predictions(model: Model, order_parameters: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Mean and variance of f on the test examples given each U; None without test examples or labels.

    `order_parameters` have shape (draw, path, path), or (draw, row, row) with a row for each path and output; the results
    have shape (draw, example), with several outputs (draw, example, output).
    """
    if model.test_path_inputs is None or model.test_labels is None:
        return None, None
    process, arch = compressed(model.gaussian_process, model.architecture, least_labels=0), model.architecture
    features = scaled_features(jnp.asarray(model.test_path_inputs), arch.input_variance)
    mean, variance = _moments(jnp.asarray(order_parameters), process, features)
    return np.asarray(mean), np.asarray(variance)


@jax.jit
def _moments(order_parameters: Array, process: GaussianProcess, features: Array) -> tuple[Array, Array]:
    return one_by_one(lambda each: tuple(conditional_moments(process, each, features)), order_parameters)


def mean_and_error(values: Float[np.ndarray, " example"]) -> tuple[float, float]:
    """Mean over test examples and its standard error; NaN without examples."""
    mean = float(values.mean()) if values.size else np.nan
    error = float(values.std(ddof=1) / np.sqrt(values.size)) if values.size > 1 else np.nan
    return mean, error
