"""Learning coefficient from a chain of losses, which any sampler of the weights gives."""

import warnings

import numpy as np
import xarray as xr

from bayesattn._util.checks import Checked, finite, not_negative, reals
from bayesattn.checks.mixing import FEWEST_DRAWS, moments
from bayesattn.errors import BayesattnError
from bayesattn.models.draws import CHAIN_AXES
from bayesattn.models.model import Model
from bayesattn.questions.singular.best_fit import best_fit_of, reduced, regression
from bayesattn.questions.singular.result import LearningCoefficient

LEAST_MEAN_ERRORS = 5
"""Standard errors by which a mean of losses, or a single noisy loss, may fall below the least possible one."""


def from_losses(
    model: Model, temperature: float, losses: Checked, noise: Checked, best_fit: Checked, seed: int
) -> LearningCoefficient:
    """Learning coefficient from losses at one temperature; arguments and errors as for `learning_coefficient`."""
    noise = noise if noise is None else not_negative("noise", noise)
    array = np.atleast_2d(finite("losses", reals("losses", losses)))
    if array.ndim != 2 or array.shape[1] < FEWEST_DRAWS or array.min() < 0:
        raise BayesattnError(
            f"losses must be sums of squares of shape (draw,) or (chain, draw), with at least {FEWEST_DRAWS} draws, got"
            f" shape {np.shape(losses)} and a least value of {array.min(initial=np.inf):.3g}"
        )
    smaller, residual = reduced(model)
    least = best_fit_of(smaller, best_fit, residual=residual, seed=seed)
    found = moments(xr.DataArray(array / (2 * temperature), dims=CHAIN_AXES))
    mean, mean_error = float(array.mean()), 2 * temperature * float(np.nan_to_num(found["error"]))
    reached = residual + (regression(smaller) if np.any(smaller.labels) else 0.0)
    if mean < reached * (1 - 1e-9) - LEAST_MEAN_ERRORS * mean_error:
        raise BayesattnError(
            f"losses must have a mean of at least {reached:.6g}, the least sum of squares of any linear function of the path"
            f" inputs, got {mean:.6g}: a loss is the sum over all examples, so 2 P L_n of a mean loss L_n"
        )
    attained = mean + LEAST_MEAN_ERRORS * mean_error
    if noise is not None:
        attained = min(attained, float(array.min()) + LEAST_MEAN_ERRORS * noise)
    searched = least.square
    least = least.held_against(attained, mean_error)
    # Then S* is known from the losses alone, and the value would be a number of errors, whatever they are.
    lost = noise is None and least.square < searched
    if lost:
        warnings.warn(
            f"the search for S* ended at {searched:.6g}, above the losses, whose mean is {mean:.6g}, so the value is not"
            " known: give best_fit, or state noise, 0 if each loss is of all examples, else their standard deviation at"
            " fixed weights",
            stacklevel=4,
        )
    elif noise is None and least.how != "not needed" and array.min() < least.square - mean_error:
        warnings.warn(
            f"losses go down to {array.min():.6g}, below S* = {least.square:.6g} ({least.how}): state noise, 0 if each loss"
            " is of all examples, else their standard deviation at fixed weights; until then they are taken to be noisy,"
            " and S* is kept",
            stacklevel=4,
        )
    found["mean"] = found["mean"] - (np.nan if lost else least.square / (2 * temperature))
    value, error, ess, rhat = (np.atleast_1d(found[name]) for name in ("mean", "error", "ess", "rhat"))
    unknown = np.array([np.nan])
    return LearningCoefficient(
        model, np.array([temperature]), value, error, unknown, unknown, least, ess, rhat, None, seed, stopped=None
    )
