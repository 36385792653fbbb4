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


# Rubin's eight schools, non-centred. Reference means and their errors: posteriordb, eight_schools-eight_schools_noncentered,
# github.com/stan-dev/posteriordb, commit 0e97b72.
EFFECTS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
ERRORS = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
SCHOOL_MEANS = np.array([6.1505, 4.9396, 3.9059, 4.7960, 3.6144, 4.0511, 6.3172, 4.8840, 4.4105, 3.6021])
SCHOOL_ERRORS = np.array([0.0557, 0.0462, 0.0542, 0.0475, 0.0461, 0.0485, 0.0499, 0.0543, 0.0330, 0.0319])


def eight_schools_potential(z):
    """mu ~ Normal(0, 5), tau ~ HalfCauchy(5), theta = mu + tau eta; z = (eta, mu, log tau)."""
    eta, mu, log_tau = z[:8], z[8], z[9]
    tau = jnp.exp(log_tau)
    residuals = (EFFECTS - mu - tau * eta) / ERRORS
    log_prior = -jnp.sum(eta**2) / 2 - mu**2 / 50 - jnp.log1p((tau / 5) ** 2) + log_tau
    return jnp.sum(residuals**2) / 2 - log_prior


def school_parameters(draws):
    """theta_1 .. theta_8, mu, tau of draws of z."""
    tau = np.exp(draws[..., 9:])
    return np.concatenate([draws[..., 8:9] + tau * draws[..., :8], draws[..., 8:9], tau], -1)


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
