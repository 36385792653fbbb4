"""Evidence by annealing: particles of the collapsed posterior, cooled from the prior or bridged from a mixture.

`anneal` goes from the prior to the hottest of some temperatures of the likelihood, and on from each to the next, so one run
passes through all of them. It lags behind if the posterior moves to a region that hot particles have not reached. `bridge`
begins at a mixture that covers the posterior; if the mixture is close enough, it takes a single step, which is importance
sampling. `bayesattn.samplers.smc` anneals any posterior, and the logits of sampled attention.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from bayesattn._util.random import branch
from bayesattn.theory.mixture import Mixture
from bayesattn.theory.particles import Particles, annealed, moved
from bayesattn.theory.potential import Point, Posed, Shapes, potential

ISLANDS = 8
MOVES = 8
"""Moves of each resampled particle."""
PARTICLES = 128
"""Particles of each island, if the likelihood is cheap."""
FEWEST_PARTICLES = 32
MOST_OPERATIONS = 1e10
"""Approximate limit on the operations of the likelihoods of all particles, unless there are `FEWEST_PARTICLES`."""


class Singular(ArithmeticError):
    """K + T I of some particle is singular in float64."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ToPosterior:
    """Path to a posterior, from its prior (None), from a mixture, or from the posterior at another temperature."""

    reference: Mixture | Posed | None
    target: Posed
    shapes: Shapes = field(metadata={"static": True})

    def log_densities(self, point: Point) -> tuple[Array, Array]:
        """Log density of the reference at a point, and log ratio of prior density times likelihood to it."""
        if self.reference is None:
            log_reference = self.target.log_prior(point, self.shapes)
        elif isinstance(self.reference, Mixture):
            log_reference = self.reference.log_density(point)
        else:
            log_reference = -potential(point, self.reference, self.shapes)
        return log_reference, -potential(point, self.target, self.shapes) - log_reference


def anneal(
    problem: Posed, shapes: Shapes, temperatures: Sequence[float], key: Key[Array, ""], particles: int | None = None
) -> Iterator[tuple[float, Particles]]:
    """Each temperature, hottest first, with particles and log p(Y); raises Singular.

    By default each island has as many `particles` as `MOST_OPERATIONS` allows.
    """
    count = _usual_particles(problem) if particles is None else particles
    now = Particles.at(prior_draws(branch(key, "prior"), ISLANDS * count, problem, shapes), ISLANDS)
    reference = None
    for temperature in sorted(set(temperatures), reverse=True):
        target, stage = problem.at(temperature), branch(key, repr(temperature))
        path = ToPosterior(reference, target, shapes)
        _require_regular(now, target, shapes)
        now = annealed(branch(stage, "annealing"), now, path, MOVES)
        _require_regular(now, target, shapes)
        yield temperature, now
        now, reference = moved(branch(stage, "moves"), now, path, 1.0, MOVES), target


def bridge(
    start: Mixture, problem: Posed, shapes: Shapes, key: Key[Array, ""], particles: int | None, least_share: float
) -> Particles:
    """Particles with log p(Y), annealed from a mixture to the posterior, along the geometric path between their densities.

    Steps are short enough to keep the effective share of the particles at `least_share` or above. Other arguments as
    for `anneal`. A point with a singular K + T I has no weight.
    """
    count = _usual_particles(problem) if particles is None else particles
    points = start.sample(np.random.default_rng(np.asarray(jax.random.key_data(key))), ISLANDS * count)
    path = ToPosterior(start, problem, shapes)
    return annealed(branch(key, "annealing"), Particles.at(points, ISLANDS), path, MOVES, least_share)


def prior_draws(
    key: Key[Array, ""], count: int, problem: Posed, shapes: Shapes
) -> Float[np.ndarray, "particle coordinate"]:
    """Points drawn from the prior."""
    return jax.device_get(_prior(jax.random.split(key, count), problem, shapes))


@partial(jax.jit, static_argnames="shapes")
def _prior(keys: Key[Array, " particle"], problem: Posed, shapes: Shapes) -> Float[Array, "particle coordinate"]:
    return jax.lax.map(lambda key: problem.draw(key, shapes), keys)


def _usual_particles(problem: Posed) -> int:
    examples, features, paths = problem.process.features.shape
    work = 2 * examples**3 + examples**2 * paths * min(features, paths)
    return int(np.clip(MOST_OPERATIONS / (ISLANDS * work), FEWEST_PARTICLES, PARTICLES)) // MOVES * MOVES


def _require_regular(particles: Particles, problem: Posed, shapes: Shapes) -> None:
    """Raise Singular if K + T I of a particle is singular."""
    if np.any(_singular(particles.flat[0], problem, shapes)):
        raise Singular


@partial(jax.jit, static_argnames="shapes")
def _singular(points: Float[Array, "particle coordinate"], problem: Posed, shapes: Shapes) -> Bool[Array, " particle"]:
    return jax.lax.map(lambda point: problem.singular(point, shapes), points)
