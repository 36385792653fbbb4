"""Head scores and correlations of paths from U, and alignment of a kernel with labels (THEORY section 5)."""

import numpy as np
from jaxtyping import Bool, Float

from bayesattn._util.checks import Checked, finite_array, labels_array, reals
from bayesattn.architecture import Architecture
from bayesattn.errors import BayesattnError


def head_scores(order_parameter: Checked, arch: Architecture) -> list[np.ndarray]:
    """Score of each head: sum of |U^{pi pi'}| over pairs in which pi or pi' uses it, divided by the largest score.

    A skip is the first way through its layer and also has a score; with several outputs, all pairs of outputs count.

    Examples:
        Two layers of two heads, with weight only on the path of the two first heads:

        >>> arch = Architecture(heads=(2, 2), widths=(5, 5, 5), variances=(1.0, 1.0, 1.0, 1.0))
        >>> [scores.tolist() for scores in head_scores(np.diag([1.0, 0.0, 0.0, 0.0]), arch)]
        [[1.0, 0.0], [1.0, 0.0]]

    Args:
        order_parameter: U of shape (.., Pi, Pi), or (.., Pi m, Pi m) for m outputs: one, or many draws of it.
        arch: the network.

    Returns:
        One array per layer, first layer first, of shape (.., H_l), or (.., H_l + 1) with a skip; the largest
        score of all is 1.

    Raises:
        ValueError: wrong shape, entries that are not finite, or U = 0.
    """
    path_heads = np.repeat(arch.path_heads(), arch.outputs, axis=0)
    uses = [path_heads[:, layer] == np.arange(ways)[:, None] for layer, ways in enumerate(arch.ways)]
    scores = relative_scores(_order_parameters(order_parameter, arch.rows), np.concatenate(uses))
    return np.split(scores, np.cumsum(arch.ways)[:-1], axis=-1)


def relative_scores(
    order_parameters: Float[np.ndarray, "*draws row row"], rows: Bool[np.ndarray, "unit row"]
) -> Float[np.ndarray, "*draws unit"]:
    """Sum of |U| over pairs of rows with at least one row in a unit, such as a head, divided by the draw's largest sum.

    Raises ValueError if a U is 0.
    """
    weight = np.abs(order_parameters)
    if not weight.any((-2, -1)).all():
        raise BayesattnError("order_parameter must not be zero: scores are relative to the largest")
    either = (rows[:, :, None] | rows[:, None, :]).astype(float)
    scores = np.einsum("...pq,upq->...u", weight, either, optimize=True)
    return scores / scores.max(-1, keepdims=True)


def path_correlations(order_parameter: Checked) -> Float[np.ndarray, "*draws row row"]:
    """Correlations U^{pi pi'} / (U^{pi pi} U^{pi' pi'})^(1/2) of paths; 0 for paths without weight.

    >>> path_correlations([[4.0, 3.0], [3.0, 9.0]]).tolist()
    [[1.0, 0.5], [0.5, 1.0]]

    Args:
        order_parameter: U of shape (.., Pi, Pi), or (.., Pi m, Pi m) for m outputs.

    Raises ValueError for matrices that are not square, entries that are not finite, or diagonal entries below 0.
    """
    matrix = _order_parameters(
        order_parameter, np.shape(order_parameter)[-1] if np.ndim(order_parameter) > 1 else "paths"
    )
    own = np.diagonal(matrix, axis1=-2, axis2=-1)
    if np.min(own) < 0:
        raise BayesattnError(f"order_parameter must have no diagonal entry below 0, got {np.min(own):.3g}")
    size = np.sqrt(own[..., :, None] * own[..., None, :])
    return np.divide(matrix, size, out=np.zeros_like(matrix), where=size > 0)


def _order_parameters(value: Checked, rows: int | str) -> np.ndarray:
    """U, or many of them, as an array of finite numbers."""
    return finite_array("order_parameter", value, (*np.shape(value)[:-2], rows, rows))


def alignment(kernel: Checked, labels: Checked) -> Float[np.ndarray, " example"]:
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
    eigenvectors = np.linalg.eigh(kernel)[1]
    return np.abs(eigenvectors[:, ::-1].T @ labels) / np.linalg.norm(labels)


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
