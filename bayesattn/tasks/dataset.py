"""The common form of every task's data."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float


class Dataset(NamedTuple):
    """Token sequences, labels, and the fixed attention heads of a network that reads them.

    `weights` holds the heads layer by layer as `bayesattn.attention.path_inputs` takes them (arrays, or pairs of queries and
    keys); `head_names` names them, and
    `path_groups` names groups of paths whose own GP limit is worth a comparison, as indices of paths.
    """

    inputs: Float[np.ndarray, "example token feature"]
    labels: Float[np.ndarray, " example"]
    test_inputs: Float[np.ndarray, "test_example token feature"]
    test_labels: Float[np.ndarray, " test_example"]
    weights: Sequence[Any]
    head_names: tuple[tuple[str, ...], ...]
    path_groups: dict[str, tuple[int, ...]]
    readout: str = "last"
    nonlinearity: str = "softmax"
    validation_inputs: Float[np.ndarray, "validation_example token feature"] | None = None
    validation_labels: Float[np.ndarray, " validation_example"] | None = None
