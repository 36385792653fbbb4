"""Any number of examples, as the few numbers that the posterior asks of them.

Path inputs X (P, Pi N_0) and labels Y enter the posterior through X^T X, X^T Y and Y^T Y alone (EXTENSIONS section 3). With
[X Y] = Q R, Q^T Q = I and R upper triangular, these are the products of R's columns: the rows of R are at most Pi N_0
examples that have the same likelihood as all P, and one more row for the part of Y that no function of X explains. R of two
sets of examples is that of their two R, one below the other, so that it is gathered block by block, on one machine or on
many (communication-avoiding QR: Demmel et al. 2012). Unlike the sums themselves it keeps all digits: no differences of
squares are formed.
"""

import errno
import functools
import hashlib
import os
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from bayesattn._util.checks import OwnsArrays, finite_array, owned, positive_integer, readable, require_memory, shown
from bayesattn._util.files import replace_file, require_new, user_path
from bayesattn._util.text import Described
from bayesattn.architecture import Architecture
from bayesattn.classes import doubtful_labels
from bayesattn.kernels.gaussian_process import ResidualExamples
from bayesattn.kernels.path_inputs import checked_path_inputs

BLOCK_BYTES = 2**23
"""Of examples that are taken into R at a time, or four times as many rows as R has, if those are more."""
LARGE_BLOCK_BYTES = 2**29
"""Beyond it as many rows as R has are taken at a time."""
STORE_SECONDS = 30.0
"""Between two times that a store is written."""
FAN = 8
"""Parts that Dask adds up at a time."""
FORMAT = 1
COUNTS = ("examples", "paths", "features", "outputs")


