"""Tempered sequential Monte Carlo: the evidence of any posterior, and draws from it, which start as prior draws.

Particles move from the prior to the posterior through powers of the likelihood (BlackJAX's `smc.tempered`). If a posterior
has several modes, as that of queries and keys may, the particles can reach each mode while the likelihood is weak. Particles
form islands, which do not mix. All islands share powers, step sizes and metrics, which are chosen from all particles. Each
island gives an estimate of p(Y), and the scatter of these estimates gives the error.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import blackjax
import blackjax.smc.resampling
import blackjax.smc.tempered
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key
from numpyro.infer.util import compute_log_probs
from scipy import optimize, special

from bayesattn._util.checks import positive_integer, require_kind, seed_number
from bayesattn._util.errors import BayesattnError
from bayesattn._util.random import fingerprint, first_key, stream
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described
from bayesattn._util.watched import watched
from bayesattn.models import Parameterisation, parameterisation_of
from bayesattn.models.interface import from_vectors
from bayesattn.models.posterior import Posterior
from bayesattn.theory.evidence import LARGEST_RELIABLE_ERROR

if TYPE_CHECKING:
    import xarray as xr

EFFECTIVE_SHARE = 0.5
"""Effective share of the particles after each step from one power to the next."""
LEAPFROG_STEPS = 8
TARGET_ACCEPTANCE = 0.8
MOST_STEPS = 200
"""Most steps from the prior to the posterior."""
WIDEST_RANGE = 1.0
"""Range of the islands' log p(Y) above which they are too few."""

Particles = Float[Array, "island particle coordinate"]


