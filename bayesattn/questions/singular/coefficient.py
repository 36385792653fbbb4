"""Learning coefficient (real log canonical threshold, RLCT) of a network's posterior at a series of temperatures.

With S = |Y - f|^2, summed over examples and outputs, and S* its least value,

    lambda_hat(T) = E[S - S*] / (2 T)  ->  lambda  as T -> 0

(Watanabe 2009). With the mean loss L_n = S / (2 n) of n examples, S / (2 T) is n beta L_n at T = 1 / beta. Given the order
parameter U, the expectation has a closed form (`expected_loss`). So a chain of U gives lambda_hat without drawing weights:
everything but U is integrated out.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from bayesattn import samplers, theory
from bayesattn._util.checks import (
    Checked,
    entries,
    positive,
    positive_integer,
    require_kind,
    seed_number,
    shown,
    warn_of_swapped_axes,
)
from bayesattn._util.plain_values import PlainDict
from bayesattn._util.settings import with_own_settings
from bayesattn.checks.mixing import moments
from bayesattn.errors import BayesattnError
from bayesattn.models.draws import CHAIN_AXES, Draws, opened_of
from bayesattn.models.model import Model
from bayesattn.questions.singular.best_fit import best_fit_of, reduced
from bayesattn.questions.singular.chain_of_losses import from_losses
from bayesattn.questions.singular.expected_loss import attained, example_losses, factors, loss
from bayesattn.questions.singular.result import Estimates, LearningCoefficient
from bayesattn.theory import NotConverged

DECADES = 9
"""Default number of temperatures, each a tenth of the one before; fewer where float64 does not allow so many."""
WARMEST_SHARE = 0.1
"""Warmest of the default temperatures, as a share of the mean eigenvalue of the prior covariance K of the outputs, with
at most Pi N_0 examples."""
OPTIONS = {"target_accept_prob": 0.95}
"""Target acceptance of step sizes: with target 0.8, some chains at T = 1e-8 had 0.4 and hardly moved for a long time."""
MOST_LABELS, MOST_ROWS, MOST_DRAWS = 2000, 500, 1000
"""Most labels, rows of the matrix to invert, and draws, for the losses of single examples."""


@with_own_settings
def learning_coefficient(
    model: Model,
    temperatures: Checked = None,
    *,
    losses: Checked = None,
    noise: float | None = None,
    best_fit: float | None = None,
    chains: int = 4,
    warmup: int = 500,
    draws: int = 1000,
    seed: int = 0,
    sample: Callable[..., Draws] = samplers.sample,
    progress: Callable[[str], None] | None = None,
) -> LearningCoefficient:
    """Learning coefficient (RLCT) of a posterior at some temperatures, exact up to Monte Carlo error if S* is known.

    The prior is positive everywhere, so it is the global coefficient, not the local one (LLC) at trained weights; with
    labels 0 it is also the local one at weights 0.

    With `losses` of draws of the weights, by any sampler, nothing is drawn: lambda_hat = (mean of S - S*) / (2 T).

    Args:
        model: the posterior, with Gaussian labels; its own temperature is used only with `losses`.
        temperatures: T, one or several; by default up to nine, each a tenth of the one before, down to where float64
            allows. With `losses`, the temperature of their draws, by default the model's.
        losses: S = |Y - f|^2, the sum over all examples and outputs, of each draw; shape (draw,) or (chain, draw). A mean
            loss L_n = S / (2 P) at inverse temperature beta is S = 2 P L_n at T = 1 / beta. A sum over a minibatch of n
            examples, times P / n, is such a loss with noise.
        noise: standard deviation of a loss at fixed weights: 0 for losses of all examples, above 0 for minibatches. Where a
            search for S* ended above what the losses attain, S* is lowered to the least loss plus five times this. By
            default losses may be noisy, so that S* is never lowered to a single one, and a loss below S* is warned of; where
            the search ended above what the losses attain, the value is NaN, with a warning.
        best_fit: S*, the least |Y - f|^2 of all weights, if it is known. By default, the residual of linear regression on
            the path inputs if the widths allow every readout; otherwise the least value that searches from 16 prior draws
            and the chains find, an upper bound. An excess of d lowers lambda_hat by d / (2 T).
        chains: chains at each temperature.
        warmup: adaptation steps of each chain.
        draws: draws of each chain.
        seed: seed of chains and searches.
        sample: function that draws, with the arguments of `bayesattn.sample`; with a function that calls
            `bayesattn.runs.sample`, with a folder for each temperature, draws are kept on disk and resumed.
        progress: function that is called with a line of text before each temperature.

    Raises:
        ValueError: a model without Gaussian labels, temperatures that are not above 0 or occur twice, path inputs that are
            all 0, an S* above a value that the chains or losses attain; losses of another shape, negative ones, fewer than
            four draws, several temperatures, or a mean that no weights reach; a noise below 0 or without losses.
        NotConverged: a given temperature is too low for float64, or the warmest of the default ones is.

    Warns of losses with more chains than draws, because the axes are then likely swapped.
    """
    require_kind("model", model, Model)
    model.require_theory()
    job: PlainDict = {
        "sampler": "nuts",  # The options are its own.
        "chains": positive_integer("chains", chains),
        "warmup": positive_integer("warmup", warmup, 0),
        "draws": positive_integer("draws", draws),
        "seed": seed_number("seed", seed),
        "keep": ("order_parameter",),
        "options": OPTIONS,
    }
    given = temperatures is not None
    if losses is not None:
        chosen = _checked(temperatures if given else model.temperature)
        if len(chosen) > 1:
            raise BayesattnError(f"temperatures must be one, that of the losses, got {shown(temperatures)}")
        warn_of_swapped_axes("losses", np.atleast_2d(losses))
        return from_losses(model, chosen[0], losses, noise, best_fit, seed)
    if noise is not None:
        raise BayesattnError(f"noise must be that of losses, which are not given, got {shown(noise)}")
    smaller, residual = reduced(model)
    chosen = _checked(temperatures) if given else _decades(smaller)
    tell = progress or (lambda text: None)
    tell("least sum of squares")
    least = best_fit_of(smaller, best_fit, residual=residual, seed=seed)
    columns: list[dict[str, np.ndarray]] = []
    spread: list[tuple[float, float]] = []
    stopped = None
    for temperature in chosen:
        tell(f"T = {temperature:.3g}")
        try:
            cold = smaller.replace(temperature=temperature)
            tree = opened_of(sample(cold, progress=False, **job), cold)
        except (NotConverged, FloatingPointError, BayesattnError) as error:
            of_storage = isinstance(error, BayesattnError) and type(error) is not BayesattnError
            if given or not columns or of_storage:
                raise
            stopped = f"float64 does not suffice at T = {temperature:.3g}: {error}"
            break
        estimates, drawn = _by_chains(cold, tree)
        if least.how != "not needed":
            lowest = residual + float(np.min(np.asarray(attained(cold.gaussian_process, drawn))))
            least = least.held_against(lowest, 2 * temperature * float(np.nan_to_num(estimates["error"])))
        columns.append(estimates)
        spread.append(_fluctuation(model, temperature, drawn, chains))
    arrays: Any = {name: np.array([column[name] for column in columns]) for name in columns[0]}
    reached = np.array(chosen[: len(columns)])
    offset = (least.square - residual) / (2 * reached)
    arrays |= {"value": arrays["value"] - offset, "slope": arrays["slope"] + offset}
    fluctuation = None if np.isnan(spread).all() else Estimates(*np.array(spread).T)
    return LearningCoefficient(
        model, reached, **arrays, best_fit=least, singular_fluctuation=fluctuation, seed=seed, stopped=stopped
    )


def _by_chains(cold: Model, tree: xr.DataTree) -> tuple[dict[str, np.ndarray], Float[Array, "draw row column"]]:
    """E[S] / (2 T), its error, slope and mixing from collapsed draws of a reduced model, with their factors of U."""
    points = tree["posterior"].to_dataset()["bartlett"].values
    drawn = factors(cold, points.reshape(-1, points.shape[-1]))
    mean, slope = (values.reshape(points.shape[:2]) for values in loss(cold.gaussian_process, drawn))
    found = _moments(mean)
    # d E[g] / d log T = E[dg / d log T] + Var(g), since g is also the derivative of the log density of U by log T.
    change = _moments(slope + (mean - mean.mean()) ** 2)
    estimates = {"value": found["mean"], "slope": change["mean"], "slope_error": change["error"]}
    return estimates | {name: found[name] for name in ("error", "ess", "rhat")}, drawn


def _moments(values: Float[np.ndarray, "chain draw"]) -> dict[str, np.ndarray]:
    return moments(xr.DataArray(values, dims=CHAIN_AXES))


def _fluctuation(
    model: Model, temperature: float, drawn: Float[Array, "draw row column"], chains: int
) -> tuple[float, float]:
    """Singular fluctuation with its error, from a share of the draws; NaN if the examples are many, or compressed."""
    labels = np.size(model.labels)
    rows = min(labels, drawn.shape[2] * model.path_inputs.shape[2])
    if model.compressed is not None or labels > MOST_LABELS or rows > MOST_ROWS:
        return float("nan"), float("nan")
    every = max(1, len(drawn) // MOST_DRAWS)
    chosen = np.asarray(drawn).reshape(chains, -1, *drawn.shape[1:])[:, ::every]
    mean, variance = map(
        np.asarray, example_losses(model.gaussian_process.at(temperature), chosen.reshape(-1, *drawn.shape[1:]))
    )
    found = _moments(((variance + (mean - mean.mean(0)) ** 2).sum(1) / 2).reshape(chains, -1))
    return float(found["mean"]), float(found["error"])


def _checked(temperatures: Checked) -> list[float]:
    """Temperatures, the warmest first."""
    listed = [temperatures] if np.ndim(temperatures) == 0 else entries("temperatures", temperatures, "numbers above 0")
    checked = sorted((positive("temperatures", each) for each in listed), reverse=True)
    if not checked or len(set(checked)) < len(checked):
        raise BayesattnError(f"temperatures must be different numbers above 0, at least one, got {temperatures!r}")
    return checked


def _decades(model: Model) -> list[float]:
    """Default temperatures: powers of ten from a tenth of the mean prior variance of the outputs."""
    kernel = model.gaussian_process.kernel_of(theory.gp_order_parameter(model.architecture))
    mean = float(np.trace(kernel)) / len(kernel)
    if mean == 0:
        raise BayesattnError("path inputs must not all be 0, for the learning coefficient is then 0")
    warmest = int(np.floor(np.log10(WARMEST_SHARE * mean)))
    return [float(f"1e{warmest - step}") for step in range(DECADES)]
