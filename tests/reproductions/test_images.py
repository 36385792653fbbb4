"""Images from scikit-learn, folders and zips."""

import shutil

import numpy as np
import pytest
from PIL import Image, ImageDraw
from sklearn.datasets import load_digits

from reproductions.one_shot.images import load_images
from tests.conftest import OMNIGLOT_FOLDER


def draw_characters(folder, alphabets=("Alpha", "Beta"), characters=3, drawings=4):
    """Black strokes on white, 105 x 105 pixels and 1 bit, in Omniglot's folders; a character is a line of its own slope."""
    rng = np.random.default_rng(0)
    for alphabet in alphabets:
        for character in range(characters):
            place = folder / alphabet / f"character{character + 1:02}"
            place.mkdir(parents=True)
            ends = rng.uniform(10, 95, (2, 2))
            for drawing in range(drawings):
                image = Image.new("1", (105, 105), 1)
                points = ends + rng.normal(0, 3, (2, 2))
                ImageDraw.Draw(image).line([tuple(point) for point in points], fill=0, width=3)
                image.save(place / f"{drawing:02}.png")
    return folder


@pytest.fixture(scope="module")
def characters(tmp_path_factory):
    return draw_characters(tmp_path_factory.mktemp("images") / "characters")


def test_digits():
    images = load_images("digits", 32)
    assert images.pixels.shape == (1797, 32, 32)
    assert 0 <= images.pixels.min() < images.pixels.max() <= 1
    assert images.names == tuple("0123456789")
    alone = Image.fromarray((load_digits().images[100] / 16).astype(np.float32)).resize(
        (32, 32), Image.Resampling.BILINEAR
    )
    np.testing.assert_array_equal(images.pixels[100], np.asarray(alone))
    some = load_images("digits[3-5]", 16)
    assert some.names == ("3", "4", "5")
    np.testing.assert_array_equal(np.bincount(some.classes), np.bincount(images.classes)[3:6])


def test_folder_and_zip_are_the_same_images(characters, tmp_path):
    images = load_images(str(characters))
    assert images.pixels.shape == (24, 32, 32)
    assert images.names[0] == "Alpha/character01"
    assert images.groups == ["Alpha"] * 3 + ["Beta"] * 3
    np.testing.assert_array_equal(np.bincount(images.classes), [4] * 6)
    # A thin line: mostly background, which is 0.
    assert 0 < images.pixels.mean() < 0.1
    zipped = load_images(shutil.make_archive(str(tmp_path / "c"), "zip", characters.parent, characters.name))
    np.testing.assert_array_equal(zipped.pixels, images.pixels)
    assert zipped.names == images.names


def test_turned_images_are_further_classes(characters):
    images = load_images(str(characters))
    turned = images.turned()
    assert len(turned.names) == len(set(turned.names)) == 24
    np.testing.assert_array_equal(turned.pixels[24 + 5], np.rot90(images.pixels[5]))
    assert turned.classes[24 + 5] == images.classes[5] + 6
    assert set(turned.groups) == {"Alpha", "Beta"}


def test_omniglot():
    if not OMNIGLOT_FOLDER.is_dir():
        pytest.skip(f"needs Omniglot's small sets in {OMNIGLOT_FOLDER}")
    images = load_images(str(OMNIGLOT_FOLDER / "images_background_small1.zip"))
    assert images.pixels.shape == (2720, 32, 32)
    assert set(images.groups) == {"Balinese", "Early_Aramaic", "Greek", "Korean", "Latin"}
    np.testing.assert_array_equal(np.bincount(images.classes), [20] * 136)
    assert 0.03 < images.pixels.mean() < 0.15
