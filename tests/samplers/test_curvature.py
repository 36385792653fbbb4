"""Whitening by the mean curvature along short chains, as of a model of many coordinates."""

import numpy as np
import pytest

import bayesattn as ba
from bayesattn.models import collapsed
from bayesattn.samplers import curvature
from tests.posteriors import tiny_model, two_sample_z_score


@pytest.fixture
def few(monkeypatch):
    """A narrow network that counts as one of many coordinates."""
    for name, value in {
        "MOST_COORDINATES_FOR_HESSIAN": 10,
        "STEPS_PER_ROUND": 24,
        "LEAPFROG_STEPS": 4,
        "STEPS_BETWEEN_DRAWS": 3,
    }.items():
        monkeypatch.setattr(curvature, name, value)
    model = tiny_model(heads=(2, 2), widths=(4, 4, 4), variances=(1.0, 0.8, 1.2, 1.1), examples=8)
    assert curvature.is_worthwhile(collapsed.structure(model))
    return model


def test_it_changes_no_answer(few, monkeypatch):
    settings = {"sampler": "hmc", "chains": 2, "warmup": 200, "draws": 1500}
    by_curvature = ba.sample(few, **settings)["posterior"]
    monkeypatch.setattr(curvature, "is_worthwhile", lambda shapes: False)
    by_mode = ba.sample(few, seed=1, **settings)["posterior"]
    for name in ("order_parameter", "prediction"):
        assert two_sample_z_score(by_curvature[name], by_mode[name]) < 4


def test_it_is_that_of_the_draws_and_the_same_each_time(few):
    """Whitened draws of the posterior have a mean square of about 1. Rows are in their own order, as those of draws."""
    wide = few.replace(width=12)
    at_mode = collapsed.prepare(wide)
    assert "order" not in at_mode
    found = curvature.whitened_by_mean_curvature(wide, at_mode)
    again = curvature.whitened_by_mean_curvature(wide, at_mode)
    assert found.keys() == at_mode.keys()
    for name in found:
        np.testing.assert_array_equal(found[name], again[name])
    draws = ba.sample(wide, "hmc", chains=2, warmup=200, draws=1500)["posterior"]["bartlett"].values
    whitened = np.linalg.solve(found["scale"], (draws.reshape(-1, draws.shape[2]) - found["centre"]).T)
    assert 0.5 < np.mean(whitened**2) < 2
