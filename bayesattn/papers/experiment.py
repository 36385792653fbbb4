"""What an experiment is given and what it returns, whichever paper it is about."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bayesattn import runs
from bayesattn.exchangeable.claims import Claim, Curve, Mean
from bayesattn.models import Model
from bayesattn.samplers import sample

EXACT_TIMES = 10.0
"""A wrong law of an exact claim is off by this many tolerances."""


class Settings(NamedTuple):
    """How an experiment is run: the seed of all that it draws, in minutes instead of hours or not, and whom it tells.

    Draws that take long are kept as runs in `folder`, where an experiment that was interrupted goes on with them.
    """

    seed: int = 0
    fast: bool = False
    progress: Callable[[str], None] = lambda told: None
    folder: Path | None = None

    def sample(self, model: Model, name: str, **settings: Any) -> Any:
        """Draws of this seed, kept under a name if there is a folder."""
        if self.folder is None:
            return sample(model, seed=self.seed, progress=False, **settings)
        return runs.sample(model, self.folder / name, seed=self.seed, progress=False, **settings).draws()


@dataclass
class Findings:
    """What an experiment found: comparisons by the row of the registry that they belong to, and curves by panel."""

    claims: dict[str, list[Claim]] = field(default_factory=dict)
    panels: dict[str, list[Curve]] = field(default_factory=dict)

    def add(self, row: str, *claims: Claim) -> None:
        """Comparisons of a row."""
        self.claims.setdefault(row, []).extend(claims)


class Experiment(NamedTuple):
    """What is done for some rows."""

    title: str
    run: Callable[[Settings], Findings]


def pooled(means: Sequence[Mean]) -> Mean:
    """Mean of independent means, each with its own error."""
    values, errors, _ = np.array(means).T
    return Mean(float(values.mean()), float(np.sqrt(np.sum(errors**2)) / len(means)))


def with_planted(claim: Claim, size: float) -> Claim:
    """The claim with a law planted that is off by a relative size, by the size itself where it predicts 0.

    Exact claims get one that is off by some tolerances, or by 1 where none is allowed. Literal readings are wrong by
    themselves and get none; neither do claims that have one.
    """
    if claim.literal or claim.planted is not None:
        return claim
    if claim.statistical:
        apart, wrong = size * (abs(claim.predicted.value) or 1.0), f"{100 * size:g} % off"
    else:
        apart, wrong = EXACT_TIMES * (claim.tolerance + claim.allowance) or 1.0, "off by more than rounding"
    sign = -1.0 if claim.relation == "<=" else 1.0
    return replace(claim, planted=claim.predicted._replace(value=claim.predicted.value + sign * apart), wrong=wrong)
