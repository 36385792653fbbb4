"""Gaussian process by A = X F, path inputs times a factor of U: K = A A^T, or A^T A if it is smaller (THEORY section 8)."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bayesattn.kernels.energies import cholesky, energy_and_slope, gram, inverse, kernel_energy, log_det
from bayesattn.kernels.gaussian_process import GaussianProcess, smaller_by_features
from bayesattn.kernels.path_inputs import Factor, Features, Number, OrderParameter, outputs_of

Products = Float[Array, "feature path feature path"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class ByFeatures(GaussianProcess):
    """K(U) formed from features at each U, for any number of paths and outputs."""

    def kernel(self, factor: Factor) -> Float[Array, "label label"]:
        """K(F F^T)."""
        return gram(self.mixed(factor))

    def kernel_of(self, order_parameter: OrderParameter) -> Float[Array, "label label"]:
        """K(U) for any symmetric U; if U is nearly singular, a factor keeps more digits."""
        moved, examples = self.mixed(order_parameter), len(self.labels)
        # Columns are (feature, path, output) triples; those of each output multiply the features of all examples.
        by_output = jnp.swapaxes(moved.reshape(len(moved), -1, self.outputs), 1, 2).reshape(-1, self.flat.shape[1])
        across = (by_output @ self.flat.T).reshape(len(moved), self.outputs, examples)
        return jnp.swapaxes(across, 1, 2).reshape(len(moved), -1)

    def _energy(self, factor: Factor) -> Float[Array, ""]:
        return gram_energy(self.mixed(factor), self.flat_labels, self.temperature)

    def _energy_of(self, order_parameter: OrderParameter) -> Float[Array, ""]:
        return kernel_energy(self.kernel_of(order_parameter), self.flat_labels, self.temperature)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class InFeatureSpace(ByFeatures):
    """Energies from a matrix of r N_0 rows, for factors F with r columns, or of P m rows, one per label, if those are fewer.

    Args:
        products: X^T X over all examples, shape (N_0, Pi, N_0, Pi), if A^T A takes fewer operations from them.
    """

    products: Products | None = field(default=None, kw_only=True)

    def _energy(self, factor: Factor) -> Float[Array, ""]:
        if not smaller_by_features(factor.shape[1], self.features.shape[1], self.labels.size):
            return super()._energy(factor)
        if self.products is None:
            return projection_energy(self.mixed(factor), self.flat_labels, self.temperature)
        pulled = (factor.T @ self.pulled(self.flat_labels)).T.reshape(-1)
        return energy_by_products(factor, self.features, self.products, pulled, self.labels, self.temperature)

    def _latent_gram(self, factor: Factor) -> Float[Array, "latent latent"]:
        if self.products is None:
            return super()._latent_gram(factor)
        return gram_by_products(factor, self.products, self.outputs)


@jax.custom_jvp
def gram_energy(mixed: Float[Array, "label column"], labels: Float[Array, " label"], temperature: Number):
    """Energy if K is the Gram matrix of `mixed`."""
    return energy_and_slope(gram(mixed), labels, temperature)[0]


@gram_energy.defjvp
def _gram_energy_jvp(primals, tangents):
    mixed, labels, temperature = primals
    mixed_dot, labels_dot, temperature_dot = tangents
    energy, slope, solution = energy_and_slope(gram(mixed), labels, temperature)
    change = 2 * jnp.vdot(slope @ mixed, mixed_dot)
    return energy, change + 2 * solution @ labels_dot + jnp.trace(slope) * temperature_dot


@jax.custom_jvp
def projection_energy(mixed: Float[Array, "label column"], labels: Float[Array, " label"], temperature: Number):
    """Energy if K is the Gram matrix of B = `mixed`, from a matrix with as many rows as B has columns.

    With M = B^T B + T I and w = M^{-1} B^T Y, the posterior mean of the vector that B multiplies (for P labels
    and c columns):

        log det(K + T I) = log det M + (P - c) log T,   Y^T (K + T I)^{-1} Y = |Y - B w|^2 / T + |w|^2.

    The sum of squares keeps the digits that |Y|^2 - Y^T B w loses at small T.
    """
    return _projected(mixed, labels, temperature)[0]


@projection_energy.defjvp
def _projection_energy_jvp(primals, tangents):
    mixed, labels, temperature = primals
    mixed_dot, labels_dot, temperature_dot = tangents
    energy, lower, mean, solution = _projected(mixed, labels, temperature)
    rows, columns = mixed.shape
    inverted = inverse(lower)
    # B^T (K + T I)^{-1} = M^{-1} B^T, B^T alpha = w
    change = 2 * jnp.vdot(mixed @ inverted - jnp.outer(solution, mean), mixed_dot)
    trace = jnp.trace(inverted) + (rows - columns) / temperature
    return energy, change + 2 * solution @ labels_dot + (trace - solution @ solution) * temperature_dot


def _projected(mixed, labels, temperature):
    """The energy, the Cholesky factor of M, w, and (K + T I)^{-1} Y."""
    rows, columns = mixed.shape
    lower = cholesky(gram(mixed.T), temperature)
    mean = jax.scipy.linalg.cho_solve((lower, True), mixed.T @ labels)
    residual = labels - mixed @ mean
    energy = log_det(lower) + (rows - columns) * jnp.log(temperature) + residual @ residual / temperature + mean @ mean
    return energy, lower, mean, residual / temperature


@jax.custom_jvp
def log_det_and_solution(matrix: Float[Array, "row row"], vector: Float[Array, " row"]) -> tuple[Array, Array]:
    """log det M and M^{-1} b of a positive definite M."""
    lower = jnp.linalg.cholesky(matrix)
    return log_det(lower), jax.scipy.linalg.cho_solve((lower, True), vector)


@log_det_and_solution.defjvp
def _log_det_and_solution_jvp(primals, tangents):
    matrix, vector = primals
    matrix_dot, vector_dot = tangents
    lower = jnp.linalg.cholesky(matrix)
    inverted = inverse(lower)
    # A product with the inverse would lose more digits.
    solution = jax.scipy.linalg.cho_solve((lower, True), vector)
    change = jnp.vdot(inverted, matrix_dot), inverted @ (vector_dot - matrix_dot @ solution)
    return (log_det(lower), solution), change


def energy_by_products(
    factor: Factor,
    features: Features,
    products: Products,
    pulled: Float[Array, " latent"],
    labels: Float[Array, "example output"],
    temperature: Number,
) -> Float[Array, ""]:
    """`projection_energy` of B = X F, from B^T B = F^T (X^T X) F and B^T Y; only Y - B w requires the examples.

    Args:
        factor: F, whose rows are (path, output) pairs.
        features: X.
        products: X^T X.
        pulled: B^T Y, for each feature and column of F.
        labels: Y.
        temperature: T.
    """
    size, outputs = features.shape[1], labels.shape[1]
    latent = gram_by_products(factor, products, outputs)
    log_determinant, mean = log_det_and_solution(latent + temperature * jnp.eye(len(latent)), pulled)
    residual = (labels - outputs_of(features, factor @ mean.reshape(size, -1).T, outputs)).reshape(-1)
    rest = (labels.size - len(latent)) * jnp.log(temperature)
    return log_determinant + rest + residual @ residual / temperature + mean @ mean


def gram_by_products(factor: Factor, products: Products, outputs: int) -> Float[Array, "latent latent"]:
    """B^T B = F^T (X^T X) F of B = X F, one row per feature and column of F; rows of F are (path, output) pairs."""
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


def mixes_pairs(rows: int, columns: int, outputs: int) -> bool:
    """Whether products of features are multiplied with sums of pairs of entries of F, rather than with F from both sides.

    Multiplying from both sides makes larger intermediate arrays and takes about three times as long per operation (measured
    with 20 to 128 features, 3 to 30 paths, 4 to 18 columns; with ten outputs, A^T A took 25 ms this way, 3.5 ms by pairs).
    """
    return rows // outputs * columns <= 3 * (rows + outputs * columns)
