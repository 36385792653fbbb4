"""Checks of arguments; an error is one sentence that names the argument, what was expected and what was given."""

import difflib
import operator
import os
import reprlib
import sys
import warnings
from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence, Set, ValuesView
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bayesattn._util.plain_values import PlainMapping
from bayesattn._util.text import Described
from bayesattn.errors import BayesattnError, TooLittleMemory

Checked = Any
"""Argument that the function checks itself, so that its ValueError says what is wrong."""
LARGEST_COUNT = 2**53
"""Largest count: float64 represents every whole number up to it."""
LARGEST_SEED = 2**63 - 1
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def finite_array(name: str, value: Checked, shape: Sequence[int | str]) -> Any:
    """`value` as a float64 array of the given shape, in which a string stands for any size.

    Raises ValueError if it does not consist of real numbers (strings, dates, complex numbers and objects are refused),
    has masked entries, has another shape, is empty, or contains NaN or infinity. For an array that JAX traces, only the
    shape is checked.
    """
    return finite(name, real_array(name, value, shape))


def real_array(name: str, value: Checked, shape: Sequence[int | str]) -> Any:
    """`value` as for `finite_array`, except that it may contain NaN and infinity."""
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
    """`array` with NaN and infinity replaced by 0 where `unused` is True; raises ValueError if it has them elsewhere."""
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
    """`value` as labels: (P,) or (P, 1) for one output, (P, m) for m outputs; raises ValueError for other shapes."""
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


def warn_of_swapped_axes(name: str, draws: Checked) -> None:
    """Warn of an array of shape (chain, draw, ..) with more chains than draws: its first two axes are likely swapped."""
    chains, count = draws.shape[:2]
    if chains > count:
        warnings.warn(
            f"{name} must have shape (chain, draw, ..), got {chains} chains of {count} draws: swap the first two axes"
            f" if these are {count} chains; R-hat and errors of so short chains do not hold",
            stacklevel=4,  # The wrapper that sets JAX's settings adds a frame.
        )


def is_traced(value: Checked) -> bool:
    """Whether JAX is tracing a value, to compile or to differentiate, so that it has a shape but no entries."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.core.Tracer)


def readable(value: Checked) -> Any:
    """`value` in a form that NumPy can read: an iterator or view as a list, a PyTorch tensor or one-hot labels as an array.

    NumPy itself refuses a tensor that requires a gradient, is on an accelerator or has type bfloat16.
    """
    if _is_tensor(value):
        tensor = value.detach().cpu()
        return (tensor.float() if str(tensor.dtype).endswith("bfloat16") else tensor).numpy()
    if getattr(value, "_fields", None) == ("labels", "names"):  # what `one_hot` returns
        return value.labels
    content = list(value) if isinstance(value, Iterator | KeysView | ValuesView) else value
    if isinstance(content, list | tuple) and content and _is_tensor(content[0]):
        return [readable(entry) if _is_tensor(entry) else entry for entry in content]
    return content


def _is_tensor(value: Checked) -> bool:
    return callable(getattr(value, "detach", None)) and callable(getattr(value, "cpu", None))


def entries(name: str, value: Checked, expected: str, most_axes: int = 1) -> tuple[Any, ...]:
    """Entries of a list, an iterator, an array or a column, in their order; raises ValueError for anything else."""
    value = readable(value)
    unordered = isinstance(value, str | bytes | Mapping | Set)
    if unordered or not isinstance(value, Iterable) or not 1 <= getattr(value, "ndim", 1) <= most_axes:
        raise BayesattnError(f"{name} must be {expected}, got {shown(value)}")
    return tuple(value)


def owned(array: np.ndarray) -> np.ndarray:
    """Read-only array backed by bytes: `array` itself if it already is one, otherwise a copy.

    A read-only flag is not enough: the entries may belong to a table, a file or a buffer that others write to, and
    unpickled arrays share bytes with writable views.
    """
    holder: object = array
    while isinstance(holder, np.ndarray):
        holder = holder.base
    if isinstance(holder, memoryview) and isinstance(holder.obj, bytes):
        return array
    return np.frombuffer(memoryview(array.tobytes()), array.dtype).reshape(array.shape)


class OwnsArrays:
    """Base class whose arrays stay read-only after copying or unpickling; NumPy's own copies would be writable."""

    def __setstate__(self, state: PlainMapping) -> None:
        vars(self).update({name: _owned_again(value) for name, value in state.items()})


def _owned_again(value: object) -> object:
    if isinstance(value, list):
        return [_owned_again(entry) for entry in value]
    return owned(value) if isinstance(value, np.ndarray) else value


