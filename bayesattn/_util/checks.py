"""Checks of what a user hands over: one sentence that names the argument, what it got and what it expected."""

import difflib
import operator
import os
import reprlib
import sys
from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence, Set, ValuesView
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bayesattn._util.errors import BayesattnError
from bayesattn._util.plain import PlainMapping
from bayesattn._util.text import Described

Checked = Any
"""An argument that the function checks itself, to say in a ValueError what is wrong with it."""
MOST_COUNT = 2**53
"""Largest count: float64 holds no larger whole number with certainty."""
LARGEST_SEED = 2**63 - 1
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def finite_array(name: str, value: Checked, shape: Sequence[int | str]) -> Any:
    """`value` as a float64 array of the given shape, where a string stands for any size.

    Raises ValueError if it is not of real numbers (strings, dates, complex numbers and objects are not), has masked entries,
    has another shape, is empty, or holds NaN or infinity. Of an array that JAX traces only the shape can be checked.
    """
    return finite(name, real_array(name, value, shape))


def real_array(name: str, value: Checked, shape: Sequence[int | str]) -> Any:
    """`finite_array` of an array that may hold NaN and infinity."""
    array = reals(name, value)
    expected = "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
    fits = array.ndim == len(shape) and all(
        isinstance(size, str) or size == actual for size, actual in zip(shape, array.shape, strict=True)
    )
    if not fits:
        raise BayesattnError(f"{name} must have shape {expected}, got {array.shape}")
    if array.size == 0:
        raise BayesattnError(f"{name} must not be empty, got shape {array.shape}")
    return array


def finite(name: str, array: Checked, unused: np.ndarray | None = None) -> Any:
    """`array` itself; raises ValueError if it holds NaN or infinity, which become 0 where `unused` is True."""
    if is_traced(array):
        return array
    if unused is not None and np.any(replaced := unused & ~np.isfinite(array)):
        array = np.where(replaced, 0.0, array)
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        where = tuple(int(i) for i in bad[0])
        raise BayesattnError(
            f"{name} must be finite, got {array[where]} at index {where} ({len(bad)} such entries of {array.size})"
        )
    return array


def labels_array(name: str, value: Checked, examples: int, outputs: int) -> Any:
    """`value` as labels of so many examples: (P,) or (P, 1) of one output, (P, m) of m; raises ValueError for others."""
    labels, shape = reals(name, value), (examples, outputs) if outputs > 1 else (examples,)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if len(shape) > 1 and labels.shape == (examples,):
        raise BayesattnError(
            f"{name} must have shape {shape}, got {labels.shape}: bayesattn.one_hot({name}) makes such labels of classes"
        )
    if len(shape) == 1 and labels.ndim == 2 and len(labels) == examples:
        raise BayesattnError(
            f"{name} must have shape {shape}, got {labels.shape}: an architecture with outputs = {labels.shape[1]} takes"
            " these"
        )
    return finite_array(name, labels, shape)


def is_traced(value: Checked) -> bool:
    """Whether JAX is tracing a value, to compile or to differentiate, so that it has a shape but no entries."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.core.Tracer)


def readable(value: Checked) -> Any:
    """`value` as NumPy can read it: the entries of an iterator or view as a list, a PyTorch tensor as an array.

    NumPy itself refuses a tensor that needs a gradient, lies on an accelerator or holds bfloat16.
    """
    given: Any = list(value) if isinstance(value, Iterator | KeysView | ValuesView) else value
    if isinstance(given, list | tuple) and given and _is_tensor(given[0]):
        return [readable(entry) if _is_tensor(entry) else entry for entry in given]
    if not _is_tensor(given):
        return given
    tensor: Any = given
    tensor = tensor.detach().cpu()
    return (tensor.float() if str(tensor.dtype).endswith("bfloat16") else tensor).numpy()


def _is_tensor(value: Checked) -> bool:
    return callable(getattr(value, "detach", None)) and callable(getattr(value, "cpu", None))


def entries(name: str, value: Checked, expected: str, most_axes: int = 1) -> tuple[Any, ...]:
    """The entries of a list, an iterator, an array or a column, in their order; raises ValueError for anything else."""
    value = readable(value)
    unordered = isinstance(value, str | bytes | Mapping | Set)
    if unordered or not isinstance(value, Iterable) or not 1 <= getattr(value, "ndim", 1) <= most_axes:
        raise BayesattnError(f"{name} must be {expected}, got {shown(value)}")
    return tuple(value)


def owned(array: np.ndarray) -> np.ndarray:
    """An array that nobody can change: `array` itself if it came from here, else a copy of its entries in bytes.

    That an array is read-only does not suffice: its entries may belong to a table, a file or a buffer that others write to,
    and arrays that were unpickled share bytes with views that can be written to.
    """
    holder: Any = array
    while isinstance(holder, np.ndarray):
        holder = holder.base
    if isinstance(holder, memoryview) and isinstance(holder.obj, bytes):
        return array
    return np.frombuffer(memoryview(array.tobytes()), array.dtype).reshape(array.shape)


class OwnsArrays:
    """Owns its arrays after it was copied or pickled, too: NumPy's copies can be written to."""

    def __setstate__(self, state: PlainMapping) -> None:
        vars(self).update({name: _owned_again(value) for name, value in state.items()})


def _owned_again(value: Checked) -> Any:
    if isinstance(value, list):
        return [_owned_again(entry) for entry in value]
    return owned(value) if isinstance(value, np.ndarray) else value


