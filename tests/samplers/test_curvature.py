"""Whitening by the mean curvature along short chains, as of a model of many coordinates."""

import numpy as np

import bayesattn as ba
from bayesattn.models import collapsed
from bayesattn.samplers import curvature
from tests.posteriors import tiny_model

FEW = {"MOST_COORDINATES_FOR_HESSIAN": 10, "STEPS_PER_ROUND": 24, "LEAPFROG_STEPS": 4, "STEPS_BETWEEN_DRAWS": 3}


def test_it_is_that_of_the_draws_and_the_same_each_time(monkeypatch):
    """Whitened draws of the posterior have a mean square of about 1. Rows are in their own order, as those of draws.

    In whatever coordinates chains move, they have the posterior's density: tests/models/test_dense.py.
    """
    for name, value in FEW.items():
        monkeypatch.setattr(curvature, name, value)
    model = tiny_model(heads=(2, 2), widths=(12, 12, 12), variances=(1.0, 0.8, 1.2, 1.1), examples=8)
    assert curvature.is_worthwhile(collapsed.structure(model))
    at_mode = collapsed.prepare(model)
    assert "order" not in at_mode
    found, again = (curvature.whitened_by_mean_curvature(model, at_mode) for _ in range(2))
    assert found.keys() == at_mode.keys()
    for name in found:
        np.testing.assert_array_equal(found[name], again[name])
        assert not np.array_equal(found[name], at_mode[name])
    drawn = ba.sample(model, "hmc", chains=2, warmup=200, draws=1500)["posterior"]["bartlett"].values
    whitened = np.linalg.solve(found["scale"], (drawn.reshape(-1, drawn.shape[2]) - found["centre"]).T)
    assert 0.5 < np.mean(whitened**2) < 2
