"""Streams of random numbers, one for each purpose and for each posterior from which draws are made.

With one stream for all, runs with the same seed would share their random numbers, and so their random errors too.
"""

import hashlib
import json

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key
from numpy.typing import ArrayLike


def first_key(seed: int) -> Key[Array, ""]:
    """Threefry key of a seed from 0 to 2^63 - 1, made of the seed's two words as in `jax.random.key` if no flag is set."""
    return key_of([seed >> 32, seed & 0xFFFFFFFF])


def key_of(words: ArrayLike) -> Key[Array, "..."]:
    """Threefry keys made from their words, which lie on the last axis."""
    return jax.random.wrap_key_data(jnp.asarray(np.asarray(words, np.uint32)), impl="threefry2x32")


def stream(seed: int, *purpose: str) -> Key[Array, ""]:
    """Key derived from a seed and a named purpose."""
    return branch(first_key(seed), *purpose)


def branch(key: Key[Array, ""], *purpose: str) -> Key[Array, ""]:
    """Key of a stream for a named purpose, distinct from the keys that splitting gives.

    JAX's `fold_in(key, n)` is the n-th key of a split, so a hash is folded in rather than a small number.
    """
    hashed = hashlib.sha256("\n".join(purpose).encode()).digest()
    return jax.random.fold_in(key, int.from_bytes(hashed[:4], "big"))


def rounded(array: np.ndarray) -> np.ndarray:
    """`array` rounded to about 1e-9 of its largest entry, so that all processors agree except in rare ties."""
    scale = 2.0 ** (30 - np.frexp(np.abs(array).max(initial=0.0))[1])
    return np.rint(array * scale) / scale + 0.0  # Zeros without a sign.


def digest_of_draws(*arrays: ArrayLike) -> str:
    """Part of the purpose of a stream for draws: others have other random numbers, so that several calls are independent."""
    return digest("", *(rounded(np.asarray(array, float)) for array in arrays))


def digest(settings: object, *arrays: ArrayLike) -> str:
    """SHA-256 of settings that JSON can represent, and of arrays."""
    sha = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for array in arrays:
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()
