"""Outputs and labels given one draw of a posterior whose queries and keys are sampled too.

If attention reads hidden states or values are nonlinear, U does not determine the law of the outputs; all weights do.
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bayesattn import fixed_attention
from bayesattn._util.checks import Checked
from bayesattn._util.random import first_key
from bayesattn.architecture import Architecture
from bayesattn.likelihoods import Labels, Likelihood, Outputs
from bayesattn.models.attention_model import AttentionModel
from bayesattn.models.blocks import Blocks
from bayesattn.models.conditional import (
    Conditional,
    Draw,
    GivenOrderParameter,
    GivenReadout,
    class_probabilities,
    conditional_of,
    has_two_classes,
    new_inputs,
)
from bayesattn.models.parameterisation import arrays_of
from bayesattn.models.queries_keys import Sequences, heads_of, others
from bayesattn.models.sampled_attention import CollapsedAttention


@new_inputs.register(AttentionModel)
def new_sequences(model: AttentionModel, value: Checked, mask: Checked) -> Sequences:
    """New token sequences, checked, with the model's readout and causal mask."""
    inputs, mask = fixed_attention.checked_tokens("new sequences", value, mask, ("examples", "tokens", model.features))
    return Sequences.of(inputs, model.readout, model.causal, mask)


class GivenAttention(eqx.Module):
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

    def _at(self, draw: Draw) -> GivenOrderParameter | GivenReadout:
        """Conditional given U or the readout, for the path inputs of a draw."""
        collapsed = self.posterior.given_heads(heads_of(draw))
        if isinstance(self.given, GivenOrderParameter):
            return replace(self.given, kernels=collapsed.kernels)
        path_inputs = self.posterior.sequences.path_inputs(heads_of(draw), self.posterior.skips)
        return replace(self.given, kernels=collapsed.kernels, path_inputs=path_inputs)

    def outputs(
        self, draw: Draw, sequences: Sequences, key: Key[Array, ""] | None
    ) -> tuple[Outputs, Outputs, Outputs | None]:
        """Mean and variance of f at sequences, and a draw of f if there is a key."""
        return self._at(draw).outputs(draw, sequences.path_inputs(heads_of(draw), self.posterior.skips), key)

    def entries(self, sequences: Sequences) -> int:
        """Number of entries that each sequence adds: attention, path inputs, or its kernels with the labels."""
        _, features, paths = self.posterior.given_uniform.kernels.features.shape
        tokens, heads = sequences.inputs.shape[1], max(shape[0] for shape in self.posterior.prior.shapes)
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

    def replicate(self, draw: Draw, key: Key[Array, ""]) -> Labels:
        """New draw of the labels on the training inputs."""
        return self._at(draw).replicate(draw, key)

    def probabilities(self, mean: np.ndarray, variance: np.ndarray) -> np.ndarray | None:
        """Class probabilities from moments of f of all draws; None without classes."""
        return self.given.probabilities(mean, variance)

    def with_labels(self, labels: Labels) -> "GivenAttention":
        """Same conditional with other labels."""
        return GivenAttention(self.posterior.with_labels(labels), self.given.with_labels(labels))

    def compressed(self, arch: Architecture) -> "GivenAttention":
        """The conditional itself: path inputs differ from draw to draw."""
        return self


class GivenWeights(eqx.Module):
    """Outputs and labels given all weights, for networks whose outputs U does not determine.

    Args:
        posterior: posterior of the weights.
        variables: names of the weights, queries and keys, the variables of a draw that are used.
        classes: whether all labels are +1 or -1, so that f above 0 is a class, with the Gaussian likelihood.
    """

    posterior: Blocks
    variables: tuple[str, ...] = eqx.field(static=True)
    classes: bool = eqx.field(static=True)

    @property
    def _likelihood(self) -> Likelihood:
        return self.posterior.given_uniform.likelihood

    def _function(self, draw: Draw, sequences: Sequences) -> Outputs:
        return self.posterior.given_heads(heads_of(draw)).network(others(dict(draw)), sequences)[0]

    def outputs(
        self, draw: Draw, sequences: Sequences, key: Key[Array, ""] | None
    ) -> tuple[Outputs, Outputs, Outputs | None]:
        """Outputs f at sequences as mean, zero variance, and f again if there is a key."""
        outputs = self._function(draw, sequences)
        return outputs, jnp.zeros_like(outputs), None if key is None else outputs

    def entries(self, sequences: Sequences) -> int:
        """Number of entries that each sequence adds: attention and values of the heads of a layer."""
        given, tokens = self.posterior.given_uniform, sequences.inputs.shape[1]
        return max(given.heads) * tokens * max(tokens, *given.widths)

    def own_outputs(self, draw: Draw) -> Outputs:
        """Outputs f on the training examples."""
        return self._function(draw, self.posterior.sequences)

    def leave_one_out(self, draw: Draw, others: Outputs | None = None) -> Float[Array, " example"]:
        """Log density of each label, which given the weights does not depend on the other labels."""
        return self._likelihood.log_prob(self.own_outputs(draw), self.posterior.labels)

    def log_likelihood(self, draw: Draw) -> Float[Array, ""]:
        """Log density of all labels together."""
        return self.leave_one_out(draw).sum()

    def replicate(self, draw: Draw, key: Key[Array, ""]) -> Labels:
        """New draw of the labels on the training inputs."""
        return self._likelihood.sample(key, self._function(draw, self.posterior.sequences))

    def probabilities(self, mean: np.ndarray, variance: np.ndarray) -> np.ndarray | None:
        """Class probabilities averaged over draws; None without classes."""
        if self.classes:
            return ((np.sign(mean) + 1) / 2).mean((0, 1))
        return class_probabilities(self._likelihood, mean)

    def with_labels(self, labels: Labels) -> "GivenWeights":
        """Same conditional with other labels."""
        return replace(self, posterior=self.posterior.with_labels(labels))

    def compressed(self, arch: Architecture) -> "GivenWeights":
        """The conditional itself: nothing of it grows with the square of the number of examples."""
        return self


@conditional_of.register(AttentionModel)
def conditional_of_attention(model: AttentionModel) -> Conditional:
    """Conditional distribution of outputs and labels given one draw."""
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
