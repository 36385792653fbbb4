"""Outputs and labels given one draw of a posterior: given U if outputs are integrated out, else given the readout.

Given U and labels with the Gaussian likelihood, outputs at any inputs are Gaussian, with moments in closed form (THEORY
section 5). With other likelihoods draws contain a readout of path inputs, and outputs are linear in the readout.
"""

from dataclasses import replace
from functools import singledispatch
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from scipy import stats

from bayesattn import kernels
from bayesattn._util.checks import Checked
from bayesattn.architecture import Architecture
from bayesattn.errors import BayesattnError
from bayesattn.kernels import Factor, GaussianProcess, moments_at_factor
from bayesattn.kernels.covariances import output_covariances
from bayesattn.kernels.path_inputs import Features, checked_path_inputs, outputs_of, scaled_features
from bayesattn.likelihoods import Labels, Likelihood, Outputs
from bayesattn.models.given_draw import Conditional, Draw, Examples, Explained, GivenFunction, GivenNumbers
from bayesattn.models.hyperpriors import Values, fields_of
from bayesattn.models.left_out import leave_one_out
from bayesattn.models.model import Model
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.models.parameterisation import arrays_of
from bayesattn.models.posterior import Posterior

PathInputs = Float[Array, "example path feature"]


@singledispatch
def new_inputs(model: Posterior, value: Checked, mask: Checked, name: str | None = None) -> Any:
    """Inputs at which to predict, in the form that `Conditional.outputs` takes; they have a length and can be indexed.

    An error calls them by `name`.

    Raises ValueError for inputs that do not fit the model.
    """
    raise TypeError(f"no inputs are registered for a {type(model).__name__}")


@new_inputs.register(Model)
def new_path_inputs(model: Model, value: Checked, mask: Checked, name: str | None = None) -> np.ndarray:
    """New path inputs, checked; raises ValueError if they do not fit the model or come with a mask."""
    if value is None:
        raise BayesattnError(
            f"{name or 'new_path_inputs'} must be path inputs, got None, as those of a model without a test part are"
        )
    if mask is not None:
        raise BayesattnError("mask must be None for path inputs, which already include its effect, got one")
    return np.asarray(
        checked_path_inputs(name or "new_path_inputs", value, model.architecture, features=model.features)
    )


@singledispatch
def conditional_of(model: Posterior) -> Conditional:
    """Conditional distribution of outputs and labels of a model given one draw."""
    raise TypeError(f"no conditional is registered for a {type(model).__name__}")


def given_numbers(model: NetworkPosterior) -> "GivenNumbers":
    """Conditional distribution if numbers have priors."""
    variance = jnp.asarray(model.reference.architecture.variances[0])
    return GivenNumbers(conditional_of(model.reference), model.hyperpriors.variables, variance)


@conditional_of.register(Model)
def conditional_of_network(model: Model) -> "GivenOrderParameter | GivenReadout | GivenNumbers":
    """Conditional distribution for fixed attention."""
    if model.has_priors:
        return given_numbers(model)
    process, likelihood = model.gaussian_process, arrays_of(model.likelihood)
    if not model.likelihood.conjugate:
        labels, path_inputs = jnp.asarray(model.labels), jnp.asarray(model.path_inputs)
        return GivenReadout(process, likelihood, path_inputs, labels)
    variance, columns = jnp.asarray(model.architecture.input_variance), model.architecture.factor_columns
    return GivenOrderParameter(process, likelihood, variance, has_two_classes(model.labels), columns)


def has_two_classes(labels: np.ndarray) -> bool:
    """Whether all labels are +1 or -1."""
    return labels.ndim == 1 and np.array_equal(np.abs(labels), np.ones_like(labels))


