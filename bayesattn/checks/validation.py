"""Theory against draws: deviations, their Monte Carlo errors, what finite width makes one expect, and the verdict.

The theory *does not hold* where draws differ from it by more than what it leaves out, tested at a family-wise level: each
entry of U, all entries jointly, and the mean predictor along directions that matter. It *holds* where the confidence bound
of every difference lies within a margin, a test of equivalence (Schuirmann 1987) that needs no correction for the number of
differences, as all must pass (Berger 1982), and that few draws do not pass. Else the draws *cannot tell*.
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
    from matplotlib.figure import Figure

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


@dataclass(frozen=True, eq=False, repr=False)
class Validation(Described):
    """One model's theory held against its draws.

    `order_parameter` is the mean of U over the draws, `error` its Monte Carlo standard error, `saddle` the saddle point,
    `corrected` the theory to first order in 1/N. `expected` is their difference, the deviation from the saddle point that
    finite width makes one expect; `allowance` is the size of the next order, which the corrected theory leaves out;
    `relative_variance` is the theory's variance of each U_ij, in units of U_ii U_jj, which that size depends on.
    `readouts` are those of the mean predictor (`theory.predictor.readouts`) over consecutive batches of draws, four a chain:
    between them, its Monte Carlo error shows; None without test examples. `accuracy` is None without test
    labels, `alignment` where all labels are zero.
    `directions` compares mean predictors of draws and of the corrected theory, as functions on the test examples, along the
    first-order change (corrected theory minus saddle point), the finite-width effect (saddle point minus GP limit), the
    mean predictor itself and the principal directions in which batches of draws differ; None without test examples.
    `rhat`, `ess`, `tail_ess` and `pareto_k` are those of each entry's draws, as `bayesattn.diagnostics.summary` has them.
    `joint_p` is the p-value of all entries of U together, `margin` the relative difference within which a theory is said to
    hold, `level` the probability of saying of a right theory that it does not hold.
    `relative_deviation` and `relative_remaining` are deviation from the saddle point and from the corrected theory, along
    the direction in which the latter departs from the former and in units of |saddle|; `relative_error` is the Monte
    Carlo error of both. Being linear in the draws, they are unbiased, which a norm is not.
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
        """N_1, which stands for all widths in tables."""
        return self.model.architecture.widths[0]

    @property
    def expected(self) -> Matrix:
        """Deviation from the saddle point expected at this width, of order 1/N."""
        return self.corrected - self.saddle

    @property
    def allowance(self) -> Matrix:
        """Size of what the corrected theory leaves out, the next order in 1/N (`bayesattn.checks.comparison.next_order`)."""
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
        """Whether chains mixed well enough for a verdict; one chain alone cannot show it."""
        return not doubts_about("U", self.diagnostics.chains, self.rhat, self.ess)

    @property
    def entries(self) -> Compared:
        """U on and below the diagonal, row by row; U_ij is of the size (U_ii U_jj)^(1/2)."""
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
        """Whether each entry of U, by itself, agrees with the theory."""
        return from_below_diagonal(self.entries.agrees, len(self.corrected)).astype(bool)

    @property
    def bound(self) -> float:
        """To within which the theory holds: the greatest confidence bound of a relative difference of U or predictor."""
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
        """What explains most of the least difference that would have been a failure: "allowance" or "Monte Carlo error"."""
        allowance, noise = self.visible()
        return "allowance" if allowance > noise else "Monte Carlo error"

    def failures(self) -> list[str]:
        """What disagrees, a sentence each."""
        return statements.failures(self)

    def doubts(self) -> list[str]:
        """Why the draws cannot tell, a sentence each; none where the theory holds or does not."""
        return statements.doubts(self)

    def statement(self) -> str:
        """The verdict and what it could have seen, in one sentence."""
        return statements.statement(self)

    @property
    def families(self) -> list[Compared]:
        """All that is compared: entries of U, and the mean predictor where there are test examples."""
        return [self.entries] if self.directions is None else [self.entries, self.directions]

    def visible(self) -> tuple[float, float]:
        """The least relative difference that is a failure of any quantity: the allowance's part, and Monte Carlo error's."""
        families = self.families
        family = max(families, key=lambda compared: np.max((compared.allowance + compared.noise) / compared.size))
        worst = int(np.argmax((family.allowance + family.noise) / family.size))
        allowance, noise = (values[worst] / family.size[worst] for values in (family.allowance, family.noise))
        return float(allowance), float(noise)

    def summary(self) -> "pd.DataFrame":
        """U on and below the diagonal, a row for each entry.

        Columns: `saddle` (theory at the saddle point), `corrected` (to first order in 1/N), `draws` (their mean), `error`
        (its Monte Carlo error), `difference` (draws minus corrected theory), `z` (difference in errors, whatever the theory
        leaves out), `rhat`, `ess`, `tail_ess` and `pareto_k` of the entry (`bayesattn.diagnostics.summary`), and `agrees`,
        whether theory and draws do by that entry.
        """
        import pandas as pd

        pairs, entries = np.tril_indices(len(self.corrected)), self.entries
        drawn = {"saddle": self.saddle, "corrected": self.corrected, "draws": self.order_parameter, "error": self.error}
        columns = {name: matrix[pairs] for name, matrix in drawn.items()}
        columns |= {"difference": entries.difference, "z": entries.z}
        columns |= {name: getattr(self, name)[pairs] for name in ("rhat", "ess", "tail_ess", "pareto_k")}
        return pd.DataFrame(columns | {"agrees": entries.agrees}, index=pd.Index(entries.names, name="entry"))

    def plot(self) -> "Figure":
        """Accuracy, deviations, U and alignment, as `bayesattn validate` draws them; a Matplotlib figure."""
        from bayesattn.plots import validation_figure

        return validation_figure([self])

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
        """Everything as plain numbers and lists, for JSON."""
        matrices = (
            "order_parameter",
            "error",
            "saddle",
            "corrected",
            "allowance",
            "rhat",
            "ess",
            "tail_ess",
            "pareto_k",
        )
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
            "accuracy": self.accuracy.to_dict() if self.accuracy else None,
            "alignment": self.alignment.to_dict() if self.alignment else None,
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
    """Hold the theory of a model against draws of its posterior.

    Args:
        model: the posterior.
        draws: what `bayesattn.sample` returned for it, a `bayesattn.runs.Run` of it, or a run's folder.
        margin: relative difference of U and of the mean predictor within which the theory is said to hold.
        level: probability of saying of a right theory that it does not hold, divided among entries of U, their joint test
            and the mean predictor; 1 - level is the confidence in the bound that is stated.
        prediction: what `predicted` said of the model, if that is at hand.

    Raises:
        ValueError: draws without order parameters, or known to be of another model (the sentence says what differs);
            trees put together of several models, lengths or of the same draws; a margin not
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
        directions = along_directions(mean_predictors, batches, float(np.max(relative_variance)), level)
        if model.test_labels is not None:
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
        rhat=matrix("rhat"),
        ess=matrix("ess"),
        tail_ess=matrix("tail_ess"),
        pareto_k=matrix("pareto_k"),
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
