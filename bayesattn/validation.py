"""Theory against draws: deviations, their Monte Carlo errors, and the deviation that finite width makes one expect."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import arviz_stats
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Float

from bayesattn import theory
from bayesattn._checks import one_of
from bayesattn.accuracy import (
    Accuracy,
    Alignment,
    accuracy_of,
    accuracy_on,  # noqa: F401
    alignment_over_draws,
    gp_kernel,  # noqa: F401
    gp_mean,
    mean_predictor,
    outputs_of,
    readout_batches,
)
from bayesattn.diagnostics import Diagnostics, diagnose, on_and_below_diagonal
from bayesattn.models import Model
from bayesattn.theory.kernels import unpack

MOST_ERRORS = 4.0
"""Monte Carlo standard errors by which draws and theory may differ before the theory is said to fail."""
USABLE_ESS = 100
USABLE_RHAT = 1.05
"""Draws worse than usable cannot decide whether the theory holds; between usable and good they carry a warning."""
SEEN_ERRORS = 3.0
"""Monte Carlo errors that a deviation must exceed to have a say in a slope: logarithms of noise mislead."""

Matrix = Float[np.ndarray, "path path"]


@dataclass(frozen=True, eq=False)
class Validation:
    """One model's theory held against its draws.

    `order_parameter` is the mean of U over the draws, `error` its Monte Carlo standard error, `saddle` the saddle point,
    `corrected` the theory to first order in 1/N. `expected` is their difference, the deviation from the saddle point that
    finite width makes one expect; `allowance` is the size of the next order, which the corrected theory leaves out.
    `readouts` are those of the mean predictor (`theory.predictor.readouts`) over consecutive batches of draws, four a chain:
    between them, its Monte Carlo error shows; None without test examples. `accuracy` is None without test labels,
    `alignment` where all labels are zero.
    `predictor_deviation` is the root mean square over test examples between mean predictors of draws and of the corrected
    theory, `predictor_error` its Monte Carlo part, `predictor_allowance` its next order.
    `relative_deviation` and `relative_remaining` are deviation from the saddle point and from the corrected theory, along
    the direction in which the latter departs from the former and in units of |saddle|; `relative_error` is the Monte
    Carlo error of both. Being linear in the draws, they are unbiased, which a norm is not.
    """

    model: Model
    order_parameter: Matrix
    error: Matrix
    saddle: Matrix
    corrected: Matrix
    rhat: Matrix
    ess: Matrix
    readouts: Float[np.ndarray, "batch path feature"] | None
    diagnostics: Diagnostics
    accuracy: Accuracy | None
    alignment: Alignment | None
    predictor_deviation: float | None
    predictor_error: float | None
    predictor_allowance: float | None
    relative_deviation: float
    relative_remaining: float
    relative_error: float

    @property
    def width(self) -> int:
        """N_1, which stands for all widths in tables."""
        return self.model.architecture.widths[0]

    @property
    def expected(self) -> Matrix:
        """Deviation from the saddle point expected at this width, of order 1/N."""
        return self.corrected - self.saddle

    @property
    def allowance(self) -> Matrix:
        """Size of what the corrected theory leaves out, of order 1/N^2: the square of its relative correction."""
        size = np.sqrt(np.outer(np.diag(self.corrected), np.diag(self.corrected)))
        return np.max(np.abs(self.expected) / size) ** 2 * size

    @property
    def deviation(self) -> Matrix:
        """Draws minus saddle point."""
        return self.order_parameter - self.saddle

    @property
    def remaining(self) -> Matrix:
        """Draws minus corrected theory."""
        return self.order_parameter - self.corrected

    @property
    def usable(self) -> bool:
        """Whether chains mixed well enough for a verdict."""
        return bool(np.max(self.rhat) <= USABLE_RHAT and np.min(self.ess) >= USABLE_ESS)

    @property
    def holds(self) -> bool:
        """Whether draws agree with the theory: within 4 Monte Carlo errors plus the order that it leaves out."""
        return self.usable and not self.failures()

    def failures(self) -> list[str]:
        """What disagrees, a sentence each."""
        names, found = self.model.path_names, []
        tolerance = MOST_ERRORS * self.error + self.allowance
        for row, column in zip(*np.tril_indices(len(names)), strict=True):
            # Written so that NaN is a failure.
            if not abs(self.remaining[row, column]) <= tolerance[row, column]:
                found.append(
                    f"U[{names[row]}, {names[column]}] is {self.order_parameter[row, column]:.4g}"
                    f" +- {self.error[row, column]:.2g} by the draws, {self.corrected[row, column]:.4g}"
                    f" +- {self.allowance[row, column]:.2g} by the theory"
                )
        if self.predictor_deviation is not None:
            assert self.predictor_error is not None
            assert self.predictor_allowance is not None
            limit = MOST_ERRORS * self.predictor_error + self.predictor_allowance
            if not self.predictor_deviation <= limit:
                found.append(
                    f"mean predictors of draws and theory differ by {self.predictor_deviation:.2g},"
                    f" expected at most {limit:.2g}"
                )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and lists, for JSON."""
        matrices = ("order_parameter", "error", "saddle", "corrected", "allowance", "rhat", "ess")
        return {
            "model": self.model.name,
            "widths": list(self.model.architecture.widths),
            "temperature": self.model.temperature,
            "paths": self.model.path_names,
            "holds": self.holds,
            "usable": self.usable,
            "failures": self.failures(),
            "diagnostics": self.diagnostics.to_dict(),
            "accuracy": self.accuracy.to_dict() if self.accuracy else None,
            "alignment": self.alignment.to_dict() if self.alignment else None,
            "relative_deviation": self.relative_deviation,
            "relative_remaining": self.relative_remaining,
            "relative_error": self.relative_error,
            "predictor_deviation": self.predictor_deviation,
            "predictor_error": self.predictor_error,
            "predictor_allowance": self.predictor_allowance,
        } | {name: getattr(self, name).tolist() for name in matrices}


