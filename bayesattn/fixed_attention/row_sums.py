"""Sums of attention over keys, which should be 1: the accepted deviation, and what explains a larger one."""

import numpy as np

from bayesattn._util.checks import Checked, number
from bayesattn._util.errors import BayesattnError

ROW_TOLERANCE = 1e-5
"""Largest deviation of the sums of rows from 1, and of weights on padding from 0."""
HALF_PRECISION_DEVIATION = 0.02
"""Deviation of a row's sum from 1 that half precision explains.

Weights rounded to bfloat16, with 8 significant bits, sum to 1 within 2^-8 = 0.004; a softmax in bfloat16 adds a
few times that.
"""


def checked_tolerance(renormalise: Checked) -> float:
    """Largest accepted deviation of the sums of rows from 1; raises ValueError unless it is from 0 to below 1."""
    if renormalise is None:
        return ROW_TOLERANCE
    expected = "a number of at least 0 and below 1"
    if not 0 <= (tolerance := number("renormalise", renormalise, expected)) < 1:
        raise BayesattnError(f"renormalise must be {expected}, got {tolerance:g}")
    return tolerance


def renormalise_hint(sums: np.ndarray, renormalise: float | None) -> str:
    """End of the error about row sums: the limit exceeded, or advice if the cause of the deviation from 1 is known."""
    if renormalise is not None:
        return f", more than renormalise, {renormalise:g}"
    off = np.abs(sums - 1).max()
    advice = f"; renormalise={min(2 * off, (1 + off) / 2):.2g} divides rows by their sums"
    return f": {cause}{advice}" if (cause := cause_of_sums(sums.min(), sums.max())) else ""


def cause_of_sums(lowest: float, highest: float) -> str:
    """What explains rows whose sums are not 1: rounding has both signs, a missing share only one."""
    if lowest > 0 and highest <= 1 + ROW_TOLERANCE:
        return "a share is missing, as that of attention sinks"
    return "half precision explains this" if max(1 - lowest, highest - 1) <= HALF_PRECISION_DEVIATION else ""