def reals(name: str, value: Checked) -> Any:
    """`value` as a float64 array of any shape; raises ValueError if it is not of real numbers."""
    if is_traced(value):
        return value.astype(np.float64)
    if np.ma.is_masked(value):
        raise BayesattnError(
            f"{name} must be an array of real numbers, got one with masked entries: fill or remove them"
        )
    try:
        array = np.asarray(readable(value))
    except (TypeError, ValueError, RuntimeError) as error:
        raise BayesattnError(f"{name} must be an array of real numbers, got {type(value).__name__}: {error}") from None
    if array.dtype.kind not in "biuf" and not np.can_cast(array.dtype, np.float64):
        kind = "a structured one" if array.dtype.names else f"one of {array.dtype.name}"
        got = f"{kind} of shape {array.shape}" if array.ndim else shown(value)
        raise BayesattnError(f"{name} must be an array of real numbers, got {got}")
    # A number that float64 cannot hold becomes infinite, and is named as such.
    with np.errstate(over="ignore"):
        return np.asarray(array, dtype=np.float64)


def require_kind(name: str, value: Checked, kind: type) -> None:
    """Raise ValueError unless `value` is of one of this package's classes."""
    if not isinstance(value, kind):
        raise BayesattnError(f"{name} must be a bayesattn.{kind.__name__}, got {shown(value)}")


def number(name: str, value: Checked, expected: str = "a finite number") -> float:
    """`value` as a float; raises ValueError unless it is a finite number, of which strings and truth values are none."""
    if is_traced(value):
        return value
    try:
        as_float = float("nan") if isinstance(value, str | bytes | bool | np.bool_) else float(value)
    except (TypeError, ValueError, OverflowError):
        as_float = float("nan")
    if not np.isfinite(as_float):
        raise BayesattnError(f"{name} must be {expected}, got {shown(value)}")
    return as_float


def positive(name: str, value: Checked) -> float:
    """`value` as a float; raises ValueError unless it is a finite number above zero."""
    checked = number(name, value, "a finite number above 0")
    if not is_traced(checked) and not checked > 0:
        raise BayesattnError(f"{name} must be a finite number above 0, got {checked:g}")
    return checked


def positive_integer(name: str, value: Checked, minimum: int = 1, maximum: int = MOST_COUNT) -> int:
    """`value` as an int; raises ValueError unless it is a whole number of at least `minimum` and at most `maximum`."""
    try:
        whole = minimum - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        whole = minimum - 1
    if whole < minimum:
        raise BayesattnError(f"{name} must be a whole number of at least {minimum}, got {shown(value)}")
    if whole > maximum:
        raise BayesattnError(f"{name} must be a whole number of at most {maximum}, got {shown(value)}")
    return whole


def seed_number(name: str, value: Checked) -> int:
    """`value` as an int; raises ValueError unless it is a whole number from 0 to 2^63 - 1, which JAX and TOML can hold."""
    return positive_integer(name, value, 0, LARGEST_SEED)


def truth(name: str, value: Checked) -> bool:
    """`value` if it is true or false; raises ValueError if it is something else, such as "no"."""
    if not isinstance(value, bool | np.bool_):
        raise BayesattnError(f"{name} must be true or false, got {shown(value)}")
    return bool(value)


def one_of(name: str, value: Checked, choices: Iterable[str]) -> str:
    """`value` itself; raises ValueError unless it is one of `choices`."""
    choices = list(choices)
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(map(repr, choices))
        raise BayesattnError(f"{name} must be one of {listed}, got {shown(value)}{suggestion(value, choices)}")
    return value


def suggestion(value: Checked, choices: Iterable[str]) -> str:
    """What was likely meant, as the end of a sentence; empty where nothing is close."""
    near = difflib.get_close_matches(value, list(choices), 1) if isinstance(value, str) and len(value) < 100 else []
    return f"; did you mean {near[0]!r}?" if near else ""


def shown(value: Checked) -> str:
    """`value` as an error shows it: on one line, cut where it is long; of what has a title, the title."""
    if isinstance(value, Described):
        return repr(value).partition("\n")[0]
    brief = reprlib.Repr()
    brief.maxstring = brief.maxother = 120
    brief.maxlist = brief.maxtuple = brief.maxdict = 10
    return " ".join(line.strip() for line in brief.repr(value).splitlines())


def names(name: str, value: Checked) -> tuple[str, ...]:
    """`value` as a tuple of names; raises ValueError unless each can be shown: not empty, without control characters."""
    given = entries(name, value, "a list of names")
    for entry in given:
        if not isinstance(entry, str) or not entry.strip() or not entry.isprintable():
            raise BayesattnError(f"{name} must be names that can be printed, got {shown(entry)}")
    return tuple(map(str, given))


def require_memory(what: str, needed: float, advice: str = "") -> None:
    """Raise ValueError if `what`, which takes so many bytes, cannot fit into this machine's memory."""
    limit = memory_limit()
    if needed > limit:
        had = f"{limit / 2**30:.3g} GiB, which is all that there is here"
        raise BayesattnError(f"{what} must fit into {had}, got {needed / 2**30:.3g} GiB{advice and ': ' + advice}")


@lru_cache(maxsize=1)
def memory_limit() -> int:
    """Bytes of memory that this process may use at most: the machine's, or its container's."""
    limits = [2**63]
    if hasattr(os, "sysconf") and {"SC_PAGE_SIZE", "SC_PHYS_PAGES"} <= os.sysconf_names.keys():
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for file in map(Path, CGROUP_LIMITS):
        try:
            limits.append(int(file.read_text()))
        except (OSError, ValueError):
            continue  # No such group, or no limit in it: "max".
    return min(limit for limit in limits if limit > 0)
