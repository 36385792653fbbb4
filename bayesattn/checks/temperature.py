"""Choosing the temperature without a test set: by the finite-width evidence, or by accuracy on validation examples."""

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bayesattn import theory
from bayesattn._util.checks import positive
from bayesattn._util.errors import BayesattnError
from bayesattn._util.plain import PlainDict
from bayesattn._util.settings import with_own_settings
from bayesattn.checks.accuracy import share_right
from bayesattn.models import Model
from bayesattn.theory.evidence import FAR, competing
from bayesattn.theory.predictor import outputs_at, readouts

TEMPERATURES = (0.01, 0.03, 0.1, 0.3, 1.0, 1.5)
TOO_COLD = f"not followed: log p(Y) had fallen {FAR:g} nats below its greatest, and still fell as T did"
MOST_ERRORS = 3
"""Combined standard errors by which log evidences must differ to be told apart."""


class Candidate(NamedTuple):
    """A temperature: log p(Y) at finite width and in the GP limit; accuracies of both mean predictors.

    At finite width that is the predictor of the saddle point. `error`, `method` and `reliable` are those of
    `theory.Evidence`. Where K + T I is singular in float64, or T too cold to compete, there is no evidence: it, its error
    and its method are None, and `failure` says why.

    Accuracies are None without such examples, those at finite width also where there is no saddle point.
    """

    temperature: float
    log_evidence: float | None
    error: float | None
    method: str | None
    reliable: bool
    failure: str | None
    gp_log_evidence: float | None
    validation_accuracy: float | None
    test_accuracy: float | None
    gp_test_accuracy: float | None


@with_own_settings
def candidates(
    model: Model, temperatures: Sequence[float] = TEMPERATURES, seed: int = 0, particles: int | None = None
) -> list[Candidate]:
    """Evidence and accuracy of a model at each of some temperatures.

    Args:
        model: whose own temperature does not matter.
        temperatures: to be tried.
        seed: of the draws that the evidence takes.
        particles: of the evidence, as in `bayesattn.theory.evidence`, which anneals at every width then: fewer are quicker,
            and their error is larger.

    Raises:
        ValueError: no temperatures, one that is not above 0, particles that are no multiple of 8.
    """
    checked = [positive("temperature", temperature) for temperature in np.atleast_1d(temperatures)]
    evidences: list[theory.Evidence | str]
    try:
        # All in one run.
        evidences = [evidence or TOO_COLD for evidence in competing(model, checked, seed=seed, particles=particles)]
    except theory.NotConverged:
        evidences = [_evidence(model, temperature, seed, particles) for temperature in checked]
    return [_candidate(model, *pair) for pair in zip(checked, evidences, strict=True)]


def by_evidence(tried: Sequence[Candidate]) -> Candidate:
    """The one with the greatest evidence at finite width; `rivals` says which others may have more.

    Raises:
        ValueError: none has an evidence.
    """
    known = [candidate for candidate in tried if candidate.log_evidence is not None]
    if not known:
        raise BayesattnError(
            f"tried must hold a candidate with an evidence, got none: {tried[0].failure if tried else 'empty'}"
        )
    return max(known, key=lambda candidate: _or_least(candidate.log_evidence))


def rivals(tried: Sequence[Candidate]) -> list[Candidate]:
    """Those that cannot be told apart from the one of greatest evidence, within 3 combined errors.

    Errors that are not reliable understate themselves, so that these are the fewest.
    """
    best = by_evidence(tried)

    def near(other: Candidate) -> bool:
        gap = _or_least(best.log_evidence) - _or_least(other.log_evidence)
        return bool(gap <= MOST_ERRORS * np.hypot(best.error or 0, other.error or 0))

    return [candidate for candidate in tried if candidate is not best and near(candidate)]


def by_validation(tried: Sequence[Candidate]) -> Candidate | None:
    """The one most accurate on the validation examples, None where there are none; of equals the more evident."""
    known = [candidate for candidate in tried if candidate.validation_accuracy is not None]
    return max(
        known, key=lambda candidate: (candidate.validation_accuracy, _or_least(candidate.log_evidence)), default=None
    )


def by_gp_evidence(tried: Sequence[Candidate]) -> Candidate:
    """The one with the greatest evidence in the GP limit."""
    return max(tried, key=lambda candidate: _or_least(candidate.gp_log_evidence))


def _or_least(log_evidence: float | None) -> float:
    return -np.inf if log_evidence is None else log_evidence


def _evidence(model: Model, temperature: float, seed: int, particles: int | None) -> theory.Evidence | str:
    """Evidence at one temperature, or why there is none."""
    try:
        return theory.evidence(model, temperature=temperature, seed=seed, particles=particles)
    except theory.NotConverged as failure:
        return str(failure)


def _candidate(model: Model, temperature: float, evidence: theory.Evidence | str) -> Candidate:
    gp = None
    with contextlib.suppress(theory.NotConverged):
        gp = theory.gp_evidence(model, temperature=temperature)
    own: PlainDict = {"log_evidence": None, "error": None, "method": None, "reliable": False, "failure": evidence}
    if isinstance(evidence, theory.Evidence):
        own = evidence._asdict() | {"failure": None}

    order_parameters = [theory.gp_order_parameter(model.architecture)]
    with contextlib.suppress(theory.NotConverged):
        order_parameters.append(theory.solve(model, temperature=temperature).order_parameter)
    predictors = np.asarray(readouts(np.stack(order_parameters), model, temperature))

    def accuracies(path_inputs: Any, labels: Any) -> list[float | None]:
        """Of the mean predictors given U: in the GP limit and, where the solver found it, at the saddle point."""
        if path_inputs is None or labels is None:
            return [None, None]
        shares = [share_right(output, labels) for output in outputs_at(predictors, path_inputs)]
        return [*shares, None][:2]

    _, validation = accuracies(model.validation_path_inputs, model.validation_labels)
    gp_test, test = accuracies(model.test_path_inputs, model.test_labels)
    return Candidate(
        temperature=temperature,
        **own,
        gp_log_evidence=gp,
        validation_accuracy=validation,
        test_accuracy=test,
        gp_test_accuracy=gp_test,
    )