@dataclass(frozen=True, eq=False, repr=False)
class Compressed(OwnsArrays, Described):
    """Sufficient statistics of training examples: all that theory and samplers need of them.

    `bayesattn.Dataset` holds them; `a + b` is that of the examples of both, and so is `sum` of many.

    Args:
        triangle: R of [X Y], of at most Pi N_0 + m rows and as many columns.
        examples: P.
        paths: Pi.
        features: N_0.
        outputs: m, columns of Y.
    """

    triangle: Float[np.ndarray, "row column"]
    examples: int
    paths: int
    features: int
    outputs: int = 1

    def __post_init__(self):
        object.__setattr__(self, "triangle", owned(np.asarray(self.triangle)))

    @classmethod
    def gather(cls, batches: Any, arch: Architecture, *, store: str | Path | None = None) -> "Compressed":
        """Take in all examples once: arguments and errors are those of `bayesattn.Dataset.gather`."""
        if not isinstance(arch, Architecture):
            raise ValueError(f"arch must be a bayesattn.Architecture, got {type(arch).__name__}")
        batches = _by_place(batches)
        if _of_dask(batches):
            if store is not None:
                raise ValueError("store must be None with Dask, which itself does again what a lost worker had done")
            gathered = _on_dask(batches, arch)
        elif store is None:
            gathered = functools.reduce(_with, _blocks(_checked(_pairs(batches), arch)), None)
        else:
            gathered = _kept(user_path("store", store), batches, arch)
        if gathered is None:
            raise ValueError("batches must hold at least one example, got none")
        return gathered

    @classmethod
    def of(cls, path_inputs: Any, labels: Any) -> "Compressed":
        """Compressed form of examples in memory, of shape (P, Pi, N_0) and (P,) or (P, m)."""
        count, paths, features = path_inputs.shape
        columns = np.reshape(labels, (count, -1))
        rows = np.concatenate([path_inputs.reshape(count, -1), columns], axis=1)
        return Rows(rows, (paths, features, columns.shape[1])).compressed()

    def save(self, file: str | Path) -> None:
        """Write it to a new file, a Zarr store in a zip archive. Raises FileExistsError if something is there."""
        file = user_path("file", file)
        require_new("file", file)
        _write(file, self)

    @classmethod
    def open(cls, file: str | Path) -> "Compressed":
        """What `save` wrote, or `gather` into its store.

        Raises:
            FileNotFoundError: nothing is there.
            ValueError: something else is.
        """
        return _read(user_path("file", file))[0]

    @classmethod
    def restored(cls, path_inputs: Any, labels: Any, residual: ResidualExamples) -> "Compressed":
        """Those that have such `path_inputs`, `labels` and `residual`."""
        held, paths, features = np.shape(path_inputs)
        outputs = 1 if np.ndim(labels) == 1 else np.shape(labels)[1]
        rows = np.column_stack([np.reshape(path_inputs, (held, -1)), labels])
        if residual.examples:
            # Of what no function of the path inputs explains only the square counts.
            rows = np.vstack([rows, np.zeros((min(outputs, residual.examples), rows.shape[1]))])
            rows[held, paths * features] = np.sqrt(residual.square)
        return cls(rows, held + residual.examples, paths, features, outputs)

    def __add__(self, other: Any) -> "Compressed":
        if not isinstance(other, Compressed):
            return NotImplemented
        if self._shape != other._shape:
            raise ValueError(
                "datasets must be of the same paths, features and outputs to be added, got"
                f" {self._shape} and {other._shape}"
            )
        triangle = _triangle(np.concatenate([self.triangle, other.triangle]))
        return Compressed(triangle, self.examples + other.examples, *self._shape)

    def __radd__(self, other: Any) -> "Compressed":
        return self if isinstance(other, int) and other == 0 else NotImplemented

    @property
    def _shape(self) -> tuple[int, int, int]:
        return self.paths, self.features, self.outputs

    @property
    def path_inputs(self) -> Float[np.ndarray, "row path feature"]:
        """Path inputs of at most Pi N_0 examples that have the same likelihood, up to a constant, as all."""
        seen = self.paths * self.features
        return self.triangle[:seen, :seen].reshape(-1, self.paths, self.features)

    @property
    def labels(self) -> Float[np.ndarray, " row"]:
        """Labels of the examples that `path_inputs` are of; with several outputs, a column for each."""
        seen = self.paths * self.features
        labels = self.triangle[:seen, seen:]
        return labels[:, 0] if self.outputs == 1 else labels

    @property
    def residual(self) -> ResidualExamples:
        """The rest of the examples: how many, and the square of what no function of the path inputs explains."""
        seen = self.paths * self.features
        rest = self.triangle[seen:, seen:]
        return ResidualExamples(self.examples - min(len(self.triangle), seen), float(np.vdot(rest, rest)))

    @property
    def gram(self) -> Float[np.ndarray, "path*feature path*feature"]:
        """X^T X."""
        columns = self.triangle[:, : self.paths * self.features]
        return columns.T @ columns

    @property
    def moment(self) -> Float[np.ndarray, " path*feature"]:
        """X^T Y; with several outputs, a column for each."""
        seen = self.paths * self.features
        moment = self.triangle[:, :seen].T @ self.triangle[:, seen:]
        return moment[:, 0] if self.outputs == 1 else moment

    @property
    def square(self) -> float:
        """|Y|^2."""
        labels = self.triangle[:, self.paths * self.features :]
        return float(np.vdot(labels, labels))

    def _described(self) -> tuple[str, dict[str, str]]:
        return f"Compressed examples: {self.examples:,}", {
            "paths": f"{self.paths} of {self.features} features",
            "held": f"{len(self.path_inputs)} rows, {self.triangle.nbytes / 2**20:.3g} MiB",
        }


def _triangle(rows: np.ndarray) -> np.ndarray:
    """R of a QR decomposition, its diagonal not negative: where the columns are independent there is no other."""
    upper: Any = np.linalg.qr(rows, mode="r")
    return upper * np.where(np.diag(upper) < 0, -1.0, 1.0)[:, None] + 0.0  # Zeros without a sign.


def _with(gathered: Compressed | None, rows: "Rows") -> Compressed:
    return rows.compressed() if gathered is None else gathered + rows.compressed()


class Rows(NamedTuple):
    """Rows [X Y] of some examples, and (Pi, N_0, m)."""

    rows: Float[np.ndarray, "example column"]
    shape: tuple[int, int, int]

    def compressed(self) -> Compressed:
        """Compressed form of these examples alone."""
        return Compressed(_triangle(self.rows), len(self.rows), *self.shape)


def _by_place(batches: Any) -> Any:
    """A pair of arrays that were given by their names."""
    if not hasattr(batches, "keys"):
        return batches
    names = sorted(map(str, batches.keys()))
    if not {"path_inputs", "labels"} <= {*names}:
        raise ValueError(f"batches must hold path_inputs and labels by these names, got {', '.join(names) or 'none'}")
    return batches["path_inputs"], batches["labels"]


def _pairs(batches: Any) -> Iterator[tuple[str, Any]]:
    """Pairs of inputs and labels, none of them large, with the names that errors give them."""
    if _is_pair(batches):
        yield from _parts("batches", batches)
        return
    if not isinstance(batches, Iterable):
        raise ValueError(f"batches must be pairs (path_inputs, labels), got {shown(batches)}")
    for number, batch in enumerate(batches):
        name = f"batches[{number}]"
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise ValueError(f"{name} must be a pair (path_inputs, labels), got {shown(batch)}")
        yield from _parts(name, batch)


