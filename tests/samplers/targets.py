"""Chains of a kernel, and a target of benchmarks/samplers.py."""

import jax
import jax.numpy as jnp
import numpy as np


def funnel_potential(z):
    """Neal's funnel: v ~ Normal(0, 3), nine x ~ Normal(0, exp(v / 2))."""
    return z[0] ** 2 / 18 + jnp.sum(z[1:] ** 2) * jnp.exp(-z[0]) / 2 + 9 * z[0] / 2


def chains(kernel, start, warmup, draws):
    """Draws z (chain, draw, coordinate) of four chains in one batch, and the states they came from."""

    def chain(key):
        init_key, start_key = jax.random.split(key)
        state = kernel.init(init_key, warmup, start + jax.random.normal(start_key, start.shape))

        def step(state, _):
            state = kernel.sample(state, (), {})
            return state, state

        # One scan of warm-up and draws, so that the kernel is compiled once.
        return jax.tree.map(lambda leaf: leaf[warmup:], jax.lax.scan(step, state, None, length=warmup + draws)[1])

    # It runs for longer than it takes to compile.
    optimised = {"xla_backend_optimization_level": 1}
    states = jax.jit(jax.vmap(chain), compiler_options=optimised)(jax.random.split(jax.random.key(0), 4))
    return np.asarray(states.z), states
