"""Mixtures of Student distributions that cover a posterior: its modes, and the region of its draws."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import special

from bayesattn.theory.potential import Point

DEGREES_OF_FREEDOM = 7
"""Least degrees of freedom of the Student distributions: tails heavier than the posterior's keep the weights bounded."""
KEPT_SHARE = 0.2
"""Share of a proposal that stays unchanged when it is fitted to draws."""
POINTS_PER_COORDINATE, LLOYD_ITERATIONS = 3, 10
"""Effective points per coordinate of a part, and iterations that find the parts."""
COMPONENT_COUNTS = 1, 4, 16
"""Possible numbers of components: missing ones are added without weight, so that programs are compiled for few numbers."""


class Component(NamedTuple):
    """A Student distribution: its log weight, its centre, and the scale that maps a standard draw to one of its draws."""

    log_weight: float
    centre: np.ndarray
    scale: np.ndarray


class Mixture(NamedTuple):
    """Student distributions with as many degrees of freedom as coordinates, and at least `DEGREES_OF_FREEDOM`.

    With many coordinates, a Student's radius varies more than the posterior's, unless its degrees of freedom grow too.

    Args:
        log_weights: logarithms of the weights of the components, normalised.
        centres: centres of the components.
        scales: scales of the components, each of shape (n, n).
        inverses: inverses of the scales.
        log_volumes: log |det| of the scales.
        signs: signs of the coordinates in those images of a draw at which the posterior is the same; the first row is
            ones. The mixture consists of the components and their images.
    """

    log_weights: Float[Array, " component"]
    centres: Float[Array, "component coordinate"]
    scales: Float[Array, "component coordinate coordinate"]
    inverses: Float[Array, "component coordinate coordinate"]
    log_volumes: Float[Array, " component"]
    signs: Float[Array, "image coordinate"]

    @property
    def freedom(self) -> int:
        """Degrees of freedom."""
        return max(DEGREES_OF_FREEDOM, self.centres.shape[1])

    def sample(self, random: np.random.Generator, count: int) -> Float[np.ndarray, "draw coordinate"]:
        """Draws in random order, as many from each component as its weight says, up to rounding."""
        size = self.centres.shape[1]
        heights = (np.arange(count) + random.random()) / count
        chosen = np.searchsorted(np.cumsum(np.exp(self.log_weights)), heights).clip(max=len(self.log_weights) - 1)
        random.shuffle(chosen)
        spread = random.chisquare(self.freedom, count) / self.freedom
        students = random.normal(size=(count, size)) / np.sqrt(spread)[:, None]
        draws = np.empty((count, size))
        for component in np.unique(chosen):
            own = chosen == component
            draws[own] = self.centres[component] + students[own] @ np.asarray(self.scales[component]).T
        return draws * np.asarray(self.signs)[random.integers(len(self.signs), size=count)]

    def log_densities(self, point: Point) -> Float[Array, " component"]:
        """Log of weight times density of each component at a point, without its images."""
        size, freedom = self.centres.shape[1], self.freedom
        constant = (
            special.gammaln((freedom + size) / 2) - special.gammaln(freedom / 2) - size * np.log(freedom * np.pi) / 2
        )
        squares = jnp.sum(jnp.einsum("kij,kj->ki", self.inverses, point - self.centres) ** 2, axis=1)
        return self.log_weights + constant - (freedom + size) / 2 * jnp.log1p(squares / freedom) - self.log_volumes

    def log_density(self, point: Point) -> Float[Array, ""]:
        """Log density of the mixture at a point."""
        of_images = jax.vmap(self.log_densities)(self.signs * point)
        return jax.scipy.special.logsumexp(of_images) - np.log(len(self.signs))


def mixture(components: Sequence[Component], signs: np.ndarray) -> Mixture:
    """Mixture of components, whose weights need not be normalised, and of their images."""
    count = min(number for number in COMPONENT_COUNTS if number >= len(components))
    filled = [*components, *[components[0]._replace(log_weight=-np.inf)] * (count - len(components))]
    log_weights, centres, scales = (np.array(each, float) for each in zip(*filled, strict=True))
    log_weights -= special.logsumexp(log_weights)
    return Mixture(log_weights, centres, scales, np.linalg.inv(scales), np.linalg.slogdet(scales)[1], signs)  # pyright: ignore[reportArgumentType]


