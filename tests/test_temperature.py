"""Temperatures by evidence and by validation."""

import json

import numpy as np
import pytest

import bayesattn as ba
from bayesattn.questions import temperature
from tests.posteriors import exact_scalar_posterior, tiny_model
from tests.statistics import near


@pytest.fixture(scope="module")
def model():
    """Labels that the first example's kind of input decides, and validation examples that are the training ones."""
    model = tiny_model()
    return model.replace(validation_path_inputs=model.path_inputs, validation_labels=np.sign(model.labels))


@pytest.fixture(scope="module")
def tried(model):
    return temperature.candidates(model, [0.05, 0.5, 50.0])


def test_evidence_and_accuracies_are_those_of_the_theory(model, tried):
    assert [each.temperature for each in tried] == [0.05, 0.5, 50.0]
    for each in tried:
        case = model.replace(temperature=each.temperature)
        exact = exact_scalar_posterior(case)[2]
        assert each.reliable
        assert each.failure is None
        near(each.log_evidence, exact, each.error, finds=0.35)
        saddle = ba.theory.solve(case)
        mean = ba.theory.predict(saddle.order_parameter, case, case.path_inputs).mean
        assert each.validation_accuracy == np.mean(np.sign(mean) == np.sign(case.labels))


def test_the_best_are_chosen(tried):
    best = temperature.by_evidence(tried)
    assert best.log_evidence == max(each.log_evidence for each in tried)
    # By quadrature 50.0 is 5.7 nats below 0.5, and errors are below 0.1.
    assert temperature.rivals(tried) == []
    accuracies = [each.validation_accuracy for each in tried]
    assert temperature.by_validation(tried).validation_accuracy == max(accuracies)
    assert temperature.by_validation([each._replace(validation_accuracy=None) for each in tried]) is None


def test_temperatures_that_cannot_be_told_apart_are_named(tried):
    best = temperature.by_evidence(tried)
    other = best._replace(temperature=2.0, log_evidence=best.log_evidence - 0.5, error=0.2)
    assert temperature.rivals([best, other]) == [other]
    assert temperature.rivals([best, other._replace(error=0.1)]) == []


def test_an_evidence_that_is_not_known_says_why(model):
    inputs, labels = model.path_inputs[:3], model.labels[:3]
    twice = model.replace(path_inputs=np.concatenate([inputs] * 2), labels=np.concatenate([labels, -labels]))
    failed, known = temperature.candidates(twice, [1e-17, 0.5])
    assert failed.log_evidence is None
    assert failed.error is None
    assert "is too small to make up for it" in str(failed.failure)
    assert temperature.by_evidence([failed, known]) is known
    assert temperature.rivals([failed, known]) == []
    with pytest.raises(ValueError, match="tried must hold a candidate with an evidence, got none: "):
        temperature.by_evidence([failed])
    numbers = model.replace(validation_labels=np.abs(model.validation_labels) + 0.3)
    [real] = temperature.candidates(numbers, [0.5])
    assert real.validation_accuracy is None  # Numbers above 0 are no classes.
    # NaN and infinity are no JSON.
    json.dumps(failed._asdict(), allow_nan=False)


def test_bad_temperatures_are_named(model):
    with pytest.raises(ValueError, match="temperature must be a finite number above 0, got -1"):
        temperature.candidates(model, [-1.0])
    with pytest.raises(ValueError, match="particles must be a multiple of 8, got 12"):
        temperature.candidates(model, [1.0], particles=12)
    with pytest.raises(ValueError, match="validation_labels need validation_path_inputs"):
        model.replace(validation_path_inputs=None)
