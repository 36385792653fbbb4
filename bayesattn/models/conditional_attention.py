"""Outputs and labels given one draw of a posterior whose queries and keys are sampled too."""

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bayesattn import attention
from bayesattn._util.checks import Checked
from bayesattn.architecture import Architecture
from bayesattn.attention_model import AttentionModel
from bayesattn.likelihoods import Labels, Outputs
from bayesattn.models.conditional import (
    Draw,
    GivenOrderParameter,
    GivenReadout,
    conditional_of,
    has_two_classes,
    new_inputs,
)
from bayesattn.models.parameterisation import arrays_of
from bayesattn.models.queries_keys import Sequences, heads_of
from bayesattn.models.sampled_attention import CollapsedAttention


@new_inputs.register(AttentionModel)
def new_sequences(model: AttentionModel, value: Checked, mask: Checked) -> Sequences:
    """New token sequences, checked, with the model's readout and causal mask."""
    inputs, mask = attention.paths.checked_tokens("new sequences", value, mask, ("examples", "tokens", model.features))
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

    def log_likelihood(self, draw: Draw) -> Float[Array, ""]:
        """Log density of all labels together."""
        return self._at(draw).log_likelihood(draw)

    def leave_one_out(self, draw: Draw) -> Float[Array, " example"]:
        """Log density of each label given the other labels."""
        return self._at(draw).leave_one_out(draw)

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


@conditional_of.register(AttentionModel)
def conditional_of_attention(model: AttentionModel) -> GivenAttention:
    """Conditional distribution of outputs and labels given one draw; raises ValueError without path inputs."""
    model.require_linear("what is computed from draws of U (for predictions, sample with the sequences as test_inputs)")
    posterior = CollapsedAttention.of(model)
    kernels, likelihood = posterior.given_uniform.kernels, arrays_of(model.likelihood)
    if not model.likelihood.conjugate:
        zeros = jnp.swapaxes(kernels.features, 1, 2)
        return GivenAttention(posterior, GivenReadout(kernels, likelihood, zeros, jnp.asarray(model.labels)))
    variance = jnp.asarray(model.architecture.input_variance)
    return GivenAttention(posterior, GivenOrderParameter(kernels, likelihood, variance, has_two_classes(model.labels)))
