"""Class labels, and the accuracy and scores of class predictions."""

import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple, NoReturn

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from bayesattn._util.checks import Checked, finite_array, labels_array, readable, shown
from bayesattn._util.checks import names as checked_names
from bayesattn._util.plain_values import PlainDict
from bayesattn._util.text import as_html, as_text, with_error
from bayesattn._util.types import Classes
from bayesattn.errors import BayesattnError

CONFIDENCE_BINS = 10
"""Number of equally wide bins of confidence in the calibration error."""
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
        each = _shortened([f"{name} ({count:.0f})" for name, count in zip(self.names, counts, strict=True)])
        return f"OneHot: labels of {len(self.labels)} examples in {len(self.names)} classes", {"classes": each}


class ClassScores(NamedTuple):
    """Scores of class probabilities on labels of (test) examples.

    Args:
        accuracy: share of examples whose likeliest class is right, and its standard error.
        by_class: accuracy on the examples of each class, with -1 first if there is one output; NaN for a class
            without examples.
        log_score: mean log probability of the right class, in nats, and its standard error.
        calibration_error: mean distance between accuracy and confidence (the probability of the likeliest class), over
            bins of confidence (Guo et al. 2017).
        calibration_by_chance: calibration error that correct probabilities would have by chance on as many examples.
        bins: mean confidence, accuracy and number of examples of each bin, shape (3, bin); NaN for an empty bin.
    """

    accuracy: float
    accuracy_error: float
    by_class: Float[np.ndarray, " class_of_labels"]
    log_score: float
    log_score_error: float
    calibration_error: float
    calibration_by_chance: float
    bins: Float[np.ndarray, "3 bin"]

    __repr__ = as_text  # pyright: ignore[reportAssignmentType]
    _repr_html_ = as_html

    def _described(self) -> tuple[str, dict[str, str]]:
        calibration = f"error {self.calibration_error:.2g}, of which chance explains {self.calibration_by_chance:.2g}"
        rows = _accuracy_rows(self) | {
            "log score": f"{with_error(self.log_score, self.log_score_error)} nats",
            "calibration": calibration,
        }
        return f"ClassScores of {self.bins[2].sum():.0f} examples", rows


class ClassAccuracy(NamedTuple):
    """Accuracy of the class with the largest output, for models without class probabilities.

    Args:
        accuracy: share of examples whose largest output is that of the right class, and its standard error.
        by_class: accuracy on the examples of each class; NaN for a class without examples.
    """

    accuracy: float
    accuracy_error: float
    by_class: Float[np.ndarray, " class_of_labels"]

    __repr__ = as_text  # pyright: ignore[reportAssignmentType]
    _repr_html_ = as_html

    def __getattr__(self, name: str) -> NoReturn:
        of_scores = name in ClassScores._fields
        raise AttributeError(f"{name} is {NO_PROBABILITIES}" if of_scores else f"ClassAccuracy has no {name}")

    def _described(self) -> tuple[str, dict[str, str]]:
        return "ClassAccuracy", _accuracy_rows(self) | {"others": f"log score and calibration are {NO_PROBABILITIES}"}


NO_PROBABILITIES = "of probabilities of classes, which a model with likelihood=bayesattn.Categorical(T) has"


def _accuracy_rows(scores: ClassScores | ClassAccuracy) -> dict[str, str]:
    return {
        "accuracy": f"{with_error(100 * scores.accuracy, 100 * scores.accuracy_error)} %",
        "by class": _shortened([f"{100 * share:.0f} %" for share in scores.by_class]),
    }


def _shortened(texts: Sequence[str]) -> str:
    return ", ".join(texts[:CLASSES_SHOWN]) + (", .." if len(texts) > CLASSES_SHOWN else "")


def class_scores(probabilities: ArrayLike, labels: ArrayLike) -> ClassScores:
    """Scores of class probabilities.

    Args:
        probabilities: probability of each class, shape (P, m), or of +1, shape (P,).
        labels: 1 at the class of each example and 0 elsewhere, shape (P, m), or +1 and -1, shape (P,).

    Raises:
        ValueError: other shapes, probabilities below 0 or that do not add up to 1, labels that are not classes.
    """
    checked = finite_array("probabilities", probabilities, np.shape(probabilities))
    if checked.ndim not in (1, 2) or not len(checked):
        raise BayesattnError(f"probabilities must have shape (P,) or (P, m), got {checked.shape}")
    outputs = 1 if checked.ndim == 1 else checked.shape[1]
    of_labels = checked_classes("labels", labels_array("labels", labels, len(checked), outputs))
    if checked.ndim == 1:
        checked, of_labels = np.column_stack([1 - checked, checked]), np.column_stack([of_labels < 0, of_labels > 0])
    if np.min(checked) < 0 or np.max(np.abs(checked.sum(1) - 1)) > 1e-6:
        raise BayesattnError(
            f"probabilities must be at least 0 and add up to 1, got {np.min(checked):.3g} to {np.max(checked):.3g},"
            f" sums {np.min(checked.sum(1)):.3g} to {np.max(checked.sum(1)):.3g}"
        )
    right, accuracy = _accuracy(checked, of_labels)
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.log(np.sum(checked * of_labels, axis=1))
        spread = logs.std(ddof=1) if len(logs) > 1 else float("nan")
    return ClassScores(
        **accuracy._asdict(),
        log_score=float(logs.mean()),
        log_score_error=float(spread / np.sqrt(len(logs))),
        **_calibration(checked.max(1), right),
    )


