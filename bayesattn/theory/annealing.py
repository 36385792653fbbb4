"""Evidence by annealing: particles of the collapsed posterior, cooled from the prior or bridged from a mixture.

`anneal` is sequential Monte Carlo in the temperature T of the likelihood itself, which is infinite for the prior, so
one run passes through every T that is requested. It lags behind if the posterior moves to a region that hot particles
have not reached. `bridge` begins at a mixture that covers the posterior, and moves to the posterior at one temperature
along the geometric path; if the mixture is close enough, it takes a single step, which is importance sampling.

Islands of particles do not mix, and each gives an unbiased estimate of p(Y): the scatter of the islands gives the
error. The islands share the temperatures, the metric and the step size, which are chosen from all of them.

From one temperature to the next, each island reweights its particles by the ratio of likelihoods, resamples a few of them
by weight, and moves these by Hamiltonian Monte Carlo, keeping all states on the way (waste-free, Dau and Chopin 2022).

Parts of BlackJAX (`blackjax.smc`) do the same but do not fit here. They have one population, so a single run does not
give the error. Their ladder is in the exponent of the likelihood, so it passes through the last temperature only.
"""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from scipy import special

from bayesattn._util.watched import watched
from bayesattn.kernels.conditionals import is_singular
from bayesattn.theory.bartlett import mirrored, sample_prior
from bayesattn.theory.mixture import Component, Mixture, mixture
from bayesattn.theory.problem import Problem, Shapes, potential

ISLANDS = 8
MOVES = 8
"""Moves of each resampled particle; all states on the way are kept."""
PARTICLES = 128
"""Particles of each island, if the likelihood is cheap."""
FEWEST_PARTICLES = 32
MOST_OPERATIONS = 1e10
"""Approximate limit on the operations of the likelihoods of all particles, unless there are `FEWEST_PARTICLES`."""
LOG_WEIGHT_DEVIATION = 0.7
"""Standard deviation of the log weights from one temperature to the next."""
LEAST_EFFECTIVE_SHARE = 0.3
"""Effective share of the particles below which a step is made shorter."""
STEP_DIVISOR = 1.5
"""Factor by which a step of a bridge is made shorter."""
TARGET_ACCEPTANCE = 0.8
TRAJECTORY_LENGTH = 1.5
"""Length of a Hamiltonian trajectory in standard deviations: about a quarter of a period."""
MOST_LEAPFROG_STEPS = 16

Points = Float[Array | np.ndarray, "particle coordinate"]
Numbers = Float[Array | np.ndarray, " particle"]


class Annealed(NamedTuple):
    """log p(Y) at a temperature, its standard error, and the particles of all islands with weights that sum to 1."""

    log_evidence: float
    error: float
    points: Float[np.ndarray, "particle coordinate"]
    weights: Float[np.ndarray, " particle"]


class Singular(ArithmeticError):
    """K + T I of some particle is singular in float64."""


def anneal(
    problem: Problem,
    shapes: Shapes,
    temperatures: Sequence[float],
    key: Key[Array, ""],
    particles: int | None = None,
    *,
    best: float = -np.inf,
    within: float = np.inf,
) -> dict[float, Annealed]:
    """log p(Y) at each temperature, with the standard error from the scatter of the islands; raises Singular.

    By default each island has as many `particles` as `MOST_OPERATIONS` allows. Annealing ends without the colder
    temperatures if log p(Y) is more than `within` below the larger of `best` and the largest estimate so far, and
    decreases as T does.
    """
    wanted = sorted(set(temperatures), reverse=True)
    size = sum(shape.size for shape in shapes)
    count = _usual_particles(problem) if particles is None else particles
    prior_key, resampling_key, moving_key = jax.random.split(key, 3)
    points = jax.device_get(_prior(jax.random.split(prior_key, ISLANDS * count), problem, shapes))
    hot, before, slopes = np.inf, np.zeros(len(points)), np.zeros(len(points))
    log_evidence, variance, step = np.zeros(ISLANDS), 0.0, np.float64(size**-0.25)
    estimates, signs = {}, mirrored(shapes, problem.order)
    nowhere = mixture([Component(0.0, np.zeros(size), np.eye(size))], signs)
    for level in watched(itertools.count(), "annealing"):
        cold = (
            wanted[0]
            if hot == np.inf
            else max(wanted[0], hot * np.exp(-LOG_WEIGHT_DEVIATION / max(np.std(slopes), 1e-3)))
        )
        log_weights = _log_likelihoods(points, cold, problem, shapes)[0] - before
        while _effective_share(log_weights) < LEAST_EFFECTIVE_SHARE:
            cold = 4 * cold if hot == np.inf else np.sqrt(hot * cold)
            log_weights = _log_likelihoods(points, cold, problem, shapes)[0] - before
        by_island = log_weights.reshape(ISLANDS, -1)
        log_evidence += special.logsumexp(by_island, axis=1) - np.log(count)
        # Variance for independent particles: a lower bound, in case the scatter is small by chance.
        variance += (1 / _effective_share(log_weights) - 1) / len(points)
        if cold == wanted[0]:
            weights = special.softmax(by_island, axis=1).ravel() / ISLANDS
            estimates[cold] = Annealed(*_mean(log_evidence, variance), points, weights)
            del wanted[0]
        if not wanted:
            return estimates
        weights = special.softmax(by_island, axis=1)
        keys = jax.random.fold_in(resampling_key, level), jax.random.fold_in(moving_key, level)
        points, step = _moved(keys, points, weights, step, (problem.at(cold), nowhere, 1.0), shapes)
        hot, (before, slopes) = cold, _log_likelihoods(points, cold, problem, shapes)
        best = max([best, *(estimate.log_evidence for estimate in estimates.values())])
        if _mean(log_evidence, variance)[0] < best - within and slopes.mean() > 0:
            return estimates
    raise AssertionError  # never reached


