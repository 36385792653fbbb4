"""Outputs and labels given one draw of any posterior of a network: what predictions and influences ask for."""

import abc
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bayesattn._util.plain_values import PlainMapping
from bayesattn.architecture import Architecture
from bayesattn.kernels.covariances import OutputCovariances
from bayesattn.likelihoods import Labels, Likelihood, Outputs
from bayesattn.models.hyperpriors import scale_of

Draw = Mapping[str, Array]
"""Variables of one draw, by name."""
Examples = tuple[Any, Labels]
"""Inputs, in the form that `Conditional.outputs` takes, and labels."""


class Explained(NamedTuple):
    """Expected log likelihood of examples, and mean of f at new inputs, given a draw.

    Args:
        log_likelihoods: E[log p(Y_i | w)] of each example.
        outputs: mean of f at the new inputs.
        covariances: what they covary by given the draw; None if the draw determines them.
    """

    log_likelihoods: Float[Array, " example"]
    outputs: Outputs
    covariances: OutputCovariances | None


class Conditional(eqx.Module):
    """Conditional distribution of outputs and labels given a draw."""

    @property
    @abc.abstractmethod
    def variables(self) -> tuple[str, ...]:
        """Variables of a draw that are used."""

    @abc.abstractmethod
    def outputs(self, draw: Draw, inputs: Any, key: Key[Array, ""] | None) -> tuple[Outputs, Outputs, Outputs | None]:
        """Mean and variance of f at inputs, and a draw of f if there is a key."""

    @abc.abstractmethod
    def entries(self, inputs: Any) -> int:
        """Number of entries that each input adds to the largest array of `outputs`."""

    @abc.abstractmethod
    def log_likelihood(self, draw: Draw) -> Float[Array, ""]:
        """Log density of all labels together."""

    @abc.abstractmethod
    def own_outputs(self, draw: Draw) -> Outputs | None:
        """Outputs f on the training examples of a draw, None if they are integrated out."""

    @abc.abstractmethod
    def leave_one_out(self, draw: Draw, others: Outputs | None = None) -> Float[Array, " example"]:
        """Log density of each label given the other labels; `others` are `own_outputs` of some draws."""

    @abc.abstractmethod
    def explained(self, draw: Draw, inputs: Any, examples: Examples | None) -> Explained:
        """Log likelihoods of some examples, by default those of training, and f at inputs."""

    @abc.abstractmethod
    def log_prob(self, draw: Draw, outputs: Outputs, labels: Labels) -> Float[Array, " example"]:
        """Log density of each label given the outputs and the numbers of a draw."""

    @abc.abstractmethod
    def replicate(self, draw: Draw, key: Key[Array, ""]) -> Labels:
        """New draw of the labels on the training inputs."""

    @abc.abstractmethod
    def probabilities(self, mean: np.ndarray, variance: np.ndarray, numbers: Draw) -> np.ndarray | None:
        """Class probabilities from moments of f of all draws, shape (chain, draw, ..); None without classes.

        `numbers` are the draws of the likelihood's numbers that have priors, shape (chain, draw).
        """

    @abc.abstractmethod
    def with_labels(self, labels: Labels) -> "Conditional":
        """Same conditional with other labels."""

    def compressed(self, arch: Architecture) -> "Conditional":
        """Same conditional from fewer examples with the same likelihood, if there are many and few suffice."""
        return self


class GivenFunction(Conditional):
    """Outputs and labels given draws that determine f."""

    @property
    @abc.abstractmethod
    def training(self) -> tuple[Any, Labels, Likelihood]:
        """Training inputs, labels, and likelihood of the labels given f."""

    @abc.abstractmethod
    def function(self, draw: Draw, inputs: Any) -> Outputs:
        """Outputs f at inputs."""

    def outputs(self, draw: Draw, inputs: Any, key: Key[Array, ""] | None) -> tuple[Outputs, Outputs, Outputs | None]:
        """Outputs f at inputs as mean, zero variance, and f again if there is a key."""
        outputs = self.function(draw, inputs)
        return outputs, jnp.zeros_like(outputs), None if key is None else outputs

    def own_outputs(self, draw: Draw) -> Outputs:
        """Outputs f on the training examples."""
        return self.function(draw, self.training[0])

    def log_likelihood(self, draw: Draw) -> Float[Array, ""]:
        """Log likelihood log p(Y | f)."""
        _, labels, likelihood = self.training
        return jnp.sum(likelihood.log_prob(self.own_outputs(draw), labels))

    def explained(self, draw: Draw, inputs: Any, examples: Examples | None) -> Explained:
        """Log likelihoods of some examples, by default those of training, and f at inputs."""
        own, labels = self.training[:2] if examples is None else examples
        log_likelihoods = self.log_prob(draw, self.function(draw, own), labels)
        return Explained(log_likelihoods, self.function(draw, inputs), None)

    def log_prob(self, draw: Draw, outputs: Outputs, labels: Labels) -> Float[Array, " example"]:
        """Log density of each label given the outputs."""
        return self.training[-1].log_prob(outputs, labels)

    def replicate(self, draw: Draw, key: Key[Array, ""]) -> Labels:
        """New draw of the labels on the training inputs."""
        return self.training[-1].sample(key, self.own_outputs(draw))

    def probabilities(self, mean: np.ndarray, variance: np.ndarray, numbers: Draw) -> np.ndarray | None:
        """Class probabilities averaged over draws of f; None if the likelihood has no classes."""
        return class_probabilities(self.training[-1], mean, numbers)


