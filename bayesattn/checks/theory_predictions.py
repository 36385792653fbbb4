"""Predictions of the theory for a model, to be compared with draws."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from bayesattn import theory
from bayesattn._util.settings import with_own_settings
from bayesattn.checks.mean_predictor import gp_mean, mean_predictor
from bayesattn.models import Model

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
    own = np.diag(order_parameter)
    return np.sqrt(np.outer(own, own))
