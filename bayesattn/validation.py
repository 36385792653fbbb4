"""Theory against draws: deviations, their Monte Carlo errors, and the deviation that finite width makes one expect."""

import dataclasses
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
from bayesattn.diagnostics import Diagnostics, diagnose, on_and_below_diagonal
from bayesattn.models import Model
from bayesattn.theory.kernels import cross_kernel, unpack
from bayesattn.theory.predictor import readouts

MOST_ERRORS = 4.0
"""Monte Carlo standard errors by which draws and theory may differ before the theory is said to fail."""
USABLE_ESS = 100
USABLE_RHAT = 1.05
"""Draws worse than usable cannot decide whether the theory holds; between usable and good they carry a warning."""
PREDICTOR_DRAWS = 1000
SEEN_ERRORS = 3.0
"""Monte Carlo errors that a deviation must exceed to have a say in a slope: logarithms of noise mislead."""

Matrix = Float[np.ndarray, "path path"]


@dataclass(frozen=True, eq=False)
class Accuracy:
    """Share of test examples that the sign of the mean predictor gets right; `error` is the draws' Monte Carlo error."""

    theory: float
    corrected: float
    draws: float
    error: float
    gp: float
    gp_of_groups: dict[str, float]


@dataclass(frozen=True, eq=False)
class Validation:
    """One model's theory held against its draws.

    `order_parameter` is the mean of U over the draws, `error` its Monte Carlo standard error, `saddle` the saddle point,
    `corrected` the theory to first order in 1/N. `expected` is their difference, the deviation from the saddle point that
    finite width makes one expect; `allowance` is the size of the next order, which the corrected theory leaves out.
    `readouts` are those of the mean predictor (`theory.predictor.readouts`) over consecutive batches of draws, four a chain:
    between them, its Monte Carlo error shows; None without test examples.
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
            "accuracy": dataclasses.asdict(self.accuracy) if self.accuracy else None,
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
    by_batch = None if model.test_path_inputs is None else _readout_batches(model, sampled.values)
    if by_batch is not None:
        assert corrected.prediction is not None
        by_theory = {
            "theory": _mean_predictor(model, saddle),
            "corrected": np.asarray(corrected.prediction.mean),
            "gp": _gp_mean(model),
        }
        batches = _outputs(model, by_batch)
        mean = batches.mean(0)
        deviation = _root_mean_square(mean - by_theory["corrected"])
        error = _root_mean_square(batches.std(0, ddof=1)) / np.sqrt(len(batches))
        # Like U's: the first-order change, squared relative to the size of what changes.
        change = _root_mean_square(by_theory["corrected"] - by_theory["theory"])
        allowance = change**2 / _root_mean_square(by_theory["corrected"])
        if model.test_labels is not None:
            accuracy = _accuracy(model, by_theory, batches)
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


def gp_kernel(model: Model, paths: Any = None) -> Float[np.ndarray, "example example"]:
    """K at infinite width on the training examples, of the network or of a group of its paths alone."""
    order_parameter, group = _gp_of_group(model, paths)
    path_inputs = jnp.asarray(model.path_inputs[:, group])
    return np.asarray(cross_kernel(order_parameter, path_inputs, path_inputs, model.architecture.variances[0]))


def _gp_of_group(model: Model, paths: Any) -> tuple[Any, list[int]]:
    """U in the GP limit of a network that has these paths only, and their numbers."""
    group = list(range(model.architecture.paths)) if paths is None else list(paths)
    return theory.gp_order_parameter(model.architecture)[np.ix_(group, group)], group


def _gp_mean(model: Model, paths: Any = None) -> Float[np.ndarray, " test_example"]:
    assert model.test_path_inputs is not None
    order_parameter, group = _gp_of_group(model, paths)
    return np.tensordot(model.test_path_inputs[:, group], _readout(model, order_parameter, group), 2)


def _mean_predictor(model: Model, order_parameter: Matrix) -> Float[np.ndarray, " test_example"]:
    """Mean of f on the test examples given U."""
    assert model.test_path_inputs is not None
    return np.tensordot(model.test_path_inputs, _readout(model, order_parameter), 2)


def _readout(model: Model, order_parameter: Any, group: Any = slice(None)) -> Float[np.ndarray, "path feature"]:
    arch, temperature = model.architecture, model.temperature
    return np.asarray(readouts(order_parameter[None], model.path_inputs[:, group], model.labels, arch, temperature)[0])


def _outputs(model: Model, found: Float[np.ndarray, "batch path feature"]) -> Float[np.ndarray, "batch test_example"]:
    """f on the test examples with each of several readouts."""
    assert model.test_path_inputs is not None
    return np.tensordot(found, model.test_path_inputs, ((1, 2), (1, 2)))


def accuracy_on(model: Model, validation: Validation) -> Accuracy:
    """Accuracy on the test examples of `model`, with the saddle point, corrected theory and draws of the same posterior.

    The corrected theory's predictor is here the one at its mean U, without the correction of the predictor itself.

    Args:
        model: the same training examples, architecture and temperature as `validation.model`, and test examples of another
            kind, say images of another set.
        validation: of the same posterior.

    Raises:
        ValueError: other training examples, architecture or temperature; no test labels.
    """
    ours, theirs = model, validation.model
    same = ours.architecture == theirs.architecture and ours.temperature == theirs.temperature
    if not (
        same and np.array_equal(ours.path_inputs, theirs.path_inputs) and np.array_equal(ours.labels, theirs.labels)
    ):
        raise ValueError(
            "model must have training examples, architecture and temperature of validation.model, got others"
        )
    if model.test_labels is None:
        raise ValueError("model must have test_labels, got None")
    if validation.readouts is None:
        raise ValueError("validation must be of a model with test examples, got one without")
    by_theory = {
        "theory": _mean_predictor(model, validation.saddle),
        "corrected": _mean_predictor(model, validation.corrected),
        "gp": _gp_mean(model),
    }
    return _accuracy(model, by_theory, _outputs(model, validation.readouts))


def _accuracy(model: Model, by_theory: dict[str, np.ndarray], batches: np.ndarray) -> Accuracy:
    by_batch = [_share_right(batch, model.test_labels) for batch in batches]
    return Accuracy(
        **{name: _share_right(values, model.test_labels) for name, values in by_theory.items()},
        draws=_share_right(batches.mean(0), model.test_labels),
        error=float(np.std(by_batch, ddof=1) / np.sqrt(len(batches))),
        gp_of_groups={
            name: _share_right(_gp_mean(model, group), model.test_labels) for name, group in model.path_groups.items()
        },
    )


def _readout_batches(model: Model, order_parameters: np.ndarray) -> Float[np.ndarray, "batch path feature"]:
    chains, draws = order_parameters.shape[:2]
    batches = min(4, draws)
    per_batch = max(1, min(draws // batches, PREDICTOR_DRAWS // (chains * batches)))
    kept = np.linspace(0, draws - 1, batches * per_batch).astype(int)
    chosen = order_parameters[:, kept].reshape(-1, *order_parameters.shape[2:])
    found = np.asarray(readouts(chosen, model.path_inputs, model.labels, model.architecture, model.temperature))
    return found.reshape(chains * batches, per_batch, *found.shape[1:]).mean(1)


def _share_right(mean: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean(np.sign(mean) == np.sign(labels)))


def _root_mean_square(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))
