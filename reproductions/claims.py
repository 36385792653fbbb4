"""Claims: a law, what it predicts, what was measured, and whether they agree; the panels of a figure."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from bayesattn.checks.thresholds import CANNOT_TELL, DOES_NOT_HOLD, HOLDS

LEVEL = 5e-5
"""p-value below which a claim fails: the two to three hundred of them fail by chance with a probability of 1 to 1.5 %."""
EXACT_TIMES = 10.0
"""Tolerances by which the wrong law of an exact claim is off."""


class Mean(NamedTuple):
    """A mean, its standard error, and the degrees of freedom behind that error; an error of 0 is that of an exact number."""

    value: float
    error: float = 0.0
    degrees: float = math.inf

    def times(self, factor: float) -> "Mean":
        """The mean times an exact number."""
        return Mean(factor * self.value, abs(factor) * self.error, self.degrees)


def combined(first: Mean, second: Mean, weight: float = 1.0) -> Mean:
    """first + weight x second for independent means, with degrees of freedom by Welch and Satterthwaite."""
    second = second.times(weight)
    error = math.hypot(first.error, second.error)
    spread = first.error**4 / first.degrees + second.error**4 / second.degrees
    return Mean(first.value + second.value, error, error**4 / spread if spread > 0 else math.inf)


@dataclass(frozen=True)
class Claim:
    """A comparison of a predicted with a measured number.

    Args:
        statement: what is claimed.
        law: the formula behind `predicted`.
        predicted: by the formula; a `Mean` where the formula itself was averaged over draws.
        measured: independently of it; a `Mean` where it was drawn.
        relation: how they should compare: "=", "<=" or ">=".
        tolerance: largest difference allowed where both are exact.
        literal: whether this is a literal reading of the paper (its theorem text was not at hand), which fails where another
            claim, with a qualification, holds.
        entries: number of quantities of which this is the worst; the p-value is for all of them (Bonferroni).
        planted: what a wrong law predicts, which the numbers have to tell from the right one; None for no wrong law.
        wrong: which wrong law that is.
        wrong_relation: relation of the wrong law, where it is another one: "<=" for "there is no gain", where the claim is
            that there is one, ">=".
        allowance: size of what the law leaves out, such as terms of order 1/N^2: differences up to this size do not count,
            whatever the errors, for the planted law too.
        row: id of the row of the registry that the claim belongs to.

    Raises:
        ValueError: a tolerance of a claim with a standard error, or an allowance below 0.
    """

    statement: str
    law: str
    predicted: Any
    measured: Any
    relation: str = "="
    tolerance: float = 0.0
    literal: bool = False
    entries: int = 1
    planted: Any = None
    wrong: str = ""
    wrong_relation: str = ""
    allowance: float = 0.0
    row: str = ""

    def __post_init__(self):
        for name in ("predicted", "measured", "planted"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, given if isinstance(given, Mean) else Mean(float(given)))
        if self.statistical and self.tolerance:
            raise ValueError(f"tolerance must be 0 for a claim with a standard error, got {self.tolerance:g}")
        if not self.allowance >= 0:
            raise ValueError(f"allowance must be at least 0, got {self.allowance:g}")

    @property
    def difference(self) -> Mean:
        """Measured less predicted, with the errors of both."""
        return combined(self.measured, self.predicted, -1.0)

    @property
    def statistical(self) -> bool:
        """Whether chance has a part in it."""
        return self.difference.error != 0

    @property
    def p_value(self) -> float:
        """Probability of a difference as large, if the claim is true (Student's t); 1 or 0 for exact claims."""
        apart, error, degrees = self.difference
        if not (math.isfinite(apart) and math.isfinite(error)):
            return math.nan
        if not self.statistical:
            within = {"=": abs(apart), "<=": apart, ">=": -apart}[self.relation] <= self.tolerance + self.allowance
            return float(within)
        beyond = {"=": -abs(apart), "<=": -apart, ">=": apart}[self.relation] + self.allowance
        below = (min(beyond, 0.0) if self.relation == "=" else beyond) / error
        sides = 2 if self.relation == "=" else 1
        return min(1.0, self.entries * sides * float(special.stdtr(degrees, below)))

    def holds(self, level: float = LEVEL) -> bool:
        """Whether the p-value is not below a level; what is not finite does not hold."""
        return self.p_value >= level

    def finds_planted(self, level: float = LEVEL) -> bool:
        """Whether the wrong law fails; True where none is planted."""
        relation = self.wrong_relation or self.relation
        return self.planted is None or not replace(self, predicted=self.planted, planted=None, relation=relation).holds(
            level
        )

    def as_expected(self, level: float = LEVEL) -> bool:
        """Whether it holds, or is literal and fails."""
        return not math.isnan(self.p_value) and self.holds(level) != self.literal

    @property
    def verdict(self) -> str:
        """One of `bayesattn.checks.thresholds.VERDICTS`; "cannot tell" where the wrong law does as well."""
        if not self.holds():
            return DOES_NOT_HOLD
        return HOLDS if self.finds_planted() else CANNOT_TELL

    def with_planted(self, size: float) -> "Claim":
        """The claim with a wrong law that is off by a relative size, by the size itself where 0 is predicted.

        The wrong law of an exact claim is off by some tolerances, or by 1 where none is allowed. Literal readings are wrong
        by themselves and get none; a claim that has a wrong law keeps it.
        """
        if self.literal or self.planted is not None:
            return self
        if self.statistical:
            apart, wrong = size * (abs(self.predicted.value) or 1.0), f"{100 * size:g} % off"
        else:
            apart, wrong = EXACT_TIMES * (self.tolerance + self.allowance) or 1.0, "off by more than rounding"
        sign = -1.0 if self.relation == "<=" else 1.0
        return replace(self, planted=self.predicted._replace(value=self.predicted.value + sign * apart), wrong=wrong)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; null for infinitely many degrees of freedom, and for what is not defined."""
        apart = self.difference
        numbers = {
            "predicted": self.predicted.value,
            "predicted_error": self.predicted.error,
            "measured": self.measured.value,
            "measured_error": self.measured.error,
            "degrees": apart.degrees,
            "z_score": apart.value / apart.error if self.statistical else None,
            "p_value": self.p_value,
            "tolerance": self.tolerance,
            "allowance": self.allowance,
            "planted": None if self.planted is None else self.planted.value,
        }
        finite = {name: value if value is not None and np.isfinite(value) else None for name, value in numbers.items()}
        words = ("row", "statement", "law", "relation", "literal", "entries", "wrong", "verdict")
        return {name: getattr(self, name) for name in words} | finite


def worst(statement: str, law: str, predicted: Iterable[Any], measured: Iterable[Mean], **rest: Any) -> Claim:
    """The claim on the worst of several numbers, whose p-value accounts for how many there are."""
    pairs = list(zip(predicted, measured, strict=True))
    claims = [Claim(statement, law, *pair, entries=len(pairs), **rest) for pair in pairs]
    return min(claims, key=lambda claim: (not math.isnan(claim.p_value), claim.p_value, -_score(claim)))


def above_zero(statement: str, measured: Mean, below: bool = False) -> Claim:
    """The claim that something is above 0, or below; the wrong law is that it is not."""
    relation, other = ("<=", ">=") if below else (">=", "<=")
    law, wrong = ("below 0", "not below 0") if below else ("above 0", "not above 0")
    return Claim(statement, law, 0.0, measured, relation, planted=0.0, wrong=wrong, wrong_relation=other)


def _score(claim: Claim) -> float:
    return abs(claim.difference.value / claim.difference.error) if claim.statistical else 0.0


class Curve(NamedTuple):
    """Measured points with standard errors (0 for none), and the law at the same places; None where there is none."""

    label: str
    x: np.ndarray
    y: np.ndarray
    error: np.ndarray | None = None
    law: np.ndarray | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in self._asdict().items()
        }


def curve_of(label: str, x: Any, means: Sequence[Mean], law: Any = None) -> Curve:
    """The curve of means and their errors."""
    values, errors, _ = np.array(means).T
    return Curve(label, np.asarray(x), values, errors, law)


class Panel(NamedTuple):
    """Curves of a figure, the title, and what its axes show."""

    title: str
    x: str
    y: str
    curves: Sequence[Curve]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return self._asdict() | {"curves": [curve.to_dict() for curve in self.curves]}


@dataclass
class Findings:
    """What an experiment found: claims, each with its row, and the panels of its figure."""

    claims: list[Claim] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)

    def add(self, row: str, *claims: Claim) -> None:
        """Add claims of a row."""
        self.claims += [replace(claim, row=row) for claim in claims]

    @classmethod
    def of_row(cls, row: str, claims: Iterable[Claim], *panels: Panel) -> "Findings":
        """Claims that all belong to one row."""
        found = cls(panels=list(panels))
        found.add(row, *claims)
        return found


def listed(values: Iterable[Any], form: str = "") -> str:
    """Values separated by commas, each in a format."""
    return ", ".join(format(value, form) for value in values)


def mean_of(samples: Any) -> Mean:
    """Mean over independent replicates with its standard error."""
    samples = np.ravel(np.asarray(samples, float))
    return Mean(float(samples.mean()), float(samples.std(ddof=1) / np.sqrt(samples.size)), samples.size - 1)


def pooled(means: Sequence[Mean]) -> Mean:
    """Mean of independent means, each with its own error."""
    values, errors, _ = np.array(means).T
    return Mean(float(values.mean()), float(np.sqrt(np.sum(errors**2)) / len(means)))


def jackknife(statistic: Callable[..., float], batches: Sequence[Any]) -> Mean:
    """A smooth function of averages over independent batches, by leaving out one batch at a time.

    Args:
        statistic: of averages over batches; one argument for each array.
        batches: arrays whose first axis is that of batches.
    """
    count = len(batches[0])
    whole = statistic(*(np.mean(array, 0) for array in batches))
    rest = [statistic(*((np.sum(array, 0) - array[i]) / (count - 1) for array in batches)) for i in range(count)]
    pseudo = count * whole - (count - 1) * np.array(rest)
    return mean_of(pseudo)


def exponent(x: Any, means: Sequence[Mean]) -> Mean:
    """Slope of the logarithm of independent means against log x."""
    centred = np.log(np.asarray(x, float)) - np.log(np.asarray(x, float)).mean()
    weights = centred / (centred @ centred)
    values, errors, degrees = np.array(means).T
    variances = (weights * errors / values) ** 2
    spread = np.sum(variances**2 / degrees)
    return Mean(
        float(weights @ np.log(values)),
        float(np.sqrt(variances.sum())),
        float(variances.sum() ** 2 / spread) if spread > 0 else math.inf,
    )


def slope(x: Any, squares: Any) -> Mean:
    """Slope of log RMS against log x, with its standard error, from replicates of squared errors (x, replicate)."""
    return exponent(x, [mean_of(replicates) for replicates in squares]).times(0.5)


def law_slope(x: Any, squares: Any) -> float:
    """The same slope for values of a law, in place of replicates."""
    return exponent(x, [Mean(float(value)) for value in squares]).value / 2
