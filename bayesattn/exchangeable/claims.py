"""A claim, the law that it predicts, what was measured, and whether it holds."""

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

STANDARD_ERRORS = 3.0
"""A measured value agrees with its law within so many standard errors."""


@dataclass(frozen=True)
class Claim:
    """One claim of EXCHANGEABILITY.

    Args:
        section: of EXCHANGEABILITY; 7 is the bridge to attention networks.
        statement: what is claimed.
        law: the formula behind `predicted`.
        predicted: by the formula.
        measured: independently of it.
        relation: how they should compare: "=", "<=" or ">=".
        error: standard error of `measured`; 0 where it is exact.
        tolerance: most difference where it is exact.
        within: most difference, where the claim states one, whatever the standard error.
        literal: whether this is a literal reading of what the paper claims (its theorem text was not at hand), which fails
            where another claim, with a qualification, holds.
    """

    section: int
    statement: str
    law: str
    predicted: float
    measured: float
    relation: str = "="
    error: float = 0.0
    tolerance: float = 0.0
    within: float | None = None
    literal: bool = False

    def __post_init__(self):
        for name in ("predicted", "measured", "error", "tolerance"):
            object.__setattr__(self, name, float(getattr(self, name)))

    @property
    def holds(self) -> bool:
        """Whether the measured value is as predicted; what is not finite is not."""
        slack = STANDARD_ERRORS * self.error + self.tolerance if self.within is None else self.within
        difference = self.measured - self.predicted
        within = {"=": abs(difference) <= slack, "<=": difference <= slack, ">=": difference >= -slack}
        return self._finite and bool(within[self.relation])

    @property
    def as_expected(self) -> bool:
        """It holds, or it is literal and fails."""
        return self._finite and self.holds != self.literal

    @property
    def _finite(self) -> bool:
        return bool(np.isfinite([self.predicted, self.measured, self.error, self.tolerance]).all())

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self) | {"holds": self.holds, "as_expected": self.as_expected}


class Curve(NamedTuple):
    """Measured points with standard errors (0 for none), and the law at the same places; None where there is none."""

    label: str
    x: np.ndarray
    y: np.ndarray
    error: np.ndarray | None = None
    law: np.ndarray | None = None


@dataclass
class Findings:
    """Claims, and the curves of each panel of the figure."""

    claims: list[Claim] = field(default_factory=list)
    panels: dict[str, list[Curve]] = field(default_factory=dict)


class Mean(NamedTuple):
    """A mean and its standard error."""

    value: float
    error: float


def mean_of(samples: Any) -> Mean:
    """Mean over replicates, axis 0, with its standard error."""
    samples = np.asarray(samples, float)
    return Mean(float(samples.mean()), float(samples.std(ddof=1) / np.sqrt(samples.size)))


def slope(x: Any, squares: Any) -> Mean:
    """Slope of log RMS against log x, with its standard error, from replicates of squared errors (x, replicate)."""
    squares = np.asarray(squares, float)
    means, count = squares.mean(1), squares.shape[1]
    # Error of half the logarithm of each mean.
    errors = squares.std(1, ddof=1) / np.sqrt(count) / (2 * means)
    weights = _slope_weights(x)
    return Mean(float(weights @ np.log(means) / 2), float(np.sqrt(np.sum((weights * errors) ** 2))))


def law_slope(x: Any, squares: Any) -> float:
    """The same slope for values of a law, in place of replicates."""
    return float(_slope_weights(x) @ np.log(np.asarray(squares)) / 2)


def _slope_weights(x: Any) -> np.ndarray:
    centred = np.log(np.asarray(x, float)) - np.log(np.asarray(x, float)).mean()
    return centred / (centred @ centred)
