"""Comparisons of draws and estimates with what is exact, or with others, with a level and a power.

All comparisons by `agree`, `near` and `likely` in a run of all tests, heavy ones too, together raise a false alarm with
probability `LEVEL` at most. Each entry is one comparison, so each has the level LEVEL / COMPARISONS (Bonferroni). The
p-value of draws is from Student's law, because their error is estimated too: the variance of an error from a window of five
autocorrelation times has a relative variance of some 20 / ESS (Geyer 1992), which is that of a chi-square law with ESS / 10
degrees of freedom.
"""

from typing import NamedTuple

import arviz_stats
import numpy as np
import xarray as xr
from scipy import stats

LEVEL = 1e-3
COMPARISONS = 40_000
"""Most entries that all tests compare in one run; the run says how many it was (`tests/costs.py`)."""
POWER = 0.9
FINDS = 0.5
"""Difference that a comparison must find with probability `POWER`, in standard deviations of the draws.

A test that asks for another one asks for half more than its draws would show: effective sizes differ between processors.
"""
DRAWS_PER_DEGREE = 10
made = 0
"""Number of entries that this process has compared."""


class Mean(NamedTuple):
    """Mean of draws, its Monte Carlo error, the degrees of freedom of that error, and the draws' standard deviation."""

    value: np.ndarray
    error: np.ndarray
    degrees: np.ndarray
    deviation: np.ndarray


def mean_of(draws: xr.DataArray) -> Mean:
    """Mean over chain and draw of each entry."""
    error, deviation = arviz_stats.mcse(draws).values, draws.std(("chain", "draw")).values
    return Mean(draws.mean(("chain", "draw")).values, error, (deviation / error) ** 2 / DRAWS_PER_DEGREE, deviation)


def p_values(draws: xr.DataArray, other: xr.DataArray | np.ndarray | float, error=0.0, degrees=np.inf):
    """Two-sided p-values of each entry, and the standard deviations that would be found with probability `POWER`."""
    one = mean_of(draws)
    two = mean_of(other) if isinstance(other, xr.DataArray) else Mean(np.asarray(other), np.asarray(error), degrees, 0)
    total = np.hypot(one.error, two.error)
    # Welch and Satterthwaite.
    degrees = total**4 / (one.error**4 / one.degrees + two.error**4 / two.degrees)
    deviation = np.maximum(one.deviation, two.deviation)
    return 2 * stats.t.sf(np.abs(one.value - two.value) / total, degrees), detectable(total, degrees) / deviation


def detectable(error, degrees):
    """Difference that would be found with probability `POWER`."""
    return (stats.t.isf(LEVEL / COMPARISONS / 2, degrees) + stats.norm.isf(1 - POWER)) * np.asarray(error)


def agree(
    draws: xr.DataArray,
    other: xr.DataArray | np.ndarray | float,
    error: np.ndarray | float = 0.0,
    degrees: float = np.inf,
    *,
    finds: float = FINDS,
) -> None:
    """Assert that means of draws are those of other draws, or others with an error of their own, of so many degrees.

    Asserts too that there are draws enough: a difference of `finds` standard deviations would be found.
    """
    p, found = p_values(draws, other, error, degrees)
    likely(p)
    assert np.all(found <= finds), f"differences below {np.max(found):.2f} standard deviations might not be found"


def near(found, expected, error, degrees=np.inf, *, finds: float, allowed=0.0) -> None:
    """Assert that estimates are the expected values, up to the standard errors of the differences.

    Any shapes that broadcast. Each error has `degrees` of freedom, infinitely many where it is known and not estimated;
    differences may be `allowed` besides. A difference beyond these by `finds` or more, in the estimates' own units, would be
    found with probability `POWER`, or this fails: there must be draws enough.
    """
    beyond = np.maximum(np.abs(np.asarray(found) - np.asarray(expected)) - allowed, 0)
    likely(2 * stats.t.sf(beyond / error, degrees))
    seen = np.max(detectable(error, degrees))
    assert seen <= finds, f"differences below {seen:.2g} might not be found"


def likely(p) -> None:
    """Assert that none of these p-values is below the level of a comparison."""
    global made
    made += np.size(p)
    assert np.all(np.asarray(p) >= LEVEL / COMPARISONS), f"p = {np.min(p):.1g} of {np.size(p)} comparisons"
