"""Log prior density of draws: of the Bartlett coordinates of U, of queries and keys, and of numbers that have priors."""

from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from bayesattn._util.checks import is_prior
from bayesattn.errors import BayesattnError
from bayesattn.models.attention_model import AttentionModel
from bayesattn.models.draws import CHAIN_AXES, numbers_of
from bayesattn.models.hyperpriors import QUERIES_AND_KEYS, Hyperpriors
from bayesattn.models.model import has_fixed_attention
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.models.posterior import parameterisation_of
from bayesattn.theory import bartlett

if TYPE_CHECKING:
    import xarray as xr


def log_prior(draws: "xr.DataTree", model: NetworkPosterior) -> dict[str, Float[np.ndarray, "chain draw"]]:
    """Log prior density of the Bartlett coordinates in which the sampler moves, with strong rows of narrow layers first.

    Numbers that have priors have one of their own, in the coordinates in which the sampler moves: logarithms, most often. So
    have sampled queries and keys, divided by their prior deviations; those of variance 0 are left out.

    Densities depend on coordinates: in rows in their own order, power-scaling would depend on the order of heads.
    """
    if "bartlett" not in draws["posterior"]:
        raise BayesattnError(
            "group 'log_prior' is the density of U's Bartlett coordinates, which only collapsed draws hold, got draws"
            " without posterior['bartlett']"
        )
    points = draws["posterior"].to_dataset()["bartlett"].transpose("chain", "draw", ...).values
    shapes, widths = bartlett.layer_shapes(model.architecture), jnp.array(model.architecture.widths, float)
    flat, order = jnp.asarray(points.reshape(-1, points.shape[-1])), None
    if has_fixed_attention(model) and bartlett.narrow(shapes):
        order = parameterisation_of(model, "collapsed").prepare(model).get("order")
    made = {"bartlett": _log_prior_of(flat, widths, shapes, order)}
    if isinstance(model, AttentionModel):
        made["queries_keys"] = _log_prior_of_heads(draws, model)
    if model.has_priors:
        values = {name: drawn.values for name, drawn in numbers_of(draws, model).items()}
        drawn = {name: value.reshape(-1, *value.shape[2:]) for name, value in values.items()}
        made["numbers"] = _log_prior_of_numbers(drawn, model.hyperpriors)
    return {name: np.asarray(value).reshape(points.shape[:2]) for name, value in made.items()}


def _log_prior_of_heads(draws: "xr.DataTree", model: AttentionModel) -> Float[np.ndarray, "chain draw"]:
    """Log prior density of queries and keys in units of their deviations."""
    posterior, numbers = draws["posterior"].to_dataset(), numbers_of(draws, model) if model.has_priors else {}
    total = np.zeros([posterior.sizes[axis] for axis in CHAIN_AXES])
    for kind, name in zip(("queries", "keys"), QUERIES_AND_KEYS, strict=True):
        for layer in range(model.architecture.depth):
            known = getattr(model, name)[layer]
            if not (unknown := is_prior(known)) and known == 0:
                continue
            drawn = posterior[f"{kind}_{layer + 1}"].transpose(*CHAIN_AXES, ...).values
            variance = numbers[name].values[..., layer, None, None, None] if unknown else known
            total += (-(drawn**2) / variance / 2 - np.log(2 * np.pi) / 2).sum((2, 3, 4))
    return total


@jax.jit
def _log_prior_of_numbers(values, priors: Hyperpriors):
    return jax.vmap(lambda each: priors.log_density(priors.position(each)))(values)


@partial(jax.jit, static_argnames="shapes")
def _log_prior_of(points, widths, shapes, order):
    def of_point(point):
        moved = point
        if order is not None:
            moved = bartlett.in_order(bartlett.bartlett_factors(point, shapes), shapes, order)
        return bartlett.log_prior(moved, shapes, widths)

    return jax.lax.map(of_point, points)
