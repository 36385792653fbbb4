"""Parallel tempering on posteriors of several parts, against cooled particles and importance sampling from the prior.

The independent routes share neither coordinates nor sampler with it: they move or weigh the weights of all layers but the
first, standard normal a priori, with the labels' covariance written out.
"""

from functools import partial
from pathlib import Path

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import bayesattn as ba
from bayesattn import runs
from bayesattn.network import effective_weights
from bayesattn.questions import calibration
from bayesattn.samplers import tempered
from tests.posteriors import weighed_mean
from tests.statistics import agree
from tests.test_runs import StopAfter

DATA = Path(__file__).parents[1] / "data" / "two_skips.npz"
NETWORKS = {
    # heads, widths, skips, outputs, temperature, seed of path inputs and labels
    "colder": ((1, 1), (2, 2, 2), (1.0, 0.5), 2, 0.05, 1),
    "warmer": ((1, 1), (2, 2, 2), (1.0, 0.5), 2, 0.3, 2),
    "three outputs": ((1, 1), (2, 2, 2), (1.0, 1.0), 3, 0.1, 3),
    "two heads below one": ((2, 1), (2, 2, 2), (1.0, 0.5), 2, 0.1, 4),
    "N = 3": ((1, 1), (3, 3, 3), (1.0, 0.5), 2, 0.1, 5),
    "N = 3, three outputs": ((1, 1), (3, 3, 3), (0.5, 1.0), 3, 0.05, 6),
    "N = 3, two heads below one": ((2, 1), (3, 3, 3), (1.0, 1.0), 2, 0.2, 7),
    "one skip of two layers": ((1, 2), (2, 2, 3), (0.5, 0.0), 2, 0.05, 8),
    "one layer": ((1,), (2, 2), (1.0,), 2, 0.05, 9),
}


def reported_model():
    """Two skips, two outputs: chains without tempering have 11 to 38 effective draws of 12,000."""
    with np.load(DATA) as file:
        sizes = (tuple(file[name].tolist()) for name in ("heads", "widths", "variances", "skips"))
        data = {name: file[name] for name in ("path_inputs", "labels")}
        return ba.Model(
            **data, architecture=ba.Architecture(*sizes, int(file["outputs"])), temperature=float(file["temperature"])
        )


def drawn_model(heads, widths, skips, outputs, temperature, seed, examples=7, features=2):
    """Random path inputs, and labels of a network drawn from the prior."""
    arch = ba.Architecture(heads, widths, (1.0,) * (len(heads) + 2), skips, outputs)
    inputs = np.random.default_rng(seed).normal(size=(examples, arch.paths, features))
    data = {"path_inputs": inputs, "labels": np.zeros((examples, outputs))}
    model = ba.Model(**data, architecture=arch, temperature=temperature)
    return model.replace(labels=calibration.simulate(model, 1, seed).labels[0])


def posterior_of_weights(model):
    """(number of weights above V_0, U of them, log p(Y | U) of them), weights in units of their deviation."""
    arch = model.architecture
    shapes = [(h, above, n) for h, n, above in zip(arch.heads, arch.widths, arch.widths[1:], strict=False)]
    shapes += [(arch.outputs, arch.widths[-1])]
    ends = np.cumsum([np.prod(shape) for shape in shapes])
    names = [f"V_{layer + 1}" for layer in range(len(arch.heads))] + ["a"]
    inputs, (_, paths, features) = jnp.asarray(model.path_inputs), model.path_inputs.shape
    flat = jnp.asarray(model.labels).ravel()
    scale = arch.variances[0] / (features * np.prod(arch.heads))

    def order_parameter(weights):
        parts = [part.reshape(shape) for part, shape in zip(jnp.split(weights, ends[:-1]), shapes, strict=True)]
        scaled = {n: p * np.sqrt(s) for n, p, s in zip(names, parts, arch.variances[1:], strict=True)}
        rows = effective_weights(scaled | {"V_0": jnp.zeros((arch.widths[0], features))}, arch.optional_skips)
        return rows @ rows.T / arch.widths[0]

    def log_likelihood(weights):
        u = order_parameter(weights).reshape(paths, arch.outputs, paths, arch.outputs)
        kernel = scale * jnp.einsum("pcqd,mpi,nqi->mcnd", u, inputs, inputs).reshape(flat.size, flat.size)
        lower = jnp.linalg.cholesky(kernel + model.temperature * jnp.eye(flat.size))
        whitened = jax.scipy.linalg.solve_triangular(lower, flat, lower=True)
        return -(whitened @ whitened) / 2 - jnp.sum(jnp.log(jnp.diag(lower)))

    return int(ends[-1]), order_parameter, log_likelihood


def by_importance(model, seed, draws=400_000):
    """Posterior mean of U and its standard error, from prior draws weighed by the likelihood."""
    size, order_parameter, log_likelihood = posterior_of_weights(model)
    both = jax.jit(lambda w: jax.lax.map(lambda one: (order_parameter(one), log_likelihood(one)), w, batch_size=1000))
    u, logs = map(np.asarray, both(jax.random.normal(jax.random.key(seed), (draws, size))))
    return weighed_mean(logs, u, least=1000)


