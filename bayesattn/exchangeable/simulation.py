"""Tokens drawn from the latent-variable model, and squared errors over many of them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bayesattn.exchangeable.sphere import uniform

NOISE, PRIOR = 0.5, 1.0
VALUES = 3
QUERIES = 4
MOST_NUMBERS = 2**24
"""Most numbers that a batch of replicates takes in memory."""


class Replicate(NamedTuple):
    """Tokens and queries of a batch of replicates, each with a latent of its own; the truth is z phi(q)."""

    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    truth: np.ndarray


def replicates(rng: np.random.Generator, count: int, tokens: int, dimension: int, values: int = VALUES) -> Replicate:
    """Keys and queries uniform on the sphere, v = z k + noise."""
    latents = PRIOR * rng.normal(size=(count, dimension, values))
    keys, queries = uniform(rng, count, tokens, dimension), uniform(rng, count, QUERIES, dimension)
    return Replicate(
        queries, keys, keys @ latents + NOISE * rng.normal(size=(count, tokens, values)), queries @ latents
    )


def squared_errors(
    rng: np.random.Generator,
    count: int,
    tokens: int,
    dimension: int,
    error: Callable[[Replicate], Any],
    values: int = VALUES,
) -> np.ndarray:
    """Squared error of each replicate, summed over value coordinates and averaged over its queries."""
    batch = max(1, min(count, MOST_NUMBERS // (tokens * (dimension + values + QUERIES))))
    found = []
    while sum(map(len, found)) < count:
        drawn = replicates(rng, batch, tokens, dimension, values)
        found.append(np.mean(np.sum(np.asarray(error(drawn)) ** 2, -1), -1))
    return np.concatenate(found)[:count]
