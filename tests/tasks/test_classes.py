"""Tasks of several classes: splice junctions and digits."""

import numpy as np
import pytest
from scipy import stats

import bayesattn as ba
from bayesattn.class_scores import class_scores
from bayesattn.tasks import Digits, Splice
from bayesattn.tasks.digits import SIDE
from bayesattn.tasks.splice import CLASSES, NUCLEOTIDES, SHARES, TOKENS, _laws
from tests.statistics import likely, near


@pytest.fixture(scope="module")
def sequences():
    return Splice(examples=4000, test_examples=10).dataset()


def test_made_sequences_have_the_laws_that_were_counted(sequences):
    letters = np.eye(NUCLEOTIDES)[Splice.nucleotides(sequences.inputs)]
    counts, laws = np.einsum("so,spn->opn", sequences.labels, letters), _laws()
    likely(stats.chisquare(sequences.labels.sum(0), np.array(SHARES) * len(letters)).pvalue)
    totals = counts.sum(2, keepdims=True)
    tails = stats.binom.cdf(counts, totals, laws), stats.binom.sf(counts - 1, totals, laws)
    likely(np.minimum(2 * np.minimum(*tails), 1))
    # A small error of all.
    squares = (counts - totals * laws) ** 2 / (totals * laws)
    likely(stats.chi2.sf(squares.sum(), len(CLASSES) * TOKENS * (NUCLEOTIDES - 1)))
    assert laws[0, 30:32].argmax(1).tolist() == [2, 3]  # GT begins an intron,
    assert laws[1, 28:30].argmax(1).tolist() == [0, 2]  # AG ends it.


def test_bayes_rule_of_made_sequences_is_calibrated_and_the_best(sequences):
    chances = Splice.probabilities(Splice.nucleotides(sequences.inputs))
    found = class_scores(chances, sequences.labels)
    assert found.accuracy > 0.9
    # Classes that have these chances have this mean log score, and squares of it.
    mean, square = (np.sum(chances * np.log(chances) ** power, axis=1) for power in (1, 2))
    near(found.log_score, mean.mean(), np.sqrt(np.sum(square - mean**2)) / len(chances), finds=0.04)
    sharper = chances**2 / np.sum(chances**2, axis=1, keepdims=True)
    assert class_scores(sharper, sequences.labels).log_score < found.log_score


def test_heads_of_splice_attend_as_they_say(sequences):
    tokens = sequences.inputs[:5]
    first, second = ba.attention.matrices(tokens, sequences.weights)
    letters = Splice.nucleotides(tokens)
    assert np.min(first[:, 0, :, 28:32].sum(-1)) > 0.9
    assert np.min((first[:, 1] * (letters[:, :, None] == letters[:, None, :])).sum(-1)) > 0.9
    np.testing.assert_allclose(second[:, 0], 1 / TOKENS)
    assert np.all(second[:, 1, np.arange(23, 36), np.arange(24, 37)] > 0.7)


def test_digits_are_cut_into_patches_and_none_is_lost():
    data = Digits(examples=30, test_examples=20).dataset()
    assert data.inputs.shape == (30, 16, 69)
    placed, shared = data.inputs[..., :64].sum(1), data.inputs[..., 64:68]
    np.testing.assert_array_equal(placed.reshape(30, 16, 4), shared)
    images = shared.reshape(30, 4, 4, 2, 2).swapaxes(2, 3).reshape(30, SIDE, SIDE)
    assert np.max(np.abs(images.mean(0))) < 1e-12
    assert np.mean(images**2) == pytest.approx(1)
    asking = ba.attention.matrices(data.inputs, data.weights)[0][:, 1]
    np.testing.assert_allclose(asking, np.broadcast_to(asking[:, :1], asking.shape))
    by_ink = np.take_along_axis(asking[:, 0], shared.sum(-1).argsort(1), axis=1)
    assert np.all(np.diff(by_ink) >= 0)


@pytest.mark.parametrize(("name", "examples"), [("splice", 40), ("digits", 20)])
def test_ready_models_of_classes(name, examples):
    model = ba.load_model(name, task={"examples": examples, "test_examples": 30})
    assert model.architecture.outputs == len(model.output_names) == model.labels.shape[1]
    assert model.row_names[0].startswith("skip")
    saddle = ba.theory.solve(model)
    found = ba.theory.predict(saddle.order_parameter, model, model.test_path_inputs)
    chance = 1 / model.architecture.outputs
    assert np.mean(found.mean.argmax(1) == model.test_labels.argmax(1)) > 2 * chance


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Digits(patch=3), "patch must be 1, 2, 4 or 8, got 3"),
        (lambda: Digits(layers=(("junction",),)), r"layers\[0\] must be one of 'similar', 'ink', 'uniform', 'random'"),
        (lambda: Splice(layers=("same",)), "layers must hold at least one layer of at least one head"),
        (lambda: Splice(layers=2), "layers must hold at least one layer of at least one head, got 2"),
        (lambda: Digits(examples=1700).dataset(), "examples and test_examples must be at most 1797 together, got 2700"),
        (lambda: Splice(examples=0), "examples must be a whole number of at least 1, got 0"),
    ],
)
def test_bad_settings_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_outputs_of_a_task_are_its_classes(tmp_path):
    file = tmp_path / "model.toml"
    text = 'temperature = 0.1\n[architecture]\nwidth = 5\noutputs = {}\n[task]\nname = "splice"\nexamples = 10\n'
    file.write_text(text.format(2))
    with pytest.raises(ValueError, match=r"architecture\.outputs must be 3 of task 'splice', or be left out, got 2"):
        ba.load_model(file)
    file.write_text('observation = "categorical"\n' + text.format(len(CLASSES)))
    assert ba.load_model(file).likelihood == ba.Categorical(0.1)
