"""Compression of any number of examples to the few numbers on which the posterior depends.

Path inputs X (P, Pi N_0) and labels Y enter the posterior only through X^T X, X^T Y and Y^T Y (THEORY section 8).
With [X Y] = Q R, Q^T Q = I and R upper triangular, these are products of the columns of R. The rows of R are at most Pi
N_0 examples that have the same likelihood as all P, and one more row per output for the part of Y that no function of X
explains. Two sets of examples together have the R of their two triangles, stacked. So R is gathered block by block, on
one machine or on many (communication-avoiding QR: Demmel et al. 2012). Unlike the sums themselves, R keeps all digits,
because no differences of squares are formed.
"""

import errno
import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from bayesattn._util.checks import Checked, OwnsArrays, finite_array, owned, positive_integer, require_memory
from bayesattn._util.files import replace_file, require_new, user_path
from bayesattn._util.text import Described
from bayesattn.errors import BayesattnError
from bayesattn.kernels.gaussian_process import ResidualExamples
from bayesattn.kernels.path_inputs import without_single_output

FORMAT = 1
COUNTS = ("examples", "paths", "features", "outputs")


@dataclass(frozen=True, eq=False, repr=False)
class Compressed(OwnsArrays, Described):
    """Sufficient statistics of training examples: all that the theory and the samplers need.

    `bayesattn.Dataset` holds them. `a + b` are the statistics of the examples of both, and `sum` adds many.

    Args:
        triangle: R of [X Y], with Pi N_0 + m columns and at most as many rows.
        examples: P.
        paths: Pi.
        features: N_0.
        outputs: m, columns of Y.
        output_names: names of the classes, if the labels were those of `one_hot`.
    """

    triangle: Float[np.ndarray, "row column"]
    examples: int
    paths: int
    features: int
    outputs: int = 1
    output_names: tuple[str, ...] | None = None

    def __post_init__(self):
        object.__setattr__(self, "triangle", owned(np.asarray(self.triangle)))

    @classmethod
    def of(cls, path_inputs: np.ndarray, labels: ArrayLike) -> "Compressed":
        """Compressed form of examples in memory, with path inputs (P, Pi, N_0) and labels (P,) or (P, m)."""
        count, paths, features = path_inputs.shape
        columns = np.reshape(labels, (count, -1))
        rows = np.concatenate([path_inputs.reshape(count, -1), columns], axis=1)
        return cls(triangle_of(rows), count, paths, features, columns.shape[1])

    def save(self, file: str | Path) -> None:
        """Write the statistics to a new file, a Zarr store in a zip archive. Raises FileExistsError if the file exists."""
        file = user_path("file", file)
        require_new("file", file)
        write_store(file, self)

    @classmethod
    def open(cls, file: str | Path) -> "Compressed":
        """Statistics from a file that `save` wrote, or from a store that `gather` wrote.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is something else.
        """
        return read_store(user_path("file", file))[0]

    @classmethod
    def restored(cls, path_inputs: ArrayLike, labels: ArrayLike, residual: ResidualExamples) -> "Compressed":
        """Statistics with the given `path_inputs`, `labels` and `residual`."""
        count, paths, features = np.shape(path_inputs)
        outputs = 1 if np.ndim(labels) == 1 else np.shape(labels)[1]
        rows = np.column_stack([np.reshape(path_inputs, (count, -1)), labels])
        if residual.examples:
            # The part of the labels that no function of the path inputs explains matters only through its square.
            rows = np.vstack([rows, np.zeros((min(outputs, residual.examples), rows.shape[1]))])
            rows[count, paths * features] = np.sqrt(residual.square)
        return cls(rows, count + residual.examples, paths, features, outputs)

    def __add__(self, other: Checked) -> "Compressed":
        if not isinstance(other, Compressed):
            return NotImplemented
        if self._shape != other._shape:
            raise BayesattnError(
                "datasets must have the same paths, features and outputs to be added, got"
                f" {self._shape} and {other._shape}"
            )
        names = [each.output_names for each in (self, other) if each.output_names is not None]
        if len({*names}) > 1:
            raise BayesattnError(f"datasets to be added must have the same classes, got {names[0]} and {names[1]}")
        triangle = triangle_of(np.concatenate([self.triangle, other.triangle]))
        return Compressed(triangle, self.examples + other.examples, *self._shape, names[0] if names else None)

    def __radd__(self, other: Checked) -> "Compressed":
        return self if isinstance(other, int) and other == 0 else NotImplemented

    @property
    def _shape(self) -> tuple[int, int, int]:
        return self.paths, self.features, self.outputs

    @property
    def _input_columns(self) -> int:
        return self.paths * self.features

    @property
    def path_inputs(self) -> Float[np.ndarray, "row path feature"]:
        """Path inputs of at most Pi N_0 examples that have the same likelihood as all examples, up to a constant."""
        columns = self._input_columns
        return self.triangle[:columns, :columns].reshape(-1, self.paths, self.features)

    @property
    def labels(self) -> Float[np.ndarray, " row"]:
        """Labels of the examples in `path_inputs`; with several outputs, one column per output."""
        columns = self._input_columns
        return without_single_output(self.triangle[:columns, columns:])

    @property
    def residual(self) -> ResidualExamples:
        """Residual examples: their number, and the square of the part of Y that no function of the path inputs explains."""
        columns = self._input_columns
        rest = self.triangle[columns:, columns:]
        return ResidualExamples(self.examples - min(len(self.triangle), columns), float(np.vdot(rest, rest)))

    @property
    def square(self) -> float:
        """|Y|^2."""
        labels = self.triangle[:, self._input_columns :]
        return float(np.vdot(labels, labels))

    def _described(self) -> tuple[str, dict[str, str]]:
        return f"Compressed examples: {self.examples:,}", {
            "paths": f"{self.paths} of {self.features} features",
            "held": f"{len(self.path_inputs)} rows, {self.triangle.nbytes / 2**20:.3g} MiB",
        }


