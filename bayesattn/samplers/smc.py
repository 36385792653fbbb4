"""Tempered sequential Monte Carlo: the evidence of any posterior, and draws from it, which start as prior draws.

Particles move from the prior to the posterior through powers of the likelihood (`bayesattn.theory.particles`). If a
posterior has several modes, as that of queries and keys may, they can reach each mode while the likelihood is weak.
"""

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key
from numpyro.infer.util import compute_log_probs
from scipy import special

from bayesattn._util.checks import positive_integer, require_kind, seed_number
from bayesattn._util.random import first_key, stream
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described
from bayesattn.errors import BayesattnError
from bayesattn.models import Parameterisation, parameterisation_of
from bayesattn.models.interface import from_vectors
from bayesattn.models.posterior import Posterior
from bayesattn.theory.evidence import LARGEST_RELIABLE_ERROR
from bayesattn.theory.particles import Particles, annealed, log_ratios, moved, systematic

if TYPE_CHECKING:
    import xarray as xr

WIDEST_RANGE = 1.0
"""Range of the islands' log p(Y) above which they are too few."""


@dataclass(frozen=True, eq=False, repr=False)
class Annealed(Described):
    """Evidence and draws from tempered sequential Monte Carlo.

    Args:
        log_evidence: log p(Y), the log of the mean of the islands' estimates. It is biased low, since powers and metric
            are chosen from the particles themselves, the more the fewer there are.
        error: standard error of `log_evidence`: +- 2 errors is the 95 % interval, by Student's law over the islands. It
            uses the scatter of p(Y) or of log p(Y), whichever is larger, and is no less than that of independent particles.
        reliable: whether the islands lie within a nat of each other, and the error is at most 0.3.
        islands: log p(Y) by each island.
        powers: powers of the likelihood, from 0 to 1.
        acceptance: mean acceptance probability of the moves at each power.
        excluded: number of prior draws whose likelihood is 0 or NaN.
        particles: number of particles of all islands.
        draws: particles resampled by weight, in the format of `bayesattn.sample`; each island is a "chain". Draws of
            one island may be copies of each other, so effective sample sizes are upper bounds.
    """

    log_evidence: float
    error: float
    reliable: bool
    islands: Float[np.ndarray, " island"]
    powers: Float[np.ndarray, " power"]
    acceptance: Float[np.ndarray, " power"]
    excluded: int
    particles: int
    draws: "xr.DataTree"

    def _described(self) -> tuple[str, dict[str, str]]:
        rows = {
            "log evidence": f"{self.log_evidence:.4g} ± {self.error:.2g}, of {len(self.islands)} islands"
            f" from {self.islands.min():.4g} to {self.islands.max():.4g}" + ("" if self.reliable else ", not reliable"),
            "powers": f"{len(self.powers)}; moves accepted with probability {self.acceptance.min():.2f} to"
            f" {self.acceptance.max():.2f}",
        }
        if self.excluded:
            rows["excluded"] = f"{self.excluded} of {self.particles} draws from the prior, whose likelihood is 0 or NaN"
        return "Annealed", rows


