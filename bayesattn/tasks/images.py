"""Images in classes: scikit-learn's digits, and Omniglot from a folder, a zip or a download."""

import io
import os
import re
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import platformdirs
from jaxtyping import Float, Int

from bayesattn._util.checks import positive_integer, require_memory, shown
from bayesattn._util.errors import BayesattnError
from bayesattn._util.extras import require
from bayesattn._util.files import user_path
from bayesattn._util.input_files import MOST_ZIP_MEMBERS, decoding, members

OMNIGLOT_ADDRESS = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"
OMNIGLOT = {
    # SHA-256 of the authors' files; for the two large ones MD5, as in PyTorch's torchvision.
    "images_background": "md5:68d2efa1b9178cc56df9314c21c6e718",
    "images_evaluation": "md5:6b91aef0f799c5bb55b94e3f2daec811",
    "images_background_small1": "sha256:f38eb80f801274ac2b4dff5b24289016bfaba4a7d5bb50deebf27104ad6cb8a4",
    "images_background_small2": "sha256:3ccaa407515a8778e5d0861875af38b17e418f301ad5bb3b5a6b65d901a41c7f",
}
PREFIX = "omniglot:"
DIGITS = "digits"
FEWEST_CLASSES, FEWEST_IMAGES = 2, 2
MOST_PIXELS_PER_IMAGE = 2**24
"""Largest number of pixels of one image, 4096 x 4096."""
MOST_PIXELS = 2**31
MOST_IMAGE_BYTES = 2**30
"""Largest size in bytes of all image files of a folder or zip together, uncompressed."""


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


def load_images(source: str | Path, side: int = 32) -> Images:
    """Images by name or from disk.

    Args:
        source: "digits" of scikit-learn; a name such as "omniglot:images_background_small1", downloaded from the authors'
            repository; or a folder or zip of ALPHABET/CHARACTER/*.png in the layout of Omniglot, with dark ink on white,
            where transparent parts count as white. "NAME[3-7]" selects classes 3 to 7 only.
        side: side in pixels to which images are scaled.

    Raises:
        FileNotFoundError: the folder or zip does not exist.
        ValueError: an unknown name, a zip or folder with other or too many files, an image that is unreadable, too large or
            of a single colour, fewer than two classes, a class with fewer than two images.
        ImportError: the extra "images" is not installed.
    """
    require("images", "a task of images")
    positive_integer("side", side)
    source, wanted = _split(str(source))
    images = _digits(side) if source == DIGITS else _read(_located(source), side)
    if wanted is not None:
        first, last = wanted
        if not first <= last < len(images.names):
            raise BayesattnError(f"classes of {source} must be within 0-{len(images.names) - 1}, got [{first}-{last}]")
        images = images.choose(range(first, last + 1))
    if len(images.names) < FEWEST_CLASSES:
        raise BayesattnError(
            f"images must be of at least {FEWEST_CLASSES} classes, got {len(images.names)} in {source}"
        )
    counts = np.bincount(images.classes, minlength=len(images.names))
    if counts.min() < FEWEST_IMAGES:
        raise BayesattnError(
            f"every class must have at least {FEWEST_IMAGES} images, got {counts.min()} of {images.names[counts.argmin()]!r}"
            f" in {source}"
        )
    return images


def is_named(source: str) -> bool:
    """Whether a source is a name, not a folder or zip."""
    return source.split("[")[0] == DIGITS or source.startswith(PREFIX)


def _split(source: str) -> tuple[str, tuple[int, int] | None]:
    """Name of a source, and its first and last class if given."""
    match = re.fullmatch(r"(.+)\[(\d{1,9})-(\d{1,9})\]", source)
    return (match[1], (int(match[2]), int(match[3]))) if match else (source, None)


