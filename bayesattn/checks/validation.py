"""Validation of the theory against draws: deviations, Monte Carlo errors, expected finite-width deviations, and verdict.

Chains that did not mix, or that have too few draws, *cannot tell*. Otherwise, the theory *does not hold* if draws differ
from it by more than the terms that it leaves out, tested at a family-wise level: each entry of U, all entries jointly, and
the mean predictor along relevant directions. If no test fails, the theory *holds* if the confidence bound of every
difference is within a margin. This is a test of equivalence (Schuirmann 1987). It needs no correction for the number of
differences, because all must pass (Berger 1982). If a bound exceeds the margin, the draws *cannot tell*.
"""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float

from bayesattn._util.checks import positive
from bayesattn._util.errors import BayesattnError
from bayesattn._util.plain import PlainDict
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described
from bayesattn.checks import statements
from bayesattn.checks.accuracy import Accuracy, accuracy_of
from bayesattn.checks.alignment import Alignment, alignment_over_draws
from bayesattn.checks.comparison import Compared, along_directions, joint_p_of, level_of_each, next_order
from bayesattn.checks.diagnostics import Diagnostics, diagnose
from bayesattn.checks.mean_predictor import outputs_of, readout_batches
from bayesattn.checks.mixing import from_below_diagonal, moments, on_and_below_diagonal
from bayesattn.checks.predicted import Matrix, Predicted, predicted, size_of
from bayesattn.checks.scaling import Slope, scaling
from bayesattn.checks.verdict import (
    CANNOT_TELL,
    DOES_NOT_HOLD,
    DRAWS_PER_FREEDOM,
    HOLDS,
    LEVEL,
    MARGIN,
    VERDICTS,
    doubts_about,
    overall,
)
from bayesattn.models import Model
from bayesattn.models.trees import ORDER_PARAMETER_AXES, Draws, opened_of, order_parameters_in

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "CANNOT_TELL",
    "DOES_NOT_HOLD",
    "HOLDS",
    "LEVEL",
    "MARGIN",
    "VERDICTS",
    "Compared",
    "Predicted",
    "Slope",
    "Validation",
    "doubts_about",
    "overall",
    "predicted",
    "scaling",
    "validate",
]


MIXING = ("rhat", "ess", "tail_ess", "pareto_k")
"""Mixing diagnostics that a validation has for each entry of U, by their keys in `bayesattn.checks.mixing.moments`."""


