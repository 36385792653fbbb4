"""One-shot image classification: is the query in the class of the first or of the second image? (THEORY section 7)"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from jaxtyping import Array, Float, Int
from safetensors.numpy import load_file

from bayesattn._util.checks import finite_array, positive_integer
from bayesattn.errors import BayesattnError
from bayesattn.models.tokens import TokenDataset
from reproductions.one_shot.images import Images, load_images

IMAGES_PER_EPISODE = 3
"""Number of images of an episode: one of each of two classes, and the query."""
VALIDATION_SHARE = 0.15
"""Share of the training classes reserved for validation."""
LONGEST_PERIOD = 10_000.0
Numbers = TypeVar("Numbers", np.ndarray, Array)


class Episodes(NamedTuple):
    """Indices of the images of each episode (first class, second class, query); label +1 if the query is of the first."""

    shown: Int[np.ndarray, "episode 3"]
    labels: Float[np.ndarray, " episode"]


@dataclass(frozen=True)
class OneShot:
    """Episodes of two labelled images and a query, with heads whose queries and keys are trained.

    Each image is cut into patches. The token of a patch is a random projection of the patch, plus an embedding of the
    image's label (first class, second class, unknown), plus sinusoidal positions; N_0 = width, and there are
    T = 3 (side / patch)^2 tokens. The classes of test episodes are from groups (alphabets, digits) without training
    classes. A part of the training classes is reserved for validation.

    Args:
        train_images: source of training classes, as for `reproductions.one_shot.images.load_images`.
        test_images: source of test classes; groups that have training classes are excluded.
        examples: P, number of training episodes (even).
        test_examples: number of test episodes (even).
        validation_examples: number of validation episodes (even).
        side: side of an image in pixels.
        patch: side of a patch in pixels; divides `side`.
        width: N_0, features of a token (even).
        key_width: G, features of queries and keys.
        heads: H_l of each layer.
        turned: whether rotated training images count as further classes.
        attention: .safetensors or .npz file of queries and keys "Q_1", "K_1", .. of shape (H_l, G, N_0), written by
            `reproductions.one_shot.training` or by the user.
        seed: seed of episodes, projection and label embedding.

    Raises:
        ValueError: an invalid size.
    """

    train_images: str = "digits[0-6]"
    test_images: str = "digits[7-9]"
    examples: int = 200
    test_examples: int = 1000
    validation_examples: int = 1000
    side: int = 32
    patch: int = 8
    width: int = 128
    key_width: int = 32
    heads: tuple[int, ...] = (4, 4)
    turned: bool = True
    attention: str | None = None
    seed: int = 0

    def __post_init__(self):
        for name in ("examples", "test_examples", "validation_examples", "width"):
            if positive_integer(name, getattr(self, name), minimum=2) % 2:
                raise BayesattnError(f"{name} must be even, got {getattr(self, name)}")
        if self.side % self.patch:
            raise BayesattnError(f"patch must divide side = {self.side}, got {self.patch}")

    @property
    def tokens(self) -> int:
        """Number T of tokens of an episode."""
        return IMAGES_PER_EPISODE * (self.side // self.patch) ** 2

    @cached_property
    def classes(self) -> dict[str, Images]:
        """Images of "train", "validation" and "test" classes, with pixels standardised by those of training images."""
        known, unseen = load_images(self.train_images, self.side), load_images(self.test_images, self.side)
        fresh = [number for number, group in enumerate(unseen.groups) if group not in set(known.groups)]
        if len(fresh) < 2:
            raise BayesattnError(
                f"test_images must hold at least two classes of groups (alphabets, digits) that are not in train_images ="
                f" {self.train_images!r}, got {len(fresh)} in {self.test_images!r}"
            )
        held_out = max(2, round(VALIDATION_SHARE * len(known.names)))
        if len(known.names) - held_out < 2:
            raise BayesattnError(
                f"train_images must hold at least 4 classes, got {len(known.names)} in {self.train_images!r}"
            )
        order = self._generator("classes").permutation(len(known.names))
        train = known.choose(np.sort(order[held_out:]).tolist())
        mean, deviation = train.pixels.mean(), train.pixels.std()
        if not deviation > 0:
            raise BayesattnError(
                f"train_images must differ from each other at side = {self.side}, got the same pixel everywhere"
            )
        chosen = {
            "train": train.turned() if self.turned else train,
            "validation": known.choose(np.sort(order[:held_out]).tolist()),
            "test": unseen.choose(fresh),
        }
        return {name: images._replace(pixels=(images.pixels - mean) / deviation) for name, images in chosen.items()}

    @cached_property
    def embedding(self) -> dict[str, np.ndarray]:
        """Embedding of patches as tokens: `projection` (pixel, N_0), and `offsets` (T, N_0) of labels and positions."""
        rng, pixels = self._generator("embedding"), self.patch**2
        projection = rng.normal(size=(pixels, self.width)) / np.sqrt(pixels)
        labels = rng.normal(size=(IMAGES_PER_EPISODE, self.width)).repeat(self.tokens // IMAGES_PER_EPISODE, axis=0)
        return {"projection": projection, "offsets": labels + sinusoidal_positions(self.tokens, self.width)}

    def episodes(self, images: Images, count: int, rng: np.random.Generator) -> Episodes:
        """Random episodes, half of each label: an image of each of two classes, and another image of one as the query."""
        order = np.argsort(images.classes, kind="stable")
        first_members = np.searchsorted(images.classes[order], np.arange(len(images.names)))
        sizes = np.bincount(images.classes, minlength=len(images.names))
        first = rng.integers(len(images.names), size=count)
        classes = np.stack([first, (first + rng.integers(1, len(images.names), size=count)) % len(images.names)], 1)
        labels = np.repeat([1.0, -1.0], -(-count // 2))[:count]
        rng.shuffle(labels)
        member = (rng.random((count, 2)) * sizes[classes]).astype(int)
        asked = (labels < 0).astype(int)
        row = np.arange(count)
        of_query, labelled = classes[row, asked], member[row, asked]
        other = (labelled + 1 + (rng.random(count) * (sizes[of_query] - 1)).astype(int)) % sizes[of_query]
        shown = np.column_stack([first_members[classes] + member, first_members[of_query] + other])
        return Episodes(order[shown], labels)

    def patches(self, images: Images) -> Float[np.ndarray, "image patch pixel"]:
        """Pixels of the patches of each image, in reading order."""
        count, grid = len(images.pixels), self.side // self.patch
        cut = images.pixels.reshape(count, grid, self.patch, grid, self.patch).transpose(0, 1, 3, 2, 4)
        return cut.reshape(count, grid**2, self.patch**2)

    def inputs(self, images: Images, episodes: Episodes) -> Float[np.ndarray, "episode token feature"]:
        """Tokens x of the episodes."""
        return embedded(self.patches(images)[episodes.shown], **self.embedding)

    def sample(self, part: str) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and labels of "train", "validation" or "test" episodes; the same for the same seed."""
        counts = {"train": self.examples, "validation": self.validation_examples, "test": self.test_examples}
        episodes = self.episodes(self.classes[part], counts[part], self._generator(part))
        return self.inputs(self.classes[part], episodes), episodes.labels

    def dataset(self) -> TokenDataset:
        """Training, test and validation episodes, and the heads of `attention`; the same for the same seed.

        Raises:
            ValueError: no attention, or an attention that does not fit.
        """
        if self.attention is None:
            raise BayesattnError("attention must be a file of queries and keys, got None: `load` trains one")
        weights = load_heads(self.attention, self.heads, self.width)
        names = tuple(tuple(str(head + 1) for head in range(count)) for count in self.heads)
        inputs, labels = self.sample("validation")
        return TokenDataset(
            *self.sample("train"),
            *self.sample("test"),
            weights,
            names,
            {},
            readout="mean",
            validation_inputs=inputs,
            validation_labels=labels,
        )

    def _generator(self, what: str) -> np.random.Generator:
        names = ("classes", "embedding", "train", "validation", "test")
        return np.random.default_rng(self.seed).spawn(len(names))[names.index(what)]


