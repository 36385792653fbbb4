"""Interface of likelihoods."""

import abc
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bayesattn._util.checks import positive_or_prior

Outputs = Float[Array, "*labels"]
"""f of shape (P,), or (P, m) of m > 1 outputs."""
Labels = Float[Array, "*labels"]
"""Y of the same shape as the outputs."""


class Likelihood(eqx.Module):
    """Distribution of labels given the network's outputs f; examples are independent of each other given f.

    A subclass defines the two methods `log_prob` and `sample`, written with `jax.numpy`; its parameters are its fields.
    Outputs and labels have shape (P,), or (P, m) for a network of m > 1 outputs.
    """

    conjugate: ClassVar[bool] = False
    """Whether outputs can be integrated out in closed form; otherwise chains of the collapsed parameterisation sample them.
    """

    def __init_subclass__(cls, **options: object):
        """Reset `conjugate` unless the class sets it itself: a subclass that changes the density has no closed forms."""
        super().__init_subclass__(**options)
        cls.conjugate = bool(vars(cls).get("conjugate", False))

    statistic_name: ClassVar[str] = "weighted mean label"

    @abc.abstractmethod
    def log_prob(self, outputs: Outputs, labels: Labels) -> Float[Array, "*examples"]:
        """log p(Y_i | f_i) of each example, shape (P,)."""

    @abc.abstractmethod
    def sample(self, key: Key[Array, ""], outputs: Outputs) -> Labels:
        """Labels drawn given f."""

    def probabilities(self, outputs: Outputs) -> Outputs | None:
        """Probabilities of the classes, or of +1 if there is one output; None if labels are not classes."""
        return None

    def statistic(self, labels: Labels) -> Float[Array, ""]:
        """Function of the labels, without ties, that calibration compares; by default a weighted mean."""
        weights = jnp.cos(jnp.arange(labels.size, dtype=float)).reshape(labels.shape)
        return jnp.mean(weights * labels)

    def check_labels(self, name: str, labels: np.ndarray) -> None:
        """Raise ValueError, with the argument's `name`, for labels that have probability 0 whatever the outputs."""

    @property
    def description(self) -> str:
        """Short description of the labels."""
        return type(self).__name__


def positive_field(name: str) -> Any:
    """Field of a likelihood that is a number above 0, or a prior of one, which a model needs to be told."""
    return eqx.field(converter=partial(positive_or_prior, name))