@dataclass(frozen=True, eq=False, repr=False)
class Validation(Described):
    """Comparison of the theory of one model with draws of its posterior.

    `order_parameter` is the mean of U over the draws, `error` its Monte Carlo standard error, `saddle` the saddle point and
    `corrected` the theory to first order in 1/N. `expected` is the first-order correction, `corrected` minus `saddle`.
    `allowance` is the size of the next order, which the corrected theory leaves out; it depends on `relative_variance`, the
    theory's variance of each U_ij in units of U_ii U_jj.

    `readouts` are the readouts of the mean predictor (`theory.predictor.readouts`), one per batch of consecutive draws
    (4 batches per chain); their scatter gives the Monte Carlo error. They are None without test examples. `accuracy` is
    None without test labels, or if all are 0. `alignment` is None if all labels are zero, the dataset is compressed or there
    are too many labels.

    `directions` compares mean predictors of draws and of the corrected theory, as functions on the test examples, along the
    first-order change (corrected theory minus saddle point), the finite-width effect (saddle point minus GP limit), the
    mean predictor itself and the principal directions in which batches of draws differ; None without test examples, or
    if the mean predictor is 0, as with labels that are all 0.

    `rhat`, `ess`, `tail_ess` and `pareto_k` describe the draws of each entry, as in `bayesattn.diagnostics.summary`.
    `joint_p` is the p-value of all entries of U together, `margin` the relative difference within which the theory is said
    to hold, and `level` the probability of rejecting a correct theory.

    `relative_deviation` and `relative_remaining` are the deviations from the saddle point and from the corrected theory,
    projected on (corrected - saddle), divided by |saddle|. `relative_error` is the Monte Carlo error of both. Both
    deviations are linear in the draws and therefore unbiased, unlike a norm.
    """

    model: Model
    order_parameter: Matrix
    error: Matrix
    saddle: Matrix
    corrected: Matrix
    relative_variance: Matrix
    rhat: Matrix
    ess: Matrix
    tail_ess: Matrix
    pareto_k: Matrix
    readouts: Float[np.ndarray, "batch row feature"] | None
    diagnostics: Diagnostics
    accuracy: Accuracy | None
    alignment: Alignment | None
    directions: Compared | None
    joint_p: float
    margin: float
    level: float
    relative_deviation: float
    relative_remaining: float
    relative_error: float

    @property
    def width(self) -> int:
        """Width N_1, which represents all widths in tables."""
        return self.model.architecture.widths[0]

    @property
    def expected(self) -> Matrix:
        """First-order correction: corrected theory minus saddle point, of order 1/N."""
        return self.corrected - self.saddle

    @property
    def allowance(self) -> Matrix:
        """Size of the next order in 1/N, left out by the corrected theory (`bayesattn.checks.comparison.next_order`)."""
        size = size_of(self.corrected)
        return np.max(next_order(np.abs(self.expected) / size, self.relative_variance)) * size

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
        """Whether the chains mixed well enough for a verdict; always False for a single chain."""
        return not doubts_about("U", self.diagnostics.chains, self.rhat, self.ess)

    @property
    def entries(self) -> Compared:
        """Comparison of U on and below the diagonal, row by row; the size of U_ij is (U_ii U_jj)^(1/2)."""
        names, pairs = self.model.row_names, np.tril_indices(len(self.corrected))
        return Compared(
            names=[f"U[{names[row]}, {names[column]}]" for row, column in zip(*pairs, strict=True)],
            difference=self.remaining[pairs],
            error=self.error[pairs],
            freedom=self.ess[pairs] / DRAWS_PER_FREEDOM,
            allowance=self.allowance[pairs],
            size=size_of(self.corrected)[pairs],
            level=level_of_each(self.level, self.directions is not None),
            confidence_level=self.level,
        )

    @property
    def agrees(self) -> Bool[np.ndarray, "path path"]:
        """Whether each single entry of U agrees with the theory."""
        return from_below_diagonal(self.entries.agrees, len(self.corrected)).astype(bool)

    @property
    def bound(self) -> float:
        """Upper confidence bound on the largest relative difference of U or the predictor.

        The theory holds if it is at most the margin, the chains mixed and no test fails.
        """
        return float(max(np.max(family.bound) for family in self.families))

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        if not self.usable:
            return CANNOT_TELL
        if self.failures():
            return DOES_NOT_HOLD
        return HOLDS if self.bound <= self.margin else CANNOT_TELL

    @property
    def holds(self) -> bool:
        """Whether the draws show that the theory holds to within the margin."""
        return self.verdict == HOLDS

    @property
    def decided_by(self) -> str:
        """What limits sensitivity: "allowance" or "Monte Carlo error", the larger part of the difference in `visible`."""
        allowance, noise = self.visible()
        return "allowance" if allowance > noise else "Monte Carlo error"

    def failures(self) -> list[str]:
        """Disagreements, one sentence each."""
        return statements.failures(self)

    def doubts(self) -> list[str]:
        """Reasons why the draws cannot tell, one sentence each; empty unless the verdict is "cannot tell"."""
        return statements.doubts(self)

    def statement(self) -> str:
        """Verdict and sensitivity in one sentence."""
        return statements.statement(self)

    @property
    def families(self) -> list[Compared]:
        """Families compared: entries of U and, unless `directions` is None, the mean predictor."""
        return [self.entries] if self.directions is None else [self.entries, self.directions]

    def visible(self) -> tuple[float, float]:
        """Relative difference that would be flagged in whichever quantity it occurs, as (allowance, Monte Carlo error).

        The sum of both is this difference.
        """
        families = self.families
        family = max(families, key=lambda compared: np.max((compared.allowance + compared.noise) / compared.size))
        worst = int(np.argmax((family.allowance + family.noise) / family.size))
        allowance, noise = (values[worst] / family.size[worst] for values in (family.allowance, family.noise))
        return float(allowance), float(noise)

    def summary(self) -> "pd.DataFrame":
        """Table of U on and below the diagonal, a row for each entry.

        Columns: `saddle` (theory at the saddle point), `corrected` (to first order in 1/N), `draws` (their mean), `error`
        (its Monte Carlo error), `difference` (draws minus corrected theory), `z` (the difference in units of its Monte
        Carlo error, without allowance for what the theory leaves out), `rhat`, `ess`, `tail_ess` and `pareto_k` of the entry
        (`bayesattn.diagnostics.summary`), and `agrees` (whether theory and draws agree in this entry).
        """
        import pandas as pd

        pairs, entries = np.tril_indices(len(self.corrected)), self.entries
        drawn = {"saddle": self.saddle, "corrected": self.corrected, "draws": self.order_parameter, "error": self.error}
        columns = {name: matrix[pairs] for name, matrix in drawn.items()}
        columns |= {"difference": entries.difference, "z": entries.z}
        columns |= {name: getattr(self, name)[pairs] for name in MIXING}
        return pd.DataFrame(columns | {"agrees": entries.agrees}, index=pd.Index(entries.names, name="entry"))

    def _described(self) -> tuple[str, dict[str, str]]:
        diagnostics, rhat, ess = self.diagnostics, np.max(self.rhat), np.min(self.ess)
        of_u = f"R-hat is at most {rhat:.3f}" if np.isfinite(rhat) else "R-hat is not defined"
        of_u += f", ESS at least {ess:.0f}" if np.isfinite(ess) else ", ESS is not defined"
        rows = {
            "statement": self.statement().removeprefix(f"{self.verdict}: "),
            "draws": f"{diagnostics.draws} of each of {diagnostics.chains} chains; of U, {of_u}",
        }
        model = self.model
        return f"Validation of {model.name!r}, N = {self.width}, T = {model.temperature:g}: {self.verdict}", rows

    def to_dict(self) -> PlainDict:
        """All fields as plain numbers and lists, for JSON."""
        matrices = ("order_parameter", "error", "saddle", "corrected", "allowance", *MIXING)
        return {
            "model": self.model.name,
            "widths": list(self.model.architecture.widths),
            "temperature": self.model.temperature,
            "paths": self.model.row_names,
            "verdict": self.verdict,
            "holds": self.holds,
            "usable": self.usable,
            "failures": self.failures(),
            "doubts": self.doubts(),
            "bound": self.bound if self.usable else None,
            "margin": self.margin,
            "level": self.level,
            "decided_by": self.decided_by,
            "joint_p": self.joint_p if self.usable else None,
            "directions": self.directions and self.directions.to_dict(),
            "diagnostics": self.diagnostics.to_dict(),
            "accuracy": self.accuracy and self.accuracy.to_dict(),
            "alignment": self.alignment and self.alignment.to_dict(),
            "relative_deviation": self.relative_deviation,
            "relative_remaining": self.relative_remaining,
            "relative_error": self.relative_error,
        } | {name: getattr(self, name).tolist() for name in matrices}


