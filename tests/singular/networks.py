"""Small networks with an orthonormal design, whose learning coefficients are known."""

import numpy as np

import bayesattn as ba
from bayesattn.questions.singular import Differences, LearningCoefficient

DEEP_LINEAR = [  # heads, widths, features, outputs
    ((1,), (3, 3), 5, 2),
    ((1,), (2, 4), 4, 3),
    ((1,), (2, 2), 2, 1),
    ((1,), (1, 3), 4, 2),
    ((1,), (4, 2), 3, 3),
    ((1,), (5, 5), 2, 2),
    ((1,), (2, 6), 5, 1),
    ((1,), (3, 1), 4, 2),
    ((1,), (1, 1), 1, 1),
    ((1,), (3, 2), 2, 2),
    ((1,), (6, 6), 3, 1),
    ((1,), (2, 3), 3, 3),
    ((1, 1), (2, 2, 2), 3, 2),
    ((1, 1), (3, 2, 3), 2, 1),
    ((1, 1), (4, 4, 4), 2, 2),
    ((1, 1), (1, 2, 3), 3, 2),
    ((1, 1), (5, 2, 5), 3, 2),
    ((1, 1), (3, 3, 3), 3, 1),
    ((1, 1), (2, 5, 2), 4, 1),
    ((1, 1), (6, 6, 6), 2, 1),
]
WITH_HEADS = [
    ((2,), (2, 6), 5, 1),
    ((2,), (10, 3), 5, 1),
    ((2,), (2, 2), 3, 2),
    ((3,), (2, 3), 3, 2),
    ((3,), (4, 2), 4, 1),
    ((2,), (3, 3), 2, 2),
    ((4,), (2, 4), 2, 1),
    ((2,), (1, 3), 4, 2),
    ((3,), (3, 1), 2, 2),
    ((2,), (5, 5), 3, 1),
    ((2, 2), (3, 3, 3), 4, 1),
    ((2, 2), (4, 4, 4), 5, 1),
    ((2, 1), (2, 3, 2), 3, 1),
    ((1, 2), (2, 3, 2), 3, 1),
    ((2, 2), (2, 2, 2), 2, 1),
    ((1, 3), (3, 2, 4), 2, 1),
    ((3, 1), (2, 4, 3), 3, 1),
    ((2, 2), (1, 3, 2), 3, 1),
    ((2, 2), (6, 2, 6), 2, 1),
    ((2, 1), (3, 3, 3), 2, 2),
]


def network(heads, widths, features, outputs=1, temperature=0.01, labels=None, skips=(), variances=None):
    """Model with X^T X = N_0 Pi I, and labels 0 by default."""
    arch = ba.Architecture(heads, widths, variances or (1.0,) * (len(heads) + 2), skips, outputs)
    rows = arch.paths * features
    inputs = np.sqrt(rows) * np.eye(rows).reshape(rows, arch.paths, features)
    if labels is None:
        labels = np.zeros((rows, outputs)) if outputs > 1 else np.zeros(rows)
    return ba.Model(path_inputs=inputs, labels=labels, architecture=arch, temperature=temperature)


def between(found: LearningCoefficient) -> Differences:
    """Means of lambda_hat over log T between neighbouring temperatures, by values and slopes of the chains.

    The rule is the trapezoidal one with end corrections, whose error of fourth order in the step is not part of the errors.
    """
    temperatures, value, slope = found.temperatures, found.value, found.slope
    step = np.log(temperatures[:-1] / temperatures[1:])
    means = (value[:-1] + value[1:]) / 2 + step / 12 * (slope[1:] - slope[:-1])
    of_values = np.hypot(found.error[:-1], found.error[1:]) / 2
    of_slopes = step / 12 * np.hypot(found.slope_error[:-1], found.slope_error[1:])
    return Differences(np.sqrt(temperatures[:-1] * temperatures[1:]), means, np.hypot(of_values, of_slopes))
