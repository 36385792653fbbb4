"""A claim, the law that it predicts, what was measured, and whether it holds."""

from collections.abc import Sequence
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
    def as_expected(self) -> bool:
        """Whether every claim is."""
        return all(claim.as_expected for claim in self.claims)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "holds": self.as_expected,
            "claims": [claim.to_dict() for claim in self.claims],
            "panels": {name: [curve.to_dict() for curve in panel] for name, panel in self.panels.items()},
        }


class Mean(NamedTuple):
    """A mean and its standard error."""

    value: float
    error: float


def mean_of(samples: Any) -> Mean:
    """Mean over replicates, axis 0, with its standard error."""
    samples = np.asarray(samples, float)
    return Mean(float(samples.mean()), float(samples.std(ddof=1) / np.sqrt(samples.size)))


def exponent(x: Any, means: Sequence[Mean]) -> Mean:
    """Slope of the logarithm of means against log x."""
    centred = np.log(np.asarray(x, float)) - np.log(np.asarray(x, float)).mean()
    weights = centred / (centred @ centred)
    values, errors = np.array(means).T
    return Mean(float(weights @ np.log(values)), float(np.linalg.norm(weights * errors / values)))


def slope(x: Any, squares: Any) -> Mean:
    """Slope of log RMS against log x, with its standard error, from replicates of squared errors (x, replicate)."""
    of_squares = exponent(x, [mean_of(replicates) for replicates in squares])
    return Mean(of_squares.value / 2, of_squares.error / 2)


def law_slope(x: Any, squares: Any) -> float:
    """The same slope for values of a law, in place of replicates."""
    return exponent(x, [Mean(value, 0.0) for value in squares]).value / 2
