"""Targets with known moments, and the chains of a kernel on them."""

import jax
import jax.numpy as jnp
import numpy as np

DIMENSION = 50


def correlated_gaussian():
    """50 dimensions, neighbours correlated at 0.8, standard deviations from 0.5 to 5: potential, start, mean, deviation."""
    deviation = np.geomspace(0.5, 5, DIMENSION)
    covariance = 0.8 ** np.abs(np.subtract.outer(np.arange(DIMENSION), np.arange(DIMENSION)))
    covariance *= np.outer(deviation, deviation)
    mean = np.linspace(-3, 3, DIMENSION)
    precision = jnp.asarray(np.linalg.inv(covariance))

    def potential(x):
        return (x - mean) @ precision @ (x - mean) / 2

    return potential, jnp.asarray(mean), mean, deviation


def funnel_potential(z):
    """Neal's funnel: v ~ Normal(0, 3), nine x ~ Normal(0, exp(v / 2))."""
    return z[0] ** 2 / 18 + jnp.sum(z[1:] ** 2) * jnp.exp(-z[0]) / 2 + 9 * z[0] / 2


def chains(kernel, start, warmup, draws, count=4, seed=0, spread=1.0):
    """Draws z (chain, draw, coordinate) and the states they came from, all chains in one batch."""

    def chain(key):
        init_key, start_key = jax.random.split(key)
        state = kernel.init(init_key, warmup, start + spread * jax.random.normal(start_key, start.shape))

        def step(state, _):
            state = kernel.sample(state, (), {})
            return state, state

        # One scan of warm-up and draws, so that the kernel is compiled once.
        return jax.tree.map(lambda leaf: leaf[warmup:], jax.lax.scan(step, state, None, length=warmup + draws)[1])

    # It runs for longer than it takes to compile.
    optimised = {"xla_backend_optimization_level": 1}
    states = jax.jit(jax.vmap(chain), compiler_options=optimised)(jax.random.split(jax.random.key(seed), count))
    return np.asarray(states.z), states
