"""Predictions of the theory, to be compared with draws: U, and mean predictors on the test examples (of draws too)."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float

from bayesattn import theory
from bayesattn._util.checks import Checked
from bayesattn._util.settings import with_own_settings
from bayesattn.models import Model
from bayesattn.models.draws import order_parameters_of
from bayesattn.theory.predictor import outputs_at, readouts

PREDICTOR_DRAWS = 1000
BATCHES_PER_CHAIN = 4
"""Number of batches of consecutive draws of each chain."""


def gp_of_group(model: Model, paths: Checked) -> np.ndarray:
    """U in the GP limit of a network with these paths only: normalised by their number, and 0 for all other paths."""
    arch = model.architecture
    gp = np.asarray(theory.gp_order_parameter(arch))
    if paths is None:
        return gp
    kept = np.isin(np.arange(arch.paths), paths)
    return gp * np.repeat(kept, arch.outputs) * (np.prod(arch.heads) / kept.sum())


@with_own_settings
def gp_mean(model: Model, paths: Checked = None) -> Float[np.ndarray, " test_label"]:
    """Mean of f on the test examples at infinite width, for the whole network or for a group of its paths alone."""
    return mean_predictor(model, gp_of_group(model, paths))


@with_own_settings
def mean_predictor(
    model: Model, order_parameter: Float[np.ndarray | Array, "row row"]
) -> Float[np.ndarray, " test_label"]:
    """Mean of f on the test examples given U, all outputs of the first example first."""
    of_one = readouts(order_parameter[None], model)
    return outputs_of(model, np.asarray(of_one))[0]


def outputs_of(model: Model, by_batch: Float[np.ndarray, "batch row feature"]) -> Float[np.ndarray, "batch test_label"]:
    """Outputs f on the test examples, one row for each of several readouts."""
    return outputs_at(by_batch, model.test_path_inputs)


@with_own_settings
def readout_batches(model: Model, order_parameters: Checked) -> Float[np.ndarray, "batch row feature"]:
    """Readouts of the mean predictor over batches of consecutive draws of U, four batches per chain.

    If there are more than 1000 draws, 1000 evenly spaced draws are used, and the error estimated from the batches is that
    of these 1000 draws.

    Args:
        model: the posterior.
        order_parameters: draws of U, shape (chain, draw, Pi, Pi); or the result of `bayesattn.sample`, a run or its folder.

    Raises:
        ValueError: draws of another model, or that are not finite.
    """
    order_parameters = order_parameters_of(order_parameters, model)
    chains, draws = order_parameters.shape[:2]
    batches = min(BATCHES_PER_CHAIN, draws)
    per_batch = max(1, min(draws // batches, PREDICTOR_DRAWS // (chains * batches)))
    kept = np.linspace(0, draws - 1, batches * per_batch).astype(int)
    chosen = order_parameters[:, kept].reshape(-1, *order_parameters.shape[2:])
    per_draw = np.asarray(readouts(chosen, model))
    return per_draw.reshape(chains * batches, per_batch, *per_draw.shape[1:]).mean(1)


Matrix = Float[np.ndarray, "row row"]


class Predicted(NamedTuple):
    """Predictions of the theory for a model: U at the saddle point and to first order in 1/N, and mean predictors.

    `mean_predictors` are the mean predictors on the test examples at the saddle point ("theory"), to first order
    ("corrected") and in the GP limit ("gp"), all outputs of the first example first; None without test examples.
    `relative_variance` is the posterior variance of each entry U_ij to leading order in 1/N, in units of U_ii U_jj.
    """

    saddle: Matrix
    corrected: Matrix
    relative_variance: Matrix
    mean_predictors: dict[str, Float[np.ndarray, " test_label"]] | None


@with_own_settings
def predicted(model: Model) -> Predicted:
    """Predictions of the theory for `bayesattn.validate`; raises NotConverged if a solver failed."""
    saddle = np.asarray(theory.solve(model).order_parameter)
    corrected = theory.finite_width(model, variances=False)
    by_theory = None
    if corrected.prediction is not None:
        by_theory = {
            "theory": mean_predictor(model, saddle),
            "corrected": np.ravel(corrected.prediction.mean),
            "gp": gp_mean(model),
        }
    mean, variance = np.asarray(corrected.order_parameter), np.asarray(corrected.order_parameter_variance)
    return Predicted(saddle, mean, variance / size_of(mean) ** 2, by_theory)


def size_of(order_parameter: Matrix) -> Matrix:
    """Size (U_ii U_jj)^(1/2) of each entry, an upper bound on |U_ij|."""
    own = np.abs(np.diag(order_parameter))  # To first order in 1/N a mean may be below 0.
    return np.sqrt(np.outer(own, own))