def _digits(side: int) -> Images:
    from sklearn.datasets import load_digits
    from sklearn.utils import Bunch

    stored = load_digits()
    assert isinstance(stored, Bunch)
    require_memory(f"digits at side = {side}", 8 * len(stored.images) * side**2)
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
        path = user_path("images", source)
        if not os.path.exists(path):  # Also False for a name too long for a file.
            raise FileNotFoundError(
                f"images must be {DIGITS!r}, {PREFIX!r} followed by the name of an Omniglot file, or a folder or zip,"
                f" got {shown(source)}, which is not there"
            )
        return path
    import pooch

    name = source.removeprefix(PREFIX)
    if name not in OMNIGLOT:
        raise BayesattnError(f"images must be one of {', '.join(PREFIX + known for known in OMNIGLOT)}, got {source!r}")
    address = f"{OMNIGLOT_ADDRESS}{name}.zip"
    try:
        return Path(pooch.retrieve(address, OMNIGLOT[name], f"{name}.zip", platformdirs.user_cache_dir("bayesattn")))
    except OSError as error:
        raise OSError(f"{source} could not be downloaded from {address}: {error}") from None


def _read(path: Path, side: int) -> Images:
    """Images of a folder or zip, with classes in the order of their names."""
    pixels, names, pixels_read = [], [], 0
    files = _files(path)
    require_memory(f"images of {path} at side = {side}", 8 * len(files) * side**2)
    for name, read in files:
        parts = PurePosixPath(name).parts
        if len(parts) < 3:
            raise BayesattnError(f"{path} must hold ALPHABET/CHARACTER/*.png, as Omniglot does, got {name!r}")
        with decoding(f"{name} in {path} must be an image, got a file that cannot be read"):
            ink = _ink(read())
        if (pixels_read := pixels_read + ink.size) > MOST_PIXELS:
            raise BayesattnError(f"{path} must hold at most {MOST_PIXELS} pixels, got more with {name}")
        if ink.min() == ink.max():
            raise BayesattnError(f"{name} in {path} must show something, got an image of one colour alone")
        pixels.append(_scaled(ink[None], side)[0])
        names.append("/".join(parts[-3:-1]))
    if not pixels:
        raise BayesattnError(f"{path} must hold ALPHABET/CHARACTER/*.png, as Omniglot does, got no .png at all")
    known, classes = np.unique(names, return_inverse=True)
    return Images(np.stack(pixels), classes, tuple(map(str, known)))


def _ink(content: bytes) -> Float[np.ndarray, "row column"]:
    """Darkness of each pixel of a PNG file on white paper."""
    from PIL import Image

    # The readers of other formats may run programs (EPS).
    with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
        if image.width * image.height > MOST_PIXELS_PER_IMAGE:
            raise BayesattnError(
                f"it has {image.width} x {image.height} pixels, expected at most {MOST_PIXELS_PER_IMAGE}"
            )
        if image.mode.startswith("I"):
            # 16-bit grey, which Pillow would clip at 255 when converting; one grey value may mean transparency.
            grey = np.asarray(image, np.float32)
            clear = image.info.get("transparency")
            return np.where(grey == clear, np.float32(0), 1 - grey / 65535) if clear is not None else 1 - grey / 65535
        if image.has_transparency_data:
            shown = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", shown.size, "white"), shown)
        # Ink is black on white.
        return 1 - np.asarray(image.convert("L"), np.float32) / 255


def _files(path: Path) -> list[tuple[str, Callable[[], bytes]]]:
    """Names and readers of all .png files, in the order of their names."""
    with decoding(f"{path} must be a folder or a zip of images"):
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if _is_image(file.name) and file.is_file())
            size = sum(file.stat().st_size for file in files)
            if size > MOST_IMAGE_BYTES or len(files) > MOST_ZIP_MEMBERS:
                raise BayesattnError(f"it holds {len(files)} images of {size / 2**30:.3g} GiB, expected at most 1 GiB")
            # Names begin with the name of the folder, as in a zip of the folder.
            folder = PurePosixPath(path.name)
            return [((folder / file.relative_to(path).as_posix()).as_posix(), file.read_bytes) for file in files]
        if not path.is_file():
            raise BayesattnError("it is no regular file")
        packed = zipfile.ZipFile(path)
        images = [member for member in members(packed, MOST_IMAGE_BYTES) if _is_image(member.filename)]
        return [(member.filename, partial(packed.read, member)) for member in sorted(images, key=lambda m: m.filename)]


def _is_image(name: str) -> bool:
    return name.lower().endswith(".png") and not name.startswith("__MACOSX")
