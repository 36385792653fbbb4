"""Queries and keys under Gaussian priors, and path inputs, attention matrices and attention maps computed from them."""

from collections.abc import Mapping
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float, Int, Key

from bayesattn import fixed_attention
from bayesattn.architecture import Architecture
from bayesattn.models.attention_model import AttentionModel
from bayesattn.models.hyperpriors import QUERIES_AND_KEYS, Values
from bayesattn.models.parameterisation import Sites

Heads = list[tuple[Float[Array, "_ key_feature _"], Float[Array, "_ key_feature _"]]]
"""Queries and keys of each layer, shape (H_l, G, N_0), or (H_l, G, N_l) with attention on the hidden tokens."""
WHITENED = "whitened_"
"""Beginning of the names of the sites: queries and keys divided by their prior deviations."""


class Sequences(eqx.Module):
    """Token sequences of equal length, with their padding and the share of each token in the readout.

    Args:
        inputs: shape (P, T, N_0).
        allowed: whether each query may attend to each key, shape (P or 1, T, T); None if all may.
        read: share of each token in the readout, shape (P or 1, T).
        place: the token that is read out, shape (P,); None if several are.
    """

    inputs: Float[Array, "example token feature"]
    allowed: Bool[Array, "example_or_one query key"] | None
    read: Float[Array, "example_or_one token"]
    place: Int[Array, " example"] | None

    @classmethod
    def of(cls, inputs, readout: str, causal: bool, mask) -> "Sequences":
        """Sequences with these settings of `bayesattn.AttentionModel`."""
        return cls(jnp.asarray(inputs), *_reading(*inputs.shape[:2], readout, causal, mask))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, examples: Int[Array | np.ndarray, " chosen"]) -> "Sequences":
        """Some of the sequences."""

        def of_each(array: Array) -> Array:
            return array if len(array) == 1 else array[examples]

        allowed = None if self.allowed is None else of_each(self.allowed)
        place = None if self.place is None else self.place[examples]
        return Sequences(self.inputs[examples], allowed, of_each(self.read), place)

    def path_inputs(self, heads: Heads, skips: tuple[bool, ...]) -> Float[Array, "example path feature"]:
        """Path inputs xi, in few operations: the last layer computes attention only for the token that is read out.

        The result equals that of `bayesattn.attention.path_inputs`, which computes all attention matrices.
        """
        examples, tokens = self.inputs.shape[:2]
        readout = jnp.broadcast_to(self.read[:, None], (examples, 1, tokens))
        if self.place is None:
            paths = fixed_attention.one_layer_back(readout, self.matrices(heads[-1]), skips[-1])
        else:
            rows = self._rows_at(self.place, heads[-1])
            paths = jnp.concatenate([readout, rows], axis=1) if skips[-1] else rows
        for layer, skip in zip(reversed(heads[:-1]), reversed(skips[:-1]), strict=True):
            paths = fixed_attention.one_layer_back(paths, self.matrices(layer), skip)
        return paths @ self.inputs

    def matrices(self, layer: tuple[Array, Array]) -> Float[Array, "example head query key"]:
        """Attention matrices of one layer."""
        return fixed_attention.attention_matrices(self.inputs, layer, "softmax", self.allowed)

    def _rows_at(self, place: Int[Array, " example"], layer: tuple[Array, Array]) -> Float[Array, "example head key"]:
        """Rows of the attention matrices of one layer: the attention of one token of each sequence."""
        queries, keys = layer
        asking = jnp.take_along_axis(self.inputs, place[:, None, None], axis=1)[:, 0]
        query = jnp.einsum("ef,hgf->ehg", asking, queries)
        # Map keys back to the features of the tokens: this needs one vector per head, not one per token.
        back = jnp.einsum("ehg,hgf->ehf", query, keys) / jnp.sqrt(queries.shape[1])
        logits = jnp.einsum("ehf,ekf->ehk", back, self.inputs)
        if self.allowed is not None:
            rows = jnp.broadcast_to(self.allowed, (len(self.inputs), *self.allowed.shape[1:]))
            logits = jnp.where(jnp.take_along_axis(rows, place[:, None, None], axis=1), logits, -jnp.inf)
        return jax.nn.softmax(logits, axis=-1)


@partial(jax.jit, static_argnames=("examples", "tokens", "readout", "causal"))
def _reading(examples: int, tokens: int, readout: str, causal: bool, mask):
    """The fields `allowed`, `read` and `place` of sequences."""
    read = fixed_attention.readout_rows(tokens, readout, mask)[:, 0]
    place = None if readout == "mean" else jnp.broadcast_to(jnp.argmax(read, axis=1), (examples,))
    return fixed_attention.allowed_keys(tokens, causal, mask), read, place


