"""Class labels."""

import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from bayesattn._util.checks import Checked, finite, readable, shown
from bayesattn._util.checks import names as checked_names
from bayesattn._util.text import as_html, as_text
from bayesattn._util.types import Classes
from bayesattn.errors import BayesattnError

CLASSES_SHOWN = 8
"""Largest number of classes that results show."""
MOST_CLASSES, LARGEST_CLASS_NUMBER = 20, 100
"""Limits within which whole numbers from 0 are likely class numbers: number of distinct values, and largest value."""


class OneHot(NamedTuple):
    """Labels (P, m), 1 at the class of each example and 0 elsewhere, and the names of the m classes."""

    labels: Float[np.ndarray, "example output"]
    names: tuple[str, ...]

    __repr__ = as_text  # pyright: ignore[reportAssignmentType]
    _repr_html_ = as_html

    def _described(self) -> tuple[str, dict[str, str]]:
        counts = self.labels.sum(0)
        each = shortened([f"{name} ({count:.0f})" for name, count in zip(self.names, counts, strict=True)])
        return f"OneHot: labels of {len(self.labels)} examples in {len(self.names)} classes", {"classes": each}


def shortened(texts: Sequence[str]) -> str:
    """Texts of the first few classes, separated by commas."""
    return ", ".join(texts[:CLASSES_SHOWN]) + (", .." if len(texts) > CLASSES_SHOWN else "")


def checked_classes(name: str, labels: np.ndarray) -> np.ndarray:
    """`labels` itself; raises ValueError unless the labels are classes."""
    if labels.ndim == 1 and not np.all(np.abs(labels) == 1):
        odd = labels[np.argmax(np.abs(labels) != 1)]
        raise BayesattnError(
            f"{name} must be +1 or -1 to be classes, got {odd:g}; bayesattn.one_hot makes labels of more than two classes"
        )
    if labels.ndim == 2 and not np.all(((labels == 0) | (labels == 1)).all(1) & (labels.sum(1) == 1)):
        raise BayesattnError(
            f"{name} must be 1 at the class of each example and 0 elsewhere to be classes, as made by"
            " bayesattn.one_hot, got other values"
        )
    return labels


def one_hot(classes: Classes, names: Classes | None = None) -> OneHot:
    """One-hot labels of classes, for a network with one output per class; the largest output decides the class.

    >>> one_hot(["cat", "dog", "cat"]).labels.tolist()
    [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]

    Args:
        classes: class of each example, as whole numbers, truth values or strings, shape (P,) or (P, 1): a list, an
            array, or a column of a table.
        names: all classes in the order of the outputs; by default the categories of a categorical column, in their
            order, or the classes that occur, sorted. Pass them if some classes do not occur among these examples, as
            with test examples.

    Returns:
        Labels for `bayesattn.Model(labels=..)`, and names for its `output_names`. As `labels`, the whole result sets both.

    Raises:
        ValueError: fewer than two classes, another shape or type, a missing class, a class that is not among `names`.
    """
    return _one_hot("classes", classes, names)


def _one_hot(name: str, classes: Any, names: Classes | None = None) -> OneHot:
    """`one_hot` of an argument of some name."""
    given = classes
    if hasattr(given, "iloc") and np.shape(given)[1:] == (1,):
        given = given.iloc[:, 0]  # Converted to an array, a table's column would lose its categories.
    categorical = getattr(given, "cat", given)
    if names is None and hasattr(categorical, "codes") and hasattr(categorical, "categories"):
        known, codes = list(map(str, categorical.categories)), np.asarray(categorical.codes)
        if np.any(codes < 0):
            raise BayesattnError(f"{name}[{np.argmax(codes < 0)}] must be one of {shown(known)}, got a missing value")
    else:
        plain = _plain_classes(name, given)
        known = sorted(set(plain)) if names is None else _plain_classes("names", names)
        codes = _places(name, plain, known)
    distinct = set(map(str, known))
    if len(distinct) != len(known) or len(known) < 2:
        source = name if names is None else "names"
        advice = "; give names= if there are more" if source == "classes" else ""
        raise BayesattnError(f"{source} must be of two or more classes, all different, got {shown(known)}{advice}")
    return OneHot(np.eye(len(known))[codes], checked_names("names", list(map(str, known))))


