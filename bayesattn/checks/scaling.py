"""Finite-size scaling: decrease of the theory's deviation with the width."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bayesattn._util.checks import one_of
from bayesattn._util.text import with_error
from bayesattn.checks.validation import Validation

LEAST_ERRORS_IN_FIT = 3.0
"""Smallest deviation, in Monte Carlo errors, that enters the fit: logarithms of noise are misleading."""
FIRST_ORDER, NEXT_ORDER, SLOPE_ERRORS = -1, -2, 3.0
"""Exponents of the width in the first and second order, and number of standard errors by which a slope may exceed one."""


class Slope(NamedTuple):
    """Exponent of a power law in the width, its standard error, and the widths that enter the fit."""

    slope: float
    error: float
    widths: tuple[int, ...]


def scaling(validations: Sequence[Validation], of: str = "relative_deviation") -> Slope | None:
    """Log-log slope of the theory's deviation from the draws against the width: finite-size scaling.

    At a fixed load P / N, in a task that is statistically the same at all sizes, the deviation from the saddle point
    decreases as 1/N (slope -1), and the deviation from the corrected theory faster. At fixed P the slope drifts: at widths
    far above P, U itself tends to its prior, and the deviation decreases as 1/N^2.

    Args:
        validations: validations of one task at several widths.
        of: "relative_deviation" (from the saddle point) or "relative_remaining" (from the corrected theory).

    Returns:
        The weighted least-squares slope, and its error from the Monte Carlo errors, inflated if the points do not lie on a
        line; None unless at least two widths deviate by 3 Monte Carlo errors or more.
    """
    one_of("of", of, ("relative_deviation", "relative_remaining"))
    significant = [v for v in validations if abs(getattr(v, of)) >= LEAST_ERRORS_IN_FIT * v.relative_error]
    if len({v.width for v in significant}) < 2:
        return None
    deviations = np.array([abs(getattr(v, of)) for v in significant])
    errors = np.array([v.relative_error for v in significant]) / deviations
    logs = np.log([v.width for v in significant])
    centred = logs - np.average(logs, weights=errors**-2)
    slope = np.sum(centred * np.log(deviations) / errors**2) / np.sum((centred / errors) ** 2)
    residuals = np.log(deviations) - slope * centred
    residuals -= np.average(residuals, weights=errors**-2)
    misfit = np.sum((residuals / errors) ** 2) / max(1, len(significant) - 2)
    error = np.sqrt(max(1.0, misfit) / np.sum((centred / errors) ** 2))
    return Slope(float(slope), float(error), tuple(v.width for v in significant))


def remainder(validations: Sequence[Validation]) -> str | None:
    """Statement whether the deviation from the first-order theory decreases as the next order.

    None if it is not significant, or if chains at some width did not mix. The next order decreases as N^-2 at a fixed load
    P / N, and faster for fixed examples.
    """
    fit = scaling(validations, "relative_remaining")
    if fit is None or not all(validation.usable for validation in validations):
        return None
    text = f"what the theory to first order in 1/N misses falls as N^({with_error(fit.slope, fit.error)})"
    if fit.slope - NEXT_ORDER > SLOPE_ERRORS * fit.error:
        return f"{text}, slower than the next order, N^({NEXT_ORDER}): the theory is wrong, or the widths are too small"
    if FIRST_ORDER - fit.slope <= SLOPE_ERRORS * fit.error:
        return f"{text}, which may be the next order, N^({NEXT_ORDER}), or the first, N^({FIRST_ORDER}): draw more"
    return f"{text}, as the next order does, N^({NEXT_ORDER}) or faster"
