"""Covariances given U are derivatives by the weight of each example in the log likelihood, at weights of 1 and of 0."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import bayesattn as ba
from bayesattn.kernels import gaussian_process, leave_one_out
from bayesattn.kernels.covariances import output_covariances
from bayesattn.kernels.path_inputs import scaled_features
from tests import dense

STEP = 1e-3
FORMS = {"by labels": (5, 4), "by features": (14, 2)}
"""Numbers of examples and features, with two outputs and three columns of F."""


@jax.jit
def everything(process, factor, new, examples=None):
    found = output_covariances(process, factor, new, examples)
    return found, found.log_likelihoods, found.of_log_likelihoods(), found.of_outputs(), found.without_each()


def posterior_at(weights, kernel, cross, own, labels, temperature):
    """log of the integral of the likelihood to powers of weights, and mean and variance of f at new inputs."""
    powers = np.repeat(weights, labels.shape[1])
    kept = powers > 0
    noise = np.diag(temperature / powers[kept])
    y, kernel, cross = labels.ravel()[kept], kernel[np.ix_(kept, kept)], cross[kept]
    constant = -np.sum(powers[kept] * np.log(2 * np.pi * temperature)) / 2
    constant += np.sum(np.log(2 * np.pi * temperature / powers[kept])) / 2
    solved = np.linalg.solve(kernel + noise, cross)
    log_evidence = constant + stats.multivariate_normal(cov=kernel + noise).logpdf(y)
    return log_evidence, solved.T @ y, np.diag(own - cross.T @ solved)


def derivative(function, at, example):
    """Derivative by the weight of an example, by four values."""
    direction = np.eye(len(at))[example] * STEP
    near, far = (function(at + each * direction) - function(at - each * direction) for each in (1, 2))
    return (8 * near - far) / (12 * STEP)


@pytest.mark.parametrize("form", FORMS)
def test_covariances_are_derivatives_by_weights_of_examples(form):
    (examples, features), rng = FORMS[form], np.random.default_rng(3)
    arch = ba.Architecture((2,), (3, 3), (1.3, 1.0, 1.0), outputs=2)
    path_inputs, new = rng.normal(size=(examples, 2, features)), rng.normal(size=(3, 2, features))
    labels, temperature, factor = rng.normal(size=(examples, 2)), 0.4, rng.normal(size=(4, 3))
    process = gaussian_process(path_inputs, labels, arch, temperature)
    found, means, covariances, of_outputs, rest = everything(process, factor, scaled_features(new, 1.3))
    assert found.left.shape[2] == (10 if form == "by labels" else 6)
    u = factor @ factor.T
    arrays = [dense.kernel(arch, u, *each) for each in ((path_inputs,) * 2, (path_inputs, new), (new, new))]

    def at(weights):
        return posterior_at(weights, *arrays, labels, temperature)

    ones = np.ones(examples)
    first = lambda weights: np.array([derivative(lambda each: at(each)[0], weights, i) for i in range(examples)])  # noqa: E731
    np.testing.assert_allclose(means, first(ones), rtol=1e-7)
    np.testing.assert_allclose(found.mean.ravel(), at(ones)[1], rtol=1e-10)
    np.testing.assert_allclose(found.variance.ravel(), at(ones)[2], rtol=1e-10)
    second = np.array([derivative(first, ones, i) for i in range(examples)])
    np.testing.assert_allclose(covariances, second, atol=1e-6 * np.abs(second).max())
    of_mean = np.array([derivative(lambda each: at(each)[1], ones, i) for i in range(examples)])
    np.testing.assert_allclose(of_outputs, of_mean.T.reshape(3, 2, examples), atol=1e-8)
    for example in range(examples):
        _, mean, variance = at(ones - np.eye(examples)[example])
        np.testing.assert_allclose(rest.mean[..., example].ravel(), mean, rtol=1e-8)
        np.testing.assert_allclose(rest.variance[..., example].ravel(), variance, rtol=1e-8)
    np.testing.assert_allclose(rest.log_densities, jax.jit(leave_one_out)(process, factor), rtol=1e-9)


def test_examples_that_are_not_in_the_data_and_those_that_alone_decide_a_direction():
    rng = np.random.default_rng(4)
    arch = ba.Architecture((1,), (3, 3), (1.0, 1.0, 1.0))
    path_inputs, labels = rng.normal(size=(8, 1, 2)), rng.normal(size=8)
    factor, new = jnp.asarray([[1.5]]), scaled_features(path_inputs[:1], 1.0)
    process = gaussian_process(path_inputs, labels, arch, 0.3)
    given = everything(process, factor, new, (scaled_features(path_inputs, 1.0), jnp.asarray(labels[:, None])))
    for one, other in zip(*map(jax.tree.leaves, (everything(process, factor, new), given)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    path_inputs[0] *= 1e6
    *_, lost = everything(gaussian_process(path_inputs, labels, arch, 0.3), factor, new)
    assert np.isnan(lost.log_densities[0])
    assert np.isfinite(lost.log_densities[1:]).all()