@dataclass(frozen=True, eq=False, repr=False)
class Annealed(Described):
    """Evidence and draws from tempered sequential Monte Carlo.

    Args:
        log_evidence: log p(Y), the log of the mean of the islands' estimates. It is biased low, since powers and metric
            are chosen from the particles themselves, the more the fewer there are.
        error: half of its 95 % interval. It adds the variance that independent particles would have to the scatter of the
            islands (of p(Y) or of log p(Y), whichever is larger), with Student's factor for their small number.
        reliable: whether the islands lie within a nat of each other, and the error is at most 0.3.
        islands: log p(Y) by each island.
        powers: powers of the likelihood, from 0 to 1.
        acceptance: mean acceptance probability of the moves at each power.
        died: number of prior draws whose likelihood is 0 or NaN.
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
    died: int
    particles: int
    draws: "xr.DataTree"

    def _described(self) -> tuple[str, dict[str, str]]:
        rows = {
            "log evidence": f"{self.log_evidence:.4g} ± {self.error:.2g}, of {len(self.islands)} islands"
            f" from {self.islands.min():.4g} to {self.islands.max():.4g}" + ("" if self.reliable else ", not reliable"),
            "powers": f"{len(self.powers)}; moves accepted with probability {self.acceptance.min():.2f} to"
            f" {self.acceptance.max():.2f}",
        }
        if self.died:
            rows["died"] = f"{self.died} of {self.particles} draws from the prior, whose likelihood is 0 or NaN"
        return "Annealed", rows


@with_own_settings
def anneal(
    model: Posterior,
    parameterisation: str = "collapsed",
    *,
    islands: int = 8,
    particles: int = 256,
    moves: int = 4,
    seed: int = 0,
    weights: bool = False,
) -> Annealed:
    """Evidence p(Y) of a posterior and draws from it, by tempered sequential Monte Carlo (Del Moral, Doucet and Jasra 2006).

    Args:
        model: the posterior; its parameterisation must be able to draw from the prior.
        parameterisation: as for `bayesattn.sample`.
        islands: number of islands, at least 2.
        particles: number of particles of each island.
        moves: Hamiltonian moves of each particle at each power.
        seed: same seed, same result.
        weights: whether draws hold the weights of the network.

    Raises:
        ValueError: invalid numbers, a parameterisation that does not fit the model or cannot draw from its prior.
        FloatingPointError: the posterior is not reached in 200 steps, or no particle of an island has a finite likelihood.

    Warns if islands differ by more than a nat, or if the likelihood of a prior draw is NaN, which counts as 0.
    """
    require_kind("model", model, Posterior)
    for name, value, least in (("islands", islands, 2), ("particles", particles, 8), ("moves", moves, 1)):
        positive_integer(name, value, least)
    seed_number("seed", seed)
    kind = parameterisation_of(model, parameterisation)
    if not kind.simulates:
        raise BayesattnError(f"parameterisation must draw from its prior to be annealed, got {parameterisation!r}")
    posterior = kind.of(model, weights=weights, all_examples=False, **kind.prepare(model))
    start_key, moves_key, last_key = jax.random.split(
        stream(seed, "annealing", fingerprint(model), parameterisation), 3
    )
    like = ravel_pytree(posterior.initial(first_key(0)))[0]
    points = _prior(jax.random.split(start_key, (islands, particles)), posterior)
    step, power = 0.5 * like.size**-0.25, 0.0
    log_evidence, variance, died, powers, acceptance = np.zeros(islands), 0.0, 0, [0.0], []
    for level in watched(range(MOST_STEPS), "annealing"):
        likelihoods = np.asarray(_log_likelihoods(points, posterior))
        if level == 0:
            died = int(np.sum(~np.isfinite(likelihoods)))
            if undefined := int(np.sum(np.isnan(likelihoods))):
                warnings.warn(
                    f"likelihood is NaN for {undefined} of {likelihoods.size} draws from the prior, and counts as 0 there",
                    stacklevel=3,
                )
        likelihoods = np.where(np.isfinite(likelihoods), likelihoods, -np.inf)
        if not np.isfinite(likelihoods).any(1).all():
            raise FloatingPointError(
                "an island has no particle of finite likelihood: use more particles, or a broader likelihood"
            )
        rise = _rise(likelihoods, 1 - power)
        log_weights = rise * likelihoods
        log_evidence += special.logsumexp(log_weights, axis=1) - np.log(particles)
        # Variance for independent particles: a lower bound, in case the islands agree by chance.
        total: Any = special.logsumexp(log_weights)
        squares: Any = special.logsumexp(2 * log_weights)
        variance += np.exp(squares - 2 * total) - 1 / log_weights.size
        power = 1.0 if rise >= 1 - power else power + rise
        powers.append(power)
        normal = special.softmax(log_weights, axis=1)
        keys = jax.random.split(jax.random.fold_in(moves_key, level), islands)
        scale = _spread(np.asarray(points), normal)
        points, accepted = _moved(keys, points, normal, power, scale, step, moves, posterior)
        acceptance.append(float(np.mean(accepted)))
        step *= np.exp(acceptance[-1] - TARGET_ACCEPTANCE)
        if power == 1:
            break
    else:
        raise FloatingPointError(
            f"the posterior was not reached in {MOST_STEPS} powers of the likelihood, the last is {power:.3g}: raise the"
            " temperature or the number of particles"
        )
    mean, error = _mean(log_evidence, variance)
    if (differ := np.ptp(log_evidence)) > WIDEST_RANGE:
        warnings.warn(
            f"log p(Y) of the {islands} islands differs by {differ:.2g} nats: there are too few particles for the evidence"
            f" and its error ({particles} an island), or too few moves ({moves})",
            stacklevel=3,
        )
    reliable = bool(differ <= WIDEST_RANGE and error <= LARGEST_RELIABLE_ERROR)
    # Islands are weighted by their estimates of the evidence.
    shares = special.softmax(log_evidence)
    chosen = _across_islands(np.random.default_rng(np.asarray(jax.random.key_data(last_key))), shares, particles)
    flat = np.asarray(points).reshape(-1, like.size)[chosen].reshape(islands, particles, -1)
    draws = from_vectors(flat, model, parameterisation, weights=weights, seed=seed)
    return Annealed(
        mean, error, reliable, log_evidence, np.array(powers), np.array(acceptance), died, islands * particles, draws
    )


def _mean(log_evidence: np.ndarray, variance: float) -> tuple[float, float]:
    """Log of the mean of the islands' estimates, and half of its 95 % interval."""
    islands = len(log_evidence)
    mean = special.logsumexp(log_evidence) - np.log(islands)
    scatter = max(np.std(np.exp(log_evidence - mean), ddof=1), np.std(log_evidence, ddof=1)) / np.sqrt(islands)
    return float(mean), float(np.hypot(special.stdtrit(islands - 1, 0.975) / 2 * scatter, np.sqrt(variance)))


