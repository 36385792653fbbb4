"""Tokens that include their positions: when the output of an attention network does not see their order (section 7)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from bayesattn import attention
from bayesattn.network import network
from bayesattn.tasks import HiddenMarkov
from reproductions.claims import Claim, Findings
from reproductions.one_shot.episodes import OneShot, sinusoidal_positions

EXAMPLES = 6
WIDTH = 8
"""Width of the network behind the heads, and of queries and keys."""
VOCABULARY, TEXT_TOKENS, TEXT_WIDTH = 30, 12, 32


class Tokens(NamedTuple):
    """Contents (P, T, N_0) and what tells places apart (T, N_0), whose sum is what the network sees; its heads."""

    contents: np.ndarray
    places: np.ndarray
    heads: Sequence[Any]


def positions(rng: np.random.Generator, fast: bool = False) -> Findings:
    """Outputs after a permutation of tokens with their positions, and of contents alone."""
    claims = []
    for name, tokens in (
        ("as BERT's", _text(rng)),
        ("one-hot, hidden Markov", _chains(rng)),
        ("as ViT's", _images(rng)),
    ):
        claims += _claims(rng, name, tokens)
    return Findings.of_row("tokens-positions", claims)


def _text(rng: np.random.Generator) -> Tokens:
    """Embedded words plus sinusoidal positions."""
    words = rng.integers(VOCABULARY, size=(EXAMPLES, TEXT_TOKENS))
    embedding = rng.normal(size=(VOCABULARY, TEXT_WIDTH))
    return Tokens(embedding[words], sinusoidal_positions(TEXT_TOKENS, TEXT_WIDTH), _heads(rng, TEXT_WIDTH))


def _chains(rng: np.random.Generator) -> Tokens:
    """Noisy states of a chain with one-hot positions, and the heads of the hidden Markov task."""
    task = HiddenMarkov(EXAMPLES, 2, tokens=9, dimension=10, inverse_temperature=1.0, seed=int(rng.integers(2**31)))
    dataset = task.dataset()
    places = dataset.inputs[0].copy()
    places[:, : task.dimension] = 0
    return Tokens(dataset.inputs - places, places, dataset.weights)


def _images(rng: np.random.Generator) -> Tokens:
    """Projected patches of digits plus positions and labels, as the one-shot task makes them."""
    task = OneShot(examples=EXAMPLES, side=16, width=TEXT_WIDTH, turned=False, seed=int(rng.integers(2**31)))
    inputs, _ = task.sample("train")
    places = task.embedding["offsets"]
    return Tokens(inputs - places, places, _heads(rng, TEXT_WIDTH))


def _heads(rng: np.random.Generator, features: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Random queries and keys of two layers of two heads, with logits of order 1."""
    shape = (2, 2, 2, WIDTH, features)
    return [(queries, keys) for queries, keys in rng.normal(size=shape) / np.sqrt(features)]


def _claims(rng: np.random.Generator, name: str, tokens: Tokens) -> list[Claim]:
    contents, places, heads = tokens
    shape = {"V_0": (WIDTH, contents.shape[2]), "V_1": (2, WIDTH, WIDTH), "V_2": (2, WIDTH, WIDTH), "a": (WIDTH,)}
    weights = {key: jnp.asarray(rng.normal(size=size)) for key, size in shape.items()}

    def outputs(inputs: np.ndarray, readout: str) -> np.ndarray:
        return np.asarray(network(weights, attention.path_inputs(inputs, heads, readout)))

    # One cycle, so that every token moves, the one that is read too; or at some seeds there would be nothing to tell apart.
    cycle = rng.permutation(contents.shape[1])
    order = np.empty_like(cycle)
    order[cycle] = np.roll(cycle, 1)
    rest = np.append(rng.permutation(contents.shape[1] - 1), contents.shape[1] - 1)
    inputs = contents + places
    mean, last = outputs(inputs, "mean"), outputs(inputs, "last")
    with_places, alone = outputs(inputs[:, order], "mean"), outputs(contents[:, order] + places, "mean")
    kept, moved = outputs(inputs[:, rest], "last"), outputs(inputs[:, order], "last")
    same = f"tokens {name}: output after a permutation"
    law = "output before, worst example"
    return [
        _compared(f"{same} with positions, mean readout", law, mean, with_places, alone, "contents permuted alone"),
        _compared(f"{same} of all but the token that is read", law, last, kept, moved, "the token read permuted too"),
        _compared(f"{same} with positions, last-token readout", law, last, moved),
        _compared(f"{same} of contents without positions", law, mean, alone),
    ]


def _compared(
    statement: str, law: str, before: np.ndarray, after: np.ndarray, wrong: np.ndarray | None = None, name: str = ""
) -> Claim:
    """Outputs of the example that changes most; a literal reading where no wrong law is given."""
    worst = np.argmax(np.abs(after - before))
    planted = None if wrong is None else wrong[worst]
    numbers = before[worst], after[worst]
    return Claim(statement, law, *numbers, tolerance=1e-12, literal=wrong is None, planted=planted, wrong=name)
