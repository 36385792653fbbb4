"""Tempered sequential Monte Carlo: the evidence of any posterior, and draws from it, which start as prior draws.

Particles move from the prior to the posterior through powers of the likelihood (`bayesattn.theory.particles`). If a
posterior has several modes, as that of queries and keys may, they can reach each mode while the likelihood is weak.
"""

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key
from numpyro.infer.util import compute_log_probs
from scipy import special

from bayesattn._util.checks import positive, positive_integer, require_kind, seed_number
from bayesattn._util.random import first_key, stream
from bayesattn._util.settings import with_own_settings
from bayesattn._util.slow_loops import watched
from bayesattn._util.text import Described, with_error
from bayesattn.errors import BayesattnError
from bayesattn.models import AttentionModel, CollapsedAttention, Parameterisation, parameterisation_of
from bayesattn.models.interface import from_vectors
from bayesattn.models.posterior import Posterior
from bayesattn.theory.evidence import evidence
from bayesattn.theory.particles import (
    LARGEST_RELIABLE_ERROR,
    LEAST_EFFECTIVE_SHARE,
    MOST_POWERS,
    Particles,
    annealed,
    effective_number,
    log_ratios,
    moved,
)

if TYPE_CHECKING:
    import xarray as xr

BISECTIONS = 10
"""Halvings of the interval in which the next scale of the logits is looked for."""
MOST_PARTICLES = 2**16
"""Most particles of all islands to which `error` may double them."""


@dataclass(frozen=True, eq=False, repr=False)
class Annealed(Described):
    """Evidence and draws from tempered sequential Monte Carlo.

    Args:
        log_evidence: log p(Y), the log of the mean of the islands' estimates, each of which is unbiased up to the choice of
            powers and metric. If they scatter widely it is rather too small than too large.
        error: standard error of `log_evidence`: +- 2 errors is the 95 % interval if the islands' logarithms are normal
            (`bayesattn.theory.particles.Particles.error`). It is no less than that of independent particles. A mode
            that no island has found is not in it.
        reliable: whether the error is at most 0.3, as for `bayesattn.theory.evidence`.
        islands: log p(Y) by each island.
        powers: powers of the likelihood, from 0 to 1.
        acceptance: mean acceptance probability of the moves at each power.
        excluded: number of prior draws whose likelihood is 0 or NaN.
        particles: number of particles of all islands.
        draws: particles of equal weight, in the format of `bayesattn.sample`, each island a "chain", in which relatives
            are neighbours. So R-hat compares the islands, and effective sample sizes count copies once.
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

    @property
    def shares(self) -> "xr.DataArray":
        """Share of each island, or chain of the draws, in the estimate of p(Y).

        The mean over draws counts islands equally. With these weights it tends to the posterior's with more islands too,
        though it scatters more: `draws["posterior"]["prediction"].mean("draw").weighted(annealed.shares).mean("chain")`.
        """
        chains = self.draws["posterior"].to_dataset()["chain"]
        return chains.copy(data=special.softmax(self.islands))

    def _described(self) -> tuple[str, dict[str, str]]:
        doubt = "" if self.reliable else "; not reliable, rather too small than too large"
        rows = {
            "log evidence": f"{with_error(self.log_evidence, self.error)}, of {len(self.islands)} islands"
            f" from {self.islands.min():.4g} to {self.islands.max():.4g}{doubt}",
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
    error: float | None = None,
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
        error: largest error in nats. Particles are doubled until an island has one for each coordinate, since fewer may
            agree by chance; then, with annealing repeated, until the error is at most this, or the next doubling would
            exceed 65,536 of all islands. The result is that of the last pass, as if it had been asked for with so many
            `particles`; all passes together cost less than twice the last.

    Raises:
        ValueError: invalid numbers, a parameterisation that does not fit the model.
        FloatingPointError: no particle of an island has a finite likelihood.

    Warns if the error is above `error`, by default 0.3, or if the likelihood of a prior draw is NaN, which counts as 0.
    """
    require_kind("model", model, Posterior)
    _check_numbers(islands, particles, moves, seed)
    if error is not None:
        positive("error", error)
    posterior = parameterisation_of(model, parameterisation).ready(model, weights=weights)
    if error is not None:  # Fewer particles than coordinates may agree by chance.
        sites = jax.tree.leaves(jax.eval_shape(posterior.initial, first_key(0)))
        while particles < sum(site.size for site in sites) and 2 * islands * particles <= MOST_PARTICLES:
            particles *= 2
    while True:
        key = stream(seed, "annealing", model.fingerprint, parameterisation, str(particles))
        final, excluded = _pass(key, ToPosterior(posterior), islands, particles, moves)
        if error is None or final.error <= error or 2 * islands * particles > MOST_PARTICLES:
            break
        particles *= 2
    most = LARGEST_RELIABLE_ERROR if error is None else error
    if final.error > most:
        warnings.warn(
            f"log p(Y) of the {islands} islands differs by {np.ptp(final.islands):.2g} nats, so that its error is"
            f" {final.error:.2g}, above {most:g}: use more than {particles} particles an island, or more moves than {moves}",
            stacklevel=3,
        )
    return Annealed(
        log_evidence=final.log_evidence,
        error=final.error,
        reliable=final.reliable,
        islands=final.islands,
        powers=np.array(final.powers),
        acceptance=np.array(final.acceptance),
        excluded=excluded,
        particles=islands * particles,
        draws=from_vectors(final.points, model, parameterisation, weights=weights, seed=seed),
    )


