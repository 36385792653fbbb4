"""How much each head matters (THEORY section 5)."""

from typing import Any

import numpy as np

from bayesattn._checks import finite_array
from bayesattn.architecture import Architecture


def head_scores(order_parameter: Any, arch: Architecture) -> list[np.ndarray]:
    """Score of each head: sum of |U^{pi pi'}| over pairs in which pi or pi' uses it, divided by the largest score.

    A skip is the first way through its layer, and has a score too; of several outputs, all their pairs count.

    Examples:
        Two layers of two heads, the path of both first heads alone at work:

        >>> arch = Architecture(heads=(2, 2), widths=(5, 5, 5), variances=(1.0, 1.0, 1.0, 1.0))
        >>> [scores.tolist() for scores in head_scores(np.diag([1.0, 0.0, 0.0, 0.0]), arch)]
        [[1.0, 0.0], [1.0, 0.0]]

    Args:
        order_parameter: U of shape (Pi, Pi), or (Pi m, Pi m) of m outputs.
        arch: the network.

    Returns:
        One array of shape (H_l,), with a skip (H_l + 1,), per layer, first layer first; the largest score of all is 1.

    Raises:
        ValueError: wrong shape, entries that are not finite, or U = 0.
    """
    weight = np.abs(finite_array("order_parameter", order_parameter, (arch.rows, arch.rows)))
    if not weight.any():
        raise ValueError("order_parameter must not be zero: scores are relative to the largest")
    scores = []
    path_heads = np.repeat(arch.path_heads(), arch.outputs, axis=0)
    for layer, heads in enumerate(arch.ways):
        uses = path_heads[:, layer] == np.arange(heads)[:, None]
        either = uses[:, :, None] | uses[:, None, :]
        scores.append(np.sum(weight * either, axis=(1, 2)))
    largest = max(score.max() for score in scores)
    return [score / largest for score in scores]
