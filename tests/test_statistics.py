"""The level of comparisons of draws is what it is said to be, and planted errors are found."""

import numpy as np
import pytest
import xarray as xr
from scipy import signal, stats

from tests import statistics
from tests.statistics import agree, likely, near, p_values


def chains(correlation, replicates, draws=500, seed=0):
    """Four autoregressive chains of mean 0 and variance 1 for each replicate."""
    noise = np.random.default_rng(seed).normal(size=(4, draws, replicates))
    noise[:, 0] /= np.sqrt(1 - correlation**2)
    values = signal.lfilter([np.sqrt(1 - correlation**2)], [1, -correlation], noise, axis=1)
    return xr.DataArray(values, dims=("chain", "draw", "replicate"))


@pytest.mark.parametrize(("correlation", "two"), [(0.0, False), (0.95, False), (0.8, True)])
def test_false_alarms_have_the_level(correlation, two):
    """Rates at three levels, each with its binomial law at a level of 1e-4; being rarer is no fault."""
    replicates = 2000
    other = chains(correlation, replicates, seed=1) if two else 0.0
    p = p_values(chains(correlation, replicates), other)[0]
    for level in (0.05, 1e-2, 1e-3):
        assert stats.binom.sf(np.sum(p < level) - 1, replicates, level) > 1e-4


def test_a_planted_error_is_found():
    """As often as said, in draws with 500 effective ones, and by `agree` where it is twice as large."""
    draws = chains(0.6, 500)
    found = p_values(draws, 0.0)[1]
    level = statistics.LEVEL / statistics.COMPARISONS
    p = p_values(draws + found * draws.std(("chain", "draw")), 0.0)[0]
    assert abs(np.mean(p < level) - statistics.POWER) < 0.05
    with pytest.raises(AssertionError, match=r"p = .* of 500 comparisons"):
        agree(draws + 1.0, 0.0)
    with pytest.raises(AssertionError, match=r"standard deviations might not be found"):
        agree(draws, 0.0, finds=0.1)


def test_estimates_are_judged_by_their_own_errors():
    """At the level itself, one side and the other; where few degrees of freedom are known, further off."""
    level = statistics.LEVEL / statistics.COMPARISONS
    for degrees in (np.inf, 4):
        most = stats.t.isf(level / 2, degrees)
        near(np.array([1.0, 1 + 0.99 * most * 0.1]), 1.0, 0.1, degrees, finds=(most + 2) * 0.1)
        near(1.5 - 0.99 * most * 0.1, 1.0, 0.1, degrees, finds=(most + 2) * 0.1, allowed=0.5)
        with pytest.raises(AssertionError, match=r"p = .* of 2 comparisons"):
            near(np.array([1.0, 1 - 1.01 * most * 0.1]), 1.0, 0.1, degrees, finds=100)
        with pytest.raises(AssertionError, match=r"might not be found"):
            near(1.0, 1.0, 0.1, degrees, finds=(most + 1.2) * 0.1)
    with pytest.raises(AssertionError, match=r"p = nan"):
        near(np.nan, 1.0, 0.1, finds=1)
    with pytest.raises(AssertionError, match=r"p = 1e-09 of 2 comparisons"):
        likely([0.5, 1e-9])
