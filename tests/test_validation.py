"""Verdicts on the reference hidden Markov task: right theory passes, a wrong one is caught."""

import json

import arviz_stats
import numpy as np
import pytest

import bayesattn as ba
from bayesattn import plots

GOOD_PATH = {"path": 0, "other_path": 0}


@pytest.fixture(scope="module")
def reference_draws(hidden_markov_model):
    return ba.sample(hidden_markov_model(10), warmup=100, draws=600)


@pytest.fixture(scope="module")
def reference_validation(hidden_markov_model, reference_draws):
    return ba.validate(hidden_markov_model(10), reference_draws)


def test_good_path_at_width_ten(reference_draws, hidden_markov):
    """A long independent run gave 14.86 +- 0.03 for U_00; the saddle point says 13.37."""
    entry = reference_draws["posterior"]["order_parameter"].isel(GOOD_PATH)
    error = np.hypot(float(arviz_stats.mcse(entry)), 0.03)
    assert abs(float(entry.mean()) - 14.86) < 4 * error
    assert abs(float(entry.mean()) - hidden_markov["order_parameter_10"][0, 0]) > 10 * error


def test_combining_paths_beats_the_gp_limit_at_width_ten(reference_validation):
    found = reference_validation.accuracy
    assert found.gains["all paths"].outcome == found.theory_gains["all paths"].outcome == "higher"
    assert found.gains["all paths"].difference == pytest.approx(found.draws - found.gp)
    assert reference_validation.alignment.outcome == "higher"


def test_accuracy_on_other_test_examples(hidden_markov_model, reference_validation):
    model = hidden_markov_model(10)
    same = ba.validation.accuracy_on(model, reference_validation)
    for name in ("theory", "draws", "error", "gp"):
        assert getattr(same, name) == getattr(reference_validation.accuracy, name)
    turned = ba.validation.accuracy_on(model.replace(test_labels=-model.test_labels), reference_validation)
    assert turned.theory == pytest.approx(1 - same.theory)
    with pytest.raises(ValueError, match="model must have training examples, architecture and temperature of"):
        ba.validation.accuracy_on(hidden_markov_model(30), reference_validation)


@pytest.mark.heavy
@pytest.mark.parametrize("parameterisation", ["path", "collapsed"])
def test_good_path_at_width_ten_at_length(hidden_markov_model, parameterisation):
    draws = ba.sample(hidden_markov_model(10), parameterisation=parameterisation, warmup=300, draws=1000)
    entry = draws["posterior"]["order_parameter"].isel(GOOD_PATH)
    assert abs(float(entry.mean()) - 14.86) < 4 * np.hypot(float(arviz_stats.mcse(entry)), 0.03)


def test_theory_holds_on_the_reference_task(reference_validation):
    assert reference_validation.holds, reference_validation.failures()
    assert reference_validation.usable
    # The saddle point alone does not hold at this width: the expected deviation is seen, and larger than the error.
    assert reference_validation.deviation[0, 0] > 10 * reference_validation.error[0, 0]
    assert reference_validation.expected[0, 0] == pytest.approx(reference_validation.deviation[0, 0], rel=0.2)


def test_mean_predictor_by_two_routes(hidden_markov_model, reference_draws, reference_validation):
    """The mean of f over the draws, and of its conditional mean given U, within 4 combined errors at every test input."""
    model = hidden_markov_model(10)
    batches = np.tensordot(reference_validation.readouts, model.test_path_inputs, ((1, 2), (1, 2)))
    drawn = reference_draws["posterior"]["prediction"]
    error = np.hypot(batches.std(0, ddof=1) / np.sqrt(len(batches)), arviz_stats.mcse(drawn).values)
    apart = np.abs(batches.mean(0) - drawn.mean(("chain", "draw")).values) / error
    # 200 test inputs; 16 batches make the smaller error Student's t.
    assert apart.max() < 5


def test_a_wrong_temperature_fails(hidden_markov_model, reference_draws):
    wrong = ba.validate(hidden_markov_model(10).replace(temperature=0.02), reference_draws)
    assert wrong.usable
    assert not wrong.holds
    assert "by the theory" in wrong.failures()[0]


def test_a_wrong_width_fails(hidden_markov_model, reference_draws):
    assert not ba.validate(hidden_markov_model(11), reference_draws).holds


def test_chains_that_disagree_decide_nothing(hidden_markov_model, reference_draws):
    tree = reference_draws.copy(deep=True)
    tree["posterior"]["order_parameter"][0] *= 2
    validation = ba.validate(hidden_markov_model(10), tree)
    assert not validation.usable
    assert not validation.holds
    assert any("R-hat" in warning for warning in validation.diagnostics.warnings())


def test_results_are_json(reference_validation):
    content = json.loads(json.dumps(reference_validation.to_dict()))
    assert content["holds"] is True
    assert np.shape(content["order_parameter"]) == (4, 4)


def test_foreign_draws_are_refused(hidden_markov_model, reference_draws):
    two = ba.Model(
        path_inputs=np.ones((3, 2, 4)),
        labels=np.ones(3),
        temperature=1.0,
        architecture=ba.Architecture((2,), (5, 5), (1.0,) * 3),
    )
    with pytest.raises(ValueError, match="draws must be of this model with 2 paths"):
        ba.validate(two, reference_draws)
    with pytest.raises(ValueError, match=r"draws must hold posterior\['order_parameter'\]"):
        ba.validate(two, reference_draws["sample_stats"])


def test_gp_limit_of_a_group_is_a_network_of_those_paths(hidden_markov_model):
    model = hidden_markov_model(10)
    alone = ba.Model(
        path_inputs=model.path_inputs[:, [2]],
        labels=model.labels,
        test_path_inputs=model.test_path_inputs[:, [2]],
        architecture=ba.Architecture((1, 1), (10,) * 3, (1.0,) * 4),
        temperature=model.temperature,
    )
    np.testing.assert_allclose(ba.accuracy.gp_kernel(model, [2]), ba.accuracy.gp_kernel(alone), rtol=1e-12)
    expected = ba.theory.predict(
        [[1.0]], alone.path_inputs, alone.labels, alone.test_path_inputs, alone.architecture, alone.temperature
    )
    np.testing.assert_allclose(ba.accuracy.gp_mean(model, [2]), expected.mean, rtol=1e-9)


def test_figure_shows_what_it_says(reference_validation):
    figure = plots.validation_figure([reference_validation])
    titles = [axes.get_title() for axes in figure.findobj(plots.Axes)]
    assert {"Accuracy of the mean predictor", "Kernel alignment", "U at N = 10: draws"} <= set(titles)
    scales = {image.get_clim() for axes in figure.findobj(plots.Axes) for image in axes.images}
    assert len(scales) == 1
