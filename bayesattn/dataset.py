"""Datasets of networks: path inputs, plain or compressed, or token sequences, with labels and test examples."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from bayesattn import fixed_attention
from bayesattn._util.checks import Checked, OwnsArrays, finite_array, labels_array, owned, reals, require_memory
from bayesattn._util.text import Described
from bayesattn._util.types import Batches
from bayesattn.architecture import Architecture
from bayesattn.classes import OneHot, names_of_outputs
from bayesattn.compressed import Compressed
from bayesattn.errors import BayesattnError
from bayesattn.gather import gather as gathered

PARTS = ("test", "validation")
FROM_TOKENS = ": bayesattn.attention.path_inputs and paths_from_matrices make path inputs of token sequences"
GATHERED = "{} must not be given for a compressed dataset, whose training examples are gathered"


class Examples(OwnsArrays, Described):
    """Base class of datasets."""

    labelled: ClassVar[tuple[str, ...]]
    """Names of the arrays of labels."""
    required: ClassVar[tuple[str, ...]]
    """Names of what every dataset has that is not compressed."""
    labels: Any
    test_labels: Any
    output_names: Any
    compressed: Any = None

    @classmethod
    def names(cls) -> list[str]:
        """Names of the fields."""
        return [each.name for each in dataclasses.fields(cls)]  # pyright: ignore[reportArgumentType]

    def replace(self, **changes: Any) -> Self:
        """Copy with some fields changed; raises ValueError as the class does."""
        if isinstance(labels := changes.get("labels"), OneHot):
            kept = [name for name in self.labelled[1:] if name not in changes and getattr(self, name) is not None]
            if kept and "output_names" not in changes and self.output_names not in (None, labels.names):
                raise BayesattnError(
                    f"labels must be of classes {', '.join(self.output_names)}, as {kept[0]} are, got"
                    f" {', '.join(labels.names)}: give {kept[0]} too"
                )
            changes.setdefault("output_names", None)
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType]

    def has_labels_of(self, other: "Examples") -> bool:
        """Whether training and test labels are those of another dataset, of which this one is a changed copy."""
        same = self.labels is other.labels if self.compressed is None else self.compressed is other.compressed
        return same and self.test_labels is other.test_labels


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Dataset(Examples):
    """Path inputs and labels of training, test and validation examples.

    Args:
        path_inputs: xi of shape (P, Pi, N_0), from `bayesattn.attention`.
        labels: Y of shape (P,), or (P, m) for m > 1 outputs. Accuracy requires labels +1 and -1 or, with several
            outputs, rows whose largest entry is at the class, such as the result of `bayesattn.one_hot`.
        test_path_inputs: xi of shape (P_test, Pi, N_0) at which to predict.
        test_labels: shape (P_test,), or (P_test, m).
        validation_path_inputs: xi of shape (P_validation, Pi, N_0), for the choice of the temperature.
        validation_labels: shape (P_validation,), or (P_validation, m).
        output_names: names of several outputs, such as classes (`bayesattn.one_hot`), or of the classes -1 and +1 of one.
        compressed: any number of training examples, in place of path_inputs and labels; made by `gather`.

    Raises:
        ValueError: shapes that do not fit, entries that are not finite real numbers.

    Arrays are copied, and the arrays of a dataset are read-only. `a + b` has the compressed training examples of both,
    and `sum` adds many; the other fields come from the first dataset that has them.
    """

    labelled: ClassVar[tuple[str, ...]] = ("labels", "test_labels", "validation_labels")
    required: ClassVar[tuple[str, ...]] = ("path_inputs", "labels")

    path_inputs: Any = None
    labels: Any = None
    test_path_inputs: Any = None
    test_labels: Any = None
    validation_path_inputs: Any = None
    validation_labels: Any = None
    output_names: Sequence[str] | None = None
    compressed: Compressed | None = None

    def __post_init__(self):
        put = partial(object.__setattr__, self)
        if self.output_names is None and isinstance(self.compressed, Compressed):
            put("output_names", self.compressed.output_names)
        put(
            "output_names", names_of_outputs(self.output_names, **{name: getattr(self, name) for name in self.labelled})
        )
        if self.compressed is None:
            put("path_inputs", _owned_inputs("path_inputs", self.path_inputs, "paths", "features"))
            put("labels", _labels("labels", self.labels, len(self.path_inputs)))
        else:
            if not isinstance(self.compressed, Compressed):
                raise BayesattnError(f"compressed must be made by Dataset.gather, got {type(self.compressed).__name__}")
            for name in ("path_inputs", "labels"):
                if getattr(self, name) is not None:
                    raise BayesattnError(GATHERED.format(name))
                put(name, owned(getattr(self.compressed, name)))
        for part in PARTS:
            inputs_name, labels_name = f"{part}_path_inputs", f"{part}_labels"
            inputs, labels = getattr(self, inputs_name), getattr(self, labels_name)
            if inputs is not None:
                put(inputs_name, _owned_inputs(inputs_name, inputs, "paths", self.features))
            if labels is not None:
                if inputs is None:
                    raise BayesattnError(f"{labels_name} need {inputs_name}, got None for the latter")
                put(labels_name, _labels(labels_name, labels, len(inputs)))

    @classmethod
    def gather(
        cls, batches: Batches, arch: Architecture, *, store: str | Path | None = None, **parts: Any
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
        dataclasses.replace(self.compressed, output_names=self.output_names).save(file)

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
        names = [each.output_names for each in (self, other) if each.output_names is not None]
        if len({*names}) > 1:
            raise BayesattnError(f"datasets to be added must have the same classes, got {names[0]} and {names[1]}")
        parts: dict[str, Any] = {"output_names": names[0] if names else None}
        for part in PARTS:  # Inputs and labels of one of the two.
            of = self if getattr(self, f"{part}_path_inputs") is not None else other
            parts |= {name: getattr(of, name) for name in (f"{part}_path_inputs", f"{part}_labels")}
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

    @property
    def test_examples(self) -> int:
        """Number of test examples."""
        return 0 if self.test_path_inputs is None else len(self.test_path_inputs)

    @property
    def features(self) -> int:
        """N_0, the number of features of a path input."""
        return self.path_inputs.shape[2]

    @property
    def distinct_inputs(self) -> np.ndarray:
        """Arrays that tell training examples apart."""
        return self.path_inputs

    def replace(self, **changes: Any) -> "Dataset":
        """Copy with some fields changed; raises ValueError as `Dataset` does."""
        if self.compressed is not None and "labels" in changes and not {"compressed", "path_inputs"} & changes.keys():
            outputs = 1 if self.labels.ndim == 1 else self.labels.shape[1]
            name = "labels of a compressed dataset"
            labels = labels_array(name, changes.pop("labels"), len(self.labels), outputs)
            changes["compressed"] = Compressed.restored(self.path_inputs, labels, self.compressed.residual)
        if self.compressed is not None or changes.get("compressed") is not None:
            if changes.get("compressed", self) is None and not {"path_inputs", "labels"} <= changes.keys():
                raise BayesattnError("compressed may be None only where path_inputs and labels are given")
            changes = {"path_inputs": None, "labels": None} | changes
        return super().replace(**changes)

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


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class SequenceDataset(Examples):
    """Token sequences and labels of training and test examples.

    Args:
        inputs: training sequences, shape (P, T, N_0).
        labels: Y of shape (P,), or (P, m) for m > 1 outputs.
        mask: shape (P, T), True for tokens and False for padding.
        test_inputs: sequences at which to predict, shape (P_test, T_test, N_0).
        test_mask: their mask.
        test_labels: their labels.
        output_names: names of several outputs, or of the classes -1 and +1 of one.

    Raises:
        ValueError: shapes that do not fit, entries that are not finite, a sequence of padding alone.
    """

    labelled: ClassVar[tuple[str, ...]] = ("labels", "test_labels")
    required: ClassVar[tuple[str, ...]] = ("inputs", "labels")

    inputs: Any
    labels: Any
    mask: Any = None
    test_inputs: Any = None
    test_mask: Any = None
    test_labels: Any = None
    output_names: Sequence[str] | None = None

    def __post_init__(self):
        put = partial(object.__setattr__, self)
        put(
            "output_names", names_of_outputs(self.output_names, **{name: getattr(self, name) for name in self.labelled})
        )
        for part in ("", "test_"):
            inputs, mask, labels = (getattr(self, f"{part}{name}") for name in ("inputs", "mask", "labels"))
            if part and inputs is None:
                for name, value in (("test_mask", mask), ("test_labels", labels)):
                    if value is not None:
                        raise BayesattnError(f"{name} need test_inputs, got None for the latter")
                continue
            shape = ("test_examples", "test_tokens", self.features) if part else ("examples", "tokens", "features")
            inputs, mask = fixed_attention.checked_tokens(f"{part}inputs", inputs, mask, shape)
            put(f"{part}inputs", owned(inputs))
            put(f"{part}mask", None if mask is None else owned(mask))
            if labels is not None or not part:
                put(f"{part}labels", _labels(f"{part}labels", labels, len(inputs)))

    @property
    def examples(self) -> int:
        """P, the number of training examples."""
        return len(self.labels)

    @property
    def test_examples(self) -> int:
        """Number of test examples."""
        return 0 if self.test_inputs is None else len(self.test_inputs)

    @property
    def features(self) -> int:
        """N_0, the number of features of a token."""
        return self.inputs.shape[2]

    @property
    def distinct_inputs(self) -> np.ndarray:
        """Arrays that tell training examples apart: tokens, and whether they are padding."""
        return self.inputs if self.mask is None else np.concatenate([self.inputs, self.mask[..., None]], axis=2)

    def _described(self) -> tuple[str, dict[str, str]]:
        examples, tokens, features = self.inputs.shape
        rows = {"examples": f"{examples:,} of {tokens} tokens and {features} features"}
        return "SequenceDataset", rows | ({"others": f"{self.test_examples} to test"} if self.test_examples else {})


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
