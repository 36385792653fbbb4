"""Truth of a reference posterior: means and standard deviations by two routes, quantiles by one, all with errors.

The second route checks the quantiles by the probabilities of values below them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

from bayesattn._util.text import Described

if TYPE_CHECKING:
    import pandas as pd

LEVELS = (0.1, 0.5, 0.9)
"""Probabilities of the quantiles."""
AGREEMENT = float(2 * stats.norm.sf(4))
"""Probability of a false alarm over all numbers together: that of one normal number beyond four standard errors."""


@dataclass(frozen=True, eq=False)
class Estimates:
    """Estimates of some quantities by one route.

    Args:
        mean, sd: mean and standard deviation of each quantity.
        below: probability of a value at or below each quantile that the first route found.
        mean_error, sd_error, below_error: their standard errors.
    """

    mean: Float[np.ndarray, " quantity"]
    mean_error: Float[np.ndarray, " quantity"]
    sd: Float[np.ndarray, " quantity"]
    sd_error: Float[np.ndarray, " quantity"]
    below: Float[np.ndarray, "quantity level"]
    below_error: Float[np.ndarray, "quantity level"]

    def z_scores(self, other: "Estimates") -> Float[np.ndarray, "quantity number"]:
        """Differences over combined errors: of the mean, the standard deviation, and the share below each quantile."""

        def z(name: str) -> Float[np.ndarray, "quantity ..."]:
            error = np.hypot(getattr(self, f"{name}_error"), getattr(other, f"{name}_error"))
            return ((getattr(self, name) - getattr(other, name)) / error).reshape(len(self.mean), -1)

        return np.concatenate([z("mean"), z("sd"), z("below")], axis=1)


class Agreement(NamedTuple):
    """Agreement of two routes: the largest |z|, the number of z-scores, and the bound of the largest.

    If the routes agree, the largest |z| exceeds the bound with probability `AGREEMENT` at most.
    """

    largest: float
    count: int
    bound: float

    @property
    def holds(self) -> bool:
        """Whether the errors explain the difference."""
        return self.largest <= self.bound


@dataclass(frozen=True, eq=False, repr=False)
class Truth(Described):
    """Moments and quantiles of a reference posterior, with errors.

    Args:
        names: names of the quantities.
        first: estimates from collapsed chains.
        quantiles: their quantiles at `LEVELS`.
        quantile_error: standard errors of these.
        second: estimates by the other route.
        route: the other route, in words.
        ess: effective sample size of each quantity in the collapsed chains.
        data: digest of the data.
    """

    names: Sequence[str]
    first: Estimates
    quantiles: Float[np.ndarray, "quantity level"]
    quantile_error: Float[np.ndarray, "quantity level"]
    second: Estimates
    route: str
    ess: Float[np.ndarray, " quantity"]
    data: str

    @cached_property
    def combined(self) -> Estimates:
        """Averages of both routes, weighted by precision."""
        averages = {}
        for name in ("mean", "sd", "below"):
            values, errors = (
                np.stack([getattr(route, f"{name}{of}") for route in (self.first, self.second)])
                for of in ("", "_error")
            )
            weights = errors**-2
            averages |= {name: (weights * values).sum(0) / weights.sum(0), f"{name}_error": weights.sum(0) ** -0.5}
        return Estimates(**averages)

    @property
    def agreement(self) -> Agreement:
        """Agreement of the two routes, over all quantities together."""
        z_scores = self.first.z_scores(self.second)
        bound = float(stats.norm.isf(AGREEMENT / (2 * z_scores.size)))
        return Agreement(float(np.max(np.abs(z_scores))), z_scores.size, bound)

    @property
    def largest_error(self) -> float:
        """Largest error of a mean, standard deviation or quantile in the collapsed chains, in standard deviations."""
        errors = np.column_stack([self.first.mean_error, self.first.sd_error, self.quantile_error])
        return float(np.max(errors / self.first.sd[:, None]))

    @property
    def table(self) -> "pd.DataFrame":
        """One row per quantity.

        Columns: mean, standard deviation and quantiles with their errors, the mean by each route, and the effective number
        of draws of the chains.
        """
        import pandas as pd

        best = self.combined
        columns = {"mean": best.mean, "mean error": best.mean_error, "sd": best.sd, "sd error": best.sd_error}
        for level, at, error in zip(LEVELS, self.quantiles.T, self.quantile_error.T, strict=True):
            columns |= {f"{level:.0%}": at, f"{level:.0%} error": error}
        for route, of in (("chains", self.first), ("other route", self.second)):
            columns |= {f"{route}: mean": of.mean, f"{route}: error": of.mean_error}
        columns |= {"effective draws": self.ess}
        return pd.DataFrame(columns, index=pd.Index(self.names, name="quantity"))

    @classmethod
    def open(cls, file: Path) -> "Truth":
        """Truth from a file that `benchmarks/reference_truths.py` wrote."""
        with np.load(file, allow_pickle=False) as stored:
            first, second = (
                Estimates(**{each.name: stored[f"{route}_{each.name}"] for each in fields(Estimates)})
                for route in ("first", "second")
            )
            return cls(
                names=stored["names"].tolist(),
                first=first,
                quantiles=stored["quantiles"],
                quantile_error=stored["quantile_error"],
                second=second,
                route=str(stored["route"]),
                ess=stored["ess"],
                data=str(stored["data"]),
            )

    def _described(self) -> tuple[str, dict[str, str]]:
        return f"Truth of {len(self.names)} quantities", {
            "errors": f"at most {100 * self.largest_error:.2g} % of a posterior standard deviation",
            "other route": self.route,
        }