def reals(name: str, value: Checked) -> Any:
    """`value` as a float64 array of any shape; raises ValueError if it does not consist of real numbers."""
    if is_traced(value):
        return value.astype(np.float64)
    parts = value if isinstance(value, list | tuple) else [value]
    if any(isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part) for part in parts):
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
        strings = "labels" in name and array.size and isinstance(array.flat[0], str)
        advice = ": bayesattn.one_hot makes labels of classes, and two are -1 and +1" if strings else ""
        raise BayesattnError(f"{name} must be an array of real numbers, got {got}{advice}")
    # A number too large for float64 becomes infinite, and `finite` reports it as such.
    with np.errstate(over="ignore"):
        return np.asarray(array, dtype=np.float64)


def require_kind(name: str, value: Checked, kind: type) -> None:
    """Raise ValueError unless `value` is an instance of `kind`, one of this package's classes."""
    if not isinstance(value, kind):
        raise BayesattnError(f"{name} must be a bayesattn.{kind.__name__}, got {shown(value)}")


def number(name: str, value: Checked, expected: str = "a finite number") -> float:
    """`value` as a float; raises ValueError unless it is a finite number; strings and truth values are refused."""
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


def probability(name: str, value: Checked) -> float:
    """The value as a float; raises ValueError unless it is above 0 and below 1."""
    if (checked := positive(name, value)) >= 1:
        raise BayesattnError(f"{name} must be a probability below 1, got {checked:g}")
    return checked


def is_prior(value: object) -> bool:
    """Whether a value is a NumPyro distribution, which stands for a number that is not known."""
    return hasattr(value, "log_prob") and hasattr(value, "support")


def positive_or_prior(name: str, value: Checked) -> Any:
    """`value` as a float, by `positive`, or a prior of it, which `bayesattn.models.hyperpriors` checks."""
    return value if is_prior(value) else positive(name, value)


def not_negative(name: str, value: Checked) -> float:
    """`value` as a float; raises ValueError unless it is a finite number of at least 0."""
    if (checked := number(name, value, "a number of at least 0")) < 0:
        raise BayesattnError(f"{name} must be a number of at least 0, got {checked:g}")
    return checked


def positive_integer(name: str, value: Checked, minimum: int = 1, maximum: int = LARGEST_COUNT) -> int:
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
    """`value` if it is true or false; raises ValueError for anything else, such as "no"."""
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


def suggestion(value: Checked, choices: Iterable[str], most: int = 1) -> str:
    """Suggestion of the closest choices, as the end of a sentence; empty if nothing is close."""
    near = difflib.get_close_matches(value, list(choices), most) if isinstance(value, str) and len(value) < 100 else []
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def shown(value: Checked) -> str:
    """`value` for an error message: on one line, shortened if it is long; the title of an object that has one."""
    if isinstance(value, Described):
        return repr(value).partition("\n")[0]
    brief = reprlib.Repr()
    brief.maxstring = brief.maxother = 120
    brief.maxlist = brief.maxtuple = brief.maxdict = 10
    return " ".join(line.strip() for line in brief.repr(value).splitlines())


def names(name: str, value: Checked) -> tuple[str, ...]:
    """`value` as a tuple of names; raises ValueError unless each name is printable and not blank."""
    listed = entries(name, value, "a list of names")
    for entry in listed:
        if not isinstance(entry, str) or not entry.strip() or not entry.isprintable():
            raise BayesattnError(f"{name} must be names that can be printed, got {shown(entry)}")
    return tuple(map(str, listed))


def require_memory(what: str, needed: float, advice: str = "") -> None:
    """Raise TooLittleMemory if `what`, which needs `needed` bytes, does not fit into this machine's memory."""
    limit = memory_limit()
    if needed > limit:
        had = f"{limit / 2**30:.3g} GiB, the memory available here"
        raise TooLittleMemory(f"{what} must fit into {had}, got {needed / 2**30:.3g} GiB{advice and ': ' + advice}")


@lru_cache(maxsize=1)
def memory_limit() -> int:
    """Most bytes of memory that this process may use: the machine's limit, or its container's."""
    limits = [2**63]
    if hasattr(os, "sysconf") and {"SC_PAGE_SIZE", "SC_PHYS_PAGES"} <= os.sysconf_names.keys():
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for file in map(Path, CGROUP_LIMITS):
        try:
            limits.append(int(file.read_text()))
        except (OSError, ValueError):
            continue  # No such control group, or no limit in it: "max".
    return min(limit for limit in limits if limit > 0)
