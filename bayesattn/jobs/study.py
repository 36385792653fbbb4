"""Validation of the theory of a network at several widths, behind `bayesattn validate`."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bayesattn._util.checks import Checked, positive, positive_integer, require_kind, shown
from bayesattn._util.errors import BayesattnError
from bayesattn._util.files import finite
from bayesattn._util.plain import PlainDict
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described, with_error
from bayesattn.checks.diagnostics import watched_examples
from bayesattn.checks.scaling import Slope, scaling
from bayesattn.checks.validate import validate as compare
from bayesattn.checks.validation import Validation
from bayesattn.checks.verdict import HOLDS, LEVEL, MARGIN, overall
from bayesattn.jobs import plots
from bayesattn.models import Model
from bayesattn.questions.temperature import Candidate, by_evidence, candidates
from bayesattn.samplers import Job, Progress, sample
from bayesattn.theory.bartlett import layer_shapes
from bayesattn.theory.potential import refuse_many

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_SHOWN_RESULTS = 4
"""Largest number of widths whose results a study shows."""
NEXT_ORDER, SLOPE_ERRORS = -2, 3.0
"""Exponent of the width in the second order, and number of standard errors by which a slope may exceed it."""
Curve = dict[int, list[Candidate]]
"""Candidates of the theory at several temperatures, by width."""


@dataclass(frozen=True, repr=False)
class ValidationStudy(Described):
    """Theory against draws at several widths.

    Args:
        validations: comparison of draws with theory, at each width.
        curve: theory alone by width, at the temperatures tried; empty if not requested.
        theory_seconds: wall time of the curve.
    """

    validations: list[Validation]
    curve: Curve
    theory_seconds: float

    def _described(self) -> tuple[str, dict[str, str]]:
        results = self.validations
        rows = {f"N = {result.width}": result.statement() for result in results[:MOST_SHOWN_RESULTS]}
        if len(results) > MOST_SHOWN_RESULTS:
            rows["widths"] = ", ".join(
                f"N = {result.width}: {result.verdict}" for result in results[MOST_SHOWN_RESULTS:]
            )
        if remainder := self.remainder():
            rows["remainder"] = remainder
        return f"ValidationStudy of {results[0].model.name!r}: {self.verdict}", rows

    @property
    def verdict(self) -> str:
        """Verdict of all widths together, at the level `bayesattn.checks.verdict.LEVEL`."""
        return overall(self.validations)

    @property
    def bound(self) -> float | None:
        """Largest difference, relative to U and to the predictor, that is not excluded; None if chains did not mix."""
        usable = all(result.usable for result in self.validations)
        return max(result.bound for result in self.validations) if usable else None

    @property
    def scaling(self) -> dict[str, Slope | None]:
        """Slopes in the width of the draws' deviation from saddle point and first-order theory; None if not significant."""
        return {of: scaling(self.validations, of) for of in ("relative_deviation", "relative_remaining")}

    def remainder(self) -> str | None:
        """Statement whether the deviation from the first-order theory decreases as the next order; None if not significant.

        The next order decreases as N^-2 at a fixed load P / N, and faster for fixed examples.
        """
        if (fit := self.scaling["relative_remaining"]) is None:
            return None
        text = f"what the theory to first order in 1/N misses falls as N^({with_error(fit.slope, fit.error)})"
        if fit.slope - NEXT_ORDER <= SLOPE_ERRORS * fit.error:
            return f"{text}, as the next order does, N^({NEXT_ORDER}) or faster"
        return f"{text}, slower than the next order, N^({NEXT_ORDER}): the theory is wrong, or the widths are too small"

    def figure(self) -> "Figure":
        """Theory and draws against width."""
        return plots.validation_figure(self.validations, self.curve)

    def to_dict(self) -> PlainDict:
        """Plain values, for JSON; a number that is not finite is None."""
        plain: PlainDict = {
            "verdict": self.verdict,
            "holds": self.verdict == HOLDS,
            "bound": self.bound,
            "margin": self.validations[0].margin,
            "level": LEVEL,
            "scaling": {of: slope and slope._asdict() for of, slope in self.scaling.items()},
            "theory": [
                {"width": width, "temperatures": [candidate._asdict() for candidate in tried]}
                for width, tried in self.curve.items()
            ],
            "theory_seconds": round(self.theory_seconds, 1),
            "results": [result.to_dict() for result in self.validations],
        }
        return finite(plain)


