"""Statistics of ranks: are they uniform, how many are independent, and do two samples follow one law?

ArviZ's bands (`arviz_stats.ecdf_utils`) are simulated, and of one sample; the level of a verdict needs exact probabilities,
over several quantities at once, and ranks of several chains need a band of their own.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from jaxtyping import Float, Int
from scipy import stats

TIED = 1 + 1e-9
"""Tails that differ by rounding are the same."""
PLACES = np.arange(41) / 40
"""Shares of all ranks at which ECDFs of chains are looked at."""
ROUNDING = 1e-9
BAND_LEVEL = 0.01
SIMULATIONS = 1000
"""Of mixed chains, for the band of their ECDFs."""


def ecdf_band(simulations: int, draws: int, level: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """Simultaneous band of the ECDF of uniform ranks minus its mean, at ranks 0 .. L (Sailynoja, Burkner & Vehtari 2022)."""
    tails = _tails(simulations, draws)
    candidates = np.unique(tails)
    # The probability of some tail as small as this or smaller rises with it.
    small = bisect_right(candidates, level, key=lambda tail: uniform_probability([tail], simulations, draws)[0])
    inside = tails > candidates[max(small - 1, 0)] * TIED
    counts = np.arange(simulations + 1)
    low = np.append(np.min(np.where(inside, counts, simulations), 1), simulations)
    high = np.append(np.max(np.where(inside, counts, 0), 1), simulations)
    expected = np.arange(1, draws + 2) / (draws + 1)
    return low / simulations - expected, high / simulations - expected


def ecdf_difference(ranks: Int[np.ndarray, " simulation"], draws: int) -> Float[np.ndarray, " rank"]:
    """ECDF of ranks minus that of the uniform law, at ranks 0 .. L."""
    counts = np.cumsum(np.bincount(ranks, minlength=draws + 1))
    return counts / len(ranks) - np.arange(1, draws + 2) / (draws + 1)


def uniform_probability(
    least_tails: Sequence[float] | Float[np.ndarray, " quantity"], simulations: int, draws: int
) -> Float[np.ndarray, " quantity"]:
    """Probability that uniform ranks have some binomial tail at rank 0 .. L - 1 as small as each of these, or smaller.

    Exact but for rounding, however small: the ECDF of uniform ranks is a Markov chain in the rank, of which the paths that
    leave the band are added up where they first do so (after Sailynoja, Burkner & Vehtari 2022, who subtract those that
    stay). Counts of ranks are independent Poisson variables, given that they add up to the number of simulations.
    """
    counts, mean = np.arange(simulations + 1), simulations / (draws + 1)
    tails, least = _tails(simulations, draws), np.asarray(least_tails)[:, None]
    step = stats.poisson.pmf(counts - counts[:, None], mean)
    inside = np.zeros((len(least), simulations + 1))
    inside[:, 0] = 1
    left = np.zeros(len(least))
    for rank in range(draws):
        reached = inside @ step
        outside = tails[rank] <= least * TIED
        left += (reached * outside) @ stats.poisson.pmf(simulations - counts, mean * (draws - rank))
        inside = np.where(outside, 0, reached)
    return np.minimum(left / stats.poisson.pmf(simulations, simulations), 1)


def chain_ecdfs(values: Float[np.ndarray, "chain draw"]) -> Float[np.ndarray, "chain place"]:
    """ECDF of each chain's ranks among all chains, minus that of uniform ranks, at `PLACES`."""
    ranks, reached = stats.rankdata(values, axis=None).reshape(values.shape), PLACES * values.size + ROUNDING
    return np.array([np.searchsorted(np.sort(own), reached, side="right") for own in ranks]) / values.shape[1] - PLACES


def chain_band(chains: int, draws: int) -> Float[np.ndarray, " place"]:
    """Size of `chain_ecdfs` that chains of independent draws of one law all stay within, with probability 0.99.

    Of draws that are one law, each chain's ranks are a sample without replacement (Sailynoja, Burkner & Vehtari 2022).
    """
    return _band_factor(chains, draws) * np.sqrt(PLACES * (1 - PLACES))


