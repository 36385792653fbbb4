"""Choosing the temperature without a test set: by the finite-width evidence, or by accuracy on validation examples."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bayesattn import theory
from bayesattn._checks import positive
from bayesattn.accuracy import share_right
from bayesattn.models import Model
from bayesattn.theory.predictor import readouts

TEMPERATURES = (0.01, 0.03, 0.1, 0.3, 1.0, 1.5)


class Candidate(NamedTuple):
    """A temperature: log p(Y) at finite width and in the GP limit; accuracies of both mean predictors.

    At finite width that is the predictor of the saddle point.

    Accuracies are None without such examples. A temperature at which the theory's solver fails has evidence -inf.
    """

    temperature: float
    log_evidence: float
    gp_log_evidence: float
    validation_accuracy: float | None
    test_accuracy: float | None
    gp_test_accuracy: float | None


def candidates(model: Model, temperatures: Sequence[float] = TEMPERATURES) -> list[Candidate]:
    """Evidence and accuracy of a model at each of some temperatures.

    Args:
        model: whose own temperature does not matter.
        temperatures: to be tried.

    Raises:
        ValueError: no temperatures, or one that is not above 0.
    """
    if not len(temperatures):
        raise ValueError("temperatures must hold at least one number above 0, got none")
    return [_candidate(model, positive("temperature", each)) for each in temperatures]


def by_evidence(tried: Sequence[Candidate]) -> Candidate:
    """The one with the greatest evidence at finite width."""
    return max(tried, key=lambda each: each.log_evidence)


def by_validation(tried: Sequence[Candidate]) -> Candidate | None:
    """The one most accurate on the validation examples, None where there are none; of equals the more evident."""
    known = [each for each in tried if each.validation_accuracy is not None]
    return max(known, key=lambda each: (each.validation_accuracy, each.log_evidence), default=None)


def by_gp_evidence(tried: Sequence[Candidate]) -> Candidate:
    """The one with the greatest evidence in the GP limit."""
    return max(tried, key=lambda each: each.gp_log_evidence)


def _candidate(model: Model, temperature: float) -> Candidate:
    problem = (model.path_inputs, model.labels, model.architecture, temperature)
    gp = theory.gp_evidence(*problem)

    order_parameters, evidence = [theory.gp_order_parameter(model.architecture)], -np.inf
    try:
        saddle = theory.solve(*problem)
        evidence = theory.laplace_evidence(*problem, start=saddle.point).log_evidence
        order_parameters.append(saddle.order_parameter)
    except theory.NotConverged:
        pass
    found = np.asarray(readouts(np.stack(order_parameters), *problem))

    def accuracies(path_inputs: Any, labels: Any) -> list[float | None]:
        """Of the mean predictors given U: in the GP limit and, where the solver found it, at the saddle point."""
        if path_inputs is None or labels is None:
            return [None, None]
        outputs = np.tensordot(found, path_inputs, ((1, 2), (1, 2)))
        shares = [share_right(each, labels) for each in outputs]
        return [*shares, None][:2]

    _, validation = accuracies(model.validation_path_inputs, model.validation_labels)
    gp_test, test = accuracies(model.test_path_inputs, model.test_labels)
    return Candidate(temperature, evidence, gp, validation, test, gp_test)
