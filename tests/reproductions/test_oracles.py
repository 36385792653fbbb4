"""Formulas behind the claims on learning and pretraining, each against something that does not use it."""

import jax
import numpy as np
import pytest

from bayesattn.questions import exchangeable as ex
from reproductions.tokens import learning, pretraining


def test_averaged_targets_are_the_posterior_predictive():
    data = learning.draw_sequences(np.random.default_rng(1), 40_000, 8)
    exact = ex.query_posterior(data.keys[0], data.values[0], data.queries[:1], 0.5, 0.8)
    mean, variance = jax.jit(learning.expected_targets)(data)
    np.testing.assert_allclose(mean.targets[0], exact.mean[0], rtol=1e-9)
    assert variance[0] == pytest.approx(float(exact.variance[0]) + 0.25, rel=1e-9)


def test_several_ridges_are_learnt_at_once():
    rng = np.random.default_rng(5)
    batch = pretraining.draw(rng, 30, 10, np.array([1.0, 0.2]), 2, 0.4, 0.8)
    features = np.einsum("svf,sg->svfg", batch.covariances, batch.queries).reshape(60, 4)
    for ridge, found in zip((0.0, 0.7), pretraining.learn(batch, [0.0, 0.7]), strict=True):
        expected = np.linalg.solve(features.T @ features + ridge * np.eye(4), features.T @ batch.targets.ravel())
        np.testing.assert_allclose(found.ravel(), expected, rtol=1e-9)


def test_sharp_law_has_the_curvature_and_spread_of_the_losses():
    data = learning.draw_sequences(np.random.default_rng(0), 200, 6)
    parameters = np.concatenate([np.eye(2).ravel(), np.eye(2).ravel()]) + 0.1
    hessian, second = (np.asarray(moment) for moment in learning.moments(parameters, data))
    gradients = np.array(jax.jit(jax.jacfwd(learning.losses))(parameters, data))
    np.testing.assert_allclose(second, gradients.T @ gradients / 200, rtol=1e-10)
    step = 1e-5 * np.eye(8)
    slope = jax.jit(jax.grad(learning.risk))
    differences = [np.subtract(slope(parameters + s, data), slope(parameters - s, data)) / 2e-5 for s in step]
    np.testing.assert_allclose(hessian, differences, rtol=1e-5, atol=1e-7)
    assert learning.trace(hessian, second) == pytest.approx(np.trace(np.linalg.inv(hessian) @ second))


def test_a_condition_number_below_1_is_refused():
    with pytest.raises(ValueError, match=r"condition must be a finite number of at least 1, got 0\.5"):
        pretraining.key_variances(0.5)
