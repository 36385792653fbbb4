"""Tokens drawn from the latent-variable model, and squared errors over many of them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bayesattn.questions.exchangeable.sphere import uniform

NOISE, PRIOR = 0.5, 0.8
"""sigma and tau of every check; no power of tau is 1, so that a forgotten one is found."""
RIDGE = NOISE**2 / PRIOR**2
VALUES = 3
QUERIES = 4
NUMBER, RISK_GAP = "tokens n", "m x (test - training risk)"
"""Labels of axes."""
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
    keys, asked = uniform(rng, count, tokens, dimension), uniform(rng, count, queries, dimension)
    return Replicate(asked, keys, *answers(rng, keys, asked, values, NOISE, PRIOR))


def answers(
    rng: np.random.Generator, keys: np.ndarray, queries: np.ndarray, values: int, noise: float, prior: float
) -> tuple[np.ndarray, np.ndarray]:
    """Values v = z k + noise (.., n, d_v) and z q (.., m, d_v), with a latent for each leading index."""
    latents = prior * rng.normal(size=(*keys.shape[:-2], keys.shape[-1], values))
    return keys @ latents + noise * rng.normal(size=(*keys.shape[:-1], values)), queries @ latents


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
    parts = []
    while sum(part.shape[-1] for part in parts) < count:
        drawn = replicates(rng, batch, tokens, dimension, values, queries)
        parts.append(np.mean(np.sum(np.asarray(error(drawn)) ** 2, -1), -1))
    return np.concatenate(parts, -1)[..., :count]