def by_cooling(model, seed, islands=32, particles=128, moves=4, leaps=8):
    """Posterior mean of U and its standard error, by sequential Monte Carlo from the prior to power 1 of the likelihood.

    Islands of particles do not mix; each counts by its evidence, and their scatter is the error.
    """
    size, order_parameter, log_likelihood = posterior_of_weights(model)
    value = jax.jit(partial(jax.lax.map, log_likelihood, batch_size=1024))

    @jax.jit
    def moved(points, power, metric, step, key):
        def energy(z):
            return z @ z / 2 - power * log_likelihood(z)

        slope = jax.vmap(jax.value_and_grad(energy))

        def move(carry, key):
            at, (height, gradient) = carry
            first, second, third = jax.random.split(key, 3)
            begin = jax.random.normal(first, at.shape)
            length = step * jax.random.uniform(second, (len(at), 1), minval=0.3, maxval=1.3)

            def leap(_, inside):
                place, momentum, (_, gradient) = inside
                place = place + length * (momentum - length * gradient @ metric / 2) @ metric.T
                found = slope(place)
                return place, momentum - length * (gradient + found[1]) @ metric / 2, found

            place, momentum, found = jax.lax.fori_loop(0, leaps, leap, (at, begin, (height, gradient)))
            rise = found[0] - height + (jnp.sum(momentum**2, 1) - jnp.sum(begin**2, 1)) / 2
            accepted = jnp.log(jax.random.uniform(third, rise.shape)) < -jnp.where(jnp.isnan(rise), jnp.inf, rise)
            keep = partial(jnp.where, accepted[:, None])
            return (keep(place, at), (jnp.where(accepted, found[0], height), keep(found[1], gradient))), accepted

        (points, _), accepted = jax.lax.scan(move, (points, slope(points)), jax.random.split(key, moves))
        return points, jnp.mean(accepted)

    def share(high, power, logs):
        weights = special.softmax((high - power) * logs)
        return 1 / np.sum(weights**2) / len(weights)

    keys = iter(jax.random.split(jax.random.key(seed), 1000))
    points = jax.random.normal(next(keys), (islands * particles, size))
    power, step, evidence = 0.0, 0.3, np.zeros(islands)
    while power < 1.0:
        logs = np.asarray(value(points))
        low, high = power, 1.0
        if share(high, power, logs) > 0.5:
            low = high
        while high - low > 1e-3 * low:  # The power at which half of the particles count, by bisection.
            middle = (low + high) / 2
            low, high = (middle, high) if share(middle, power, logs) > 0.5 else (low, middle)
        change = ((low - power) * logs).reshape(islands, particles)
        evidence += np.asarray(special.logsumexp(change, axis=1))
        weights, power = special.softmax(change, axis=1), low
        rng = np.random.default_rng(np.asarray(jax.random.key_data(next(keys))))
        heights = (np.arange(particles) + rng.uniform(size=(islands, 1))) / particles
        chosen = [
            np.searchsorted(np.cumsum(w), h).clip(max=particles - 1) for w, h in zip(weights, heights, strict=True)
        ]
        points = points[(np.array(chosen) + particles * np.arange(islands)[:, None]).ravel()]
        metric = jnp.linalg.cholesky(jnp.cov(points.T) + 1e-9 * jnp.eye(size))
        points, accepted = moved(points, power, metric, step, next(keys))
        step *= np.exp(float(accepted) - 0.8)
    u = np.asarray(jax.jit(partial(jax.lax.map, order_parameter, batch_size=1024))(points))
    means, weights = u.reshape(islands, particles, *u.shape[1:]).mean(1), special.softmax(evidence)
    mean = np.tensordot(weights, means, 1)
    return mean, np.sqrt(np.tensordot(weights**2, (means - mean) ** 2, 1))


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["reported", *NETWORKS])
def test_narrow_networks_with_skips_and_several_outputs(name):
    """Errors are those of both routes together, for each entry of U."""
    model = reported_model() if name == "reported" else drawn_model(*NETWORKS[name])
    drawn = ba.sample(model, "tempered", warmup=500, draws=1000, seed=1)["posterior"]["order_parameter"]
    assert float(arviz_stats.ess(drawn).min()) > 200
    islands = 128 if name == "reported" else 32
    agree(drawn, *by_cooling(model, seed=2, islands=islands), islands - 1)


@pytest.fixture(scope="module")
def warm():
    """A network whose prior draws can be weighed."""
    return drawn_model((1,), (2, 2), (0.7,), 2, temperature=1.0, seed=0, examples=4)


JOB = {"chains": 2, "warmup": 150, "draws": 400, "seed": 1, "options": {"replicas": 6}}


@pytest.fixture(scope="module")
def drawn(warm):
    return ba.sample(warm, "tempered", **JOB)


def test_means_are_those_of_weighed_prior_draws(warm, drawn):
    u = drawn["posterior"]["order_parameter"]
    assert float(arviz_stats.ess(u).min()) > 200
    agree(u, *by_importance(warm, seed=1), finds=0.8)


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
