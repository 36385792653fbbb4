"""Formulas behind the claims on learning and pretraining, each against something that does not use it."""

import jax
import numpy as np
import pytest

from bayesattn.questions import exchangeable as ex
from reproductions.tokens import learning, pretraining
from tests.statistics import near

expected_targets = jax.jit(learning.expected_targets)


def sharp_law(parameters, data, variance=0.0):
    """H, Hessian of the risk, J, second moment of the gradient of one loss, and tr(H^-1 J)."""
    hessian, second = (np.asarray(moment) for moment in learning.moments(parameters, data, variance))
    return hessian, second, learning.trace(hessian, second)


def test_population_optimum_is_where_the_risk_of_many_sequences_is_least():
    """A fit to 40,000 sequences finds it, up to errors by the sharp law's covariance H^-1 J H^-1 / m."""
    best = learning.population_optimum(8)
    data = learning.draw_sequences(np.random.default_rng(0), 40_000, 8)
    fitted = np.asarray(learning.fit(np.array([2.0, 0, 0, 2, 1, 0, 0, 1]), data))
    hessian, second, _ = sharp_law(best.parameters, data)
    inverse = np.linalg.inv(hessian)
    errors = np.sqrt(np.diag(inverse @ second @ inverse) / 40_000)
    near(fitted, best.parameters, errors, finds=0.5)


def test_averaged_targets_give_the_same_law_with_less_noise():
    parameters = learning.population_optimum(8).parameters
    data = learning.draw_sequences(np.random.default_rng(1), 40_000, 8)
    *_, drawn = sharp_law(parameters, data)
    *_, averaged = sharp_law(parameters, *expected_targets(data))
    assert averaged == pytest.approx(drawn, rel=0.1)
    exact = ex.query_posterior(data.keys[0], data.values[0], data.queries[:1], 0.5, 0.8)
    mean, variance = expected_targets(data)
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
    hessian, second, trace = sharp_law(parameters, data)
    gradients = np.array(jax.jit(jax.jacfwd(learning.losses))(parameters, data))
    np.testing.assert_allclose(second, gradients.T @ gradients / 200, rtol=1e-10)
    step = 1e-5 * np.eye(8)
    slope = jax.jit(jax.grad(learning.risk))
    differences = [np.subtract(slope(parameters + s, data), slope(parameters - s, data)) / 2e-5 for s in step]
    np.testing.assert_allclose(hessian, differences, rtol=1e-5, atol=1e-7)
    assert trace == pytest.approx(np.trace(np.linalg.inv(hessian) @ second))


def test_moments_of_pretraining():
    """Closed forms against 100,000 draws."""
    rng, variances = np.random.default_rng(2), np.array([1.0, 0.3])
    known = pretraining.moments(rng, 10, variances, 0.4, 0.8)
    latents = 0.8 * rng.normal(size=(100_000, 1, 2))
    keys = np.sqrt(variances) * rng.normal(size=(100_000, 10, 2))
    values = keys @ latents.transpose(0, 2, 1) + 0.4 * rng.normal(size=(100_000, 10, 1))
    rows = (values.transpose(0, 2, 1) @ keys / 10)[:, 0]
    for expected, other in ((known.attention, rows), (known.cross, latents[:, 0])):
        products = rows[:, :, None] * other[:, None, :]
        near(products.mean(0), expected, products.std(0) / np.sqrt(len(products)), finds=0.04)


def test_a_condition_number_below_1_is_refused():
    with pytest.raises(ValueError, match=r"condition must be a finite number of at least 1, got 0\.5"):
        pretraining.key_variances(0.5)
