"""Experiments on attention paths: their rows are those of the registry, claims hold or cannot tell, wrong laws are found."""

import numpy as np
import pytest

from reproductions.claims import Claim, Mean
from reproductions.experiment import Settings
from reproductions.paths import EXPERIMENTS, chains, limit, maps, network
from reproductions.registry import ROWS
from reproductions.results import experiments

NAMES = [name for name in EXPERIMENTS if name != "one_shot"]


def found(name, fast=True, seed=0):
    """What an experiment finds, checked for its rows and for claims that neither hold nor are literal and fail."""
    messages = []
    findings = experiments()[name].run(Settings(seed=seed, fast=fast, progress=messages.append))
    assert messages or name not in EXPERIMENTS  # Those on tokens say nothing.
    assert {claim.row for claim in findings.claims} == {row.id for row in ROWS if name in row.by}
    assert [claim for claim in findings.claims if not claim.as_expected()] == []
    for panel in findings.panels:
        assert panel.x
        assert panel.y
        for curve in panel.curves:
            assert np.isfinite(curve.y).all(), curve.label
            assert curve.x.shape == curve.y.shape
    return findings


def undecided(findings):
    """Rows with claims that the wrong law explains as well."""
    return {claim.row for claim in findings.claims if not claim.literal and not claim.finds_planted()}


@pytest.mark.parametrize(
    ("shapes", "drawn"),
    [
        pytest.param({(1,): (3, 4), (2, 2): (8, 6, 5)}, (2, 2), id="small"),
        pytest.param(network.SHAPES, network.DRAWN, id="all", marks=pytest.mark.heavy),
    ],
)
def test_the_network_is_a_sum_over_paths(monkeypatch, shapes, drawn):
    monkeypatch.setattr(network, "SHAPES", shapes)
    monkeypatch.setattr(network, "DRAWN", drawn)
    assert undecided(found("network")) == set()


def test_far_above_p_the_saddle_point_is_that_of_the_gp_limit():
    claims, curves = limit.far_above()
    assert all(claim.holds() and claim.finds_planted() for claim in claims)
    assert [curve.label for curve in curves] == ["cross-path entries", "diagonal entries, less 1"]


def test_chains_stay_as_the_task_says():
    claims = chains.staying(0)
    assert all(claim.holds() and claim.finds_planted() for claim in claims)


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


def test_a_path_left_out_is_seen():
    model = network.random_model((2, 2), np.random.default_rng(0))
    weights = network.random_weights(model, np.random.default_rng(1))
    claim = network.sum_over_paths(model, weights)
    assert isinstance(claim, Claim)
    assert claim.measured.value < 1e-12
    assert claim.planted.value > 0.01


@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES)
def test_experiments_in_minutes(name):
    found(name)


@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES)
def test_experiments_in_full_decide_all(name):
    assert undecided(found(name, fast=False)) == set()


def test_a_loss_is_no_gain():
    values = 0.1 + 0.01 * np.random.default_rng(0).normal(size=20)
    gain, loss = (maps._above_zero("", sign * values) for sign in (1, -1))
    assert (gain.holds(), gain.finds_planted(), loss.holds()) == (True, True, False)
    fall = maps._above_zero("", -values, below=True)
    assert (fall.holds(), fall.finds_planted()) == (True, True)


def test_gain_and_order_parameter_vanish_with_the_load():
    """On made-up numbers that fall as the load does, and on ones that do not."""
    loads = 100 / np.array([10, 10_000, 100_000])
    spread = 1 + 0.01 * np.random.default_rng(0).normal(size=(3, 1, 3, 8))
    claims = maps.vanishing((100,), 0.01 * spread * loads[:, None], (10, 10_000, 100_000))
    assert all(claim.holds() and claim.finds_planted() for claim in claims)
    slope, gain = maps.vanishing((100,), 0.01 * spread * np.sqrt(loads)[:, None], (10, 10_000, 100_000))
    assert not slope.holds()
    assert gain.measured.value == pytest.approx(0.01 * np.sqrt(loads[-1]), rel=0.02)
