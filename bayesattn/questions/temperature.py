"""Choice of the temperature without a test set: by finite-width evidence, or by accuracy on validation examples."""

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bayesattn import theory
from bayesattn._util.checks import positive
from bayesattn._util.plain_values import PlainDict
from bayesattn._util.settings import with_own_settings
from bayesattn.checks.accuracy import share_right
from bayesattn.errors import BayesattnError
from bayesattn.models import Model
from bayesattn.theory.evidence import NEGLIGIBLE_LOG_ODDS, competing
from bayesattn.theory.predictor import have_accuracy, outputs_at, readouts

TEMPERATURES = (0.01, 0.03, 0.1, 0.3, 1.0, 1.5)
TOO_COLD = f"not followed: log p(Y) had fallen {NEGLIGIBLE_LOG_ODDS:g} nats below its greatest, and still fell as T did"
RIVAL_ERRORS = 3
"""Combined standard errors beyond which log evidences count as different."""


class Candidate(NamedTuple):
    """Temperature with log p(Y) at finite width and in the GP limit, and accuracies of both mean predictors.

    At finite width the mean predictor is that of the saddle point. `error`, `method` and `reliable` are those of
    `theory.Evidence`. If K + T I is singular in float64, or if T is too low to compete, there is no evidence: evidence,
    error and method are None, and `failure` states the reason.

    Accuracies are None without validation or test examples that can be got right, such as classes. At finite width they are
    also None without a saddle point.
    """

    temperature: float
    log_evidence: float | None = None
    error: float | None = None
    method: str | None = None
    reliable: bool = False
    failure: str | None = None
    gp_log_evidence: float | None = None
    validation_accuracy: float | None = None
    test_accuracy: float | None = None
    gp_test_accuracy: float | None = None


@with_own_settings
def candidates(
    model: Model, temperatures: Sequence[float] = TEMPERATURES, seed: int = 0, particles: int | None = None
) -> list[Candidate]:
    """Evidence and accuracy of a model at each of several temperatures.

    Args:
        model: the model; its own temperature is not used.
        temperatures: temperatures to try.
        seed: seed of the draws for the evidence.
        particles: number of particles of `bayesattn.theory.evidence`, which then anneals at every width; fewer are faster,
            with a larger error.

    Raises:
        ValueError: no temperatures, one that is not above 0, a number of particles that is not a multiple of 8.
    """
    checked = [positive("temperature", temperature) for temperature in np.atleast_1d(temperatures)]
    evidences: list[theory.Evidence | str]
    try:
        # All temperatures in one run.
        evidences = [evidence or TOO_COLD for evidence in competing(model, checked, seed=seed, particles=particles)]
    except theory.NotConverged:
        evidences = [_evidence(model, temperature, seed, particles) for temperature in checked]
    return [_candidate(model, *pair) for pair in zip(checked, evidences, strict=True)]


def by_evidence(tried: Sequence[Candidate]) -> Candidate:
    """Candidate with the largest evidence at finite width; `rivals` returns the others that may have more.

    Raises:
        ValueError: no candidate has an evidence.
    """
    known = [candidate for candidate in tried if candidate.log_evidence is not None]
    if not known:
        raise BayesattnError(
            f"tried must hold a candidate with an evidence, got none: {tried[0].failure if tried else 'empty'}"
        )
    return max(known, key=lambda candidate: _or_least(candidate.log_evidence))


def rivals(tried: Sequence[Candidate]) -> list[Candidate]:
    """Candidates whose evidence is within 3 combined errors of the largest evidence.

    Unreliable errors are underestimates, so there may be more rivals than these.
    """
    best = by_evidence(tried)

    def near(other: Candidate) -> bool:
        gap = _or_least(best.log_evidence) - _or_least(other.log_evidence)
        return bool(gap <= RIVAL_ERRORS * np.hypot(best.error or 0, other.error or 0))

    return [candidate for candidate in tried if candidate is not best and near(candidate)]


def by_validation(tried: Sequence[Candidate]) -> Candidate | None:
    """Candidate most accurate on the validation examples, None without them; ties go to the larger evidence."""
    known = [candidate for candidate in tried if candidate.validation_accuracy is not None]
    return max(known, key=lambda each: (each.validation_accuracy, _or_least(each.log_evidence)), default=None)


def by_gp_evidence(tried: Sequence[Candidate]) -> Candidate:
    """Candidate with the largest evidence in the GP limit."""
    return max(tried, key=lambda candidate: _or_least(candidate.gp_log_evidence))


def _or_least(log_evidence: float | None) -> float:
    return -np.inf if log_evidence is None else log_evidence


def _evidence(model: Model, temperature: float, seed: int, particles: int | None) -> theory.Evidence | str:
    """Evidence at one temperature, or the reason why there is none."""
    try:
        return theory.evidence(model, temperature=temperature, seed=seed, particles=particles)
    except theory.NotConverged as failure:
        return str(failure)


def _candidate(model: Model, temperature: float, evidence: theory.Evidence | str) -> Candidate:
    gp = None
    with contextlib.suppress(theory.NotConverged):
        gp = theory.gp_evidence(model, temperature=temperature)
    own: PlainDict = {"failure": evidence} if isinstance(evidence, str) else evidence._asdict()
    order_parameters = [theory.gp_order_parameter(model.architecture)]
    with contextlib.suppress(theory.NotConverged):
        order_parameters.append(theory.solve(model, temperature=temperature).order_parameter)
    predictors = np.asarray(readouts(np.stack(order_parameters), model, temperature))

    def accuracies(path_inputs: np.ndarray | None, labels: np.ndarray | None) -> list[float | None]:
        """Accuracies of the mean predictors: in the GP limit and, if the solver found it, at the saddle point."""
        if path_inputs is None or labels is None or not have_accuracy(labels):
            return [None, None]
        shares: list[float | None] = [share_right(output, labels) for output in outputs_at(predictors, path_inputs)]
        return [None if gp is None else shares[0], *shares[1:], None][:2]

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
