"""Parallel tempering: what it costs over its gradients, and what it finds in an hour beside BlackJAX's tempered SMC.

Run with `uv run python -m benchmarks.tempering [--examples P] [--beside PASSES]`. Posteriors are those of a narrow network
with two skips, and of one that samples queries and keys. The first table has seconds of transitions over those of as many
gradients of the same log density, in one compiled loop each, warm. The second, with `--beside`, has independent passes from
the prior: a chain of tempering with its warm-up, or a population of particles that BlackJAX anneals, whose Hamiltonian moves
have a step size and a diagonal metric from the particles of the step before. A pass is worth as many draws as the variance
of the posterior is times the variance between means of passes, by the median over predictions. Programs are compiled before.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.smc import adaptive_tempered, extend_params, resampling
from jax.flatten_util import ravel_pytree

import bayesattn as ba
from bayesattn.models import Parameterisation, parameterisation_of
from bayesattn.samplers import Tempered
from bayesattn.samplers.pilot import potential
from bayesattn.tasks import HiddenMarkov
from benchmarks.learned_attention import FULL, NOISE, REPLICAS, model_of
from benchmarks.timing import interleaved_seconds
from tests.posteriors import random_network

ACCEPTANCE = 0.95
"""As presets.toml has it for `tempered`."""


def posteriors(examples: int) -> dict[str, ba.Model | ba.AttentionModel]:
    """A narrow network with two skips, and one that samples queries and keys of a number of sequences."""
    sizes: dict[str, Any] = FULL | NOISE | {"examples": examples}
    return {
        "two skips": random_network((1, 1), (1.0, 1.0), 2, 2, temperature=0.05, seed=0),
        f"sampled attention, {examples} sequences": model_of(HiddenMarkov(**sizes), 10, examples),
    }


def ready(model: ba.Model | ba.AttentionModel) -> Parameterisation:
    return parameterisation_of(model, "collapsed").ready(model)


def overhead(model: ba.Model | ba.AttentionModel, transitions: int) -> tuple[float, float]:
    """Microseconds of a gradient, and those of transitions over those of their gradients."""
    posterior = ready(model)
    kernel = Tempered(type(posterior).program, replicas=12, target_accept_prob=ACCEPTANCE)
    state = kernel.init(jax.random.key(0), 200, posterior.initial(jax.random.key(1)), (posterior,))

    @jax.jit
    def run(state, posterior):
        def step(state, _):
            state = kernel.sample(state, (posterior,), {})
            return state, state.num_steps

        return jax.lax.scan(step, state, length=transitions)

    state, _ = run(state, posterior)
    _, counts = run(state, posterior)
    count = int(counts.sum())

    @jax.jit
    def gradients(point, posterior):
        unravel = ravel_pytree(point)[1]
        slope = jax.grad(lambda flat: potential(type(posterior).program, (posterior,), {}, 1.0, unravel(flat)))
        return jax.lax.fori_loop(0, count, lambda _, flat: flat - 1e-12 * slope(flat), ravel_pytree(point)[0])

    calls = {"all": lambda: run(state, posterior), "gradients": lambda: gradients(state.z, posterior)}
    took = interleaved_seconds(calls, 5)
    return 1e6 * took["gradients"] / count, took["all"] / took["gradients"]


Pass = tuple[np.ndarray, np.ndarray, float, float]
"""Mean and variance of predictions, log p(Y), and round trips (NaN where there are none)."""


def tempering_pass(
    model: ba.Model | ba.AttentionModel, replicas: int, warmup: int, draws: int
) -> Callable[[int], Pass]:
    """Function of a seed: one chain of parallel tempering."""
    settings: dict[str, Any] = {"chains": 1, "warmup": warmup, "draws": draws, "progress": False}

    def one(seed: int) -> Pass:
        drawn = ba.sample(model, "tempered", seed=seed, options={"replicas": replicas}, **settings)
        found, predictions = ba.tempering(drawn), np.asarray(drawn["posterior"].to_dataset()["prediction"][0])
        return predictions.mean(0), predictions.var(0), found.log_evidence, int(found.round_trips[0])

    return one


def blackjax_pass(
    model: ba.Model | ba.AttentionModel, particles: int, moves: int = 10, leaps: int = 10
) -> Callable[[int], Pass]:
    """Function of a seed: BlackJAX's adaptive tempered SMC, one particle after another, as their factorisations want it."""
    posterior = ready(model)
    unravel = ravel_pytree(posterior.initial(jax.random.key(0)))[1]

    def prior(flat: jax.Array, power: float = 0.0) -> jax.Array:
        return -potential(type(posterior).program, (posterior,), {}, power, unravel(flat))

    def likelihood(flat: jax.Array) -> jax.Array:
        value = prior(flat, 1.0) - prior(flat)
        return jnp.where(jnp.isnan(value), -jnp.inf, value)

    kernel = adaptive_tempered.build_kernel(
        prior,
        likelihood,
        partial(blackjax.hmc.build_kernel(), num_integration_steps=leaps),
        blackjax.hmc.init,
        resampling.systematic,
        0.5,
        batch_size=1,
    )

    @jax.jit
    def begin(keys):
        return jax.lax.map(lambda key: ravel_pytree(posterior.draw_prior(key))[0], keys)

    @jax.jit
    def step(key, state, size):
        scales = jnp.var(state.particles, 0) + 1e-12
        tuned = extend_params({"step_size": size, "inverse_mass_matrix": scales})  # pyright: ignore[reportArgumentType]
        state, info = kernel(key, state, moves, tuned)
        accepted = info.update_info.acceptance_rate.mean()
        return state, size * jnp.exp(accepted - 0.8), info.log_likelihood_increment

    @jax.jit
    def predictions(keys, points):
        return jax.lax.map(lambda each: posterior.quantities(unravel(each[1]), each[0])["prediction"], (keys, points))

    def one(seed: int) -> Pass:
        key, begin_key, last_key = jax.random.split(jax.random.key(seed), 3)
        state = adaptive_tempered.init(begin(jax.random.split(begin_key, particles)))
        size, log_evidence = jnp.asarray(0.1), 0.0
        while state.tempering_param < 1:
            key, step_key = jax.random.split(key)
            state, size, change = step(step_key, state, size)
            log_evidence += float(change)
        found = np.asarray(predictions(jax.random.split(last_key, particles), state.particles))
        return found.mean(0), found.var(0), log_evidence, np.nan

    return one


