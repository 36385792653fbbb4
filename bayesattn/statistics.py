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
import io
import itertools
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from bayesattn._checks import finite_array, positive_integer, shown
from bayesattn._files import replace_file, require_new
from bayesattn._text import Described
from bayesattn.architecture import Architecture
from bayesattn.theory.kernels import checked_path_inputs
from bayesattn.theory.likelihood import Unseen

BLOCK_BYTES = 2**23
"""Of examples that are taken into R at a time, on top of four times as many rows as R has, if those are more."""
STORE_SECONDS = 30.0
"""Between two times that a store is written."""
FAN = 8
"""Parts that Dask adds up at a time."""
FORMAT = 1
COUNTS = ("examples", "paths", "features", "outputs")


@dataclass(frozen=True, eq=False, repr=False)
class Statistics(Described):
    """Sufficient statistics of training examples: all that theory and samplers need of them.

    `a + b` is that of the examples of both; so is `sum` of many.

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

    @classmethod
    def gather(cls, batches: Any, arch: Architecture, *, store: str | Path | None = None) -> "Statistics":
        """Take in all examples once.

        Args:
            batches: pairs (path inputs (n, Pi, N_0), labels (n,)) from any iterable; or one pair of arrays, which are read
                block by block where they lie on disk (NumPy's memory maps, Zarr, HDF5); or a pair of Dask arrays; or a Dask
                bag of such pairs. Dask's are gathered where Dask computes: on the default client's workers, if there is one.
            arch: the network; only the number of its paths matters.
            store: a file in which what was gathered is kept, every half minute and at the end. If it is there, as many
                examples as it holds are left out at the beginning, so that gathering goes on where it was interrupted.

        Raises:
            ValueError: wrong shapes, entries that are not finite, no examples, a store of other examples or together with
                Dask, which has its own ways of going on.
        """
        if not isinstance(arch, Architecture):
            raise ValueError(f"arch must be a bayesattn.Architecture, got {type(arch).__name__}")
        if _of_dask(batches):
            if store is not None:
                raise ValueError("store must be None with Dask, which itself does again what a lost worker had done")
            gathered = _on_dask(batches, arch)
        elif store is None:
            gathered = functools.reduce(_with, _blocks(_pairs(batches), arch), None)
        else:
            gathered = _kept(Path(store), batches, arch)
        if gathered is None:
            raise ValueError("batches must hold at least one example, got none")
        return gathered

    def save(self, file: str | Path) -> None:
        """Write it to a new file, a Zarr store in a zip archive. Raises FileExistsError if something is there."""
        require_new("file", file)
        _write(Path(file), self)

    @classmethod
    def open(cls, file: str | Path) -> "Statistics":
        """What `save` wrote, or `gather` into its store.

        Raises:
            FileNotFoundError: nothing is there.
            ValueError: something else is.
        """
        return _read(Path(file))[0]

    @classmethod
    def restored(cls, path_inputs: Any, labels: Any, unseen: Unseen) -> "Statistics":
        """Those, of one output, that have such `path_inputs`, `labels` and `unseen`."""
        held, paths, features = np.shape(path_inputs)
        rows = np.column_stack([np.reshape(path_inputs, (held, -1)), labels])
        if unseen.examples:
            rows = np.vstack([rows, np.append(np.zeros(paths * features), np.sqrt(unseen.square))])
        return cls(rows, held + unseen.examples, paths, features)

    def __add__(self, other: Any) -> "Statistics":
        if not isinstance(other, Statistics):
            return NotImplemented
        if self._shape != other._shape:
            raise ValueError(
                "statistics must be of the same paths, features and outputs to be added, got"
                f" {self._shape} and {other._shape}"
            )
        triangle = _triangle(np.concatenate([self.triangle, other.triangle]))
        return Statistics(triangle, self.examples + other.examples, *self._shape)

    def __radd__(self, other: Any) -> "Statistics":
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
    def unseen(self) -> Unseen:
        """The rest of the examples: how many, and the square of what no function of the path inputs explains."""
        seen = self.paths * self.features
        rest = self.triangle[seen:, seen:]
        return Unseen(self.examples - min(len(self.triangle), seen), float(np.vdot(rest, rest)))

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
        return f"Statistics of {self.examples:,} examples", {
            "paths": f"{self.paths} of {self.features} features",
            "held": f"{len(self.path_inputs)} rows, {self.triangle.nbytes / 2**20:.3g} MiB",
        }


def _triangle(rows: np.ndarray) -> np.ndarray:
    """R of a QR decomposition, its diagonal not negative: there is no other."""
    upper: Any = np.linalg.qr(rows, mode="r")
    return upper * np.where(np.diag(upper) < 0, -1.0, 1.0)[:, None]


def _with(gathered: Statistics | None, rows: "Rows") -> Statistics:
    return rows.statistics() if gathered is None else gathered + rows.statistics()


class Rows(NamedTuple):
    """Rows [X Y] of some examples, and (Pi, N_0, m)."""

    rows: Float[np.ndarray, "example column"]
    shape: tuple[int, int, int]

    def statistics(self) -> Statistics:
        """Of these examples alone."""
        return Statistics(_triangle(self.rows), len(self.rows), *self.shape)


def _pairs(batches: Any) -> Iterator[tuple[str, Any]]:
    """Pairs of inputs and labels, none of them large, with the names that errors give them."""
    if isinstance(batches, tuple) and len(batches) == 2 and getattr(batches[0], "ndim", None) == 3:
        yield from _parts("batches", batches)
        return
    for number, batch in enumerate(batches):
        name = f"batches[{number}]"
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise ValueError(f"{name} must be a pair (path_inputs, labels), got {shown(batch)}")
        yield from _parts(name, batch)


def _parts(name: str, batch: Any) -> Iterator[tuple[str, Any]]:
    inputs, labels = batch
    count, *sizes = np.shape(inputs)
    if np.shape(labels)[:1] != (count,):
        raise ValueError(f"labels of {name} must be as many as its path_inputs, {count}, got shape {np.shape(labels)}")
    step = max(1, BLOCK_BYTES // (8 * max(1, int(np.prod(sizes)))))
    for start in range(0, count, step):
        yield name, (inputs[start : start + step], labels[start : start + step])


def _blocks(pairs: Iterable[tuple[str, Any]], arch: Architecture, skip: int = 0) -> Iterator[Rows]:
    """Rows of some examples at a time, but the first ones: few large steps are faster than many small ones."""
    held: list[np.ndarray] = []
    shape = None
    for name, pair in pairs:
        rows, found = _rows(name, pair, arch)
        if found != (shape := shape or found):
            raise ValueError(
                f"{name} must have {shape[1]} features and {shape[2]} outputs as those before, got {found[1:]}"
            )
        left = rows[min(skip, len(rows)) :]
        skip -= len(rows) - len(left)
        held.append(left)
        columns = rows.shape[1]
        if sum(map(len, held)) >= max(4 * columns, BLOCK_BYTES // (8 * columns)):
            yield Rows(np.concatenate(held), shape)
            held = []
    if shape is not None and sum(map(len, held)):
        yield Rows(np.concatenate(held), shape)


def _rows(name: str, pair: Any, arch: Architecture) -> Rows:
    inputs = checked_path_inputs(f"path_inputs of {name}", pair[0], arch)
    dims = (len(inputs), "outputs") if np.ndim(pair[1]) > 1 else (len(inputs),)
    labels = finite_array(f"labels of {name}", pair[1], dims).reshape(len(inputs), -1)
    shape = (inputs.shape[1], inputs.shape[2], labels.shape[1])
    return Rows(np.concatenate([inputs.reshape(len(inputs), -1), labels], axis=1), shape)


def _kept(file: Path, batches: Any, arch: Architecture) -> Statistics | None:
    """`gather` with a store."""
    gathered, first = _read(file) if os.path.lexists(file) else (None, "")
    pairs = _pairs(batches)
    beginning = next(pairs, None)
    if beginning is None:
        return gathered
    rows = _rows(*beginning, arch)
    digest = hashlib.sha256(rows.rows[0].tobytes()).hexdigest()
    if gathered is not None and (first, gathered._shape) != (digest, rows.shape):
        raise ValueError(f"store must hold statistics of these batches, got {file}, whose first example is another")
    written = time.monotonic()
    for block in _blocks(itertools.chain([beginning], pairs), arch, gathered.examples if gathered else 0):
        gathered = _with(gathered, block)
        if time.monotonic() - written > STORE_SECONDS:
            _write(file, gathered, digest)
            written = time.monotonic()
    if gathered is not None:
        _write(file, gathered, digest)
    return gathered


def _write(file: Path, statistics: Statistics, first: str = "") -> None:
    """Write a store that is there as a whole or not at all; `first` tells the first example from others."""
    import zarr
    from zarr.storage import ZipStore

    buffer = io.BytesIO()
    attributes = {name: getattr(statistics, name) for name in COUNTS} | {"format": FORMAT, "first": first}
    with tempfile.TemporaryDirectory() as folder:
        partial = Path(folder) / "statistics.zip"
        with ZipStore(partial, mode="w") as store:
            group = zarr.create_group(store, attributes=attributes)
            group.create_array("triangle", data=np.ascontiguousarray(statistics.triangle))
        buffer.write(partial.read_bytes())
    replace_file(file, buffer.getvalue())


def _read(file: Path) -> tuple[Statistics, str]:
    import zarr
    from zarr.storage import ZipStore

    if not file.exists():
        raise FileNotFoundError(errno.ENOENT, "statistics must be a file that `Statistics.save` wrote", str(file))
    try:
        with ZipStore(file, mode="r") as store:
            group: Any = zarr.open_group(store, mode="r")
            kept, triangle = dict(group.attrs), np.asarray(group["triangle"][:], float)
        if kept["format"] != FORMAT:
            raise ValueError(f"format {kept['format']}")
        statistics = Statistics(triangle, *(positive_integer(name, kept[name]) for name in COUNTS))
        columns = statistics.paths * statistics.features + statistics.outputs
        finite_array("triangle", triangle, (min(columns, statistics.examples), columns))
        return statistics, str(kept["first"])
    except Exception as error:  # Whatever a damaged archive brings about.
        raise ValueError(
            f"{file} must be statistics that were saved, got a file that cannot be read as such: {error}"
        ) from error


def _of_dask(batches: Any) -> bool:
    first = batches[0] if isinstance(batches, tuple) and batches else batches
    return type(first).__module__.startswith(("dask.array", "dask.bag"))


def _on_dask(batches: Any, arch: Architecture) -> Statistics | None:
    """A tree of sums: what a lost worker had gathered is gathered again, and nothing is counted twice."""
    from dask import delayed

    if isinstance(batches, tuple):
        inputs, labels = batches
        whole = inputs.rechunk(dict.fromkeys(range(1, inputs.ndim), -1))
        if whole.shape[:1] != labels.shape[:1]:
            raise ValueError(f"labels must be as many as path_inputs, {len(whole)}, got {len(labels)}")
        pairs = zip(whole.to_delayed().ravel(), labels.rechunk({0: whole.chunks[0]}).to_delayed().ravel(), strict=True)
        parts = [delayed(_of_pairs)([pair], arch) for pair in pairs]
    else:
        parts = [delayed(_of_pairs)(partition, arch) for partition in batches.to_delayed()]
    while len(parts) > 1:
        parts = [delayed(_of_parts)(parts[start : start + FAN]) for start in range(0, len(parts), FAN)]
    return parts[0].compute()


def _of_pairs(batches: Iterable[Any], arch: Architecture) -> Statistics | None:
    return functools.reduce(_with, _blocks(_pairs(list(batches)), arch), None)


def _of_parts(parts: Iterable[Statistics | None]) -> Statistics | None:
    return sum(part for part in parts if part is not None) or None
