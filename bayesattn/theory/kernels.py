"""Kernels between examples, weighed by an order parameter (THEORY sections 3 and 5)."""

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayesattn._checks import finite_array
from bayesattn.architecture import Architecture
from bayesattn.theory.of_model import of_model


@of_model
def kernel(
    order_parameter: Any, path_inputs: Any, other_path_inputs: Any, arch: Architecture
) -> Float[Array, "example other_example"]:
    """K(U)_{mu nu} = s_0^2 / (N_0 Pi) sum_{pi pi'} U^{pi pi'} xi^pi_mu . xi^pi'_nu (THEORY section 3).

    Args:
        order_parameter: U, symmetric, shape (Pi, Pi).
        path_inputs: xi of shape (P, Pi, N_0); a Model here stands for all that it holds.
        other_path_inputs: xi' of shape (P', Pi, N_0).
        arch: the network.

    Returns:
        Array of shape (P, P').

    Raises:
        ValueError: wrong shapes or entries that are not finite.
    """
    path_inputs = checked_path_inputs("path_inputs", path_inputs, arch)
    other = checked_path_inputs("other_path_inputs", other_path_inputs, arch, features=path_inputs.shape[2])
    order_parameter = finite_array("order_parameter", order_parameter, (arch.paths, arch.paths))
    return cross_kernel(jnp.asarray(order_parameter), jnp.asarray(path_inputs), jnp.asarray(other), arch.variances[0])


def alignment(kernel: Any, labels: Any) -> Float[Array, " example"]:
    """|u_k . Y| / |Y| for the unit eigenvectors u_k of a kernel, largest eigenvalue first (THEORY section 5).

    Args:
        kernel: symmetric, shape (P, P).
        labels: Y, shape (P,), not all zero.

    Returns:
        Array of shape (P,); its squares sum to 1.

    Raises:
        ValueError: wrong shapes, entries that are not finite, labels that are all zero.
    """
    kernel, labels = _checked_alignment(kernel, labels)
    eigenvectors = jnp.linalg.eigh(jnp.asarray(kernel))[1]
    return jnp.abs(eigenvectors[:, ::-1].T @ labels) / np.linalg.norm(labels)


def kernel_target_alignment(kernel: Any, labels: Any) -> float:
    """Y^T K Y / (|K|_F |Y|^2), the cosine between K and Y Y^T (Cristianini et al. 2001; THEORY section 5).

    It is the mean of the squares of `alignment`, weighed by the eigenvalues over the root of the sum of their squares.

    Args:
        kernel: symmetric, shape (P, P).
        labels: Y, shape (P,), not all zero.

    Returns:
        Between 0 and 1 for a positive semidefinite kernel, 1 if K is a multiple of Y Y^T; NaN if K = 0.

    Raises:
        ValueError: wrong shapes, entries that are not finite, labels that are all zero.
    """
    kernel, labels = _checked_alignment(kernel, labels)
    norm = np.linalg.norm(kernel)
    return float(labels @ kernel @ labels / (norm * (labels @ labels))) if norm > 0 else float("nan")


