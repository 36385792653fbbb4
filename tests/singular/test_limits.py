"""Limits of many networks: Aoyagi's for deep linear ones, power counting for those with heads."""

import numpy as np
import pytest
from scipy import stats

import bayesattn as ba
from bayesattn.questions.singular import attention_law, deep_linear_law
from tests.singular.networks import between, network
from tests.statistics import DRAWS_PER_DEGREE, likely, near

DEEP_LINEAR = [  # heads, widths, features, outputs
    ((1,), (3, 3), 5, 2),
    ((1,), (2, 4), 4, 3),
    ((1,), (2, 2), 2, 1),
    ((1,), (1, 3), 4, 2),
    ((1,), (4, 2), 3, 3),
    ((1,), (5, 5), 2, 2),
    ((1,), (2, 6), 5, 1),
    ((1,), (3, 1), 4, 2),
    ((1,), (1, 1), 1, 1),
    ((1,), (3, 2), 2, 2),
    ((1,), (6, 6), 3, 1),
    ((1,), (2, 3), 3, 3),
    ((1, 1), (2, 2, 2), 3, 2),
    ((1, 1), (3, 2, 3), 2, 1),
    ((1, 1), (4, 4, 4), 2, 2),
    ((1, 1), (1, 2, 3), 3, 2),
    ((1, 1), (5, 2, 5), 3, 2),
    ((1, 1), (3, 3, 3), 3, 1),
    ((1, 1), (2, 5, 2), 4, 1),
    ((1, 1), (6, 6, 6), 2, 1),
]
WITH_HEADS = [
    ((2,), (2, 6), 5, 1),
    ((2,), (10, 3), 5, 1),
    ((2,), (2, 2), 3, 2),
    ((3,), (2, 3), 3, 2),
    ((3,), (4, 2), 4, 1),
    ((2,), (3, 3), 2, 2),
    ((4,), (2, 4), 2, 1),
    ((2,), (1, 3), 4, 2),
    ((3,), (3, 1), 2, 2),
    ((2,), (5, 5), 3, 1),
    ((2, 2), (3, 3, 3), 4, 1),
    ((2, 2), (4, 4, 4), 5, 1),
    ((2, 1), (2, 3, 2), 3, 1),
    ((1, 2), (2, 3, 2), 3, 1),
    ((2, 2), (2, 2, 2), 2, 1),
    ((1, 3), (3, 2, 4), 2, 1),
    ((3, 1), (2, 4, 3), 3, 1),
    ((2, 2), (1, 3, 2), 3, 1),
    ((2, 2), (6, 2, 6), 2, 1),
    ((2, 1), (3, 3, 3), 2, 2),
]


@pytest.fixture(scope="module")
def held():
    """Whether the intervals of each network hold lambda and theta of the law."""
    return {}


@pytest.mark.heavy
@pytest.mark.xdist_group("limits")
@pytest.mark.parametrize("case", DEEP_LINEAR + WITH_HEADS, ids=str)
def test_limit_and_multiplicity(case, held):
    model = network(*case)
    law, fit = attention_law(model.architecture, case[2]), ba.learning_coefficient(model, draws=2000).fit
    if case in DEEP_LINEAR:
        sizes = (case[2], *case[1], case[3])
        assert law == pytest.approx(deep_linear_law(sizes))
    held[case] = (
        fit.coefficient.low <= law.coefficient <= fit.coefficient.high,
        fit.multiplicity.low <= law.multiplicity <= fit.multiplicity.high,
    )
    near(fit.coefficient.value, law.coefficient, fit.coefficient.error, finds=1)


@pytest.mark.heavy
@pytest.mark.xdist_group("limits")
def test_intervals_hold_as_often_as_they_say(held):
    """Of 40 intervals of 95 %, 2 are expected to miss (38 and 39 held)."""
    if len(held) < len(DEEP_LINEAR + WITH_HEADS):
        pytest.skip("needs all networks")
    likely(stats.binom(len(held), 0.95).cdf(np.sum([*held.values()], axis=0)))


@pytest.mark.heavy
@pytest.mark.parametrize("case", DEEP_LINEAR[:6] + WITH_HEADS[:3] + WITH_HEADS[10:13], ids=str)
def test_three_routes(case):
    """At four temperatures: chains, the evidence, and differences of two temperatures of independent chains."""
    temperatures = [0.1, 0.03, 0.01, 0.003]
    first, second = (ba.learning_coefficient(network(*case), temperatures, draws=2000, seed=seed) for seed in (0, 1))
    degrees = min(first.ess.min(), second.ess.min()) / DRAWS_PER_DEGREE
    for one, other in ((between(first), first.from_evidence), (first.two_temperature, second.two_temperature)):
        near(one.value, other.value, np.hypot(one.error, other.error), degrees, finds=1)


def test_a_wrong_width_is_told_apart():
    """Widths 2, 6 have lambda 2, widths 10, 3 have 3/2: each interval, of some 0.1, has its own and not the other's."""
    for case, own, other in ((WITH_HEADS[0], 2, 1.5), (WITH_HEADS[1], 1.5, 2)):
        fit = ba.learning_coefficient(network(*case), chains=2, warmup=300, draws=500, seed=2).fit
        assert fit.coefficient.low <= own <= fit.coefficient.high, fit.statement
        assert not fit.coefficient.low <= other <= fit.coefficient.high, fit.statement
