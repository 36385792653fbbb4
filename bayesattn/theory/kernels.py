"""Kernels between examples, weighed by an order parameter (THEORY sections 3 and 5)."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayesattn._checks import finite_array, is_traced, labels_array, reals
from bayesattn._settings import with_own_settings
from bayesattn.architecture import Architecture
from bayesattn.theory.of_model import of_model

PIVOT_ROUNDING = 10.0
"""Times that a pivot must be above the rounding of the largest, or it may be nothing else."""


@with_own_settings
@of_model
def kernel(
    order_parameter: Any, path_inputs: Any, other_path_inputs: Any, arch: Architecture
) -> Float[Array, "label other_label"]:
    """K(U)_{mu nu} = s_0^2 / (N_0 Pi) sum_{pi pi'} U^{pi pi'} xi^pi_mu . xi^pi'_nu (THEORY section 3).

    In a network with skips Pi stands there for the product of the heads (EXTENSIONS section 1).

    Args:
        order_parameter: U, symmetric, shape (Pi, Pi), or (Pi m, Pi m) of m outputs.
        path_inputs: xi of shape (P, Pi, N_0); a Model here stands for all that it holds.
        other_path_inputs: xi' of shape (P', Pi, N_0).
        arch: the network.

    Returns:
        Array of shape (P, P'), or (P m, P' m) between pairs (example, output), the output fastest.

    Raises:
        ValueError: wrong shapes, entries that are not finite, U that is not symmetric.
    """
    path_inputs = checked_path_inputs("path_inputs", path_inputs, arch)
    other = checked_path_inputs("other_path_inputs", other_path_inputs, arch, features=path_inputs.shape[2])
    order_parameter = jnp.asarray(symmetric("order_parameter", order_parameter, arch.rows))
    return cross_kernel(order_parameter, jnp.asarray(path_inputs), jnp.asarray(other), arch.input_variance)


@with_own_settings
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


@with_own_settings
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
    labels = labels_array("labels", labels, len(reals("labels", labels)), 1)
    if not labels.any():
        raise ValueError("labels must not all be zero: alignment divides by their norm")
    return finite_array("kernel", kernel, (len(labels), len(labels))), labels


def symmetric(name: str, value: Any, size: int) -> Any:
    """`value` as a symmetric matrix; raises ValueError if it is not."""
    matrix = finite_array(name, value, (size, size))
    if not is_traced(matrix) and not np.allclose(matrix, matrix.T, rtol=1e-8, atol=1e-8 * np.abs(matrix).max()):
        raise ValueError(f"{name} must be symmetric, got entries that differ from their transpose")
    return matrix


def checked_path_inputs(name: str, value: Any, arch: Architecture, features: int | str = "features") -> np.ndarray:
    """`value` as path inputs of `arch`; raises ValueError if they are not."""
    if not isinstance(arch, Architecture):
        raise ValueError(f"arch must be a bayesattn.Architecture, got {type(arch).__name__}")
    array = finite_array(name, value, ("examples", "paths", features))
    require_paths(name, array, arch)
    return array


def require_paths(name: str, array: np.ndarray, arch: Architecture) -> None:
    """Raise ValueError for path inputs of shape (P, Pi, N_0) with another number of paths than the network's."""
    if array.shape[1] != arch.paths:
        raise ValueError(
            f"{name} must have {arch.paths} paths on axis 1 (the product of"
            f" {f'heads {arch.heads}' if arch.ways == arch.heads else f'heads and skips {arch.ways}'}),"
            f" got shape {array.shape}"
        )


def checked_labels(name: str, value: Any, examples: int, arch: Architecture) -> Any:
    """`value` as labels of so many examples: (P,), or (P, m) of several outputs; raises ValueError if they are not."""
    return labels_array(name, value, examples, arch.outputs)


def refuse_contradictions(path_inputs: Any, labels: Any, scale: Any, temperature: Any) -> None:
    """Raise ValueError if examples that are the same have different labels, and the temperature is lost beside their kernel.

    float64 then holds K + T I as singular, and whatever is computed from it is rounding. The kernel is `scale` times the
    products of path inputs, summed over paths; of what JAX traces nothing can be told.
    """
    if any(map(is_traced, (path_inputs, labels, temperature))):
        return
    path_inputs, labels = np.asarray(path_inputs), np.reshape(labels, (len(path_inputs), -1))
    flat = np.reshape(path_inputs, (len(path_inputs), -1))
    own = scale * np.einsum("ef,ef->e", flat, flat)
    lost = PIVOT_ROUNDING * len(own) * np.finfo(float).eps * own.max()
    if temperature >= lost:
        return
    same = own[:, None] + own - 2 * scale * (flat @ flat.T) <= lost
    apart = np.max(np.abs(labels[:, None] - labels), axis=2) > np.sqrt(lost)
    if len(pairs := np.argwhere(same & apart)):
        first, second = pairs[0]
        got = " and ".join(", ".join(f"{label:g}" for label in labels[example]) for example in (first, second))
        raise ValueError(
            f"labels of examples {first} and {second} must be equal, for their path inputs are, or the temperature above"
            f" {lost:.1g}, below which float64 cannot tell it from 0; got {got} at temperature {temperature:g}"
        )


def input_scale(input_variance: Any, paths: int, features: int) -> Any:
    """s_0 / sqrt(N_0 Pi), by which path inputs enter the network's output."""
    return (input_variance / (features * paths)) ** 0.5


def cross_kernel(
    order_parameter: Float[Array, "row row"],
    path_inputs: Float[Array, "example path feature"],
    other: Float[Array, "other_example path feature"],
    input_variance: Any,
) -> Float[Array, "label other_label"]:
    """K(U) between two sets of examples, without checks."""
    outputs = len(order_parameter) // path_inputs.shape[1]
    weights = order_parameter.reshape(path_inputs.shape[1], outputs, -1)
    mixed = jnp.einsum("epf,pcq->ecqf", path_inputs, weights).reshape(
        len(path_inputs) * outputs, -1, outputs, other.shape[2]
    )
    across = jnp.einsum("xpcf,epf->xec", mixed, other) * input_scale(input_variance, *path_inputs.shape[1:]) ** 2
    return across.reshape(len(mixed), -1)
