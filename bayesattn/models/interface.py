"""Posteriors for external samplers: NumPyro model functions, log densities of a flat vector, and draws from either.

The coordinates are those of `Parameterisation`: weights for "path" and "token", whitened Bartlett coordinates for
"collapsed". The same model always has the same coordinates, so draws can be passed back without a description of them.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key
from numpy.typing import ArrayLike
from numpyro.infer import MCMC

from bayesattn._util.checks import Checked, finite_array, seed_number, shown, warn_of_swapped_axes
from bayesattn._util.errors import BayesattnError
from bayesattn._util.plain import PlainMapping
from bayesattn._util.random import fingerprint, first_key, stream
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described
from bayesattn.models.arviz import axes, axis_names, data_groups, dataset, tree_of
from bayesattn.models.description import ATTRIBUTE, described
from bayesattn.models.parameterisation import Parameterisation, Sites
from bayesattn.models.registry import parameterisation_of
from bayesattn.posterior import Posterior

if TYPE_CHECKING:
    import xarray as xr

STATISTICS = {
    "diverging": "diverging",
    "energy": "energy",
    "accept_prob": "acceptance_rate",
    "num_steps": "n_steps",
}
"""Fields of the states of NumPyro's kernels, and their names in ArviZ's sample_stats."""


@dataclass(frozen=True, eq=False, repr=False)
class LogDensity(Described):
    """Log posterior density of a model, up to a constant, as a function of one flat vector.

    The constant is the log evidence; for weights given a compressed dataset it also depends on T.

    Args:
        posterior: the posterior in the coordinates of a parameterisation.
        name: name of the parameterisation.
    """

    posterior: Parameterisation
    name: str

    def function(self, vector: Float[Array, " coordinate"]) -> Float[Array, ""]:
        """Log density at a vector; JAX can trace, differentiate and vectorise it.

        Raises ValueError where jax_enable_x64 is off.
        """
        _require_float64()
        return self.posterior.log_density(self.sites(vector))

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self._flat.vector.size

    def initial(self, key: Key[Array, ""]) -> Float[Array, " coordinate"]:
        """Vector from which a chain can start."""
        return ravel_pytree(self.posterior.initial(key))[0]

    def sites(self, vector: Float[Array, " coordinate"]) -> Sites:
        """Values of the NumPyro sites at a vector."""
        return self._flat.unravel(vector)

    @cached_property
    def _flat(self) -> "_Flat":
        return _Flat(*ravel_pytree(self.posterior.initial(first_key(0))))

    def _described(self) -> tuple[str, dict[str, str]]:
        shapes = ", ".join(f"{name} {value.shape}" for name, value in self.sites(self._flat.vector).items())
        return f"LogDensity of {self.size} coordinates", {"sites": shapes, "coordinates": self.name}


class _Flat(NamedTuple):
    """A flat vector, and the function that turns such a vector into sites."""

    vector: Array
    unravel: Callable[[Array], Sites]


@with_own_settings
def log_density(model: Posterior, parameterisation: str = "collapsed") -> LogDensity:
    """Log posterior density of a model as a function of one flat vector: what `model.log_density` returns.

    Raises ValueError for a parameterisation that cannot serve the model.
    """
    return LogDensity(_posterior(model, parameterisation), parameterisation)


@with_own_settings
def numpyro_model(model: Posterior, parameterisation: str = "path") -> Callable[[], None]:
    """NumPyro model function without arguments, which holds the data: what `model.numpyro` returns.

    It also records the order parameter U, as a deterministic site. If labels are an observed site,
    `numpyro.handlers.uncondition` replicates them; "collapsed" with Gaussian labels has a factor instead of this site.

    Raises ValueError for a parameterisation that cannot serve the model.
    """
    posterior = _posterior(model, parameterisation)
    names = [*jax.eval_shape(posterior.initial, first_key(0))]

    def posterior_of_network() -> None:
        _require_float64()
        with numpyro.handlers.trace() as trace:
            posterior.program()
        sites = {name: trace[name]["value"] for name in names}
        for name, value in posterior.central(sites).items():
            numpyro.deterministic(name, value)

    return posterior_of_network


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
    else:
        sites, statistics = mcmc_or_sites, {}
    if not hasattr(sites, "keys"):
        raise BayesattnError(f"mcmc_or_sites must be a numpyro.infer.MCMC or sites by name, got {shown(sites)}")
    posterior = _posterior(model, parameterisation, weights, after=dict(sites))
    checked = _checked_sites(posterior, dict(sites))
    if sites is mcmc_or_sites:
        warn_of_swapped_axes("sites", next(iter(checked.values())))
    tree = _tree(checked, statistics, model, posterior, weights, seed)
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


def _require_float64() -> None:
    """Raise ValueError where JAX computes in single precision: densities are evaluated under the caller's settings."""
    if not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise BayesattnError(
            "jax_enable_x64 must be on where a density of bayesattn is evaluated, got single precision: importing bayesattn"
            " turns it on, something else has turned it off"
        )


def _posterior(
    model: Posterior, parameterisation: str, weights: bool = False, after: Checked = None
) -> Parameterisation:
    """Posterior in a parameterisation, prepared once the program behind the draws `after` has ended.

    JAX returns draws before they are computed. On CPUs, two programs that factorise batches of matrices at the same time can
    wait for each other for ever, and the preparation is such a program.
    """
    jax.block_until_ready(after)
    kind = parameterisation_of(model, parameterisation)
    return kind.of(model, weights=weights, all_examples=False, **kind.prepare(model))


def _checked_sites(posterior: Parameterisation, sites: PlainMapping) -> Sites:
    """Values of the sites that the posterior has; raises ValueError where one is missing or of another shape."""
    expected, checked = jax.eval_shape(posterior.initial, first_key(0)), {}
    chains_and_draws: tuple[int | str, ...] = ("chains", "draws")
    for name, like in expected.items():
        if name not in sites:
            raise BayesattnError(
                f"sites must hold {', '.join(expected)}, got {', '.join(map(str, sites)) or 'none'}, without {name}"
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
) -> "xr.DataTree":
    """Draws as the tree of `bayesattn.sample`, with the quantities computed from the sites."""
    chains, draws = next(iter(sites.values())).shape[:2]
    flat = jax.tree.map(lambda values: values.reshape(-1, *values.shape[2:]), sites)
    keys = jax.random.split(
        stream(seed_number("seed", seed), "draws from elsewhere", fingerprint(model)), chains * draws
    )
    values, lp = _quantities(posterior, flat, keys, weights)
    by_chain = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(chains, draws, *leaf.shape[1:]), (values, lp))
    outputs = {"posterior": by_chain[0], "sample_stats": {"lp": by_chain[1]} | statistics}
    tree = tree_of(outputs | data_groups(model), axis_names(model), axes(model))
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