class GivenOrderParameter(Conditional):
    """Outputs and labels given U, for the Gaussian likelihood.

    Args:
        kernels: kernels K(U) with the training data.
        likelihood: likelihood of the labels given the outputs.
        input_variance: s_0^2.
        classes: whether all labels are +1 or -1, so that f above 0 is a class.
        columns: largest rank of U; the moments are computed from a factor of U with as many columns.
    """

    kernels: GaussianProcess
    likelihood: Likelihood
    input_variance: Float[Array, ""]
    classes: bool = eqx.field(static=True)
    columns: int = eqx.field(static=True)

    @property
    def variables(self) -> tuple[str, ...]:
        """Variables of a draw that are used."""
        return ("order_parameter",)

    def at_values(self, values: Values) -> "GivenOrderParameter":
        """Same conditional at the temperature among the values, if there is one."""
        kernels = self.kernels.at(values["temperature"]) if "temperature" in values else self.kernels
        return replace(self, kernels=kernels, likelihood=replace(self.likelihood, **fields_of(values)))

    def outputs(
        self, draw: Draw, inputs: PathInputs, key: Key[Array, ""] | None
    ) -> tuple[Outputs, Outputs, Outputs | None]:
        """Mean and variance of f at path inputs, and a draw of f if there is a key."""
        features = scaled_features(inputs, self.input_variance)
        factor = self._factor(draw)
        moments = moments_at_factor(self.kernels, factor, features)
        if key is None:
            return moments.mean, moments.variance, None
        return moments.mean, moments.variance, self._sampled(features, factor, key)

    def _factor(self, draw: Draw) -> Factor:
        """F with U = F F^T from the largest eigenvalues of U, also for a singular U."""
        values, vectors = jnp.linalg.eigh(draw["order_parameter"])
        return (vectors * jnp.sqrt(jnp.maximum(values, 0)))[:, -self.columns :]

    def _sampled(self, features: Features, factor: Factor, key: Key[Array, ""]) -> Outputs:
        """Draw of f at scaled path inputs, given U and the labels."""
        prior = self.kernels.sample_prior_projection(jax.random.split(key)[0], jnp.zeros((1, len(factor))))
        projection = self.kernels.sample_projection(key, factor, prior[-self.columns :])
        return self.kernels.by_example(outputs_of(features, factor @ projection, self.kernels.outputs))

    def entries(self, inputs: PathInputs) -> int:
        """Number of entries that each input adds: its path inputs, or its kernels with the labels."""
        return max(self.kernels.labels.size, inputs.size // len(inputs))

    def log_likelihood(self, draw: Draw) -> Float[Array, ""]:
        """Log likelihood log p(Y | U)."""
        return self.kernels.log_density(self._factor(draw))

    def own_outputs(self, draw: Draw) -> None:
        """None: outputs are integrated out."""

    def leave_one_out(self, draw: Draw, others: Outputs | None = None) -> Float[Array, " example"]:
        """Log density log p(Y_i | Y of all other examples, U) of each example."""
        return kernels.leave_one_out(self.kernels, self._factor(draw))

    def explained(self, draw: Draw, inputs: PathInputs, examples: Examples | None) -> Explained:
        """Log likelihoods of some examples, by default those of training, and f at path inputs."""
        if examples is not None:
            labels = examples[1].reshape(len(examples[1]), -1)
            examples = scaled_features(examples[0], self.input_variance), labels
        features = scaled_features(inputs, self.input_variance)
        found = output_covariances(self.kernels, self._factor(draw), features, examples)
        return Explained(found.log_likelihoods, self.kernels.by_example(found.mean), found)

    def log_prob(self, draw: Draw, outputs: Outputs, labels: Labels) -> Float[Array, " example"]:
        """Log density of each label given the outputs."""
        return self.likelihood.log_prob(outputs, labels)

    def replicate(self, draw: Draw, key: Key[Array, ""]) -> Labels:
        """New draw of the labels on the training inputs, given U and the labels."""
        projection_key, noise_key = jax.random.split(key)
        outputs = self._sampled(self.kernels.features, self._factor(draw), projection_key)
        return self.likelihood.sample(noise_key, outputs)

    def compressed(self, arch: Architecture) -> "GivenOrderParameter":
        """Same conditional from fewer examples with the same likelihood, if there are many."""
        return replace(self, kernels=kernels.compressed(self.kernels, arch))

    def probabilities(self, mean: np.ndarray, variance: np.ndarray, numbers: Draw) -> np.ndarray | None:
        """Probability that f > 0, averaged over draws, if labels are +1 or -1; 0, 1/2 or 1 for f without variance."""
        if not self.classes:
            return None
        certain = variance <= 0
        spread = np.sqrt(np.where(certain, 1, variance))
        return np.where(certain, (np.sign(mean) + 1) / 2, stats.norm.cdf(mean / spread)).mean((0, 1))

    def with_labels(self, labels: Labels) -> "GivenOrderParameter":
        """Same conditional with other labels."""
        return replace(self, kernels=self.kernels.with_labels(labels))


class GivenReadout(GivenFunction):
    """Outputs and labels given a readout of path inputs, for any likelihood.

    Args:
        kernels: kernels K(U), for leave-one-out.
        likelihood: likelihood of the labels given the outputs.
        inputs: xi of the training examples.
        labels: Y.
    """

    kernels: GaussianProcess
    likelihood: Likelihood
    inputs: PathInputs
    labels: Labels

    @property
    def variables(self) -> tuple[str, ...]:
        """Variables of a draw that are used."""
        return ("order_parameter", "readout")

    def at_values(self, values: Values) -> "GivenReadout":
        """Same conditional at the values of numbers of the likelihood."""
        return replace(self, likelihood=replace(self.likelihood, **fields_of(values)))

    @property
    def training(self) -> tuple[PathInputs, Labels, Likelihood]:
        """Path inputs, labels and likelihood."""
        return self.inputs, self.labels, self.likelihood

    def function(self, draw: Draw, inputs: PathInputs) -> Outputs:
        """Outputs f at path inputs."""
        outputs = outputs_of(jnp.swapaxes(inputs, 1, 2), draw["readout"], self.kernels.outputs)
        return self.kernels.by_example(outputs)

    def entries(self, inputs: PathInputs) -> int:
        """Number of entries that each input adds: its path inputs."""
        return inputs.size // len(inputs)

    def leave_one_out(self, draw: Draw, others: Outputs | None = None) -> Float[Array, " example"]:
        """Log density log p(Y_i | f of all other examples, U) of each example, NaN where it cannot be integrated."""
        outputs = self.own_outputs(draw)
        others = outputs[None] if others is None else others
        return leave_one_out(self.kernels, self.likelihood, draw["order_parameter"], outputs, self.labels, others)

    def with_labels(self, labels: Labels) -> "GivenReadout":
        """Same conditional with other labels."""
        return replace(self, labels=labels)