def _pass(key: Key[Array, ""], path: "ToPosterior", islands: int, particles: int, moves: int) -> tuple[Particles, int]:
    """Equally weighted particles of the posterior, and the number of prior draws without a likelihood."""
    start_key, annealing_key, moves_key = jax.random.split(key, 3)
    keys = jax.random.split(start_key, islands * particles)
    initial = Particles.at(np.asarray(_prior(keys, path.posterior)), islands)
    excluded = _number_excluded(initial, path)
    return moved(moves_key, annealed(annealing_key, initial, path, moves), path, 1.0, moves), excluded


@with_own_settings
def anneal_logits(
    model: AttentionModel,
    *,
    islands: int = 8,
    particles: int = 512,
    moves: int = 8,
    seed: int = 0,
) -> Annealed:
    """Evidence p(Y) and draws of a posterior with sampled attention, by annealing the scale of its logits from 0 to 1.

    At scale 0 attention is uniform: queries and keys are draws from their prior, the evidence is `bayesattn.theory.evidence`
    of the posterior with uniform attention, and its draws are annealed from the prior. From there the whole likelihood
    stays, and the logits grow. It is a route of its own to what `anneal` and `bayesattn.tempering` find; the path is ours.

    Args:
        model: the posterior, in the collapsed parameterisation.
        islands: as for `anneal`.
        particles: as for `anneal`.
        moves: as for `anneal`.
        seed: same seed, same result.

    Returns the same as `anneal`, with scales of the logits as `powers`.

    Raises ValueError for another kind of model and invalid numbers, FloatingPointError where islands lose all weight.
    """
    require_kind("model", model, AttentionModel)
    model.require_numbers()
    _check_numbers(islands, particles, moves, seed)
    posterior = CollapsedAttention.of(model)
    key = stream(seed, "annealing logits", model.fingerprint, str(particles))
    uniform_key, key = jax.random.split(key)
    at = AtScale(posterior, jnp.zeros(()))
    current, excluded = _pass(uniform_key, ToPosterior(at.scaled), islands, particles, moves)
    heads = [np.zeros((count, model.features, model.features)) for count in model.architecture.heads]
    uniform = evidence(model.given(heads), seed=seed)
    # Islands keep their shares in the evidence at scale 0, whose estimate by them all is replaced by that of `uniform`.
    current = current._replace(
        islands=current.islands - current.log_evidence, variance=0.0, powers=(0.0,), acceptance=()
    )
    for level in watched(itertools.count(), "annealing logits"):
        if level == MOST_POWERS:
            raise FloatingPointError(f"logits are at scale {at.scale:g} after {level} steps: use more particles")
        before = log_likelihoods(current, at)

        def change(scale: float, before: np.ndarray = before, current: Particles = current) -> np.ndarray:
            return log_likelihoods(current, AtScale(posterior, jnp.asarray(scale))) - before

        scale = _next_scale(change, float(at.scale))
        at = AtScale(posterior, jnp.asarray(scale))
        current = current.reweighted(change(scale))._replace(powers=(*current.powers, scale))
        current = moved(jax.random.fold_in(key, level), current, at, 0.0, moves)
        if scale == 1:
            break
    error = float(np.hypot(current.error, uniform.error))
    return Annealed(
        log_evidence=uniform.log_evidence + current.log_evidence,
        error=error,
        reliable=uniform.reliable and error <= LARGEST_RELIABLE_ERROR,
        islands=uniform.log_evidence + current.islands,
        powers=np.array(current.powers),
        acceptance=np.array(current.acceptance),
        excluded=excluded,
        particles=islands * particles,
        draws=from_vectors(current.points, model, "collapsed", seed=seed),
    )


