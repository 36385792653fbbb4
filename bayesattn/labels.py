"""Labels that are right in form, but likely not what was meant."""

import warnings

import numpy as np

from bayesattn._util.checks import Checked

UNEXPECTED = 100
"""Times that labels may be larger or smaller than the prior expects before a warning."""
MOST_NUMBERS, LARGEST_NUMBER = 20, 100
"""Labels that are whole numbers from 0 on, so many different ones at most and none larger, are likely numbers of classes."""


def doubtful_labels(name: str, labels: np.ndarray) -> str:
    """What to warn of where labels (P,) are right in form, but likely classes and no values of a function; else empty.

    Classes are two values of one sign, or 3 to 20 different whole numbers from 0 to 100 that occur more than once in all.
    """
    values = np.unique(labels)
    if len(values) == 2 and values[0] * values[1] >= 0:
        return (
            f"{name} are {values[0]:g} and {values[1]:g}: the prior expects them around 0, and accuracy reads their sign;"
            " use -1 and +1"
        )
    few = 3 <= len(values) <= min(MOST_NUMBERS, len(labels) - 1)
    if not few or np.any((values < 0) | (values > LARGEST_NUMBER) | (values != np.round(values))):
        return ""
    return (
        f"{name} are {', '.join(f'{value:g}' for value in values[:3])}{', ..' if len(values) > 3 else ''} and are taken as"
        f" values of a function; if they number classes, use bayesattn.one_hot(labels) and an architecture with outputs ="
        f" {len(values)}"
    )


def warn_of_labels(name: str, labels: np.ndarray, model: Checked) -> None:
    """Warn of labels that are right in form, but likely not what was meant."""
    statistics = model.compressed if name == "labels" else None
    if statistics is None and labels.ndim == 1 and (doubt := doubtful_labels(name, labels)):
        warnings.warn(doubt, stacklevel=4)
    arch, entries = model.architecture, model.examples * np.prod(model.path_inputs.shape[1:])
    squares = np.einsum("epf,epf->p", model.path_inputs, model.path_inputs)
    expected = arch.input_variance * (squares @ arch.path_variances) / entries
    if name != "labels" or not expected > 0 or not model.likelihood.conjugate:
        return
    square = statistics.square / (statistics.examples * arch.outputs) if statistics else np.mean(np.square(labels))
    size = np.sqrt(square)
    larger, smaller = size / np.sqrt(expected + model.temperature), np.sqrt(expected) / size if size > 0 else 0
    if max(larger, smaller) > UNEXPECTED:
        than = f"{larger:.2g} times larger" if larger > smaller else f"{smaller:.2g} times smaller"
        warnings.warn(f"labels are {than} than the prior expects; rescale them, or change the variances", stacklevel=4)
