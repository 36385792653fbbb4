"""Learning coefficient (real log canonical threshold, RLCT) of a network's posterior at a series of temperatures.

With S = |Y - f|^2, summed over examples and outputs, and S* its least value,

    lambda_hat(T) = E[S - S*] / (2 T)  ->  lambda  as T -> 0

(Watanabe 2009). With the mean loss L_n = S / (2 n) of n examples, S / (2 T) is n beta L_n at T = 1 / beta. Given the order
parameter U, the expectation has a closed form (`bayesattn.questions.singular.loss`). So a chain of U gives lambda_hat
without drawing weights: everything but U is integrated out.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from bayesattn import samplers, theory
from bayesattn._util.checks import Checked, entries, positive, positive_integer, require_kind, seed_number
from bayesattn._util.errors import BayesattnError
from bayesattn._util.plain import PlainDict
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described, with_error
from bayesattn.checks.mixing import moments
from bayesattn.compressed import Compressed
from bayesattn.dataset import Dataset
from bayesattn.models.draws import CHAIN_AXES, Draws, opened_of
from bayesattn.models.model import Model
from bayesattn.questions.singular.best_fit import NEGLIGIBLE_SHARE, BestFit, best_fit_of
from bayesattn.questions.singular.limit import Interval, Limit, fitted, largest_multiplicity
from bayesattn.questions.singular.loss import attained, example_losses, factors, loss
from bayesattn.theory import NotConverged

if TYPE_CHECKING:
    import pandas as pd

DECADES = 9
"""Default number of temperatures, each a tenth of the one before; fewer where float64 does not allow so many."""
WARMEST_SHARE = 0.1
"""Warmest of the default temperatures, as a share of the mean eigenvalue of the prior covariance K of the outputs, with
at most Pi N_0 examples."""
OPTIONS = {"target_accept_prob": 0.95}
"""Target acceptance of step sizes: with target 0.8, some chains at T = 1e-8 had 0.4 and hardly moved for a long time."""
MOST_LABELS, MOST_ROWS, MOST_DRAWS = 2000, 500, 1000
"""Most labels, rows of the matrix to invert, and draws, for the losses of single examples."""


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
        slope: derivative of lambda_hat by log T.
        slope_error: its Monte Carlo standard error.
        best_fit: S* and how it is known.
        ess: effective sample size of the expectation given U.
        rhat: its R-hat.
        singular_fluctuation: half the sum over examples of the posterior variance of |Y_i - f_i|^2 / (2 T), with errors:
            Watanabe's (2009) for noise of variance T and beta = 1, of these examples alone. None if the examples are
            compressed, or too many (`MOST_LABELS`, `MOST_ROWS`).
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
        change = temperatures[:-1] - temperatures[1:]
        sums, errors = temperatures * self.value, temperatures * self.error
        return Differences(
            (temperatures[:-1] + temperatures[1:]) / 2,
            (sums[:-1] - sums[1:]) / change,
            np.hypot(errors[:-1], errors[1:]) / change,
        )

    @property
    def between(self) -> Differences:
        """Means of lambda_hat over log T between neighbouring temperatures, by values and slopes of the chains.

        The rule is the trapezoidal one with end corrections, whose error of fourth order in the step is not part of the
        errors. `from_evidence` estimates the same from other draws. Temperatures are geometric means.
        """
        temperatures, value, slope = self.temperatures, self.value, self.slope
        step = np.log(temperatures[:-1] / temperatures[1:])
        of_values = np.hypot(self.error[:-1], self.error[1:]) / 2
        of_slopes = step / 12 * np.hypot(self.slope_error[:-1], self.slope_error[1:])
        return Differences(
            np.sqrt(temperatures[:-1] * temperatures[1:]),
            (value[:-1] + value[1:]) / 2 + step / 12 * (slope[1:] - slope[:-1]),
            np.hypot(of_values, of_slopes),
        )

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
        step = np.log(temperatures[:-1] / temperatures[1:])
        return Differences(
            np.sqrt(temperatures[:-1] * temperatures[1:]),
            (total[:-1] - total[1:]) / step,
            np.hypot(errors[:-1], errors[1:]) / step,
        )

    @cached_property
    def fit(self) -> Limit:
        """Fit of the limit of small T; see `limit` and `multiplicity`."""
        largest = largest_multiplicity(self.model.architecture, self.model.path_inputs.shape[2])
        return fitted(self.temperatures, self.value, self.error, largest)

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
        """All results as plain numbers and lists, for JSON."""
        result: PlainDict = {
            name: getattr(self, name).tolist()
            for name in ("temperatures", "value", "error", "slope", "slope_error", "ess", "rhat")
        }
        result |= {
            "best_fit": self.best_fit._asdict(),
            "limit": self.limit._asdict(),
            "multiplicity": self.multiplicity._asdict(),
            "statement": self.fit.statement,
            "stopped": self.stopped,
            "two_temperature": {name: array.tolist() for name, array in self.two_temperature._asdict().items()},
        }
        if self.singular_fluctuation is not None:
            named = self.singular_fluctuation._asdict().items()
            result["singular_fluctuation"] = {name: array.tolist() for name, array in named}
        return result

    def _described(self) -> tuple[str, dict[str, str]]:
        coldest = f"{with_error(self.value[-1], self.error[-1])} at T = {self.temperatures[-1]:.2g}"
        rows = {"coldest": coldest, "S*": f"{self.best_fit.square:.4g}, {self.best_fit.how}"}
        if len(self.temperatures) > 1:
            rows |= {"limit": self.fit.statement}
        return f"Learning coefficient at {len(self.temperatures)} temperatures", rows


@with_own_settings
def learning_coefficient(
    model: Model,
    temperatures: Checked = None,
    *,
    best_fit: float | None = None,
    chains: int = 4,
    warmup: int = 500,
    draws: int = 1000,
    seed: int = 0,
    sample: Callable[..., Draws] = samplers.sample,
    progress: Callable[[str], None] | None = None,
) -> LearningCoefficient:
    """Learning coefficient (RLCT) of a posterior at some temperatures, exact up to Monte Carlo error if S* is known.

    The prior is positive everywhere, so it is the global coefficient, not the local one (LLC) at trained weights; with
    labels 0 it is also the local one at weights 0.

    Args:
        model: the posterior, with Gaussian labels; its own temperature is not used.
        temperatures: T, one or several; by default up to nine, each a tenth of the one before, down to where float64
            allows.
        best_fit: S*, the least |Y - f|^2 of all weights, if it is known. By default, the residual of linear regression on
            the path inputs if the widths allow every readout; otherwise the least value that searches from 16 prior draws
            and the chains find, an upper bound. An excess of d lowers lambda_hat by d / (2 T).
        chains: chains at each temperature.
        warmup: adaptation steps of each chain.
        draws: draws of each chain.
        seed: seed of chains and searches.
        sample: function that draws, with the arguments of `bayesattn.sample`; with a function that calls
            `bayesattn.runs.sample`, with a folder for each temperature, draws are kept on disk and resumed.
        progress: function that is called with a line of text before each temperature.

    Raises:
        ValueError: a model without Gaussian labels, temperatures that are not above 0 or occur twice, path inputs that are
            all 0, an S* above a value that the chains attain.
        NotConverged: a given temperature is too low for float64, or the warmest of the default ones is.
    """
    require_kind("model", model, Model)
    model.require_gaussian()
    job = checked_job(chains, warmup, draws, seed)
    given = temperatures is not None
    smaller, residual = reduced(model)
    chosen = _checked(temperatures) if given else _decades(smaller)
    if progress is not None:
        progress("least sum of squares")
    least = best_fit_of(smaller, best_fit, residual=residual, seed=seed)
    columns: list[dict[str, np.ndarray]] = []
    spread: list[tuple[float, float]] = []
    stopped = None
    for temperature in chosen:
        if progress is not None:
            progress(f"T = {temperature:.3g}")
        try:
            cold = smaller.replace(temperature=temperature)
            tree = opened_of(sample(cold, progress=False, **job), cold)
        except (NotConverged, FloatingPointError, BayesattnError) as error:
            of_storage = isinstance(error, BayesattnError) and type(error) is not BayesattnError
            if given or not columns or of_storage:
                raise
            stopped = f"float64 does not suffice at T = {temperature:.3g}: {error}"
            break
        estimates, drawn = by_chains(cold, tree)
        least = _with_draws(least, residual, cold, drawn, float(estimates["error"]))
        columns.append(estimates)
        spread.append(_fluctuation(model, temperature, drawn, chains))
    arrays: Any = {name: np.array([column[name] for column in columns]) for name in columns[0]}
    reached = np.array(chosen[: len(columns)])
    offset = (least.square - residual) / (2 * reached)
    arrays |= {"value": arrays["value"] - offset, "slope": arrays["slope"] + offset}
    fluctuation = np.array(spread)
    return LearningCoefficient(
        model=model,
        temperatures=reached,
        **arrays,
        best_fit=least,
        singular_fluctuation=None if np.isnan(fluctuation).all() else Estimates(*fluctuation.T),
        seed=seed,
        stopped=stopped,
    )


def checked_job(chains: int, warmup: int, draws: int, seed: int) -> PlainDict:
    """Arguments of `sample`; raises ValueError if they are not whole numbers."""
    return {
        "sampler": "nuts",  # The options are its own.
        "chains": positive_integer("chains", chains),
        "warmup": positive_integer("warmup", warmup, 0),
        "draws": positive_integer("draws", draws),
        "seed": seed_number("seed", seed),
        "keep": ("order_parameter",),
        "options": OPTIONS,
    }


def by_chains(cold: Model, tree: xr.DataTree) -> tuple[dict[str, np.ndarray], Float[Array, "draw row column"]]:
    """E[S] / (2 T), its error, slope and mixing from collapsed draws of a reduced model, with their factors of U."""
    points = tree["posterior"].to_dataset()["bartlett"].values
    drawn = factors(cold, points.reshape(-1, points.shape[-1]))
    mean, slope = (values.reshape(points.shape[:2]) for values in loss(cold.gaussian_process, drawn))
    found = _moments(mean)
    # d E[g] / d log T = E[dg / d log T] + Var(g), since g is also the derivative of the log density of U by log T.
    change = _moments(slope + (mean - mean.mean()) ** 2)
    estimates = {"value": found["mean"], "slope": change["mean"], "slope_error": change["error"]}
    return estimates | {name: found[name] for name in ("error", "ess", "rhat")}, drawn


def _with_draws(
    least: BestFit, residual: float, cold: Model, drawn: Float[Array, "draw row column"], error: float
) -> BestFit:
    """S*, replaced by the least value of the draws if that is lower."""
    if least.how == "not needed":
        return least
    lowest = residual + float(np.min(np.asarray(attained(cold.gaussian_process, drawn))))
    return least.held_against(lowest, 2 * cold.temperature * error)


def _moments(values: Float[np.ndarray, "chain draw"]) -> dict[str, np.ndarray]:
    return moments(xr.DataArray(values, dims=CHAIN_AXES))


def _fluctuation(
    model: Model, temperature: float, drawn: Float[Array, "draw row column"], chains: int
) -> tuple[float, float]:
    """Singular fluctuation with its error, from a share of the draws; NaN if the examples are many, or compressed."""
    labels = np.size(model.labels)
    rows = min(labels, drawn.shape[2] * model.path_inputs.shape[2])
    if model.compressed is not None or labels > MOST_LABELS or rows > MOST_ROWS:
        return float("nan"), float("nan")
    every = max(1, len(drawn) // MOST_DRAWS)
    chosen = drawn.reshape(chains, -1, *drawn.shape[1:])[:, ::every]
    mean, variance = map(
        np.asarray, example_losses(model.gaussian_process.at(temperature), chosen.reshape(-1, *drawn.shape[1:]))
    )
    found = _moments(((variance + (mean - mean.mean(0)) ** 2).sum(1) / 2).reshape(chains, -1))
    return float(found["mean"]), float(found["error"])


def reduced(model: Model) -> tuple[Model, float]:
    """Model with at most Pi N_0 examples and the same lambda_hat, and the part of |Y|^2 that no readout explains.

    It has no tokens and no test examples, and gives no warnings about its labels, which are not the user's.
    """
    compressed = model.compressed
    _, paths, features = model.path_inputs.shape
    if compressed is None:
        if len(model.path_inputs) <= paths * features:
            return model.replace(test_path_inputs=None, test_labels=None, tokens=None), 0.0
        compressed = Compressed.of(model.path_inputs, model.labels)
    dataset = Dataset(path_inputs=compressed.path_inputs, labels=compressed.labels)
    residual = float(compressed.residual.square)
    explained = float(np.vdot(compressed.labels, compressed.labels))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        smaller = model.replace(dataset=dataset, tokens=None)
    return smaller, 0.0 if residual <= NEGLIGIBLE_SHARE * explained else residual


def _checked(temperatures: Checked) -> list[float]:
    """Temperatures, the warmest first."""
    listed = [temperatures] if np.ndim(temperatures) == 0 else entries("temperatures", temperatures, "numbers above 0")
    checked = sorted((positive("temperatures", each) for each in listed), reverse=True)
    if not checked or len(set(checked)) < len(checked):
        raise BayesattnError(f"temperatures must be different numbers above 0, at least one, got {temperatures!r}")
    return checked


def _decades(model: Model) -> list[float]:
    """Default temperatures: powers of ten from a tenth of the mean prior variance of the outputs."""
    kernel = model.gaussian_process.kernel_of(theory.gp_order_parameter(model.architecture))
    mean = float(np.trace(kernel)) / len(kernel)
    if mean == 0:
        raise BayesattnError("path inputs must not all be 0, for the learning coefficient is then 0")
    warmest = int(np.floor(np.log10(WARMEST_SHARE * mean)))
    return [float(f"1e{warmest - step}") for step in range(DECADES)]
