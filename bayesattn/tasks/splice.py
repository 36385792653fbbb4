"""Classification of DNA sequences by splice junctions: donor, acceptor or neither."""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int

from bayesattn._util.checks import require_memory
from bayesattn.classes import one_hot
from bayesattn.models.tokens import TokenDataset
from bayesattn.tasks.checks import checked_settings

CLASSES = ("donor", "acceptor", "neither")
SHARES = (0.25, 0.25, 0.5)
"""Probabilities of the classes, close to those in the real sequences."""
COUNTS = Path(__file__).parent / "splice.csv"
TOKENS, NUCLEOTIDES = 60, 4
WINDOW = range(23, 37)
"""Positions, of 60, that tokens distinguish: those around the junction between 29 and 30."""


@dataclass(frozen=True)
class Splice:
    """Synthetic sequences of 60 nucleotides, with independent positions and their distributions in each class.

    The distributions for donors, acceptors and neither are estimated from 3,186 primate sequences (Noordewier, Towell and
    Shavlik 1991; see splice.csv), in which positions are not independent. For synthetic sequences the Bayes-optimal
    classifier is known (`probabilities`).

    A token is one-hot over pairs of nucleotide and place. The place is one of 14 positions around the junction, left of
    them, or right of them; N_0 = 64.

    Args:
        examples: P, number of training sequences.
        test_examples: number of test sequences.
        layers: heads of each layer: "junction" attends to the four positions around the junction, "same" to tokens with the
            query's nucleotide, "next" to the next place, "uniform" uniformly, "random" has random weights.
        inverse_temperature: factor on all attention logits.
        seed: seed of sequences and random heads.

    Raises:
        ValueError: an invalid size, strength or head name.
    """

    HEADS: ClassVar[tuple[str, ...]] = ("junction", "same", "next", "uniform", "random")

    examples: int = 300
    test_examples: int = 1000
    layers: tuple[tuple[str, ...], ...] = (("junction", "same"), ("uniform", "next"))
    inverse_temperature: float = 5.0
    seed: int = 0

    def __post_init__(self):
        checked_settings(self, self.HEADS)

    def dataset(self) -> TokenDataset:
        """Sequences, their classes and heads; the same for the same seed.

        Raises:
            ValueError: sequences too large for the memory.
        """
        features = NUCLEOTIDES * (len(WINDOW) + 2)
        require_memory("sequences of these sizes", 8 * (self.examples + self.test_examples) * TOKENS * features)
        train_rng, test_rng, head_rng = np.random.default_rng(self.seed).spawn(3)
        inputs, labels = self._sequences(self.examples, train_rng)
        test_inputs, test_labels = self._sequences(self.test_examples, test_rng)
        weights = [np.stack([self._head(head, head_rng) for head in heads]) for heads in self.layers]
        return TokenDataset(
            inputs, labels, test_inputs, test_labels, weights, self.layers, {}, readout="mean", output_names=CLASSES
        )

    @staticmethod
    def probabilities(nucleotides: Int[np.ndarray, "example position"]) -> Float[np.ndarray, "example output"]:
        """Probabilities of the classes given a synthetic sequence of nucleotides 0 to 3 (A, C, G, T), by Bayes' rule."""
        logs = np.log(_laws())[:, np.arange(TOKENS), nucleotides].sum(-1).T + np.log(SHARES)
        chances = np.exp(logs - logs.max(1, keepdims=True))
        return chances / chances.sum(1, keepdims=True)

    @staticmethod
    def nucleotides(inputs: Float[np.ndarray, "example token feature"]) -> Int[np.ndarray, "example token"]:
        """Nucleotides 0 to 3 of tokens."""
        return inputs.argmax(2) % NUCLEOTIDES

    def _sequences(self, count: int, rng: np.random.Generator):
        classes = rng.choice(len(CLASSES), count, p=SHARES)
        below = np.cumsum(_laws(), axis=2)[classes, :, :-1]
        nucleotides = (rng.random((count, TOKENS, 1)) > below).sum(2)
        # Scaled to a mean square of 1.
        tokens = np.sqrt(NUCLEOTIDES * (len(WINDOW) + 2)) * np.eye(NUCLEOTIDES * (len(WINDOW) + 2))
        return tokens[NUCLEOTIDES * _places() + nucleotides], one_hot(classes, names=range(len(CLASSES))).labels

    def _head(self, name: str, rng: np.random.Generator) -> Float[np.ndarray, "feature feature"]:
        """Matrix W of a head, with the key on the left: logits x_key^T W x_query, for tokens of squared length N_0."""
        places, alike = len(WINDOW) + 2, np.zeros((NUCLEOTIDES, NUCLEOTIDES))
        features = NUCLEOTIDES * places
        by_place = np.zeros((places, places))
        if name == "junction":
            by_place[[_places()[place] for place in (28, 29, 30, 31)]] = 1
        elif name == "same":
            alike = np.eye(NUCLEOTIDES)
        elif name == "next":
            by_place = np.eye(places, k=-1)
        elif name == "random":
            return self.inverse_temperature * rng.normal(size=(features, features)) / features
        logits = np.kron(by_place, np.ones_like(alike)) + np.kron(np.ones_like(by_place), alike)
        return self.inverse_temperature * logits / features


@cache
def _laws() -> Float[np.ndarray, "output position nucleotide"]:
    """Probability of each nucleotide at each position in each class, from counts plus 1."""
    with COUNTS.open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    counts = np.array([[float(row[letter]) for letter in "ACGT"] for row in rows]).reshape(len(CLASSES), TOKENS, -1) + 1
    return counts / counts.sum(2, keepdims=True)


@cache
def _places() -> Int[np.ndarray, " position"]:
    """Place of each position: 0 left of the window, 1 to 14 in the window, and 15 right of it."""
    return np.clip(np.arange(TOKENS) - WINDOW.start + 1, 0, len(WINDOW) + 1)