def bridge(
    start: Mixture,
    problem: Problem,
    shapes: Shapes,
    key: Key[Array, ""],
    particles: int | None = None,
    *,
    least_share: float = LEAST_EFFECTIVE_SHARE,
) -> Annealed:
    """log p(Y) by annealing from a mixture to the posterior, along the geometric path between their densities.

    Steps are short enough to keep the effective share of the particles at `least_share` or above. Other arguments as
    for `anneal`. A point with a singular K + T I has no weight.
    """
    count = _usual_particles(problem) if particles is None else particles
    start_key, resampling_key, moving_key = jax.random.split(key, 3)
    points = start.sample(np.random.default_rng(np.asarray(jax.random.key_data(start_key))), ISLANDS * count)
    log_evidence, variance, step = np.zeros(ISLANDS), 0.0, np.float64(points.shape[1] ** -0.25)
    left = 1.0
    for level in watched(itertools.count(), "bridge"):
        log_ratios = np.asarray(_log_ratios(points, start, problem, shapes))
        log_ratios = np.where(np.isfinite(log_ratios), log_ratios, -np.inf)
        part = left
        while _effective_share(part * log_ratios) < least_share:
            part /= STEP_DIVISOR
        left = 0.0 if part == left else left - part
        by_island = (part * log_ratios).reshape(ISLANDS, -1)
        log_evidence += special.logsumexp(by_island, axis=1) - np.log(count)
        variance += (1 / _effective_share(part * log_ratios) - 1) / len(points)
        weights = special.softmax(by_island, axis=1)
        if left == 0:
            return Annealed(*_mean(log_evidence, variance), points, weights.ravel() / ISLANDS)
        keys = jax.random.fold_in(resampling_key, level), jax.random.fold_in(moving_key, level)
        points, step = _moved(keys, points, weights, step, (problem, start, 1 - left), shapes)
    raise AssertionError  # never reached


@partial(jax.jit, static_argnames="shapes")
def _log_ratios(points: Points, start: Mixture, problem: Problem, shapes: Shapes) -> Numbers:
    """Log ratio of prior density times likelihood to the density of the mixture."""
    return jax.lax.map(lambda point: -potential(point, problem, shapes) - start.log_density(point), points)


def prior_draws(key: Key[Array, ""], count: int, problem: Problem, shapes: Shapes) -> Points:
    """Points drawn from the prior."""
    return jax.device_get(_prior(jax.random.split(key, count), problem, shapes))


def _usual_particles(problem: Problem) -> int:
    examples, features, paths = problem.process.features.shape
    work = 2 * examples**3 + examples**2 * paths * min(features, paths)
    return int(np.clip(MOST_OPERATIONS / (ISLANDS * work), FEWEST_PARTICLES, PARTICLES)) // MOVES * MOVES


def _mean(log_evidence: np.ndarray, variance: float) -> tuple[float, float]:
    """Log of the mean of the islands' estimates and its error, with Student's factor for a small number of islands."""
    mean = special.logsumexp(log_evidence) - np.log(ISLANDS)
    scatter = np.std(np.exp(log_evidence - mean), ddof=1) / np.sqrt(ISLANDS)
    student = special.stdtrit(ISLANDS - 1, special.ndtr(1.0))
    return float(mean), float(student * max(scatter, np.sqrt(variance)))


def _effective_share(log_weights: np.ndarray) -> float:
    weights = np.exp(log_weights - log_weights.max())
    return float(weights.mean() ** 2 / np.mean(weights**2))


