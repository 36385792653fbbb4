"""Any number of examples, as the few numbers that the posterior asks of them.

Path inputs X (P, Pi N_0) and labels Y enter the posterior through X^T X, X^T Y and Y^T Y alone (EXTENSIONS section 3). With
[X Y] = Q R, Q^T Q = I and R upper triangular, these are the products of R's columns: the rows of R are at most Pi N_0
examples that have the same likelihood as all P, and one more row for the part of Y that no function of X explains. R of two
sets of examples is that of their two R, one below the other, so that it is gathered block by block, on one machine or on
many (communication-avoiding QR: Demmel et al. 2012). Unlike the sums themselves it keeps all digits: no differences of
squares are formed.
"""

import errno
import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from bayesattn._util.checks import Checked, OwnsArrays, finite_array, owned, positive_integer, require_memory
from bayesattn._util.errors import BayesattnError
from bayesattn._util.files import replace_file, require_new, user_path
from bayesattn._util.text import Described
from bayesattn.kernels.gaussian_process import ResidualExamples
from bayesattn.kernels.path_inputs import without_single_output

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
    def of(cls, path_inputs: Checked, labels: Checked) -> "Compressed":
        """Compressed form of examples in memory, of shape (P, Pi, N_0) and (P,) or (P, m)."""
        count, paths, features = path_inputs.shape
        columns = np.reshape(labels, (count, -1))
        rows = np.concatenate([path_inputs.reshape(count, -1), columns], axis=1)
        return cls(triangle_of(rows), count, paths, features, columns.shape[1])

    def save(self, file: str | Path) -> None:
        """Write it to a new file, a Zarr store in a zip archive. Raises FileExistsError if something is there."""
        file = user_path("file", file)
        require_new("file", file)
        write_store(file, self)

    @classmethod
    def open(cls, file: str | Path) -> "Compressed":
        """What `save` wrote, or `gather` into its store.

        Raises:
            FileNotFoundError: nothing is there.
            ValueError: something else is.
        """
        return read_store(user_path("file", file))[0]

    @classmethod
    def restored(cls, path_inputs: Checked, labels: Checked, residual: ResidualExamples) -> "Compressed":
        """Those that have such `path_inputs`, `labels` and `residual`."""
        held, paths, features = np.shape(path_inputs)
        outputs = 1 if np.ndim(labels) == 1 else np.shape(labels)[1]
        rows = np.column_stack([np.reshape(path_inputs, (held, -1)), labels])
        if residual.examples:
            # Of what no function of the path inputs explains only the square counts.
            rows = np.vstack([rows, np.zeros((min(outputs, residual.examples), rows.shape[1]))])
            rows[held, paths * features] = np.sqrt(residual.square)
        return cls(rows, held + residual.examples, paths, features, outputs)

    def __add__(self, other: Checked) -> "Compressed":
        if not isinstance(other, Compressed):
            return NotImplemented
        if self._shape != other._shape:
            raise BayesattnError(
                "datasets must be of the same paths, features and outputs to be added, got"
                f" {self._shape} and {other._shape}"
            )
        triangle = triangle_of(np.concatenate([self.triangle, other.triangle]))
        return Compressed(triangle, self.examples + other.examples, *self._shape)

    def __radd__(self, other: Checked) -> "Compressed":
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
        return without_single_output(labels)

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
        return without_single_output(moment)

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


def triangle_of(rows: np.ndarray) -> np.ndarray:
    """R of a QR decomposition, its diagonal not negative: where the columns are independent there is no other."""
    upper: Any = np.linalg.qr(rows, mode="r")
    return upper * np.where(np.diag(upper) < 0, -1.0, 1.0)[:, None] + 0.0  # Zeros without a sign.


def write_store(file: Path, compressed: Compressed, examples: str = "") -> None:
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


def read_store(file: Path) -> tuple[Compressed, str]:
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
                raise BayesattnError(f"format {kept['format']}")
            examples, paths, features, outputs = (positive_integer(name, kept[name]) for name in COUNTS)
            columns = paths * features + outputs
            expected = (min(columns, examples), columns)
            if group["triangle"].shape != expected:
                raise BayesattnError(f"a triangle of shape {group['triangle'].shape}, expected {expected}")
            require_memory("the triangle", 8 * columns**2)
            triangle = finite_array("triangle", group["triangle"][:], expected)
        if _digest(triangle) != kept["of_triangle"]:
            raise BayesattnError("entries that are not those that were written")
        return Compressed(triangle, examples, paths, features, outputs), str(kept["of_examples"])
    except Exception as error:  # Whatever a damaged archive brings about.
        said = f"it holds no {error}" if isinstance(error, KeyError) else error
        raise BayesattnError(
            f"{file} must be a dataset that was saved, got a file that cannot be read as such: {said}"
        ) from error
