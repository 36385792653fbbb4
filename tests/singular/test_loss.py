"""The loss given U against draws of f, and its derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayesattn as ba
from bayesattn.kernels import FORMS, conditional_moments, gaussian_process
from bayesattn.questions.singular.expected_loss import example_losses, loss
from tests.statistics import near

RNG = np.random.default_rng(7)
ARCH = ba.Architecture((2,), (3, 3), (1.0, 1.2, 0.8))
INPUTS, LABELS = RNG.normal(size=(9, 2, 2)), RNG.normal(size=9)
FACTORS = jnp.asarray(RNG.normal(size=(3, 2, 2)))


@pytest.mark.parametrize("form", FORMS)
def test_expected_loss_is_that_of_the_conditional_law(form):
    process = gaussian_process(INPUTS, LABELS, ARCH, 0.3, form=form)
    found = loss(process, FACTORS)
    of_all = jax.jit(jax.vmap(lambda factor: conditional_moments(process, factor @ factor.T, process.features)))
    moments = of_all(FACTORS)
    squares = np.sum((LABELS - np.asarray(moments.mean)) ** 2 + np.asarray(moments.variance), 1)
    np.testing.assert_allclose(found.mean, squares / (2 * 0.3), rtol=1e-10)


def test_slope_is_the_derivative_by_log_temperature():
    process = gaussian_process(INPUTS, LABELS, ARCH, 0.3)
    step = 1e-5
    up, down = (loss(process.at(0.3 * np.exp(sign * step)), FACTORS).mean for sign in (1, -1))
    np.testing.assert_allclose(loss(process, FACTORS).slope, (up - down) / (2 * step), rtol=1e-7)


@jax.jit
def drawn_outputs(process, factor, keys):
    """f on the training examples, of draws given U and Y."""
    return jax.lax.map(lambda key: process.mixed(factor) @ process.sample_projection(key, factor).T.reshape(-1), keys)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("examples", [3, 40])
def test_losses_of_examples(outputs, examples):
    """Means and variances of |Y_i - f_i|^2 / 2T against draws of f given U and Y, in either size of matrix."""
    arch = ba.Architecture((1,), (4, 4), (1.0, 1.0, 1.0), outputs=outputs)
    rng = np.random.default_rng(examples)
    inputs, labels = rng.normal(size=(examples, 1, 3)), rng.normal(size=(examples, outputs))
    process = gaussian_process(inputs, labels if outputs > 1 else labels[:, 0], arch, 0.5)
    factor = jnp.asarray(rng.normal(size=(outputs, outputs)))
    mean, variance = (np.asarray(array[0]) for array in example_losses(process, factor[None]))
    assert mean.sum() == pytest.approx(loss(process, factor[None]).mean[0])
    keys = jax.random.split(jax.random.key(0), 20_000)
    outputs_drawn = np.asarray(drawn_outputs(process, factor, keys))
    drawn = np.sum((labels.reshape(-1) - outputs_drawn).reshape(len(keys), examples, outputs) ** 2, 2) / (2 * 0.5)
    for values, exact, finds in ((drawn, mean, 0.1), ((drawn - drawn.mean(0)) ** 2, variance, 0.3)):
        near(values.mean(0) / exact, 1, values.std(0) / exact / np.sqrt(len(drawn)), finds=finds)
