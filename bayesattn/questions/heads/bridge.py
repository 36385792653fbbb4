"""Ratio of two evidences from draws of both posteriors (Bennett 1976; Meng and Wong 1996)."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import arviz_stats
import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy import optimize, special

from bayesattn.checks.mixing import FEWEST_CHAINS
from bayesattn.models.draws import CHAIN_AXES

FARTHER = 50.0
"""Nats by which the search for the ratio extends beyond all differences of log densities."""


class Bridge(NamedTuple):
    """log Z' / Z, and what each draw of Z and of Z' contributes to it: numbers of mean 1, whose means' noise is its own.

    The log ratio is off by the deviation from 1 of the mean of `there` minus that of `back`.
    """

    log_ratio: float
    there: Float[np.ndarray, "chain draw"]
    back: Float[np.ndarray, "other_chain other_draw"]

    @property
    def error(self) -> float:
        """Monte Carlo standard error of the log ratio."""
        return float(np.hypot(_error_of_mean(self.there), _error_of_mean(self.back)))


def bridge(forward: Float[np.ndarray, "chain draw"], backward: Float[np.ndarray, "other_chain other_draw"]) -> Bridge:
    """log Z' / Z from draws of both densities, by Bennett's acceptance ratio.

    Args:
        forward: log of the unnormalised density of Z' less that of Z, at draws of Z.
        backward: log of the density of Z less that of Z', at draws of Z'.
    """
    sizes = [_effective(each) for each in (forward, backward)]
    balance = np.log(sizes[0] / sizes[1])

    def sides(log_ratio: float) -> tuple[np.ndarray, np.ndarray]:
        return special.expit(forward - log_ratio - balance), special.expit(backward + log_ratio + balance)

    def excess(log_ratio: float) -> float:
        there, back = sides(log_ratio)
        return float(sizes[0] * there.mean() - sizes[1] * back.mean())

    # The right ratio makes both expected counts equal. Far beyond all differences, one of the counts is nearly 0.
    ends = np.concatenate([forward.ravel(), -backward.ravel()])
    log_ratio: Any = optimize.brentq(excess, ends.min() - FARTHER, ends.max() + FARTHER, xtol=1e-12)
    return Bridge(log_ratio, *(side / side.mean() for side in sides(log_ratio)))


def chained(steps: Sequence[Bridge]) -> tuple[float, float]:
    """log of the ratio over several steps, and its error: draws between two steps enter both, and their noise adds up."""
    between = (after.there - before.back for before, after in itertools.pairwise(steps))
    of_draws = [_error_of_mean(each) for each in (steps[0].there, *between, steps[-1].back)]
    return sum(step.log_ratio for step in steps), float(np.linalg.norm(of_draws))


def _error_of_mean(values: np.ndarray) -> float:
    """Monte Carlo standard error of the mean of one quantity."""
    return float(arviz_stats.mcse(xr.DataArray(values, dims=CHAIN_AXES)))


def _effective(values: np.ndarray) -> float:
    return float(arviz_stats.ess(xr.DataArray(values, dims=CHAIN_AXES), method="mean"))


def rhat(values: np.ndarray) -> float:
    """R-hat of one quantity; NaN of one chain, 1 of a quantity that is the same in all draws of several."""
    if len(values) < FEWEST_CHAINS:
        return float("nan")
    if np.ptp(values) == 0:
        return 1.0
    return float(arviz_stats.rhat(xr.DataArray(values, dims=CHAIN_AXES)))
