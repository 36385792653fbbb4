"""Outputs and labels given one draw of a posterior: by U where outputs are integrated out, else by the draw's readout.

Given U and labels with the Gaussian likelihood, outputs at any inputs are Gaussian, with moments in closed form (THEORY
section 5). With other likelihoods draws hold a readout of path inputs, and outputs are linear in it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from scipy import stats

from bayesattn import kernels
from bayesattn.architecture import Architecture
from bayesattn.kernels import Factor, GaussianProcess, OrderParameter, conditional_moments
from bayesattn.kernels.path_inputs import outputs_of, scaled_features
from bayesattn.likelihoods import Labels, Likelihood, Outputs
from bayesattn.model import Model
from bayesattn.models.latent_outputs import leave_one_out
from bayesattn.models.parameterisation import arrays_of

NODES = 256
"""Points over which leave-one-out integrates an example's outputs."""
PathInputs = Float[Array, "example path feature"]
Draw = Mapping[str, Array]
"""The variables of one draw."""


class Conditional(Protocol):
    """What is known of outputs and labels given a draw."""

    variables: ClassVar[tuple[str, ...]]
    """Variables of a draw that are looked at."""

    def outputs(
        self, draw: Draw, path_inputs: PathInputs, key: Key[Array, ""] | None
    ) -> tuple[Outputs, Outputs, Outputs | None]:
        """Mean and variance of f at path inputs, and a draw of it if there is a key."""
        ...

    def log_likelihood(self, draw: Draw) -> Float[Array, ""]:
        """log density of all labels together."""
        ...

    def leave_one_out(self, draw: Draw) -> Float[Array, " example"]:
        """log density of each label given the others."""
        ...

    def replicate(self, draw: Draw, key: Key[Array, ""]) -> Labels:
        """Labels drawn anew on the training inputs."""
        ...

    def probabilities(self, mean: np.ndarray, variance: np.ndarray) -> np.ndarray | None:
        """Probabilities of classes by moments of f of all draws, shape (chain, draw, ..); None where there are none."""
        ...

    def with_labels(self, labels: Labels) -> "Conditional":
        """The same with other labels."""
        ...

    def compressed(self, arch: Architecture) -> "Conditional":
        """The same by few examples with the same likelihood, where there are many and they suffice."""
        ...


def conditional_of(model: Model) -> "GivenOrderParameter | GivenReadout":
    """Outputs and labels of a model given one draw."""
    process, likelihood = model.kernels, arrays_of(model.likelihood)
    if not model.likelihood.conjugate:
        labels, path_inputs = jnp.asarray(model.labels), jnp.asarray(model.path_inputs)
        return GivenReadout(process, likelihood, path_inputs, labels)
    classes = model.labels.ndim == 1 and np.array_equal(np.abs(model.labels), np.ones_like(model.labels))
    return GivenOrderParameter(process, likelihood, jnp.asarray(model.architecture.input_variance), classes)


class GivenOrderParameter(eqx.Module):
    """Outputs and labels given U, for the Gaussian likelihood.

    Args:
        kernels: K(U), and the training data.
        likelihood: of the labels given the outputs.
        input_variance: s_0^2.
        classes: whether all labels are +1 or -1, so that f above 0 is a class.
    """

    variables: ClassVar[tuple[str, ...]] = ("order_parameter",)

    kernels: GaussianProcess
    likelihood: Likelihood
    input_variance: Float[Array, ""]
    classes: bool = eqx.field(static=True)

    def outputs(
        self, draw: Draw, path_inputs: PathInputs, key: Key[Array, ""] | None
    ) -> tuple[Outputs, Outputs, Outputs | None]:
        """Mean and variance of f at path inputs, and a draw of it if there is a key."""
        features = scaled_features(path_inputs, self.input_variance)
        moments = conditional_moments(self.kernels, draw["order_parameter"], features)
        if key is None:
            return moments.mean, moments.variance, None
        factor = _root(draw["order_parameter"])
        drawn = outputs_of(features, factor @ self.kernels.sample_projection(key, factor), self.kernels.outputs)
        return moments.mean, moments.variance, self.kernels.by_example(drawn)

    def log_likelihood(self, draw: Draw) -> Float[Array, ""]:
        """log p(Y | U)."""
        return self.kernels.log_density_of(draw["order_parameter"])

    def leave_one_out(self, draw: Draw) -> Float[Array, " example"]:
        """log p(Y_i | Y of all other examples, U) of each example."""
        return kernels.leave_one_out(self.kernels, draw["order_parameter"])

    def replicate(self, draw: Draw, key: Key[Array, ""]) -> Labels:
        """Labels drawn anew on the training inputs, given U and the labels."""
        projection_key, noise_key = jax.random.split(key)
        factor = _root(draw["order_parameter"])
        projection = self.kernels.sample_projection(projection_key, factor)
        output = outputs_of(self.kernels.features, factor @ projection, self.kernels.outputs)
        return self.likelihood.sample(noise_key, self.kernels.by_example(output))

    def compressed(self, arch: Architecture) -> "GivenOrderParameter":
        """The same by few examples with the same likelihood, where there are many."""
        return replace(self, kernels=kernels.compressed(self.kernels, arch))

    def probabilities(self, mean: np.ndarray, variance: np.ndarray) -> np.ndarray | None:
        """Probability that f is above 0, over draws, where labels are +1 or -1; f without variance is above 0 or not."""
        if not self.classes:
            return None
        certain = variance <= 0
        spread = np.sqrt(np.where(certain, 1, variance))
        return np.where(certain, (np.sign(mean) + 1) / 2, stats.norm.cdf(mean / spread)).mean((0, 1))

    def with_labels(self, labels: Labels) -> "GivenOrderParameter":
        """The same with other labels."""
        return replace(self, kernels=self.kernels.with_labels(labels))