def _is_pair(batches: Any) -> bool:
    """Whether it is one pair of arrays, and not two batches."""
    if not isinstance(batches, tuple | list) or len(batches) != 2:
        return False
    try:
        return np.ndim(batches[0]) == 3
    except ValueError:  # Of arrays of different shapes, as a batch has.
        return False


def _parts(name: str, batch: Any) -> Iterator[tuple[str, Any]]:
    inputs, labels = map(_sliceable, batch)
    if len(inputs.shape) != 3:
        raise ValueError(f"path_inputs of {name} must have shape (examples, paths, features), got {inputs.shape}")
    count, *sizes = inputs.shape
    if labels.shape[:1] != (count,):
        raise ValueError(f"labels of {name} must be as many as its path_inputs, {count}, got shape {labels.shape}")
    step = max(1, BLOCK_BYTES // (8 * max(1, int(np.prod(sizes)))))
    for start in range(0, count, step):
        yield name, (inputs[start : start + step], labels[start : start + step])


def _sliceable(part: Any) -> Any:
    """An array whose rows are taken by their place; those on disk stay there, those of a table go by its index."""
    return part if hasattr(part, "shape") and not hasattr(part, "iloc") else np.asarray(readable(part))


def _checked(pairs: Iterable[tuple[str, Any]], arch: Architecture) -> Iterator[Rows]:
    """Rows of one pair after the other, all of one shape."""
    shape = None
    for name, pair in pairs:
        inputs = checked_path_inputs(f"path_inputs of {name}", pair[0], arch)
        dims = (len(inputs), "outputs") if np.ndim(pair[1]) > 1 else (len(inputs),)
        labels = finite_array(f"labels of {name}", pair[1], dims).reshape(len(inputs), -1)
        found = (inputs.shape[1], inputs.shape[2], labels.shape[1])
        if shape is None and labels.shape[1] == 1 and (doubt := doubtful_labels(f"labels of {name}", labels[:, 0])):
            warnings.warn(doubt, stacklevel=2)
        if found != (shape := shape or found):
            raise ValueError(
                f"{name} must have {shape[1]} features and {shape[2]} outputs as those before, got {found[1:]}"
            )
        yield Rows(np.concatenate([inputs.reshape(len(inputs), -1), labels], axis=1), shape)


def _blocks(parts: Iterable[Rows]) -> Iterator[Rows]:
    """Rows of some parts at a time: few large steps are faster than many small ones."""
    held: list[np.ndarray] = []
    shape = None
    for rows, shape in parts:
        held.append(rows)
        columns = rows.shape[1]
        some, many = (size // (8 * columns) for size in (BLOCK_BYTES, LARGE_BLOCK_BYTES))
        if sum(map(len, held)) >= max(some, columns, min(4 * columns, many)):
            block, held = Rows(np.concatenate(held), shape), []
            yield block
            del block  # Or it stays while the next is gathered.
    if shape is not None and sum(map(len, held)):
        yield Rows(np.concatenate(held), shape)


def _kept(file: Path, batches: Any, arch: Architecture) -> Compressed | None:
    """`gather` with a store, which knows the SHA-256 of the rows that it holds."""
    gathered, digest = _read(file) if os.path.lexists(file) else (None, "")
    if gathered is not None and not digest:
        raise ValueError(f"store must be one that `gather` wrote, got {file}, which was saved: open it, and add by +")
    left, sha = gathered.examples if gathered else 0, hashlib.sha256()

    def new() -> Iterator[Rows]:
        """Rows beyond those that the store holds."""
        nonlocal left
        for rows, shape in _checked(_pairs(batches), arch):
            known, rest = rows[:left], rows[left:]
            if len(known):
                sha.update(known.tobytes())
                left -= len(known)
                if not left and sha.hexdigest() != digest:
                    raise ValueError(
                        f"store must hold what was gathered of these batches, got {file}, of other examples"
                    )
            if len(rest):  # A view, even of no rows, keeps the batch in memory.
                yield Rows(rest, shape)

    written = time.monotonic()
    for block in _blocks(new()):
        gathered = _with(gathered, block)
        sha.update(block.rows.tobytes())
        del block
        if time.monotonic() - written > STORE_SECONDS:
            _write(file, gathered, sha.hexdigest())
            written = time.monotonic()
    if gathered is not None and left:
        raise ValueError(
            f"store must hold what was gathered of these batches, got {file}, of {gathered.examples} examples, {left} more"
            " than batches have"
        )
    if gathered is not None:
        _write(file, gathered, sha.hexdigest())
    return gathered


def _write(file: Path, compressed: Compressed, examples: str = "") -> None:
    """Write a store that is there as a whole or not at all; `examples` is the SHA-256 of theirs."""
    import zarr
    from zarr.storage import ZipStore

    triangle = np.ascontiguousarray(compressed.triangle)
    attributes = {name: getattr(compressed, name) for name in COUNTS}
    attributes |= {"format": FORMAT, "of_examples": examples, "of_triangle": _digest(triangle)}
    with tempfile.TemporaryDirectory() as folder:
        partial = Path(folder) / "dataset.zip"
        with ZipStore(partial, mode="w") as store:
            group = zarr.create_group(store, attributes=attributes, zarr_format=3)
            group.create_array("triangle", data=triangle)
        replace_file(file, partial.read_bytes())


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(array.astype("<f8").tobytes()).hexdigest()


def _read(file: Path) -> tuple[Compressed, str]:
    """Contents of a store, and the SHA-256 of their examples."""
    import zarr
    from zarr.storage import ZipStore

    if not file.exists():
        raise FileNotFoundError(errno.ENOENT, "dataset must be a file that `Dataset.save` wrote", str(file))
    try:
        with ZipStore(file, mode="r") as store:
            group: Any = zarr.open_group(store, mode="r", zarr_format=3)
            kept = dict(group.attrs)
            if kept["format"] != FORMAT:
                raise ValueError(f"format {kept['format']}")
            examples, paths, features, outputs = (positive_integer(name, kept[name]) for name in COUNTS)
            columns = paths * features + outputs
            expected = (min(columns, examples), columns)
            if group["triangle"].shape != expected:
                raise ValueError(f"a triangle of shape {group['triangle'].shape}, expected {expected}")
            require_memory("the triangle", 8 * columns**2)
            triangle = finite_array("triangle", group["triangle"][:], expected)
        if _digest(triangle) != kept["of_triangle"]:
            raise ValueError("entries that are not those that were written")
        return Compressed(triangle, examples, paths, features, outputs), str(kept["of_examples"])
    except Exception as error:  # Whatever a damaged archive brings about.
        said = f"it holds no {error}" if isinstance(error, KeyError) else error
        raise ValueError(
            f"{file} must be a dataset that was saved, got a file that cannot be read as such: {said}"
        ) from error


def _of_dask(batches: Any) -> bool:
    several = batches if isinstance(batches, tuple | list) and len(batches) == 2 else (batches,)
    return any(type(part).__module__.startswith(("dask.array", "dask.bag")) for part in several)


def _on_dask(batches: Any, arch: Architecture) -> Compressed | None:
    """A tree of sums: what a lost worker had gathered is gathered again, and nothing is counted twice."""
    from dask import delayed

    if isinstance(batches, tuple | list):
        from dask import array

        inputs, labels = map(array.asarray, batches)
        if np.isnan(inputs.shape + labels.shape).any():
            raise ValueError(
                "batches must be Dask arrays of known shapes, got unknown ones: call compute_chunk_sizes()"
            )
        if inputs.shape[:1] != labels.shape[:1]:
            raise ValueError(
                f"labels of batches must be as many as its path_inputs, {inputs.shape[:1]}, got {labels.shape}"
            )
        whole = inputs.rechunk(dict.fromkeys(range(1, inputs.ndim), -1))
        columns = labels.rechunk({0: whole.chunks[0], **dict.fromkeys(range(1, labels.ndim), -1)})
        pairs = zip(whole.to_delayed().ravel(), columns.to_delayed().ravel(), strict=True)
        parts = [delayed(_of_pairs)([pair], arch) for pair in pairs]
    else:
        parts = [delayed(_of_pairs)(partition, arch) for partition in batches.to_delayed()]
    while len(parts) > 1:
        parts = [delayed(_of_parts)(parts[start : start + FAN]) for start in range(0, len(parts), FAN)]
    return parts[0].compute()


def _of_pairs(batches: Iterable[Any], arch: Architecture) -> Compressed | None:
    return functools.reduce(_with, _blocks(_checked(_pairs(list(batches)), arch)), None)


def _of_parts(parts: Iterable[Compressed | None]) -> Compressed | None:
    return sum(part for part in parts if part is not None) or None
