"""Assertions for test suites of samplers."""

import inspect
from collections.abc import Sequence
from typing import Any

from bayesattn._util.checks import suggestion
from bayesattn.errors import BayesattnError
from bayesattn.questions.reference.checking import SamplerCheck, check
from bayesattn.questions.reference.grading import RIGHT

LEVEL = 1e-4
"""Probability that a right sampler is called biased, so that a suite can live with it."""
MOST_ROWS = 3
"""Number of quantities that a failure lists."""


def assert_right(
    kernel: object, names: str | Sequence[str] | None = None, *, level: float = LEVEL, seed: int = 0, **settings: Any
) -> SamplerCheck:
    """Raise AssertionError unless a sampler is shown to draw from reference posteriors rightly.

    The arguments are those of `bayesattn.reference.check`. Draws that cannot tell, because they are too few or their chains
    differ, fail too. The error says which quantities are off and by how much.

    Returns:
        The check, which says what it excludes: `print(assert_right(NUTS))`.
    """
    __tracebackhide__ = True
    known = [*inspect.signature(check).parameters][2:]
    if unknown := next((name for name in settings if name not in known), None):
        raise BayesattnError(f"arguments must be {', '.join(known)}, got {unknown}{suggestion(unknown, known)}")
    found = check(kernel, names, level=level, seed=seed, **settings)
    if found.verdict == RIGHT:
        return found
    lines = [f"the sampler is not shown to be right ({found.verdict}), seed {seed}:"]
    for name, each in found.grades.items():
        lines.append(f"{name}: {each.statement()}")
        if each.verdict != RIGHT:
            worst = each.table.loc[each.suspects[:MOST_ROWS]]
            columns = ["mean", "truth", "bias", "error", "p", "p of shares", "ess"]
            lines += worst[columns].to_string(float_format="{:.3g}".format).splitlines()
    if any("draw more" in line for line in lines):
        lines.append("raise draws=, or thin inside the sampler")
    raise AssertionError("\n".join(lines))
