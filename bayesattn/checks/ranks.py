"""Ranks among draws, tests of their uniformity, effective share of independent draws, comparison of two samples.

ArviZ's bands (`arviz_stats.ecdf_utils`) are simulated and apply to one sample. The level of a verdict needs exact
probabilities over several quantities at once, and ranks of several chains need a different band.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from jaxtyping import Float, Int
from scipy import stats

TIE_FACTOR = 1 + 1e-9
"""Factor within which two tail probabilities count as equal, for rounding errors."""
ECDF_SHARES = np.arange(41) / 40
"""Shares of all ranks at which ECDFs of chains are evaluated."""
ROUNDING = 1e-9
BAND_LEVEL = 0.01
BAND_SIMULATIONS = 1000
"""Number of simulations of mixed chains, for the band of their ECDFs."""


def ranks_among(
    draws: Float[np.ndarray, "simulation draw quantity"],
    values: Float[np.ndarray, "simulation quantity"],
    rng: np.random.Generator,
) -> Int[np.ndarray, "simulation quantity"]:
    """Number of a simulation's L draws below its value, 0 to L, for each quantity; `rng` breaks ties at random."""
    return rng.integers(np.sum(draws < values[:, None], 1), np.sum(draws <= values[:, None], 1), endpoint=True)


def ecdf_band(simulations: int, draws: int, level: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """Simultaneous band of the ECDF of uniform ranks minus its mean, at ranks 0 .. L (Sailynoja, Burkner & Vehtari 2022)."""
    tails = _tails(simulations, draws)
    candidates = np.unique(tails)
    # The probability that some tail is at or below a candidate increases with the candidate.
    small = bisect_right(candidates, level, key=lambda tail: uniform_probability([tail], simulations, draws)[0])
    inside = tails > (candidates[small - 1] * TIE_FACTOR if small else 0)
    counts = np.arange(simulations + 1)
    low = np.append(np.min(np.where(inside, counts, simulations), 1), simulations)
    high = np.append(np.max(np.where(inside, counts, 0), 1), simulations)
    expected = np.arange(1, draws + 2) / (draws + 1)
    return low / simulations - expected, high / simulations - expected


def ecdf_difference(ranks: Int[np.ndarray, " simulation"], draws: int) -> Float[np.ndarray, " rank"]:
    """ECDF of ranks minus the CDF of the uniform distribution, at ranks 0 .. L."""
    counts = np.cumsum(np.bincount(ranks, minlength=draws + 1))
    return counts / len(ranks) - np.arange(1, draws + 2) / (draws + 1)


def uniform_probability(
    least_tails: Sequence[float] | Float[np.ndarray, " quantity"], simulations: int, draws: int
) -> Float[np.ndarray, " quantity"]:
    """Probability, for each of `least_tails`, that uniform ranks have a binomial tail no larger at some rank 0 .. L - 1.

    The result is exact up to rounding, even if it is tiny. The ECDF of uniform ranks is a Markov chain in the rank. The
    probabilities of the paths that leave the band are summed at the rank where they first leave it (after Sailynoja,
    Burkner & Vehtari 2022, who subtract the paths that stay). The counts of ranks are independent Poisson variables,
    conditioned on their sum, the number of simulations.
    """
    counts, mean = np.arange(simulations + 1), simulations / (draws + 1)
    tails, least = _tails(simulations, draws), np.asarray(least_tails)[:, None]
    step = stats.poisson.pmf(counts - counts[:, None], mean)
    inside = np.zeros((len(least), simulations + 1))
    inside[:, 0] = 1
    left = np.zeros(len(least))
    for rank in range(draws):
        reached = inside @ step
        outside = tails[rank] <= least * TIE_FACTOR
        left += (reached * outside) @ stats.poisson.pmf(simulations - counts, mean * (draws - rank))
        inside = np.where(outside, 0, reached)
    return np.minimum(left / stats.poisson.pmf(simulations, simulations), 1)


def chain_ecdfs(values: Float[np.ndarray, "chain draw"]) -> Float[np.ndarray, "chain place"]:
    """ECDF of each chain's ranks among the draws of all chains, minus the uniform CDF, at `ECDF_SHARES`."""
    ranks, reached = stats.rankdata(values, axis=None).reshape(values.shape), ECDF_SHARES * values.size + ROUNDING
    return (
        np.array([np.searchsorted(np.sort(own), reached, side="right") for own in ranks]) / values.shape[1]
        - ECDF_SHARES
    )


def chain_band(chains: int, draws: int) -> Float[np.ndarray, " place"]:
    """Band that contains `chain_ecdfs` of all chains with probability 0.99, for independent draws of one distribution.

    If all draws have one distribution, the ranks of a chain are a sample without replacement (Sailynoja, Burkner & Vehtari
    2022).
    """
    return _band_factor(chains, draws) * np.sqrt(ECDF_SHARES * (1 - ECDF_SHARES))


@lru_cache(maxsize=32)
def _band_factor(chains: int, draws: int) -> float:
    """Quantile of the largest ECDF difference of any chain, in units of sqrt(x (1 - x)), by simulation."""
    rng, places = np.random.default_rng(0), ECDF_SHARES[1:-1]
    reached = np.floor(places * chains * draws + ROUNDING)
    # Index of the first share that includes each rank.
    first = chains * np.searchsorted(reached, np.arange(chains * draws), side="right")
    owners = np.repeat(np.arange(chains), draws)
    greatest = np.empty(BAND_SIMULATIONS)
    for simulation in range(BAND_SIMULATIONS):
        new = np.bincount(first + rng.permutation(owners), minlength=chains * len(ECDF_SHARES)).reshape(-1, chains)
        apart = np.cumsum(new, axis=0)[: len(places)] / draws - places[:, None]
        greatest[simulation] = np.max(np.abs(apart) / np.sqrt(places * (1 - places))[:, None])
    return float(np.quantile(greatest, 1 - BAND_LEVEL))


def effective_share(draws: Float[np.ndarray, "simulation draw quantity"]) -> Float[np.ndarray, " quantity"]:
    """Effective sample size per draw, at most 1: the inverse of the autocorrelation time of ranks within chains.

    Autocorrelations are estimated from variograms, pooled over simulations (Gelman et al. 2013, section 11.5), and summed
    by Geyer's initial positive sequence (1992). Chains that do not vary are ignored; a quantity that varies in no chain has
    share 1.
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
        # The variance within a chain is the variance minus that of its mean, which depends on the autocorrelation time.
        variance = within / (1 - np.minimum(time, count / 2) / count)
        pairs = np.sum(np.reshape(1 - variograms / (2 * variance), (-1, 2, len(within))), axis=1)
        positive = np.where(np.cumsum(pairs <= 0, axis=0) == 0, pairs, 0)
        time = np.maximum(2 * positive.sum(0) - 1, 1)
    return np.where(varies, 1 / time, 1.0)


def _tails(simulations: int, draws: int) -> Float[np.ndarray, "rank count"]:
    """Two-sided binomial tail of each number of ranks at or below 0 .. L - 1, for uniform ranks."""
    expected, counts = np.arange(1, draws + 1)[:, None] / (draws + 1), np.arange(simulations + 1)
    below, above = stats.binom.cdf(counts, simulations, expected), stats.binom.sf(counts - 1, simulations, expected)
    return 2 * np.minimum(below, above)


def least_tail(ranks: Int[np.ndarray, "simulation quantity"], draws: int) -> Float[np.ndarray, " quantity"]:
    """Smallest two-sided pointwise binomial tail of the ECDF of the ranks in each column."""
    below = np.stack([np.sum(ranks <= rank, 0) for rank in range(draws)])
    return np.min(np.take_along_axis(_tails(len(ranks), draws), below, 1), 0)


def rank_errors(before: np.ndarray, after: np.ndarray) -> Float[np.ndarray, " twice_the_quantities"]:
    """Differences between two samples (draw, quantity), in standard errors: in location, then in spread.

    Location is the mean of ranks, spread the mean of their squared distances from the middle. Ranks have light tails for
    any distribution. Means of U^2 itself, a product of chi-squared variables, are low until an extreme value occurs, and
    caused false alarms. Equal values, such as statistics of classes, share the middle of their ranks.

    Raises FloatingPointError for values that are not finite, which have no rank.
    """
    if not (np.isfinite(before).all() and np.isfinite(after).all()):
        raise FloatingPointError("values to be ranked must be finite, got some that are not")

    def ranked(values: np.ndarray) -> np.ndarray:
        columns = [*zip(np.sort(before, axis=0).T, values.T, strict=True)]
        below, at_most = (
            np.stack([np.searchsorted(*pair, side=side) for pair in columns], axis=1) for side in ("left", "right")
        )
        return (below + at_most) / (2 * len(before)) - 0.5

    own, other = ranked(before), ranked(after)
    differences = np.concatenate([other.mean(0), (other**2).mean(0) - (own**2).mean(0)])
    deviations = np.concatenate([own.std(0), (own**2).std(0)])
    # Where all values are equal before, only equal ones after have no difference.
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = differences / (deviations * np.sqrt(1 / len(before) + 1 / len(after)))
    return np.where(differences == 0, 0.0, errors)
