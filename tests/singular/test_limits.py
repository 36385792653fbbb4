"""Limits of many networks: Aoyagi's for deep linear ones, power counting for those with heads."""

import numpy as np
import pytest

import bayesattn as ba
from bayesattn.singular import attention_law, deep_linear_law
from tests.singular.networks import network

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


def summarised(arch, features, found):
    law, fit = attention_law(arch, features), found.fit
    print(arch.heads, arch.widths, features, arch.outputs, "law", law, "found", fit.statement, flush=True)
    return law, fit


@pytest.fixture(scope="module")
def held():
    """Whether the intervals of each network hold lambda and theta of the law."""
    return {}


@pytest.mark.heavy
@pytest.mark.parametrize("case", DEEP_LINEAR + WITH_HEADS, ids=str)
def test_limit_and_multiplicity(case, held):
    """Lambda within 4 errors."""
    model = network(*case)
    found = ba.learning_coefficient(model, draws=2000)
    law, fit = summarised(model.architecture, case[2], found)
    if case in DEEP_LINEAR:
        sizes = (case[2], *case[1], case[3])
        assert law == pytest.approx(deep_linear_law(sizes))
    held[case] = (
        fit.coefficient.low <= law.coefficient <= fit.coefficient.high,
        fit.multiplicity.low <= law.multiplicity <= fit.multiplicity.high,
    )
    assert abs(fit.coefficient.value - law.coefficient) < 4 * fit.coefficient.error


@pytest.mark.heavy
def test_intervals_hold_as_often_as_they_say(held):
    """Of 40 intervals of 95 %, 2 are expected to miss, and fewer than 35 hold with probability 0.01 (38 and 39 did)."""
    if len(held) < len(DEEP_LINEAR + WITH_HEADS):
        pytest.skip("needs all networks")
    assert np.all(np.sum([*held.values()], axis=0) >= 35)


@pytest.mark.heavy
@pytest.mark.parametrize("case", DEEP_LINEAR[:6] + WITH_HEADS[:3] + WITH_HEADS[10:13], ids=str)
def test_three_routes(case):
    """At four temperatures: chains, the evidence, and differences of two temperatures of independent chains.

    12 networks and 6 numbers each: 4 errors are exceeded by chance with a probability of 0.005.
    """
    temperatures = [0.1, 0.03, 0.01, 0.003]
    first, second = (ba.learning_coefficient(network(*case), temperatures, draws=2000, seed=seed) for seed in (0, 1))
    chains, evidence = first.between, first.from_evidence
    z_evidence = (chains.value - evidence.value) / np.hypot(chains.error, evidence.error)
    mine, others = first.two_temperature, second.two_temperature
    z_others = (mine.value - others.value) / np.hypot(mine.error, others.error)
    print(case, "evidence", z_evidence.round(1), "two temperatures", z_others.round(1), flush=True)
    assert np.abs(z_evidence).max() < 4
    assert np.abs(z_others).max() < 4


def test_a_wrong_width_is_told_apart():
    """Widths 2, 6 have lambda 2, widths 10, 3 have 3/2: each interval, of some 0.1, has its own and not the other's."""
    for case, own, other in ((WITH_HEADS[0], 2, 1.5), (WITH_HEADS[1], 1.5, 2)):
        fit = ba.learning_coefficient(network(*case), chains=2, warmup=300, draws=500, seed=2).fit
        assert fit.coefficient.low <= own <= fit.coefficient.high, fit.statement
        assert not fit.coefficient.low <= other <= fit.coefficient.high, fit.statement
