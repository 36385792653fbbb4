"""Accuracy of the mean predictor and its gain over the GP limit, with errors."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float
from scipy import stats

from bayesattn._util.files import finite
from bayesattn._util.plain_values import PlainDict, PlainMapping
from bayesattn._util.text import UNKNOWN, Described, rounded, with_error
from bayesattn.checks.theory_predictions import gp_mean
from bayesattn.models import Model
from bayesattn.theory.predictor import right

LEVEL = 0.01
"""Significance level of each single comparison with the GP limit: probability of calling equal predictors different."""
SIGNIFICANT_ERRORS = float(stats.norm.isf(LEVEL / 2))
RESAMPLES, RESAMPLING_BLOCKS = 1000, 50
ALL_PATHS = "all paths"

Outcome = Literal["higher", "lower", "cannot tell"]


@dataclass(frozen=True)
class Gain:
    """Accuracy of a mean predictor minus the accuracy of the GP limit, on the same test examples.

    `difference` is the gain, as a share of the `examples`. `better` counts the examples that only the mean predictor gets
    right, `worse` those that only the GP limit gets right. `monte_carlo_error` is the Monte Carlo error of the mean
    predictor's accuracy.
    """

    difference: float
    better: int
    worse: int
    examples: int
    monte_carlo_error: float

    @property
    def p_value(self) -> float:
        """p-value of McNemar's exact test: two-sided binomial probability that equal predictors have counts this uneven."""
        discordant = self.better + self.worse
        return float(stats.binomtest(self.better, discordant).pvalue) if discordant else 1.0

    @property
    def test_error(self) -> float:
        """Standard error due to the size of the test set, `paired_error`."""
        return paired_error(self.better + self.worse, self.better - self.worse, self.examples)

    @property
    def error(self) -> float:
        """Standard error due to the test set and the draws together."""
        return float(np.hypot(self.test_error, self.monte_carlo_error))

    @property
    def outcome(self) -> Outcome:
        """Whether accuracy is higher or lower, at a level of 1 % by McNemar's test and by `error`."""
        return outcome_of(self.difference, self.error) if self.p_value <= LEVEL else "cannot tell"

    def verdict(self, limit: str = "the GP limit") -> str:
        """Outcome in words, with its error."""
        size = with_error(100 * self.difference, 100 * self.error, "+")
        significance = f" points (McNemar p = {self.p_value:.1g})"
        if self.outcome == "cannot tell":
            return f"finite width and {limit} cannot be distinguished: {size}{significance}"
        first, second = ("finite width", limit) if self.outcome == "higher" else (limit, "finite width")
        return f"{first} beats {second} by {size.lstrip('+-')}{significance}"

    def to_dict(self) -> PlainDict:
        """Counts, errors, p-value and outcome, for JSON."""
        derived = ("test_error", "error", "p_value", "outcome")
        return plain_values(dataclasses.asdict(self) | {name: getattr(self, name) for name in derived})


@dataclass(frozen=True, eq=False, repr=False)
class Accuracy(Described):
    """Share of test examples that the sign of the mean predictor gets right: for theory, draws and GP limits.

    `error` is the Monte Carlo error of `draws`. `test_error` is the standard error of a share due to the finite test set of
    `examples` examples. `gains` are the gains of the draws' mean predictor over the GP limits of all paths and of each
    group; `theory_gains` are the gains of the saddle point's mean predictor.
    """

    theory: float
    corrected: float
    draws: float
    error: float
    gp: float
    gp_of_groups: dict[str, float]
    examples: int
    gains: dict[str, Gain]
    theory_gains: dict[str, Gain]

    @property
    def test_error(self) -> float:
        """Binomial standard error of `draws`."""
        return binomial_error(self.draws, self.examples)

    def to_dict(self) -> PlainDict:
        """All fields as plain numbers, for JSON."""
        gains = {
            name: {limit: gain.to_dict() for limit, gain in getattr(self, name).items()}
            for name in ("gains", "theory_gains")
        }
        return plain_values(dataclasses.asdict(self) | {"test_error": self.test_error} | gains)

    def _described(self) -> tuple[str, dict[str, str]]:
        test_error = 100 * self.test_error
        limits = {ALL_PATHS: self.gp} | self.gp_of_groups
        rows = {
            "draws": f"({percent_with_error(self.draws, self.error, self.examples)}) % by the number of draws,"
            f" ± {rounded(test_error, test_error)} by that of examples",
            "theory": f"{percent(self.theory, 0, self.examples)} % at the saddle point,"
            f" {percent(self.corrected, 0, self.examples)} % with the first order in 1/N",
            "GP limit": ", ".join(f"{percent(gp, 0, self.examples)} % of {name}" for name, gp in limits.items()),
            "verdict": self.gains[ALL_PATHS].verdict(),
        }
        return f"Accuracy on {self.examples} test examples", rows


def outcome_of(difference: float, error: float) -> Outcome:
    """Outcome "higher" or "lower" for a difference significant at 1 % by its error, otherwise "cannot tell"."""
    # Negated, so that NaN gives "cannot tell".
    if not abs(difference) > SIGNIFICANT_ERRORS * error:
        return "cannot tell"
    return "higher" if difference > 0 else "lower"


def plain_values(values: PlainMapping) -> PlainDict:
    """Values with arrays as lists, and None for numbers that are not finite."""
    return finite({name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()})


def share_right(outputs: Float[np.ndarray, "*label"], labels: Float[np.ndarray, "*labels"]) -> float:
    """Accuracy: share of the examples whose output has the sign of its label; an output of 0 counts as half right.

    With several outputs it is the share of the examples whose greatest output has the index of the greatest label.
    """
    return float(np.mean(right(outputs, labels)))


