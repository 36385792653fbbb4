"""Annealing: the error that it states, and powers of likelihoods that differ by far."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from bayesattn.theory.particles import Particles, annealed, longest_rise
from tests.statistics import likely


def estimate(log_evidence, variance):
    """Of islands with these values."""
    islands = Particles.at(np.zeros((2, 1)), 2)._replace(islands=log_evidence, variance=variance)
    return islands.log_evidence, islands.error


@pytest.mark.parametrize("span", [1e3, 1e18, 1e150])
def test_powers_begin_as_low_as_the_likelihood_needs(span):
    """By a bracket of 40 nats, log likelihoods that span 1e18 ended in an error of SciPy."""
    likelihoods = -span * np.random.default_rng(0).uniform(size=(4, 100))
    rise = longest_rise(likelihoods, 1.0, 0.5)
    weights = special.softmax(rise * likelihoods)
    assert 1 / np.sum(weights**2) == pytest.approx(0.5 * weights.size, rel=1e-6)


def test_powers_rise_at_once_if_the_likelihood_is_flat():
    assert longest_rise(np.zeros((2, 50)), 0.3, 0.5) == 0.3


@pytest.mark.parametrize(("islands", "spread"), [(2, 0.3), (4, 0.1), (4, 0.5), (8, 0.3)])
def test_two_errors_hold_nineteen_times_in_twenty(islands, spread):
    """Log-normal estimates of islands, with a mean of 1."""
    logs = spread * np.random.default_rng(1).normal(size=(4000, islands)) - spread**2 / 2
    found = np.array([estimate(each, 0.0) for each in logs])
    beyond = np.sum(np.abs(found[:, 0]) > 2 * found[:, 1])
    likely(stats.binom.sf(beyond - 1, len(logs), 0.05))
    # Islands that agree by chance do not give an error below that of independent particles.
    assert estimate(np.zeros(islands), 0.04) == pytest.approx((0.0, 0.2))


def test_an_island_without_weight_ends_annealing_in_words():
    class Hopeless(NamedTuple):
        def log_densities(self, point):
            return -point @ point / 2, jnp.where(point[0] > 0, 0.0, -jnp.inf)

    points = np.concatenate([-np.ones((8, 2)), np.ones((8, 2))])
    with pytest.raises(FloatingPointError, match="no particle of an island of annealing has weight"):
        annealed(jax.random.key(0), Particles.at(points, 2), Hopeless(), moves=8)
