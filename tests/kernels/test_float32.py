"""Gradients of the energy in float32 against those in float64; what a trajectory decomposes: samplers/test_langevin.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayesattn as ba
from bayesattn.kernels.float32 import Float32Gradients
from bayesattn.kernels.forms import FORMS, compressed, gaussian_process
from tests.conftest import relative_error

ROUNDING = 1e-4
"""Largest error of these gradients, relative to the largest entry; float32 alone has 6e-8, times a condition number."""


def random_process(examples, features, outputs=1, temperature=0.3, form=None):
    """Random data and a factor of three paths per output and two columns, so that A has 2 N_0 columns."""
    arch = ba.Architecture((3,), (2, 2), (1.2, 0.8, 1.1), outputs=outputs)
    rng = np.random.default_rng(0)
    labels = rng.normal(size=(examples, outputs) if outputs > 1 else examples)
    inputs = rng.normal(size=(examples, arch.paths, features))
    found = gaussian_process(inputs, labels, arch, temperature, form=form)
    return found, jnp.asarray(rng.normal(size=(arch.rows, 2))), arch


@jax.jit
def known(process, factor):
    """The energy, and the slope of a compiled density with the data as arguments."""
    density = jax.jit(lambda process, factor: process.log_density(factor))
    return process.energy(factor), jax.grad(density, 1)(process, factor)


@pytest.mark.parametrize(
    ("examples", "features", "others"),
    [
        *((12, features, {"form": form}) for features in (7, 5) for form in FORMS),
        (6, 10, {"outputs": 3}),
        (9, 3, {"outputs": 3}),
        (1600, 5, {"temperature": 1e-4}),
    ],
)
def test_they_are_those_of_float64(examples, features, others):
    """With fewer labels than columns of A, and with more; of several outputs; of compressed examples, and T low."""
    process, factor, arch = random_process(examples, features, **others)
    if examples > 1000:
        process = compressed(process, arch)
        assert process.residual is not None
    (energy, ours), (exact_energy, exact) = (known(each, factor) for each in (Float32Gradients.of(process), process))
    assert relative_error(energy, exact_energy) < 1e-12
    assert ours.dtype == jnp.float64
    assert 0 < relative_error(ours, exact) < ROUNDING


def test_they_follow_other_labels():
    process, factor, _ = random_process(12, 5)
    labels = np.arange(12.0)
    both = (Float32Gradients.of(process).with_labels(labels), process.with_labels(labels))
    assert relative_error(*(jax.jit(jax.grad(each.energy))(factor) for each in both)) < ROUNDING


@pytest.mark.parametrize(("scale", "temperature"), [(1.0, 1e-10), (1e39, 1.0)], ids=["singular", "overflow"])
def test_they_are_zero_where_float32_finds_no_matrix(scale, temperature):
    """Two labels have the same path inputs and T is below the rounding of float32, or path inputs exceed it."""
    arch = ba.Architecture((1,), (2, 2), (1.0, 1.0, 1.0))
    inputs = scale * np.repeat(np.random.default_rng(0).normal(size=(3, 1, 8)), 2, axis=0)
    process, factor = gaussian_process(inputs, np.ones(6), arch, temperature), np.ones((1, 1))
    if scale == 1:
        assert np.isfinite(jax.jit(jax.grad(process.energy))(factor)).all()
    assert not np.any(jax.jit(Float32Gradients.of(process).gradient)(factor))
