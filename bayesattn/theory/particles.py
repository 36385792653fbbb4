"""Sequential Monte Carlo: particles that go from a reference density to a target density, and the evidence on the way.

At a power b from 0 to 1, the density of a path is proportional to r^(1 - b) t^b, with r its reference and t its target. From
one power to the next, particles are reweighted; they are then resampled by weight, a few of them only, and these move by
Hamiltonian Monte Carlo, with all states on the way kept (waste-free, Dau and Chopin 2022).

Islands of particles do not mix, and each gives an unbiased estimate of the ratio of the constants of normalisation of target
and reference: the scatter of the islands gives its error. The islands share the powers and the step size, which are chosen
from all of them; the metric of each is from others.
"""

import itertools
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from scipy import optimize, special

from bayesattn._util.slow_loops import watched
from bayesattn.kernels.energies import one_by_one

MOST_POWERS = 1000
"""Steps after which annealing gives up: usual ones take some tens."""
LEAST_EFFECTIVE_SHARE = 0.5
"""Effective share of the particles after each step from one power to the next."""
LARGEST_RELIABLE_ERROR = 0.3
"""Largest error, in nats, of a reliable evidence."""
TARGET_ACCEPTANCE = 0.8
TRAJECTORY_LENGTH = 1.5
"""Length of a Hamiltonian trajectory in standard deviations: about a quarter of a period."""
MOST_LEAPFROG_STEPS = 16
ROUNDING = 1e-12
"""Share of the mean square of a coordinate up to which its variance is only rounding."""
MOST_COORDINATES_FOR_DENSE_METRIC = 1000

Point = Float[Array, " coordinate"]
Points = Float[np.ndarray, "island particle coordinate"]
Numbers = Float[np.ndarray, "island particle"]


@runtime_checkable
class Interpolation(Protocol):
    """Geometric path between two densities, a pytree."""

    def log_densities(self, point: Point) -> tuple[Array, Array]:
        """Log density of the reference at a point, and log ratio of the target's density to it."""
        ...


class Particles(NamedTuple):
    """Weighted particles of some islands.

    Args:
        points: where they are.
        weights: their weights, which sum to 1 in each island.
        islands: each island's log ratio of the constants of normalisation, from the first reference up to now.
        variance: variance of the log of the islands' mean if all particles were independent, a lower bound.
        step: step size of their moves.
        powers: powers of all paths so far.
        acceptance: mean acceptance probability of the moves at each of these powers.
    """

    points: Points
    weights: Numbers
    islands: Float[np.ndarray, " island"]
    variance: float
    step: float
    powers: tuple[float, ...] = (0.0,)
    acceptance: tuple[float, ...] = ()

    @classmethod
    def at(cls, points: Float[np.ndarray, "particle coordinate"], islands: int) -> "Particles":
        """Particles with equal weights at draws from a reference."""
        count, size = len(points) // islands, points.shape[1]
        weights = np.full((islands, count), 1 / count)
        return cls(points.reshape(islands, count, size), weights, np.zeros(islands), 0.0, size**-0.25)

    @property
    def flat(self) -> tuple[Float[np.ndarray, "particle coordinate"], Float[np.ndarray, " particle"]]:
        """Points of all islands, and weights that sum to 1."""
        return self.points.reshape(-1, self.points.shape[2]), self.weights.ravel() / len(self.weights)

    @property
    def log_evidence(self) -> float:
        """Log of the mean of the islands' ratios of constants of normalisation."""
        return float(special.logsumexp(self.islands) - np.log(len(self.islands)))

    @property
    def error(self) -> float:
        """Standard error of `log_evidence`: +- 2 errors is the 95 % interval where the islands' logarithms are normal.

        It consists of the scatter of these or of the ratios themselves, whichever is larger, with Student's law over the
        islands; of the uncertainty of s^2 in mean + s^2 / 2, the log mean of a log-normal law whose logarithms have variance
        s^2 (Cox's method, Zhou and Gao 1997); and of half the distance of that log mean from `log_evidence`, which is biased
        low if s is large.
        """
        count = len(self.islands)
        student = special.stdtrit(count - 1, 0.975) / 2
        logs, ratios = np.var(self.islands, ddof=1), np.var(np.exp(self.islands - self.log_evidence), ddof=1)
        scatter = student**2 * (max(logs, ratios) / count + student**2 * logs**2 / (2 * (count - 1)))
        missing = abs(np.mean(self.islands) + logs / 2 - self.log_evidence)
        # Islands may agree by chance.
        return float(max(np.sqrt(scatter) + missing / 2, np.sqrt(self.variance)))

    @property
    def reliable(self) -> bool:
        """Whether the error is at most `LARGEST_RELIABLE_ERROR`."""
        return self.error <= LARGEST_RELIABLE_ERROR

    def reweighted(self, log_ratios: Numbers) -> "Particles":
        """Particles with weights multiplied by ratios of densities."""
        log_weights = np.log(self.weights) + log_ratios
        return self._replace(
            weights=special.softmax(log_weights, axis=1),
            islands=self.islands + special.logsumexp(log_weights, axis=1),
            variance=self.variance + 1 / effective_number(log_weights) - 1 / log_weights.size,
        )