def _next_scale(change: Callable[[float], np.ndarray], scale: float) -> float:
    """Largest scale up to 1 at which the effective share of the particles is `LEAST_EFFECTIVE_SHARE`, by bisection."""

    def share(candidate: float) -> float:
        ratios = change(candidate)
        return effective_number(ratios) / ratios.size

    if share(1.0) >= LEAST_EFFECTIVE_SHARE:
        return 1.0
    low, high = scale, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if share(middle) >= LEAST_EFFECTIVE_SHARE else (low, middle)
    return high if low == scale else low


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AtScale:
    """Posterior with sampled attention whose logits are multiplied by a scale, as a path of one density."""

    posterior: CollapsedAttention
    scale: Array

    @property
    def scaled(self) -> CollapsedAttention:
        """The posterior: logits are linear in the deviations of the queries, whose sites are standard normal."""
        prior = replace(self.posterior.prior, query_deviations=self.scale * self.posterior.prior.query_deviations)
        return replace(self.posterior, prior=prior)

    def log_densities(self, point: Float[Array, " coordinate"]) -> tuple[Array, Array]:
        """Log density, and 0."""
        prior, likelihood = ToPosterior(self.scaled).log_densities(point)
        return prior + likelihood, jnp.zeros(())


def log_likelihoods(particles: Particles, at: AtScale) -> np.ndarray:
    """Log likelihood of each particle at a scale; minus infinity where it is not defined."""
    found = log_ratios(particles.flat[0], ToPosterior(at.scaled)).reshape(particles.weights.shape)
    return np.where(np.isfinite(found), found, -np.inf)


def _check_numbers(islands: int, particles: int, moves: int, seed: int) -> None:
    for name, value, least in (("islands", islands, 2), ("particles", particles, 8), ("moves", moves, 1)):
        positive_integer(name, value, least)
    if particles % moves:
        raise BayesattnError(f"particles must be a multiple of moves = {moves}, got {particles}")
    seed_number("seed", seed)


def _number_excluded(initial: Particles, path: "ToPosterior") -> int:
    """Number of prior draws whose likelihood is 0 or NaN."""
    likelihoods = log_ratios(initial.flat[0], path).reshape(initial.weights.shape)
    if undefined := int(np.sum(np.isnan(likelihoods))):
        warnings.warn(
            f"likelihood is NaN for {undefined} of {likelihoods.size} draws from the prior, and counts as 0 there",
            stacklevel=5,
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
