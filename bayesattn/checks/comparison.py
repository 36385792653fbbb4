"""Comparison of draws with theory for families of quantities: tests of each and of all jointly, and confidence bounds.

A difference counts only if it exceeds the order in 1/N that the theory leaves out plus the Monte Carlo error, corrected for
the number of quantities.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats

from bayesattn._util.plain_values import PlainDict

if TYPE_CHECKING:
    import pandas as pd

PRINCIPAL_DIRECTIONS = 3
"""Number of directions in which batches of draws differ most, along which mean predictors are compared."""
Real = TypeVar("Real", float, np.ndarray)


@dataclass(frozen=True, eq=False)
class Compared:
    """Family of quantities, draws against theory: entries of U, or the mean predictor along directions.

    `difference` is draws minus corrected theory. `error` is its Monte Carlo error, with `freedom` degrees of freedom of
    Student's t. `allowance` is the size of the terms that the theory leaves out, and `size` the size of the quantity itself.
    `level` is the probability that a correct theory fails in any quantity, `confidence_level` the probability that `bound`
    is wrong.
    """

    names: list[str]
    difference: Float[np.ndarray, " quantity"]
    error: Float[np.ndarray, " quantity"]
    freedom: Float[np.ndarray, " quantity"]
    allowance: Float[np.ndarray, " quantity"]
    size: Float[np.ndarray, " quantity"]
    level: float
    confidence_level: float

    @property
    def noise(self) -> Float[np.ndarray, " quantity"]:
        """Largest difference that Monte Carlo error explains, corrected for the number of quantities (Bonferroni)."""
        return stats.t.isf(self.level / 2 / len(self.names), self.freedom) * self.error

    @property
    def z(self) -> Float[np.ndarray, " quantity"]:
        """Differences in units of their Monte Carlo errors, without allowance; NaN or infinite if draws do not vary."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.difference / self.error

    @property
    def agrees(self) -> Bool[np.ndarray, " quantity"]:
        """Whether allowance and Monte Carlo error explain each difference; False for NaN."""
        return np.abs(self.difference) <= self.allowance + self.noise

    @property
    def excess(self) -> Float[np.ndarray, " quantity"]:
        """Ratio of each difference to the sum of allowance and `noise`."""
        return np.abs(self.difference) / (self.allowance + self.noise)

    @property
    def bound(self) -> Float[np.ndarray, " quantity"]:
        """Upper confidence bound of each difference, relative to the quantity."""
        return (np.abs(self.difference) + stats.t.isf(self.confidence_level, self.freedom) * self.error) / self.size

    def relative(self) -> "pd.DataFrame":
        """Table of the quantities, relative to their sizes: |difference|, error, allowance, noise and bound."""
        import pandas as pd

        parts = {"difference": np.abs(self.difference), "error": self.error}
        parts |= {"allowance": self.allowance, "noise": self.noise}
        columns = {name: values / self.size for name, values in parts.items()} | {"bound": self.bound}
        return pd.DataFrame(columns, index=pd.Index(self.names, name="quantity"))

    def to_dict(self) -> PlainDict:
        """Plain numbers and lists, for JSON."""
        columns = ("difference", "error", "freedom", "allowance", "size", "bound", "agrees")
        return {"names": self.names} | {name: getattr(self, name).tolist() for name in columns}


def level_of_each(level: float, with_predictor: bool) -> float:
    """Level of each test: of single entries, of all entries jointly and, if there is one, of the mean predictor."""
    return level / (3 if with_predictor else 2)


def joint_p_of(entries: Compared, draws: Float[np.ndarray, "draw entry"]) -> float:
    """p-value of sum_i z_i^2, where z_i is the difference beyond the allowance, in Monte Carlo errors.

    If the theory is right, the sum is at most a sum of chi^2(1) variables weighted by the eigenvalues lambda of the
    correlation matrix of the entries, estimated from the draws. The mean of z_i^2 then is approximately F-distributed, with
    (sum lambda)^2 / sum lambda^2 degrees of freedom in the numerator (Satterthwaite 1946). NaN for a single draw.
    """
    if len(draws) < 2:
        return float("nan")
    excess = np.maximum(np.abs(entries.difference) - entries.allowance, 0) / entries.error
    with np.errstate(invalid="ignore", divide="ignore"):
        correlations = np.corrcoef(draws, rowvar=False).reshape(len(excess), -1)
    freedom = len(excess) ** 2 / np.sum(correlations**2)
    return float(stats.f.sf(np.mean(excess**2), freedom, np.min(entries.freedom)))


def next_order(first: Real, relative_variance: Real) -> Real:
    """Relative size of the next order in 1/N, first (first + relative_variance), given the first-order change `first`.

    A mean over fluctuations of U is a series in this change and in their relative variance: each term is smaller than the
    previous one by about one of the two factors. The square of the variance alone is not a term, since without data the
    mean of U is exact.
    """
    return first * (first + relative_variance)


def along_directions(
    mean_predictors: dict[str, Float[np.ndarray, " test_label"]],
    batches: Float[np.ndarray, "batch test_label"],
    relative_variance: float,
    level: float,
) -> Compared:
    """Mean predictors of draws and corrected theory along directions of unit root mean square.

    The allowance is the order after the first-order change, for the largest relative variance of U (`next_order`). Errors
    are NaN for a single batch.
    """
    saddle, corrected, gp = (mean_predictors[name] for name in ("theory", "corrected", "gp"))
    directions = {
        "the first-order change": corrected - saddle,
        "the finite-width effect": saddle - gp,
        "the mean predictor": corrected,
    }
    principal = np.linalg.svd(batches - batches.mean(0), full_matrices=False)[2][:PRINCIPAL_DIRECTIONS]
    directions |= {f"principal direction {number}": vector for number, vector in enumerate(principal, 1)}
    directions = {name: vector / _root_mean_square(vector) for name, vector in directions.items() if np.any(vector)}
    units = np.array(list(directions.values()))
    projected = (batches - corrected) @ units.T / len(corrected)
    size = _root_mean_square(corrected)
    first = _root_mean_square(corrected - saddle) / size

    def same(value: float) -> np.ndarray:
        return np.full(len(units), value)

    return Compared(
        names=list(directions),
        difference=projected.mean(0),
        error=projected.std(0, ddof=1) / np.sqrt(len(batches)) if len(batches) > 1 else same(np.nan),
        freedom=same(len(batches) - 1.0),
        allowance=same(next_order(first, relative_variance) * size),
        size=same(size),
        level=level_of_each(level, with_predictor=True),
        confidence_level=level,
    )


def _root_mean_square(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))
