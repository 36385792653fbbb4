"""Scores of class predictions: accuracy, also of each class, log score and calibration."""

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from bayesattn._util.checks import finite_array, labels_array
from bayesattn._util.plain_values import PlainDict
from bayesattn._util.text import as_html, as_text, cell, with_error
from bayesattn.checks.accuracy import binomial_error
from bayesattn.classes import checked_classes, shortened
from bayesattn.errors import BayesattnError

CONFIDENCE_BINS = 10
"""Number of equally wide bins of confidence in the calibration error."""
NO_PROBABILITIES = "of probabilities of classes, which a model with likelihood=bayesattn.Categorical(T) has"


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
        examples: number of examples of each class.
        names: names of the classes, in the same order.
    """

    accuracy: float
    accuracy_error: float
    by_class: Float[np.ndarray, " class_of_labels"]
    log_score: float
    log_score_error: float
    calibration_error: float
    calibration_by_chance: float
    bins: Float[np.ndarray, "3 bin"]
    examples: Float[np.ndarray, " class_of_labels"]
    names: tuple[str, ...]

    __repr__ = as_text  # pyright: ignore[reportAssignmentType]
    _repr_html_ = as_html

    def _described(self) -> tuple[str, dict[str, str]]:
        calibration = f"error {self.calibration_error:.2g}, of which chance explains {self.calibration_by_chance:.2g}"
        rows = _accuracy_rows(self) | {
            "log score": f"{with_error(self.log_score, self.log_score_error)} nats",
            "calibration": calibration,
        }
        return f"ClassScores of {self.examples.sum():.0f} examples", rows


class ClassAccuracy(NamedTuple):
    """Accuracy of the class with the largest output, for models without class probabilities.

    Args:
        accuracy: share of examples whose largest output is that of the right class, and its standard error.
        by_class: accuracy on the examples of each class; NaN for a class without examples.
        examples: number of examples of each class.
        names: names of the classes, in the same order.
    """

    accuracy: float
    accuracy_error: float
    by_class: Float[np.ndarray, " class_of_labels"]
    examples: Float[np.ndarray, " class_of_labels"]
    names: tuple[str, ...]

    __repr__ = as_text  # pyright: ignore[reportAssignmentType]
    _repr_html_ = as_html

    def __getattr__(self, name: str) -> NoReturn:
        if name in ClassScores._fields:
            raise AttributeError(f"{name} is {NO_PROBABILITIES}")
        raise AttributeError(f"ClassAccuracy has no {name}")

    def _described(self) -> tuple[str, dict[str, str]]:
        rows = _accuracy_rows(self)
        return f"ClassAccuracy of {self.examples.sum():.0f} examples", rows | {
            "others": f"log score and calibration are {NO_PROBABILITIES}"
        }


def _accuracy_rows(scores: ClassScores | ClassAccuracy) -> dict[str, str]:
    each = zip(scores.names, scores.by_class, scores.examples, strict=True)
    return {
        "accuracy": f"{with_error(100 * scores.accuracy, 100 * scores.accuracy_error)} %, ± by the number of examples",
        "by class": shortened([f"{name} {cell(100 * share, '.0f')} % of {count:.0f}" for name, share, count in each]),
    }


def class_scores(probabilities: ArrayLike, labels: ArrayLike, names: Sequence[str] | None = None) -> ClassScores:
    """Scores of class probabilities.

    Args:
        probabilities: probability of each class, shape (P, m), or of +1, shape (P,).
        labels: 1 at the class of each example and 0 elsewhere, shape (P, m), or +1 and -1, shape (P,).
        names: names of the m classes; by default "class 1" and so on; of -1 and +1, by default just these.

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
        names = ("-1", "+1") if names is None or len(names) == 1 else names
    if np.min(checked) < 0 or np.max(np.abs(checked.sum(1) - 1)) > 1e-6:
        raise BayesattnError(
            f"probabilities must be at least 0 and add up to 1, got {np.min(checked):.3g} to {np.max(checked):.3g},"
            f" sums {np.min(checked.sum(1)):.3g} to {np.max(checked.sum(1)):.3g}"
        )
    right, accuracy = _accuracy(checked, of_labels, names)
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
    # The mean of |x| is sqrt(2 / pi) times the standard deviation, for a normal x of mean 0; of few errors at most twice
    # their expected number.
    variance = np.bincount(place, confidence * (1 - confidence), CONFIDENCE_BINS)
    chance = np.minimum(np.sqrt(2 / np.pi * variance), 2 * variance)
    return {
        "calibration_error": float(np.nansum(np.abs(confident - accuracy) * sizes) / len(right)),
        "calibration_by_chance": float(chance.sum() / len(right)),
        "bins": np.array([confident, accuracy, sizes]),
    }


def class_accuracy(outputs: ArrayLike, labels: ArrayLike, names: Sequence[str] | None = None) -> ClassAccuracy:
    """Accuracy of the class with the largest output.

    Args:
        outputs: outputs of each example, shape (P, m).
        labels: 1 at the class of each example and 0 elsewhere, shape (P, m).
        names: names of the m classes; by default "class 1" and so on.

    Raises:
        ValueError: other shapes, labels that are not classes.
    """
    checked = finite_array("outputs", outputs, ("examples", "outputs"))
    return _accuracy(checked, checked_classes("labels", labels_array("labels", labels, *checked.shape)), names)[1]


def _accuracy(
    scores: np.ndarray, of_labels: np.ndarray, names: Sequence[str] | None
) -> tuple[np.ndarray, ClassAccuracy]:
    """Whether the largest score of each example is that of its class, 1/k where k are equal, and the accuracy."""
    greatest = scores == scores.max(1, keepdims=True)
    right = (greatest & (of_labels > 0)).sum(1) / greatest.sum(1)
    with np.errstate(invalid="ignore"):
        by_class = (of_labels * right[:, None]).sum(0) / (examples := of_labels.sum(0, dtype=float))
    named = tuple(f"class {number + 1}" for number in range(len(examples))) if names is None else tuple(names)
    if len(named) != len(examples):
        raise BayesattnError(f"names must be those of {len(examples)} classes, got {len(named)}")
    share = float(right.mean())
    return right, ClassAccuracy(share, binomial_error(share, len(right)), by_class, examples, named)
