"""Influences by prior draws of all weights, weighed by the likelihood: they know neither U nor chains."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from bayesattn.models import TokenAttention, path
from bayesattn.network import effective_weights
from tests import dense


def prior_draws(model, count, seed=0):
    """U, f at the test inputs and log p(Y_i | w) of networks drawn from the prior."""
    keys = jax.random.split(jax.random.key(seed), count)
    if hasattr(model, "path_inputs"):
        posterior, skips = path.Path.of(model), model.architecture.optional_skips
        inputs, new = jnp.asarray(model.path_inputs), jnp.asarray(model.test_path_inputs)

        def draw(key):
            weights = posterior.draw_prior(key)
            rows = effective_weights(weights, skips)
            u = rows @ rows.T / rows.shape[1]
            return u, path.network(weights, new, skips), path.network(weights, inputs, skips)
    else:
        posterior = TokenAttention.of(model)

        def draw(key):
            sites = posterior.draw_prior(key)
            values = posterior.quantities(sites, key)
            return values["order_parameter"], values["prediction"], posterior.function(sites)

    u, f, own = jax.tree.map(np.asarray, jax.jit(jax.vmap(draw))(keys))
    return u, f, dense.log_likelihoods(model, own)


def weighed(log_weights):
    """Weights of draws, and how many draws they are worth."""
    weights = special.softmax(log_weights)
    return weights, 1 / np.sum(weights**2)


def covariance(weights, values, log_likelihoods):
    """Covariances of values (draw, ..) and log likelihoods (draw, example), and their standard errors."""
    flat = values.reshape(len(values), -1)
    flat, own = (each - weights @ each for each in (flat, log_likelihoods))
    found = (weights[:, None] * flat).T @ own
    squares = (weights[:, None] ** 2 * flat**2).T @ own**2 - 2 * found * ((weights[:, None] ** 2 * flat).T @ own)
    error = np.sqrt(squares + found**2 * np.sum(weights**2))
    return (each.reshape(*values.shape[1:], -1) for each in (found, error))


def change_if_left_out(weights, values, log_likelihoods):
    """Changes of means of values (draw, ..) if one example is left out, and their standard errors."""
    flat = values.reshape(len(values), -1)
    with np.errstate(divide="ignore"):
        rest = special.softmax(np.log(weights)[:, None] - log_likelihoods, axis=0)
    flat = flat - weights @ flat
    change = flat.T @ rest
    # Influence of each draw on the difference of two ratios.
    squares = (flat**2).T @ rest**2 - 2 * change * (flat.T @ rest**2) + change**2 * np.sum(rest**2, 0)
    squares += ((weights[:, None] * flat) ** 2).sum(0)[:, None]
    both = rest * weights[:, None]
    squares -= 2 * ((flat**2).T @ both - change * (flat.T @ both))
    return (each.reshape(*values.shape[1:], -1) for each in (change, np.sqrt(squares)))
