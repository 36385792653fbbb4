"""Coordinates z in which a posterior is nearly standard normal: point = centre + S^{1/2} z.

S approximates the covariance of the posterior, and S^{1/2} is any matrix with S^{1/2} (S^{1/2})^T = S.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from bayesattn.theory.potential import Point


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

    def _along(self, vector: Point, factors) -> Point:
        """Vector multiplied by `factors` along the directions, and unchanged across them."""
        if self.directions is None:
            return vector
        return vector + self.directions @ ((factors - 1) * (self.directions.T @ vector))
