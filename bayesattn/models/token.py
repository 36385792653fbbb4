"""Token parameterisation: the network as defined, token by token (THEORY section 1)."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from bayesattn import attention
from bayesattn.models import path
from bayesattn.models.posterior import Model

structure, options, prepare, initial = path.structure, path.options, path.prepare, path.initial
quantities, network_weights, with_labels = path.quantities, path.network_weights, path.with_labels
draw_prior, draw_labels = path.draw_prior, path.draw_labels


def data(model: Model) -> dict[str, Any]:
    """Arrays that the program conditions on; raises ValueError if the model has no tokens."""
    if model.tokens is None:
        raise ValueError(
            "parameterisation 'token' needs a model with tokens, got one with path inputs only;"
            " use 'path' or 'collapsed', or Model.from_dataset"
        )
    inputs = model.tokens.inputs
    return path.data(model) | {
        "inputs": jnp.asarray(inputs),
        "matrices": [jnp.asarray(matrix) for matrix in model.tokens.matrices],
        "readout": attention.readout_rows(inputs.shape[1], model.tokens.readout, model.tokens.mask),
    }


def minibatch(data: dict[str, Any], chosen: Any) -> dict[str, Any]:
    """The data of some of the examples."""
    part = {name: data[name][chosen] for name in ("inputs", "labels")}
    if len(data["readout"]) > 1:
        part["readout"] = data["readout"][chosen]
    return data | part | {"matrices": [matrix[chosen] for matrix in data["matrices"]]}


def program(structure: path.Structure):
    """NumPyro program of `data`: the same weights and likelihood as the path parameterisation."""

    def token_program(data: dict[str, Any]):
        weights = path.sample_weights(structure, data["inputs"].shape[2], data["variances"])
        path.observe(network(weights, data["inputs"], data["matrices"], data["readout"], data["skips"]), data)

    return token_program


def network(
    weights: path.Sites,
    inputs: Float[Array, "example token feature"],
    matrices: list[Float[Array, "example _ token token"]],
    readout: Float[Array, "example_or_one _ token"],
    skips: Sequence[Any] | None = None,
) -> Float[Array, "*labels"]:
    """f = a . z^L_{t*} / sqrt(N_a), z^l_q = rho_l z^{l-1}_q + sum_{h,k} A^{l,h}_{qk} V_l^h z^{l-1}_k / sqrt(H_l N_l)."""
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
