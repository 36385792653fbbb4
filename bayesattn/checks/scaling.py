"""How a deviation falls with the width: finite-size scaling."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bayesattn._util.checks import one_of

SEEN_ERRORS = 3.0
"""Monte Carlo errors that a deviation must exceed to have a say in a slope: logarithms of noise mislead."""


class Slope(NamedTuple):
    """Exponent of a power law in the width, its standard error, and the widths that had a say in it."""

    slope: float
    error: float
    widths: tuple[int, ...]


def scaling(validations: Sequence[Any], of: str = "relative_deviation") -> Slope | None:
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
