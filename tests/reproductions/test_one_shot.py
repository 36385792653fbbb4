"""Images, episodes, tokens and trained heads of the one-shot task."""

import dataclasses
import itertools
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file
from scipy import stats
from sklearn.datasets import load_digits

import bayesattn as ba
from bayesattn.models import token
from reproductions.one_shot import READY, OneShot, load, pruning, training
from reproductions.one_shot.images import load_images
from tests.conftest import OMNIGLOT_FOLDER, relative_error
from tests.statistics import likely

SMALL = {"examples": 20, "test_examples": 10, "validation_examples": 6, "width": 16, "key_width": 4, "heads": (2, 3)}
FEW = training.Training(steps=100, batch=8, width=8)


def draw_characters(folder, *alphabets):
    """Black bars on white, 105 x 105 pixels and 1 bit, in Omniglot's folders: 3 characters of 4 drawings an alphabet."""
    for alphabet, character, drawing in itertools.product(alphabets, (1, 2, 3), (1, 2, 3, 4)):
        paper = np.ones((105, 105), bool)
        paper[20 * character :][:3, 10 * drawing : 80] = False
        place = folder / alphabet / f"character{character:02}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(paper).save(place / f"{drawing:02}.png")
    return folder


@pytest.fixture(scope="module")
def task():
    return OneShot(**SMALL)


@pytest.fixture(scope="module")
def trained(task, tmp_path_factory):
    """Weights of all kinds, and a file of them."""
    file, weights = tmp_path_factory.mktemp("trained") / "weights.safetensors", training.train(task, FEW)
    save_file(weights, file)
    return file, weights


