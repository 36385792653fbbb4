"""Sequences read without their padding, so that nothing depends on how a model treats padding.

Models count positions, fill caches and pool in many ways when sequences are padded; sequences of equally many tokens need
no padding.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Shaped

from bayesattn._util.checks import readable
from bayesattn.errors import BayesattnError


def equally_long(
    mask: Bool[np.ndarray, "example token"], size: int
) -> list[tuple[Int[np.ndarray, " row"], Int[np.ndarray, "row column"]]]:
    """Numbers of at most `size` sequences with equally many tokens, and the places of these tokens; all in turn."""
    lengths = mask.sum(1)
    groups = [np.flatnonzero(lengths == length) for length in np.unique(lengths)]
    parts = [part for group in groups for part in np.split(group, range(size, len(group), size))]
    return [(part, np.nonzero(mask[part])[1].reshape(len(part), -1)) for part in parts]


def without_padding(batch: Mapping[str, Any], rows: np.ndarray, columns: np.ndarray, tokens: int) -> dict[str, Any]:
    """Arguments of some sequences at the places of their tokens; raises ValueError for an argument without tokens."""
    if columns.shape[1] == tokens:
        return {name: value[rows] for name, value in batch.items()}
    for name, value in batch.items():
        if value.shape[1] != tokens:
            raise BayesattnError(
                f"batch[{name!r}] must have shape ({len(value)}, {tokens}, ..), as attention_mask has, because sequences"
                f" are read without their padding, got {tuple(value.shape)}"
            )
    return {name: value[rows[:, None], columns] for name, value in batch.items()}


def at_places(values: Any, columns: np.ndarray, tokens: int, *axes: int) -> np.ndarray:
    """Tensor of values of tokens as an array, at their places along axes of `tokens` entries, with 0 elsewhere.

    Values that are not one for each token, such as attention to a window, stay as they are; they are refused later.
    """
    values = np.asarray(readable(values))
    of_tokens = all(values.shape[axis : axis + 1] == columns.shape[1:] for axis in axes)
    for axis in axes if of_tokens and columns.shape[1] < tokens else ():
        wide = np.zeros((*values.shape[:axis], tokens, *values.shape[axis + 1 :]), values.dtype)
        others = [other for other in range(1, values.ndim) if other != axis]
        np.put_along_axis(wide, np.expand_dims(columns, others), values, axis)
        values = wide
    return values


def padded_ends(
    tokens: Shaped[np.ndarray, "example token *feature"], pad: int | None = None
) -> Bool[np.ndarray, " example"]:
    """Whether sequences begin or end with one token repeated, or with the token `pad`, as padding does.

    Sequences of random tokens repeat some at their ends too, but padding repeats the same one in most such sequences.
    """
    flat = tokens.reshape(*tokens.shape[:2], -1)
    padded = np.zeros(len(flat), bool)
    for end, inwards in ((0, 1), (-1, -2)) if flat.shape[1] > 1 else ():
        repeated = (flat[:, end] == flat[:, inwards]).all(-1)
        if repeated.any() and np.unique(flat[repeated, end], axis=0, return_counts=True)[1].max() > repeated.sum() / 2:
            padded |= repeated
        if pad is not None and tokens.ndim == 2:
            padded |= flat[:, end, 0] == pad
    return padded


def warn_if_padded(name: str, padded: Bool[np.ndarray, " example"]) -> None:
    """Warn that sequences look padded, though there is no mask."""
    if padded.any():
        warnings.warn(
            f"{name} is not given, though {padded.sum()} of {len(padded)} sequences look padded, because they begin or end"
            " with repeated tokens or with padding, or hold tokens to which no token attends: give it, all ones if there"
            " is no padding",
            stacklevel=3,
        )
