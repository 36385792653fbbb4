"""Training examples of a network, plain or compressed, with test and validation examples."""

import copy
import dataclasses
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bayesattn._util.checks import Checked, OwnsArrays, finite_array, labels_array, names, owned, reals, require_memory
from bayesattn._util.errors import BayesattnError
from bayesattn._util.text import Described
from bayesattn.architecture import Architecture
from bayesattn.classes import OneHot, names_of_outputs
from bayesattn.compressed import Compressed
from bayesattn.gather import gather as gathered

PARTS = ("test", "validation")
FROM_TOKENS = ": bayesattn.attention.path_inputs and paths_from_matrices make path inputs of token sequences"
GATHERED = "{} must not be given for a compressed dataset, whose training examples are gathered"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Dataset(OwnsArrays, Described):
    """Path inputs and labels of training, test and validation examples.

    Args:
        path_inputs: xi of shape (P, Pi, N_0), from `bayesattn.attention`.
        labels: Y of shape (P,), or (P, m) for m > 1 outputs. Accuracy requires labels +1 and -1 or, with several
            outputs, rows whose largest entry is at the class, such as the result of `bayesattn.one_hot`.
        test_path_inputs: xi of shape (P_test, Pi, N_0) at which to predict.
        test_labels: shape (P_test,), or (P_test, m).
        validation_path_inputs: xi of shape (P_validation, Pi, N_0), for the choice of the temperature.
        validation_labels: shape (P_validation,), or (P_validation, m).
        output_names: names of several outputs, such as class names (`bayesattn.one_hot`).
        compressed: any number of training examples, in place of path_inputs and labels; made by `gather`.

    Raises:
        ValueError: shapes that do not fit, entries that are not finite real numbers.

    Arrays are copied, and the arrays of a dataset are read-only. `a + b` has the compressed training examples of both,
    and `sum` adds many; the other fields come from the first dataset that has them.
    """

    path_inputs: Any = None
    labels: Any = None
    test_path_inputs: Any = None
    test_labels: Any = None
    validation_path_inputs: Any = None
    validation_labels: Any = None
    output_names: Sequence[str] | None = None
    compressed: Compressed | None = None

    def __post_init__(self):
        self._check({each.name for each in dataclasses.fields(self)})

    @classmethod
    def gather(
        cls, batches: Checked, arch: Architecture, *, store: str | Path | None = None, **parts: Any
    ) -> "Dataset":
        """Read any number of training examples once, and keep at most Pi N_0 rows with the same posterior.

        Args:
            batches: pairs (path inputs (n, Pi, N_0), labels (n,)) from any iterable; or one pair of arrays, which are
                read block by block if they are on disk (NumPy's memory maps, Zarr, HDF5); or a mapping with path_inputs
                and labels, such as a Zarr group or an npz file, whose arrays are read whole; or a pair of Dask arrays;
                or a Dask bag of pairs. Dask collections are gathered where Dask computes: on the default client's
                workers, if there is one.
            arch: the network; only the number of its paths matters.
            store: file to which the result is saved every half minute and at the end. If the file exists, as many
                examples as it contains are skipped, so that gathering resumes where it was interrupted.
            parts: test and validation examples, and names of outputs, as for a plain dataset.

        Raises:
            ValueError: wrong shapes, entries that are not finite, no examples, a store of other examples, or a store
                together with Dask, which recovers in its own way.

        A warning is issued if the labels of the first examples are likely class numbers.
        """
        return cls(compressed=gathered(batches, arch, store), **parts)

    def save(self, file: str | Path) -> None:
        """Write the compressed training examples to a new file, a Zarr store in a zip archive.

        Raises:
            FileExistsError: the file exists.
            ValueError: a dataset that is not compressed.
        """
        if self.compressed is None:
            raise BayesattnError(
                "dataset must be compressed to be saved, got a plain one: use Dataset.gather, or numpy.savez"
            )
        self.compressed.save(file)

    @classmethod
    def open(cls, file: str | Path) -> "Dataset":
        """Dataset from a file that `save` wrote, or from a store that `gather` wrote.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is something else.
        """
        return cls(compressed=Compressed.open(file))

    def __add__(self, other: Checked) -> "Dataset":
        if not isinstance(other, Dataset):
            return NotImplemented
        parts = {
            name: mine if (mine := getattr(self, name)) is not None else getattr(other, name)
            for name in ("output_names", *(f"{part}_{kind}" for part in PARTS for kind in ("path_inputs", "labels")))
        }
        return Dataset(compressed=_compressed(self) + _compressed(other), **parts)

    def __radd__(self, other: Checked) -> "Dataset":
        return self if isinstance(other, int) and other == 0 else NotImplemented

    @property
    def path_entries(self) -> int:
        """Number of entries of the path inputs of training and test examples."""
        return self.path_inputs.size + (0 if self.test_path_inputs is None else self.test_path_inputs.size)

    @property
    def examples(self) -> int:
        """P, the number of training examples."""
        return len(self.labels) if self.compressed is None else self.compressed.examples

    def replace(self, **changes: object) -> "Dataset":
        """Copy with some fields changed; raises ValueError as `Dataset` does."""
        changed = copy.copy(self)
        if self.compressed is not None and changes.keys() & {"path_inputs", "labels"} and "compressed" not in changes:
            if "path_inputs" in changes:
                raise BayesattnError(GATHERED.format("path_inputs"))
            labels = labels_array("labels of a compressed dataset", changes.pop("labels"), *self._sizes)
            changes["compressed"] = Compressed.restored(self.path_inputs, labels, self.compressed.residual)
        given_up = self.compressed is not None and changes.get("compressed", self) is None
        if given_up and not {"path_inputs", "labels"} <= changes.keys():
            raise BayesattnError("compressed may be None only where path_inputs and labels are given")
        if changes.get("compressed") is not None:
            changes |= {"path_inputs": None, "labels": None}
        for name, value in changes.items():
            object.__setattr__(changed, name, value)
        # Test examples must have the features of the training examples.
        others = {f"{part}_path_inputs" for part in PARTS} if "path_inputs" in changes else set()
        changed._check(changes.keys() | others)
        return changed

    @property
    def _sizes(self) -> tuple[int, int]:
        """Number of rows in memory, and of outputs."""
        return len(self.labels), 1 if self.labels.ndim == 1 else self.labels.shape[1]

    def _check(self, changed: Set[str]) -> None:
        """Check the changed fields and turn them into arrays; the others were checked before, and may be large."""

        def put(name: str, value: Checked) -> None:
            object.__setattr__(self, name, value)

        own = None if isinstance(self.labels, OneHot) and "output_names" not in changed else self.output_names
        labelled = {name: getattr(self, name) for name in ("labels", *(f"{part}_labels" for part in PARTS))}
        put("output_names", names_of_outputs(own, **labelled))
        if self.compressed is not None and "compressed" in changed:
            if not isinstance(self.compressed, Compressed):
                raise BayesattnError(f"compressed must be made by Dataset.gather, got {type(self.compressed).__name__}")
            for name in ("path_inputs", "labels"):
                if getattr(self, name) is not None:
                    raise BayesattnError(GATHERED.format(name))
                put(name, getattr(self.compressed, name))
        else:
            if "path_inputs" in changed:
                put("path_inputs", _owned_inputs("path_inputs", self.path_inputs, "paths", "features"))
            if changed & {"path_inputs", "labels"}:
                put("labels", _labels("labels", self.labels, len(self.path_inputs)))
        for part in PARTS:
            inputs_name, labels_name = f"{part}_path_inputs", f"{part}_labels"
            inputs, labels = getattr(self, inputs_name), getattr(self, labels_name)
            if inputs is not None and inputs_name in changed:
                put(inputs_name, _owned_inputs(inputs_name, inputs, "paths", self.path_inputs.shape[2]))
            if labels is not None and {inputs_name, labels_name} & changed:
                if inputs is None:
                    raise BayesattnError(f"{labels_name} need {inputs_name}, got None for the latter")
                put(labels_name, _labels(labels_name, labels, len(getattr(self, inputs_name))))
        if self.output_names is not None and "output_names" in changed:
            put("output_names", names("output_names", self.output_names))

    def _described(self) -> tuple[str, dict[str, str]]:
        _, paths, features = self.path_inputs.shape
        rows = {"examples": f"{self.examples:,} of {paths} paths and {features} features"}
        if self.others:
            rows["others"] = ", ".join(self.others)
        if self.compressed is not None:
            rows["compressed"] = f"{len(self.path_inputs)} rows, {self.compressed.triangle.nbytes / 2**20:.3g} MiB"
        return "Dataset", rows

    @property
    def others(self) -> list[str]:
        """Texts with the numbers of test and validation examples, such as "1000 to test"."""
        uses = {"to test": self.test_path_inputs, "to validate": self.validation_path_inputs}
        return [f"{len(inputs)} {use}" for use, inputs in uses.items() if inputs is not None]


def _compressed(dataset: Dataset) -> Compressed:
    """Compressed form of the training examples of a dataset."""
    if dataset.compressed is not None:
        return dataset.compressed
    return Compressed.of(dataset.path_inputs, dataset.labels)


def _owned_inputs(name: str, value: Checked, *sizes: int | str) -> np.ndarray:
    array = reals(name, value)
    if array.ndim != len(sizes) + 1:
        raise BayesattnError(f"{name} must have shape (examples, paths, features), got {array.shape}{FROM_TOKENS}")
    array = finite_array(name, array, ("examples", *sizes))
    require_memory(name, array.nbytes, "gather the examples (bayesattn.Dataset.gather)")
    return owned(array)


def _labels(name: str, value: Checked, examples: int) -> np.ndarray:
    labels = reals(name, value)
    outputs = labels.shape[1] if labels.ndim == 2 and len(labels) == examples else 1
    return owned(labels_array(name, labels, examples, outputs))