def spanning_of(points: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Lower triangular L with L L^T the covariance of weighted points, shrunk towards its diagonal if they are few."""
    covariance = np.atleast_2d(np.cov(points.T, aweights=weights))
    shrinkage = points.shape[1] / (points.shape[1] + 1 / np.sum(weights**2))
    return np.linalg.cholesky((1 - shrinkage) * covariance + shrinkage * np.diag(np.diag(covariance)))


def systematic(key: Key[Array, ""], weights: np.ndarray, count: int) -> np.ndarray:
    """Indices of `count` particles of each island by systematic resampling, one island after the other."""
    start = np.asarray(jax.random.uniform(key, (len(weights), 1)))
    heights = (np.arange(count) + start) / count
    chosen = [np.searchsorted(np.cumsum(row), height) for row, height in zip(weights, heights, strict=True)]
    # The sum of the weights may round to less than 1.
    return np.concatenate(
        [island * weights.shape[1] + np.minimum(row, weights.shape[1] - 1) for island, row in enumerate(chosen)]
    )


def _log_likelihoods(points: np.ndarray, temperature: float, problem: Problem, shapes: Shapes):
    """log p(Y | point) and its derivative in log T, for each point; raises Singular if a value is unknown."""
    values, slopes = jax.device_get(_likelihoods(points, problem.at(temperature), shapes))
    if not np.isfinite(values).all():
        raise Singular
    return values, slopes


@partial(jax.jit, static_argnames="shapes")
def _prior(keys, problem: Problem, shapes: Shapes) -> Points:
    return jax.lax.map(lambda key: sample_prior(key, shapes, problem.widths), keys)


@partial(jax.jit, static_argnames="shapes")
def _likelihoods(points: Points, problem: Problem, shapes: Shapes) -> tuple[Numbers, Numbers]:
    process = problem.process

    def one(point):
        factor = problem.factor(point, shapes)

        def value(log_temperature):
            return process.at(jnp.exp(log_temperature)).log_density(factor)

        log_density, slope = jax.value_and_grad(value)(jnp.log(process.temperature))
        return jnp.where(is_singular(process, factor), jnp.nan, log_density), slope

    # Sequential, because batched Cholesky factorisations have been seen to deadlock XLA's threads.
    return jax.lax.map(one, points)


def _moved(
    keys, points: np.ndarray, weights: np.ndarray, step, target: tuple, shapes: Shapes
) -> tuple[Float[np.ndarray, "moved coordinate"], float]:
    """States of Hamiltonian chains from resampled points, and a step size adapted towards the target acceptance.

    The keys are those of resampling and of moves; weights have one row for each island.
    """
    metric = spanning_of(points, weights.ravel() / ISLANDS)
    chosen = systematic(keys[0], weights, weights.shape[1] // MOVES)
    move_keys = jax.random.split(keys[1], len(chosen))
    leaps = int(np.clip(np.ceil(TRAJECTORY_LENGTH / step), 1, MOST_LEAPFROG_STEPS))
    moved, accepted = jax.device_get(_move(move_keys, points[chosen], metric, step, leaps, *target, shapes))
    return moved.reshape(-1, points.shape[1]), step * np.exp(accepted.mean() - TARGET_ACCEPTANCE)


@partial(jax.jit, static_argnames="shapes")
def _move(
    keys, points: Points, metric, step, leaps, problem: Problem, start: Mixture, share, shapes: Shapes
) -> tuple[Float[Array, "particle move coordinate"], Float[Array, "particle move"]]:
    """States of a Hamiltonian chain from each point, and the probabilities that its moves are accepted.

    The target is the density of the posterior to the power `share` times the density of a mixture to the power 1 - `share`.
    """

    @jax.value_and_grad
    def slope(whitened, centre):
        point = centre + metric @ whitened
        rest = jax.lax.cond(share < 1, start.log_density, lambda _: 0.0, point)
        return share * potential(point, problem, shapes) - (1 - share) * rest

    def chain(key_and_point):
        key, centre = key_and_point

        def move(state, key):
            momentum_key, length_key, accept_key = jax.random.split(key, 3)
            momentum = jax.random.normal(momentum_key, centre.shape)
            # Random step lengths, so that no trajectory is periodic.
            length = step * jax.random.uniform(length_key, minval=0.6, maxval=1.2)

            def leap(_, inside):
                (position, momentum), (_, gradient) = inside
                momentum -= length * gradient / 2
                position += length * momentum
                value = slope(position, centre)
                return (position, momentum - length * value[1] / 2), value

            (position, turned), value = jax.lax.fori_loop(0, leaps, leap, ((state[0], momentum), state[1]))
            energy_error = value[0] - state[1][0] + (turned @ turned - momentum @ momentum) / 2
            probability = jnp.exp(-jnp.maximum(jnp.where(jnp.isfinite(energy_error), energy_error, jnp.inf), 0))
            accepted = jax.random.uniform(accept_key) < probability
            state = jax.tree.map(partial(jnp.where, accepted), (position, value), state)
            return state, (state[0], probability)

        origin = jnp.zeros_like(centre)
        _, (states, probabilities) = jax.lax.scan(move, (origin, slope(origin, centre)), jax.random.split(key, MOVES))
        return centre + states @ metric.T, probabilities

    return jax.lax.map(chain, (keys, points))