class GivenNumbers(Conditional):
    """Outputs and labels given a draw that has the values of temperature and variances too, where these have priors.

    Args:
        known: conditional at some values.
        numbers: variables that have priors.
        input_variance: s_0^2 of the features of `known`.
    """

    known: Any
    numbers: tuple[str, ...] = eqx.field(static=True)
    input_variance: Float[Array, ""]

    @property
    def variables(self) -> tuple[str, ...]:
        """Variables of a draw that are used."""
        return (*self.known.variables, *self.numbers)

    def _given(self, draw: Draw) -> tuple[Any, Draw]:
        """Conditional at the values of a draw, and the draw with its U in units of the features."""
        values = {name: draw[name] for name in self.numbers}
        known = self.known.at_values(values)
        if "order_parameter" not in draw:
            return known, draw
        return known, {**draw, "order_parameter": scale_of(self.input_variance, values) * draw["order_parameter"]}

    def outputs(self, draw: Draw, inputs: Any, key: Key[Array, ""] | None) -> tuple[Outputs, Outputs, Outputs | None]:
        """Mean and variance of f at inputs, and a draw of f if there is a key."""
        known, draw = self._given(draw)
        return known.outputs(draw, inputs, key)

    def entries(self, inputs: Any) -> int:
        """Number of entries that each input adds."""
        return self.known.entries(inputs)

    def log_likelihood(self, draw: Draw) -> Float[Array, ""]:
        """Log density of all labels together."""
        known, draw = self._given(draw)
        return known.log_likelihood(draw)

    def own_outputs(self, draw: Draw) -> Outputs | None:
        """Outputs f on the training examples, None if they are integrated out."""
        known, draw = self._given(draw)
        return known.own_outputs(draw)

    def leave_one_out(self, draw: Draw, others: Outputs | None = None) -> Float[Array, " example"]:
        """Log density of each label given the other labels and the draw."""
        known, draw = self._given(draw)
        return known.leave_one_out(draw, others)

    def explained(self, draw: Draw, inputs: Any, examples: Examples | None) -> Explained:
        """Log likelihoods of some examples, by default those of training, and f at inputs."""
        known, draw = self._given(draw)
        return known.explained(draw, inputs, examples)

    def log_prob(self, draw: Draw, outputs: Outputs, labels: Labels) -> Float[Array, " example"]:
        """Log density of each label given the outputs and the numbers of a draw."""
        known, draw = self._given(draw)
        return known.log_prob(draw, outputs, labels)

    def replicate(self, draw: Draw, key: Key[Array, ""]) -> Labels:
        """New draw of the labels on the training inputs."""
        known, draw = self._given(draw)
        return known.replicate(draw, key)

    def probabilities(self, mean: np.ndarray, variance: np.ndarray, numbers: Draw) -> np.ndarray | None:
        """Class probabilities from moments of f of all draws; None without classes."""
        return self.known.probabilities(mean, variance, numbers)

    def with_labels(self, labels: Labels) -> "GivenNumbers":
        """Same conditional with other labels."""
        return replace(self, known=self.known.with_labels(labels))

    def compressed(self, arch: Architecture) -> "GivenNumbers":
        """Same conditional from fewer examples with the same likelihood, if there are many."""
        return replace(self, known=self.known.compressed(arch))


def class_probabilities(likelihood: Likelihood, outputs: np.ndarray, numbers: PlainMapping) -> np.ndarray | None:
    """Class probabilities averaged over draws of f, shape (chain, draw, ..); None if the likelihood has no classes.

    `numbers` are the draws of the likelihood's numbers that have priors, shape (chain, draw).
    """
    flat = {name: jnp.ravel(jnp.asarray(drawn)) for name, drawn in numbers.items()}
    probabilities = _mean_probabilities(likelihood, flat, jnp.asarray(outputs.reshape(-1, *outputs.shape[2:])))
    return None if probabilities is None else np.asarray(probabilities)


@jax.jit
def _mean_probabilities(likelihood: Likelihood, numbers: Draw, outputs: Array) -> Array | None:
    probabilities = jax.vmap(lambda own, f: replace(likelihood, **own).probabilities(f))(numbers, outputs)
    return None if probabilities is None else probabilities.mean(0)
