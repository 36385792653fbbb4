"""Classification of hidden Markov chains by their tendency to stay in a state (THEORY section 6)."""

import itertools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from bayesattn._util.checks import number, positive_integer, require_memory
from bayesattn.errors import BayesattnError
from bayesattn.models.tokens import TokenDataset
from bayesattn.tasks.checks import checked_settings

HEADS = ("same_token", "uniform", "random", "blank")


@dataclass(frozen=True)
class HiddenMarkov:
    """Two-state hidden Markov chains observed with noise: label +1 for chains that tend to stay in their state, else -1.

    A token is v_+ or v_- plus Gaussian noise, |v|^2 = dimension. A beginning-of-sequence token precedes the chain, and
    one-hot positions are appended, so N_0 = dimension + tokens + 1. Half of the examples belong to each class.

    Args:
        examples: P, number of training chains (even).
        test_examples: number of test chains (even).
        tokens: length of a chain.
        dimension: D, features of a token (even).
        stay_probability: probability that a chain of class +1 stays in its state at a step; 1 minus that for class -1.
        noise_difference: standard deviation of the noise along v_+ - v_-; it disturbs the attention.
        noise_sum: standard deviation along v_+ + v_-.
        noise_orthogonal: sigma_perp, standard deviation along each of the other D - 2 directions.
        layers: heads of each layer: "same_token" attends to the previous token if the states agree, else to the
            beginning; "uniform" and "blank" attend uniformly; "random" has random weights.
        inverse_temperature: factor on all attention logits.
        seed: seed of chains, noise and random heads.

    Raises:
        ValueError: an invalid size, strength or head name.
    """

    examples: int = 100
    test_examples: int = 1000
    tokens: int = 30
    dimension: int = 200
    stay_probability: float = 0.7
    noise_difference: float = 1.0
    noise_sum: float = 1.0
    noise_orthogonal: float = 1.0
    layers: tuple[tuple[str, ...], ...] = (("same_token", "random"), ("uniform", "random"))
    inverse_temperature: float = 10.0
    seed: int = 0

    def __post_init__(self):
        for name in ("examples", "test_examples", "dimension"):
            if positive_integer(name, getattr(self, name), minimum=2) % 2:
                raise BayesattnError(f"{name} must be even, got {getattr(self, name)}")
        positive_integer("tokens", self.tokens)
        checked_settings(self, HEADS)
        if not 0 <= number("stay_probability", self.stay_probability) <= 1:
            raise BayesattnError(f"stay_probability must be between 0 and 1, got {self.stay_probability}")
        for name in ("noise_difference", "noise_sum", "noise_orthogonal"):
            if number(name, getattr(self, name)) < 0:
                raise BayesattnError(f"{name} must be a finite number of at least 0, got {getattr(self, name)}")

    def dataset(self) -> TokenDataset:
        """Chains, labels and heads; the same for the same seed.

        Raises:
            ValueError: chains or heads too large for the memory.
        """
        features, heads = self.dimension + self.tokens + 1, sum(map(len, self.layers))
        chains = (self.examples + self.test_examples) * (self.tokens + 1)
        require_memory("chains and heads of these sizes", 8 * features * (chains + heads * features))
        chain_rng, test_rng, head_rng = np.random.default_rng(self.seed).spawn(3)
        inputs, labels = self._chains(self.examples, chain_rng)
        test_inputs, test_labels = self._chains(self.test_examples, test_rng)
        weights = [np.stack([self._head(head, head_rng) for head in heads]) for heads in self.layers]
        return TokenDataset(inputs, labels, test_inputs, test_labels, weights, self.layers, self._path_groups())

    def _path_groups(self) -> dict[str, tuple[int, ...]]:
        """Groups of paths: "good" paths detect whether states repeat, "denoising" paths average tokens and so noise."""
        good, denoising = [], []
        for path, (first, *later) in enumerate(itertools.product(*self.layers)):
            if "random" in later or "same_token" in later:
                continue
            (good if first == "same_token" else denoising).append(path)
        groups = {"good path": tuple(good), "good + denoising paths": tuple(good + denoising)}
        return groups if good and denoising else {}

    def _directions(self) -> tuple[Float[np.ndarray, " dimension"], Float[np.ndarray, " dimension"]]:
        """Directions v_+ and v_-."""
        first_half = np.arange(self.dimension) < self.dimension // 2
        return np.sqrt(2.0) * first_half, np.sqrt(2.0) * ~first_half

    def _chains(self, count: int, rng: np.random.Generator):
        labels = np.repeat([1.0, -1.0], count // 2)
        stay = np.where(labels > 0, self.stay_probability, 1 - self.stay_probability)
        leaves = rng.random((count, self.tokens)) > stay[:, None]
        leaves[:, 0] = rng.random(count) < 0.5
        in_plus = np.cumsum(leaves, axis=1) % 2 == 0
        plus, minus = self._directions()
        chains = np.where(in_plus[..., None], plus, minus) + self._noise((count, self.tokens), rng)
        inputs = np.zeros((count, self.tokens + 1, self.dimension + self.tokens + 1))
        inputs[:, 1:, : self.dimension] = chains
        inputs[:, :, self.dimension :] = np.eye(self.tokens + 1)
        return inputs, labels

    def _noise(self, shape: tuple[int, int], rng: np.random.Generator):
        noise = rng.normal(size=(*shape, self.dimension))
        plus, minus = self._directions()
        scaled = self.noise_orthogonal * noise
        for direction, strength in ((plus - minus, self.noise_difference), (plus + minus, self.noise_sum)):
            unit = direction / np.linalg.norm(direction)
            scaled += (strength - self.noise_orthogonal) * (noise @ unit)[..., None] * unit
        return scaled

    def _head(self, name: str, rng: np.random.Generator) -> Float[np.ndarray, "feature feature"]:
        """Matrix W of a head, with the key on the left: logits x_key^T W x_query."""
        positions, features = self.tokens + 1, self.dimension
        weights = np.zeros((features + positions, features + positions))
        if name == "same_token":
            difference = np.subtract(*self._directions())
            query = difference / (difference @ difference / 2)
            weights[:features, :features] = np.outer(query, query)
            weights[features:, features:] = np.eye(positions, k=1)
            weights[features, features + 1 :] = 1.5
        elif name == "uniform":
            weights[features:, features:] = 1.0
        elif name == "random":
            weights = rng.normal(size=weights.shape) / np.sqrt(features)
            weights[:features, :features] /= np.sqrt(features)
            weights[features:, features:] *= np.sqrt(features)
        return self.inverse_temperature * weights
