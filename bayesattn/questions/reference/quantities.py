"""Quantities by which draws of a reference posterior are compared: entries of U, f, f^2 and the energy -log p(Y | f).

They are functions of U and of f on the test inputs. The test inputs of a reference posterior begin with its training inputs,
so that the energy can be computed.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayesattn.models.network_posterior import NetworkPosterior

SHOWN_EXAMPLES = 4
"""Largest number of training examples whose f is a quantity of its own; the energy uses all of them."""


def chosen_examples(model: NetworkPosterior) -> list[int]:
    """Indices of the test examples whose f is a quantity: some training examples, and all new ones."""
    training, test = model.examples, model.test_examples
    return [*range(min(SHOWN_EXAMPLES, training)), *range(training, test)]


def names_of(model: NetworkPosterior) -> list[str]:
    """Names of the quantities, such as "U 2,1", "f 3", "f^2 3" or, of several outputs, "f 3,1", and "energy"."""
    arch, rows = model.architecture, range(1, model.architecture.rows + 1)
    places = [f"{place + 1}" for place in chosen_examples(model)]
    if arch.output_axes:
        places = [f"{place},{output}" for place in places for output in range(1, arch.outputs + 1)]
    entries = [f"U {row},{column}" for row in rows for column in range(1, row + 1)]
    return [*entries, *(f"f {place}" for place in places), *(f"f^2 {place}" for place in places), "energy"]


def quantities_of(
    order_parameter: Float[Array, "row row"], outputs: Float[Array, "*labels"], model: NetworkPosterior
) -> Float[Array, " quantity"]:
    """Quantities of one draw, from U and f on the test examples.

    The energy is -log p(Y | f) on the training examples.
    """
    shown = outputs[np.asarray(chosen_examples(model))].reshape(-1)
    energy = -jnp.sum(model.likelihood.log_prob(outputs[: model.examples], jnp.asarray(model.labels)))
    entries = order_parameter[np.tril_indices(model.architecture.rows)]
    return jnp.concatenate([entries, shown, shown**2, energy[None]])


def quantities_of_draws(
    order_parameters: Float[np.ndarray, "chain draw row row"],
    outputs: Float[np.ndarray, "chain draw *labels"],
    model: NetworkPosterior,
) -> Float[np.ndarray, "chain draw quantity"]:
    """Quantities of all draws."""
    of_draws = jax.vmap(jax.vmap(lambda u, f: quantities_of(u, f, model)))
    return np.asarray(jax.jit(of_draws)(jnp.asarray(order_parameters), jnp.asarray(outputs)))