@with_own_settings
def validate(
    model: Model,
    draws: Draws,
    *,
    margin: float = MARGIN,
    level: float = LEVEL,
    prediction: Predicted | None = None,
) -> Validation:
    """Compare the theory of a model with draws of its posterior.

    Args:
        model: the posterior.
        draws: result of `bayesattn.sample` for the model, a `bayesattn.runs.Run` of it, or a run's folder.
        margin: relative difference of U and of the mean predictor within which the theory is said to hold.
        level: probability of rejecting a correct theory, divided among entries of U, their joint test and the mean
            predictor; 1 - level is the confidence of the stated bound.
        prediction: result of `predicted` for the model, if already computed.

    Raises:
        ValueError: draws without order parameters, or known to be of another model (the message states the difference);
            joined trees that mix models, have chains of different lengths, or contain the same draws twice; a margin not
            above 0, a level not between 0 and 1.
        NotConverged: the theory's solver failed.
    """
    margin, level = positive("margin", margin), positive("level", level)
    if level >= 1:
        raise BayesattnError(f"level must be below 1, got {level:g}")
    tree, paths = opened_of(draws, model), model.architecture.rows
    sampled = xr.DataArray(order_parameters_in(tree, model), dims=ORDER_PARAMETER_AXES)
    saddle, corrected, relative_variance, mean_predictors = prediction or predicted(model)
    accuracy = directions = by_batch = None
    if mean_predictors is not None:
        by_batch = readout_batches(model, sampled.values)
        batches = outputs_of(model, by_batch)
        if np.any(mean_predictors["corrected"]):  # else labels or test inputs are 0: nothing to be relative to
            directions = along_directions(mean_predictors, batches, float(np.max(relative_variance)), level)
        if model.test_labels is not None and np.any(model.test_labels):
            accuracy = accuracy_of(model, mean_predictors, batches)
    direction = corrected - saddle
    direction /= np.linalg.norm(direction) * np.linalg.norm(saddle)
    along = (sampled * direction).sum(("path", "other_path"))
    entries = on_and_below_diagonal(sampled)
    of_entries, of_direction = moments(entries, tails=True), moments(along)

    def matrix(name: str) -> np.ndarray:
        return from_below_diagonal(of_entries[name], paths)

    validation = Validation(
        model=model,
        relative_deviation=float(of_direction["mean"] - np.sum(direction * saddle)),
        relative_remaining=float(of_direction["mean"] - np.sum(direction * corrected)),
        relative_error=float(of_direction["error"]),
        order_parameter=matrix("mean"),
        error=matrix("error"),
        saddle=saddle,
        corrected=corrected,
        relative_variance=np.broadcast_to(relative_variance, corrected.shape),
        **{name: matrix(name) for name in MIXING},
        readouts=by_batch,
        diagnostics=diagnose(tree),
        accuracy=accuracy,
        alignment=alignment_over_draws(model, saddle, sampled.values),
        directions=directions,
        joint_p=np.nan,
        margin=margin,
        level=level,
    )
    by_entry = entries.stack(all=("chain", "draw")).transpose("all", "entry").values
    return dataclasses.replace(validation, joint_p=joint_p_of(validation.entries, by_entry))