def labels_of(name: str, answers: Checked, counts: bool = False) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Labels of answers that are numbers or classes, and the names of the classes.

    Strings, truth values and categories are classes, and so are whole numbers of few different values, unless `counts`. Of
    two classes, in sorted order, the first is -1 and the second +1, for a network with one output; more are one-hot. Numbers
    -1 and +1, other numbers, and arrays of several columns stay as they are, with None for names.
    """
    if isinstance(answers, OneHot):
        return answers.labels, answers.names
    array = np.asarray(readable(answers))
    array = array[:, 0] if array.shape[1:] == (1,) else array
    if array.dtype.kind == "O" and all(isinstance(each, Real) and not isinstance(each, bool) for each in array.flat):
        array = np.array(array.tolist())
    kind = array.dtype.kind
    if kind == "f" or (kind in "iu" and (array.ndim != 1 or counts or not _are_few(array))):
        return finite(name, array.astype(float)), None  # The model warns of numbers that look like classes.
    found = _one_hot(name, answers)
    if len(found.names) == 2:
        return found.labels[:, 1] - found.labels[:, 0], found.names
    return found.labels, found.names


def _are_few(labels: np.ndarray) -> bool:
    """Whether whole numbers are likely classes: 2 to 20 different values, each twice on average, other than -1 and +1.

    From 0 to 100 it is enough if one occurs twice, as for `doubtful_labels`.
    """
    values = np.unique(labels)
    few = 2 <= len(values) <= min(MOST_CLASSES, len(labels) // 2) and not {*values.tolist()} <= {-1, 1}
    return few or bool(doubtful_labels("labels", labels))


def coded(name: str, labels: Any, names: Sequence[str] | None, outputs: int) -> Any:
    """Labels as a network with some outputs has them, of the names of their classes; other labels as they are.

    Raises ValueError for a class that is not among the names, and for floats that are all 1 if 1 is the name of the first
    of two classes, whose label is -1.
    """
    if names is None or len(names) != max(2, outputs):
        return labels
    if isinstance(labels, OneHot):
        labels = np.array(labels.names)[labels.labels.argmax(1)]
    content = readable(labels)
    array = np.asarray(content if hasattr(content, "shape") else np.array(content, object))
    if array.shape[1:] not in ((), (1,)) or not array.ndim:
        return labels
    plain = [_plain_class(each) for each in array.ravel()]
    # Floats -1 and +1 are the labels of a model of one output, also if 1 is the name of a class.
    as_in_models = outputs == 1 and all(isinstance(each, float | np.floating) for each in array.ravel().tolist())
    numbers = not any(isinstance(each, str | bool) for each in plain)
    if as_in_models and {*plain} == {1} and names[0] == "1":
        raise BayesattnError(
            f"{name} must be names of classes, '1' and {names[1]!r}, or labels -1 and +1, got floats that are all 1, which"
            " may be either: give strings or whole numbers"
        )
    if numbers and ((as_in_models and {*plain} <= {-1, 1}) or not {*map(str, plain)} <= {*names}):
        return labels
    codes = _places(name, [str(each) for each in _plain_classes(name, labels)], names)
    return 2.0 * codes - 1 if outputs == 1 else np.eye(outputs)[codes]


def _places(name: str, classes: Sequence[str | int], known: Sequence[str | int]) -> np.ndarray:
    """Place of each class among the known ones; raises ValueError for a class that is not known."""
    places = {name: place for place, name in enumerate(known)}
    for example, value in enumerate(classes):
        if value not in places:
            raise BayesattnError(f"{name}[{example}] must be one of {shown(known)}, got {shown(value)}")
    return np.array([places[value] for value in classes], int)


def names_of_outputs(output_names: Checked, **labels: Checked) -> tuple[str, ...] | None:
    """`output_names`, or if they are None those of labels that `one_hot` made; raises ValueError if the latter differ."""
    checked = None if output_names is None else checked_names("output_names", output_names)
    for name, value in labels.items():
        if isinstance(value, OneHot):
            checked = value.names if checked is None else checked
            if checked != value.names:
                raise BayesattnError(
                    f"{name} must be of classes {', '.join(checked)}, got {', '.join(value.names)}: give one_hot the"
                    " names of all classes"
                )
    return checked


def doubtful_labels(name: str, labels: np.ndarray) -> str:
    """Text of a warning if labels (P,) are valid but likely classes rather than values of a function; else empty.

    Likely classes are two values without opposite signs, of more than two examples, or 3 to 20 different whole numbers from
    0 to 100 that do not all occur just once.
    """
    values = np.unique(labels)
    if len(values) == 2 < len(labels) and values[0] * values[1] >= 0:
        return (
            f"{name} are {values[0]:g} and {values[1]:g}: the prior expects them around 0, and accuracy reads their sign;"
            " use -1 and +1"
        )
    few = 3 <= len(values) <= min(MOST_CLASSES, len(labels) - 1)
    if not few or np.any((values < 0) | (values > LARGEST_CLASS_NUMBER) | (values != np.round(values))):
        return ""
    return (
        f"{name} are {', '.join(f'{value:g}' for value in values[:3])}{', ..' if len(values) > 3 else ''} and are taken as"
        f" values of a function; if they are class numbers, use bayesattn.one_hot(labels) and an architecture with outputs ="
        f" {len(values)}"
    )


def many_classes(name: str, labels: np.ndarray) -> str:
    """Text of a warning if labels (P,) may be classes that are too many to be taken for such by themselves; else empty.

    These are more than 20 different whole numbers in a row, from 0 or 1, that occur three times each on average.
    """
    values = np.unique(labels)
    many, in_a_row = len(values), np.array_equal(values, values[:1] + np.arange(len(values)))
    if not (MOST_CLASSES < many <= len(labels) / 3 and in_a_row and values[0] in (0, 1)):
        return ""
    return (
        f"{name} are {many} whole numbers in a row and are taken as values of a function; if they are class numbers, use"
        f" bayesattn.one_hot({name}) and an architecture with outputs = {many}"
    )


def _plain_classes(name: str, classes: Checked) -> list[str] | list[int]:
    """Classes as Python strings, truth values or whole numbers; raises ValueError for other or mixed types."""
    expected = f"{name} must be whole numbers or strings" + (", one for each example" if name != "names" else "")
    content = readable(classes)
    if isinstance(content, str | bytes | Mapping | Set) or not isinstance(content, Iterable):
        raise BayesattnError(f"{expected}, got {shown(classes)}")
    dtype = getattr(content, "dtype", np.dtype(object))
    # Objects, because NumPy would turn numbers beside strings into strings.
    array = np.asarray(content, dtype=object)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or getattr(dtype, "kind", "O") in "mM":  # Dates would become numbers.
        raise BayesattnError(f"{expected}, got {dtype} of shape {array.shape}")
    plain: list[Any] = [_plain_class(value) for value in array]
    for place, value in enumerate(plain):
        if value is None:
            raise BayesattnError(f"{expected}, got {shown(array[place])} at {name}[{place}]")
        if type(value) is not type(plain[0]):
            raise BayesattnError(f"{expected}, and not both, got {shown(plain[0])} and {shown(value)}")
    return plain


def _plain_class(value: Checked) -> str | int | None:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, float | np.floating):
        return int(value) if float(value).is_integer() else None
    try:
        return operator.index(value)
    except TypeError:
        return None
