"""Warnings about labels that are valid but likely not intended."""

import warnings

import numpy as np

from bayesattn._util.checks import Checked

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


def warn_of_labels(name: str, labels: np.ndarray, model: Checked) -> None:
    """Warn of labels that are valid but likely not intended."""
    if not model.likelihood.conjugate:  # Other likelihoods check their labels themselves.
        return
    statistics = model.compressed if name == "labels" else None
    if statistics is None and labels.ndim == 1 and (doubt := doubtful_labels(name, labels)):
        warnings.warn(doubt, stacklevel=4)
    arch, entries = model.architecture, model.examples * np.prod(model.path_inputs.shape[1:])
    squares = np.einsum("epf,epf->p", model.path_inputs, model.path_inputs)
    expected = arch.input_variance * (squares @ arch.path_variances) / entries
    if name != "labels" or not expected > 0:
        return
    square = statistics.square / (statistics.examples * arch.outputs) if statistics else np.mean(np.square(labels))
    size = np.sqrt(square)
    larger, smaller = size / np.sqrt(expected + model.temperature), np.sqrt(expected) / size if size > 0 else 0
    if max(larger, smaller) > UNEXPECTED_RATIO:
        than = f"{larger:.2g} times larger" if larger > smaller else f"{smaller:.2g} times smaller"
        warnings.warn(f"labels are {than} than the prior expects; rescale them, or change the variances", stacklevel=4)