def refitted(
    components: Sequence[Component], points: np.ndarray, weights: np.ndarray, signs: np.ndarray
) -> list[Component]:
    """The same components with `KEPT_SHARE` of their weight, and new ones fitted to weighted points.

    Points are grouped by the nearest component, and each group is divided into parts. Each point is replaced by its image
    that is nearest to a component. There are as many parts as the points allow, because a posterior is often curved.
    """
    # Shape (images, components, points).
    densities = np.array([[_log_density(each, sign * points) for each in components] for sign in signs])
    points = points * signs[np.argmax(densities.max(axis=1), axis=0)]
    nearest = np.argmax(densities.max(axis=0), axis=0)
    total: Any = special.logsumexp([component.log_weight for component in components])
    result = [each._replace(log_weight=each.log_weight - total + np.log(KEPT_SHARE)) for each in components]
    numbers = [number for number in range(len(components)) if np.count_nonzero(weights[nearest == number]) > 1]
    most = COMPONENT_COUNTS[-1] // 2
    for number in numbers:
        own, own_weights = points[nearest == number], weights[nearest == number]
        for log_mass, centre, scale in _parts(components[number], own, own_weights, max(most // len(numbers), 1)):
            result.append(Component(float(np.log(1 - KEPT_SHARE) + log_mass), centre, scale))
    return result


def _parts(component: Component, points: np.ndarray, weights: np.ndarray, most: int) -> list[Component]:
    """Components fitted to parts of the points, found by Lloyd's iteration; covariances are shrunk to that of all parts."""
    size = points.shape[1]
    mean, effective = weights @ points / weights.sum(), weights.sum() ** 2 / np.sum(weights**2)
    count = int(np.clip(effective / (POINTS_PER_COORDINATE * size), 1, most))
    whitened = np.linalg.solve(component.scale, (points - mean).T).T
    _, directions = np.linalg.eigh((whitened.T * weights) @ whitened)
    along = np.argsort(whitened @ directions[:, -1])
    part = np.empty(len(points), int)
    part[along] = np.minimum(count * np.cumsum(weights[along]) / weights.sum(), count - 1).astype(int)
    for _ in range(LLOYD_ITERATIONS):
        centres = np.array([_mean(whitened, weights, part == each) for each in range(count)])
        part = np.argmin(np.sum((whitened[:, None] - centres) ** 2, axis=2), axis=1)
    centres = np.array([_mean(whitened, weights, part == each) for each in range(count)])
    apart = whitened - centres[part]
    common = _shrunk(apart, weights, np.eye(size))
    result = []
    for each in range(count):
        own = part == each
        if weights[own].sum() > 0:
            scale = component.scale @ np.linalg.cholesky(_shrunk(apart[own], weights[own], common))
            result.append(Component(np.log(weights[own].sum()), mean + component.scale @ centres[each], scale))
    return result


def _mean(points: np.ndarray, weights: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Mean of the chosen weighted points; a point far from all points if the chosen ones have no weight."""
    return weights[own] @ points[own] / weights[own].sum() if weights[own].sum() > 0 else np.full(points.shape[1], 1e9)


def _shrunk(deviations: np.ndarray, weights: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Covariance of weighted deviations from their mean, shrunk to a target if they are few."""
    share = weights / weights.sum()
    shrinkage = len(target) / (len(target) + 1 / np.sum(share**2))
    return (1 - shrinkage) * (deviations.T * share) @ deviations + shrinkage * target


def _log_density(component: Component, points: np.ndarray) -> np.ndarray:
    """Log density of a component with weight 1, up to a constant that all components share."""
    size = points.shape[1]
    freedom = max(DEGREES_OF_FREEDOM, size)
    squares = np.sum(np.linalg.solve(component.scale, (points - component.centre).T) ** 2, axis=0)
    return -(freedom + size) / 2 * np.log1p(squares / freedom) - np.linalg.slogdet(component.scale)[1]
