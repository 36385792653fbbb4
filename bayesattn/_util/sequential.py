"""Sequential maps of JAX."""

from collections.abc import Callable

import jax
from jaxtyping import Array, PyTree


def one_by_one(function: Callable, items: PyTree[Array]) -> PyTree[Array]:
    """Results of a function of each item along the leading axis, computed one after the other.

    Batched Cholesky factorisations have been seen to deadlock XLA's threads.
    """
    return jax.lax.map(function, items)
