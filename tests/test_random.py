"""Streams of random numbers: keys are those of a seed, whatever JAX's flags say."""

import jax
import numpy as np
import pytest

from bayesattn._util.random import first_key, key_of


@pytest.mark.parametrize("seed", [0, 3, 2**32 - 1, 2**40 + 7, 2**63 - 1])
def test_the_first_key_is_that_of_the_seed(seed):
    assert first_key(seed) == jax.random.key(seed, impl="threefry2x32")
    keys = jax.random.split(first_key(seed), 3)
    assert (key_of(jax.random.key_data(keys)) == keys).all()


def test_keys_do_not_depend_on_flags():
    words = np.asarray(jax.random.key_data(first_key(2**40 + 7)))
    with jax.default_prng_impl("unsafe_rbg"), jax.enable_x64(False):
        assert first_key(2**40 + 7).dtype == first_key(0).dtype == jax.random.key(0, impl="threefry2x32").dtype
        np.testing.assert_array_equal(jax.random.key_data(first_key(2**40 + 7)), words)