def _checked_alignment(kernel: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    labels = finite_array("labels", labels, ("examples",))
    if not labels.any():
        raise ValueError("labels must not all be zero: alignment divides by their norm")
    return finite_array("kernel", kernel, (len(labels), len(labels))), labels


def checked_path_inputs(name: str, value: Any, arch: Architecture, features: int | str = "features") -> np.ndarray:
    """`value` as path inputs of `arch`; raises ValueError if they are not."""
    array = finite_array(name, value, ("examples", "paths", features))
    if array.shape[1] != arch.paths:
        raise ValueError(
            f"{name} must have {arch.paths} paths on axis 1 (the product of heads {arch.heads}),"
            f" got shape {array.shape}"
        )
    return array


def refuse_contradictions(path_inputs: Any, labels: Any, arch: Architecture, temperature: float) -> None:
    """Raise ValueError if examples that are the same have different labels, and the temperature is lost beside their kernel.

    float64 then holds K + T I as singular, and whatever is computed from it is rounding.
    """
    scale = np.prod(arch.variances) / (path_inputs.shape[1] * path_inputs.shape[2])
    flat = np.reshape(path_inputs, (len(path_inputs), -1))
    own = scale * np.einsum("ef,ef->e", flat, flat)
    lost = PIVOT_ROUNDING * len(own) * np.finfo(float).eps * own.max()
    if temperature >= lost:
        return
    same = own[:, None] + own - 2 * scale * (flat @ flat.T) <= lost
    apart = np.abs(np.subtract.outer(labels, labels)) > np.sqrt(lost)
    if len(found := np.argwhere(same & apart)):
        first, second = found[0]
        raise ValueError(
            f"labels of examples {first} and {second} must be equal, for their path inputs are, or the temperature above"
            f" {lost:.1g}, below which float64 cannot tell it from 0; got {labels[first]:g} and {labels[second]:g} at"
            f" temperature {temperature:g}"
        )


def cross_kernel(
    order_parameter: Float[Array, "path path"],
    path_inputs: Float[Array, "example path feature"],
    other: Float[Array, "other_example path feature"],
    input_variance: Any,
) -> Float[Array, "example other_example"]:
    """K(U) between two sets of examples, without checks."""
    _, paths, features = path_inputs.shape
    return _weighed(order_parameter, path_inputs, other) * (input_variance / (features * paths))


def _weighed(order_parameter, path_inputs, other) -> Float[Array, "example other_example"]:
    mixed = jnp.einsum("epf,pq->eqf", path_inputs, order_parameter)
    return mixed.reshape(len(mixed), -1) @ other.reshape(len(other), -1).T


def diagonal_kernel(
    order_parameter: Float[Array, "path path"], path_inputs: Float[Array, "example path feature"], input_variance: Any
) -> Float[Array, " example"]:
    """K(U) of each example with itself, without checks."""
    _, paths, features = path_inputs.shape
    mixed = jnp.einsum("epf,pq->eqf", path_inputs, order_parameter)
    return jnp.einsum("eqf,eqf->e", mixed, path_inputs) * (input_variance / (features * paths))


class PathKernels(NamedTuple):
    """Everything K(U) on the training examples needs, in the cheaper of two exact forms.

    `features` holds the path inputs times s_0 / sqrt(N_0 Pi), shape (P, Pi, N_0), from which K is formed as a Gram matrix
    if `pairs` is None; otherwise `pairs` holds, for each pair of paths (pi <= pi'), the symmetrised kernel
    s_0^2 / (N_0 Pi) (xi^pi xi^pi'^T + its transpose), lower triangle only, shape (Pi (Pi + 1) / 2, P (P + 1) / 2).
    """

    pairs: Float[Array, "pair entry"] | None
    features: Float[Array, "example path feature"]

    def __call__(self, factor: Float[Array, "path column"]) -> Float[Array, " entry"]:
        """Lower triangle, row by row, of K(U) for U = factor factor^T."""
        if self.pairs is not None:
            return self.of(factor @ factor.T)
        mixed = jnp.einsum("epf,pq->eqf", self.features, factor).reshape(len(self.features), -1)
        return (mixed @ mixed.T)[np.tril_indices(len(mixed))]

    def of(self, order_parameter: Float[Array, "path path"]) -> Float[Array, " entry"]:
        """The same for any symmetric U."""
        if self.pairs is not None:
            return order_parameter[np.tril_indices(len(order_parameter))] @ self.pairs
        return _weighed(order_parameter, self.features, self.features)[np.tril_indices(len(self.features))]


PAIRS_BYTES = 2**30
"""Most memory that path-path kernels may take; beyond it K is formed from features."""


def path_kernels(path_inputs: Float[Array, "example path feature"], arch: Architecture) -> PathKernels:
    """The cheaper form of the kernels of these path inputs.

    Path-path kernels read 2 P^2 Pi^2 bytes a product at memory speed, features cost 2 P^2 Pi N_0 operations: with about
    ten operations in the time of a byte, features win where N_0 is below a few Pi.
    """
    examples, paths, features = path_inputs.shape
    scaled = jnp.asarray(path_inputs) * np.sqrt(arch.variances[0] / (features * paths))
    pairs_bytes = 8 * (paths * (paths + 1) // 2) * (examples * (examples + 1) // 2)
    if features <= 4 * paths or pairs_bytes > PAIRS_BYTES:
        return PathKernels(None, scaled)
    return PathKernels(_pair_kernels(np.asarray(scaled).tobytes(), scaled.shape), scaled)


@lru_cache(maxsize=1)
def _pair_kernels(contents: bytes, shape: tuple[int, ...]) -> Float[Array, "pair entry"]:
    """Kept until others are asked for: every width, temperature and question to the theory needs the same ones again."""
    return _new_pair_kernels(jnp.asarray(np.frombuffer(contents).reshape(shape)))


@jax.jit
def _new_pair_kernels(scaled: Float[Array, "example path feature"]) -> Float[Array, "pair entry"]:
    rows, columns = np.tril_indices(len(scaled))

    def one_pair(pair: Array) -> Float[Array, " entry"]:
        product = scaled[:, pair[0]] @ scaled[:, pair[1]].T
        symmetrised = product + jnp.where(pair[0] == pair[1], 0.0, 1.0) * product.T
        return symmetrised[rows, columns]

    return jax.lax.map(one_pair, jnp.stack(np.tril_indices(scaled.shape[1]), axis=1))


class EnergyModel(NamedTuple):
    """Second-order expansion of the energy in U: its value, dE/dU and d^2E/dU^2 (entries of U row by row)."""

    value: Float[Array, ""]
    slope: Float[Array, "path path"]
    curvature: Float[Array, "path*path path*path"]


BLOCK_BYTES = 2**27
PIVOT_ROUNDING = 10.0


def energy_model(
    kernels: PathKernels, factor: Float[Array, "path column"], labels: Float[Array, " example"], temperature: Any
) -> EnergyModel:
    """The energy of THEORY section 4 around U = factor factor^T.

    With A = K(U) + T I = L L^T, alpha = A^{-1} Y, X_p the scaled inputs of path p, Z_p = L^{-1} X_p and v_p = X_p^T alpha:
    dE/dU_pq = tr(Z_p^T Z_q) - v_p . v_q, and
    d^2E/dU_pq dU_rs = -tr(Z_q^T Z_r Z_s^T Z_p) + 2 v_p^T (Z_q^T Z_r) v_s, on changes of U that are symmetric.
    All examples enter through the Gram matrix of the Z alone, so that this costs a few kernels, however many entries U has.
    """
    examples, paths, features = kernels.features.shape
    kernel = unpack(kernels(factor), examples) + temperature * jnp.eye(examples)
    cholesky = jnp.linalg.cholesky(kernel)
    solution = jax.scipy.linalg.cho_solve((cholesky, True), labels)
    energy = 2 * jnp.sum(jnp.log(jnp.diag(cholesky))) + labels @ solution
    flat = kernels.features.reshape(examples, -1)
    whitened = jax.scipy.linalg.solve_triangular(cholesky, flat, lower=True).reshape(examples, paths, features)
    weighted = (solution @ flat).reshape(paths, features)
    slope = jnp.einsum("epf,eqf->pq", whitened, whitened) - weighted @ weighted.T
    # Features f' in blocks: all of the Gram matrix at once may not fit into memory.
    count = max(1, min(features, BLOCK_BYTES // (8 * paths**2 * features)))
    padded = jnp.pad(whitened, ((0, 0), (0, 0), (0, -features % count)))
    blocks = jnp.moveaxis(padded.reshape(examples, paths, -1, count), 2, 0)

    def add(traces, block):
        rows = jnp.einsum("epf,eqg->pqfg", whitened, block).reshape(paths**2, -1)
        return traces + rows @ rows.T, None

    # Rows (q, r) and columns (p, s).
    traces, _ = jax.lax.scan(add, jnp.zeros((paths**2, paths**2)), blocks)
    trace_term = jnp.einsum("qrps->pqrs", traces.reshape((paths,) * 4)).reshape(traces.shape)
    # Z_q v_p
    pulled = jnp.einsum("eqf,pf->pqe", whitened, weighted).reshape(paths**2, examples)
    return EnergyModel(energy, slope, 2 * pulled @ pulled.T - trace_term)


def is_singular(packed: Float[Array, " entry"], size: int, temperature: Any) -> Array:
    """Whether K + T I has a pivot that may be rounding, so that its inverse means nothing."""
    kernel = unpack(packed, size)
    pivots = jnp.diag(jnp.linalg.cholesky(kernel + temperature * jnp.eye(size))) ** 2
    # Written so that NaN is singular.
    return ~(jnp.min(pivots) > PIVOT_ROUNDING * size * jnp.finfo(float).eps * jnp.max(jnp.diag(kernel)))


def unpack(packed: Float[Array, " entry"], size: int) -> Float[Array, "row row"]:
    """Symmetric matrix from its lower triangle, row by row."""
    row, column = np.indices((size, size))
    low, high = np.minimum(row, column), np.maximum(row, column)
    return packed[high * (high + 1) // 2 + low]


@jax.custom_jvp
def gaussian_energy(
    packed: Float[Array, " entry"], labels: Float[Array, " example"], temperature: Float[Array, ""]
) -> Float[Array, ""]:
    """log det(K + T I) + Y^T (K + T I)^{-1} Y for K given by its lower triangle (THEORY section 4).

    Its derivative is written out: dE = tr[(A^{-1} - alpha alpha^T) dA] with A = K + T I and alpha = A^{-1} Y, cheaper than
    differentiating through the Cholesky factor.
    """
    return _energy_and_slope(packed, labels, temperature)[0]


@gaussian_energy.defjvp
def _gaussian_energy_jvp(primals, tangents):
    packed, labels, temperature = primals
    packed_dot, labels_dot, temperature_dot = tangents
    energy, slope, solution = _energy_and_slope(packed, labels, temperature)
    rows, columns = np.tril_indices(len(labels))
    twice_below = slope[rows, columns] * np.where(rows == columns, 1.0, 2.0)
    change = twice_below @ packed_dot + 2 * solution @ labels_dot + jnp.trace(slope) * temperature_dot
    return energy, change


def _energy_and_slope(packed, labels, temperature):
    size = len(labels)
    cholesky = jnp.linalg.cholesky(unpack(packed, size) + temperature * jnp.eye(size))
    solution = jax.scipy.linalg.cho_solve((cholesky, True), labels)
    energy = 2 * jnp.sum(jnp.log(jnp.diag(cholesky))) + labels @ solution
    slope = jax.scipy.linalg.cho_solve((cholesky, True), jnp.eye(size)) - jnp.outer(solution, solution)
    return energy, slope, solution