@with_own_settings
def validate(
    model: Model,
    widths: Sequence[int],
    *,
    choose_temperature: bool = False,
    theory_widths: Sequence[int] = (),
    margin: float = MARGIN,
    solving: Callable[[int], object] | None = None,
    sampling: Callable[[int], Callable[[Progress], None]] | None = None,
    progress: Callable[[Progress], None] | bool | None = None,
    **settings: Any,
) -> ValidationStudy:
    """Draw the posterior of a network at several widths and compare each with the theory.

    Args:
        model: the model; its own width is not used.
        widths: widths at which the posterior is sampled; all layers have the same width.
        choose_temperature: use at each width the temperature with the largest evidence instead of the model's.
        theory_widths: further widths at which the theory alone is solved.
        margin: difference, relative to U and to the predictor, within which the theory must hold.
        solving: function called with a width before its theory is solved, for the curve and for a sampled width.
        sampling: function called with a width before it is sampled; it returns the function that is called after each block
            of draws.
        progress: as in `bayesattn.sample`, if `sampling` is not given: False shows nothing.
        settings: settings of `bayesattn.samplers.Job`.

    Raises:
        ValueError: no widths, one width twice, invalid settings, class labels.
        NotConverged: a solver failed.
    """
    # All arguments are checked before any theory is solved.
    widths, theory_widths = _widths("widths", widths), _widths("theory_widths", theory_widths)
    if not widths:
        raise BayesattnError("widths must hold at least one width, got none")
    if len({*widths}) < len(widths):
        raise BayesattnError(f"widths must differ, got {', '.join(map(str, widths))}")
    require_kind("model", model, Model)
    model.require_gaussian()
    cases = [model.replace(width=width) for width in widths]
    positive("margin", margin)
    refuse_many("an expansion to first order in 1/N", layer_shapes(cases[0].architecture, full=True))
    job = Job.of(**settings)
    if "order_parameter" not in job.keep:
        raise BayesattnError(f"keep must hold 'order_parameter', which the theory predicts, got {', '.join(job.keep)}")
    start, curve = time.perf_counter(), {}
    if choose_temperature or len(theory_widths):
        fixed: PlainDict = {} if choose_temperature else {"temperatures": [model.temperature]}
        for width in sorted({*widths, *theory_widths}):
            if solving is not None:
                solving(width)
            curve[width] = candidates(model.replace(width=width), **fixed, seed=job.seed)
    if choose_temperature:
        chosen = {width: by_evidence(curve[width]).temperature for width in widths}
        cases = [case.replace(temperature=chosen[width]) for case, width in zip(cases, widths, strict=True)]
    theory_seconds = time.perf_counter() - start
    validations = []
    for case, width in zip(cases, widths, strict=True):
        draws = sample(_with_watched_examples(case), progress=sampling(width) if sampling else progress, **settings)
        if solving is not None:
            solving(width)
        # The level is shared by all widths.
        validations.append(compare(case, draws, margin=margin, level=LEVEL / len(cases)))
    return ValidationStudy(validations, curve, theory_seconds)


def _widths(name: str, values: Checked) -> list[int]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise BayesattnError(f"{name} must be a list of widths, got {shown(values)}")
    return [positive_integer(f"{name}[{place}]", width) for place, width in enumerate(values)]


def _with_watched_examples(model: Model) -> Model:
    """Model of the same posterior that keeps only the test examples whose predictions are diagnosed.

    All comparisons use draws of U, so the other test examples are not needed.
    """
    if model.test_path_inputs is None:
        return model
    chosen = watched_examples(len(model.test_path_inputs))
    return model.replace(test_path_inputs=model.test_path_inputs[chosen], test_labels=None)
