"""Poisson likelihood, for counts."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bayesattn.errors import BayesattnError
from bayesattn.likelihoods.likelihood import Labels, Likelihood, Outputs

LARGEST_LOG_RATE = 12.0
"""Largest f for which JAX draws the counts: from rates of 7e7 on they vary too much (by 24 %), then overflow."""


class Poisson(Likelihood):
    """Likelihood of counts: labels are Poisson distributed with rate exp(f)."""

    def log_prob(self, outputs: Outputs, labels: Labels) -> Float[Array, "*examples"]:
        """Log probability of the counts of each example."""
        each = labels * outputs - jnp.exp(outputs) - jax.scipy.special.gammaln(labels + 1)
        return each if each.ndim < 2 else each.sum(-1)

    def sample(self, key: Key[Array, ""], outputs: Outputs) -> Labels:
        """Counts drawn given the outputs."""
        few_key, many_key = jax.random.split(key)
        few = jax.random.poisson(few_key, jnp.exp(jnp.minimum(outputs, LARGEST_LOG_RATE))).astype(outputs.dtype)
        # Larger counts are normal draws; these lack the Poisson skewness, which is 0.0025 or less.
        many = jnp.round(jnp.exp(outputs) + jnp.exp(outputs / 2) * jax.random.normal(many_key, outputs.shape))
        return jnp.where(outputs > LARGEST_LOG_RATE, many, few)

    def check_labels(self, name: str, labels: np.ndarray) -> None:
        """Raise ValueError for labels that are not counts."""
        bad = np.argwhere((labels < 0) | (labels != np.round(labels)))
        if len(bad):
            place = tuple(map(int, bad[0]))
            raise BayesattnError(
                f"{name} must be counts, whole numbers of at least 0, with likelihood=bayesattn.Poisson(), got"
                f" {labels[place]:g} at index {place}"
            )

    @property
    def description(self) -> str:
        """Description of the labels in a few words."""
        return "counts, Poisson with rate exp(f)"
