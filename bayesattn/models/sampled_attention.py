"""Parameterisations that also sample queries and keys; given these, they are the collapsed or token parameterisation.

A posterior with sampled attention is one with fixed attention whose path inputs are a function of the sites.
"""

import abc
import math
from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from bayesattn.kernels.feature_space import InFeatureSpace
from bayesattn.kernels.path_inputs import scaled_features
from bayesattn.likelihoods import Outputs
from bayesattn.models import latent_outputs
from bayesattn.models.attention_model import AttentionModel
from bayesattn.models.collapsed import Collapsed, WithOutputs
from bayesattn.models.hyperpriors import Values
from bayesattn.models.parameterisation import VECTORS_PER_CHAIN, Parameterisation, Sites, arrays_of
from bayesattn.models.queries_keys import Heads, QueriesAndKeys, Sequences, heads_of, others
from bayesattn.models.token import Token
from bayesattn.theory import bartlett
from bayesattn.theory.potential import Problem, Whitening


class SampledAttention(Parameterisation):
    """Queries and keys under their prior, and a posterior given them.

    Args:
        prior: prior of queries and keys.
        sequences: training sequences.
        test: test sequences, or None.
        watched: indices of the test sequences whose attention draws keep.
        skips: whether each layer has a skip connection.
    """

    given_uniform: eqx.AbstractVar[Collapsed | Token]
    prior: QueriesAndKeys
    sequences: Sequences
    test: Sequences | None
    watched: Int[Array, " sequence"]
    skips: tuple[bool, ...] = eqx.field(static=True)

    @staticmethod
    def _fields(model: AttentionModel) -> dict:
        test = None
        if model.test_inputs is not None:
            test = Sequences.of(model.test_inputs, model.readout, model.causal, model.test_mask)
        return {
            "prior": QueriesAndKeys.of(model),
            "sequences": Sequences.of(model.inputs, model.readout, model.causal, model.mask),
            "test": test,
            "watched": jnp.zeros(0, int) if model.watched is None else jnp.asarray(model.watched),
            "skips": tuple(skip > 0 for skip in model.architecture.skips),
        }

    @abc.abstractmethod
    def given_heads(self, heads: Heads) -> Parameterisation:
        """Posterior of the other weights, given queries and keys."""

    def given(self, sites: Sites) -> Parameterisation:
        """Posterior of the other weights, given the sites of queries and keys."""
        return self.given_heads(heads_of(self.prior.named(sites)))

    def at_values(self, values: Values) -> "SampledAttention":
        """Same posterior at values of the numbers that have priors."""
        given = self.given_uniform.at_values(values)
        return replace(self, prior=self.prior.at_values(values), given_uniform=given)

    def _test_path_inputs(self, heads: Heads) -> Float[Array, "test_example path feature"] | None:
        return None if self.test is None else self.test.path_inputs(heads, self.skips)

    def program(self) -> None:
        """NumPyro program: queries and keys, and the program given them."""
        self.given(self.prior.sample()).program()

    def initial(self, key: Key[Array, ""]) -> Sites:
        """Queries and keys drawn from their prior, and a start given them."""
        own, other = jax.random.split(key)
        sites = self.prior.draw(own)
        return sites | self.given(sites).initial(other)

    def quantities(self, sites: Sites, key: Key[Array, ""]) -> Sites:
        """Quantities given queries and keys, the queries and keys themselves, and attention on the watched sequences."""
        named = self.prior.named(sites)
        heads = heads_of(named)
        return self.given_heads(heads).quantities(others(sites), key) | named | self._watched_attention(sites)

    def _watched_attention(self, sites: Sites) -> Sites:
        """Attention matrices of each layer on the watched test sequences."""
        if self.test is None or not len(self.watched):
            return {}
        matrices = self.attention_of(sites, self.test[self.watched])
        return {f"attention_{layer + 1}": matrix for layer, matrix in enumerate(matrices)}

    def attention_of(self, sites: Sites, sequences: Sequences) -> list[Float[Array, "example head query key"]]:
        """Attention matrices of each layer on any sequences."""
        return [sequences.matrices(layer) for layer in heads_of(self.prior.named(sites))]

    def central(self, sites: Sites) -> Sites:
        """Order parameter U."""
        return self.given(sites).central(others(sites))

    def weights_of(self, sites: Sites, key: Key[Array, ""]) -> Sites:
        """All weights: queries and keys, and the other weights drawn given these."""
        return self.given(sites).weights_of(others(sites), key) | self.prior.named(sites)

    def predictions_of(self, weights: Sites) -> Sites:
        """Quantities determined by the weights."""
        return self.given_heads(heads_of(weights)).predictions_of(others(weights))

    @jax.jit
    def draw_prior(self, key: Key[Array, ""]) -> Sites:
        """Sites drawn from the prior."""
        own, other = jax.random.split(key)
        sites = self.prior.draw(own)
        return sites | self.given(sites).draw_prior(other)

    def draw_labels(self, key: Key[Array, ""], sites: Sites) -> Array:
        """Labels drawn given the sites."""
        return self.given(sites).draw_labels(key, others(sites))


