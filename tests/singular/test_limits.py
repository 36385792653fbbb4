"""Limits of many networks: Aoyagi's for deep linear ones, power counting for those with heads."""

import warnings

import numpy as np
import pytest
from scipy import stats

import bayesattn as ba
from bayesattn.questions.singular import attention_law
from tests.singular.networks import DEEP_LINEAR, WITH_HEADS, network
from tests.statistics import likely, near


@pytest.fixture(scope="module")
def held():
    """For each network whether the intervals hold lambda and theta of the law, and whether chains mixed."""
    return {}


@pytest.mark.heavy
@pytest.mark.parametrize("case", DEEP_LINEAR + WITH_HEADS, ids=str)
def test_limit_and_multiplicity(case, held):
    model = network(*case)
    with warnings.catch_warnings(record=True) as warned:
        warnings.filterwarnings("always", ".*have not mixed")
        fit = ba.learning_coefficient(model).fit
    law = attention_law(model.architecture, case[2])
    pairs = (fit.coefficient, law.coefficient), (fit.multiplicity, law.multiplicity)
    held[case] = [*(found.low <= exact <= found.high for found, exact in pairs), not warned]
    near(fit.coefficient.value, law.coefficient, fit.coefficient.error, finds=1)


@pytest.mark.heavy
def test_intervals_hold_as_often_as_they_say(held):
    """Of 40 intervals of 95 %, 2 are expected to miss; and of at most 4 networks chains are said not to have mixed.

    Where a layer has one unit, the posterior is thin at the coldest temperatures: steps of 0.001, trajectories of 1000.
    """
    if len(held) < len(DEEP_LINEAR + WITH_HEADS):
        pytest.skip("needs all networks, in one process")
    lambdas, thetas, mixed = np.sum([*held.values()], axis=0)
    likely(stats.binom(len(held), 0.95).cdf([lambdas, thetas]))
    assert mixed >= len(held) - 4


def test_a_wrong_width_is_told_apart():
    """Widths 2, 6 have lambda 2, widths 10, 3 have 3/2: each interval, of some 0.1, has its own and not the other's."""
    for case, own, other in ((WITH_HEADS[0], 2, 1.5), (WITH_HEADS[1], 1.5, 2)):
        fit = ba.learning_coefficient(network(*case), chains=2, warmup=300, draws=500, seed=2).fit
        assert fit.coefficient.low <= own <= fit.coefficient.high, fit.statement
        assert not fit.coefficient.low <= other <= fit.coefficient.high, fit.statement
