"""Token parameterisation: the network as defined, token by token (THEORY section 1)."""

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
        "readout": attention.readout_weights(inputs.shape[1], model.tokens.readout),
    }


def minibatch(data: dict[str, Any], chosen: Any) -> dict[str, Any]:
    """The data of some of the examples."""
    part = {name: data[name][chosen] for name in ("inputs", "labels")}
    return data | part | {"matrices": [matrix[chosen] for matrix in data["matrices"]]}


def program(structure: path.Structure):
    """NumPyro program of `data`: the same weights and likelihood as the path parameterisation."""

    def token_program(data: dict[str, Any]):
        weights = path.sample_weights(structure, data["inputs"].shape[2], data["variances"])
        path.observe(network(weights, data["inputs"], data["matrices"], data["readout"]), data)

    return token_program


def network(
    weights: path.Sites,
    inputs: Float[Array, "example token feature"],
    matrices: list[Float[Array, "example _ token token"]],
    readout: Float[Array, " token"],
) -> Float[Array, " example"]:
    """f = a . z^L_{t*} / sqrt(N_a), z^l_q = sum_{h,k} A^{l,h}_{qk} V_l^h z^{l-1}_k / sqrt(H_l N_l)."""
    hidden = inputs @ weights["V_0"].T / jnp.sqrt(inputs.shape[2])
    for layer, matrix in enumerate(matrices):
        values = weights[f"V_{layer + 1}"]
        heads, _, width = values.shape
        valued = jnp.einsum("hmn,ekn->ehkm", values, hidden)
        hidden = jnp.einsum("ehqk,ehkm->eqm", matrix, valued) / jnp.sqrt(heads * width)
    return jnp.einsum("q,eqm,m->e", readout, hidden, weights["a"]) / jnp.sqrt(weights["a"].size)
