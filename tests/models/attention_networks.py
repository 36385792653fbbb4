"""Tiny networks whose queries and keys are sampled, and their posteriors by weighed prior draws of all weights."""

import jax
import jax.numpy as jnp
import numpy as np

import bayesattn as ba
from bayesattn.models import TokenAttention
from bayesattn.questions.reference.quantities import quantities_of
from tests.posteriors import evidence_of, weighed_mean

BATCH = 2**14


def attention_model(heads=(2,), widths=(3, 3), examples=4, tokens=3, features=2, seed=0, new=1, **settings):
    """Random sequences and labels; the test sequences begin with the training sequences."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(examples + new, tokens, features))
    mask = None
    if settings.pop("padded", False):
        mask = np.arange(tokens) < rng.integers(1, tokens + 1, size=(examples + new, 1))
    outputs = settings.get("outputs", 1)
    labels = 1.5 * rng.normal(size=(examples, outputs) if outputs > 1 else examples)
    return ba.AttentionModel(
        inputs=inputs[:examples],
        labels=labels,
        mask=None if mask is None else mask[:examples],
        test_inputs=inputs,
        test_mask=mask,
        heads=heads,
        widths=widths,
        **{"key_width": 2, "temperature": 0.5, "query_variance": 2.0, "key_variance": 1.5} | settings,
    )


NETWORKS = {
    "causal": {"causal": True, "readout": "mean"},
    "padded": {"padded": True, "heads": (1,), "widths": (2, 2)},
    "two layers": {"heads": (2, 1), "widths": (2, 3, 2)},
    "width 1": {"widths": (1, 1), "readout": "first"},
}


def weighed_prior_draws(model, batches, least, seed=0):
    """Mean and error of the quantities of a posterior, and log p(Y) with its error, by draws worth `least` at least."""
    posterior = TokenAttention.of(model)

    @jax.jit
    @jax.vmap
    def draw(key):
        sites = posterior.draw_prior(key)
        values = posterior.quantities(sites, key)
        log_weight = jnp.sum(model.likelihood.log_prob(posterior.function(sites), jnp.asarray(model.labels)))
        return log_weight, quantities_of(values["order_parameter"], values["prediction"], model)

    keys = jax.random.split(jax.random.key(seed), batches)
    log_weights, quantities = zip(*(draw(jax.random.split(key, BATCH)) for key in keys), strict=True)
    log_weights, quantities = np.concatenate(log_weights), np.concatenate(quantities)
    return *weighed_mean(log_weights, quantities, least), *evidence_of(log_weights)
