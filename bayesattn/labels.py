"""Doubts about labels that are valid but likely not intended."""

import numpy as np

UNEXPECTED_RATIO = 100
"""Ratio of the labels' size to the size that the prior expects, or its inverse, above which there is a warning."""
MOST_CLASSES, LARGEST_CLASS_NUMBER = 20, 100
"""Limits within which whole numbers from 0 are likely class numbers: number of distinct values, and largest value."""


def doubtful_labels(name: str, labels: np.ndarray) -> str:
    """Text of a warning if labels (P,) are valid but likely classes rather than values of a function; otherwise empty.

    Likely classes are two values without opposite signs, or 3 to 20 different whole numbers from 0 to 100 that do not
    all occur just once.
    """
    values = np.unique(labels)
    if len(values) == 2 and values[0] * values[1] >= 0:
        return (
            f"{name} are {values[0]:g} and {values[1]:g}: the prior expects them around 0, and accuracy reads their sign;"
            " use -1 and +1"
        )
    few = 3 <= len(values) <= min(MOST_CLASSES, len(labels) - 1)
    if not few or np.any((values < 0) | (values > LARGEST_CLASS_NUMBER) | (values != np.round(values))):
        return ""
    return (
        f"{name} are {', '.join(f'{value:g}' for value in values[:3])}{', ..' if len(values) > 3 else ''} and are taken as"
        f" values of a function; if they are class numbers, use bayesattn.one_hot(labels) and an architecture with outputs ="
        f" {len(values)}"
    )


def doubtful_size(size: float, expected: float, temperature: float) -> str:
    """Text of a warning if the size of labels (root mean square) is far from what the prior expects; otherwise empty.

    `expected` is the size of the outputs that the prior expects.
    """
    larger = size / np.sqrt(expected**2 + temperature)
    smaller = expected / size if size > 0 else 0.0
    if expected == 0 or max(larger, smaller) <= UNEXPECTED_RATIO:
        return ""
    than = f"{larger:.2g} times larger" if larger > smaller else f"{smaller:.2g} times smaller"
    return f"labels are {than} than the prior expects; rescale them, or change the variances"
