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


def replicates(
    rng: np.random.Generator, count: int, tokens: int, dimension: int, values: int = VALUES, queries: int = QUERIES
) -> Replicate:
    """Keys and queries uniform on the sphere, v = z k + noise."""
    latents = PRIOR * rng.normal(size=(count, dimension, values))
    keys, asked = uniform(rng, count, tokens, dimension), uniform(rng, count, queries, dimension)
    return Replicate(asked, keys, keys @ latents + NOISE * rng.normal(size=(count, tokens, values)), asked @ latents)


def squared_errors(
    rng: np.random.Generator,
    count: int,
    tokens: int,
    dimension: int,
    error: Callable[[Replicate], Any],
    values: int = VALUES,
    queries: int = QUERIES,
) -> np.ndarray:
    """Squared error of each replicate, summed over value coordinates and averaged over its queries.

    `error` may return several errors along a leading axis, which the result then has too.
    """
    batch = max(1, min(count, MOST_NUMBERS // (tokens * (dimension + values + queries))))
    found = []
    while sum(part.shape[-1] for part in found) < count:
        drawn = replicates(rng, batch, tokens, dimension, values, queries)
        found.append(np.mean(np.sum(np.asarray(error(drawn)) ** 2, -1), -1))
    return np.concatenate(found, -1)[..., :count]