class QueriesAndKeys(eqx.Module):
    """Queries and keys of all layers under their prior, entries Normal(0, s_q^2) and Normal(0, s_k^2).

    Args:
        query_deviations, key_deviations: s_q and s_k of each layer.
        shapes: shape (H_l, G, N_0) of the queries, and of the keys, of each layer; (H_l, G, N_l) with attention on the
            hidden tokens.
    """

    query_deviations: Float[Array, " layer"]
    key_deviations: Float[Array, " layer"]
    shapes: tuple[tuple[int, int, int], ...] = eqx.field(static=True)

    @classmethod
    def of(cls, model: AttentionModel) -> "QueriesAndKeys":
        """Prior of a model."""
        arch = model.architecture
        hidden = model.attention_on == "hidden"
        sizes = arch.widths[: arch.depth] if hidden else (model.features,) * arch.depth
        return cls(
            jnp.asarray(np.sqrt(model.query_variance)),
            jnp.asarray(np.sqrt(model.key_variance)),
            tuple((count, model.key_width, size) for count, size in zip(arch.heads, sizes, strict=True)),
        )

    def at_values(self, values: Values) -> "QueriesAndKeys":
        """Same prior at values of the variances, where these have priors."""
        queries, keys = (jnp.sqrt(values[name]) if name in values else None for name in QUERIES_AND_KEYS)
        return QueriesAndKeys(
            self.query_deviations if queries is None else queries,
            self.key_deviations if keys is None else keys,
            self.shapes,
        )

    def sample(self) -> Sites:
        """NumPyro sites, standard normal."""
        return {
            name: jnp.asarray(numpyro.sample(name, dist.Normal(0.0, 1.0).expand(shape).to_event(3)))
            for name, shape in self.sites()
        }

    def draw(self, key: Key[Array, ""]) -> Sites:
        """Sites drawn from the prior."""
        sites = self.sites()
        keys = jax.random.split(key, len(sites))
        return {name: jax.random.normal(each, shape) for each, (name, shape) in zip(keys, sites, strict=True)}

    def sites(self) -> list[tuple[str, tuple[int, int, int]]]:
        """Names and shapes of the sites."""
        names = (
            f"{WHITENED}{kind}_{layer}" for layer in range(1, len(self.shapes) + 1) for kind in ("queries", "keys")
        )
        return list(zip(names, (shape for shape in self.shapes for _ in range(2)), strict=True))

    def named(self, sites: Sites) -> Sites:
        """Queries and keys by name, queries_l and keys_l, of a draw of the sites."""
        return {
            f"{kind}_{layer + 1}": deviations[layer] * sites[f"{WHITENED}{kind}_{layer + 1}"]
            for layer in range(len(self.shapes))
            for kind, deviations in (("queries", self.query_deviations), ("keys", self.key_deviations))
        }


def heads_of(named: Mapping[str, Array]) -> Heads:
    """Queries and keys of each layer from those by name."""
    depth = sum(name.startswith("queries_") for name in named)
    return [(named[f"queries_{layer}"], named[f"keys_{layer}"]) for layer in range(1, depth + 1)]


def invariants(named: Sites) -> Float[Array, " invariant"]:
    """Functions of each head's queries and keys that do not change under rotations of its key features.

    They are |Q|^2, |K|^2 and the trace of Q K^T, head by head and layer by layer.
    """
    parts = [
        jnp.stack([jnp.sum(q**2, (1, 2)), jnp.sum(k**2, (1, 2)), jnp.sum(q * k, (1, 2))], axis=1).ravel()
        for q, k in heads_of(named)
    ]
    return jnp.concatenate(parts)


def names_of_invariants(arch: Architecture) -> list[str]:
    """Names of `invariants`, by layer and head."""
    kinds = ("|Q|^2", "|K|^2", "tr Q K^T")
    heads = [(layer, head) for layer, count in enumerate(arch.heads) for head in range(count)]
    return [f"{kind} {layer + 1},{head + 1}" for layer, head in heads for kind in kinds]


def others(values: Sites) -> Sites:
    """Sites or weights that are neither queries nor keys."""
    beginnings = tuple(prefix + kind for prefix in ("", WHITENED) for kind in ("queries_", "keys_"))
    return {name: value for name, value in values.items() if not name.startswith(beginnings)}
