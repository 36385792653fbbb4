"""Token parameterisation: the network by its definition, token by token (THEORY section 1)."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayesattn import fixed_attention
from bayesattn.errors import BayesattnError
from bayesattn.likelihoods import Outputs
from bayesattn.models.model import Model
from bayesattn.models.parameterisation import Sites
from bayesattn.models.path import Path
from bayesattn.network import Skips


class Token(Path):
    """Weights of the path parameterisation under the same prior, with outputs computed token by token.

    Args:
        inputs: tokens of shape (P, T, N_0).
        matrices: attention matrices of each layer, shape (P, H_l, T, T).
        read: share of each token in the readout, shape (P, 1, T) or (1, 1, T).
    """

    needs_tokens: ClassVar[bool] = True

    inputs: Float[Array, "example token feature"]
    matrices: list[Float[Array, "example _ token token"]]
    read: Float[Array, "example_or_one _ token"]

    @classmethod
    def of(
        cls, model: Model, *, weights: bool = False, all_examples: bool = False, **prepared: Array | np.ndarray
    ) -> "Token":
        """Posterior of a model; raises ValueError if the model has no tokens."""
        if model.tokens is None:
            raise BayesattnError(
                "parameterisation 'token' needs a model with tokens, got one with path inputs only;"
                " use 'path' or 'collapsed', or Model.from_tokens"
            )
        inputs = model.tokens.inputs
        return cls(
            **cls._fields(model, model.path_inputs, model.test_path_inputs),
            inputs=jnp.asarray(inputs),
            matrices=[jnp.asarray(matrix) for matrix in model.tokens.matrices],
            read=jnp.asarray(fixed_attention.readout_rows(inputs.shape[1], model.tokens.readout, model.tokens.mask)),
        )

    @classmethod
    def bytes_needed(cls, model: Model, chains: int) -> int:
        """Lower bound on the memory in bytes: that of the path parameterisation, and the attention matrices."""
        matrices = 0
        if model.tokens is not None:
            matrices = model.examples * sum(model.architecture.heads) * model.tokens.inputs.shape[1] ** 2
        return super().bytes_needed(model, chains) + 8 * matrices

    def function(self, sites: Sites) -> Outputs:
        """Outputs f on the training examples."""
        return network(sites, self.inputs, self.matrices, self.read, self.skips)

    def _by_example(self) -> list[str]:
        """Names of the fields whose first axis is the example axis."""
        return [*super()._by_example(), "inputs", "matrices", *(["read"] if len(self.read) > 1 else [])]


def network(
    weights: Sites,
    inputs: Float[Array, "example token feature"],
    matrices: list[Float[Array, "example _ token token"]],
    readout: Float[Array, "example_or_one _ token"],
    skips: Skips | None = None,
) -> Float[Array, "*labels"]:
    """Outputs f = a . z^L_{t*} / sqrt(N_a), with the recursion over layers

    z^l_q = rho_l z^{l-1}_q + sum_{h,k} A^{l,h}_{qk} V_l^h z^{l-1}_k / sqrt(H_l N_l).
    """
    hidden = inputs @ weights["V_0"].T / jnp.sqrt(inputs.shape[2])
    for layer, matrix in enumerate(matrices):
        values = weights[f"V_{layer + 1}"]
        heads, _, width = values.shape
        valued = jnp.einsum("hmn,ekn->ehkm", values, hidden)
        attended = jnp.einsum("ehqk,ehkm->eqm", matrix, valued) / jnp.sqrt(heads * width)
        skip = None if skips is None else skips[layer]
        hidden = attended if skip is None else skip * hidden + attended
    read = jnp.einsum("eq,eqm->em", jnp.broadcast_to(readout[:, 0], hidden.shape[:2]), hidden)
    return read @ weights["a"].T / jnp.sqrt(weights["a"].shape[-1])