def _calibration(confidence: Float[np.ndarray, " example"], right: np.ndarray) -> PlainDict:
    """Fields of `ClassScores` about calibration, from the confidence in each class and whether the class is right."""
    place = np.minimum((confidence * CONFIDENCE_BINS).astype(int), CONFIDENCE_BINS - 1)
    sizes = np.bincount(place, minlength=CONFIDENCE_BINS)
    with np.errstate(invalid="ignore"):
        confident, accuracy = (np.bincount(place, values, CONFIDENCE_BINS) / sizes for values in (confidence, right))
    # The mean of |x| is sqrt(2 / pi) times the standard deviation, for a normal x of mean 0.
    chance = np.sqrt(2 / np.pi * np.bincount(place, confidence * (1 - confidence), CONFIDENCE_BINS))
    return {
        "calibration_error": float(np.nansum(np.abs(confident - accuracy) * sizes) / len(right)),
        "calibration_by_chance": float(chance.sum() / len(right)),
        "bins": np.array([confident, accuracy, sizes]),
    }


def class_accuracy(outputs: ArrayLike, labels: ArrayLike) -> ClassAccuracy:
    """Accuracy of the class with the largest output.

    Args:
        outputs: outputs of each example, shape (P, m).
        labels: 1 at the class of each example and 0 elsewhere, shape (P, m).

    Raises:
        ValueError: other shapes, labels that are not classes.
    """
    checked = finite_array("outputs", outputs, ("examples", "outputs"))
    return _accuracy(checked, checked_classes("labels", labels_array("labels", labels, *checked.shape)))[1]


def _accuracy(scores: np.ndarray, of_labels: np.ndarray) -> tuple[np.ndarray, ClassAccuracy]:
    """Whether the largest score of each example is that of its class, and the accuracy."""
    right = of_labels[np.arange(len(scores)), scores.argmax(1)] > 0
    with np.errstate(invalid="ignore"):
        by_class = (of_labels * right[:, None]).sum(0) / of_labels.sum(0)
    error = np.sqrt(right.mean() * (1 - right.mean()) / len(right))
    return right, ClassAccuracy(float(right.mean()), float(error), by_class)


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
        Labels for `bayesattn.Model(labels=..)`, and names for its `output_names`. Given whole as labels, it is both.

    Raises:
        ValueError: fewer than two classes, another shape or type, a missing class, a class that is not among `names`.
    """
    given: Any = classes
    if hasattr(given, "iloc") and np.shape(given)[1:] == (1,):
        given = given.iloc[:, 0]  # Converted to an array, a table's column would lose its categories.
    categorical = getattr(given, "cat", given)
    if names is None and hasattr(categorical, "codes") and hasattr(categorical, "categories"):
        known, codes = list(map(str, categorical.categories)), np.asarray(categorical.codes)
        if np.any(codes < 0):
            raise BayesattnError(f"classes[{np.argmax(codes < 0)}] must be one of {shown(known)}, got a missing value")
    else:
        plain = _plain_classes("classes", given)
        known = sorted(set(plain)) if names is None else _plain_classes("names", names)
        codes = _places(plain, known)
    distinct = set(map(str, known))
    if len(distinct) != len(known) or len(known) < 2:
        raise BayesattnError(f"names must be of two or more classes, all different, got {shown(known)}")
    return OneHot(np.eye(len(known))[codes], checked_names("names", list(map(str, known))))


def _places(classes: Sequence[str | int], known: Sequence[str | int]) -> np.ndarray:
    """Place of each class among the known ones; raises ValueError for a class that is not known."""
    places = {name: place for place, name in enumerate(known)}
    for example, value in enumerate(classes):
        if value not in places:
            raise BayesattnError(f"classes[{example}] must be one of {shown(known)}, got {shown(value)}")
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
    """Text of a warning if labels (P,) are valid but likely classes rather than values of a function; otherwise empty.

    Likely classes are two values without opposite signs, or 3 to 20 different whole numbers from 0 to 100 that do not
    all occur just once.
    """
    values = np.unique(labels)
    if len(values) == 2 and values[0] * values[1] >= 0:
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


def _plain_classes(name: str, classes: Checked) -> list[str] | list[int]:
    """Classes as Python strings, truth values or whole numbers; raises ValueError for other or mixed types."""
    expected = f"{name} must be whole numbers or strings" + (", one for each example" if name == "classes" else "")
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