class GivenReadout(eqx.Module):
    """Outputs and labels given a readout of path inputs, for any likelihood.

    Args:
        kernels: K(U), for leave-one-out.
        likelihood: of the labels given the outputs.
        path_inputs: xi of the training examples.
        labels: Y.
    """

    variables: ClassVar[tuple[str, ...]] = ("order_parameter", "readout")

    kernels: GaussianProcess
    likelihood: Likelihood
    path_inputs: PathInputs
    labels: Labels

    def outputs(
        self, draw: Draw, path_inputs: PathInputs, key: Key[Array, ""] | None = None
    ) -> tuple[Outputs, Outputs, Outputs | None]:
        """f at path inputs, without variance."""
        features = jnp.swapaxes(path_inputs, 1, 2)
        found = self.kernels.by_example(outputs_of(features, draw["readout"], self.kernels.outputs))
        return found, jnp.zeros_like(found), None if key is None else found

    def log_likelihood(self, draw: Draw) -> Float[Array, ""]:
        """log p(Y | f)."""
        return jnp.sum(self.likelihood.log_prob(self.outputs(draw, self.path_inputs)[0], self.labels))

    def leave_one_out(self, draw: Draw) -> Float[Array, " example"]:
        """log p(Y_i | f of all other examples, U) of each example."""
        qmc: Any = stats.qmc
        nodes = jnp.asarray(qmc.MultivariateNormalQMC(np.zeros(self.kernels.outputs), seed=0).random(NODES))
        outputs = self.outputs(draw, self.path_inputs)[0]
        return leave_one_out(self.kernels, self.likelihood, draw["order_parameter"], outputs, self.labels, nodes)

    def replicate(self, draw: Draw, key: Key[Array, ""]) -> Labels:
        """Labels drawn anew on the training inputs."""
        return self.likelihood.sample(key, self.outputs(draw, self.path_inputs)[0])

    def compressed(self, arch: Architecture) -> "GivenReadout":
        """The same: outputs take no matrix of the labels' size."""
        return self

    def probabilities(self, mean: np.ndarray, variance: np.ndarray) -> np.ndarray | None:
        """Probabilities of classes over draws of f, where the likelihood has classes."""
        found = _mean_probabilities(self.likelihood, jnp.asarray(mean.reshape(-1, *mean.shape[2:])))
        return None if found is None else np.asarray(found)

    def with_labels(self, labels: Labels) -> "GivenReadout":
        """The same with other labels."""
        return replace(self, labels=labels)


@jax.jit
def _mean_probabilities(likelihood: Likelihood, outputs: Array) -> Array | None:
    chances = jax.vmap(likelihood.probabilities)(outputs)
    return None if chances is None else chances.mean(0)


def _root(order_parameter: OrderParameter) -> Factor:
    """F with U = F F^T, also of a singular U."""
    values, vectors = jnp.linalg.eigh(order_parameter)
    return vectors * jnp.sqrt(jnp.maximum(values, 0))
