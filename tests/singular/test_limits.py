"""Limits of many networks: Aoyagi's for deep linear ones, power counting for those with heads."""

import warnings

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


KINDS = {"linear": DEEP_LINEAR, "heads": WITH_HEADS}
EACH = [pytest.param(case, kind, marks=pytest.mark.xdist_group(kind)) for kind in KINDS for case in KINDS[kind]]


@pytest.fixture(scope="module")
def held():
    """Of each kind of networks, whether intervals hold lambda and theta of the law, and whether chains mixed."""
    return {kind: [] for kind in KINDS}


@pytest.mark.heavy
@pytest.mark.parametrize(("case", "kind"), EACH)
def test_limit_and_multiplicity(case, kind, held):
    model = network(*case)
    with warnings.catch_warnings(record=True) as warned:
        warnings.filterwarnings("always", ".*have not mixed")
        fit = ba.learning_coefficient(model).fit
    law = attention_law(model.architecture, case[2])
    if kind == "linear":
        assert law == pytest.approx(deep_linear_law((case[2], *case[1], case[3])))
    pairs = (fit.coefficient, law.coefficient), (fit.multiplicity, law.multiplicity)
    held[kind].append([*(found.low <= exact <= found.high for found, exact in pairs), not warned])
    near(fit.coefficient.value, law.coefficient, fit.coefficient.error, finds=1)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.xdist_group(kind)) for kind in KINDS])
def test_intervals_hold_as_often_as_they_say(kind, held):
    """Of 20 intervals of 95 %, 1 is expected to miss; and of 20 networks at most 2 are said to have chains that did not mix.

    Where a layer has one unit, the posterior is thin at the coldest temperatures: steps of 0.001, trajectories of 1000.
    """
    if len(held[kind]) < len(KINDS[kind]):
        pytest.skip("needs all networks")
    lambdas, thetas, mixed = np.sum(held[kind], axis=0)
    likely(stats.binom(len(KINDS[kind]), 0.95).cdf([lambdas, thetas]))
    assert mixed >= len(KINDS[kind]) - 2


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
