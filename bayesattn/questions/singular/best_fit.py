"""S*, the least sum of squares |Y - f|^2 over all weights of a network, and the few examples on which it depends."""

import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import optimize

from bayesattn._util.checks import Checked, number
from bayesattn._util.random import stream
from bayesattn.architecture import Architecture
from bayesattn.compressed import Compressed
from bayesattn.dataset import Dataset
from bayesattn.errors import BayesattnError
from bayesattn.models import Path
from bayesattn.models.model import Model
from bayesattn.network import network

STARTS = 16
"""Prior draws of the weights from which the least sum of squares is searched."""
MOST_EVALUATIONS = 500
NEGLIGIBLE_SHARE = 1e-20
"""Share of |Y|^2 up to which a sum of squares is rounding: the network can then fit the labels."""


class BestFit(NamedTuple):
    """Least sum of squares, and how it is known.

    `how` is "given", "not needed" or "found". A search is "not needed" if labels are zero or the network can have any
    readout: S* is then the residual of linear regression on the path inputs. "found" is the result of searches, which may
    end above the minimum.
    """

    square: float
    how: str

    def held_against(self, attained: float, tolerance: float) -> "BestFit":
        """S*, or the attained value if it is below S* by more than the tolerance; in that case ValueError if S* is given."""
        if self.how == "not needed" or not attained < self.square - tolerance:
            return self
        if self.how == "given":
            raise BayesattnError(
                f"best_fit must not be above the |Y - f|^2 that the network attains, {attained:.6g}, got {self.square:.6g}"
            )
        return BestFit(attained, self.how)


def reduced(model: Model) -> tuple[Model, float]:
    """Model with at most Pi N_0 examples and the same lambda_hat, and the part of |Y|^2 that no readout explains.

    It has no tokens and no test examples, and gives no warnings about its labels, which are not the user's.
    """
    compressed = model.compressed
    _, paths, features = model.path_inputs.shape
    if compressed is None:
        if len(model.path_inputs) <= paths * features:
            return model.replace(test_path_inputs=None, test_labels=None, tokens=None), 0.0
        compressed = Compressed.of(model.path_inputs, model.labels)
    dataset = Dataset(path_inputs=compressed.path_inputs, labels=compressed.labels)
    residual = float(compressed.residual.square)
    explained = float(np.vdot(compressed.labels, compressed.labels))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        smaller = model.replace(dataset=dataset, tokens=None)
    return smaller, 0.0 if residual <= NEGLIGIBLE_SHARE * explained else residual


def best_fit_of(model: Model, given: Checked = None, *, residual: float = 0.0, seed: int = 0) -> BestFit:
    """S* of a model, by linear regression if the network can have any readout, or by search.

    Args:
        model: the posterior.
        given: S*, residual included, if it is known.
        residual: sum of squares that no network can fit, and that the model's labels leave out.
        seed: seed of the starts.

    Raises:
        ValueError: a given number that is negative, or below the residual.
    """
    if given is not None:
        square = number("best_fit", given)
        if square < residual * (1 - 1e-9):
            raise BayesattnError(
                f"best_fit must be at least {residual:g}, what no linear function of the path inputs explains, got"
                f" {square:g}"
            )
        return BestFit(square, "given")
    if not np.any(model.labels):
        return BestFit(residual, "not needed")
    if has_any_readout(model.architecture, model.path_inputs.shape[2]):
        least, how = regression(model), "not needed"
    else:
        least, how = least_squares(model, seed), "found"
    scale = float(np.vdot(model.labels, model.labels))
    return BestFit(residual + (0.0 if least <= NEGLIGIBLE_SHARE * scale else least), how)


def regression(model: Model) -> float:
    """Least sum of squares of all linear functions of the path inputs."""
    examples = len(model.path_inputs)
    inputs, labels = model.path_inputs.reshape(examples, -1), np.reshape(model.labels, (examples, -1))
    readout = np.linalg.lstsq(inputs, labels, rcond=None)[0]
    return float(np.sum((labels - inputs @ readout) ** 2))


def has_any_readout(arch: Architecture, features: int) -> bool:
    """Whether a network can have every readout g^pi: no layer is too narrow.

    The readout is a product of matrices, one for each layer, with an index for the head of each (a tensor train:
    Oseledets 2011). Every tensor is such a product if each width is at least the number of indices to its left, or to
    its right. With skips, whose matrices are fixed, the condition is not enough.
    """
    if any(arch.skips):
        return False
    before, after = features, arch.outputs * arch.paths
    for width, heads in zip(arch.widths, (*arch.heads, 1), strict=True):
        if width < min(before, after):
            return False
        before, after = before * heads, after // heads
    return True


def least_squares(model: Model, seed: int) -> float:
    """Least sum of squares that searches from prior draws of the weights find."""
    posterior = Path.of(model)
    inputs, labels = jnp.asarray(model.path_inputs), jnp.asarray(model.labels)
    keys = jax.random.split(stream(seed, "searches for the best fit"), STARTS)
    start, unravel = ravel_pytree(posterior.draw_prior(keys[0]))

    @jax.jit
    def misfit(vector: jax.Array) -> jax.Array:
        return (network(unravel(vector), inputs, posterior.skips) - labels).reshape(-1)

    slope = jax.jit(jax.jacrev(misfit) if model.labels.size < start.size else jax.jacfwd(misfit))
    least = np.inf
    for key in keys:
        begin = np.asarray(ravel_pytree(posterior.draw_prior(key))[0])
        found = optimize.least_squares(
            lambda vector: np.asarray(misfit(vector)),
            begin,
            jac=lambda vector: np.asarray(slope(vector)),  # pyright: ignore[reportArgumentType]
            ftol=1e-15,
            xtol=1e-15,
            gtol=1e-15,
            max_nfev=MOST_EVALUATIONS,
        )
        least = min(least, 2 * float(found.cost))
        if least <= NEGLIGIBLE_SHARE * float(np.vdot(labels, labels)):
            break
    return least
