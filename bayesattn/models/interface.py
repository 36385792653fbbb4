"""Draws of external samplers, of NumPyro model functions or of log densities of a flat vector, as draws of `sample`.

The coordinates are those of `Parameterisation`: weights for "path" and "token", whitened Bartlett coordinates for
"collapsed". The same model always has the same coordinates, so draws can be passed back without a description of them.
"""

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key
from numpy.typing import ArrayLike
from numpyro.infer import MCMC

from bayesattn._util.checks import Checked, finite_array, seed_number, shown, warn_of_swapped_axes
from bayesattn._util.plain_values import PlainMapping
from bayesattn._util.random import digest_of_draws, first_key, stream
from bayesattn._util.settings import with_own_settings
from bayesattn.errors import BayesattnError
from bayesattn.models.arviz import axes, axis_names, data_groups, dataset, tree_of
from bayesattn.models.parameterisation import Parameterisation
from bayesattn.models.posterior import LogDensity, Posterior, Sites, parameterisation_of
from bayesattn.models.stored_model import ATTRIBUTE, described

if TYPE_CHECKING:
    import xarray as xr

TEMPERED_FIELDS = {
    "adapt_state.powers": "powers",
    "log_likelihoods": "log_likelihoods",
    "replica_at": "replica_at",
    "round_trips": "round_trips",
    "restarts": "restarts",
}
"""Fields of the state of `samplers.Tempered`, and their names in sample_stats."""
STATISTICS = {
    "diverging": "diverging",
    "energy": "energy",
    "accept_prob": "acceptance_rate",
    "num_steps": "n_steps",
} | TEMPERED_FIELDS
"""Fields of the states of kernels, NumPyro's among them, and their names in ArviZ's sample_stats."""


@with_own_settings
def from_numpyro(
    mcmc_or_sites: MCMC | Mapping[str, ArrayLike],
    model: Posterior,
    parameterisation: str = "path",
    *,
    weights: bool = False,
    seed: int = 0,
) -> "xr.DataTree":
    """Draws of `model.numpyro(parameterisation)` as the DataTree that `bayesattn.sample` returns.

    Args:
        mcmc_or_sites: a `numpyro.infer.MCMC` that has run, or its sites by name, of shape (chain, draw, ..).
        model: the posterior.
        parameterisation: parameterisation of the sites.
        weights: whether posterior also holds the weights of the network.
        seed: seed of the quantities drawn given the sites: predictions, and weights of collapsed draws.

    Returns:
        DataTree with the same ArviZ groups as from `bayesattn.sample`. sample_stats holds the log density "lp" and, for an
        MCMC, its extra fields "diverging", "energy", "accept_prob" and "num_steps", as far as it collected them.

    Raises:
        ValueError: a site that is missing, has another shape or is not finite; a parameterisation that cannot serve the
            model.

    Warns of sites with more chains than draws.
    """
    if isinstance(mcmc_or_sites, MCMC):
        if mcmc_or_sites.last_state is None:
            raise BayesattnError("mcmc_or_sites must be a numpyro.infer.MCMC that has run, got one that has not")
        sites = mcmc_or_sites.get_samples(group_by_chain=True)
        extra = mcmc_or_sites.get_extra_fields(group_by_chain=True)
        statistics = {ours: np.asarray(extra[theirs]) for theirs, ours in STATISTICS.items() if theirs in extra}
        thin = int(mcmc_or_sites.thinning)
    else:
        sites, statistics, thin = mcmc_or_sites, {}, 1
    if not hasattr(sites, "keys"):
        raise BayesattnError(f"mcmc_or_sites must be a numpyro.infer.MCMC or sites by name, got {shown(sites)}")
    posterior = _posterior(model, parameterisation, weights, after=dict(sites))
    checked = _checked_sites(posterior, dict(sites))
    if sites is mcmc_or_sites:
        warn_of_swapped_axes("sites", next(iter(checked.values())))
    tree = _tree(checked, statistics, model, posterior, weights, seed, thin)
    if "order_parameter" in sites:
        recorded, found = np.asarray(sites["order_parameter"]), dataset(tree, "posterior")["order_parameter"].values
        if recorded.shape != found.shape or not np.allclose(recorded, found, rtol=1e-6, atol=1e-9):
            raise BayesattnError(
                "model and parameterisation must be those of the sites, got others: the recorded order_parameter differs"
                " from the one computed from the sites"
            )
    return tree


