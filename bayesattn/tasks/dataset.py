"""Common format of the data of all tasks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from bayesattn._util.checks import one_of, positive, positive_integer, seed_number
from bayesattn._util.errors import BayesattnError

if TYPE_CHECKING:
    from bayesattn.tasks.digits import Digits
    from bayesattn.tasks.splice import Splice


class TokenDataset(NamedTuple):
    """Token sequences, labels, and the fixed attention heads of a network that reads them.

    `weights` contains the heads layer by layer, in the format of `bayesattn.attention.path_inputs` (arrays, or pairs of
    queries and keys), and `head_names` their names. `path_groups` maps names to groups of paths, as indices, whose own GP
    limits are compared. With more than two classes, labels have a column for each class, and `output_names` are the names
    of the classes. `causal` and the masks, with one boolean for each token, are arguments of `path_inputs`.
    """

    inputs: Float[np.ndarray, "example token feature"]
    labels: Float[np.ndarray, "*example_and_output"]
    test_inputs: Float[np.ndarray, "test_example token feature"]
    test_labels: Float[np.ndarray, "*test_example_and_output"]
    weights: Sequence[np.ndarray | tuple[np.ndarray, np.ndarray]]
    head_names: tuple[tuple[str, ...], ...]
    path_groups: dict[str, tuple[int, ...]]
    readout: str = "last"
    nonlinearity: str = "softmax"
    validation_inputs: Float[np.ndarray, "validation_example token feature"] | None = None
    validation_labels: Float[np.ndarray, "*validation_example_and_output"] | None = None
    output_names: tuple[str, ...] = ()
    causal: bool = False
    mask: Bool[np.ndarray, "example token"] | None = None
    test_mask: Bool[np.ndarray, "test_example token"] | None = None
    validation_mask: Bool[np.ndarray, "validation_example token"] | None = None


def checked_heads(layers: tuple[tuple[str, ...], ...], known: tuple[str, ...]) -> None:
    """Raise ValueError unless layers are names of known heads."""
    if isinstance(layers, str) or not layers or any(isinstance(heads, str) or not heads for heads in layers):
        raise BayesattnError(f"layers must hold at least one layer of at least one head, got {layers}")
    for layer, heads in enumerate(layers):
        for head in heads:
            one_of(f"layers[{layer}]", head, known)


def checked_settings(task: "Digits | Splice", heads: tuple[str, ...]) -> None:
    """Raise ValueError for invalid numbers of examples, layers, inverse temperature or seed."""
    for name in ("examples", "test_examples"):
        positive_integer(name, getattr(task, name))
    seed_number("seed", task.seed)
    positive("inverse_temperature", task.inverse_temperature)
    checked_heads(task.layers, heads)