def triangle_of(rows: np.ndarray) -> np.ndarray:
    """R of a QR decomposition with a nonnegative diagonal, which is unique if the columns are independent."""
    upper = np.asarray(np.linalg.qr(rows, mode="r"))
    return upper * np.where(np.diag(upper) < 0, -1.0, 1.0)[:, None] + 0.0  # Zeros without a sign.


def write_store(file: Path, compressed: Compressed, examples: str = "") -> None:
    """Write a store atomically; `examples` is the SHA-256 of the examples."""
    import zarr
    from zarr.storage import ZipStore

    file.parent.mkdir(parents=True, exist_ok=True)
    triangle = np.ascontiguousarray(compressed.triangle)
    attributes = {name: getattr(compressed, name) for name in COUNTS}
    attributes |= {} if compressed.output_names is None else {"output_names": list(compressed.output_names)}
    attributes |= {"format": FORMAT, "of_examples": examples, "of_triangle": _digest(triangle)}
    with tempfile.TemporaryDirectory() as folder:
        partial = Path(folder) / "dataset.zip"
        with ZipStore(partial, mode="w") as store:
            group = zarr.create_group(store, attributes=attributes, zarr_format=3)
            group.create_array("triangle", data=triangle)
        replace_file(file, partial.read_bytes())


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(array.astype("<f8").tobytes()).hexdigest()


def read_store(file: Path) -> tuple[Compressed, str]:
    """Contents of a store, and the SHA-256 of its examples."""
    import zarr
    from zarr.storage import ZipStore

    if not file.exists():
        raise FileNotFoundError(errno.ENOENT, "dataset must be a file that `Dataset.save` wrote", str(file))
    try:
        with ZipStore(file, mode="r") as store:
            group = zarr.open_group(store, mode="r", zarr_format=3)
            attributes = dict(group.attrs)
            if attributes["format"] != FORMAT:
                raise BayesattnError(f"format {attributes['format']}")
            examples, paths, features, outputs = (positive_integer(name, attributes[name]) for name in COUNTS)
            columns = paths * features + outputs
            expected = (min(columns, examples), columns)
            stored = group["triangle"]
            if not isinstance(stored, zarr.Array) or stored.shape != expected:
                raise BayesattnError(f"a triangle of shape {getattr(stored, 'shape', None)}, expected {expected}")
            require_memory(f"the triangle of {file}", 8 * columns**2)
            triangle = finite_array("triangle", stored[:], expected)
        if _digest(triangle) != attributes["of_triangle"]:
            raise BayesattnError("entries that differ from those that were written")
        names: Any = attributes.get("output_names")
        named = None if names is None else tuple(map(str, names))
        return Compressed(triangle, examples, paths, features, outputs, named), str(attributes["of_examples"])
    except MemoryError:  # TooLittleMemory, too.
        raise
    except Exception as error:  # A damaged archive may raise anything.
        reason = f"it holds no {error}" if isinstance(error, KeyError) else error
        raise BayesattnError(
            f"{file} must be a dataset that was saved, got a file that cannot be read as such: {reason}"
        ) from error
