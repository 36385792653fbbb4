"""The energy of a kernel, log det(K + T I) + Y^T (K + T I)^{-1} Y, given in five ways, with its derivatives written out.

To write them out is cheaper than to differentiate through the Cholesky factor:
dE = tr[(A^{-1} - alpha alpha^T) dA] with A = K + T I and alpha = A^{-1} Y.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayesattn.theory.features import outputs_of
from bayesattn.theory.forms import mixes_pairs

HALVED_FROM = 256
"""Rows from which a Gram matrix is made by halves."""


@jax.jit
def pairs_of(scaled: Float[Array, "example feature path"]) -> Float[Array, "pair entry"]:
    """Symmetrised kernels of pairs of paths, as `bayesattn.theory.likelihood.LikelihoodByPairs` holds them."""
    rows, columns = np.tril_indices(len(scaled))

    def one_pair(pair: Array) -> Float[Array, " entry"]:
        product = scaled[:, :, pair[0]] @ scaled[:, :, pair[1]].T
        symmetrised = product + jnp.where(pair[0] == pair[1], 0.0, 1.0) * product.T
        return symmetrised[rows, columns]

    return jax.lax.map(one_pair, jnp.stack(np.tril_indices(scaled.shape[2]), axis=1))


def unpacked(packed: Float[Array, " entry"], size: int) -> Float[Array, "row row"]:
    """Symmetric matrix from its lower triangle, row by row."""
    row, column = np.indices((size, size))
    low, high = np.minimum(row, column), np.maximum(row, column)
    return packed[high * (high + 1) // 2 + low]


@jax.custom_jvp
def kernel_energy(kernel: Float[Array, "example example"], labels: Float[Array, " example"], temperature: Any):
    """Energy by K."""
    return _energy_and_slope(kernel, labels, temperature)[0]


@kernel_energy.defjvp
def _kernel_energy_jvp(primals, tangents):
    kernel, labels, temperature = primals
    kernel_dot, labels_dot, temperature_dot = tangents
    energy, slope, solution = _energy_and_slope(kernel, labels, temperature)
    change = jnp.vdot(slope, kernel_dot)
    return energy, change + 2 * solution @ labels_dot + jnp.trace(slope) * temperature_dot


@jax.custom_jvp
def packed_energy(packed: Float[Array, " entry"], labels: Float[Array, " example"], temperature: Any):
    """Energy by the lower triangle of K."""
    return _energy_and_slope(unpacked(packed, len(labels)), labels, temperature)[0]


@packed_energy.defjvp
def _packed_energy_jvp(primals, tangents):
    packed, labels, temperature = primals
    packed_dot, labels_dot, temperature_dot = tangents
    energy, slope, solution = _energy_and_slope(unpacked(packed, len(labels)), labels, temperature)
    rows, columns = np.tril_indices(len(labels))
    twice_below = slope[rows, columns] * np.where(rows == columns, 1.0, 2.0)
    return energy, twice_below @ packed_dot + 2 * solution @ labels_dot + jnp.trace(slope) * temperature_dot


@jax.custom_jvp
def gram_energy(mixed: Float[Array, "example column"], labels: Float[Array, " example"], temperature: Any):
    """Energy where K is the Gram matrix of `mixed`."""
    return _energy_and_slope(gram(mixed), labels, temperature)[0]


@gram_energy.defjvp
def _gram_energy_jvp(primals, tangents):
    mixed, labels, temperature = primals
    mixed_dot, labels_dot, temperature_dot = tangents
    energy, slope, solution = _energy_and_slope(gram(mixed), labels, temperature)
    change = 2 * jnp.vdot(slope @ mixed, mixed_dot)
    return energy, change + 2 * solution @ labels_dot + jnp.trace(slope) * temperature_dot


@jax.custom_jvp
def projection_energy(mixed: Float[Array, "example column"], labels: Float[Array, " example"], temperature: Any):
    """Energy where K is the Gram matrix of `mixed`, by a matrix of as many rows as that has columns (EXTENSIONS section 3).

    With B = `mixed`, M = B^T B + T I and w = M^{-1} B^T Y, the posterior mean of what B is multiplied with (for P examples
    and c columns):

        log det(K + T I) = log det M + (P - c) log T,   Y^T (K + T I)^{-1} Y = |Y - B w|^2 / T + |w|^2.

    The sum of squares keeps the digits that |Y|^2 - Y^T B w loses at small T.
    """
    return _projected(mixed, labels, temperature)[0]


@projection_energy.defjvp
def _projection_energy_jvp(primals, tangents):
    mixed, labels, temperature = primals
    mixed_dot, labels_dot, temperature_dot = tangents
    energy, cholesky, mean, solution = _projected(mixed, labels, temperature)
    (examples, columns), leaf = mixed.shape, _leaf(len(cholesky))
    inverse = _gram_of_upper(_lower_inverse(cholesky, leaf).T, leaf)
    # B^T (K + T I)^{-1} = M^{-1} B^T, B^T alpha = w
    change = 2 * jnp.vdot(mixed @ inverse - jnp.outer(solution, mean), mixed_dot)
    trace = jnp.trace(inverse) + (examples - columns) / temperature
    return energy, change + 2 * solution @ labels_dot + (trace - solution @ solution) * temperature_dot


def _projected(mixed, labels, temperature):
    """Energy, Cholesky factor of M, w, and (K + T I)^{-1} Y."""
    examples, columns = mixed.shape
    cholesky = jnp.linalg.cholesky(gram(mixed.T) + temperature * jnp.eye(columns))
    mean = jax.scipy.linalg.cho_solve((cholesky, True), mixed.T @ labels)
    missed = labels - mixed @ mean
    log_det = 2 * jnp.sum(jnp.log(jnp.diag(cholesky))) + (examples - columns) * jnp.log(temperature)
    return log_det + missed @ missed / temperature + mean @ mean, cholesky, mean, missed / temperature


@jax.custom_jvp
def log_det_and_solution(matrix: Float[Array, "row row"], vector: Float[Array, " row"]) -> tuple[Array, Array]:
    """log det M and M^{-1} b of a positive definite M."""
    cholesky = jnp.linalg.cholesky(matrix)
    return 2 * jnp.sum(jnp.log(jnp.diag(cholesky))), jax.scipy.linalg.cho_solve((cholesky, True), vector)


@log_det_and_solution.defjvp
def _log_det_and_solution_jvp(primals, tangents):
    matrix, vector = primals
    matrix_dot, vector_dot = tangents
    cholesky, leaf = jnp.linalg.cholesky(matrix), _leaf(len(matrix))
    inverse = _gram_of_upper(_lower_inverse(cholesky, leaf).T, leaf)
    # A product with the inverse loses more digits.
    solution = jax.scipy.linalg.cho_solve((cholesky, True), vector)
    log_det = 2 * jnp.sum(jnp.log(jnp.diag(cholesky)))
    return (log_det, solution), (jnp.vdot(inverse, matrix_dot), inverse @ (vector_dot - matrix_dot @ solution))


def gram_by_products(
    factor: Float[Array, "row column"], products: Float[Array, "feature path feature path"], outputs: int
) -> Float[Array, "latent latent"]:
    """B^T B = F^T (X^T X) F of B = X F, a row for each feature and column of F; rows of F are (path, output) pairs."""
    (size, paths), columns = products.shape[:2], factor.shape[1]
    if mixes_pairs(len(factor), columns, outputs):
        by_path = factor.reshape(paths, outputs, columns)
        pairs = jnp.einsum("pok,qol->pqkl", by_path, by_path).reshape(paths**2, -1)
        mixed = jnp.swapaxes(products, 1, 2).reshape(-1, paths**2) @ pairs
        return jnp.swapaxes(mixed.reshape(size, size, columns, columns), 1, 2).reshape(size * columns, -1)
    half = (products.reshape(-1, paths) @ factor.reshape(paths, -1)).reshape(size, paths, size, outputs, -1)
    # Rows (path, output), columns (feature, feature, column of F).
    half = jnp.moveaxis(half, (1, 3), (0, 1)).reshape(len(factor), -1)
    return jnp.swapaxes((factor.T @ half).reshape(columns, size, -1), 0, 1).reshape(size * columns, -1)


def energy_by_products(
    factor: Float[Array, "row column"],
    features: Float[Array, "example feature path"],
    products: Float[Array, "feature path feature path"],
    pulled: Float[Array, " latent"],
    labels: Float[Array, " label"],
    temperature: Any,
    outputs: int,
) -> Float[Array, ""]:
    """As `projection_energy` of B = X F, with B^T B = F^T (X^T X) F and B^T Y at hand: only what is missed needs examples.

    Args:
        factor: F, its rows (path, output) pairs.
        features: X.
        products: X^T X.
        pulled: B^T Y, of each feature and column of F.
        labels: Y.
        temperature: T.
        outputs: m.
    """
    size = features.shape[1]
    gram = gram_by_products(factor, products, outputs)
    log_det, mean = log_det_and_solution(gram + temperature * jnp.eye(len(gram)), pulled)
    missed = labels - outputs_of(features, factor @ mean.reshape(size, -1).T, outputs)
    rest = (len(labels) - len(gram)) * jnp.log(temperature)
    return log_det + rest + missed @ missed / temperature + mean @ mean


def _energy_and_slope(kernel, labels, temperature):
    identity = jnp.eye(len(labels))
    cholesky = jnp.linalg.cholesky(kernel + temperature * identity)
    whitened = jax.scipy.linalg.solve_triangular(cholesky, labels, lower=True)
    solution = jax.scipy.linalg.solve_triangular(cholesky, whitened, lower=True, trans=1)
    energy = 2 * jnp.sum(jnp.log(jnp.diag(cholesky))) + whitened @ whitened
    leaf = _leaf(len(labels))
    inverse = _gram_of_upper(_lower_inverse(cholesky, leaf).T, leaf)
    return energy, inverse - jnp.outer(solution, solution), solution


def gram(matrix: Float[Array, "row column"]) -> Float[Array, "row row"]:
    """M M^T, of which blocks below the diagonal are computed and mirrored.

    Rows are what is multiplied: of 1000 x 640 numbers M^T M takes 15 ms on one core, this of the transpose, copied, 8 ms.
    """
    half = len(matrix) // 2
    if half <= HALVED_FROM // 2:
        return matrix @ matrix.T
    first, last = matrix[:half], matrix[half:]
    below = last @ first.T
    return jnp.block([[gram(first), below.T], [below, gram(last)]])


# A^{-1} = W^T W with W = L^{-1}, both by halves: products of matrices, and nothing done to the zeros above the diagonal. To
# solve for every column takes twice as long (100 and 300 examples, one core).


def _lower_inverse(lower: Float[Array, "row row"], leaf: int) -> Float[Array, "row row"]:
    size, half = len(lower), len(lower) // 2
    if size <= leaf:
        return jax.scipy.linalg.solve_triangular(lower, jnp.eye(size), lower=True)
    first, last = _lower_inverse(lower[:half, :half], leaf), _lower_inverse(lower[half:, half:], leaf)
    below = -last @ (lower[half:, :half] @ first)
    return jnp.block([[first, jnp.zeros((half, size - half))], [below, last]])


def _gram_of_upper(upper: Float[Array, "row row"], leaf: int) -> Float[Array, "row row"]:
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


def _leaf(examples: int) -> int:
    """Size up to which a matrix is not halved again, by the number of examples.

    Smaller ones gain nothing, and more of them compile for longer.
    """
    return max(48, -(-examples // (4 if examples <= 512 else 8)))
