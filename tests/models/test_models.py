"""Ready models, and model files of a stranger; what is said of bad ones: tests/attacks/test_input.py."""

import numpy as np
import pytest
from scipy import stats

import bayesattn as ba
from bayesattn import tasks
from tests.posteriors import tiny_model
from tests.statistics import likely


def test_hidden_markov_task():
    """Chances of staying, and the deviations of noise along the sum and difference of both tokens and beside them."""
    task = tasks.HiddenMarkov(examples=400, test_examples=10, noise_sum=0.5, noise_difference=2.0, noise_orthogonal=3.0)
    data = task.dataset()
    assert data.inputs.shape == (400, 31, 231)
    assert data.labels.sum() == 0
    assert not data.inputs[:, 0, :200].any()
    np.testing.assert_array_equal(data.inputs[7, :, 200:], np.eye(31))
    plus, minus = task._directions()
    assert plus @ plus == pytest.approx(200)
    tokens = data.inputs[:, 1:, :200]
    unit, total = ((plus + sign * minus) / np.linalg.norm(plus + sign * minus) for sign in (-1, 1))
    plus_state = tokens @ unit > 0
    stays = plus_state[:, 1:] == plus_state[:, :-1]
    for y, chance in ((1, 0.7), (-1, 0.3)):
        likely(stats.binomtest(stays[data.labels == y].sum(), 200 * 29, chance).pvalue)
    noise = tokens - np.where(plus_state[..., None], plus, minus)
    rest = noise - (noise @ unit)[..., None] * unit - (noise @ total)[..., None] * total
    for values, deviation, dimension in ((noise @ unit, 2.0, 1), (noise @ total, 0.5, 1), (rest, 3.0, 198)):
        square, law = np.sum((values / deviation) ** 2), stats.chi2(400 * 30 * dimension)
        likely(2 * min(law.cdf(square), law.sf(square)))


def test_hidden_markov_heads_attend_as_they_should():
    none = {"noise_difference": 0, "noise_sum": 0, "noise_orthogonal": 0}
    data = tasks.HiddenMarkov(examples=2, test_examples=2, **none).dataset()
    same_token, uniform = (np.asarray(m)[0, 0] for m in ba.attention.matrices(data.inputs, data.weights))
    plus = data.inputs[0, :, 0] > 0
    for query in range(2, 31):
        expected = query - 1 if plus[query] == plus[query - 1] else 0
        assert same_token[query].argmax() == expected
        assert same_token[query, expected] > 0.8
    np.testing.assert_allclose(uniform, 1 / 31)


def test_same_seed_same_task_other_seed_another():
    few = {"examples": 20, "test_examples": 20}
    first, again, other = (ba.load_model("hidden_markov", seed=seed, task=few).path_inputs for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1


def test_ready_models_load_with_names_and_groups():
    model = ba.load_model("hidden_markov", width=17, temperature=0.3)
    assert model.architecture == ba.Architecture((2, 2), (17,) * 3, (1.0,) * 4)
    assert model.temperature == 0.3
    assert model.path_names[0] == "same_token -> uniform"
    assert model.path_groups == {"good path": (0,), "good + denoising paths": (0, 2)}
    noisy = ba.load_model("hidden_markov_noisy")
    assert noisy.path_names == ["same_token -> uniform", "blank -> uniform"]
    deep = ba.load_model("hidden_markov_deep")
    assert deep.architecture == ba.Architecture((2, 3, 1), (10,) * 4, (1.0,) * 5)
    assert deep.path_groups == {"good path": (0,), "good + denoising paths": (0, 3)}
    first, second = np.asarray(deep.path_inputs)[:, 1], np.asarray(deep.path_inputs)[:, 2]
    assert np.abs(first - second).max() > 0.1


def test_a_stranger_brings_arrays(tmp_path):
    inputs = np.ones((5, 4, 3))
    np.savez(tmp_path / "mine.npz", path_inputs=inputs, labels=np.ones(5), test_path_inputs=inputs[:2])
    text = "temperature = 0.1\n[architecture]\nwidths = [5, 6, 7]\nheads = [2, 2]\n"
    (file := tmp_path / "mine.toml").write_text(text + '[task]\nname = "arrays"\nfile = "mine.npz"\n')
    model = ba.load_model(file)
    assert model.architecture.widths == (5, 6, 7)
    assert model.test_path_inputs.shape == (2, 4, 3)
    assert ba.load_model(file, width=3).architecture.widths == (3, 3, 3)


def test_doubtful_labels_are_told_where_they_were_given():
    model = tiny_model(heads=(2,))
    with pytest.warns(UserWarning, match="^labels are 0 and 1: ") as caught:
        model.replace(labels=np.arange(len(model.labels)) % 2)
    assert caught[0].filename == __file__
