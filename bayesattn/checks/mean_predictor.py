"""Mean predictor on the test examples: at one U, in the GP limit, and over batches of draws."""

import numpy as np
from jaxtyping import Array, Float

from bayesattn import theory
from bayesattn._util.checks import Checked
from bayesattn._util.settings import with_own_settings
from bayesattn.models import Model, trees
from bayesattn.theory.predictor import outputs_at, readouts

PREDICTOR_DRAWS = 1000
BATCHES = 4
"""Of each chain."""


def gp_of_group(model: Model, paths: Checked) -> np.ndarray:
    """U in the GP limit of a network that has these paths only: 0 for all others, and normalised by their number."""
    arch = model.architecture
    gp = np.asarray(theory.gp_order_parameter(arch))
    if paths is None:
        return gp
    kept = np.isin(np.arange(arch.paths), paths)
    return gp * np.repeat(kept, arch.outputs) * (np.prod(arch.heads) / kept.sum())


@with_own_settings
def gp_mean(model: Model, paths: Checked = None) -> Float[np.ndarray, " test_label"]:
    """Mean of f on the test examples at infinite width, of the network or of a group of its paths alone."""
    return mean_predictor(model, gp_of_group(model, paths))


@with_own_settings
def mean_predictor(
    model: Model, order_parameter: Float[np.ndarray | Array, "row row"]
) -> Float[np.ndarray, " test_label"]:
    """Mean of f on the test examples given U, all outputs of the first example first."""
    of_one = readouts(order_parameter[None], model)
    return outputs_of(model, np.asarray(of_one))[0]


def outputs_of(model: Model, by_batch: Float[np.ndarray, "batch row feature"]) -> Float[np.ndarray, "batch test_label"]:
    """f on the test examples with each of several readouts."""
    return outputs_at(by_batch, model.test_path_inputs)


@with_own_settings
def readout_batches(model: Model, order_parameters: Checked) -> Float[np.ndarray, "batch row feature"]:
    """Readouts of the mean predictor over batches of consecutive draws of U, shape (chain, draw, Pi, Pi), four a chain.

    Of more than 1000 draws as many are looked at, evenly spread: the error between batches is theirs. What
    `bayesattn.sample` returned, a run or its folder will do for the draws; ValueError is raised at those of another model.
    """
    order_parameters = drawn_order_parameters(order_parameters, model)
    chains, draws = order_parameters.shape[:2]
    batches = min(BATCHES, draws)
    per_batch = max(1, min(draws // batches, PREDICTOR_DRAWS // (chains * batches)))
    kept = np.linspace(0, draws - 1, batches * per_batch).astype(int)
    chosen = order_parameters[:, kept].reshape(-1, *order_parameters.shape[2:])
    per_draw = np.asarray(readouts(chosen, model))
    return per_draw.reshape(chains * batches, per_batch, *per_draw.shape[1:]).mean(1)


def drawn_order_parameters(draws: Checked, model: Model) -> Float[np.ndarray, "chain draw row row"]:
    """Draws of U of this model; an array as it is, finite or not."""
    return draws if isinstance(draws, np.ndarray) else trees.order_parameters(draws, model)