@lru_cache(maxsize=32)
def _band_factor(chains: int, draws: int) -> float:
    """Quantile of the greatest of any chain's ECDF differences, in units of sqrt(x (1 - x)), by simulation."""
    rng, places = np.random.default_rng(0), PLACES[1:-1]
    reached = np.floor(places * chains * draws + ROUNDING)
    # Of each rank, the first place that reaches it.
    first = chains * np.searchsorted(reached, np.arange(chains * draws), side="right")
    owners = np.repeat(np.arange(chains), draws)
    greatest = np.empty(SIMULATIONS)
    for simulation in range(SIMULATIONS):
        new = np.bincount(first + rng.permutation(owners), minlength=chains * len(PLACES)).reshape(-1, chains)
        apart = np.cumsum(new, axis=0)[: len(places)] / draws - places[:, None]
        greatest[simulation] = np.max(np.abs(apart) / np.sqrt(places * (1 - places))[:, None])
    return float(np.quantile(greatest, 1 - BAND_LEVEL))


def effective_share(draws: Float[np.ndarray, "simulation draw quantity"]) -> Float[np.ndarray, " quantity"]:
    """Effective sample size over number of draws, at most 1: the inverse of the autocorrelation time of ranks in each chain.

    Autocorrelations from variograms, pooled over simulations (Gelman et al. 2013, section 11.5), added up by Geyer's
    initial positive sequence (1992). Chains that do not vary have no say; a quantity that varies in none has share 1.
    """
    count = draws.shape[1]
    ranks = stats.rankdata(draws, axis=1)
    varies = ranks.var(1).mean(0) > 0
    within = np.where(varies, ranks.var(1).mean(0), 1)
    lags = range(1, count - count % 2)
    squares = [np.mean((ranks[:, lag:] - ranks[:, : count - lag]) ** 2, axis=(0, 1)) for lag in lags]
    variograms = np.stack([np.zeros_like(within), *squares])
    time = np.ones_like(within)
    for _ in range(2):
        # The variance within a chain falls short of the variance by that of the chain's mean, which depends on the time.
        variance = within / (1 - np.minimum(time, count / 2) / count)
        pairs = np.sum(np.reshape(1 - variograms / (2 * variance), (-1, 2, len(within))), axis=1)
        positive = np.where(np.cumsum(pairs <= 0, axis=0) == 0, pairs, 0)
        time = np.maximum(2 * positive.sum(0) - 1, 1)
    return np.where(varies, 1 / time, 1.0)


def _tails(simulations: int, draws: int) -> Float[np.ndarray, "rank count"]:
    """Two-sided binomial tail of each number of ranks at or below 0 .. L - 1, by the uniform law."""
    expected, counts = np.arange(1, draws + 1)[:, None] / (draws + 1), np.arange(simulations + 1)
    below, above = stats.binom.cdf(counts, simulations, expected), stats.binom.sf(counts - 1, simulations, expected)
    return 2 * np.minimum(below, above)


def least_tail(ranks: Int[np.ndarray, "simulation quantity"], draws: int) -> Float[np.ndarray, " quantity"]:
    """Least two-sided pointwise binomial tail of the ECDF of each column's ranks."""
    below = np.stack([np.sum(ranks <= rank, 0) for rank in range(draws)])
    return np.min(np.take_along_axis(_tails(len(ranks), draws), below, 1), 0)


def rank_errors(before: np.ndarray, after: np.ndarray) -> Float[np.ndarray, " twice_the_quantities"]:
    """How far apart two samples (draw, quantity) of one law are, in errors: in location, then in spread.

    Means of ranks, and of their squared distances from the middle. Whatever the law, ranks have light tails; means of U^2
    itself, a product of chi-squared variables, stay low until an extreme comes up, and raised false alarms.
    """
    ordered = np.sort(before, axis=0)
    columns = zip(ordered.T, after.T, strict=True)
    ranks = np.stack([np.searchsorted(column, values) / len(before) for column, values in columns], axis=1) - 0.5
    error = np.sqrt(1 / len(before) + 1 / len(after))
    # A uniform variable's variance is 1/12, that of its square about the middle 1/180.
    location, spread = ranks.mean(0) * np.sqrt(12), ((ranks**2).mean(0) - 1 / 12) * np.sqrt(180)
    return np.concatenate([location, spread]) / error