def row(name: str, method: str, one: Callable[[int], Pass], passes: int) -> str:
    """Row of the table: what independent passes found in an hour."""
    one(0)
    begun = time.perf_counter()
    means, variances, logs, trips = (np.array(each) for each in zip(*map(one, range(1, passes + 1)), strict=True))
    hours = (time.perf_counter() - begun) / 3600
    worth = passes * np.median(variances.mean(0) / means.var(0, ddof=1))
    trips_an_hour = "" if np.isnan(trips).any() else f"{trips.sum() / hours:,.0f}"
    cells = (f"{3600 * hours / passes:.0f}", f"{logs.mean():.2f} ± {logs.std(ddof=1):.2f}", f"{worth / hours:,.0f}")
    return "| " + " | ".join((name, method, *cells, trips_an_hour)) + " |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=50)
    parser.add_argument("--beside", type=int, metavar="PASSES", help="passes of each, 20 or more to tell a factor of 2")
    parser.add_argument("--only", choices=("skips", "attention"), help="the posterior of `--beside`")
    given = parser.parse_args()
    if given.beside:
        skips, attention = posteriors(given.examples).items()
        print("| posterior | method | s a pass | log p(Y), its scatter | draws an hour | round trips an hour |")
        print("|" + " --- |" * 6)
        for (name, model), draws, particles in ((skips, 2000, 2000), (attention, 400, 128)):
            if given.only and given.only not in name:
                continue
            replicas = 12 if model is skips[1] else REPLICAS[given.examples]
            tempered, annealed = tempering_pass(model, replicas, 300, draws), blackjax_pass(model, particles)
            print(row(name, "tempered", tempered, given.beside), flush=True)
            print(row(name, f"SMC, {particles} particles", annealed, given.beside), flush=True)
        return
    print("| posterior | us a gradient | tempered over its gradients |\n| --- | --- | --- |")
    for name, model in posteriors(given.examples).items():
        each, ratio = overhead(model, 200 if isinstance(model, ba.Model) else 3)
        print(f"| {name} | {each:.1f} | {ratio:.3f} |", flush=True)


if __name__ == "__main__":
    main()
