"""Alignment of a kernel with labels (THEORY section 5)."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayesattn._util.checks import Checked, finite_array, labels_array, reals
from bayesattn._util.settings import with_own_settings
from bayesattn.errors import BayesattnError


@with_own_settings
def alignment(kernel: Checked, labels: Checked) -> Float[Array, " example"]:
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
    return _alignment(kernel, labels)


@jax.jit
def _alignment(kernel, labels):
    eigenvectors = jnp.linalg.eigh(kernel)[1]
    return jnp.abs(eigenvectors[:, ::-1].T @ labels) / jnp.linalg.norm(labels)


@with_own_settings
def kernel_target_alignment(kernel: Checked, labels: Checked) -> float:
    """Y^T K Y / (|K|_F |Y|^2), the cosine between K and Y Y^T (Cristianini et al. 2001; THEORY section 5).

    It is the sum of the squares of `alignment`, weighted by the eigenvalues over the root of the sum of their squares.

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


def _checked_alignment(kernel: Checked, labels: Checked) -> tuple[np.ndarray, np.ndarray]:
    labels = labels_array("labels", labels, len(reals("labels", labels)), 1)
    if not labels.any():
        raise BayesattnError("labels must not all be zero: alignment divides by their norm")
    return finite_array("kernel", kernel, (len(labels), len(labels))), labels
