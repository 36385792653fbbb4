"""Temperatures by evidence and by validation."""

import numpy as np
import pytest

import bayesattn as ba
from bayesattn import temperature
from tests.posteriors import exact_scalar_posterior, tiny_model


@pytest.fixture(scope="module")
def model():
    """Labels that the first example's kind of input decides, and validation examples that are the training ones."""
    model = tiny_model()
    return model.replace(validation_path_inputs=model.path_inputs, validation_labels=np.sign(model.labels))


@pytest.fixture(scope="module")
def tried(model):
    return temperature.candidates(model, [0.05, 0.5, 5.0])


def test_evidence_and_accuracies_are_those_of_the_theory(model, tried):
    assert [each.temperature for each in tried] == [0.05, 0.5, 5.0]
    for each in tried:
        case = model.replace(temperature=each.temperature)
        # The expansion leaves out what its error says.
        exact = exact_scalar_posterior(case)[2]
        problem = (case.path_inputs, case.labels, case.architecture, case.temperature)
        saddle = ba.theory.solve(*problem)
        expected = ba.theory.laplace_evidence(*problem, start=saddle.point)
        assert each.log_evidence == expected.log_evidence
        assert abs(each.log_evidence - exact) < expected.error
        mean = ba.theory.predict(saddle.order_parameter, *problem[:2], case.path_inputs, *problem[2:]).mean
        assert each.validation_accuracy == np.mean(np.sign(mean) == np.sign(case.labels))


def test_the_best_are_chosen(tried):
    assert temperature.by_evidence(tried).log_evidence == max(each.log_evidence for each in tried)
    best = temperature.by_validation(tried)
    assert best is not None
    assert best.validation_accuracy == max(each.validation_accuracy for each in tried)
    without = [each._replace(validation_accuracy=None) for each in tried]
    assert temperature.by_validation(without) is None
    failed = [tried[0]._replace(log_evidence=-np.inf), *tried[1:]]
    assert temperature.by_evidence(failed) in tried[1:]


def test_bad_temperatures_are_named(model):
    with pytest.raises(ValueError, match="temperatures must hold at least one number above 0, got none"):
        temperature.candidates(model, [])
    with pytest.raises(ValueError, match="temperature must be a finite number above 0, got -1"):
        temperature.candidates(model, [-1.0])
    with pytest.raises(ValueError, match="validation_labels need validation_path_inputs"):
        model.replace(validation_path_inputs=None)
