"""Images in classes: scikit-learn's digits, and Omniglot from a folder, a zip or a download."""

import io
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import platformdirs
from jaxtyping import Float, Int

from bayesattn.errors import BayesattnError

ADDRESS = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"
OMNIGLOT = {
    # SHA-256 of the authors' files; for the two large ones MD5, as in PyTorch's torchvision.
    "images_background": "md5:68d2efa1b9178cc56df9314c21c6e718",
    "images_evaluation": "md5:6b91aef0f799c5bb55b94e3f2daec811",
    "images_background_small1": "sha256:f38eb80f801274ac2b4dff5b24289016bfaba4a7d5bb50deebf27104ad6cb8a4",
    "images_background_small2": "sha256:3ccaa407515a8778e5d0861875af38b17e418f301ad5bb3b5a6b65d901a41c7f",
}
PREFIX = "omniglot:"
DIGITS = "digits"


class Images(NamedTuple):
    """Square images, from 0 without ink to 1 with full ink, with the class of each image and the names of the classes.

    Classes with the same `groups` entry belong together, as characters of one alphabet; each digit is its own group.
    """

    pixels: Float[np.ndarray, "image side side"]
    classes: Int[np.ndarray, " image"]
    names: tuple[str, ...]

    @property
    def groups(self) -> list[str]:
        """Group of each class: its alphabet, or the digit."""
        return [name.split("/")[0] for name in self.names]

    def choose(self, chosen: Sequence[int]) -> "Images":
        """Images of the chosen classes, renumbered in the given order."""
        number = {old: new for new, old in enumerate(chosen)}
        kept = np.isin(self.classes, list(chosen))
        classes = np.array([number[old] for old in self.classes[kept]], int)
        return Images(self.pixels[kept], classes, tuple(self.names[old] for old in chosen))

    def turned(self) -> "Images":
        """Images rotated by 0, 90, 180 and 270 degrees, where rotated classes count as further classes."""
        turns = [np.rot90(self.pixels, turn, axes=(1, 2)) for turn in range(4)]
        classes = [self.classes + turn * len(self.names) for turn in range(4)]
        names = [f"{name} turned {90 * turn}" if turn else name for turn in range(4) for name in self.names]
        return Images(np.concatenate(turns), np.concatenate(classes), tuple(names))


def load_images(source: str, side: int = 32) -> Images:
    """Images by name or from disk.

    Args:
        source: "digits" of scikit-learn; a name such as "omniglot:images_background_small1", downloaded from the authors'
            repository; or a folder or zip of ALPHABET/CHARACTER/*.png in the layout of Omniglot, with dark ink on white.
            "NAME[3-7]" selects classes 3 to 7 only.
        side: side in pixels to which images are scaled.
    """
    match = re.fullmatch(r"(.+)\[(\d+)-(\d+)\]", source)
    name = match[1] if match else source
    images = _digits(side) if name == DIGITS else _read(_located(name), side)
    return images.choose(range(int(match[2]), int(match[3]) + 1)) if match else images


def is_named(source: str) -> bool:
    """Whether a source is a name, not a folder or zip."""
    return source.split("[")[0] == DIGITS or source.startswith(PREFIX)


def _digits(side: int) -> Images:
    from sklearn.datasets import load_digits
    from sklearn.utils import Bunch

    stored = load_digits()
    assert isinstance(stored, Bunch)
    # 8 x 8 pixels with values from 0 to 16.
    pixels = _scaled(stored.images.astype(np.float32) / 16, side)
    return Images(pixels, stored.target.astype(int), tuple(str(digit) for digit in range(10)))


def _scaled(ink: Float[np.ndarray, "image row column"], side: int) -> Float[np.ndarray, "image side side"]:
    """Images scaled to a side, first all rows and then all columns at once, three times as fast as image by image."""
    from PIL import Image

    for _ in range(2):
        images, rows, columns = ink.shape
        strip = Image.fromarray(ink.reshape(images * rows, columns))
        widened = np.asarray(strip.resize((side, images * rows), Image.Resampling.BILINEAR))
        ink = widened.reshape(images, rows, side).swapaxes(1, 2)
    return np.clip(ink.astype(float, order="C"), 0, 1)


def _located(source: str) -> Path:
    """Path of a folder or zip, downloaded for a name of Omniglot."""
    if not source.startswith(PREFIX):
        return Path(source)
    import pooch

    name = source.removeprefix(PREFIX)
    return Path(
        pooch.retrieve(f"{ADDRESS}{name}.zip", OMNIGLOT[name], f"{name}.zip", platformdirs.user_cache_dir("bayesattn"))
    )


def _read(path: Path, side: int) -> Images:
    """Images of a folder or zip, with classes in the order of their names."""
    pixels, names = [], []
    for name, content in _files(path):
        parts = PurePosixPath(name).parts
        if len(parts) < 3:
            raise BayesattnError(f"{path} must hold ALPHABET/CHARACTER/*.png, as Omniglot does, got {name!r}")
        pixels.append(_scaled(_ink(content)[None], side)[0])
        names.append("/".join(parts[-3:-1]))
    known, classes = np.unique(names, return_inverse=True)
    return Images(np.stack(pixels), classes, tuple(map(str, known)))


def _ink(content: bytes) -> Float[np.ndarray, "row column"]:
    """Darkness of each pixel of a PNG file on white paper."""
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
        return 1 - np.asarray(image.convert("L"), np.float32) / 255


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of all .png files, in the order of their names."""
    if path.is_dir():
        # Names begin with the name of the folder, as in a zip of the folder.
        for file in sorted(path.rglob("*.png")):
            yield str(PurePosixPath(path.name) / file.relative_to(path).as_posix()), file.read_bytes()
    else:
        with zipfile.ZipFile(path) as packed:
            for name in sorted(packed.namelist()):
                if name.lower().endswith(".png") and not name.startswith("__MACOSX"):
                    yield name, packed.read(name)