def annealed(
    key: Key[Array, ""],
    particles: Particles,
    target: Interpolation,
    moves: int,
    least_share: float = LEAST_EFFECTIVE_SHARE,
) -> Particles:
    """Weighted particles of a path's target, from equally weighted ones of its reference.

    Steps are as long as the effective share of the particles allows, `least_share` or more. Each resampled particle makes
    `moves` moves, which divide the number of particles of an island. A point of undefined or infinite ratio has no weight.

    Raises FloatingPointError if no particle of an island has weight, or if more than `MOST_POWERS` steps are needed.
    """
    power = 0.0
    for level in watched(itertools.count(), "annealing", is_slow=True):
        log_ratio = log_ratios(particles.flat[0], target).reshape(particles.weights.shape)
        log_ratio = np.where(np.isfinite(log_ratio), log_ratio, -np.inf)
        if not np.isfinite(log_ratio).any(1).all():
            raise FloatingPointError("no particle of an island of annealing has weight: use more particles")
        if level == MOST_POWERS:
            raise FloatingPointError(f"annealing is at power {power:g} after {level} steps: use more particles")
        rise = longest_rise(log_ratio, 1 - power, least_share)
        power = 1.0 if rise >= 1 - power else power + rise
        particles = particles.reweighted(rise * log_ratio)._replace(powers=(*particles.powers, power))
        if power == 1:
            return particles
        particles = moved(jax.random.fold_in(key, level), particles, target, power, moves)
    raise AssertionError  # never reached


def log_ratios(
    points: Float[np.ndarray, "particle coordinate"], target: Interpolation
) -> Float[np.ndarray, " particle"]:
    """Log ratio of target to reference at each point; NaN where it is undefined."""
    return np.asarray(_log_ratios(points, target))


@jax.jit
def _log_ratios(points: Float[Array, "particle coordinate"], target: Interpolation) -> Float[Array, " particle"]:
    return one_by_one(lambda point: target.log_densities(point)[1], points)


def longest_rise(log_ratios: Numbers, most: float, least_share: float) -> float:
    """Largest rise of the power, up to `most`, at which the effective share of particles of finite ratio is large enough."""
    finite = log_ratios[np.isfinite(log_ratios)]

    def share(rise: float) -> float:
        return effective_number(rise * finite) / finite.size

    if share(most) >= least_share:
        return most
    # At the lower end of the bracket, no weight is more than a hundredth smaller than another.
    least, log_most = np.log(0.01 / np.ptp(finite)), np.log(most)
    root: Any = optimize.brentq(lambda logarithm: share(np.exp(logarithm)) - least_share, least, log_most)
    return float(np.exp(root))


def effective_number(log_weights: np.ndarray) -> float:
    """(sum of weights)^2 / sum of their squares."""
    weights = np.exp(log_weights - np.max(log_weights))
    return float(weights.sum() ** 2 / np.sum(weights**2))