def test_digits_are_images_of_scikit_learn():
    alone = Image.fromarray((load_digits().images[100] / 16).astype(np.float32))
    expected = np.asarray(alone.resize((32, 32), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(load_images("digits", 32).pixels[100], expected)


def test_images_of_a_folder_are_those_of_a_zip_and_may_be_turned(tmp_path):
    folder = draw_characters(tmp_path / "characters", "Alpha", "Beta")
    images = load_images(str(folder))
    assert images.pixels.shape == (24, 32, 32)
    assert images.names[0] == "Alpha/character01"
    assert images.groups == ["Alpha"] * 3 + ["Beta"] * 3
    np.testing.assert_array_equal(np.bincount(images.classes), [4] * 6)
    # A thin bar: mostly background, which is 0.
    assert 0 < images.pixels.mean() < 0.1
    zipped = load_images(shutil.make_archive(str(tmp_path / "c"), "zip", tmp_path, folder.name))
    np.testing.assert_array_equal(zipped.pixels, images.pixels)
    assert zipped.names == images.names
    turned = images.turned()
    assert len(set(turned.names)) == 24
    np.testing.assert_array_equal(turned.pixels[24 + 5], np.rot90(images.pixels[5]))
    assert turned.classes[24 + 5] == images.classes[5] + 6


def test_episodes_ask_for_another_image_of_one_of_two_classes(task):
    images = task.classes["train"]
    found = task.episodes(images, 400, np.random.default_rng(0))
    classes = images.classes[found.shown]
    assert (classes[:, 0] != classes[:, 1]).all()
    np.testing.assert_array_equal(classes[:, 2], np.where(found.labels > 0, classes[:, 0], classes[:, 1]))
    assert (found.shown[:, 2:] != found.shown[:, :2]).all()
    assert found.labels.sum() == 0
    # Each of the 20 training classes (5 digits, turned) is one of the two in a tenth of the episodes.
    counts = np.bincount(classes[:, :2].ravel(), minlength=20)
    likely([stats.binomtest(int(count), 400, 0.1).pvalue for count in counts])


def test_classes_of_training_validation_and_test_are_different(task, tmp_path):
    names = [{name.split()[0] for name in task.classes[part].names} for part in ("train", "validation", "test")]
    assert [len(part) for part in names] == [5, 2, 3]
    assert len(set.union(*names)) == 10
    train = task.classes["train"].pixels
    assert (train.mean(), train.std()) == pytest.approx((0, 1), abs=1e-12)
    known, unseen = (str(draw_characters(tmp_path / names, *names.split())) for names in ("Alpha Beta", "Beta Gamma"))
    assert set(OneShot(known, unseen, **SMALL).classes["test"].groups) == {"Gamma"}
    with pytest.raises(ValueError, match=r"test_images must hold at least two classes of groups.*got 0"):
        _ = OneShot(known, known, **SMALL).classes


def test_tokens_are_patches_in_reading_order(task):
    images = task.classes["test"]
    patches = task.patches(images)
    # The second row of patches, third column.
    np.testing.assert_array_equal(patches[7, 6].reshape(8, 8), images.pixels[7, 8:16, 16:24])
    episodes = task.episodes(images, 4, np.random.default_rng(0))
    tokens = task.inputs(images, episodes)
    assert tokens.shape == (4, 48, 16)
    query = tokens[2, 32 + 6] - task.embedding["offsets"][32 + 6]
    assert relative_error(query, patches[episodes.shown[2, 2], 6] @ task.embedding["projection"]) < 1e-12


def test_same_seed_same_episodes(task):
    again, other = OneShot(**SMALL), OneShot(**SMALL, seed=1)
    for part in ("train", "validation", "test"):
        for ours, same in zip(task.sample(part), again.sample(part), strict=True):
            np.testing.assert_array_equal(ours, same)
        assert not np.array_equal(task.sample(part)[0], other.sample(part)[0])


def test_the_trained_network_is_the_one_whose_posterior_is_sampled(task, trained):
    file, weights = trained
    data = dataclasses.replace(task, attention=str(file)).dataset()
    model = ba.Model.from_tokens(data, (8, 8, 8), (1.0,) * 4, 0.1)
    sites = {name: jnp.asarray(value, float) for name, value in weights.items() if name[0] not in "QK"}
    tokens = token.Token.of(model)
    by_tokens = token.network(sites, tokens.inputs, tokens.matrices, tokens.read)
    found = training.output(
        {name: jnp.asarray(value) for name, value in weights.items()}, jnp.asarray(data.inputs, jnp.float32)
    )
    # Single precision.
    assert relative_error(found, np.asarray(by_tokens)) < 1e-4


def test_a_compact_network_is_the_network(task, trained):
    """Queries and keys to half precision; what is pruned follows from the path inputs as before."""
    _, whole = trained
    assert {values.dtype.name for values in whole.values()} == {"float32"}  # Double precision takes twice as long.
    weights = training.compact(whole)
    arch = ba.Architecture(task.heads, (8,) * (1 + len(task.heads)), (1.0,) * (2 + len(task.heads)))
    assert relative_error(pruning.trained_readout(weights, arch), pruning.trained_readout(whole, arch)) < 1e-6
    magnitudes = [pruning.value_magnitudes(values, arch) for values in (weights, whole)]
    assert all(np.array_equal(*pair) for pair in zip(*magnitudes, strict=True))
    for name in (name for name in whole if name[0] in "QK"):
        assert weights[name].dtype == np.float16
        assert relative_error(weights[name], whole[name]) < 2**-11


def test_trained_networks_are_found_beside_the_code():
    for file in training.FOLDER.glob("*.safetensors"):
        name, _, seed = file.stem.rpartition("-")
        task, settings = READY[name]
        assert training.cached(dataclasses.replace(task, seed=int(seed)), settings) == file
    model = load("one_shot_digits", progress=lambda told: pytest.fail("it was trained"))
    readout = pruning.trained_readout(training.weights_of(model.task["attention"]), model.architecture)
    # 1000 test episodes: a standard error of 0.015.
    assert pruning.accuracy_without(readout, model, []) > 0.6


def test_training_learns():
    task = OneShot(examples=2, test_examples=400, width=32, key_width=16, heads=(2, 2))
    told = []
    training.train(task, training.Training(steps=400, batch=32, width=32, learning_rate=3e-3), told.append)
    # 50 steps of 32 episodes: standard error of an accuracy 0.0125. Seeds 0 to 5 have 0.65 to 0.77.
    assert told[-1].accuracy > 0.6
    assert told[-1].loss < 0.95


def test_a_network_is_trained_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    seen = []
    monkeypatch.setitem(READY, "small", (OneShot(**SMALL), FEW))
    model = load("small", width=5, progress=seen.append)
    assert [progress.done for progress in seen] == [50, 100]
    assert model.path_inputs.shape == (20, 6, 16)
    again = load("small", width=5, progress=seen.append)
    np.testing.assert_array_equal(again.path_inputs, model.path_inputs)
    other = load("small", width=5, test_images="digits[8-9]", progress=seen.append)
    assert len(seen) == 2
    assert not np.array_equal(other.test_path_inputs, model.test_path_inputs)


def test_what_does_not_fit_is_named(trained, tmp_path):
    file, weights = trained
    part = tmp_path / "part.safetensors"
    save_file({"Q_1": weights["Q_1"]}, part)
    for change, message in (
        ({"patch": 5}, "patch must divide side = 32, got 5"),
        ({"examples": 3}, "must be even, got 3"),
        ({}, r"attention must be a file of queries and keys.*got None"),
        ({"attention": str(part)}, "attention must hold K_1, got only Q_1"),
        (
            {"attention": str(file), "heads": (4, 3)},
            r"Q_1 .* must have shape \(4, key_features, 16\), got \(2, 4, 16\)",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            OneShot(**SMALL | change).dataset()
    np.savez(tmp_path / "mine.npz", **{name: value for name, value in weights.items() if name[0] in "QK"})
    mine, ours = (OneShot(**SMALL, attention=str(path)).dataset() for path in (tmp_path / "mine.npz", file))
    np.testing.assert_array_equal(mine.weights[0], ours.weights[0])


def test_unseen_alphabets_of_omniglot():
    if not OMNIGLOT_FOLDER.is_dir():
        pytest.skip(f"needs Omniglot's small sets in {OMNIGLOT_FOLDER}")
    sources = [str(OMNIGLOT_FOLDER / f"images_background_small{number}.zip") for number in (1, 2)]
    images = load_images(sources[0])
    assert images.pixels.shape == (2720, 32, 32)
    np.testing.assert_array_equal(np.bincount(images.classes), [20] * 136)
    assert 0.03 < images.pixels.mean() < 0.15
    classes = OneShot(*sources, **SMALL).classes
    assert set(classes["test"].groups) == {"Japanese_(katakana)", "Sanskrit", "Tagalog"}
    assert len(classes["train"].names) + 4 * len(classes["validation"].names) == 4 * 136