def embedded(patches: Numbers, projection: Numbers, offsets: Numbers) -> Numbers:
    """Tokens of episodes from their patches (episode, image, patch, pixel)."""
    episodes, shown, count, pixels = patches.shape
    return patches.reshape(episodes, shown * count, pixels) @ projection + offsets


def sinusoidal_positions(tokens: int, width: int) -> Float[np.ndarray, "token feature"]:
    """Sines and cosines of positions at geometrically spaced frequencies (Vaswani et al. 2017)."""
    frequencies = LONGEST_PERIOD ** (-np.arange(width // 2) / (width // 2))
    angles = np.arange(tokens)[:, None] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def load_heads(file: str | Path, heads: tuple[int, ...], width: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Queries and keys of each layer from a .safetensors or .npz file, as for `bayesattn.attention.path_inputs`.

    Raises:
        ValueError: a missing array, or an array whose shape does not fit.
    """
    arrays = dict(np.load(file)) if Path(file).suffix == ".npz" else load_file(file)
    layers = []
    for layer, count in enumerate(heads, 1):
        for name in (f"Q_{layer}", f"K_{layer}"):
            if name not in arrays:
                raise BayesattnError(f"attention must hold {name}, got only {', '.join(sorted(arrays))} in {file}")
        query = finite_array(f"Q_{layer} of {file}", arrays[f"Q_{layer}"], (count, "key_features", width))
        layers.append((query, finite_array(f"K_{layer} of {file}", arrays[f"K_{layer}"], query.shape)))
    return layers
