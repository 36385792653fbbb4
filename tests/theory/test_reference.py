"""Theory against the values computed with the published code of arXiv 2405.15926."""

import numpy as np
import pytest

import bayesattn as ba
from tests.conftest import relative_error


def test_action_kernel_and_predictors(layers):
    first = layers.order_parameters[0]
    action = ba.theory.action(layers.order_parameters, layers.model)
    found = {name: getattr(action, name) for name in ("energy", "entropy", "scalar_order_parameter")}
    found["kernel"] = ba.theory.kernel(first, layers.path_inputs, layers.path_inputs, layers.arch)
    for limit, point in (("", first), ("gp_", ba.theory.gp_order_parameter(layers.arch))):
        prediction = ba.theory.predict(point, layers.model)
        found |= {f"{limit}mean": prediction.mean, f"{limit}variance": prediction.variance}
    for name, value in found.items():
        assert relative_error(value, layers.stored[name]) < 1e-9, name


def test_saddle_point(layers):
    solution = ba.theory.solve(layers.model)
    reference = float(layers.stored["saddle_action"])
    assert solution.energy + solution.entropy < reference + 1e-9 * abs(reference)
    assert solution.converged
    assert solution.gradient_norm < 1e-8
    again = ba.theory.action(solution.order_parameters, layers.model)
    for name in ("energy", "entropy", "scalar_order_parameter"):
        assert relative_error(getattr(solution, name), getattr(again, name)) < 1e-11


def test_head_scores(two_layers):
    stored = two_layers.stored
    scores = ba.theory.head_scores(two_layers.order_parameters[0], two_layers.arch)
    ours = [scores[layer][head] for layer, head in zip(stored["layer_index"], stored["head_index"], strict=True)]
    assert relative_error(ours, stored["head_scores"]) < 1e-12


@pytest.mark.parametrize("width", [10, 100])
def test_hidden_markov(hidden_markov, hidden_markov_model, width):
    model = hidden_markov_model(width)
    solution = ba.theory.solve(model)
    prediction = ba.theory.predict(solution.order_parameter, model)
    found = {"order_parameter": solution.order_parameter, "mean": prediction.mean, "variance": prediction.variance}
    for name, value in found.items():
        assert relative_error(value, hidden_markov[f"{name}_{width}"]) < 1e-4, name


def test_solving_several_networks_or_temperatures_at_once_is_the_same(hidden_markov_model, two_layers):
    model = hidden_markov_model(10)
    networks = [model.architecture.with_width(width) for width in (10, 30, 100, 300, 1000)]
    together = ba.theory.solve(model, arch=networks)
    assert together.order_parameter.shape == (5, 4, 4)
    assert together.converged.all()
    for index in (0, 3):
        alone = ba.theory.solve(model, arch=networks[index])
        assert relative_error(alone.order_parameter, together.order_parameter[index]) < 1e-9
    together = ba.theory.solve(two_layers.model, temperature=[0.05, 0.5])
    alone = [ba.theory.solve(two_layers.model, temperature=each).order_parameter for each in (0.05, 0.5)]
    np.testing.assert_allclose(together.order_parameter, alone, rtol=1e-9, atol=1e-12)
