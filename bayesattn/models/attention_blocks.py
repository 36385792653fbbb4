"""Attention blocks whose attention reads hidden tokens or whose values are nonlinear: all weights are sampled.

The network of `bayesattn.AttentionModel`, with x the tokens of a sequence and phi_alpha(v) = v + alpha (phi(v) - v):

    z^0_t = V_0 x_t / sqrt(N_0),
    v^{l,h}_k = V_l^h z^{l-1}_k / sqrt(N_l),
    A^{l,h}_{qk} = softmax over allowed keys k of (K_l^h y_k).(Q_l^h y_q) / sqrt(G),
    z^l_q = rho_l z^{l-1}_q + sum_{h,k} A^{l,h}_{qk} phi_alpha(v^{l,h}_k) / sqrt(H_l),
    f = a . z^L_{t*} / sqrt(N_a).

Attention on the inputs reads y = x, so Q and K have shape (G, N_0); attention on the hidden tokens reads
y = z^{l-1} / sqrt(N_l), so Q and K have shape (G, N_l). phi is the identity, max(0, v), or v times the standard normal
distribution function of v (the exact GELU). Attention on the inputs with alpha = 0 or the identity is the network of
`bayesattn.models.token`. The order parameter U is the same statistic of the weights as in that network, but in all other
networks of this module it does not determine the law of f.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayesattn import fixed_attention
from bayesattn._util.plain_values import PlainDict
from bayesattn.likelihoods import Outputs
from bayesattn.models.attention_model import AttentionModel
from bayesattn.models.parameterisation import VECTORS_PER_CHAIN, Sites
from bayesattn.models.queries_keys import Heads, Sequences, heads_of, others
from bayesattn.models.sampled_attention import TokenAttention, number_of_weights
from bayesattn.models.token import Token
from bayesattn.network import Skips

NONLINEARITIES: dict[str, Callable[[Array], Array]] = {
    "linear": lambda values: values,
    "relu": jax.nn.relu,
    "gelu": partial(jax.nn.gelu, approximate=False),
}
"""phi, by the names of `AttentionModel.values`."""


class BlockForm(eqx.Module):
    """Input of the attention and nonlinearity of the values, the same in all layers.

    Args:
        attention_on: "inputs" or "hidden".
        values: name of phi.
        strength: alpha.
    """

    attention_on: str = eqx.field(static=True)
    values: str = eqx.field(static=True)
    strength: Float[Array, ""]

    def activated(self, values: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
        """phi_alpha of each entry."""
        return values + self.strength * (NONLINEARITIES[self.values](values) - values)


def network(
    weights: Sites, heads: Heads, sequences: Sequences, form: BlockForm, skips: Skips
) -> tuple[Float[Array, "*labels"], list[Float[Array, "example head query key"]]]:
    """Outputs f, and the attention matrices of each layer.

    Args:
        weights: V_0, V_1, .., V_L and a.
        heads: queries and keys of each layer.
        sequences: sequences at which to compute them.
        form: input of the attention and nonlinearity of the values.
        skips: rho_l of each layer, None for a layer without a skip connection.
    """
    inputs, matrices = sequences.inputs, []
    hidden = inputs @ weights["V_0"].T / jnp.sqrt(inputs.shape[2])
    for layer, (pair, skip) in enumerate(zip(heads, skips, strict=True), start=1):
        values = weights[f"V_{layer}"]
        scaled = hidden / jnp.sqrt(values.shape[2])
        read_by_attention = inputs if form.attention_on == "inputs" else scaled
        matrix = fixed_attention.attention_matrices(read_by_attention, pair, "softmax", sequences.allowed)
        valued = form.activated(jnp.einsum("hmn,ekn->ehkm", values, scaled))
        attended = jnp.einsum("ehqk,ehkm->eqm", matrix, valued) / jnp.sqrt(len(values))
        hidden = attended if skip is None else skip * hidden + attended
        matrices.append(matrix)
    read = jnp.einsum("eq,eqm->em", jnp.broadcast_to(sequences.read, hidden.shape[:2]), hidden)
    return read @ weights["a"].T / jnp.sqrt(weights["a"].shape[-1]), matrices


class BlocksGivenHeads(Token):
    """V_0, V_1, .., V_L and a under their prior, for given queries and keys.

    Args:
        form: input of the attention and nonlinearity of the values.
        queries_and_keys: queries and keys of each layer.
        sequences: training sequences.
        test: test sequences, or None.
    """

    form: BlockForm
    queries_and_keys: Heads
    sequences: Sequences
    test: Sequences | None

    def network(self, weights: Sites, sequences: Sequences) -> tuple[Outputs, list[Array]]:
        """Outputs f on any sequences, and the attention matrices of each layer."""
        return network(weights, self.queries_and_keys, sequences, self.form, self.skips)

    def function(self, sites: Sites) -> Outputs:
        """Outputs f on the training examples."""
        return self.network(sites, self.sequences)[0]

    def predictions_of(self, weights: Sites) -> Sites:
        """Outputs f on the test examples, if there are any."""
        return {} if self.test is None else {"prediction": self.network(weights, self.test)[0]}


class Blocks(TokenAttention):
    """All weights of attention blocks, queries and keys among them; outputs are computed token by token.

    Args:
        given_uniform: posterior of the other weights; its queries, keys and sequences are replaced.
    """

    given_uniform: BlocksGivenHeads

    @classmethod
    def of(
        cls, model: AttentionModel, *, weights: bool = False, all_examples: bool = False, **prepared: Array | np.ndarray
    ) -> TokenAttention:
        """Posterior of a model, whose sites are the weights: `TokenAttention` if the model is linear."""
        if model.is_linear:
            return TokenAttention.of(model)
        fields = cls._fields(model)
        # A nonlinear network has no path inputs and no readout of path inputs.
        given_heads: PlainDict = cls._fields_given_heads(model, paths=0) | {"readout": False}
        given = BlocksGivenHeads(
            **given_heads,
            form=BlockForm(model.attention_on, model.values, jnp.asarray(model.values_strength, float)),
            queries_and_keys=[],
            sequences=fields["sequences"],
            test=fields["test"],
        )
        return cls(**fields, given_uniform=given)

    @classmethod
    def bytes_needed(cls, model: AttentionModel, chains: int) -> int:
        """Lower bound on the memory in bytes: attention and values with their gradients, and the vectors of each chain."""
        if model.is_linear:
            return super().bytes_needed(model, chains)
        (examples, tokens, _), arch = model.inputs.shape, model.architecture
        entries = sum(
            count * tokens * (tokens + width) for count, width in zip(arch.heads, arch.widths[1:], strict=True)
        )
        return 8 * chains * (2 * examples * entries + VECTORS_PER_CHAIN * number_of_weights(model))

    def given_heads(self, heads: Heads) -> BlocksGivenHeads:
        """Posterior of the other weights for these queries and keys."""
        return replace(self.given_uniform, queries_and_keys=heads, sequences=self.sequences, test=self.test)

    def attention_of(self, sites: Sites, sequences: Sequences) -> list[Float[Array, "example head query key"]]:
        """Attention matrices of each layer on any sequences, which may depend on all weights of the layers below."""
        return self.given_heads(heads_of(self.prior.named(sites))).network(others(sites), sequences)[1]
