"""Theory against the values computed with the published code of arXiv 2405.15926."""

import numpy as np
import pytest

import bayesattn as ba
from tests.conftest import relative_error


def test_action(layers):
    result = ba.theory.action(
        layers.order_parameters, layers.path_inputs, layers.labels, layers.arch, layers.temperature
    )
    for name in ("energy", "entropy", "scalar_order_parameter"):
        assert relative_error(getattr(result, name), layers.stored[name]) < 1e-9


def test_kernel(layers):
    kernel = ba.theory.kernel(layers.order_parameters[0], layers.path_inputs, layers.path_inputs, layers.arch)
    assert relative_error(kernel, layers.stored["kernel"]) < 1e-9


@pytest.mark.parametrize("limit", ["", "gp_"])
def test_predictor(layers, limit):
    point = ba.theory.gp_order_parameter(layers.arch) if limit else layers.order_parameters[0]
    prediction = ba.theory.predict(
        point, layers.path_inputs, layers.labels, layers.test_path_inputs, layers.arch, layers.temperature
    )
    assert relative_error(prediction.mean, layers.stored[f"{limit}mean"]) < 1e-9
    assert relative_error(prediction.variance, layers.stored[f"{limit}variance"]) < 1e-9


def test_saddle_point(layers):
    solution = ba.theory.solve(layers.path_inputs, layers.labels, layers.arch, layers.temperature)
    reference = float(layers.stored["saddle_action"])
    assert solution.energy + solution.entropy < reference + 1e-9 * abs(reference)
    assert solution.converged
    assert solution.gradient_norm < 1e-8
    again = ba.theory.action(
        solution.order_parameters, layers.path_inputs, layers.labels, layers.arch, layers.temperature
    )
    for name in ("energy", "entropy", "scalar_order_parameter"):
        assert relative_error(getattr(solution, name), getattr(again, name)) < 1e-11


def test_head_scores(two_layers):
    scores = ba.theory.head_scores(two_layers.order_parameters[0], two_layers.arch)
    stored = two_layers.stored
    ours = [scores[layer][head] for layer, head in zip(stored["layer_index"], stored["head_index"], strict=True)]
    assert relative_error(ours, stored["head_scores"]) < 1e-12


@pytest.mark.parametrize("width", [10, 100])
def test_hidden_markov(hidden_markov, width):
    arch = ba.Architecture((2, 2), (width,) * 3, (1.0,) * 4)
    data = (hidden_markov["path_inputs"], hidden_markov["labels"])
    solution = ba.theory.solve(*data, arch, 0.01)
    assert relative_error(solution.order_parameter, hidden_markov[f"order_parameter_{width}"]) < 1e-4
    prediction = ba.theory.predict(solution.order_parameter, *data, hidden_markov["test_path_inputs"], arch, 0.01)
    assert relative_error(prediction.mean, hidden_markov[f"mean_{width}"]) < 1e-4
    assert relative_error(prediction.variance, hidden_markov[f"variance_{width}"]) < 1e-4


def test_solving_several_networks_at_once_is_the_same(hidden_markov):
    data = (hidden_markov["path_inputs"], hidden_markov["labels"])
    networks = [ba.Architecture((2, 2), (width,) * 3, (1.0,) * 4) for width in (10, 30, 100, 300, 1000)]
    together = ba.theory.solve(*data, networks, 0.01)
    assert together.order_parameter.shape == (5, 4, 4)
    assert together.converged.all()
    for index in (0, 3):
        alone = ba.theory.solve(*data, networks[index], 0.01)
        assert relative_error(alone.order_parameter, together.order_parameter[index]) < 1e-9


def test_several_temperatures_of_one_network(two_layers):
    data = (two_layers.path_inputs, two_layers.labels)
    together = ba.theory.solve(*data, two_layers.arch, [0.05, 0.5])
    for index, temperature in enumerate((0.05, 0.5)):
        alone = ba.theory.solve(*data, two_layers.arch, temperature)
        np.testing.assert_allclose(together.order_parameter[index], alone.order_parameter, rtol=1e-9, atol=1e-12)
