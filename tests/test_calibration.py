"""Calibration of samplers, and that it finds those that are wrong."""

import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.mcmc import barker
from scipy import stats

from bayesattn import calibration
from bayesattn.samplers import BIASED, SAMPLERS, langevin
from tests.posteriors import tiny_model

ADJUSTED = [name for name in SAMPLERS if name not in BIASED]
LARGE_STEP = {"sampler": "uncorrected", "options": {"step_size": 1.5, "adapt_step_size": False, "steps": 5}}


class Uncorrected(langevin.Barker):
    """Barker proposals, all of them accepted; unlike those of ULA they do not run away at a large step."""

    def step(self, key, point, step_size, logdensity):
        state = barker.BarkerState(point.position, point.logdensity, point.gradient)
        _, info = barker.build_kernel()(key, state, logdensity, step_size)
        return langevin.Move(langevin.Point(*info.proposal, point.momentum), jnp.ones(()), jnp.zeros(()), 1)


@pytest.fixture(autouse=True)
def _uncorrected(monkeypatch):
    monkeypatch.setitem(SAMPLERS, "uncorrected", Uncorrected)


@pytest.fixture(scope="module")
def model():
    return tiny_model(heads=(2,), widths=(4, 3), variances=(1.0, 0.8, 1.2), examples=8)


@pytest.fixture(scope="module")
def simulations(model):
    return calibration.simulate(model, 200, seed=1)


@pytest.mark.heavy
def test_nuts_is_calibrated_and_a_wrong_temperature_is_found(model, simulations):
    found = calibration.calibrate(model, simulations, sampler="nuts")
    assert found.ranks.shape == (200, 7)
    assert found.holds, dict(zip(found.names, found.p_values, strict=True))
    wrong = model.replace(temperature=1.5 * model.temperature)
    assert not calibration.calibrate(wrong, simulations, sampler="nuts").holds


def test_a_large_step_without_metropolis_correction_is_found_by_the_joint_test(model):
    assert calibration.joint_test(model, sampler="mala").holds
    assert not calibration.joint_test(model, **LARGE_STEP).holds


@pytest.mark.heavy
@pytest.mark.parametrize("sampler", ADJUSTED)
def test_every_adjusted_sampler_is_calibrated(model, sampler):
    simulated = calibration.simulate(model, 400, seed=2)
    found = calibration.calibrate(model, simulated, sampler=sampler)
    assert found.holds, dict(zip(found.names, found.p_values, strict=True))
    joint = calibration.joint_test(model, sampler=sampler, chains=4000)
    assert joint.holds, dict(zip(joint.names, joint.errors_apart, strict=True))


@pytest.mark.heavy
@pytest.mark.parametrize("sampler", ADJUSTED)
def test_adjusted_samplers_are_calibrated_in_weight_space(model, simulations, sampler):
    options = {"steps": 20} if sampler in ("mala", "barker") else {}
    settings = {"sampler": sampler, "parameterisation": "path", "options": options}
    found = calibration.calibrate(model, simulations, thin=10, **settings)
    assert found.holds, dict(zip(found.names, found.p_values, strict=True))


@pytest.mark.heavy
def test_a_large_step_without_metropolis_correction_is_found_by_ranks(model, simulations):
    assert not calibration.calibrate(model, simulations, **LARGE_STEP).holds


def test_uniform_ranks_hold_as_often_as_they_should():
    rng = np.random.default_rng(0)
    null = calibration._least_tail(rng.integers(0, 64, (100, 20_000)), 63)
    fresh = calibration._least_tail(rng.integers(0, 64, (100, 2000)), 63)
    p_values = (1 + np.sum(np.sort(null)[:, None] <= fresh, 0)) / 20_001
    share = np.mean(p_values <= 0.05)
    assert abs(share - 0.05) < 4 * np.sqrt(0.05 * 0.95 / 2000)


def test_the_band_holds_uniform_ranks():
    """Pointwise tails against scipy, and the share of whole curves inside the 95 % band."""
    ranks = np.random.default_rng(1).integers(0, 20, (50, 1))
    count = np.sum(ranks <= 4)
    tail = 2 * min(stats.binom.cdf(count, 50, 0.25), stats.binom.sf(count - 1, 50, 0.25))
    assert calibration._least_tail(ranks, 19)[0] <= tail
    low, high = calibration.ecdf_band(50, 19)
    curves = [calibration.ecdf_difference(np.random.default_rng(s).integers(0, 20, 50), 19) for s in range(1000)]
    inside = np.mean([np.all((curve >= low - 1e-12) & (curve <= high + 1e-12)) for curve in curves])
    assert 0.93 < inside < 0.98


def test_samples_of_one_law_with_heavy_tails_are_told_apart_as_seldom_as_they_should():
    """Squares of products of chi-squared variables; a wrong location or spread is seen."""
    rng = np.random.default_rng(0)

    def sample(count):
        return np.prod(rng.chisquare(3, size=(2, count, 4)), axis=0) ** 2

    found = np.array([calibration.rank_errors(sample(3000), sample(300)) for _ in range(500)])
    # 4000 numbers of a standard normal law, those of one quantity correlated at most.
    assert abs(found.mean()) < 4 / np.sqrt(4000)
    assert abs(np.mean(found**2) - 1) < 4 * np.sqrt(2 / 4000)
    assert np.mean(np.abs(found) > 2.576) < 0.01 + 4 * np.sqrt(0.01 / 4000)
    shifted, spread = rng.normal(0.3, 1, (1000, 1)), rng.normal(0, 1.2, (1000, 1))
    normal = rng.normal(0, 1, (10_000, 1))
    assert calibration.rank_errors(normal, shifted)[0] > 5
    assert calibration.rank_errors(normal, spread)[1] > 5


def test_bad_input_is_named(model, simulations):
    with pytest.raises(ValueError, match="simulations must be a whole number of at least 1, got 0"):
        calibration.simulate(model, 0)
    with pytest.raises(ValueError, match="sampler must be one of"):
        calibration.calibrate(model, simulations, sampler="gibbs")
