"""Priors of the collapsed parameterisation's whitened coordinates, as NumPyro distributions."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from bayesattn.theory import bartlett
from bayesattn.theory.potential import Shapes, Whitening


def draws_of(draw: Callable, key, sample_shape: tuple[int, ...]) -> Array:
    """Draws of a vector by a function of a key, of the sample shape of a NumPyro distribution."""
    assert key is not None
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        # The words of a key, as NumPyro's Predictive and `jax.random.PRNGKey` give them.
        key = jax.random.wrap_key_data(key)
    keys = jax.random.split(key, sample_shape) if sample_shape else key
    return jnp.vectorize(draw, signature="()->(n)")(keys)


class BartlettPrior(dist.Distribution):
    """Prior of whitened Bartlett coordinates."""

    support = dist.constraints.real_vector  # pyright: ignore[reportAssignmentType]
    pytree_data_fields = ("widths", "whitening")
    pytree_aux_fields = ("shapes",)

    def __init__(self, shapes: Shapes, widths, whitening: Whitening, *, validate_args=None):
        self.shapes, self.widths, self.whitening = shapes, widths, whitening
        super().__init__((), (whitening.centre.shape[-1],), validate_args=validate_args)

    def sample(self, key, sample_shape=()):
        """Draws from the prior."""
        draw = partial(bartlett.sample_prior, shapes=self.shapes, widths=self.widths)
        return draws_of(lambda k: self.whitening.whitened(draw(k)), key, sample_shape)

    def log_prob(self, value):
        """Log density of whitened coordinates."""
        point = self.whitening.point(value)
        return bartlett.log_prior(point, self.shapes, self.widths) + self.whitening.log_volume()


class StandardNormal(dist.Distribution):
    """Prior of whitened coordinates whose points are standard normal."""

    support = dist.constraints.real_vector  # pyright: ignore[reportAssignmentType]
    pytree_data_fields = ("whitening",)

    def __init__(self, whitening: Whitening, *, validate_args=None):
        self.whitening = whitening
        super().__init__((), (whitening.centre.shape[-1],), validate_args=validate_args)

    def sample(self, key, sample_shape=()):
        """Draws from the prior."""
        assert key is not None
        points = jax.random.normal(key, (*sample_shape, *self.event_shape))
        return jnp.vectorize(self.whitening.whitened, signature="(n)->(n)")(points)

    def log_prob(self, value):
        """Log density of whitened coordinates."""
        point = self.whitening.point(value)
        return -(point @ point + len(point) * jnp.log(2 * jnp.pi)) / 2 + self.whitening.log_volume()
