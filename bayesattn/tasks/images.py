"""Images in classes: scikit-learn's digits, and Omniglot from a folder, a zip or a download."""

import io
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import pooch
from jaxtyping import Float, Int
from PIL import Image, UnidentifiedImageError

from bayesattn._checks import positive_integer

OMNIGLOT_ADDRESS = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"
OMNIGLOT = {
    # SHA-256 of the authors' files; MD5, as PyTorch's torchvision knows them, of the two large ones.
    "images_background": "md5:68d2efa1b9178cc56df9314c21c6e718",
    "images_evaluation": "md5:6b91aef0f799c5bb55b94e3f2daec811",
    "images_background_small1": "sha256:f38eb80f801274ac2b4dff5b24289016bfaba4a7d5bb50deebf27104ad6cb8a4",
    "images_background_small2": "sha256:3ccaa407515a8778e5d0861875af38b17e418f301ad5bb3b5a6b65d901a41c7f",
}
PREFIX = "omniglot:"
DIGITS = "digits"
FEWEST_CLASSES, FEWEST_IMAGES = 2, 2


class Images(NamedTuple):
    """Square images, 0 where there is no ink and 1 at full ink, with the class of each and the names of the classes.

    Classes with the same `groups` entry belong together: characters of one alphabet; a digit is a group of its own.
    """

    pixels: Float[np.ndarray, "image side side"]
    classes: Int[np.ndarray, " image"]
    names: tuple[str, ...]

    @property
    def groups(self) -> list[str]:
        """Alphabet of each class, or the digit."""
        return [name.split("/")[0] for name in self.names]

    def choose(self, chosen: Sequence[int]) -> "Images":
        """Some of the classes, numbered anew in the order given."""
        number = {old: new for new, old in enumerate(chosen)}
        kept = np.isin(self.classes, list(chosen))
        classes = np.array([number[old] for old in self.classes[kept]], int)
        return Images(self.pixels[kept], classes, tuple(self.names[old] for old in chosen))

    def turned(self) -> "Images":
        """Each class four times over, turned by 0, 90, 180 and 270 degrees: turned characters are further classes."""
        turns = [np.rot90(self.pixels, turn, axes=(1, 2)) for turn in range(4)]
        classes = [self.classes + turn * len(self.names) for turn in range(4)]
        names = [f"{name} turned {90 * turn}" if turn else name for turn in range(4) for name in self.names]
        return Images(np.concatenate(turns), np.concatenate(classes), tuple(names))


def load_images(source: str | Path, side: int = 32) -> Images:
    """Images by name or from disk.

    Args:
        source: "digits", scikit-learn's; "omniglot:images_background_small1" and the like, downloaded from the authors'
            repository; or a folder or zip of ALPHABET/CHARACTER/*.png, as Omniglot comes. "NAME[3-7]" takes the classes
            numbered 3 to 7 only.
        side: pixels of a side to which images are scaled.

    Raises:
        FileNotFoundError: no such folder or zip.
        ValueError: an unknown name, a zip or folder with other contents, an image that cannot be read, fewer than two
            classes, a class with fewer than two images.
    """
    positive_integer("side", side)
    source, wanted = _split(str(source))
    found = _digits(side) if source == DIGITS else _read(_located(source), side)
    if wanted is not None:
        first, last = wanted
        if not first <= last < len(found.names):
            raise ValueError(f"classes of {source} must be within 0-{len(found.names) - 1}, got [{first}-{last}]")
        found = found.choose(range(first, last + 1))
    if len(found.names) < FEWEST_CLASSES:
        raise ValueError(f"images must be of at least {FEWEST_CLASSES} classes, got {len(found.names)} in {source}")
    counts = np.bincount(found.classes, minlength=len(found.names))
    if counts.min() < FEWEST_IMAGES:
        raise ValueError(
            f"every class must have at least {FEWEST_IMAGES} images, got {counts.min()} of {found.names[counts.argmin()]!r}"
            f" in {source}"
        )
    return found


def is_named(source: str) -> bool:
    """Whether a source is a name, not a folder or zip."""
    return source.split("[")[0] == DIGITS or source.startswith(PREFIX)


def _split(source: str) -> tuple[str, tuple[int, int] | None]:
    """Name, and first and last class if they are given."""
    match = re.fullmatch(r"(.+)\[(\d+)-(\d+)\]", source)
    return (match[1], (int(match[2]), int(match[3]))) if match else (source, None)


def _digits(side: int) -> Images:
    from sklearn.datasets import load_digits  # takes a second to import

    stored: Any = load_digits()
    # 8 x 8 pixels of 0 to 16.
    pixels = np.stack([_scaled(Image.fromarray(image.astype(np.float32) / 16), side) for image in stored.images])
    return Images(pixels, stored.target.astype(int), tuple(str(digit) for digit in range(10)))


def _scaled(image: Image.Image, side: int) -> np.ndarray:
    return np.clip(np.asarray(image.resize((side, side), Image.Resampling.BILINEAR), float), 0, 1)


def _located(source: str) -> Path:
    """The folder or zip, downloaded if it is one of Omniglot's by name."""
    if not source.startswith(PREFIX):
        if not Path(source).exists():
            raise FileNotFoundError(
                f"images must be {DIGITS!r}, {PREFIX!r} and the name of a file of Omniglot's, or a folder or zip,"
                f" got {source!r}, which is not there"
            )
        return Path(source)
    name = source.removeprefix(PREFIX)
    if name not in OMNIGLOT:
        raise ValueError(f"images must be one of {', '.join(PREFIX + known for known in OMNIGLOT)}, got {source!r}")
    address = f"{OMNIGLOT_ADDRESS}{name}.zip"
    try:
        return Path(pooch.retrieve(address, OMNIGLOT[name], f"{name}.zip", pooch.os_cache("bayesattn")))
    except OSError as error:
        raise OSError(f"{source} could not be downloaded from {address}: {error}") from None


def _read(path: Path, side: int) -> Images:
    """Images of a folder or zip, classes in the order of their names."""
    pixels, names = [], []
    try:
        for name, content in _files(path):
            parts = PurePosixPath(name).parts
            if len(parts) < 3:
                raise ValueError(f"{path} must hold ALPHABET/CHARACTER/*.png, as Omniglot does, got {name!r}")
            try:
                with Image.open(io.BytesIO(content)) as image:
                    # Ink is black on white.
                    ink = 1 - np.asarray(image.convert("L"), np.float32) / 255
            except (UnidentifiedImageError, OSError, SyntaxError) as error:
                raise ValueError(
                    f"{name} in {path} must be an image, got a file that cannot be read: {error}"
                ) from None
            pixels.append(_scaled(Image.fromarray(ink), side))
            names.append("/".join(parts[-3:-1]))
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(
            f"{path} must be a folder or a zip of images, got a file that cannot be read: {error}"
        ) from None
    if not pixels:
        raise ValueError(f"{path} must hold ALPHABET/CHARACTER/*.png, as Omniglot does, got no .png at all")
    known, classes = np.unique(names, return_inverse=True)
    return Images(np.stack(pixels), classes, tuple(map(str, known)))


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of all .png files, in the order of their names."""
    if path.is_dir():
        for file in sorted(path.rglob("*.png")):
            # Names begin with that of the folder, as those in a zip of it do.
            yield (PurePosixPath(path.name) / file.relative_to(path).as_posix()).as_posix(), file.read_bytes()
        return
    with zipfile.ZipFile(path) as packed:
        for name in sorted(packed.namelist()):
            if name.lower().endswith(".png") and not name.startswith("__MACOSX"):
                yield name, packed.read(name)
