"""Posterior of outputs at new inputs, and scores of class predictions."""

from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described, cell
from bayesattn.classes import NO_PROBABILITIES, ClassAccuracy, ClassScores, class_accuracy, class_scores
from bayesattn.errors import BayesattnError
from bayesattn.models.conditional import class_probabilities, has_two_classes
from bayesattn.models.draws import Draws, opened_with_network
from bayesattn.models.network_posterior import NetworkPosterior

ENTRIES_READ = 2**23
"""Largest number of stored predictions that are read at a time: 64 MiB."""


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
    """

    mean: Float[np.ndarray, "*label"]
    variance: Float[np.ndarray, "*label"]
    error: Float[np.ndarray, "*label"]
    variance_error: Float[np.ndarray, "*label"]
    probabilities: Float[np.ndarray, "*label"] | None
    draws: Float[np.ndarray, "chain draw *label"] | None

    def scores(self, labels: ArrayLike) -> ClassScores | ClassAccuracy:
        """Scores of the probabilities on the labels of the same examples: accuracy, log score, calibration.

        With several outputs and the Gaussian likelihood, only the accuracy of the class with the largest mean is
        available.

        Raises ValueError if there are neither probabilities nor several outputs, or if the labels are not
        classes of this kind.
        """
        if self.probabilities is None and self.mean.ndim == 2:
            return class_accuracy(self.mean, labels)
        if self.probabilities is None:
            raise BayesattnError(
                f"scores are {NO_PROBABILITIES}, got a prediction of a model whose labels are not classes"
            )
        return class_scores(self.probabilities, labels)

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
    stored, labels = posterior["prediction"], np.asarray(model.test_labels)
    chains, count = stored.shape[:2]
    size = max(1, ENTRIES_READ // max(1, chains * labels.size))
    parts = [stored.isel(draw=slice(first, first + size)) for first in range(0, count, size)]
    numbers = [_mean_and_probabilities(part.values, model, labels) for part in parts]
    mean, probabilities = (
        None if values[0] is None else np.average(values, axis=0, weights=[part.sizes["draw"] for part in parts])
        for values in zip(*numbers, strict=True)
    )
    if probabilities is not None and model.likelihood.conjugate:
        probabilities = (chains * count * probabilities + 0.5) / (chains * count + 1)
    unknown = np.full(labels.shape, np.nan)
    return PosteriorPrediction(np.asarray(mean), unknown, unknown, unknown, probabilities, None).scores(labels)


def _mean_and_probabilities(
    outputs: Float[np.ndarray, "chain draw *label"], model: NetworkPosterior, labels: Float[np.ndarray, "*label"]
) -> tuple[Float[np.ndarray, "*label"], Float[np.ndarray, "*label"] | None]:
    """Mean of draws of f, and probabilities of classes if labels are classes."""
    if not model.likelihood.conjugate:
        return outputs.mean((0, 1)), class_probabilities(model.likelihood, outputs)
    return outputs.mean((0, 1)), (outputs > 0).mean((0, 1)) if has_two_classes(labels) else None
