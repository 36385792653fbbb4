"""Outputs and labels given one draw of a posterior whose queries and keys are sampled too.

If attention reads hidden states or values are nonlinear, U does not determine the law of the outputs; all weights do.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bayesattn import fixed_attention
from bayesattn._util.checks import Checked
from bayesattn._util.random import first_key
from bayesattn.errors import BayesattnError
from bayesattn.likelihoods import Labels, Likelihood, Outputs
from bayesattn.models.attention_blocks import Blocks
from bayesattn.models.attention_model import AttentionModel
from bayesattn.models.conditional import (
    GivenOrderParameter,
    GivenReadout,
    conditional_of,
    given_numbers,
    has_two_classes,
    new_inputs,
)
from bayesattn.models.given_draw import Conditional, Draw, Examples, Explained, GivenFunction
from bayesattn.models.hyperpriors import Values
from bayesattn.models.parameterisation import arrays_of
from bayesattn.models.queries_keys import Sequences, heads_of, others
from bayesattn.models.sampled_attention import CollapsedAttention


@new_inputs.register(AttentionModel)
def new_sequences(model: AttentionModel, value: Checked, mask: Checked, name: str | None = None) -> Sequences:
    """New token sequences, checked, with the model's readout and causal mask."""
    if mask is None and model.mask is not None and not np.all(model.mask):
        raise BayesattnError(
            f"mask of {name or 'new sequences'} must be given, since those of training are padded, got None: True at tokens"
        )
    inputs, mask = fixed_attention.checked_tokens(
        name or "new sequences", value, mask, ("examples", "tokens", model.features)
    )
    return Sequences.of(inputs, model.readout, model.causal, mask)


class GivenAttention(Conditional):
    """Outputs and labels given queries, keys and U, or the readout instead of U if the likelihood is not Gaussian.

    Args:
        posterior: collapsed posterior, whose kernels are a function of queries and keys.
        given: conditional for uniform attention; only its path inputs are replaced.
    """

    posterior: CollapsedAttention
    given: GivenOrderParameter | GivenReadout

    @property
    def variables(self) -> tuple[str, ...]:
        """Variables of a draw that are used."""
        layers = range(1, len(self.posterior.skips) + 1)
        return (*self.given.variables, *(f"{kind}_{layer}" for layer in layers for kind in ("queries", "keys")))

    def at_values(self, values: Values) -> "GivenAttention":
        """Same conditional at the values of numbers of the likelihood."""
        posterior: Any = self.posterior.at_values(values)
        return GivenAttention(posterior, self.given.at_values(values))

    def _at(self, draw: Draw) -> GivenOrderParameter | GivenReadout:
        """Conditional given U or the readout, for the path inputs of a draw."""
        collapsed = self.posterior.given_heads(heads_of(draw))
        if isinstance(self.given, GivenOrderParameter):
            return replace(self.given, kernels=collapsed.kernels)
        path_inputs = self.posterior.sequences.path_inputs(heads_of(draw), self.posterior.skips)
        return replace(self.given, kernels=collapsed.kernels, inputs=path_inputs)

    def outputs(
        self, draw: Draw, inputs: Sequences, key: Key[Array, ""] | None
    ) -> tuple[Outputs, Outputs, Outputs | None]:
        """Mean and variance of f at sequences, and a draw of f if there is a key."""
        return self._at(draw).outputs(draw, inputs.path_inputs(heads_of(draw), self.posterior.skips), key)

    def entries(self, inputs: Sequences) -> int:
        """Number of entries that each sequence adds: attention, path inputs, or its kernels with the labels."""
        _, features, paths = self.posterior.given_uniform.kernels.features.shape
        tokens, heads = inputs.inputs.shape[1], max(shape[0] for shape in self.posterior.prior.shapes)
        return max(heads * tokens**2, paths * features, self.posterior.given_uniform.kernels.labels.size)

    def log_likelihood(self, draw: Draw) -> Float[Array, ""]:
        """Log density of all labels together."""
        return self._at(draw).log_likelihood(draw)

    def own_outputs(self, draw: Draw) -> Outputs | None:
        """Outputs f on the training examples, None if they are integrated out."""
        return self._at(draw).own_outputs(draw)

    def leave_one_out(self, draw: Draw, others: Outputs | None = None) -> Float[Array, " example"]:
        """Log density of each label given the other labels."""
        return self._at(draw).leave_one_out(draw, others)

    def explained(self, draw: Draw, inputs: Sequences, examples: Examples | None) -> Explained:
        """Log likelihoods of some examples, by default those of training, and f at sequences."""
        heads, skips = heads_of(draw), self.posterior.skips
        if examples is not None:
            examples = examples[0].path_inputs(heads, skips), examples[1]
        return self._at(draw).explained(draw, inputs.path_inputs(heads, skips), examples)

    def log_prob(self, draw: Draw, outputs: Outputs, labels: Labels) -> Float[Array, " example"]:
        """Log density of each label given the outputs."""
        return self.given.log_prob(draw, outputs, labels)

    def replicate(self, draw: Draw, key: Key[Array, ""]) -> Labels:
        """New draw of the labels on the training inputs."""
        return self._at(draw).replicate(draw, key)

    def probabilities(self, mean: np.ndarray, variance: np.ndarray, numbers: Draw) -> np.ndarray | None:
        """Class probabilities from moments of f of all draws; None without classes."""
        return self.given.probabilities(mean, variance, numbers)

    def with_labels(self, labels: Labels) -> "GivenAttention":
        """Same conditional with other labels."""
        return GivenAttention(self.posterior.with_labels(labels), self.given.with_labels(labels))