def _across_islands(random: np.random.Generator, shares: np.ndarray, particles: int) -> np.ndarray:
    """Indices of particles, from each island in proportion to its share, in an order that spreads islands over rows."""
    wanted = len(shares) * particles
    heights = (np.arange(wanted) + random.uniform()) / wanted
    islands = np.minimum(np.searchsorted(np.cumsum(shares), heights), len(shares) - 1)
    places = np.empty(wanted, int)
    for island in range(len(shares)):
        mine = np.flatnonzero(islands == island)
        order = random.permutation(particles)
        places[mine] = island * particles + order[np.arange(len(mine)) % particles]
    return places


def _rise(likelihoods: np.ndarray, most: float) -> float:
    """Largest rise of the power that keeps the effective share of particles with a likelihood at `EFFECTIVE_SHARE`."""
    likelihoods = likelihoods[np.isfinite(likelihoods)]

    def share(rise: float) -> float:
        weights = np.exp(rise * (likelihoods - likelihoods.max()))
        return float(weights.mean() ** 2 / np.mean(weights**2))

    if share(most) >= EFFECTIVE_SHARE:
        return most
    # At the lower end of the bracket, no weight is more than a hundredth smaller than another.
    least, log_most = np.log(0.01 / np.ptp(likelihoods)), np.log(most)
    found: Any = optimize.brentq(lambda logarithm: share(np.exp(logarithm)) - EFFECTIVE_SHARE, least, log_most)
    return float(np.exp(found))


def _spread(points: np.ndarray, weights: np.ndarray) -> Float[np.ndarray, " coordinate"]:
    """Standard deviation of each coordinate over all islands."""
    flat, shares = points.reshape(-1, points.shape[2]), weights.ravel() / len(weights)
    mean = shares @ flat
    return np.sqrt(np.maximum(shares @ (flat - mean) ** 2, 1e-12))


@jax.jit
def _prior(keys: Key[Array, "island particle"], posterior: Parameterisation) -> Particles:
    return jax.lax.map(jax.vmap(lambda key: ravel_pytree(posterior.draw_prior(key))[0]), keys)


def _densities(posterior: Parameterisation) -> Callable[[Array], tuple[Array, Array]]:
    """Function of a vector whose values are log prior density and log likelihood."""
    unravel = ravel_pytree(posterior.initial(first_key(0)))[1]

    def at(vector: Array) -> tuple[Array, Array]:
        log_probs, trace = compute_log_probs(posterior.program, (), {}, unravel(vector))
        observed = [name for name in log_probs if trace[name]["is_observed"]]
        prior = sum((value for name, value in log_probs.items() if name not in observed), jnp.zeros(()))
        return prior, sum((log_probs[name] for name in observed), jnp.zeros(()))

    return at


@jax.jit
def _log_likelihoods(points: Particles, posterior: Parameterisation) -> Float[Array, "island particle"]:
    return jax.lax.map(jax.vmap(lambda vector: _densities(posterior)(vector)[1]), points)


@partial(jax.jit, static_argnames="moves")
def _moved(keys, points: Particles, weights, power, scale, step, moves: int, posterior: Parameterisation):
    """Particles of each island after resampling and moves at a power, and the acceptance probabilities of the moves."""
    densities = _densities(posterior)
    # The compiled program evaluates both functions at once.
    prior, likelihood = lambda vector: densities(vector)[0], lambda vector: densities(vector)[1]
    kernel = blackjax.smc.tempered.build_kernel(
        prior, likelihood, blackjax.hmc.build_kernel(), blackjax.hmc.init, blackjax.smc.resampling.systematic
    )
    parameters = {
        "step_size": jnp.asarray(step)[None],
        "inverse_mass_matrix": (scale**2)[None],
        "num_integration_steps": jnp.array([LEAPFROG_STEPS]),
    }

    def island(each):
        key, particles, shares = each
        state = blackjax.smc.tempered.TemperedSMCState(particles, shares, power)
        state, info = kernel(key, state, moves, power, parameters)
        return state.particles, info.update_info.acceptance_rate

    return jax.lax.map(island, (keys, points, weights))