class CollapsedAttention(SampledAttention):
    """Queries, keys and Bartlett coordinates; all other weights are integrated out.

    Neither the number of coordinates nor the cost depends on the widths, unless a layer is narrow.

    Args:
        given_uniform: posterior given uniform attention; only its path inputs are replaced.
    """

    given_uniform: Collapsed
    memory_advice: ClassVar[str] = "use fewer examples, tokens or heads"

    @classmethod
    def of(
        cls, model: AttentionModel, *, weights: bool = False, all_examples: bool = False, **prepared: Array | np.ndarray
    ) -> "CollapsedAttention":
        """Posterior of a model; raises ValueError if its values are not linear or its attention reads hidden states."""
        model.require_linear("parameterisation 'collapsed'")
        fields, arch = cls._fields(model), model.architecture
        shapes, widths = bartlett.layer_shapes(arch), jnp.asarray(np.array(arch.widths, float))
        labels, features = jnp.asarray(model.labels), model.features
        zeros = jnp.asarray(np.zeros((model.examples, features, arch.paths)))
        temperature = jnp.asarray(1.0 if model.temperature is None else model.temperature, float)
        kernels = InFeatureSpace(zeros, labels.reshape(model.examples, -1), temperature)
        problem = Problem(kernels, widths, jnp.asarray(np.array(arch.known_variances)), skips=arch.optional_skips)
        inner = {
            "problem": problem,
            "whitening": Whitening(*bartlett.affine_from_whitened(shapes, widths)),
            "input_variance": jnp.asarray(arch.input_variance),
            "test_path_inputs": None,
            "shapes": shapes,
            "widths": arch.widths if weights else None,
        }
        if model.likelihood.conjugate:
            return cls(**fields, given_uniform=Collapsed(**inner))
        size = latent_outputs.number_of_latents(arch.factor_columns * features, model.labels.size, arch.outputs)
        latents = Whitening(jnp.zeros(size), jnp.ones(size))
        with_outputs = WithOutputs(**inner, likelihood=arrays_of(model.likelihood), latents=latents)
        return cls(**fields, given_uniform=with_outputs)

    @classmethod
    def bytes_needed(cls, model: AttentionModel, chains: int) -> int:
        """Lower bound on the memory in bytes: attention, path inputs and the kernel of each chain, with their gradients."""
        return 8 * chains * (_attention_entries(model) + 2 * model.labels.size**2)

    @property
    def options(self) -> dict:
        """Defaults of sampler options: a metric is adapted, because queries and keys have no natural scale."""
        return {"adapt_mass_matrix": True}

    def given_heads(self, heads: Heads) -> Collapsed:
        """Collapsed posterior for the path inputs of these queries and keys."""
        given = self.given_uniform
        xi = self.sequences.path_inputs(heads, self.skips)
        kernels = replace(given.kernels, features=scaled_features(xi, given.input_variance))
        return replace(
            given, problem=given.problem._replace(process=kernels), test_path_inputs=self._test_path_inputs(heads)
        )

    def with_labels(self, labels: Array) -> "CollapsedAttention":
        """Same posterior with other labels."""
        return replace(self, given_uniform=self.given_uniform.with_labels(labels))


