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


THREE = ba.Architecture((2,), (4, 4), (1.0, 1.0, 1.0), outputs=3)


def classes(last="ant"):
    """One-hot labels of nine examples, of cat, dog and another class."""
    return ba.one_hot(["cat", "dog", last] * 3)


def test_a_model_keeps_the_dataset_that_it_was_given():
    dataset = ba.Dataset(path_inputs=INPUTS, labels=LABELS, test_path_inputs=TEST)
    model = ba.Model(dataset=dataset, architecture=ARCH, likelihood=ba.Gaussian(0.3))
    assert model.dataset is dataset
    assert model.path_inputs is dataset.path_inputs
    hotter, flipped = model.replace(temperature=0.5), model.replace(labels=-LABELS)
    assert hotter.dataset is dataset
    assert hotter.likelihood == ba.Gaussian(0.5)
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


def test_what_does_not_go_together_is_refused(tmp_path):
    plain, gathered = ba.Dataset(path_inputs=INPUTS, labels=LABELS), ba.Dataset.gather((INPUTS, LABELS), ARCH)
    fields = {"dataset": plain, "architecture": ARCH, "temperature": 0.3}
    held = ba.Model(**fields | {"dataset": gathered})
    other = ba.Dataset.gather((RANDOM.normal(size=(9, 3, 3)), LABELS), ba.Architecture((3,), (4, 4)))
    for call, message in (
        (lambda: ba.Model(**fields, labels=LABELS), "labels must not be given together with dataset"),
        (lambda: ba.Model(**fields | {"dataset": {}}), r"dataset must be a bayesattn\.Dataset, got \{\}"),
        (lambda: held.replace(dataset=3), r"dataset must be a bayesattn\.Dataset, got 3"),
        (lambda: ba.Model(**fields, likelihood=ba.Gaussian(0.5)), r"likelihood, 0\.5, or left out, got 0\.3"),
        (lambda: ba.Model(**fields, statistics=None), r"that help\(bayesattn\.Model\) lists, got 'statistics'$"),
        (lambda: held.replace(compressed=other.compressed), "path_inputs must have 2 paths"),
        (lambda: held.replace(dataset=other), "path_inputs must have 2 paths"),
        (lambda: plain.save(tmp_path / "plain.zip"), "dataset must be compressed to be saved, got a plain one"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


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


def test_classes_keep_their_names(tmp_path):
    """In memory, in stores, whose folders are made, and in files."""
    labels, names, store = classes(), ("ant", "cat", "dog"), tmp_path / "new" / "store.zip"
    gathered, plain = ba.Dataset.gather([(INPUTS, labels)], THREE), ba.Dataset(path_inputs=INPUTS, labels=labels)
    gathered.save(tmp_path / "saved.zip")
    named = ba.Dataset.gather((INPUTS, labels.labels), THREE, output_names=names)
    named.save(tmp_path / "named.zip")
    found = [gathered, ba.Dataset.gather((INPUTS, labels), THREE, store=store), gathered + gathered, gathered + named]
    found += [ba.Dataset.open(file) for file in (store, tmp_path / "saved.zip", tmp_path / "named.zip")]
    found += [plain + plain, ba.Model(dataset=gathered, architecture=THREE, temperature=0.3)]
    assert {each.output_names for each in found} == {names}


def test_labels_of_other_classes_are_not_put_together(tmp_path):
    """One-hot labels of two shards are columns of the same numbers, whatever their classes are called."""
    first, second, store = classes(), classes("ape"), tmp_path / "store.zip"
    one, other = (ba.Dataset.gather((INPUTS, labels), THREE) for labels in (first, second))
    ba.Dataset.gather((INPUTS, first), THREE, store=store)
    shards = [ba.Dataset(path_inputs=INPUTS, labels=labels) for labels in (first, second)]
    tests = {"test_path_inputs": INPUTS, "test_labels": second}
    data = ba.Dataset(path_inputs=INPUTS, labels=first, test_path_inputs=INPUTS, test_labels=first)
    renamed = ba.one_hot(["cat", "dog", "ant"] * 3, names=["dog", "cat", "ant"])
    added = "datasets to be added must have the same classes"
    for call, message in (
        (lambda: shards[0] + shards[1], added),
        (lambda: one + other, added),
        (lambda: one.compressed + other.compressed, added),
        (
            lambda: ba.Dataset.gather([(INPUTS, first), (INPUTS, second)], THREE),
            r"batches\[1\] must have the classes ant, cat, dog, as those before, got ape, cat, dog",
        ),
        (
            lambda: ba.Dataset.gather((INPUTS, first), THREE, **tests),
            "test_labels must be of classes ant, cat, dog, got",
        ),
        (
            lambda: ba.Dataset.gather((INPUTS, second), THREE, store=store),
            "batches must have the classes ant, cat, dog, as the store has, got ape, cat, dog",
        ),
        (lambda: data.replace(labels=renamed), "of classes ant, cat, dog, as test_labels are, got dog, cat, ant"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert data.replace(labels=first).output_names == ba.Dataset.open(store).output_names == ("ant", "cat", "dog")


def test_inputs_and_labels_of_a_part_are_of_one_dataset():
    of_inputs = ba.Dataset(path_inputs=INPUTS, labels=LABELS, test_path_inputs=TEST)
    of_both = ba.Dataset(path_inputs=INPUTS, labels=LABELS, test_path_inputs=-TEST, test_labels=LABELS[:4])
    both = of_inputs + of_both
    np.testing.assert_array_equal(both.test_path_inputs, TEST)
    assert both.test_labels is None


def test_tokens_are_those_of_the_path_inputs():
    few = {"examples": 4, "test_examples": 2, "tokens": 4, "dimension": 6}
    model = ba.load_model("hidden_markov", width=3, task=few)
    assert model.tokens is not None
    assert model.replace(labels=-model.labels).tokens is model.tokens
    assert model.replace(path_inputs=model.path_inputs[::-1], labels=model.labels[::-1]).tokens is None
