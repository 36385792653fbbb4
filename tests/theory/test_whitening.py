"""Whitened coordinates: there and back, and the volume that they are changed by."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesattn.theory.potential import Whitening
from tests.conftest import relative_error

SIZE, FEW = 6, 2


@pytest.fixture(params=["columns", "a scale each", "a few directions"])
def whitening(request):
    rng = np.random.default_rng(0)
    centre, scale = jnp.asarray(rng.normal(size=SIZE)), jnp.asarray(rng.uniform(0.5, 2, SIZE))
    if request.param == "columns":
        return Whitening(centre, jnp.asarray(rng.normal(size=(SIZE, SIZE))))
    if request.param == "a scale each":
        return Whitening(centre, scale)
    directions = jnp.asarray(np.linalg.qr(rng.normal(size=(SIZE, FEW)))[0])
    return Whitening(centre, scale, directions, jnp.asarray([0.1, 0.03]))


def test_a_point_comes_back_and_the_volume_is_the_determinant(whitening):
    z = jnp.asarray(np.random.default_rng(1).normal(size=SIZE))
    assert relative_error(jax.jit(lambda at: whitening.whitened(whitening.point(at)))(z), z) < 1e-12
    determinant = np.linalg.slogdet(jax.jit(jax.jacfwd(whitening.point))(np.zeros(SIZE)))[1]
    np.testing.assert_allclose(whitening.log_volume(), determinant, rtol=1e-12)
