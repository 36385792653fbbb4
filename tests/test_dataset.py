"""Datasets: what a model takes from them, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayesattn as ba
from bayesattn import models
from bayesattn.models.parameterisation import LabelDistribution

ARCH = ba.Architecture((2,), (4, 4), (1.0, 1.0, 1.0))
RANDOM = np.random.default_rng(0)
INPUTS, LABELS, TEST = RANDOM.normal(size=(9, 2, 3)), RANDOM.normal(size=9), RANDOM.normal(size=(4, 2, 3))


def test_a_model_takes_a_dataset_or_its_fields():
    dataset = ba.Dataset(path_inputs=INPUTS, labels=LABELS, test_path_inputs=TEST)
    model = ba.Model(dataset=dataset, architecture=ARCH, likelihood=ba.Gaussian(0.3))
    other = ba.Model(path_inputs=INPUTS, labels=LABELS, test_path_inputs=TEST, architecture=ARCH, temperature=0.3)
    assert model.dataset is dataset
    assert model.path_inputs is dataset.path_inputs
    assert model.temperature == other.temperature == 0.3
    assert ba.theory.solve(model).energy == ba.theory.solve(other).energy
    hotter = model.replace(temperature=0.5)
    assert hotter.dataset is dataset
    assert hotter.likelihood == ba.Gaussian(0.5)
    flipped = model.replace(labels=-LABELS)
    np.testing.assert_array_equal(flipped.dataset.labels, -LABELS)
    assert flipped.path_inputs is dataset.path_inputs
    assert repr(dataset).split("\n")[1].split() == ["examples", "9", "of", "2", "paths", "and", "3", "features"]


def test_compressed_examples_have_the_same_posterior(tmp_path):
    plain = ba.Dataset(path_inputs=INPUTS, labels=LABELS, test_path_inputs=TEST)
    gathered = ba.Dataset.gather([(INPUTS[:5], LABELS[:5]), (INPUTS[5:], LABELS[5:])], ARCH, test_path_inputs=TEST)
    assert gathered.examples == 9
    assert len(gathered.path_inputs) == 6
    parts = [ba.Dataset(path_inputs=INPUTS[part], labels=LABELS[part]) for part in (slice(3), slice(3, 9))]
    gathered.save(tmp_path / "mine.zip")
    found = [
        ba.theory.gp_evidence(ba.Model(dataset=each, architecture=ARCH, temperature=0.3))
        for each in (plain, gathered, parts[0] + parts[1], sum(parts), ba.Dataset.open(tmp_path / "mine.zip"))
    ]
    np.testing.assert_allclose(found, found[0], rtol=1e-12)
    with pytest.raises(ValueError, match="dataset must be compressed to be saved, got a plain one"):
        plain.save(tmp_path / "plain.zip")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"labels": LABELS}, "labels must not be given together with dataset"),
        ({"dataset": {}}, r"dataset must be a bayesattn\.Dataset, got \{\}"),
        ({"likelihood": ba.Gaussian(0.5)}, r"temperature must be that of the likelihood, 0\.5, or left out, got 0\.3"),
        ({"statistics": None}, r"field of a model must be one that help\(bayesattn\.Model\) lists, got 'statistics'$"),
    ],
)
def test_a_model_says_what_it_was_given(fields, message):
    dataset = ba.Dataset(path_inputs=INPUTS, labels=LABELS)
    with pytest.raises(ValueError, match=message):
        ba.Model(**{"dataset": dataset, "architecture": ARCH, "temperature": 0.3} | fields)


def test_both_models_take_wholes_or_their_parts_by_name():
    """An architecture and a dataset, or their fields; variances are 1 by default."""
    shape = {"heads": (2,), "widths": (4, 4)}
    arch, sequences = ba.Architecture(**shape), models.SequenceDataset(inputs=INPUTS, labels=LABELS)
    plain = ba.Dataset(path_inputs=INPUTS, labels=LABELS)
    by_parts = [
        ba.Model(path_inputs=INPUTS, labels=LABELS, **shape, temperature=0.3),
        ba.AttentionModel(inputs=INPUTS, labels=LABELS, **shape, key_width=2, temperature=0.3),
    ]
    by_wholes = [
        ba.Model(dataset=plain, architecture=arch, likelihood=ba.Gaussian(0.3)),
        ba.AttentionModel(dataset=sequences, architecture=arch, key_width=2, likelihood=ba.Gaussian(0.3)),
    ]
    for one, two in zip(by_parts, by_wholes, strict=True):
        assert repr(one) == repr(two)
        assert one.architecture.variances == (1.0, 1.0, 1.0)
        changed = two.replace(widths=(5, 5), labels=-LABELS, temperature=0.4)
        assert (changed.architecture.widths, changed.temperature) == ((5, 5), 0.4)
        np.testing.assert_array_equal(changed.labels, -LABELS)
    assert ba.AttentionModel(dataset=sequences, **shape, key_width=2, temperature=0.3).examples == len(LABELS)
    with pytest.raises(ValueError, match=r"dataset must be a .*SequenceDataset, got Dataset"):
        by_parts[1].replace(dataset=plain)


def test_parts_that_replace_others_are_held_against_what_stays():
    model = ba.Model(path_inputs=INPUTS, labels=LABELS, test_path_inputs=TEST, architecture=ARCH, temperature=0.3)
    with pytest.raises(ValueError, match=r"test_path_inputs must have shape \(examples, paths, 2\)"):
        model.replace(path_inputs=INPUTS[:, :, :2])
    wider = ba.Architecture((3,), (4, 4), (1.0, 1.0, 1.0))
    other = ba.Dataset.gather((RANDOM.normal(size=(9, 3, 3)), LABELS), wider)
    gathered = ba.Model(dataset=ba.Dataset.gather((INPUTS, LABELS), ARCH), architecture=ARCH, temperature=0.3)
    for changes in ({"compressed": other.compressed}, {"dataset": other}):
        with pytest.raises(ValueError, match="path_inputs must have 2 paths"):
            gathered.replace(**changes)
    with pytest.raises(ValueError, match=r"dataset must be a bayesattn\.Dataset, got 3"):
        model.replace(dataset=3)


@pytest.mark.parametrize("shape", [(5,), (5, 3)])
@pytest.mark.parametrize("likelihood", [ba.Gaussian(0.3), ba.Categorical(0.3)])
def test_labels_are_a_distribution_of_numpyro(likelihood, shape):
    outputs = jnp.asarray(RANDOM.normal(size=shape))
    labels = LabelDistribution(likelihood, outputs)
    drawn = np.asarray(jax.jit(lambda key: labels.sample(key, (2, 4)))(jax.random.key(0)))
    assert drawn.shape == (2, 4, *shape)
    assert jax.eval_shape(labels.sample, jax.random.key(0)).shape == shape
    assert len(np.unique(drawn.reshape(8, -1), axis=0)) > 1
    each = jax.jit(likelihood.log_prob)(outputs, drawn[1, 2])
    assert each.shape == (5,)
    assert jax.jit(labels.log_prob)(drawn[1, 2]) == pytest.approx(float(each.sum()), rel=1e-12)


def test_shards_of_other_classes_are_not_merged():
    """One-hot labels of two shards are columns of the same numbers, whatever their classes are called."""
    first, second = (ba.one_hot(["cat", "dog", other] * 3) for other in ("ant", "emu"))
    three = ba.Architecture((2,), (4, 4), (1.0, 1.0, 1.0), outputs=3)
    shards = [ba.Dataset(path_inputs=INPUTS, labels=labels) for labels in (first, second)]
    with pytest.raises(ValueError, match="must have the same classes"):
        shards[0] + shards[1]
    with pytest.raises(
        ValueError, match=r"batches\[1\] must have the classes ant, cat, dog, as those before, got cat, dog, emu"
    ):
        ba.Dataset.gather([(INPUTS, first), (INPUTS, second)], three)
    assert (shards[0] + shards[0]).output_names == ("ant", "cat", "dog")


def test_gathered_classes_keep_their_names(tmp_path):
    """In memory, in stores and in files, so that no labels of other classes come beside them."""
    labels, others = (ba.one_hot(["cat", "dog", other] * 3) for other in ("ant", "ape"))
    three, names = ba.Architecture((2,), (4, 4), (1.0, 1.0, 1.0), outputs=3), ("ant", "cat", "dog")
    gathered, store = ba.Dataset.gather([(INPUTS, labels)], three), tmp_path / "store.zip"
    gathered.save(tmp_path / "saved.zip")
    plain = ba.Dataset.gather((INPUTS, labels.labels), three, output_names=names)
    plain.save(tmp_path / "plain.zip")
    found = [gathered, ba.Dataset.gather((INPUTS, labels), three, store=store), gathered + gathered, gathered + plain]
    found += [ba.Dataset.open(file) for file in (store, tmp_path / "saved.zip", tmp_path / "plain.zip")]
    assert {each.output_names for each in found} == {names}
    assert ba.Model(dataset=gathered, architecture=three, temperature=0.3).output_names == names
    tests = {"test_path_inputs": INPUTS, "test_labels": others}
    for call, message in (
        (
            lambda: ba.Dataset.gather((INPUTS, labels), three, **tests),
            "test_labels must be of classes ant, cat, dog, got",
        ),
        (
            lambda: gathered + ba.Dataset.gather((INPUTS, others), three),
            "datasets to be added must have the same classes",
        ),
        (
            lambda: gathered.compressed + ba.Dataset.gather((INPUTS, others), three).compressed,
            "datasets to be added must have the same classes",
        ),
        (
            lambda: ba.Dataset.gather((INPUTS, others), three, store=store),
            "batches must have the classes ant, cat, dog, as the store has, got ape, cat, dog",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert ba.Dataset.open(store).output_names == names


def test_inputs_and_labels_of_a_part_are_of_one_dataset():
    of_inputs = ba.Dataset(path_inputs=INPUTS, labels=LABELS, test_path_inputs=TEST)
    of_both = ba.Dataset(path_inputs=INPUTS, labels=LABELS, test_path_inputs=-TEST, test_labels=LABELS[:4])
    both = of_inputs + of_both
    np.testing.assert_array_equal(both.test_path_inputs, TEST)
    assert both.test_labels is None


def test_classes_that_are_renamed_are_held_against_labels_that_stay():
    labels = ba.one_hot(["a", "b", "c"] * 3)
    tests = {"test_path_inputs": TEST, "test_labels": ba.one_hot(list("abca"))}
    three = ba.Architecture((2,), (4, 4), (1.0, 1.0, 1.0), outputs=3)
    model = ba.Model(path_inputs=INPUTS, labels=labels, **tests, architecture=three, temperature=0.3)
    renamed = ba.one_hot(["a", "b", "c"] * 3, names=["c", "b", "a"])
    with pytest.raises(ValueError, match="labels must be of classes a, b, c, as test_labels are, got c, b, a"):
        model.replace(labels=renamed)
    assert model.replace(labels=labels).output_names == ("a", "b", "c")


def test_tokens_are_those_of_the_path_inputs():
    few = {"examples": 4, "test_examples": 2, "tokens": 4, "dimension": 6}
    model = ba.load_model("hidden_markov", width=3, task=few)
    assert model.tokens is not None
    assert model.replace(labels=-model.labels).tokens is model.tokens
    assert model.replace(path_inputs=model.path_inputs[::-1], labels=model.labels[::-1]).tokens is None


def test_a_store_makes_its_folder(tmp_path):
    ba.Dataset.gather([(INPUTS, LABELS)], ARCH, store=tmp_path / "new" / "statistics.zip")
    assert ba.Dataset.open(tmp_path / "new" / "statistics.zip").examples == 9
