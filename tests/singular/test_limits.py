"""Limits of curves whose coefficient and multiplicity are known, and of many networks, which laws give."""

import warnings

import numpy as np
import pytest
from scipy import stats

import bayesattn as ba
from bayesattn.questions.singular import attention_law
from bayesattn.questions.singular.limit import FEWEST, fitted
from tests.singular.networks import DEEP_LINEAR, WITH_HEADS, network
from tests.statistics import likely, near

ALL = DEEP_LINEAR + WITH_HEADS
TEMPERATURES = 10.0 ** -np.arange(1, 8)
"""Below these, NUTS takes 12 to 300 effective draws of 8,000 in networks of several outputs."""
OF_CURVES = 10.0 ** -np.arange(1, 10)


def curve(coefficient, multiplicity, shift, error, seed, size=0.0, power=0.5):
    """Values lambda - (theta - 1) / (log(1/T) - c) - size T^power, with noise."""
    logs = np.log(1 / OF_CURVES)
    exact = coefficient - (multiplicity - 1) / (logs - shift) - size * OF_CURVES**power
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
            result = fitted(OF_CURVES, values, errors, 4)
            for column, (known, found) in enumerate(((2, result.coefficient), (multiplicity, result.multiplicity))):
                counts[multiplicity - 1, column] += found.low <= known <= found.high
    likely(stats.binom(cases, 0.92).cdf(counts))
    likely(stats.binom(3 * cases, 0.92).cdf(counts.sum(0)))


def test_values_that_do_not_fit_leave_out_the_warm_end():
    values, errors = curve(1.5, 1, 0, 0.005, 0)
    values[0] += 0.3
    values[2] -= 0.2
    result = fitted(OF_CURVES, values, errors, 3)
    assert FEWEST <= result.used < len(OF_CURVES)
    assert result.coefficient.low <= 1.5 <= result.coefficient.high


def test_cannot_tell():
    values, errors = curve(1.5, 1, 0, 0.005, 0)
    few = fitted(OF_CURVES[:3], values[:3], errors[:3], 3)
    assert few.statement == "cannot tell: 3 temperatures are too few, at least 4 are needed"
    assert np.isnan(few.coefficient.value)
    assert few.used == 0
    jumping = fitted(OF_CURVES, values + np.tile([0.0, 1.0, 0.0], 3), errors, 3)
    assert jumping.statement == "cannot tell: no 4 of the coldest temperatures fit the law"


def test_only_temperatures_with_an_error_are_used_and_the_sentence_says_so():
    values, errors = curve(1.5, 1, 0, 0.005, 0)
    assert fitted(OF_CURVES, values, errors, 3).statement.endswith("; from the 9 coldest temperatures")
    errors[-1] = np.nan
    without = fitted(OF_CURVES, values, errors, 3).statement
    assert without.endswith("; from the 8 coldest temperatures that are usable")


def test_more_precise_values_tell_more():
    wide, narrow = (fitted(OF_CURVES, *curve(2.0, 2, -2.0, error, 1), 4).coefficient.error for error in (0.05, 0.005))
    assert narrow < wide / 2


@pytest.mark.heavy
@pytest.mark.parametrize("case", ALL, ids=str)
def test_limit_and_multiplicity(case, shared_folder):
    """Of 40 intervals of 95 %, which are counted with whichever network ends last, 2 are expected to miss.

    Of at most 4 networks chains are said not to have mixed: one that is stuck at a temperature has a large error there.
    """
    model = network(*case)
    with warnings.catch_warnings(record=True) as warned:
        warnings.filterwarnings("always", ".*have not mixed")
        fit = ba.learning_coefficient(model, TEMPERATURES).fit
    law = attention_law(model.architecture, case[2])
    pairs = (fit.coefficient, law.coefficient), (fit.multiplicity, law.multiplicity)
    held = [*(found.low <= exact <= found.high for found, exact in pairs), not warned]
    np.save(shared_folder / f"held-{ALL.index(case)}.npy", held)  # For all processes.
    near(fit.coefficient.value, law.coefficient, fit.coefficient.error, finds=1)
    if len(stored := [*shared_folder.glob("held-*.npy")]) == len(ALL):
        lambdas, thetas, mixed = np.sum([np.load(file) for file in stored], axis=0)
        likely(stats.binom(len(ALL), 0.95).cdf([lambdas, thetas]))
        assert mixed >= len(ALL) - 4


def test_a_wrong_width_is_told_apart():
    """Widths 2, 6 have lambda 2, widths 10, 3 have 3/2: each interval, of some 0.1, has its own and not the other's."""
    for case, own, other in ((WITH_HEADS[0], 2, 1.5), (WITH_HEADS[1], 1.5, 2)):
        fit = ba.learning_coefficient(network(*case), chains=2, warmup=300, draws=500, seed=2).fit
        assert fit.coefficient.low <= own <= fit.coefficient.high, fit.statement
        assert not fit.coefficient.low <= other <= fit.coefficient.high, fit.statement