@with_own_settings
def anneal(
    model: Posterior,
    parameterisation: str = "collapsed",
    *,
    islands: int = 8,
    particles: int = 512,
    moves: int = 8,
    seed: int = 0,
    weights: bool = False,
) -> Annealed:
    """Evidence p(Y) of a posterior and draws from it, by tempered sequential Monte Carlo (Del Moral, Doucet and Jasra 2006).

    Args:
        model: the posterior; its parameterisation must be able to draw from the prior.
        parameterisation: as for `bayesattn.sample`.
        islands: number of islands, at least 2.
        particles: number of particles of each island, a multiple of `moves`.
        moves: Hamiltonian moves of each resampled particle at each power; the states after all of them are particles of the
            next power, so that more moves mean fewer resampled particles, and not more work.
        seed: same seed, same result.
        weights: whether draws hold the weights of the network.

    Raises:
        ValueError: invalid numbers, a parameterisation that does not fit the model or cannot draw from its prior.
        FloatingPointError: no particle of an island has a finite likelihood.

    Warns if islands differ by more than a nat, or if the likelihood of a prior draw is NaN, which counts as 0.
    """
    require_kind("model", model, Posterior)
    for name, value, least in (("islands", islands, 2), ("particles", particles, 8), ("moves", moves, 1)):
        positive_integer(name, value, least)
    if particles % moves:
        raise BayesattnError(f"particles must be a multiple of moves = {moves}, got {particles}")
    seed_number("seed", seed)
    kind = parameterisation_of(model, parameterisation)
    if not kind.simulates:
        raise BayesattnError(f"parameterisation must draw from its prior to be annealed, got {parameterisation!r}")
    path = ToPosterior(kind.ready(model, weights=weights))
    start_key, annealing_key, moves_key, last_key = jax.random.split(
        stream(seed, "annealing", model.fingerprint, parameterisation), 4
    )
    initial = Particles.at(
        np.asarray(_prior(jax.random.split(start_key, islands * particles), path.posterior)), islands
    )
    excluded = _number_excluded(initial, path)
    final = annealed(annealing_key, initial, path, moves)
    _warn_of_spread(final, moves)
    final = moved(moves_key, final, path, 1.0, moves)
    # Islands are weighted by their estimates of the evidence.
    shares = special.softmax(final.islands)[:, None] * final.weights
    chosen = systematic(last_key, shares.reshape(1, -1), islands * particles)
    points = final.flat[0][chosen].reshape(final.points.shape)
    return Annealed(
        log_evidence=final.log_evidence,
        error=final.error,
        reliable=bool(np.ptp(final.islands) <= WIDEST_RANGE and final.error <= LARGEST_RELIABLE_ERROR),
        islands=final.islands,
        powers=np.array(final.powers),
        acceptance=np.array(final.acceptance),
        excluded=excluded,
        particles=islands * particles,
        draws=from_vectors(points, model, parameterisation, weights=weights, seed=seed),
    )


def _warn_of_spread(final: Particles, moves: int) -> None:
    """Warn if the evidences of the islands are far apart."""
    (islands, particles), spread = final.weights.shape, np.ptp(final.islands)
    if spread > WIDEST_RANGE:
        warnings.warn(
            f"log p(Y) of the {islands} islands differs by {spread:.2g} nats: there are too few particles for the evidence"
            f" and its error ({particles} an island), or too few moves ({moves})",
            stacklevel=4,
        )


def _number_excluded(initial: Particles, path: "ToPosterior") -> int:
    """Number of prior draws whose likelihood is 0 or NaN."""
    likelihoods = log_ratios(initial.flat[0], path).reshape(initial.weights.shape)
    if undefined := int(np.sum(np.isnan(likelihoods))):
        warnings.warn(
            f"likelihood is NaN for {undefined} of {likelihoods.size} draws from the prior, and counts as 0 there",
            stacklevel=4,
        )
    if not np.isfinite(likelihoods).any(1).all():
        raise FloatingPointError(
            "an island has no particle of finite likelihood: use more particles, or a broader likelihood"
        )
    return int(np.sum(~np.isfinite(likelihoods)))


@jax.jit
def _prior(keys: Key[Array, " particle"], posterior: Parameterisation) -> Float[Array, "particle coordinate"]:
    return jax.lax.map(lambda key: ravel_pytree(posterior.draw_prior(key))[0], keys)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ToPosterior:
    """Path from the prior of a parameterisation to its posterior, in vectors of its sites."""

    posterior: Parameterisation

    def log_densities(self, point: Float[Array, " coordinate"]) -> tuple[Array, Array]:
        """Log prior density and log likelihood."""
        unravel = ravel_pytree(self.posterior.initial(first_key(0)))[1]
        log_probs, trace = compute_log_probs(self.posterior.program, (), {}, unravel(point))
        observed = [name for name in log_probs if trace[name]["is_observed"]]
        prior = sum((value for name, value in log_probs.items() if name not in observed), jnp.zeros(()))
        return prior, sum((log_probs[name] for name in observed), jnp.zeros(()))
