"""Learning coefficient from a chain of losses, which any sampler of the weights gives."""

import warnings
from typing import NamedTuple

import numpy as np
import xarray as xr

from bayesattn._util.checks import Checked, finite, not_negative, reals, require_kind, warn_of_swapped_axes
from bayesattn._util.errors import BayesattnError
from bayesattn._util.settings import with_own_settings
from bayesattn.checks.mixing import FEWEST_DRAWS, moments
from bayesattn.models.draws import CHAIN_AXES
from bayesattn.models.model import Model
from bayesattn.questions.singular.best_fit import best_fit_of, regression
from bayesattn.questions.singular.coefficient import reduced

LEAST_MEAN_ERRORS = 5
"""Standard errors by which a mean of losses, or a single noisy loss, may fall below the least possible one."""


class Estimate(NamedTuple):
    """lambda_hat, its Monte Carlo standard error, and effective sample size and R-hat of the losses."""

    value: float
    error: float
    ess: float
    rhat: float


@with_own_settings
def learning_coefficient_of(
    losses: Checked, model: Model, *, best_fit: float | None = None, noise: float | None = None, seed: int = 0
) -> Estimate:
    """lambda_hat = (mean of S - S*) / (2 T) from draws of the weights by any sampler.

    Args:
        losses: S = |Y - f|^2, the sum over all examples and outputs, of each draw; shape (draw,) or (chain, draw). A mean
            loss L_n = S / (2 P) at inverse temperature beta is S = 2 P L_n at T = 1 / beta. A sum over a minibatch of n
            examples, times P / n, is such a loss with noise.
        model: the posterior, with Gaussian labels and the temperature of the draws.
        best_fit: S*, as in `bayesattn.learning_coefficient`.
        noise: standard deviation of a loss at fixed weights: 0 for losses of all examples, above 0 for minibatches. Where a
            search for S* ended above what the losses attain, S* is lowered to the least loss plus five times this. By
            default losses may be noisy, so that S* is never lowered to a single one, and a loss below S* is warned of.
        seed: seed of the search for S*.

    Raises:
        ValueError: losses of another shape, negative ones, fewer than four draws, or a mean that no weights reach; a noise
            below 0; a given S* above what the losses attain; a model without Gaussian labels.

    Warns of more chains than draws, because the axes are then likely swapped.
    """
    require_kind("model", model, Model)
    model.require_gaussian()
    noise = noise if noise is None else not_negative("noise", noise)
    array = np.atleast_2d(finite("losses", reals("losses", losses)))
    if array.ndim != 2 or array.shape[1] < FEWEST_DRAWS or array.min() < 0:
        raise BayesattnError(
            f"losses must be sums of squares of shape (draw,) or (chain, draw), with at least {FEWEST_DRAWS} draws, got"
            f" shape {np.shape(losses)} and a least value of {array.min(initial=np.inf):.3g}"
        )
    warn_of_swapped_axes("losses", array)
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
    mean_error = 2 * model.temperature * error
    attained = float(array.mean()) + LEAST_MEAN_ERRORS * mean_error
    if noise is not None:
        attained = min(attained, float(array.min()) + LEAST_MEAN_ERRORS * noise)
    least = least.held_against(attained, mean_error)
    if noise is None and least.how != "not needed" and array.min() < least.square - mean_error:
        warnings.warn(
            f"losses go down to {array.min():.6g}, below S* = {least.square:.6g} ({least.how}): state noise, 0 if each loss"
            " is of all examples, else their standard deviation at fixed weights; until then they are taken to be noisy,"
            " and S* is kept",
            stacklevel=3,
        )
    found["mean"] = found["mean"] - least.square / (2 * model.temperature)
    return Estimate(*(float(found[name]) for name in ("mean", "error", "ess", "rhat")))
