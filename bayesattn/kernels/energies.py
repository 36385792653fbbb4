"""Energy log det A + Y^T A^{-1} Y with A = K + T I, and its derivative in closed form.

The closed form is cheaper than differentiating through the Cholesky factor: dE = tr[(A^{-1} - alpha alpha^T) dA] with
alpha = A^{-1} Y. Here Y is one vector, which holds the labels of all outputs.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from bayesattn.kernels.path_inputs import Number

LEAST_ROWS_TO_HALVE = 256
"""Number of rows above which a Gram matrix is computed by halves."""

Square = Float[Array, "row row"]


def cholesky(kernel: Square, temperature: Number) -> Square:
    """Cholesky factor of K + T I."""
    return jnp.linalg.cholesky(kernel + temperature * jnp.eye(len(kernel), dtype=kernel.dtype))


def one_by_one(function: Callable, items: PyTree[Array]) -> PyTree[Array]:
    """Results of a function of each item along the leading axis, computed one after the other.

    Batched Cholesky factorisations have been seen to deadlock XLA's threads.
    """
    return jax.lax.map(function, items)


def log_det(lower: Square) -> Float[Array, ""]:
    """log det L L^T."""
    return 2 * jnp.sum(jnp.log(jnp.diag(lower)))


@jax.custom_jvp
def kernel_energy(kernel: Square, labels: Float[Array, " row"], temperature: Number):
    """Energy from K."""
    return energy_and_slope(kernel, labels, temperature)[0]


@kernel_energy.defjvp
def _kernel_energy_jvp(primals, tangents):
    kernel, labels, temperature = primals
    kernel_dot, labels_dot, temperature_dot = tangents
    energy, slope, solution = energy_and_slope(kernel, labels, temperature)
    change = jnp.vdot(slope, kernel_dot)
    return energy, change + 2 * solution @ labels_dot + jnp.trace(slope) * temperature_dot


def energy_and_slope(kernel, labels, temperature):
    """Energy, A^{-1} - alpha alpha^T, and alpha = A^{-1} Y."""
    lower = cholesky(kernel, temperature)
    whitened = jax.scipy.linalg.solve_triangular(lower, labels, lower=True)
    solution = jax.scipy.linalg.solve_triangular(lower, whitened, lower=True, trans=1)
    return log_det(lower) + whitened @ whitened, inverse(lower) - jnp.outer(solution, solution), solution


def gram(matrix: Float[Array, "row column"]) -> Square:
    """M M^T; only blocks on and below the diagonal are computed, and the others are mirrored.

    The function multiplies rows, not columns: for 1000 x 640 numbers, M^T M takes 15 ms on one core, and this function
    with a copy of the transpose 8 ms.
    """
    half = len(matrix) // 2
    if half <= LEAST_ROWS_TO_HALVE // 2:
        return matrix @ matrix.T
    first, last = matrix[:half], matrix[half:]
    below = last @ first.T
    return jnp.block([[gram(first), below.T], [below, gram(last)]])


def inverse(lower: Square) -> Square:
    """A^{-1} = W^T W of A = L L^T, with W = L^{-1}.

    Both are computed by halves, as products of matrices that leave out the zeros above the diagonal. Solving for every
    column takes twice as long (100 and 300 examples, one core).
    """
    return _gram_of_upper(lower_inverse(lower).T, _leaf(len(lower)))


def lower_inverse(lower: Square) -> Square:
    """L^{-1} of a lower triangular L, by halves."""
    return _lower_inverse(lower, _leaf(len(lower)))


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
    return jnp.block([[_gram_of_upper(first, leaf) + right @ right.T, below.T], [below, _gram_of_upper(last, leaf)]])


def _leaf(rows: int) -> int:
    """Size up to which a matrix is not halved again: smaller parts gain nothing, and more parts take longer to compile."""
    return max(48, -(-rows // (4 if rows <= 512 else 8)))
