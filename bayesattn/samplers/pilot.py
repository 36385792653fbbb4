"""What a NumPyro program says before any chain: draws from its prior, its likelihood at a power, how far apart they are."""

import numbers
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key, PyTree
from numpyro.distributions import biject_to
from numpyro.distributions.distribution import ImproperUniform, MaskedDistribution
from numpyro.infer.util import potential_energy
from numpyro.primitives import Message, Messenger

from bayesattn._util.random import first_key
from bayesattn._util.settings import with_own_settings
from bayesattn.theory.particles import Particles, annealed

USUAL_REPLICAS, FEWEST_REPLICAS = 12, 4
"""Number of replicas if there can be no pilot, and least number after one."""
PILOT_PARTICLES, PILOT_MOVES = 128, 8


@with_own_settings
def suited_replicas(program: Callable, key: Key[Array, ""], *args: Any, **kwargs: Any) -> int:
    """Number of replicas that suits a NumPyro program: one more than twice its barrier, by a pilot.

    The barrier is the sum of the probabilities that neighbours are not exchanged, in the limit of many replicas (Syed et al.
    2022). Where log likelihoods are normal, a step of annealing to an effective share of 1/2 takes sqrt(log(2) / pi) of it.

    Args:
        program: NumPyro program.
        key: random key of the pilot, which anneals 128 particles from the prior.
        args: arguments of the program.
        kwargs: keyword arguments of the program.

    Returns 12 if the prior of the program cannot be drawn. Warns of draws from it that are infinite in unconstrained
    coordinates. Raises FloatingPointError if the likelihood of all draws in one of two islands is 0 or not defined.
    """
    if not draws_prior(program, *args, **kwargs):
        return USUAL_REPLICAS
    if not all(isinstance(leaf, jax.Array | np.ndarray | numbers.Number) for leaf in jax.tree.leaves((args, kwargs))):
        program, args, kwargs = partial(program, *args, **kwargs), (), {}  # Others cannot be traced.
    prior_key, annealing_key = jax.random.split(key)
    path = FromPrior(program, args, kwargs)
    points = np.asarray(_prior_points(jax.random.split(prior_key, PILOT_PARTICLES), path))
    if out := int(np.sum(~np.isfinite(points).all(1))):
        warnings.warn(
            f"{out} of {PILOT_PARTICLES} draws from the prior are at an edge of its support, beyond floating point numbers:"
            " log p(Y) is that of the rest of the prior",
            stacklevel=3,
        )
    try:
        powers = annealed(annealing_key, Particles.at(points, 2), path, PILOT_MOVES).powers
    except FloatingPointError as error:
        raise FloatingPointError(
            f"the pilot that counts replicas failed, so give `replicas` a number: {error}"
        ) from error
    barrier = np.sqrt(np.log(2) / np.pi) * (len(powers) - 1)
    return max(FEWEST_REPLICAS, 1 + int(np.ceil(2 * barrier)))


@partial(jax.tree_util.register_dataclass, data_fields=("args", "kwargs"), meta_fields=("program",))
@dataclass(frozen=True)
class FromPrior:
    """Path from the prior of a program to its posterior, in vectors of its unconstrained sites."""

    program: Callable
    args: tuple
    kwargs: dict[str, Any]

    def draw(self, key: Key[Array, ""]) -> Float[Array, " coordinate"]:
        """Draw from the prior."""
        return ravel_pytree(prior_draw(self.program, key, *self.args, **self.kwargs))[0]

    def log_densities(self, point: Float[Array, " coordinate"]) -> tuple[Array, Array]:
        """Log prior density and log likelihood."""
        like = jax.eval_shape(lambda key: prior_draw(self.program, key, *self.args, **self.kwargs), first_key(0))
        sites = ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like))[1](point)

        energy = partial(potential, self.program, self.args, self.kwargs, z=sites)
        value, slope = jax.jvp(energy, (jnp.ones(()),), (jnp.ones(()),))
        return slope - value, -slope


@jax.jit
def _prior_points(keys: Key[Array, " particle"], path: FromPrior) -> Float[Array, "particle coordinate"]:
    return jax.lax.map(path.draw, keys)


class _Power(Messenger):
    """Handler that raises the likelihood, all observed sites of a NumPyro program, to a power.

    NumPyro's log Jacobians of constrained sites, which belong to the prior, are observed sites too; they stay. A scope puts
    its prefix before their names, as before those of the sites.
    """

    def __init__(self, power: float | Array, sites: Iterable[str]):
        self.power, self.jacobians = power, tuple(f"_{site}_log_det" for site in sites)
        super().__init__()

    def process_message(self, msg: Message) -> None:
        if msg["type"] == "sample" and msg["is_observed"] and not str(msg["name"]).endswith(self.jacobians):
            msg["scale"] = self.power if msg.get("scale") is None else self.power * msg["scale"]


def potential(
    program: Callable, args: tuple, kwargs: dict[str, Any], power: float | Array, z: PyTree[Array]
) -> Float[Array, ""]:
    """Potential energy of the unconstrained sites of a NumPyro program whose likelihood is raised to a power."""
    with _Power(power, z):
        return jnp.asarray(potential_energy(program, args, kwargs, z))


def _latent_sites(program: Callable, key: Key[Array, ""], args: tuple, kwargs: dict) -> dict[str, Message]:
    """Latent sites of a NumPyro program, drawn from their prior."""
    with numpyro.handlers.trace() as sites, numpyro.handlers.seed(rng_seed=key):
        program(*args, **kwargs)
    return {name: each for name, each in sites.items() if each["type"] == "sample" and not each["is_observed"]}


def prior_draw(program: Callable, key: Key[Array, ""], *args: Any, **kwargs: Any) -> PyTree[Array]:
    """Unconstrained sites of a NumPyro program, drawn from their prior."""
    sites = _latent_sites(program, key, args, kwargs)
    return {name: biject_to(site["fn"].support).inv(site["value"]) for name, site in sites.items()}


def draws_prior(program: Callable, *args: Any, **kwargs: Any) -> bool:
    """Whether the prior of each latent site of a NumPyro program is what the site's `sample` draws."""
    found: dict[str, Message] = {}
    try:
        jax.eval_shape(lambda key: found.update(_latent_sites(program, key, args, kwargs)), first_key(0))
    except NotImplementedError:
        return False
    return all(site["scale"] is None and not masked(site["fn"]) for site in found.values())


def masked(distribution: Any) -> bool:
    """Whether the log density of a distribution, or of the one that it wraps, leaves something out."""
    inner = getattr(distribution, "base_dist", None)
    return isinstance(distribution, MaskedDistribution | ImproperUniform) or (inner is not None and masked(inner))
