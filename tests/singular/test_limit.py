"""Fit of the limit to curves whose coefficient and multiplicity are known."""

import numpy as np
from scipy import stats

from bayesattn.questions.singular.limit import FEWEST, fitted
from tests.statistics import likely

TEMPERATURES = 10.0 ** -np.arange(1, 10)


def curve(coefficient, multiplicity, shift, error, seed, size=0.0, power=0.5):
    """Values lambda - (theta - 1) / (log(1/T) - c) - size T^power, with noise."""
    logs = np.log(1 / TEMPERATURES)
    exact = coefficient - (multiplicity - 1) / (logs - shift) - size * TEMPERATURES**power
    return exact + error * np.random.default_rng(seed).normal(size=len(logs)), np.full(len(logs), error)


def test_coverage():
    """How often intervals cover lambda, and sets of multiplicities theta: of 150 each, 0.95 to 0.99 and 0.99 to 1.

    The prior is not that of these curves, so 95 % is not exact.
    """
    cases, counts = 60, np.zeros((3, 2))
    for multiplicity in (1, 2, 3):
        rng = np.random.default_rng(multiplicity)
        for seed in range(cases):
            size, power = rng.normal() / 2, rng.choice([0.2, 0.35, 0.7])
            values, errors = curve(2.0, multiplicity, rng.uniform(-10, 1), 0.015, seed, size, power)
            result = fitted(TEMPERATURES, values, errors, 4)
            for column, (known, found) in enumerate(((2, result.coefficient), (multiplicity, result.multiplicity))):
                counts[multiplicity - 1, column] += found.low <= known <= found.high
    likely(stats.binom(cases, 0.92).cdf(counts))
    likely(stats.binom(3 * cases, 0.92).cdf(counts.sum(0)))


def test_values_that_do_not_fit_leave_out_the_warm_end():
    values, errors = curve(1.5, 1, 0, 0.005, 0)
    values[0] += 0.3
    values[2] -= 0.2
    result = fitted(TEMPERATURES, values, errors, 3)
    assert FEWEST <= result.used < len(TEMPERATURES)
    assert result.coefficient.low <= 1.5 <= result.coefficient.high


def test_cannot_tell():
    values, errors = curve(1.5, 1, 0, 0.005, 0)
    few = fitted(TEMPERATURES[:3], values[:3], errors[:3], 3)
    assert few.statement == "cannot tell: 3 temperatures are too few, at least 4 are needed"
    assert np.isnan(few.coefficient.value)
    assert few.used == 0
    jumping = fitted(TEMPERATURES, values + np.tile([0.0, 1.0, 0.0], 3), errors, 3)
    assert jumping.statement == "cannot tell: no 4 of the coldest temperatures fit the law"


def test_only_temperatures_with_an_error_are_used_and_the_sentence_says_so():
    values, errors = curve(1.5, 1, 0, 0.005, 0)
    assert fitted(TEMPERATURES, values, errors, 3).statement.endswith("; from the 9 coldest temperatures")
    errors[-1] = np.nan
    without = fitted(TEMPERATURES, values, errors, 3).statement
    assert without.endswith("; from the 8 coldest temperatures with a Monte Carlo error")


def test_more_precise_values_tell_more():
    wide, narrow = (
        fitted(TEMPERATURES, *curve(2.0, 2, -2.0, error, 1), 4).coefficient.error for error in (0.05, 0.005)
    )
    assert narrow < wide / 2
