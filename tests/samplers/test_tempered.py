"""Parallel tempering on posteriors of several parts, whose means another route computed beforehand.

tests/data/cold_skips.npz has path inputs, labels of a network drawn from the prior, and the posterior mean of U with its
standard error, of each network below, by sequential Monte Carlo from the prior to the posterior, which shares neither
coordinates nor sampler with tempering: 64 islands (128 of "reported") of 128 particles that HMC moves in the weights
of all layers but the first, standard normal a priori, with the labels' covariance written out. `by_cooling` of this file at
commit b5e0742 is its code.
"""

from pathlib import Path

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayesattn as ba
from bayesattn import runs
from bayesattn.questions import calibration
from bayesattn.samplers import tempered
from tests.posteriors import random_network
from tests.statistics import agree
from tests.test_runs import StopAfter

EXACT = Path(__file__).parents[1] / "data" / "cold_skips.npz"
NETWORKS = {
    # heads, widths, skips, outputs, temperature
    "colder": ((1, 1), (2, 2, 2), (1.0, 0.5), 2, 0.05),
    "warmer": ((1, 1), (2, 2, 2), (1.0, 0.5), 2, 0.3),
    "three outputs": ((1, 1), (2, 2, 2), (1.0, 1.0), 3, 0.1),
    "two heads below one": ((2, 1), (2, 2, 2), (1.0, 0.5), 2, 0.1),
    "N = 3": ((1, 1), (3, 3, 3), (1.0, 0.5), 2, 0.1),
    "N = 3, three outputs": ((1, 1), (3, 3, 3), (0.5, 1.0), 3, 0.05),
    "N = 3, two heads below one": ((2, 1), (3, 3, 3), (1.0, 1.0), 2, 0.2),
    "one skip of two layers": ((1, 2), (2, 2, 3), (0.5, 0.0), 2, 0.05),
    "one layer": ((1,), (2, 2), (1.0,), 2, 0.05),
    "reported": ((1, 1), (2, 2, 2), (1.0, 0.5), 2, 0.1),  # Without tempering, 11 to 38 effective draws of 12,000.
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", NETWORKS)
def test_narrow_networks_with_skips_and_several_outputs(name):
    """Errors are those of both routes together, for each entry of U."""
    heads, widths, skips, outputs, temperature = NETWORKS[name]
    arch = ba.Architecture(heads, widths, (1.0,) * (len(heads) + 2), skips, outputs)
    with np.load(EXACT) as file:
        inputs, labels, mean, error = (file[f"{name}/{key}"] for key in ("path_inputs", "labels", "mean", "error"))
    model = ba.Model(path_inputs=inputs, labels=labels, architecture=arch, temperature=temperature)
    drawn = ba.sample(model, "tempered", warmup=500, draws=1000, seed=1)["posterior"]["order_parameter"]
    assert float(arviz_stats.ess(drawn).min()) > 200
    agree(drawn, mean, error, 63)


@pytest.fixture(scope="module")
def warm():
    return random_network((1,), (0.7,), 2, 2, temperature=1.0, seed=0, examples=4)


JOB = {"chains": 2, "warmup": 150, "draws": 400, "seed": 1, "options": {"replicas": 6}}


@pytest.fixture(scope="module")
def drawn(warm):
    return ba.sample(warm, "tempered", **JOB)


def test_neighbours_exchange_places_by_the_ratio_of_their_likelihoods():
    """Exchanged in turns: even pairs, then odd ones, each with probability exp((b - b') (l' - l)) at most 1."""
    powers, logs = jnp.array([1.0, 0.5, 0.2, 0.0]), jnp.array([-2.0, -1.0, -1000.0, 3.0])
    for transition, expected in ((0, [1, 0, 3, 2]), (1, [0, 1, 2, 3])):
        order, probability = tempered._exchanges(jax.random.key(0), powers, logs, jnp.array(transition))
        np.testing.assert_array_equal(order, expected)
        np.testing.assert_allclose(probability, [1.0, np.exp(-299.7), 1.0])


@pytest.mark.parametrize("length", [1e-9, 3.0])
def test_a_trajectory_says_how_many_gradients_it_took(length):
    """One at its beginning and one a leap, of which there is at least one."""
    key, step, scale = jax.random.key(1), jnp.array(0.4), jnp.ones(3)
    share = jax.random.uniform(jax.random.split(key, 3)[1])
    moved = tempered._trajectory(
        lambda position, _: position @ position / 2, length, (key, 0 * scale, scale[0], step, scale)
    )
    assert moved.gradients == 1 + max(1, np.ceil(2 * length / step * share))


def test_powers_are_placed_where_exchanges_are_rejected_equally_often():
    powers = jnp.array([1.0, 0.5, 0.25, 0.0])
    np.testing.assert_allclose(tempered._even_powers(powers, jnp.full(3, 0.4)), powers, atol=1e-12)
    crowded = tempered._even_powers(powers, jnp.array([0.9, 0.1, 0.1]))
    assert crowded[0] == 1
    assert crowded[-1] == 0
    assert crowded[2] > 0.5


def test_a_stopped_run_goes_on_with_the_same_bits(warm, drawn, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        runs.sample(warm, tmp_path / "run", sampler="tempered", **JOB, progress=StopAfter(400))
    run = runs.sample(warm, tmp_path / "run", sampler="tempered", **JOB)
    for name, values in drawn["posterior"].data_vars.items():
        np.testing.assert_array_equal(run.draws()["posterior"][name], values)


def test_the_joint_test_refuses_replicas_that_remember_other_labels(warm):
    with pytest.raises(ValueError, match="must draw from its last draw alone for the joint test, got 'tempered'"):
        calibration.joint_test(warm, sampler="tempered")
