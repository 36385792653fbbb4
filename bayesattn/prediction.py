"""Posterior of outputs at new inputs, and scores of class predictions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

import jax
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from bayesattn._util.checks import finite_array, labels_array
from bayesattn._util.plain_values import PlainDict, PlainMapping
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described, as_html, as_text, cell, with_error
from bayesattn.checks.accuracy import binomial_error
from bayesattn.classes import checked_classes, shortened
from bayesattn.errors import BayesattnError
from bayesattn.models.conditional import has_two_classes
from bayesattn.models.draws import Draws, dataset, numbers_of, opened_with_network
from bayesattn.models.given_draw import class_probabilities
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.models.stored_model import close, padding

ENTRIES_READ = 2**23
"""Largest number of stored predictions that are read at a time: 64 MiB."""
CONFIDENCE_BINS = 10
"""Number of equally wide bins of confidence in the calibration error."""
NO_PROBABILITIES = "of probabilities of classes, which a model with likelihood=bayesattn.Categorical(T) has"


class ClassScores(NamedTuple):
    """Scores of class probabilities on labels of (test) examples.

    Args:
        accuracy: share of examples whose likeliest class is right, and its standard error.
        by_class: accuracy on the examples of each class, with -1 first if there is one output; NaN for a class
            without examples.
        examples: number of examples of each class.
        names: names of the classes, in the same order.
        log_score: mean log probability of the right class, in nats, and its standard error.
        calibration_error: mean distance between accuracy and confidence (the probability of the likeliest class), over
            bins of confidence (Guo et al. 2017).
        calibration_by_chance: calibration error that correct probabilities would have by chance on as many examples.
        bins: mean confidence, accuracy and number of examples of each bin, shape (3, bin); NaN for an empty bin.
    """

    accuracy: float
    accuracy_error: float
    by_class: Float[np.ndarray, " class_of_labels"]
    examples: Float[np.ndarray, " class_of_labels"]
    names: tuple[str, ...]
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
        "accuracy": f"{with_error(100 * scores.accuracy, 100 * scores.accuracy_error)} %",
        "by class": shortened([f"{name} {cell(100 * share, '.0f')} % of {count:.0f}" for name, share, count in each]),
    }


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class PosteriorPrediction(Described):
    """Posterior of the network's outputs f at new inputs, without the label noise T.

    Args:
        mean: mean of f, shape (example,), or (example, output) for several outputs; the other arrays then have
            that axis too.
        variance: variance of f, shape (example,): the mean over draws of the variance given U, plus the variance over
            draws of the mean given U.
        error: Monte Carlo standard error of the mean, shape (example,), from the effective sample size over all chains;
            NaN with fewer than four draws per chain.
        variance_error: Monte Carlo standard error of the variance, shape (example,), from the effective sample size of
            the variance given U plus the squared distance of the mean given U from `mean`; NaN where `error` is. It is
            too small where that quantity has a heavy tail, of which `predict` warns.
        probabilities: probability that f is above 0, shape (example,), if all labels are +1 or -1. With the categorical
            likelihood, probabilities of the classes, shape (example, output), or of +1. Otherwise None.
        draws: draws of f, shape (chain, draw, example), joint over all examples; None unless they were requested.
        output_names: names of the outputs, such as classes; None if they have none.
    """

    mean: Float[np.ndarray, "*label"]
    variance: Float[np.ndarray, "*label"]
    error: Float[np.ndarray, "*label"]
    variance_error: Float[np.ndarray, "*label"]
    probabilities: Float[np.ndarray, "*label"] | None
    draws: Float[np.ndarray, "chain draw *label"] | None
    output_names: tuple[str, ...] | None = field(default=None, metadata={"static": True})

    def scores(self, labels: ArrayLike) -> ClassScores | ClassAccuracy:
        """Scores of the probabilities on the labels of the same examples: accuracy, log score, calibration.

        With several outputs and the Gaussian likelihood, only the accuracy of the class with the largest mean is
        available.

        Raises ValueError if there are neither probabilities nor several outputs, or if the labels are not
        classes of this kind.
        """
        if self.probabilities is None and self.mean.ndim == 2:
            return class_accuracy(self.mean, labels, self.output_names)
        if self.probabilities is None:
            raise BayesattnError(
                "scores are of classes, of labels +1 and -1, of several outputs or of likelihood=bayesattn.Categorical(T),"
                " got a prediction of other numbers, or of gathered examples; the error of numbers is"
                " numpy.sqrt(numpy.mean((mean - labels) ** 2))"
            )
        return class_scores(self.probabilities, labels, self.output_names)

    def _described(self) -> tuple[str, dict[str, str]]:
        rows = {"mean": f"{_range(self.mean)}, Monte Carlo error at most {cell(np.max(self.error), '.2g')}"}
        deviation = np.sqrt(self.variance)
        error = np.max(self.variance_error / np.maximum(2 * deviation, np.finfo(float).tiny))
        rows["deviation"] = (
            f"{_range(deviation)}, that of f without label noise, Monte Carlo error at most {cell(error, '.2g')}"
        )
        if self.probabilities is not None:
            what = "that f is above 0" if self.probabilities.ndim == 1 else "of classes"
            rows["probability"] = f"{_range(self.probabilities)}, {what}"
        if self.draws is not None:
            rows["draws"] = f"{self.draws.shape[1]} of each of {self.draws.shape[0]} chains"
        return f"PosteriorPrediction of {len(self.mean)} examples", rows


def _range(values: np.ndarray) -> str:
    return f"{np.min(values):.3g} to {np.max(values):.3g}"


@with_own_settings
def score(draws: Draws, *, model: NetworkPosterior | None = None) -> ClassScores | ClassAccuracy:
    """Scores of the draws on the test labels of their model, from posterior["prediction"] alone.

    They are those of `predict(draws, test_inputs).scores(test_labels)`, without its computation. With the Gaussian
    likelihood and labels +1 and -1, the probability of +1 is (k + 1/2) / (n + 1) if f is above 0 in k of n draws, with the
    Monte Carlo error of that share; `predict` averages probabilities that are exact given U.

    Args:
        draws: result of `bayesattn.sample`, a `bayesattn.runs.Run`, or a run's folder.
        model: model of the draws, if they do not record it.

    Raises:
        ValueError: draws that are not of a network, are not of `model`, or have no prediction; a model without test labels;
            predictions that are not finite; test labels that are not classes.
        RunError: a folder that is not a readable run.
    """
    model, tree = opened_with_network(draws, model)
    posterior = tree["posterior"].to_dataset()
    if model.test_labels is None:
        raise BayesattnError(
            "score() needs a model with test_labels, got none: use predict(draws, inputs).scores(labels)"
        )
    if "prediction" not in posterior:
        raise BayesattnError(
            "draws must have posterior['prediction'], got none: keep it when you sample, or use predict"
        )
    data = dataset(tree, "constant_data") if "constant_data" in tree.children else {}
    of_test = [*(name for name in model.data_names if name.startswith("test_")), "test_labels"]
    recorded = {name: data[name].values for name in of_test if name in data}
    own = {name: getattr(model, name) for name in of_test}
    if "test_inputs" in recorded:
        recorded["test_mask"], own["test_mask"] = (padding(each.get("test_mask")) for each in (recorded, own))
    for name, values in recorded.items():
        if not close(values, own[name]):
            raise BayesattnError(
                f"draws must have predictions at the test examples of model, got others: their {name} differ; use"
                " predict(draws, inputs).scores(labels)"
            )
    stored, labels = posterior["prediction"], np.asarray(model.test_labels)
    chains, count = stored.shape[:2]
    size = max(1, ENTRIES_READ // max(1, chains * labels.size))
    parts = [stored.isel(draw=slice(first, first + size)) for first in range(0, count, size)]
    with_priors = {name: drawn for name, drawn in numbers_of(tree, model).items() if name in model.hyperpriors.fields}
    moments = []
    for first, part in zip(range(0, count, size), parts, strict=True):
        numbers = {name: drawn.isel(draw=slice(first, first + size)).values for name, drawn in with_priors.items()}
        moments.append(_mean_and_probabilities(part.values, model, labels, numbers))
    mean, probabilities = (
        None if values[0] is None else np.average(values, axis=0, weights=[part.sizes["draw"] for part in parts])
        for values in zip(*moments, strict=True)
    )
    if probabilities is not None and model.likelihood.conjugate:
        probabilities = (chains * count * probabilities + 0.5) / (chains * count + 1)
    unknown = np.full(labels.shape, np.nan)
    names = model.output_names
    return PosteriorPrediction(np.asarray(mean), *[unknown] * 3, probabilities, None, names).scores(labels)


def _mean_and_probabilities(
    outputs: Float[np.ndarray, "chain draw *label"],
    model: NetworkPosterior,
    labels: Float[np.ndarray, "*label"],
    numbers: PlainMapping,
) -> tuple[Float[np.ndarray, "*label"], Float[np.ndarray, "*label"] | None]:
    """Mean of draws of f, and probabilities of classes if labels are classes."""
    if not model.likelihood.conjugate:
        return outputs.mean((0, 1)), class_probabilities(model.reference.likelihood, outputs, numbers)
    return outputs.mean((0, 1)), ((outputs > 0) + (outputs == 0) / 2).mean((0, 1)) if has_two_classes(labels) else None


def class_scores(probabilities: ArrayLike, labels: ArrayLike, names: Sequence[str] | None = None) -> ClassScores:
    """Scores of class probabilities.

    Args:
        probabilities: probability of each class, shape (P, m), or of +1, shape (P,).
        labels: 1 at the class of each example and 0 elsewhere, shape (P, m), or +1 and -1, shape (P,).
        names: names of the m classes; by default "class 1" and so on, or "-1" and "+1".

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
        names = ("-1", "+1")
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
    named = tuple(names) if names else tuple(f"class {number + 1}" for number in range(len(examples)))
    share = float(right.mean())
    return right, ClassAccuracy(share, binomial_error(share, len(right)), by_class, examples, named)
