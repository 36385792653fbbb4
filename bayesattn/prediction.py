"""Posterior of outputs at new inputs, and its scores on labels.

Given U, the network's outputs are Gaussian, with moments in closed form (THEORY section 5). This holds for every
parameterisation, so draws of U are sufficient. Only networks whose attention reads hidden states or whose values are
nonlinear need draws of all weights.
"""

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import stats

from bayesattn._util.checks import Checked, require_memory, seed_number
from bayesattn._util.plain_values import PlainMapping
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described, cell
from bayesattn.checks.mixing import heaviest_tail
from bayesattn.class_scores import ClassAccuracy, ClassScores, class_accuracy, class_scores
from bayesattn.classes import coded
from bayesattn.errors import BayesattnError
from bayesattn.kernels.energies import one_by_one
from bayesattn.models.conditional import conditional_of, has_two_classes, new_inputs
from bayesattn.models.draws import Draws, dataset, numbers_of, opened_with_network
from bayesattn.models.given_draw import Conditional, class_probabilities
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.models.stored_model import close, padding
from bayesattn.over_draws import (
    by_chain,
    by_draw,
    error_of_mean,
    flat_draws,
    keys_of,
    require_finite_values,
    variables_of,
)
from bayesattn.theory.importance import MOST_PARETO_K

if TYPE_CHECKING:
    import xarray as xr

