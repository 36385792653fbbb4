"""Checks of what a user hands over: one sentence that names the argument, what it got and what it expected."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

Checked = Any
"""An argument that the function checks itself, to say in a ValueError what is wrong with it."""


def finite_array(name: str, value: Any, shape: Sequence[int | str]) -> np.ndarray:
    """`value` as a float64 array of the given shape, where a string stands for any size.

    Raises ValueError if it is not numeric, has another shape, is empty, or holds NaN or infinity.
    """
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be an array of numbers, got {type(value).__name__}: {error}") from None
    expected = "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
    fits = array.ndim == len(shape) and all(
        isinstance(size, str) or size == actual for size, actual in zip(shape, array.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"{name} must have shape {expected}, got {array.shape}")
    if array.size == 0:
        raise ValueError(f"{name} must not be empty, got shape {array.shape}")
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        where = tuple(int(i) for i in bad[0])
        raise ValueError(
            f"{name} must be finite, got {array[where]} at index {where} ({len(bad)} such entries of {array.size})"
        )
    return array


def positive(name: str, value: Any) -> float:
    """`value` as a float; raises ValueError unless it is a finite number above zero."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number above 0, got {value!r}") from None
    if not (np.isfinite(number) and number > 0):
        raise ValueError(f"{name} must be a finite number above 0, got {number:g}")
    return number


def positive_integer(name: str, value: Any, minimum: int = 1) -> int:
    """`value` as an int; raises ValueError unless it is a whole number of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < minimum:
        raise ValueError(f"{name} must be a whole number of at least {minimum}, got {value!r}")
    return int(value)


def one_of(name: str, value: Any, choices: Iterable[str]) -> str:
    """`value` itself; raises ValueError unless it is one of `choices`."""
    choices = list(choices)
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value
