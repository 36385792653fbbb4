"""Classes as labels of a network with an output for each of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from bayesattn._checks import finite_array, shown
from bayesattn._checks import names as checked_names


class OneHot(NamedTuple):
    """Labels (P, m), 1 at the class of each example and 0 elsewhere, and the names of the m classes."""

    labels: Float[np.ndarray, "example output"]
    names: tuple[str, ...]


BINS = 10
"""Of confidence, equally wide, over which calibration is looked at."""


class ClassScores(NamedTuple):
    """How well probabilities of classes do on labels of (test) examples.

    Args:
        accuracy: share of examples whose likeliest class is right, and its standard error.
        by_class: the same of the examples of each class; of one output -1 first. NaN of a class without examples.
        log_score: mean log probability of the right class, in nats, and its standard error.
        calibration_error: mean distance of confidence, the likeliest class's probability, from the share that is right, over
            bins of confidence (Guo et al. 2017).
        calibration_by_chance: what probabilities that are right would have of it on so many examples.
        bins: mean confidence, share that is right and number of examples of each bin, shape (3, bin); NaN of an empty one.
    """

    accuracy: float
    accuracy_error: float
    by_class: Float[np.ndarray, " class_of_labels"]
    log_score: float
    log_score_error: float
    calibration_error: float
    calibration_by_chance: float
    bins: Float[np.ndarray, "3 bin"]


def class_scores(probabilities: Any, labels: Any) -> ClassScores:
    """Scores of probabilities of classes.

    Args:
        probabilities: of each class, shape (P, m), or of +1, shape (P,).
        labels: 1 at the class of each example and 0 elsewhere, shape (P, m), or +1 and -1, shape (P,).

    Raises:
        ValueError: other shapes, probabilities below 0 or that do not add up to 1, labels that are no classes.
    """
    given = finite_array("probabilities", probabilities, np.shape(probabilities))
    if given.ndim not in (1, 2) or not len(given):
        raise ValueError(f"probabilities must have shape (P,) or (P, m), got {given.shape}")
    of_labels = checked_classes("labels", finite_array("labels", labels, given.shape))
    if given.ndim == 1:
        given, of_labels = np.column_stack([1 - given, given]), np.column_stack([of_labels < 0, of_labels > 0])
    if np.min(given) < 0 or np.max(np.abs(given.sum(1) - 1)) > 1e-6:
        raise ValueError(
            "probabilities must be at least 0 and add up to 1, got"
            f" {np.min(given):.3g} to {np.max(given):.3g}, sums {np.min(given.sum(1)):.3g} to {np.max(given.sum(1)):.3g}"
        )
    right = of_labels[np.arange(len(given)), given.argmax(1)] > 0
    confidence, count = given.max(1), len(given)
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    sizes = np.bincount(place, minlength=BINS)
    with np.errstate(invalid="ignore", divide="ignore"):
        confident, found = (np.bincount(place, values, BINS) / sizes for values in (confidence, right))
        by_class = (of_labels * right[:, None]).sum(0) / of_labels.sum(0)
        logs = np.log(np.sum(given * of_labels, axis=1))
        spread = logs.std(ddof=1) if count > 1 else float("nan")
    # The mean of |x| for a normal x is sqrt(2 / pi) of its deviation.
    chance = np.sqrt(2 / np.pi * np.bincount(place, confidence * (1 - confidence), BINS))
    return ClassScores(
        accuracy=float(right.mean()),
        accuracy_error=float(np.sqrt(right.mean() * (1 - right.mean()) / count)),
        by_class=by_class,
        log_score=float(logs.mean()),
        log_score_error=float(spread / np.sqrt(count)),
        calibration_error=float(np.nansum(np.abs(confident - found) * sizes) / count),
        calibration_by_chance=float(chance.sum() / count),
        bins=np.array([confident, found, sizes]),
    )


def checked_classes(name: str, labels: np.ndarray) -> np.ndarray:
    """Labels that are classes; raises ValueError for others."""
    if labels.ndim == 1 and not np.all(np.abs(labels) == 1):
        odd = labels[np.argmax(np.abs(labels) != 1)]
        raise ValueError(f"{name} must be +1 or -1 to be classes, got {odd:g}")
    if labels.ndim == 2 and not np.all(((labels == 0) | (labels == 1)).all(1) & (labels.sum(1) == 1)):
        raise ValueError(
            f"{name} must be 1 at the class of each example and 0 elsewhere to be classes, as bayesattn.one_hot makes,"
            " got others"
        )
    return labels


def one_hot(classes: Any, names: Sequence[Any] | None = None) -> OneHot:
    """Labels of a network that has an output for each class, of which the greatest decides.

    >>> one_hot(["cat", "dog", "cat"])
    OneHot(labels=array([[1., 0.],
           [0., 1.],
           [1., 0.]]), names=('cat', 'dog'))

    Args:
        classes: of each example, whole numbers or strings, shape (P,).
        names: all classes there are, in the order of the outputs; by default those that occur, sorted. Give it where some do
            not occur among the examples at hand, as for test examples.

    Returns:
        Labels for `bayesattn.Model(labels=..)`, and names for its `output_names`.

    Raises:
        ValueError: fewer than two classes, another shape or type, an example of none of the classes named.
    """
    given = np.asarray(classes)
    if given.ndim != 1 or given.dtype.kind not in "iuU":
        raise ValueError(
            f"classes must be whole numbers or strings, one for each example, got {given.dtype} of shape {given.shape}"
        )
    known = np.unique(given) if names is None else np.asarray(names)
    if known.ndim != 1 or len(np.unique(known)) != len(known) or len(known) < 2:
        raise ValueError(f"names must be of two or more classes, all different, got {shown(known.tolist())}")
    same = given[:, None] == known
    if not np.all(same.any(1)):
        example = int(np.argmin(same.any(1)))
        raise ValueError(
            f"classes[{example}] must be one of {shown(known.tolist())}, got {shown(given[example].item())}"
        )
    return OneHot(same.astype(float), checked_names("names", [str(name) for name in known.tolist()]))