ENTRIES_READ = 2**23
"""Largest number of stored predictions that are read at a time: 64 MiB."""
BLOCK_ENTRIES = 2**23
"""Largest number of entries of each array used to predict one block of inputs: 64 MiB."""


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
        output_names: names of the outputs, such as classes, or of the classes -1 and +1; None if they have none.
        label_probabilities: probability that a label, noise T included, is above 0, shape (example,), if `probabilities`
            are of f above 0; otherwise `probabilities`. Scores are of these.
    """

    mean: Float[np.ndarray, "*label"]
    variance: Float[np.ndarray, "*label"]
    error: Float[np.ndarray, "*label"]
    variance_error: Float[np.ndarray, "*label"]
    probabilities: Float[np.ndarray, "*label"] | None
    draws: Float[np.ndarray, "chain draw *label"] | None
    output_names: tuple[str, ...] | None = field(default=None, metadata={"static": True})
    label_probabilities: Float[np.ndarray, "*label"] | None = None

    def scores(self, labels: ArrayLike) -> ClassScores | ClassAccuracy:
        """Scores of the probabilities of labels on the labels of the same examples: accuracy, log score, calibration.

        Labels are as those of the model, or names of classes, if the model has their names.

        With several outputs and the Gaussian likelihood, only the accuracy of the class with the largest mean is
        available.

        Raises ValueError if there are neither probabilities nor several outputs, or if the labels are not
        classes of this kind.
        """
        outputs = 1 if self.mean.ndim == 1 else self.mean.shape[1]
        return self._scores(coded("labels", labels, self.output_names, outputs))

    def _scores(self, labels: ArrayLike) -> ClassScores | ClassAccuracy:
        """Scores on labels as those of the model."""
        if self.probabilities is None and self.mean.ndim == 2:
            return class_accuracy(self.mean, labels, self.output_names)
        if self.probabilities is None:
            raise BayesattnError(
                "scores are of classes, of labels +1 and -1, of several outputs or of likelihood=bayesattn.Categorical(T),"
                " got a prediction of other numbers, or of gathered examples; the error of numbers is"
                " numpy.sqrt(numpy.mean((mean - labels) ** 2))"
            )
        of_labels = self.probabilities if self.label_probabilities is None else self.label_probabilities
        return class_scores(of_labels, labels, self.output_names)

    def _described(self) -> tuple[str, dict[str, str]]:
        rows = {"mean": f"{_range(self.mean)}, Monte Carlo error at most {cell(np.max(self.error), '.2g')}"}
        deviation = np.sqrt(self.variance)
        error = np.max(self.variance_error / np.maximum(2 * deviation, np.finfo(float).tiny))
        rows["deviation"] = (
            f"{_range(deviation)}, that of f without label noise, Monte Carlo error at most {cell(error, '.2g')}"
        )
        if self.probabilities is not None:
            names = self.output_names or ()
            one = names[1] if len(names) == 2 else "+1"
            what = "of classes" if self.probabilities.ndim == 2 else f"of {one}"
            of_labels = self.label_probabilities
            if of_labels is not None and not np.array_equal(self.probabilities, of_labels):
                what = f"that f is above 0; {_range(of_labels)} that a label with its noise is {one}"
            rows["probability"] = f"{_range(self.probabilities)}, {what}"
        if self.draws is not None:
            rows["draws"] = f"{self.draws.shape[1]} of each of {self.draws.shape[0]} chains"
        return f"PosteriorPrediction of {len(self.mean)} examples", rows


def _range(values: np.ndarray) -> str:
    return f"{np.min(values):.3g} to {np.max(values):.3g}"


@with_own_settings
def predict(
    draws: Draws,
    new_path_inputs: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    keep_draws: bool = False,
    thin: int = 1,
    model: NetworkPosterior | None = None,
    seed: int = 0,
) -> PosteriorPrediction:
    """Posterior of the network's outputs at new inputs, which are processed in blocks.

    Given a draw of U, f is Gaussian, with mean k_*^T (K + T I)^{-1} Y and variance k_** - k_*^T (K + T I)^{-1} k_*
    (THEORY section 5). The moments over draws follow from the law of total variance. If the likelihood is not
    Gaussian, each draw has its own f.

    Args:
        draws: result of `bayesattn.sample`, a `bayesattn.runs.Run`, or a run's folder.
        new_path_inputs: xi of shape (example, Pi, N_0), from `bayesattn.attention`. If queries and keys are sampled too,
            token sequences of shape (example, T, N_0); the draws must then hold queries and keys (keep "queries_keys"),
            or with hidden attention or nonlinear values all weights (keep "weights"), besides U.
        mask: shape (example, T), True for tokens and False for padding; for token sequences only.
        keep_draws: whether to return a draw of f for each draw of U, which takes memory.
        thin: use every thin-th draw of U, the last one of each `thin` draws.
        model: model of the draws, if they do not record it.
        seed: seed of the draws of f.

    Raises:
        ValueError: draws that are not of a network, are not of `model`, have no order_parameter, or were concatenated
            from several models, from chains of several lengths or from the same draws twice; inputs of another shape or
            not finite; draws of f that memory cannot hold.
        RunError: a folder that is not a readable run.
        FloatingPointError: a prediction is not finite, for instance because K + T I is singular in float64.

    Warns with the Pareto k of the terms of a variance, if it is above 0.7.
    """
    model, tree = opened_with_network(draws, model)
    conditional = conditional_of(model).compressed(model.architecture)
    drawn = variables_of(tree, model, conditional.variables, thin)
    inputs = new_inputs(model, new_path_inputs, mask)
    seed_number("seed", seed)
    chains, count = drawn["order_parameter"].shape[:2]
    arch = model.architecture
    if keep_draws:
        needed = 8 * chains * count * len(inputs) * arch.outputs
        require_memory("draws of f", needed, "raise thin, or predict fewer inputs at a time")
    flat, numbers = flat_draws(drawn), {name: jnp.asarray(drawn[name]) for name in model.hyperpriors.fields}
    keys = keys_of(seed, "new predictions", model, drawn) if keep_draws else None
    entries = max(arch.outputs * chains * count, conditional.entries(inputs))
    size = max(1, min(len(inputs), BLOCK_ENTRIES // entries))

    def predicted(block: Checked) -> PosteriorPrediction:
        outputs = by_draw(lambda part: _outputs(conditional, part[0], block, part[1]), (flat, keys), "predicting")
        mean, variance = (by_chain(values, chains) for values in outputs[:2])
        require_finite_values("prediction", mean, variance)
        variance = np.maximum(variance, 0)
        # Their average is the variance; an error of their centre changes it by its square only.
        terms = variance + (mean - mean.mean((0, 1))) ** 2
        tails.append(heaviest_tail(terms))
        probabilities = conditional.probabilities(mean, variance, numbers)
        of_sign = probabilities is not None and model.likelihood.conjugate
        return PosteriorPrediction(
            mean=mean.mean((0, 1)),
            variance=variance.mean((0, 1)) + mean.var((0, 1)),
            error=error_of_mean(mean),
            variance_error=error_of_mean(terms),
            probabilities=probabilities,
            draws=None if outputs[2] is None else by_chain(outputs[2], chains),
            output_names=model.output_names,
            label_probabilities=_of_noisy_labels(model, mean, variance, numbers) if of_sign else probabilities,
        )

    tails: list[float] = []
    # All blocks have one shape, so that the program is compiled once.
    places = [np.arange(first, first + size) % len(inputs) for first in range(0, len(inputs), size)]
    blocks = [predicted(inputs[place]) for place in places]
    if (tail := np.fmax.reduce(tails)) > MOST_PARETO_K:
        warnings.warn(
            f"the variance of f has a heavy tail: Pareto k is {tail:.2f}, above {MOST_PARETO_K}: values too rare to be"
            " among the draws may dominate it, so that variance_error is too small; draw more, or state quantiles"
            " (keep_draws=True)",
            stacklevel=3,
        )
    axis = -blocks[0].mean.ndim
    return jax.tree.map(lambda *parts: np.concatenate(parts, axis).take(range(len(inputs)), axis), *blocks)


@jax.jit
def _outputs(conditional: Conditional, draws, path_inputs, keys):
    """Mean and variance of f given each draw, and a draw of f if there are keys."""
    return one_by_one(lambda pair: conditional.outputs(pair[0], path_inputs, pair[1]), (draws, keys))


@with_own_settings
def score(draws: Draws, *, model: NetworkPosterior | None = None) -> ClassScores | ClassAccuracy:
    """Scores of the draws on the test labels of their model, from posterior["prediction"] alone.

    They are those of `predict(draws, test_inputs).scores(test_labels)`, without its computation. With the Gaussian
    likelihood and labels +1 and -1, probabilities of labels given the draws of f are averaged, and have a larger Monte
    Carlo error than those of `predict`, which are exact given U.

    Args:
        draws: result of `bayesattn.sample`, a `bayesattn.runs.Run`, or a run's folder.
        model: model of the draws, if they do not record it.

    Raises:
        ValueError: draws that are not of a network, are not of `model`, or have no prediction; a model without test labels;
            predictions that are not finite; test labels that are not classes.
        RunError: a folder that is not a readable run.
    """
    model, tree = opened_with_network(draws, model)
    return stored_prediction(model, tree)._scores(model.test_labels)


def stored_prediction(model: NetworkPosterior, tree: "xr.DataTree") -> PosteriorPrediction:
    """Mean and probabilities of posterior["prediction"] at the test examples; its other fields are NaN or None.

    Raises as `score` does.
    """
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
    unknown = np.full(labels.shape, np.nan)
    return PosteriorPrediction(
        mean=np.asarray(mean),
        variance=unknown,
        error=unknown,
        variance_error=unknown,
        probabilities=probabilities,
        draws=None,
        output_names=model.output_names,
        label_probabilities=probabilities,
    )


def _mean_and_probabilities(
    outputs: Float[np.ndarray, "chain draw *label"],
    model: NetworkPosterior,
    labels: Float[np.ndarray, "*label"],
    numbers: PlainMapping,
) -> tuple[Float[np.ndarray, "*label"], Float[np.ndarray, "*label"] | None]:
    """Mean of draws of f, and probabilities of classes if labels are classes."""
    if not model.likelihood.conjugate:
        return outputs.mean((0, 1)), class_probabilities(model.reference.likelihood, outputs, numbers)
    of_labels = _of_noisy_labels(model, outputs, np.zeros(()), numbers) if has_two_classes(labels) else None
    return outputs.mean((0, 1)), of_labels


def _of_noisy_labels(
    model: NetworkPosterior, mean: np.ndarray, variance: np.ndarray, numbers: PlainMapping
) -> np.ndarray:
    """Probability that f plus Gaussian noise of variance T is above 0, averaged over draws; 0 and 1 up to rounding."""
    noise = np.asarray(numbers["temperature"])[..., None] if "temperature" in numbers else model.temperature
    certain = np.finfo(float).epsneg  # Or the log of the other class, 1 less this, could be infinite.
    return np.clip(stats.norm.cdf(mean / np.sqrt(variance + noise)).mean((0, 1)), certain, 1 - certain)