@with_own_settings
def from_vectors(
    vectors: ArrayLike, model: Posterior, parameterisation: str = "collapsed", *, weights: bool = False, seed: int = 0
) -> "xr.DataTree":
    """Draws of `model.log_density(parameterisation)` as the DataTree that `bayesattn.sample` returns.

    Args:
        vectors: draws of shape (chain, draw, coordinate).
        model: the posterior.
        parameterisation: parameterisation of the coordinates.
        weights: whether posterior also holds the weights of the network.
        seed: seed of the quantities drawn given the vectors: predictions, and weights of collapsed draws.

    Raises ValueError for vectors of another shape, or that are not finite, and a parameterisation that cannot serve the
    model. Warns of more chains than draws. Returns a DataTree like that of `from_numpyro`.
    """
    posterior = _posterior(model, parameterisation, weights, after=vectors)
    density = LogDensity(posterior, parameterisation)
    checked = finite_array("vectors", vectors, ("chains", "draws", density.size))
    warn_of_swapped_axes("vectors", checked)
    sites = jax.vmap(jax.vmap(density.sites))(jnp.asarray(checked))
    return _tree(sites, {}, model, posterior, weights, seed)


def _posterior(model: Posterior, parameterisation: str, weights: bool, after: Checked) -> Parameterisation:
    """Posterior in a parameterisation, prepared once the program behind the draws `after` has ended.

    JAX returns draws before they are computed. On CPUs, two programs that factorise batches of matrices at the same time can
    wait for each other for ever, and the preparation is such a program.
    """
    jax.block_until_ready(after)
    return parameterisation_of(model, parameterisation).ready(model, weights=weights)


def _checked_sites(posterior: Parameterisation, sites: PlainMapping) -> Sites:
    """Values of the sites that the posterior has; raises ValueError where one is missing or of another shape."""
    expected, checked = jax.eval_shape(posterior.initial, first_key(0)), {}
    chains_and_draws: tuple[int | str, ...] = ("chains", "draws")
    for name, like in expected.items():
        if name not in sites:
            raise BayesattnError(
                f"sites must hold {', '.join(expected)}, got {', '.join(map(str, sites)) or 'none'}, without {name}: is"
                " parameterisation= the one that was sampled?"
            )
        checked[name] = jnp.asarray(finite_array(f"sites[{name!r}]", sites[name], (*chains_and_draws, *like.shape)))
        chains_and_draws = checked[name].shape[:2]
    return checked


def _tree(
    sites: Sites,
    statistics: dict[str, np.ndarray],
    model: Posterior,
    posterior: Parameterisation,
    weights: bool,
    seed: int,
    thin: int = 1,
) -> "xr.DataTree":
    """Draws as the tree of `bayesattn.sample`, with the quantities computed from the sites."""
    chains, draws = next(iter(sites.values())).shape[:2]
    flat = jax.tree.map(lambda values: values.reshape(-1, *values.shape[2:]), sites)
    own = digest_of_draws(*(flat[name] for name in sorted(flat)))
    keys = jax.random.split(
        stream(seed_number("seed", seed), "draws from elsewhere", model.fingerprint, own), chains * draws
    )
    values, lp = _quantities(posterior, flat, keys, weights)
    by_chain = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(chains, draws, *leaf.shape[1:]), (values, lp))
    outputs = {"posterior": by_chain[0], "sample_stats": {"lp": by_chain[1]} | statistics}
    coords = axis_names(model) | {"draw": np.arange(thin - 1, draws * thin, thin)}
    tree = tree_of(outputs | data_groups(model), coords, axes(model))
    tree.attrs[ATTRIBUTE] = json.dumps(described(model))
    return tree


@partial(jax.jit, static_argnames="weights")
def _quantities(posterior: Parameterisation, sites: Sites, keys: Array, weights: bool) -> tuple[Sites, Array]:
    """Quantities of each draw, with its weights if asked for, and its log density."""

    def of_draw(pair: tuple[Sites, Key[Array, ""]]) -> tuple[Sites, Array]:
        values, (key, weights_key) = pair[0], jax.random.split(pair[1])
        quantities = posterior.quantities(values, key)
        if weights:
            drawn = posterior.weights_of(values, weights_key)
            quantities |= drawn | posterior.predictions_of(drawn)
        return quantities, posterior.log_density(values)

    return jax.lax.map(of_draw, (sites, keys))
