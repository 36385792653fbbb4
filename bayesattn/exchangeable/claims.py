"""A claim, the law that it predicts, what was measured, and whether it holds at a family-wise level."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from scipy import special

FAMILY_LEVEL = 0.001
"""Probability that any claim that is true fails by chance, all claims of one seed together, were all errors Student's.

One claim's are skewed, which makes it about 0.14 %: over twenty seeds 3 %.
"""


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
    """One claim of EXCHANGEABILITY, or of THEORY.

    Args:
        section: of EXCHANGEABILITY, where 7 is the bridge to attention networks; of THEORY for claims on attention paths.
        statement: what is claimed.
        law: the formula behind `predicted`.
        predicted: by the formula; a `Mean` where the formula itself was averaged over draws.
        measured: independently of it; a `Mean` where it was drawn.
        relation: how they should compare: "=", "<=" or ">=".
        tolerance: most difference where both are exact.
        allowance: size of what the law leaves out, such as terms of order 1/N^2: so much of a difference is not held
            against it, whatever the errors. The planted law is given the same.
        literal: whether this is a literal reading of what the paper claims (its theorem text was not at hand), which fails
            where another claim, with a qualification, holds.
        entries: of how many numbers this is the worst; the p-value is for all of them (Bonferroni).
        planted: what a wrong law predicts, which the numbers have to tell from the right one; None if none is planted.
        wrong: which wrong law that is.
        wrong_relation: how the wrong law says they compare, if not as the claim does: "<=" of "there is no gain", where the
            claim is that there is one, ">=".
    """

    section: int
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

    def holds(self, level: float) -> bool:
        """Whether the p-value is not below a level; what is not finite does not hold."""
        return self.p_value >= level

    def finds_planted(self, level: float) -> bool:
        """Whether the wrong law fails; True where none is planted."""
        relation = self.wrong_relation or self.relation
        return self.planted is None or not replace(self, predicted=self.planted, planted=None, relation=relation).holds(
            level
        )

    def as_expected(self, level: float) -> bool:
        """It holds, or it is literal and fails."""
        return not math.isnan(self.p_value) and self.holds(level) != self.literal

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; null for infinitely many degrees of freedom, and what is not defined."""
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
        }
        finite = {name: value if value is not None and np.isfinite(value) else None for name, value in numbers.items()}
        words = ("section", "statement", "law", "relation", "literal", "entries")
        return {name: getattr(self, name) for name in words} | finite


def worst(
    section: int, statement: str, law: str, predicted: Iterable[Any], measured: Iterable[Mean], **rest: Any
) -> Claim:
    """The claim on the worst of several numbers, whose p-value accounts for how many there are."""
    pairs = list(zip(predicted, measured, strict=True))
    claims = [Claim(section, statement, law, *pair, entries=len(pairs), **rest) for pair in pairs]
    return min(claims, key=lambda claim: (not math.isnan(claim.p_value), claim.p_value, -_score(claim)))


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


@dataclass
class Findings:
    """Claims, and the curves of each panel of the figure."""

    claims: list[Claim] = field(default_factory=list)
    panels: dict[str, list[Curve]] = field(default_factory=dict)

    @property
    def level(self) -> float:
        """p-value below which a claim fails: the family-wise level over the number of statistical claims (Bonferroni)."""
        return FAMILY_LEVEL / max(1, sum(claim.statistical for claim in self.claims))

    def holds(self, claim: Claim) -> bool:
        """Whether a claim holds, the number of claims accounted for."""
        return claim.holds(self.level)

    @property
    def unexpected(self) -> list[Claim]:
        """Claims that fail, and literal ones that hold."""
        return [claim for claim in self.claims if not claim.as_expected(self.level)]

    @property
    def as_expected(self) -> bool:
        """Whether every claim is."""
        return not self.unexpected

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        verdicts = [{"holds": self.holds(claim), "as_expected": claim.as_expected(self.level)} for claim in self.claims]
        return {
            "holds": self.as_expected,
            "family_level": FAMILY_LEVEL,
            "level": self.level,
            "claims": [claim.to_dict() | verdict for claim, verdict in zip(self.claims, verdicts, strict=True)],
            "panels": {name: [curve.to_dict() for curve in panel] for name, panel in self.panels.items()},
        }


def mean_of(samples: Any) -> Mean:
    """Mean over independent replicates with its standard error."""
    samples = np.ravel(np.asarray(samples, float))
    return Mean(float(samples.mean()), float(samples.std(ddof=1) / np.sqrt(samples.size)), samples.size - 1)


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