class GivenWeights(GivenFunction):
    """Outputs and labels given all weights, for networks whose outputs U does not determine.

    Args:
        posterior: posterior of the weights.
        names: names of the weights, queries and keys.
        classes: whether all labels are +1 or -1, so that f above 0 is a class, with the Gaussian likelihood.
    """

    posterior: Blocks
    names: tuple[str, ...] = eqx.field(static=True)
    classes: bool = eqx.field(static=True)

    @property
    def variables(self) -> tuple[str, ...]:
        """Variables of a draw that are used."""
        return self.names

    @property
    def training(self) -> tuple[Sequences, Labels, Likelihood]:
        """Sequences, labels and likelihood."""
        return self.posterior.sequences, self.posterior.labels, self.posterior.given_uniform.likelihood

    def at_values(self, values: Values) -> "GivenWeights":
        """Same conditional at the values of numbers of the likelihood."""
        return replace(self, posterior=self.posterior.at_values(values))

    def function(self, draw: Draw, inputs: Sequences) -> Outputs:
        """Outputs f at sequences."""
        return self.posterior.given_heads(heads_of(draw)).network(others(dict(draw)), inputs)[0]

    def entries(self, inputs: Sequences) -> int:
        """Number of entries that each sequence adds: attention and values of the heads of a layer."""
        given, tokens = self.posterior.given_uniform, inputs.inputs.shape[1]
        return max(given.heads) * tokens * max(tokens, *given.widths)

    def leave_one_out(self, draw: Draw, others: Outputs | None = None) -> Float[Array, " example"]:
        """Log density of each label, which given the weights does not depend on the other labels."""
        _, labels, likelihood = self.training
        return likelihood.log_prob(self.own_outputs(draw), labels)

    def probabilities(self, mean: np.ndarray, variance: np.ndarray, numbers: Draw) -> np.ndarray | None:
        """Class probabilities averaged over draws; None without classes."""
        return (
            ((np.sign(mean) + 1) / 2).mean((0, 1)) if self.classes else super().probabilities(mean, variance, numbers)
        )

    def with_labels(self, labels: Labels) -> "GivenWeights":
        """Same conditional with other labels."""
        return replace(self, posterior=self.posterior.with_labels(labels))


@conditional_of.register(AttentionModel)
def conditional_of_attention(model: AttentionModel) -> Conditional:
    """Conditional distribution of outputs and labels given one draw."""
    if model.has_priors:
        return given_numbers(model)
    if not model.is_linear:
        return conditional_of_blocks(model)
    posterior = CollapsedAttention.of(model)
    kernels, likelihood = posterior.given_uniform.kernels, arrays_of(model.likelihood)
    if not model.likelihood.conjugate:
        zeros = jnp.swapaxes(kernels.features, 1, 2)
        return GivenAttention(posterior, GivenReadout(kernels, likelihood, zeros, jnp.asarray(model.labels)))
    variance, columns = jnp.asarray(model.architecture.input_variance), model.architecture.factor_columns
    classes = has_two_classes(model.labels)
    return GivenAttention(posterior, GivenOrderParameter(kernels, likelihood, variance, classes, columns))


def conditional_of_blocks(model: AttentionModel) -> GivenWeights:
    """Conditional distribution given all weights, for hidden attention or nonlinear values."""
    posterior = Blocks.of(model)
    assert isinstance(posterior, Blocks)
    shapes = jax.eval_shape(lambda: posterior.weights_of(posterior.initial(first_key(0)), first_key(0)))
    classes = model.likelihood.conjugate and has_two_classes(model.labels)
    return GivenWeights(posterior, tuple(sorted(shapes)), classes)
