"""Validation of the theory against draws: deviations, Monte Carlo errors, expected finite-width deviations, and verdict.

Chains that did not mix, or that have too few draws, *cannot tell*. Otherwise, the theory *does not hold* if draws differ
from it by more than the terms that it leaves out, tested at a family-wise level: each entry of U, all entries jointly, and
the mean predictor along relevant directions. If no test fails, the theory *holds* if the confidence bound of every
difference is within a margin. This is a test of equivalence (Schuirmann 1987). It needs no correction for the number of
differences, because all must pass (Berger 1982). If a bound exceeds the margin, the draws *cannot tell*.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from bayesattn._util.plain_values import PlainDict
from bayesattn._util.text import Described, draw_more, with_error
from bayesattn.checks.accuracy import Accuracy
from bayesattn.checks.alignment import Alignment
from bayesattn.checks.comparison import Compared, level_of_each, next_order
from bayesattn.checks.diagnostics import Diagnostics
from bayesattn.checks.mixing import from_below_diagonal
from bayesattn.checks.theory_predictions import Matrix, size_of
from bayesattn.checks.thresholds import (
    CANNOT_TELL,
    DOES_NOT_HOLD,
    DRAWS_PER_FREEDOM,
    HOLDS,
    doubts_about,
    percent,
    times_as_many,
)
from bayesattn.models import Model

if TYPE_CHECKING:
    import pandas as pd

MOST_NAMED_ENTRIES = 5
"""Largest number of differing entries that are named one by one."""
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
    None without test labels that can be got right, such as classes. `alignment` is None if all labels are zero, the dataset
    is compressed or there are too many labels.

    `directions` compares mean predictors of draws and of the corrected theory, as functions on the test examples, along the
    first-order change (corrected theory minus saddle point), the finite-width effect (saddle point minus GP limit), the
    mean predictor itself and the principal directions in which batches of draws differ; None without test examples, or
    if the mean predictor is 0, as with labels that are all 0.

    `rhat`, `ess`, `tail_ess` and `pareto_k` describe the draws of each entry, as in `bayesattn.checks.diagnostics.summary`.
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
        """Whether the chains mixed well enough for a verdict: several, no copies, no sign kept in a narrow network."""
        return not self._unmixed()

    def _unmixed(self) -> list[str]:
        """Doubts about the draws, whatever they are compared with, and about a series that does not converge."""
        found = self.diagnostics
        mixing = doubts_about("U", found.chains, self.rhat, self.ess, found.round_trips)
        return [*mixing, *found.doubts_about_repeats(), *found.doubts_about_signs(), *self._divergence()]

    def _divergence(self) -> list[str]:
        """Why there is no theory to first order in 1/N; nothing if its means of squares are above 0."""
        own = np.diag(self.corrected)
        if own.min() >= 0:
            return []
        name = self.model.row_names[int(own.argmin())]
        return [
            f"to first order in 1/N the mean of U[{name}, {name}] is below 0: the series does not converge at N ="
            f" {self.width}; draw a wider network"
        ]

    @cached_property
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
    def families(self) -> list[Compared]:
        """Families compared: entries of U and, unless `directions` is None, the mean predictor."""
        return [self.entries] if self.directions is None else [self.entries, self.directions]

    @cached_property
    def quantities(self) -> "pd.DataFrame":
        """All quantities compared, relative to their sizes: `Compared.relative` of all families."""
        import pandas as pd

        return pd.concat([family.relative() for family in self.families])

    @property
    def bound(self) -> float:
        """Upper confidence bound on the largest relative difference of U or the predictor.

        The theory holds if it is at most the margin, the chains mixed and no test fails.
        """
        return float(np.max(self.quantities["bound"].to_numpy()))

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
        """What limits sensitivity: "allowance" or "Monte Carlo error", the larger part of `detectable_difference`."""
        allowance, noise = self.detectable_difference()
        return "allowance" if allowance > noise else "Monte Carlo error"

    def detectable_difference(self) -> tuple[float, float]:
        """Relative difference that would be flagged in whichever quantity it occurs, as (allowance, Monte Carlo error).

        The sum of both is this difference.
        """
        parts = self.quantities[["allowance", "noise"]].to_numpy()
        allowance, noise = parts[np.argmax(parts.sum(1))]
        return float(allowance), float(noise)

    def failures(self) -> list[str]:
        """Disagreements, one sentence each."""
        return list(self._failures)

    @cached_property
    def _failures(self) -> list[str]:
        entries, draws = self.entries, self.order_parameter[np.tril_indices(len(self.corrected))]
        apart = np.flatnonzero(~entries.agrees)
        sentences = [
            f"{entries.names[entry]} is {with_error(draws[entry], entries.error[entry])} by the draws,"
            f" {with_error(draws[entry] - entries.difference[entry], entries.allowance[entry])} by the theory"
            for entry in sorted(apart, key=lambda entry: -entries.excess[entry])[:MOST_NAMED_ENTRIES]
        ]
        if len(apart) > MOST_NAMED_ENTRIES:
            sentences.append(f"{len(apart) - MOST_NAMED_ENTRIES} more entries of U differ, of {len(entries.names)}")
        if not self.joint_p >= entries.level:
            below = int(np.sum(entries.difference < 0))
            sentences.append(
                f"the entries of U differ jointly, {below} of {len(entries.names)} below the theory:"
                f" p = {self.joint_p:.1g}, expected at least {entries.level:.2g}"
            )
        if (along := self.directions) is not None:
            sentences += [
                f"mean predictors differ along {along.names[direction]} by"
                f" {with_error(along.difference[direction], along.error[direction])}, of which"
                f" {along.allowance[direction]:.2g} are allowed"
                for direction in np.flatnonzero(~along.agrees)
            ]
        return sentences

    def doubts(self) -> list[str]:
        """Reasons why the draws cannot tell, one sentence each; empty unless the verdict is "cannot tell"."""
        if unmixed := self._unmixed():
            return unmixed
        if self.verdict != CANNOT_TELL:
            return []
        name, worst = self._least_bounded()
        text = (
            f"{name} differs by ({with_error(100 * worst['difference'], 100 * worst['error'])}) %, so by at most"
            f" {percent(worst['bound'])}, and the margin is {percent(self.margin)}"
        )
        lower_bound = 2 * worst["difference"] - worst["bound"]
        if lower_bound > self.margin and worst["allowance"] > worst["noise"]:
            left_out = f"to first order in 1/N the theory leaves out up to {percent(worst['allowance'])}"
            return [f"{text}: {left_out}; draw a wider network"]
        difference, bound = (self.quantities[name].to_numpy() for name in ("difference", "bound"))
        return [f"{text}: {draw_more(times_as_many(difference, bound, self.margin))}"]

    def statement(self) -> str:
        """Verdict and sensitivity in one sentence."""
        if not self.usable:
            reasons = self.doubts()
        elif self.verdict == DOES_NOT_HOLD:
            reasons = [*self.failures(), self._cause()]
        else:
            tested = f"joint test of {len(self.entries.names)} entries: p = {self.joint_p:.2g}"
            reasons = [*self.doubts(), self._sensitivity(), tested]
        return f"{self.verdict}: {'; '.join(reasons)}"

    def _least_bounded(self) -> tuple[str, dict[str, float]]:
        """Name and relative numbers of the quantity with the largest confidence bound."""
        worst = self.quantities.reset_index().nlargest(1, "bound").to_dict("records")[0]
        return worst.pop("quantity"), {str(name): number for name, number in worst.items()}

    def _cause(self) -> str:
        """Statement whether the next order in 1/N may explain the difference; if it may, the theory is not refuted."""
        first = float(np.max(np.abs(self.expected) / size_of(self.corrected)))
        off = float(np.max(self.quantities["difference"].to_numpy()))
        text = f"this is the theory to first order in 1/N, which changes U by up to {percent(first)}"
        if off < first:
            return (
                f"{text}: the difference is smaller than the first-order change, so the next order may explain it; the next"
                " order would be a quarter or less at twice the width"
            )
        return (
            f"{text}: the missing part is more, {percent(off)}, which the next order of a series that converges is not"
        )

    def _sensitivity(self) -> str:
        """Sensitivity: largest difference compatible with the draws, and smallest one flagged in any quantity."""
        allowance, noise = self.detectable_difference()
        of = "|U| and the mean predictor" if self.directions else "|U|"
        text = (
            f"theory and posterior differ by at most {percent(self.bound)} of {of}; a measured difference above"
            f" {percent(allowance + noise)} would have been flagged ({percent(allowance)} for what the theory leaves out,"
            f" {percent(noise)} for Monte Carlo error)"
        )
        if self.bound <= allowance + noise:
            return text
        name, worst = self._least_bounded()
        return (
            f"{text}, which is less, since {name} was found {percent(worst['difference'])} off and may by Monte Carlo"
            f" error be {percent(self.bound - worst['difference'])} further off"
        )

    def summary(self) -> "pd.DataFrame":
        """Table of U on and below the diagonal, a row for each entry.

        Columns: `saddle` (theory at the saddle point), `corrected` (to first order in 1/N), `draws` (their mean), `error`
        (its Monte Carlo error), `difference` (draws minus corrected theory), `z` (the difference in units of its Monte
        Carlo error, without allowance for what the theory leaves out), `rhat`, `ess`, `tail_ess` and `pareto_k` of the entry
        (`bayesattn.checks.diagnostics.summary`), and `agrees` (whether theory and draws agree in this entry).
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
        answers = ("verdict", "holds", "usable", "margin", "level", "decided_by")
        deviations = ("relative_deviation", "relative_remaining", "relative_error")
        matrices = ("order_parameter", "error", "saddle", "corrected", "allowance", *MIXING)
        content: PlainDict = {
            "model": self.model.name,
            "widths": list(self.model.architecture.widths),
            "temperature": self.model.temperature,
            "paths": self.model.row_names,
            "failures": self.failures(),
            "doubts": self.doubts(),
            "bound": self.bound if self.usable else None,
            "joint_p": self.joint_p if self.usable else None,
        }
        content |= {name: getattr(self, name) for name in (*answers, *deviations)}
        parts = {name: getattr(self, name) for name in ("directions", "diagnostics", "accuracy", "alignment")}
        content |= {name: part and part.to_dict() for name, part in parts.items()}
        return content | {name: getattr(self, name).tolist() for name in matrices}
