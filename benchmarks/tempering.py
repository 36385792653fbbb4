"""Parallel tempering: seconds of transitions over those of as many gradients of the same log density.

Run with `uv run python -m benchmarks.tempering`. Each is one compiled loop, warm; a narrow network with two skips, and one
that samples queries and keys.
"""

import argparse
from typing import Any

import jax
from jax.flatten_util import ravel_pytree

import bayesattn as ba
from bayesattn.models import Parameterisation, parameterisation_of
from bayesattn.samplers import Tempered
from bayesattn.samplers.pilot import potential
from bayesattn.tasks import HiddenMarkov
from benchmarks.learned_attention import FULL, NOISE, model_of
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


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=50)
    given = parser.parse_args()
    print("| posterior | us a gradient | tempered over its gradients |\n| --- | --- | --- |")
    for name, model in posteriors(given.examples).items():
        each, ratio = overhead(model, 200 if isinstance(model, ba.Model) else 3)
        print(f"| {name} | {each:.1f} | {ratio:.3f} |", flush=True)


if __name__ == "__main__":
    main()
