"""Potential of a point in Bartlett coordinates: minus the log of its prior density times the likelihood at its U."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bayesattn.architecture import Architecture
from bayesattn.errors import BayesattnError
from bayesattn.kernels.conditionals import is_singular
from bayesattn.kernels.expansions import expansion, expansion_in_factor
from bayesattn.kernels.forms import expands_in_factor
from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.kernels.path_inputs import Factor
from bayesattn.theory.bartlett import (
    LayerShape,
    Order,
    Skips,
    affine_from_whitened,
    cholesky_factors,
    log_prior,
    mirrored,
    sample_prior,
)
from bayesattn.theory.minimise import Local

Point = Float[Array, " coordinate"]
Shapes = tuple[LayerShape, ...]
MOST_COORDINATES = 3000
"""Most coordinates for computations with the full curvature, which takes paths^4 numbers, and minutes."""


class Problem(NamedTuple):
    """Arrays on which the posterior of a point depends, besides the shapes of its layers."""

    process: GaussianProcess
    widths: Float[Array, " layer"]
    variances: Float[Array, " layer_and_input"]
    order: Order = None
    skips: Skips = ()

    def factors(self, point: Point, shapes: Shapes) -> list[Float[Array, "row column"]]:
        """F_1, .., F_L, F_a at a point."""
        return cholesky_factors(point, shapes, self.widths, self.variances, self.order, self.skips)

    def factor(self, point: Point, shapes: Shapes) -> Factor:
        """F_1, with U = F_1 F_1^T."""
        return self.factors(point, shapes)[0]

    def order_parameter(self, point: Point, shapes: Shapes) -> Float[Array, "path path"]:
        """U at a point."""
        factor = self.factor(point, shapes)
        return factor @ factor.T

    def at(self, temperature: float) -> "Problem":
        """The same problem at another temperature."""
        return self._replace(process=self.process.at(temperature))

    def at_values(self, values: Mapping[str, Array]) -> "Problem":
        """The same problem at values of its "temperature" and "variances", s_0^2 .. s_a^2, for the features that it has.

        Features have the scale of the problem's own s_0. F is proportional to s_a, so s_a^2 takes the ratio of s_0^2 to it.
        The temperature matters for Gaussian labels alone; other likelihoods do not use that of the process.
        """
        here = self.at(values["temperature"]) if "temperature" in values else self  # pyright: ignore[reportArgumentType]
        if "variances" not in values:
            return here
        own, given = self.variances[0], values["variances"]
        return here._replace(variances=given.at[-1].multiply(given[0] / own).at[0].set(own))

    def log_prior(self, point: Point, shapes: Shapes) -> Float[Array, ""]:
        """Log prior density of a point."""
        return log_prior(point, shapes, self.widths)

    def log_likelihood(self, point: Point, shapes: Shapes) -> Float[Array, ""]:
        """Log density of the labels at a point."""
        return self.process.log_density(self.factor(point, shapes))

    def energy(self, point: Point, shapes: Shapes) -> Float[Array, ""]:
        """Energy at a point: -2 `log_likelihood`, up to a constant."""
        return self.process.energy(self.factor(point, shapes))

    def singular(self, point: Point, shapes: Shapes) -> Array:
        """Whether K + T I at a point is singular in float64."""
        return is_singular(self.process, self.factor(point, shapes))

    def draw(self, key: Key[Array, ""], shapes: Shapes) -> Point:
        """Point drawn from the prior."""
        return sample_prior(key, shapes, self.widths)

    def affine(self, shapes: Shapes) -> tuple[Point, Point]:
        """Origin and stretch of coordinates in which the prior has a standard deviation of about sqrt(2)."""
        return affine_from_whitened(shapes, self.widths)

    def signs(self, shapes: Shapes) -> Float[np.ndarray, "image coordinate"]:
        """Signs of the coordinates that leave the posterior unchanged; the first row is ones."""
        return mirrored(shapes, self.order)

    def local(self, shapes: Shapes) -> Callable[[Point], Local]:
        """Function of a point that returns value, gradient and Hessian of `potential`."""
        constant = self.process.constant / 2
        return with_derivatives(
            self.process,
            lambda point: self.factor(point, shapes),
            0.5,
            lambda point: constant - self.log_prior(point, shapes),
        )


class WithNumbers(NamedTuple):
    """A posterior some of whose numbers, T or prior variances, have priors: a point ends with the position of these numbers.

    Has the methods of `Problem`, for such points.

    Args:
        known: the posterior at some values of the numbers.
        priors: `bayesattn.models.hyperpriors.Hyperpriors`: values and log prior density at a position, positions drawn.
        centre: position of the medians of the priors.
        spread: standard deviation of each entry of positions drawn from the prior.
    """

    known: Problem
    priors: Any
    centre: Float[Array, " number"]
    spread: Float[Array, " number"]

    @property
    def process(self) -> GaussianProcess:
        """Gaussian process of the labels at the values of `known`."""
        return self.known.process

    def split(self, point: Point) -> tuple[Problem, Float[Array, " bartlett_coordinate"]]:
        """The posterior given the numbers at a point, and the point without them."""
        size = len(self.centre)
        return self.known.at_values(self.priors.values(point[-size:])), point[:-size]

    def at(self, temperature: float) -> "WithNumbers":
        """The same problem at another temperature, which is of no effect where this has a prior."""
        return self._replace(known=self.known.at(temperature))

    def log_prior(self, point: Point, shapes: Shapes) -> Float[Array, ""]:
        """Log prior density of a point."""
        here, inner = self.split(point)
        return here.log_prior(inner, shapes) + self.priors.log_density(point[-len(self.centre) :])

    def log_likelihood(self, point: Point, shapes: Shapes) -> Float[Array, ""]:
        """Log density of the labels at a point."""
        here, inner = self.split(point)
        return here.log_likelihood(inner, shapes)

    def energy(self, point: Point, shapes: Shapes) -> Float[Array, ""]:
        """-2 `log_likelihood`, whose constant depends on the numbers."""
        return -2 * self.log_likelihood(point, shapes)

    def singular(self, point: Point, shapes: Shapes) -> Array:
        """Whether K + T I at a point is singular in float64."""
        here, inner = self.split(point)
        return here.singular(inner, shapes)

    def draw(self, key: Key[Array, ""], shapes: Shapes) -> Point:
        """Point drawn from the prior."""
        inner, numbers = jax.random.split(key)
        return jnp.append(self.known.draw(inner, shapes), self.priors.draw(numbers))

    def affine(self, shapes: Shapes) -> tuple[Point, Point]:
        """Origin and stretch of coordinates in which the prior has a standard deviation of about sqrt(2)."""
        origin, stretch = self.known.affine(shapes)
        return jnp.append(origin, self.centre), jnp.append(stretch, self.spread / np.sqrt(2))

    def signs(self, shapes: Shapes) -> Float[np.ndarray, "image coordinate"]:
        """Signs of the coordinates that leave the posterior unchanged; the first row is ones."""
        inner = self.known.signs(shapes)
        return np.concatenate([inner, np.ones((len(inner), len(self.centre)))], axis=1)

    def local(self, shapes: Shapes) -> Callable[[Point], Local]:
        """Function of a point that returns value, gradient and Hessian of `potential`."""

        def at(point: Point) -> Local:
            # Curvature in Bartlett coordinates does not involve the examples; few further rows are slopes of the gradient.
            here, inner = self.split(point)
            slope = jax.grad(lambda each: potential(each, self, shapes))
            directions = jnp.eye(len(point))[len(inner) :]
            rows = jax.vmap(lambda along: jax.jvp(slope, (point,), (along,))[1])(directions)
            hessian = jnp.block([[here.local(shapes)(inner).hessian, rows[:, : len(inner)].T], [rows]])
            return Local(potential(point, self, shapes), slope(point), hessian)

        return at


Posed = Problem | WithNumbers


def problem_of(process: GaussianProcess, arch: Architecture) -> Problem:
    """Arrays of the posterior of a network."""
    widths, variances = jnp.asarray(np.array(arch.widths, float)), jnp.asarray(np.array(arch.known_variances))
    return Problem(process, widths, variances, skips=arch.optional_skips)


def too_many(shapes: Shapes) -> int:
    """Number of coordinates, if it is more than `MOST_COORDINATES`, else 0."""
    size = sum(shape.size for shape in shapes)
    return size if size > MOST_COORDINATES else 0


def refuse_many(what: str, shapes: Shapes, advice: str = "use fewer heads") -> None:
    """Raise ValueError if there are more than `MOST_COORDINATES` coordinates and `what` needs the full curvature."""
    if size := too_many(shapes):
        raise BayesattnError(
            f"arch must have at most {MOST_COORDINATES:,} coordinates of its order parameters for {what}, which needs the"
            f" curvature in all pairs of them, got {size:,}: {advice}; theory.solve, predict and"
            " samplers do without"
        )


def potential(point: Point, problem: Posed, shapes: Shapes) -> Float[Array, ""]:
    """Minus the log of prior density times likelihood, both normalised, at a point."""
    return -problem.log_likelihood(point, shapes) - problem.log_prior(point, shapes)


def with_derivatives(
    process: GaussianProcess, factor: Callable[[Point], Factor], weight: float, rest: Callable[[Point], Array]
) -> Callable[[Point], Local]:
    """Function of a point that returns value, gradient and Hessian of weight x energy + rest.

    JAX differentiates the second-order expansion of the energy in U or F (whichever is cheaper) and not the energy
    itself, so the derivatives do not involve the examples.

    Args:
        process: Gaussian process of the labels.
        factor: function from a point to F, with U = F F^T.
        weight: weight of the energy.
        rest: function from a point to a number, which costs little.
    """

    def local(point: Point) -> Local:
        here = factor(point)
        in_factor = expands_in_factor(process.labels.size, *here.shape)
        at = (expansion_in_factor if in_factor else expansion)(process, here)

        def expanded(other):
            there = factor(other)
            change = there - here if in_factor else there @ there.T - here @ here.T
            flat = change.reshape(-1)
            return weight * (jnp.sum(at.slope * change) + flat @ at.curvature @ flat / 2) + rest(other)

        # The Hessian is the derivative of the gradient, which is traced once for both.
        hessian, gradient = jax.jacfwd(lambda p: (slope := jax.grad(expanded)(p), slope), has_aux=True)(point)
        return Local(weight * at.value + rest(point), gradient, hessian)

    return local


class Whitening(NamedTuple):
    """Affine map between z and a point.

    Either `scale` is a matrix, or it is a vector, and z is first multiplied by `shrinks` along `directions`, if there are
    any.

    Args:
        centre: the point of z = 0.
        scale: S^{1/2} of shape (n, n), or a vector of shape (n,) with one scale per coordinate.
        directions: k orthonormal columns, shape (n, k); only if `scale` is a vector.
        shrinks: factors of shape (k,), one per direction.
    """

    centre: Point
    scale: Float[Array, " coordinate"] | Float[Array, "coordinate coordinate"]
    directions: Float[Array, "coordinate direction"] | None = None
    shrinks: Float[Array, " direction"] | None = None

    def point(self, whitened: Point) -> Point:
        """Point at z."""
        if self.scale.ndim == 2:
            return self.centre + self.scale @ whitened
        return self.centre + self.scale * self._along(whitened, self.shrinks)

    def whitened(self, point: Point) -> Point:
        """z of a point."""
        if self.scale.ndim == 2:
            return jnp.linalg.solve(self.scale, point - self.centre)
        return self._along((point - self.centre) / self.scale, None if self.shrinks is None else 1 / self.shrinks)

    def log_volume(self) -> Float[Array, ""]:
        """log |det S^{1/2}|."""
        if self.scale.ndim == 2:
            return jnp.linalg.slogdet(self.scale)[1]
        along = 0.0 if self.shrinks is None else jnp.sum(jnp.log(self.shrinks))
        return jnp.sum(jnp.log(self.scale)) + along

    def extended(self, centre: Point, scale: Point) -> "Whitening":
        """Whitening of further coordinates as well, independently of these."""
        both = jnp.append(self.centre, centre)
        if self.scale.ndim == 2:
            return Whitening(both, jax.scipy.linalg.block_diag(self.scale, jnp.diag(scale)))
        directions = self.directions
        if directions is not None:
            directions = jnp.concatenate([directions, jnp.zeros((len(centre), directions.shape[1]))])
        return Whitening(both, jnp.append(self.scale, scale), directions, self.shrinks)

    def _along(self, vector: Point, factors) -> Point:
        """Vector multiplied by `factors` along the directions, and unchanged across them."""
        if self.directions is None:
            return vector
        return vector + self.directions @ ((factors - 1) * (self.directions.T @ vector))
