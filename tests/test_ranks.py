"""Statistics of ranks: how often right samplers fail, and that what differs is told apart."""

import itertools

import numpy as np
import pytest
from scipy import stats
from scipy.signal import lfilter

from bayesattn.checks.ranks import (
    chain_band,
    chain_ecdfs,
    ecdf_band,
    ecdf_difference,
    effective_share,
    least_tail,
    rank_errors,
    uniform_probability,
)
from tests.statistics import likely, near


def test_probabilities_are_those_of_all_ranks_counted():
    """Four simulations ranked among three draws: 256 equally likely outcomes."""
    outcomes = np.array(list(itertools.product(range(4), repeat=4))).T
    least = least_tail(outcomes, 3)
    counted = [np.mean(least <= tail * (1 + 1e-9)) for tail in least]
    np.testing.assert_allclose(uniform_probability(least, 4, 3), counted, rtol=1e-12)


def test_a_right_sampler_with_correlated_quantities_fails_no_more_often_than_stated():
    """500 calibrations of 20 quantities, ranks uniform and correlated at 0.5, at a level of 5 %; then shifted ones."""
    rng = np.random.default_rng(0)
    shape = (100, 500)
    normal = (rng.normal(size=(*shape, 1)) + rng.normal(size=(*shape, 20))) / np.sqrt(2)

    def failed(values):
        ranks = np.floor(64 * stats.norm.cdf(values)).astype(int)
        least = least_tail(ranks.reshape(100, -1), 63).reshape(500, 20)
        return np.sum(uniform_probability(least.min(1), 100, 63) <= 0.05 / 20)

    likely(stats.binom.sf(failed(normal) - 1, 500, 0.05))
    # Half a standard deviation is five errors of the mean of 100.
    assert failed(normal + 0.5) > 450


def test_uniform_ranks_hold_as_often_as_they_should():
    fresh = least_tail(np.random.default_rng(0).integers(0, 64, (100, 4000)), 63)
    count, law = np.sum(uniform_probability(fresh, 100, 63) <= 0.05), stats.binom(4000, 0.05)
    likely(2 * min(law.cdf(count), law.sf(count - 1)))


def test_the_band_holds_uniform_ranks():
    """Pointwise tails against scipy; whole curves are inside the 95 % band where their ranks have a p-value above 5 %."""
    ranks = np.random.default_rng(1).integers(0, 20, (50, 1000))
    count, law, least = np.sum(ranks <= 4, axis=0), stats.binom(50, 0.25), least_tail(ranks, 19)
    assert np.all(least <= 2 * np.minimum(law.cdf(count), law.sf(count - 1)))
    low, high = ecdf_band(50, 19)
    curves = np.array([ecdf_difference(each, 19) for each in ranks.T])
    inside = np.all((curves >= low - 1e-12) & (curves <= high + 1e-12), axis=1)
    np.testing.assert_array_equal(inside, uniform_probability(least, 50, 19) > 0.05)
    assert 0 < np.mean(~inside) < 0.1
    # Of one simulation each rank has a probability of 1/4: none is outside.
    low, high = ecdf_band(1, 3)
    curves = np.array([ecdf_difference(np.array([rank]), 3) for rank in range(4)])
    assert np.all((curves >= low - 1e-12) & (curves <= high + 1e-12))


def test_effective_share_of_autoregressive_chains():
    """(1 - phi) / (1 + phi) within 15 %, what two corrections leave; 1 for draws that are independent, or never vary."""
    rng = np.random.default_rng(0)
    chains = [rng.normal(size=(400, 63))]
    chains += [lfilter([1.0], [1.0, -phi], rng.normal(size=(400, 163)), axis=1)[:, 100:] for phi in (0.2, 0.6)]
    found = effective_share(np.stack([*chains, np.ones((400, 63))], axis=-1))
    np.testing.assert_allclose(found, [1, 0.8 / 1.2, 0.4 / 1.6, 1], rtol=0.15)
    # Adding constants to chains, which have them from their own posteriors, changes nothing.
    moved = np.stack(chains, axis=-1) + 10 * rng.normal(size=(400, 1, 1))
    np.testing.assert_allclose(effective_share(moved), found[:3], rtol=1e-9)


def test_samples_of_one_law_with_heavy_tails_are_told_apart_as_seldom_as_they_should():
    """Squares of products of chi-squared variables; a wrong location or spread is seen."""
    rng = np.random.default_rng(0)

    def sample(count):
        return np.prod(rng.chisquare(3, size=(2, count, 4)), axis=0) ** 2

    found = np.array([rank_errors(sample(3000), sample(300)) for _ in range(1000)])
    # 8000 numbers of a standard normal law, those of one quantity correlated at most.
    near(found.mean(), 0, 1 / np.sqrt(8000), finds=0.08)
    near(np.mean(found**2), 1, np.sqrt(2 / 8000), finds=0.11)
    likely(stats.binom.sf(np.sum(np.abs(found) > 2.576) - 1, 8000, 0.01))
    shifted, spread = rng.normal(0.3, 1, (1000, 1)), rng.normal(0, 1.2, (1000, 1))
    normal = rng.normal(0, 1, (10_000, 1))
    assert rank_errors(normal, shifted)[0] > 5
    assert rank_errors(normal, spread)[1] > 5


@pytest.mark.parametrize(("chains", "draws"), [(1, 10), (2, 13), (4, 100)])
def test_curves_of_mixed_chains_stay_in_their_band(chains, draws):
    """1 % of 2000 do not, of a band from 1000 simulations; one chain alone leaves nothing to chance."""
    values = np.random.default_rng(1).normal(size=(2000, chains, draws))
    band = chain_band(chains, draws) + 1e-12
    outside = [np.any(np.abs(chain_ecdfs(some)) > band) for some in values]
    # Of 1000 simulations 10 are above the band, so that a new one is with a probability of law Beta(11, 990) or less.
    likely(stats.betabinom.sf(np.sum(outside) - 1, 2000, 11, 990))
    assert any(outside) == (chains > 1)
    assert chains == 1 or band.max() < 0.6


def test_curves_of_other_chains_leave_their_band():
    values = np.random.default_rng(1).normal(size=(100, 4, 100)) + np.array([0, 0, 0, 1.0])[:, None]
    assert all(np.any(np.abs(chain_ecdfs(some)) > chain_band(4, 100)) for some in values)


def test_samples_with_equal_values_are_told_apart_as_seldom():
    """Signs, of which two laws are told apart by their shares; no two constants are, if they are equal."""
    rng = np.random.default_rng(0)
    found = np.array([rank_errors(rng.choice(3, (3000, 4)), rng.choice(3, (300, 4))) for _ in range(500)])
    near(np.mean(found**2), 1, np.sqrt(2 / 4000), finds=0.16)
    assert rank_errors(rng.choice([-1, 1], (1000, 1)), rng.choice([-1, 1], (1000, 1), p=[0.3, 0.7]))[0] > 5
    np.testing.assert_array_equal(rank_errors(np.ones((100, 1)), np.ones((50, 1))), 0)
    assert rank_errors(np.ones((100, 1)), np.zeros((50, 1)))[0] == -np.inf


def test_what_is_not_finite_has_no_rank():
    with pytest.raises(FloatingPointError, match="must be finite"):
        rank_errors(np.ones((100, 1)), np.where(np.arange(50) < 5, np.nan, 1.0)[:, None])
