"""Classification of images of digits in ten classes, read patch by patch."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from bayesattn._util.checks import positive_integer
from bayesattn._util.extras import require
from bayesattn.classes import one_hot
from bayesattn.errors import BayesattnError
from bayesattn.models.tokens import TokenDataset
from bayesattn.tasks.checks import checked_settings

SIDE = 8
"""Side of scikit-learn's digits in pixels."""


@dataclass(frozen=True)
class Digits:
    """Scikit-learn's 1,797 digits of 8 x 8 pixels (Alpaydin and Kaynak 1998), a token for each patch.

    A token contains the pixels of its patch twice: in a slot for this patch only, which encodes the position, and in a slot
    shared by all patches, which encodes the appearance. The last of the N_0 = 64 + patch^2 + 1 features is a constant. The
    mean over the training images is subtracted from the pixels, which are then scaled to a mean square of 1.

    Args:
        examples: P, number of training images.
        test_examples: number of test images, distinct from the training images.
        patch: side of a patch in pixels: 1, 2, 4 or 8.
        layers: heads of each layer: "similar" attends to patches similar to the query's patch, "ink" to patches with much
            ink, "uniform" uniformly, "random" has random weights.
        inverse_temperature: factor on all attention logits.
        seed: seed of the choice of images and of random heads.

    Raises:
        ValueError: an invalid size, strength or head name, or more images than there are.
    """

    HEADS: ClassVar[tuple[str, ...]] = ("similar", "ink", "uniform", "random")

    examples: int = 600
    test_examples: int = 1000
    patch: int = 2
    layers: tuple[tuple[str, ...], ...] = (("similar", "ink"),)
    inverse_temperature: float = 1.0
    seed: int = 0

    def __post_init__(self):
        if positive_integer("patch", self.patch) not in (1, 2, 4, 8):
            raise BayesattnError(f"patch must be 1, 2, 4 or 8, got {self.patch}")
        checked_settings(self, self.HEADS)

    def dataset(self) -> TokenDataset:
        """Images, their classes and heads; the same for the same seed.

        Raises:
            ValueError: more images than there are.
            ImportError: the extra "images" is not installed.
        """
        require("images", "the task digits")
        from sklearn.datasets import load_digits

        stored: Any = load_digits()
        images = stored.images / 16  # whole numbers from 0 to 16
        wanted = self.examples + self.test_examples
        if wanted > len(images):
            raise BayesattnError(f"examples and test_examples must be at most {len(images)} together, got {wanted}")
        choice_rng, head_rng = np.random.default_rng(self.seed).spawn(2)
        chosen = choice_rng.permutation(len(images))[:wanted]
        training = chosen[: self.examples]
        pixels = images - images[training].mean(0)
        pixels /= np.sqrt(np.mean(pixels[training] ** 2))
        inputs = self._tokens(pixels[chosen])
        labels = one_hot(stored.target[chosen], names=range(10)).labels
        return TokenDataset(
            inputs[: self.examples],
            labels[: self.examples],
            inputs[self.examples :],
            labels[self.examples :],
            [np.stack([self._head(name, head_rng) for name in heads]) for heads in self.layers],
            self.layers,
            {},
            readout="mean",
            output_names=tuple(map(str, range(10))),
        )

    def _tokens(self, pixels: Float[np.ndarray, "image side side"]) -> Float[np.ndarray, "image token feature"]:
        count, size = len(pixels), self.patch
        patches = (
            pixels.reshape(count, SIDE // size, size, SIDE // size, size).swapaxes(2, 3).reshape(count, -1, size**2)
        )
        tokens = patches.shape[1]
        placed = np.einsum("itp,ts->itsp", patches, np.eye(tokens)).reshape(count, tokens, -1)
        return np.concatenate([placed, patches, np.ones((count, tokens, 1))], axis=2)

    def _head(self, name: str, rng: np.random.Generator) -> Float[np.ndarray, "feature feature"]:
        """Matrix W of a head, with the key on the left: logits x_key^T W x_query."""
        shared, features = self.patch**2, SIDE**2 + self.patch**2 + 1
        weights, slot = np.zeros((features, features)), slice(-1 - shared, -1)
        if name == "similar":
            weights[slot, slot] = np.eye(shared) / shared
        elif name == "ink":
            weights[slot, -1] = 1 / shared
        elif name == "random":
            weights = rng.normal(size=weights.shape) / np.sqrt(2 * shared)
        return self.inverse_temperature * weights
