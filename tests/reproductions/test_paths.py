"""Experiments on attention paths: in full they decide every row, and what they claim of made-up numbers."""

import numpy as np
import pytest

from reproductions.claims import Mean
from reproductions.experiment import Settings
from reproductions.paths import EXPERIMENTS, limit, maps
from reproductions.registry import ROWS
from reproductions.results import experiments
from reproductions.tokens import CHECKS


def check(name, seed=0, fast=False):
    """Each row of an experiment has claims that hold, or are literal and fail, and that find their wrong laws."""
    findings = experiments()[name].run(Settings(seed=seed, fast=fast))
    assert {claim.row for claim in findings.claims} == {row.id for row in ROWS if name in row.by}
    assert [claim for claim in findings.claims if not claim.as_expected()] == []
    assert [claim for claim in findings.claims if not claim.literal and not claim.finds_planted()] == []
    if name in CHECKS:
        assert [claim for claim in findings.claims if not claim.literal and claim.planted is None] == []
    for curve in (curve for panel in findings.panels for curve in panel.curves):
        assert np.isfinite(curve.y).all(), curve.label
        assert curve.x.shape == curve.y.shape


@pytest.mark.heavy
@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "one_shot"])
def test_experiments_in_full_decide_all(name):
    check(name)


def test_the_second_order_is_claimed_where_it_is_seen_alone():
    widths = (4, 8, 16)

    def orders(remaining):
        deviations = [Mean(1 / width, 0.001, 20) for width in widths]
        return limit.orders(widths, deviations, [Mean(value, 0.001, 20) for value in remaining])

    first, last, second = orders([0.1, 0.025, 0.00625])
    assert first.measured.value == pytest.approx(-1)
    assert second.measured.value == pytest.approx(-2)
    assert (last.holds(), last.finds_planted()) == (True, True)
    assert not orders([0.1, 0.025, 0.02])[1].holds()
    assert len(orders([0.1, 0.002, 0.0])) == 2
    assert len(orders([0.1, -0.025, 0.00625])) == 2


def test_a_gain_that_vanishes_more_slowly_than_the_load_is_told():
    loads = 100 / np.array([10, 10_000, 100_000])
    spread = 1 + 0.01 * np.random.default_rng(0).normal(size=(3, 1, 3, 8))
    claims = maps.vanishing((100,), 0.01 * spread * loads[:, None], (10, 10_000, 100_000))
    assert all(claim.holds() and claim.finds_planted() for claim in claims)
    slope, gain = maps.vanishing((100,), 0.01 * spread * np.sqrt(loads)[:, None], (10, 10_000, 100_000))
    assert not slope.holds()
    assert gain.measured.value == pytest.approx(0.01 * np.sqrt(loads[-1]), rel=0.02)
