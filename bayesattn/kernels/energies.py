"""Parts of the energy log det A + Y^T A^{-1} Y of A = K + T I, with its derivative written out.

To write it out is cheaper than to differentiate through the Cholesky factor: dE = tr[(A^{-1} - alpha alpha^T) dA] with
alpha = A^{-1} Y. Labels Y are one vector here, those of all outputs.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

HALVED_FROM = 256
"""Rows from which a Gram matrix is made by halves."""

Square = Float[Array, "row row"]


def cholesky(kernel: Square, temperature: Any) -> Square:
    """Cholesky factor of K + T I."""
    return jnp.linalg.cholesky(kernel + temperature * jnp.eye(len(kernel)))


def log_det(lower: Square) -> Float[Array, ""]:
    """log det L L^T."""
    return 2 * jnp.sum(jnp.log(jnp.diag(lower)))


@jax.custom_jvp
def kernel_energy(kernel: Square, labels: Float[Array, " row"], temperature: Any):
    """The energy by K."""
    return energy_and_slope(kernel, labels, temperature)[0]


@kernel_energy.defjvp
def _kernel_energy_jvp(primals, tangents):
    kernel, labels, temperature = primals
    kernel_dot, labels_dot, temperature_dot = tangents
    energy, slope, solution = energy_and_slope(kernel, labels, temperature)
    change = jnp.vdot(slope, kernel_dot)
    return energy, change + 2 * solution @ labels_dot + jnp.trace(slope) * temperature_dot


def energy_and_slope(kernel, labels, temperature):
    """The energy, A^{-1} - alpha alpha^T, and alpha = A^{-1} Y."""
    lower = cholesky(kernel, temperature)
    whitened = jax.scipy.linalg.solve_triangular(lower, labels, lower=True)
    solution = jax.scipy.linalg.solve_triangular(lower, whitened, lower=True, trans=1)
    return log_det(lower) + whitened @ whitened, inverse(lower) - jnp.outer(solution, solution), solution


def gram(matrix: Float[Array, "row column"]) -> Square:
    """M M^T, of which blocks below the diagonal are computed and mirrored.

    Rows are what is multiplied: of 1000 x 640 numbers M^T M takes 15 ms on one core, this of the transpose, copied, 8 ms.
    """
    half = len(matrix) // 2
    if half <= HALVED_FROM // 2:
        return matrix @ matrix.T
    first, last = matrix[:half], matrix[half:]
    below = last @ first.T
    return jnp.block([[gram(first), below.T], [below, gram(last)]])


def inverse(lower: Square) -> Square:
    """A^{-1} = W^T W of A = L L^T, with W = L^{-1}.

    Both by halves: products of matrices, and nothing done to the zeros above the diagonal. To solve for every column takes
    twice as long (100 and 300 examples, one core).
    """
    leaf = _leaf(len(lower))
    return _gram_of_upper(_lower_inverse(lower, leaf).T, leaf)


def _lower_inverse(lower: Square, leaf: int) -> Square:
    size, half = len(lower), len(lower) // 2
    if size <= leaf:
        return jax.scipy.linalg.solve_triangular(lower, jnp.eye(size), lower=True)
    first, last = _lower_inverse(lower[:half, :half], leaf), _lower_inverse(lower[half:, half:], leaf)
    below = -last @ (lower[half:, :half] @ first)
    return jnp.block([[first, jnp.zeros((half, size - half))], [below, last]])


def _gram_of_upper(upper: Square, leaf: int) -> Square:
    """V V^T of an upper triangular V."""
    size, half = len(upper), len(upper) // 2
    if size <= leaf:
        return upper @ upper.T
    first, right, last = upper[:half, :half], upper[:half, half:], upper[half:, half:]
    below = last @ right.T
    return jnp.block(
        [
            [_gram_of_upper(first, leaf) + right @ right.T, below.T],
            [below, _gram_of_upper(last, leaf)],
        ]
    )


def _leaf(rows: int) -> int:
    """Size up to which a matrix is not halved again: smaller ones gain nothing, and more of them compile for longer."""
    return max(48, -(-rows // (4 if rows <= 512 else 8)))