def validate(model: Model, draws: xr.DataTree) -> Validation:
    """Hold the theory of a model against draws of its posterior.

    Args:
        model: the posterior.
        draws: what `bayesattn.sample` returned for it.

    Raises:
        ValueError: draws without order parameters of this model.
        NotConverged: the theory's solver failed.
    """
    paths = model.architecture.paths
    if "posterior" not in draws.children or "order_parameter" not in draws["posterior"]:
        raise ValueError("draws must hold posterior['order_parameter'], as bayesattn.sample returns it")
    sampled = draws["posterior"].to_dataset()["order_parameter"]
    if sampled.shape[2:] != (paths, paths):
        raise ValueError(
            f"draws must be of this model with {paths} paths, got order parameters of shape {sampled.shape}"
        )
    problem = (model.path_inputs, model.labels, model.architecture, model.temperature)
    saddle = np.asarray(theory.solve(*problem).order_parameter)
    corrected = theory.finite_width(*problem, model.test_path_inputs, variances=False)
    accuracy = deviation = error = allowance = None
    by_batch = None if model.test_path_inputs is None else readout_batches(model, sampled.values)
    if by_batch is not None:
        assert corrected.prediction is not None
        by_theory = {
            "theory": mean_predictor(model, saddle),
            "corrected": np.asarray(corrected.prediction.mean),
            "gp": gp_mean(model),
        }
        batches = outputs_of(model, by_batch)
        mean = batches.mean(0)
        deviation = _root_mean_square(mean - by_theory["corrected"])
        error = _root_mean_square(batches.std(0, ddof=1)) / np.sqrt(len(batches))
        # Like U's: the first-order change, squared relative to the size of what changes.
        change = _root_mean_square(by_theory["corrected"] - by_theory["theory"])
        allowance = change**2 / _root_mean_square(by_theory["corrected"])
        if model.test_labels is not None:
            accuracy = accuracy_of(model, by_theory, batches)
    direction = np.asarray(corrected.order_parameter) - saddle
    direction /= np.linalg.norm(direction) * np.linalg.norm(saddle)
    along = (sampled * direction).sum(("path", "other_path"))
    entries = on_and_below_diagonal(sampled)

    def matrix(values: xr.DataArray) -> np.ndarray:
        return np.asarray(unpack(jnp.asarray(values.values), paths))

    return Validation(
        model=model,
        relative_deviation=float(along.mean() - np.sum(direction * saddle)),
        relative_remaining=float(along.mean() - np.sum(direction * np.asarray(corrected.order_parameter))),
        relative_error=float(arviz_stats.mcse(along)),
        order_parameter=sampled.mean(("chain", "draw")).values,
        error=matrix(arviz_stats.mcse(entries)),
        saddle=saddle,
        corrected=np.asarray(corrected.order_parameter),
        rhat=matrix(arviz_stats.rhat(entries)),
        ess=matrix(arviz_stats.ess(entries)),
        readouts=by_batch,
        diagnostics=diagnose(draws),
        accuracy=accuracy,
        alignment=alignment_over_draws(model, saddle, sampled.values) if np.any(model.labels) else None,
        predictor_deviation=deviation,
        predictor_error=error,
        predictor_allowance=allowance,
    )


class Slope(NamedTuple):
    """Exponent of a power law in the width, its standard error, and the widths that had a say in it."""

    slope: float
    error: float
    widths: tuple[int, ...]


def scaling(validations: Sequence[Validation], of: str = "relative_deviation") -> Slope | None:
    """Log-log slope of the theory's deviation from the draws against the width: finite-size scaling.

    At a fixed load P / N of a task that looks alike at all sizes, the saddle point's deviation falls as 1/N (slope -1) and
    that of the corrected theory faster. At fixed P the slope drifts: at widths far above P, U itself tends to its prior,
    and the deviation falls as 1/N^2.

    Args:
        validations: of one task at several widths.
        of: "relative_deviation" (from the saddle point) or "relative_remaining" (from the corrected theory).

    Returns:
        The weighted least-squares slope, its error from the Monte Carlo errors, inflated where the points do not lie on a
        line; None unless at least two widths deviate by 3 Monte Carlo errors or more.
    """
    one_of("of", of, ("relative_deviation", "relative_remaining"))
    seen = [v for v in validations if abs(getattr(v, of)) >= SEEN_ERRORS * v.relative_error]
    if len({v.width for v in seen}) < 2:
        return None
    deviations = np.array([abs(getattr(v, of)) for v in seen])
    errors = np.array([v.relative_error for v in seen]) / deviations
    logs = np.log([v.width for v in seen])
    centred = logs - np.average(logs, weights=errors**-2)
    slope = np.sum(centred * np.log(deviations) / errors**2) / np.sum((centred / errors) ** 2)
    residuals = np.log(deviations) - slope * centred
    residuals -= np.average(residuals, weights=errors**-2)
    misfit = np.sum((residuals / errors) ** 2) / max(1, len(seen) - 2)
    error = np.sqrt(max(1.0, misfit) / np.sum((centred / errors) ** 2))
    return Slope(float(slope), float(error), tuple(v.width for v in seen))


def _root_mean_square(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))