def percent(share: float, error: float, examples: int) -> str:
    """Accuracy in percent, rounded to the place of its error's second digit, but not finer than 1 / examples.

    >>> percent(0.834, 3e-5, 1000), percent(0.834, 0.012, 1000), percent(5 / 6, 0.0, 6)
    ('83.4', '83.4', '83')
    """
    return rounded(100 * share, _place(error, examples))


def percent_with_error(share: float, error: float, examples: int) -> str:
    """`percent`, with its error rounded to the same place, so 0 if the error is smaller.

    >>> percent_with_error(0.834, 0.012, 1000), percent_with_error(0.35, 0.0016, 20)
    ('83.4 ± 1.2', '35 ± 0')
    """
    shown = rounded(100 * error, _place(error, examples)) if math.isfinite(error) else UNKNOWN
    return f"{percent(share, error, examples)} ± {shown}"


def _place(error: float, examples: int) -> float:
    """Number whose second digit is at the place of the last digit of an accuracy in percent."""
    places = max(0, math.ceil(math.log10(examples)) - 2)
    return float(np.fmax(100 * error, 10.0 ** (1 - places)))


def binomial_error(share: float, examples: int) -> float:
    """Binomial standard error sqrt(p (1 - p) / n) of an accuracy due to the size of the test set.

    Half an example is added to the right and to the wrong ones, so that the error is not 0 if none of n is wrong.
    """
    smoothed = (share * examples + 0.5) / (examples + 1)
    return float(np.sqrt(smoothed * (1 - smoothed) / (examples + 1)))


def paired_error(squares: float, total: float, examples: int) -> float:
    """Standard error of a paired difference due to the size of the test set, sqrt(b + c - (b - c)^2 / n) / n.

    `squares` is b + c and `total` is b - c, of b examples that are right only with the first and c only with the second.
    Half an example is added to each, so that the error is not 0 if no example differs (after Agresti and Min 2005, who add
    it to all four counts).
    """
    n = examples + 1
    return float(np.sqrt(squares + 1 - total**2 / n) / n)


def monte_carlo_error(
    mean: Float[np.ndarray, " label"],
    batches: Float[np.ndarray, "batch label"],
    labels: Float[np.ndarray, "*labels"],
    seed: int = 0,
) -> float:
    """Root mean square error of the mean predictor's accuracy due to the finite number of draws.

    Accuracy is a step function of the mean predictor. The Monte Carlo error of the mean predictor is normal, with the
    covariance between examples estimated from the means of B batches, sum_b (m_b - m)(m_b - m)^T / (B (B - 1)). The error
    is the root mean square change of the accuracy when errors from this distribution are added. If no example changes its
    sign, the error is 0, which stands for an error below 1 / (n sqrt(RESAMPLES)), with n examples.

    Args:
        mean: mean predictor over all draws.
        batches: mean predictor over each batch of consecutive draws, long compared with their autocorrelation.
        labels: labels of the test examples.
        seed: seed of the added errors; the same by default, so that the same draws have the same error.

    Returns:
        The error; NaN if there is a single batch.
    """
    count = len(batches)
    if count < 2:
        return float("nan")
    deviations = (batches - batches.mean(0)) / np.sqrt(count * (count - 1))
    normals = np.random.default_rng(seed).normal(size=(RESAMPLES, count))
    stated = share_right(mean, labels)
    changes = [
        right(mean + block @ deviations, labels).mean(1) - stated
        for block in np.array_split(normals, RESAMPLING_BLOCKS)
    ]
    return float(np.sqrt(np.mean(np.square(changes))))


def accuracy_of(model: Model, by_theory: Mapping[str, np.ndarray], batches: np.ndarray) -> Accuracy:
    """Accuracies, errors and gains of mean predictors.

    Args:
        model: model with test examples and labels.
        by_theory: mean predictors on the test examples: "theory" (saddle point), "corrected" theory, and "gp".
        batches: mean predictors over batches of draws, shape (batch, test_example).
    """
    labels, mean = model.test_labels, batches.mean(0)
    error = monte_carlo_error(mean, batches, labels)
    limits = {ALL_PATHS: by_theory["gp"]} | {name: gp_mean(model, group) for name, group in model.path_groups.items()}
    return Accuracy(
        **{name: share_right(values, labels) for name, values in by_theory.items()},
        draws=share_right(mean, labels),
        error=error,
        gp_of_groups={name: share_right(limits[name], labels) for name in model.path_groups},
        examples=len(labels),
        gains={name: gain(mean, limit, labels, error) for name, limit in limits.items()},
        theory_gains={name: gain(by_theory["theory"], limit, labels) for name, limit in limits.items()},
    )


def gain(
    outputs: Float[np.ndarray, " label"],
    limit: Float[np.ndarray, " label"],
    labels: Float[np.ndarray, "*labels"],
    monte_carlo_error: float = 0.0,
) -> Gain:
    """Gain in accuracy of outputs over the outputs of the GP limit, on the same examples.

    Args:
        outputs: outputs of a mean predictor.
        limit: outputs of the GP limit.
        labels: labels of the examples.
        monte_carlo_error: Monte Carlo error of the accuracy of `outputs`.
    """
    change = np.asarray(right(outputs, labels) - right(limit, labels))
    counts = {"better": int(np.sum(change > 0)), "worse": int(np.sum(change < 0)), "examples": len(change)}
    return Gain(difference=float(np.mean(change)), monte_carlo_error=monte_carlo_error, **counts)
