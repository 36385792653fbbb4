"""Does the theory hold of a network, at several widths? Temperatures by evidence, draws, comparisons, verdict, figure."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bayesattn import plots
from bayesattn._checks import positive, positive_integer
from bayesattn.accuracy import Accuracy, accuracy_on
from bayesattn.models import Model
from bayesattn.samplers import Job, Progress, sample
from bayesattn.temperature import Candidate, by_evidence, candidates
from bayesattn.validation import HOLDS, LEVEL, MARGIN, Slope, Validation, overall, scaling, validate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = dict[int, list[Candidate]]
"""By width, what theory says at each of some temperatures."""


@dataclass(frozen=True)
class Study:
    """What came of a study.

    Args:
        validations: draws against theory, at each width.
        curve: theory alone by width, at the temperatures tried; empty if it was not asked for.
        elsewhere: by name, accuracy on further test examples at each width.
        theory_seconds: wall time of the curve.
    """

    validations: list[Validation]
    curve: Curve
    elsewhere: dict[str, list[Accuracy]]
    theory_seconds: float

    @property
    def verdict(self) -> str:
        """Of all widths together, at the level of `bayesattn.validation.LEVEL`."""
        return overall(self.validations)

    @property
    def bound(self) -> float | None:
        """Largest difference, relative to U and to the predictor, that is not excluded; None if chains did not mix."""
        usable = all(each.usable for each in self.validations)
        return max(each.bound for each in self.validations) if usable else None

    @property
    def scaling(self) -> dict[str, Slope | None]:
        """Fits of the draws' deviation from saddle point and theory to first order against width; None where not seen."""
        return {of: scaling(self.validations, of) for of in ("relative_deviation", "relative_remaining")}

    def figure(self) -> "Figure":
        """Theory and draws against width."""
        return plots.validation_figure(self.validations, self.curve)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
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
            "also_on": [
                {name: found[place].to_dict() for name, found in self.elsewhere.items()}
                for place in range(len(self.validations))
            ],
            "results": [each.to_dict() for each in self.validations],
        }


def study(
    model: Model,
    widths: Sequence[int],
    *,
    choose_temperature: bool = False,
    theory_widths: Sequence[int] = (),
    also_on: Mapping[str, Model] | None = None,
    margin: float = MARGIN,
    solving: Callable[[int], Any] | None = None,
    sampling: Callable[[int], Callable[[Progress], None]] | None = None,
    **settings: Any,
) -> Study:
    """Draw the posterior of a network at several widths and compare each with the theory; what `bayesattn validate` does.

    Args:
        model: whose own width does not matter.
        widths: of all layers, at which it is drawn.
        choose_temperature: take at each width the temperature of greatest evidence instead of the model's.
        theory_widths: further widths at which the theory alone is solved.
        also_on: by name, models whose test examples accuracy is asked for too.
        margin: difference, relative to U and to the predictor, within which the theory is to hold.
        solving: called with a width before its theory is solved.
        sampling: called with a width before it is drawn, gives what is called after each block of draws.
        settings: those of `bayesattn.samplers.Job`.

    Raises:
        ValueError: no widths, settings that make no sense.
        NotConverged: a solver failed.
    """
    if not len(widths):
        raise ValueError("widths must hold at least one width, got none")
    cases = [model.replace(width=positive_integer("widths", width)) for width in widths]
    positive("margin", margin)
    Job.of(**settings)  # Bad settings of the sampler are found before any theory is solved.
    start, curve = time.perf_counter(), {}
    if choose_temperature or len(theory_widths):
        given = {} if choose_temperature else {"temperatures": [model.temperature]}
        for width in sorted({*widths, *theory_widths}):
            if solving is not None:
                solving(width)
            curve[width] = candidates(model.replace(width=width), **given, seed=settings.get("seed", 0))
    if choose_temperature:
        chosen = {width: by_evidence(curve[width]).temperature for width in widths}
        cases = [case.replace(temperature=chosen[width]) for case, width in zip(cases, widths, strict=True)]
    theory_seconds = time.perf_counter() - start
    validations, elsewhere = [], {name: [] for name in also_on or {}}
    for case, width in zip(cases, widths, strict=True):
        draws = sample(case, progress=sampling and sampling(width), **settings)
        # A level for all widths together.
        validations.append(validate(case, draws, margin=margin, level=LEVEL / len(cases)))
        same = {"architecture": case.architecture, "temperature": case.temperature}
        for name, other in (also_on or {}).items():
            elsewhere[name].append(accuracy_on(other.replace(**same), validations[-1]))
    return Study(validations, curve, elsewhere, theory_seconds)