def moved(key: Key[Array, ""], particles: Particles, target: Interpolation, power: float, moves: int) -> Particles:
    """Equally weighted particles: states of Hamiltonian chains from resampled points, with an adapted step size.

    They keep their order: those of one start are neighbours, and so are those of copies of one point.
    """
    points, weights, step = particles.points, particles.weights, particles.step
    resampling_key, moving_key = jax.random.split(key)
    chosen = systematic(resampling_key, weights, weights.shape[1] // moves)
    starts = particles.flat[0][chosen].reshape(len(weights), -1, points.shape[2])
    leaps = int(np.clip(np.ceil(TRAJECTORY_LENGTH / step), 1, MOST_LEAPFROG_STEPS))
    metrics = metrics_of_others(points, weights)
    moving = _moved(moving_key, starts, metrics, step, leaps, target, power, moves)
    states, accepted = jax.device_get(moving)
    acceptance = float(accepted.mean())
    return particles._replace(
        points=states.reshape(points.shape),
        weights=np.full_like(weights, 1 / weights.shape[1]),
        step=step * np.exp(acceptance - TARGET_ACCEPTANCE),
        acceptance=(*particles.acceptance, acceptance),
    )


def systematic(key: Key[Array, ""], weights: Numbers, count: int) -> np.ndarray:
    """Indices of `count` particles of each island by systematic resampling, one island after the other."""
    islands = np.arange(len(weights))[:, None]
    heights = islands + (np.arange(count) + np.asarray(jax.random.uniform(key, islands.shape))) / count
    # The sum of the weights may round to less than their number of islands.
    return np.minimum(np.searchsorted(np.cumsum(weights), heights.ravel()), weights.size - 1)


def metric_factor(points: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Lower triangular L with L L^T the covariance of weighted points, shrunk towards its diagonal if they are few.

    With many coordinates, or some in which the points do not differ, the standard deviations, 1 where they do not.
    """
    centred = points - weights @ points
    variances = weights @ centred**2
    differ = variances > ROUNDING * (weights @ points**2)
    if points.shape[1] > MOST_COORDINATES_FOR_DENSE_METRIC or not differ.all():
        return np.sqrt(np.where(differ, variances, 1.0))
    return _factor((centred.T * weights) @ centred, np.sum(weights**2))


def metrics_of_others(points: Points, weights: Numbers) -> np.ndarray:
    """For each island the `metric_factor` of the particles of the islands that follow it, up to half of the others.

    A metric of an island's own particles, which have been chosen by their weights, makes its estimate of log p(Y) too small;
    two islands with metrics of each other have estimates that scatter together. Where one particle of those islands has most
    of the weight, the metric is that of all. With many coordinates, or more than the particles are worth after a step, it is
    their standard deviations: correlations would be noise. A coordinate in which they do not differ, as copies of one point,
    has a scale of 1, so that they can move apart.
    """
    count, size = len(weights), points.shape[2]
    used = max(1, (count - 1) // 2)
    shares = np.isin((np.arange(count) - np.arange(count)[:, None]) % count, 1 + np.arange(used)) / used
    squares = np.sum(weights**2, 1)
    shares[shares**2 @ squares > 0.5] = 1 / count
    centred = points - np.mean(weights[:, None] @ points, 0)
    means = shares @ (weights[:, None] @ centred)[:, 0]
    second = shares @ (weights[:, None] @ centred**2)[:, 0]
    differ = second - means**2 > ROUNDING * second
    deviations = np.sqrt(np.where(differ, second - means**2, 1.0))
    if size > min(MOST_COORDINATES_FOR_DENSE_METRIC, LEAST_EFFECTIVE_SHARE * used * points.shape[1]):
        return deviations
    moments = np.tensordot(shares, (np.swapaxes(centred, 1, 2) * weights[:, None]) @ centred, 1)
    covariances = moments - means[:, :, None] * means[:, None]
    return np.array(
        [
            _factor(covariance, worth) if differ[island].all() else np.diag(deviations[island])
            for island, (covariance, worth) in enumerate(zip(covariances, shares**2 @ squares, strict=True))
        ]
    )


def _factor(covariance: np.ndarray, squares: float) -> np.ndarray:
    """Cholesky factor of a covariance of points, shrunk towards its diagonal, given the sum of their squared weights.

    It is hardly shrunk if they are many, since a shrunk metric is too wide in directions that the labels make narrow.
    """
    shrinkage = (len(covariance) / (len(covariance) + 1 / squares)) ** 3
    diagonal = np.diag(np.diag(covariance))
    return np.linalg.cholesky(((1 - shrinkage) * covariance + shrinkage * diagonal) / (1 - squares))


@partial(jax.jit, static_argnames="moves")
def _moved(
    key, starts: Float[Array, "island start coordinate"], metrics, step, leaps, target: Interpolation, power, moves: int
) -> tuple[Float[Array, "island start move coordinate"], Float[Array, "move island start"]]:
    """States of a Hamiltonian chain from each point at a power, and the probabilities that its moves are accepted.

    Products with the metrics are of all chains at once; densities are computed one after the other.
    """
    islands, chains, size = starts.shape

    def stretched(vectors: Array, transposed: bool = False) -> Array:
        if metrics.ndim == 2:
            return metrics[:, None] * vectors
        return vectors @ (metrics if transposed else jnp.swapaxes(metrics, 1, 2))

    @jax.value_and_grad
    def potential(point):
        reference, ratio = target.log_densities(point)
        return -reference - power * ratio

    def valued(whitened):
        values, gradients = one_by_one(potential, (starts + stretched(whitened)).reshape(-1, size))
        return values.reshape(islands, chains), stretched(gradients.reshape(starts.shape), transposed=True)

    def move(state, key):
        momentum_key, length_key, accept_key = jax.random.split(key, 3)
        momentum = jax.random.normal(momentum_key, starts.shape)
        # Random step lengths, so that no trajectory is periodic.
        length = step * jax.random.uniform(length_key, (islands, chains, 1), minval=0.6, maxval=1.2)

        def leap(_, inside):
            position, momentum, (_, gradients) = inside
            momentum -= length * gradients / 2
            position += length * momentum
            value = valued(position)
            return position, momentum - length * value[1] / 2, value

        position, turned, value = jax.lax.fori_loop(0, leaps, leap, (state[0], momentum, state[1]))
        energy_errors = value[0] - state[1][0] + jnp.sum(turned**2 - momentum**2, 2) / 2
        probability = jnp.exp(-jnp.maximum(jnp.where(jnp.isfinite(energy_errors), energy_errors, jnp.inf), 0))
        accepted = jax.random.uniform(accept_key, (islands, chains)) < probability

        def chosen(new, old):
            return jnp.where(accepted.reshape(accepted.shape + (1,) * (new.ndim - 2)), new, old)

        state = jax.tree.map(chosen, (position, value), state)
        return state, (starts + stretched(state[0]), probability)

    origin = jnp.zeros_like(starts)
    places, probabilities = jax.lax.scan(move, (origin, valued(origin)), jax.random.split(key, moves))[1]
    return jnp.moveaxis(places, 0, 2), probabilities
