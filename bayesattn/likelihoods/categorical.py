"""Categorical likelihood."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bayesattn.classes import checked_classes
from bayesattn.likelihoods.likelihood import Labels, Likelihood, Outputs, positive_field


class Categorical(Likelihood):
    """Categorical likelihood: class c has probability softmax(f / T)_c.

    With one output, +1 has probability 1 / (1 + exp(-f / T)), and -1 the rest. Labels for m outputs are 1 at the class
    of each example and 0 elsewhere (`bayesattn.one_hot`); labels for one output are +1 or -1.

    Args:
        temperature: T, by which outputs are divided.

    Raises:
        ValueError: a temperature that is not above 0.
    """

    temperature: float | Array = positive_field("temperature")

    def log_prob(self, outputs: Outputs, labels: Labels) -> Float[Array, "*examples"]:
        """Log probability of the class of each example."""
        logits = outputs / self.temperature
        if outputs.ndim < 2:
            return jax.nn.log_sigmoid(labels * logits)
        return jnp.sum(labels * jax.nn.log_softmax(logits), axis=-1)

    def probabilities(self, outputs: Outputs) -> Outputs:
        """Probabilities of the classes; of +1 if there is one output."""
        logits = outputs / self.temperature
        return jax.nn.sigmoid(logits) if outputs.ndim < 2 else jax.nn.softmax(logits)

    def sample(self, key: Key[Array, ""], outputs: Outputs) -> Labels:
        """Labels drawn given f."""
        logits = outputs / self.temperature
        if outputs.ndim < 2:
            return jnp.where(jax.random.bernoulli(key, jax.nn.sigmoid(logits)), 1.0, -1.0)
        classes = jax.random.categorical(key, logits)
        return jax.nn.one_hot(classes, outputs.shape[-1], dtype=logits.dtype)

    def check_labels(self, name: str, labels: np.ndarray) -> None:
        """Raise ValueError for labels that are not classes."""
        checked_classes(name, labels)

    @property
    def description(self) -> str:
        """Short description of the labels."""
        return "classes, by the softmax of the outputs over T"
