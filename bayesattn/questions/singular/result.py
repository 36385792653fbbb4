"""Result of `learning_coefficient`: estimates at each temperature, from neighbouring ones, and their limit at small T."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from bayesattn import theory
from bayesattn._util.plain_values import PlainDict
from bayesattn._util.text import Described, with_error
from bayesattn.checks.thresholds import ONE_CHAIN, USABLE_RHAT
from bayesattn.models.model import Model
from bayesattn.questions.singular.best_fit import BestFit, reduced
from bayesattn.questions.singular.limit import Interval, Limit, fitted, largest_multiplicity

if TYPE_CHECKING:
    import pandas as pd


class Differences(NamedTuple):
    """Estimates from neighbouring temperatures, at their geometric means, with errors; shape (temperatures - 1,)."""

    temperatures: Float[np.ndarray, " interval"]
    value: Float[np.ndarray, " interval"]
    error: Float[np.ndarray, " interval"]


class Estimates(NamedTuple):
    """Estimates at each temperature, with errors; arrays of shape (temperatures,)."""

    value: Float[np.ndarray, " temperature"]
    error: Float[np.ndarray, " temperature"]


@dataclass(frozen=True, eq=False, repr=False)
class LearningCoefficient(Described):
    """Learning coefficient at each of some temperatures, warmest first.

    Args:
        model: the posterior; its own temperature does not matter.
        temperatures: T, shape (temperatures,).
        value: lambda_hat(T) = E[S - S*] / (2 T).
        error: Monte Carlo standard error of `value`, given S*.
        slope: derivative of lambda_hat by log T; NaN of losses.
        slope_error: its Monte Carlo standard error.
        best_fit: S* and how it is known.
        ess: effective sample size of the expectation given U, or of the losses.
        rhat: its R-hat.
        singular_fluctuation: half the sum over examples of the posterior variance of |Y_i - f_i|^2 / (2 T), with errors:
            Watanabe's (2009) for noise of variance T and beta = 1, of these examples alone. None of losses, or if the
            examples are compressed, or too many.
        seed: seed of the chains.
        stopped: reason why the series of default temperatures ended early, or None.
    """

    model: Model
    temperatures: Float[np.ndarray, " temperature"]
    value: Float[np.ndarray, " temperature"]
    error: Float[np.ndarray, " temperature"]
    slope: Float[np.ndarray, " temperature"]
    slope_error: Float[np.ndarray, " temperature"]
    best_fit: BestFit
    ess: Float[np.ndarray, " temperature"]
    rhat: Float[np.ndarray, " temperature"]
    singular_fluctuation: Estimates | None
    seed: int
    stopped: str | None

    @property
    def two_temperature(self) -> Differences:
        """Differences of E[S] over twice those of T, for neighbouring temperatures (Watanabe 2013); S* is not needed.

        At finite T they are means of d(T lambda_hat) / dT between the two temperatures, stated at the middle of the two.
        """
        temperatures = self.temperatures
        sums, errors = temperatures * self.value, temperatures * self.error
        return Differences((temperatures[:-1] + temperatures[1:]) / 2, *_slopes(temperatures, sums, errors))

    @cached_property
    def from_evidence(self) -> Differences:
        """Means of lambda_hat over log T from differences of `bayesattn.theory.evidence`; computed when first asked for.

        lambda_hat = d(log p(Y) + P m log(T) / 2) / d log T - S* / (2 T). NaN where an evidence is not reliable; errors
        take the evidences as independent.
        """
        smaller, residual = reduced(self.model)
        found = theory.evidences(smaller, list(self.temperatures), seed=self.seed)
        temperatures, labels = self.temperatures, np.size(smaller.labels)
        least = (self.best_fit.square - residual) / (2 * temperatures)
        evidence = np.array([each.log_evidence if each.reliable else np.nan for each in found])
        total = evidence + labels * np.log(temperatures) / 2 + least
        errors = np.array([each.error for each in found])
        middles = np.sqrt(temperatures[:-1] * temperatures[1:])
        return Differences(middles, *_slopes(np.log(temperatures), total, errors))

    @cached_property
    def fit(self) -> Limit:
        """Fit of the limit of small T, from temperatures whose chains mixed; see `limit` and `multiplicity`."""
        largest = largest_multiplicity(self.model.architecture, self.model.path_inputs.shape[2])
        return fitted(self.temperatures, self.value, np.where(self._unmixed, np.nan, self.error), largest)

    @property
    def _unmixed(self) -> Bool[np.ndarray, " temperature"]:
        return self.rhat > USABLE_RHAT  # Of one chain it is NaN.

    @property
    def doubts(self) -> list[str]:
        """Why estimates at some temperatures are not to be trusted, one sentence each; nothing if all chains mixed."""
        found = []
        if np.any(np.isnan(self.rhat) & ~np.isnan(self.error)):
            found.append(f"R-hat is not defined, {ONE_CHAIN}")
        if self._unmixed.any():
            cold = ", ".join(f"{temperature:.2g}" for temperature in self.temperatures[self._unmixed])
            found.append(f"chains did not mix at T = {cold}, which the limit leaves out: R-hat is above {USABLE_RHAT}")
        return found

    @property
    def limit(self) -> Interval:
        """Learning coefficient lambda in the limit of small T, with its error; NaN if the series cannot tell."""
        return self.fit.coefficient

    @property
    def multiplicity(self) -> Interval:
        """Multiplicity theta, with its error; NaN if the series cannot tell."""
        return self.fit.multiplicity

    def summary(self) -> "pd.DataFrame":
        """One row per temperature."""
        import pandas as pd

        columns = {name: getattr(self, name) for name in ("value", "error", "slope", "slope_error", "ess", "rhat")}
        if self.singular_fluctuation is not None:
            value, error = self.singular_fluctuation
            columns |= {"fluctuation": value, "fluctuation_error": error}
        return pd.DataFrame(columns, index=pd.Index(self.temperatures, name="temperature"))

    def to_dict(self) -> PlainDict:
        """The summary and all other results as plain numbers and lists, for JSON."""
        return {
            **self.summary().reset_index(names="temperatures").to_dict(orient="list"),
            "best_fit": self.best_fit._asdict(),
            "limit": self.limit._asdict(),
            "multiplicity": self.multiplicity._asdict(),
            "statement": self.fit.statement,
            "stopped": self.stopped,
            "doubts": self.doubts,
            "two_temperature": {name: array.tolist() for name, array in self.two_temperature._asdict().items()},
        }

    def _described(self) -> tuple[str, dict[str, str]]:
        coldest = f"{with_error(self.value[-1], self.error[-1])} at T = {self.temperatures[-1]:.2g}"
        rows = {"coldest": coldest, "S*": f"{self.best_fit.square:.4g}, {self.best_fit.how}"}
        if len(self.temperatures) > 1:
            rows |= {"limit": self.fit.statement}
        if self.doubts:
            rows["doubts"] = "; ".join(self.doubts)
        return f"Learning coefficient at {len(self.temperatures)} temperatures", rows


def _slopes(
    positions: Float[np.ndarray, " temperature"],
    values: Float[np.ndarray, " temperature"],
    errors: Float[np.ndarray, " temperature"],
) -> tuple[Float[np.ndarray, " interval"], Float[np.ndarray, " interval"]]:
    """Slopes of independent values between neighbouring positions, which decrease, and their errors."""
    steps = positions[:-1] - positions[1:]
    return (values[:-1] - values[1:]) / steps, np.hypot(errors[:-1], errors[1:]) / steps
