"""Ratio of two evidences from draws of both posteriors (Bennett 1976; Meng and Wong 1996)."""

from typing import Any

import arviz_stats
import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy import optimize, special

from bayesattn.models.draws import CHAIN_AXES

FARTHER = 50.0
"""Nats by which the search for the ratio extends beyond all differences of log densities."""


def bridge(
    forward: Float[np.ndarray, "chain draw"], backward: Float[np.ndarray, "other_chain other_draw"]
) -> tuple[float, float]:
    """log Z' / Z from draws of both densities, by Bennett's acceptance ratio, and its Monte Carlo standard error.

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
    relative = [_error(side) / side.mean() for side in sides(log_ratio)]
    return log_ratio, float(np.hypot(*relative))


def _error(values: np.ndarray) -> float:
    return float(arviz_stats.mcse(xr.DataArray(values, dims=CHAIN_AXES)))


def _effective(values: np.ndarray) -> float:
    return float(arviz_stats.ess(xr.DataArray(values, dims=CHAIN_AXES), method="mean"))


def rhat(values: np.ndarray) -> float:
    """R-hat of one quantity."""
    return float(arviz_stats.rhat(xr.DataArray(values, dims=CHAIN_AXES)))
