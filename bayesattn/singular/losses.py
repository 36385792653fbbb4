"""Learning coefficient from a chain of losses, which any sampler of the weights gives."""

from typing import NamedTuple

import numpy as np
import xarray as xr

from bayesattn._util.checks import Checked, finite, reals, require_kind
from bayesattn._util.errors import BayesattnError
from bayesattn._util.settings import with_own_settings
from bayesattn.checks.mixing import FEWEST_DRAWS, moments
from bayesattn.model import Model
from bayesattn.models.trees import CHAIN_AXES
from bayesattn.singular.best_fit import best_fit_of, regression
from bayesattn.singular.coefficient import reduced

LEAST_MEAN_ERRORS = 5
"""Monte Carlo errors by which a mean of losses may fall below the least possible one."""


class Estimate(NamedTuple):
    """lambda_hat, its Monte Carlo standard error, and effective sample size and R-hat of the losses."""

    value: float
    error: float
    ess: float
    rhat: float


@with_own_settings
def learning_coefficient_of(losses: Checked, model: Model, *, best_fit: float | None = None, seed: int = 0) -> Estimate:
    """lambda_hat = (mean of S - S*) / (2 T) from draws of the weights by any sampler.

    Args:
        losses: S = |Y - f|^2, the sum over all examples and outputs, of each draw; shape (draw,) or (chain, draw). A mean
            loss L_n = S / (2 P) at inverse temperature beta is S = 2 P L_n at T = 1 / beta.
        model: the posterior, with Gaussian labels and the temperature of the draws.
        best_fit: S*, as in `bayesattn.learning_coefficient`.
        seed: seed of the search for S*.

    Raises:
        ValueError: losses of another shape, negative ones, fewer than four draws, or a mean that no weights reach; a model
            without Gaussian labels.
    """
    require_kind("model", model, Model)
    model.require_gaussian()
    array = np.atleast_2d(finite("losses", reals("losses", losses)))
    if array.ndim != 2 or array.shape[1] < FEWEST_DRAWS or array.min() < 0:
        raise BayesattnError(
            f"losses must be sums of squares of shape (draw,) or (chain, draw), with at least {FEWEST_DRAWS} draws, got"
            f" shape {np.shape(losses)} and a least value of {array.min(initial=np.inf):.3g}"
        )
    smaller, residual = reduced(model)
    least = best_fit_of(smaller, best_fit, residual=residual, seed=seed)
    found = moments(xr.DataArray(array / (2 * model.temperature), dims=CHAIN_AXES))
    error = float(np.nan_to_num(found["error"]))
    reached = residual + (regression(smaller) if np.any(smaller.labels) else 0.0)
    if array.mean() < reached * (1 - 1e-9) - LEAST_MEAN_ERRORS * 2 * model.temperature * error:
        raise BayesattnError(
            f"losses must have a mean of at least {reached:.6g}, the least sum of squares of any linear function of the path"
            f" inputs, got {array.mean():.6g}: a loss is the sum over all examples, so 2 P L_n of a mean loss L_n"
        )
    least = least.held_against(float(array.min()), 2 * model.temperature * error)
    found["mean"] = found["mean"] - least.square / (2 * model.temperature)
    return Estimate(*(float(found[name]) for name in ("mean", "error", "ess", "rhat")))
