"""Gaussian likelihood."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from bayesattn.likelihoods.likelihood import Labels, Likelihood, Outputs, positive_field


class Gaussian(Likelihood):
    """Gaussian likelihood: labels are Normal(f, T).

    With a Gaussian prior on the weights, the posterior is the Gibbs posterior at temperature T (THEORY section 1).

    Args:
        temperature: T, the variance of the labels.

    Raises:
        ValueError: a temperature that is not above 0.
    """

    conjugate: ClassVar[bool] = True
    statistic_name: ClassVar[str] = "mean label^2"

    temperature: float | Array = positive_field("temperature")

    def log_prob(self, outputs: Outputs, labels: Labels) -> Float[Array, "*examples"]:
        """log Normal(Y_i; f_i, T I) of each example."""
        each = jax.scipy.stats.norm.logpdf(labels, outputs, jnp.sqrt(self.temperature))
        return each if each.ndim < 2 else each.sum(-1)

    def sample(self, key: Key[Array, ""], outputs: Outputs) -> Labels:
        """f + sqrt(T) times standard normal noise."""
        return outputs + jnp.sqrt(self.temperature) * jax.random.normal(key, outputs.shape)

    def statistic(self, labels: Labels) -> Float[Array, ""]:
        """Mean square of the labels."""
        return jnp.mean(labels**2)

    @property
    def description(self) -> str:
        """Short description of the labels."""
        return "real numbers, Normal(f, T)"
