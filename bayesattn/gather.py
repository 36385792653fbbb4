"""Compression of batches of examples, in memory, from a generator or on Dask, in blocks of bounded size."""

import dataclasses
import functools
import hashlib
import os
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from bayesattn._util.checks import Checked, finite_array, readable, require_kind, shown
from bayesattn._util.files import user_path
from bayesattn._util.types import Batches, Examples
from bayesattn.architecture import Architecture
from bayesattn.classes import OneHot, doubtful_labels
from bayesattn.compressed import Compressed, read_store, triangle_of, write_store
from bayesattn.errors import BayesattnError
from bayesattn.kernels.path_inputs import checked_path_inputs

BLOCK_BYTES = 2**23
"""Bytes of examples added to R at a time; a block also has at least four times as many rows as R."""
LARGE_BLOCK_BYTES = 2**29
"""Bytes above which a block has as many rows as R instead of four times as many."""
STORE_SECONDS = 30.0
"""Seconds between two writes of a store."""
PARTS_PER_SUM = 8
"""Number of parts that Dask adds at a time."""


class Sliceable(Protocol):
    """Array in memory or on disk, of which some rows are read at a time."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        ...

    def __getitem__(self, rows: slice, /) -> ArrayLike: ...


class Rows(NamedTuple):
    """Rows [X Y] of some examples, with (Pi, N_0, m)."""

    rows: Float[np.ndarray, "example column"]
    shape: tuple[int, int, int]

    def compressed(self) -> Compressed:
        """Compressed form of these examples alone."""
        return Compressed(triangle_of(self.rows), len(self.rows), *self.shape)


def gather(batches: Batches, arch: Architecture, store: str | Path | None = None) -> Compressed:
    """Compressed form of all examples, each read once; arguments and errors as for `bayesattn.Dataset.gather`."""
    require_kind("arch", arch, Architecture)
    pairs = _as_pair(batches)
    if _of_dask(pairs):
        if store is not None:
            raise BayesattnError("store must be None with Dask, which itself repeats the work of a lost worker")
        gathered = _on_dask(pairs, arch)
    elif store is None:
        gathered = _of_pairs(pairs, arch)
    else:
        gathered = _gather_with_store(user_path("store", store), pairs, arch)
    if gathered is None:
        raise BayesattnError("batches must hold at least one example, got none")
    return gathered


def _as_pair(batches: Checked) -> Any:
    """`batches` itself, or the pair of arrays in a mapping."""
    if not hasattr(batches, "keys"):
        return batches
    names = sorted(map(str, batches.keys()))
    if not {"path_inputs", "labels"} <= {*names}:
        raise BayesattnError(
            f"batches must hold path_inputs and labels by these names, got {', '.join(names) or 'none'}"
        )
    return batches["path_inputs"], batches["labels"]


def _pairs(batches: Checked, classes: list[tuple[str, ...]]) -> Iterator[tuple[str, Examples]]:
    """Small pairs of inputs and labels, each with its name for error messages; `classes` receives their names, if known."""
    if _is_pair(batches):
        if isinstance(batches[1], OneHot):
            classes.append(batches[1].names)
        yield from _parts("batches", batches)
        return
    if not isinstance(batches, Iterable):
        raise BayesattnError(f"batches must be pairs (path_inputs, labels), got {shown(batches)}")
    for number, batch in enumerate(batches):
        name = f"batches[{number}]"
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise BayesattnError(f"{name} must be a pair (path_inputs, labels), got {shown(batch)}")
        if isinstance(batch[1], OneHot):
            classes[:] = classes or [batch[1].names]
            if batch[1].names != classes[0]:
                raise BayesattnError(
                    f"{name} must have the classes {', '.join(classes[0])}, as those before, got"
                    f" {', '.join(batch[1].names)}: give names= to one_hot"
                )
        yield from _parts(name, batch)


def _is_pair(batches: Checked) -> bool:
    """Whether `batches` is one pair of arrays rather than two batches."""
    if not isinstance(batches, tuple | list) or len(batches) != 2:
        return False
    try:
        return np.ndim(batches[0]) == 3
    except ValueError:  # The arrays of a batch have different shapes.
        return False


def _parts(name: str, batch: Checked) -> Iterator[tuple[str, Examples]]:
    inputs, labels = map(_sliceable, batch)
    if len(inputs.shape) != 3:
        raise BayesattnError(f"path_inputs of {name} must have shape (examples, paths, features), got {inputs.shape}")
    count, *sizes = inputs.shape
    if labels.shape[:1] != (count,):
        raise BayesattnError(f"labels of {name} must be as many as its path_inputs, {count}, got shape {labels.shape}")
    step = max(1, BLOCK_BYTES // (8 * max(1, int(np.prod(sizes)))))
    for start in range(0, count, step):
        yield name, (inputs[start : start + step], labels[start : start + step])


def _sliceable(part: Checked) -> Sliceable:
    """Array whose rows are sliced by position. Arrays on disk stay there; tables are converted, as they slice by index."""
    return part if hasattr(part, "shape") and not hasattr(part, "iloc") else np.asarray(readable(part))


def _checked(pairs: Iterable[tuple[str, Examples]], arch: Architecture) -> Iterator[Rows]:
    """Checked rows of one pair after the other, all of one shape."""
    shape = None
    for name, pair in pairs:
        inputs = checked_path_inputs(f"path_inputs of {name}", pair[0], arch)
        dims = (len(inputs), "outputs") if np.ndim(pair[1]) > 1 else (len(inputs),)
        labels = finite_array(f"labels of {name}", pair[1], dims).reshape(len(inputs), -1)
        sizes = (inputs.shape[1], inputs.shape[2], labels.shape[1])
        if shape is None and labels.shape[1] == 1 and (doubt := doubtful_labels(f"labels of {name}", labels[:, 0])):
            warnings.warn(doubt, stacklevel=2)
        if sizes != (shape := shape or sizes):
            raise BayesattnError(
                f"{name} must have {shape[1]} features and {shape[2]} outputs like those before, got {sizes[1:]}"
            )
        yield Rows(np.concatenate([inputs.reshape(len(inputs), -1), labels], axis=1), shape)


def _blocks(parts: Iterable[Rows]) -> Iterator[Rows]:
    """Rows of several parts at a time, because few large steps are faster than many small ones."""
    pending: list[np.ndarray] = []
    shape = None
    for rows, shape in parts:
        pending.append(rows)
        columns = rows.shape[1]
        some, many = (size // (8 * columns) for size in (BLOCK_BYTES, LARGE_BLOCK_BYTES))
        if sum(map(len, pending)) >= max(some, columns, min(4 * columns, many)):
            block, pending = Rows(np.concatenate(pending), shape), []
            yield block
            del block  # Otherwise it stays in memory while the next is gathered.
    if shape is not None and sum(map(len, pending)):
        yield Rows(np.concatenate(pending), shape)


def _of_dask(batches: Checked) -> bool:
    several = batches if isinstance(batches, tuple | list) and len(batches) == 2 else (batches,)
    return any(type(part).__module__.startswith(("dask.array", "dask.bag")) for part in several)


def _on_dask(batches: Checked, arch: Architecture) -> Compressed | None:
    """Sum over a tree of Dask tasks. Dask repeats the tasks of a lost worker, and no example is counted twice."""
    from dask import delayed

    if isinstance(batches, tuple | list):
        from dask import array

        classes = [batches[1].names] if isinstance(batches[1], OneHot) else []
        inputs, labels = (array.asarray(readable(part)) for part in batches)
        if np.isnan(inputs.shape + labels.shape).any():
            raise BayesattnError(
                "batches must be Dask arrays of known shapes, got unknown ones: call compute_chunk_sizes()"
            )
        if inputs.shape[:1] != labels.shape[:1]:
            raise BayesattnError(
                f"labels of batches must be as many as its path_inputs, {inputs.shape[:1]}, got {labels.shape}"
            )
        whole = inputs.rechunk(dict.fromkeys(range(1, inputs.ndim), -1))
        columns = labels.rechunk({0: whole.chunks[0], **dict.fromkeys(range(1, labels.ndim), -1)})
        pairs = zip(whole.to_delayed().ravel(), columns.to_delayed().ravel(), strict=True)
        parts = [delayed(_of_pairs)([pair], arch) for pair in pairs]
    else:
        classes, parts = [], [delayed(_of_pairs)(partition, arch) for partition in batches.to_delayed()]
    while len(parts) > 1:
        parts = [
            delayed(_of_parts)(parts[start : start + PARTS_PER_SUM]) for start in range(0, len(parts), PARTS_PER_SUM)
        ]
    found = parts[0].compute()
    return None if found is None else _named(found, classes)


def _of_pairs(batches: Iterable[object], arch: Architecture) -> Compressed | None:
    classes: list[tuple[str, ...]] = []
    found = functools.reduce(_add_rows, _blocks(_checked(_pairs(batches, classes), arch)), None)
    return None if found is None else _named(found, classes)


def _named(gathered: Compressed, classes: list[tuple[str, ...]]) -> Compressed:
    """Compressed form with the names of its classes, if they are known; raises ValueError if it has others."""
    if not classes:
        return gathered
    if gathered.output_names not in (None, classes[0]):
        raise BayesattnError(
            f"batches must have the classes {', '.join(gathered.output_names or ())}, as the store has, got"
            f" {', '.join(classes[0])}"
        )
    return dataclasses.replace(gathered, output_names=classes[0])


def _of_parts(parts: Iterable[Compressed | None]) -> Compressed | None:
    return sum(part for part in parts if part is not None) or None


def _add_rows(gathered: Compressed | None, rows: "Rows") -> Compressed:
    return rows.compressed() if gathered is None else gathered + rows.compressed()


def _gather_with_store(file: Path, batches: Checked, arch: Architecture) -> Compressed | None:
    """`gather` with a store, which contains the SHA-256 of its rows."""
    gathered, digest = read_store(file) if os.path.lexists(file) else (None, "")
    if gathered is not None and not digest:
        raise BayesattnError(
            f"store must be one that `gather` wrote, got {file}, which was saved: open it, and add by +"
        )
    left, sha = gathered.examples if gathered else 0, hashlib.sha256()
    classes: list[tuple[str, ...]] = []

    def new() -> Iterator[Rows]:
        """Rows that the store does not contain."""
        nonlocal left
        for rows, shape in _checked(_pairs(batches, classes), arch):
            stored, rest = rows[:left], rows[left:]
            if len(stored):
                sha.update(stored.tobytes())
                left -= len(stored)
                if not left and sha.hexdigest() != digest:
                    raise BayesattnError(
                        f"store must hold what was gathered of these batches, got {file}, of other examples"
                    )
            if len(rest):  # Even an empty view would keep the batch in memory.
                yield Rows(rest, shape)

    written = time.monotonic()
    for block in _blocks(new()):
        gathered = _named(_add_rows(gathered, block), classes)
        sha.update(block.rows.tobytes())
        del block
        if time.monotonic() - written > STORE_SECONDS:
            write_store(file, gathered, sha.hexdigest())
            written = time.monotonic()
    if gathered is not None and left:
        raise BayesattnError(
            f"store must hold what was gathered of these batches, got {file}, of {gathered.examples} examples, {left} more"
            " than batches have"
        )
    if gathered is not None:
        gathered = _named(gathered, classes)
        write_store(file, gathered, sha.hexdigest())
    return gathered