class TokenAttention(SampledAttention):
    """All weights, queries and keys among them; outputs are computed token by token.

    Args:
        given_uniform: posterior given uniform attention; only its attention matrices are replaced.
    """

    given_uniform: Token
    minibatches: ClassVar[bool] = True
    memory_advice: ClassVar[str] = "use parameterisation 'collapsed', whose size does not grow with the width"

    @classmethod
    def of(
        cls, model: AttentionModel, *, weights: bool = False, all_examples: bool = False, **prepared: Array | np.ndarray
    ) -> "TokenAttention":
        """Posterior of a model, whose sites are the weights; raises ValueError if the model is not linear."""
        model.require_linear("TokenAttention")
        given = Token(**cls._fields_given_heads(model, model.architecture.paths))
        return cls(**cls._fields(model), given_uniform=given)

    @staticmethod
    def _fields_given_heads(model: AttentionModel, paths: int) -> dict:
        """Fields of the posterior of the other weights, with path inputs of zero, which it does not use."""
        sequences = Sequences.of(model.inputs, model.readout, model.causal, model.mask)
        zeros = np.zeros((model.examples, paths, model.features))
        given = {"inputs": sequences.inputs, "matrices": [], "read": sequences.read[:, None]}
        return Token._fields(model, zeros, None) | given

    @classmethod
    def bytes_needed(cls, model: AttentionModel, chains: int) -> int:
        """Lower bound on the memory in bytes: attention, and the vectors of each chain, as long as the number of weights."""
        return 8 * chains * (_attention_entries(model) + VECTORS_PER_CHAIN * number_of_weights(model))

    def given_heads(self, heads: Heads) -> Token:
        """Token posterior for the attention of these queries and keys."""
        matrices = [self.sequences.matrices(layer) for layer in heads]
        return replace(self.given_uniform, matrices=matrices, test_path_inputs=self._test_path_inputs(heads))

    @property
    def labels(self) -> Float[Array, "*labels"]:
        """Y."""
        return self.given_uniform.labels

    def function(self, sites: Sites) -> Outputs:
        """Outputs f on the training examples."""
        return self.given_heads(heads_of(self.prior.named(sites))).function(others(sites))

    def with_labels(self, labels: Array) -> "TokenAttention":
        """Same posterior with other labels."""
        return replace(self, given_uniform=self.given_uniform.with_labels(labels))

    def minibatch(self, chosen: Int[Array, " chosen"]) -> "TokenAttention":
        """Posterior of a minibatch of examples, with the log likelihood scaled to all examples."""
        given, sequences = self.given_uniform, self.sequences[chosen]
        smaller = replace(
            given,
            path_inputs=given.path_inputs[chosen],
            inputs=sequences.inputs,
            read=sequences.read[:, None],
            labels=given.labels[chosen],
            likelihood_scale=len(given.labels) / len(chosen),
        )
        return replace(self, sequences=sequences, given_uniform=smaller)


def number_of_weights(model: AttentionModel) -> int:
    """Number of all weights, queries and keys among them."""
    queries = sum(map(math.prod, QueriesAndKeys.of(model).shapes))
    return model.architecture.number_of_weights(model.features) + 2 * queries


def _attention_entries(model: AttentionModel) -> int:
    """Number of entries of attention matrices and path inputs of all training examples, with their gradients."""
    examples, tokens, features = model.inputs.shape
    arch = model.architecture
    return 2 * examples * (sum(arch.heads[:-1]) * tokens**2 + arch.heads[-1] * tokens + arch.paths * features)
