"""Masked-token pretraining with softmax attention (EXCHANGEABILITY section 6, derived here).

f(X, q) = sum_b w_b sum_i softmax(q^T A_b k_i) v_i, with fixed A_b and w learnt on masked tokens by a ridge. What it knows of
the latent is the best linear fit of f over masked queries, z_hat = E[f q^T] C^{-1}.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import special

from reproductions.tokens import simulation

SCORES = tuple((power, scale) for power in (0.0, 1.0) for scale in (0.2, 0.5, 1.0))
"""Powers p and scales c of A = c S^{-p}, S the covariance of keys: keys as they are, and whitened."""
NODES = 5
"""Nodes of Gauss-Hermite quadrature over each coordinate of a masked query."""


def heads(queries: Any, keys: Any, values: Any, variances: Any) -> Float[np.ndarray, "score *batch query value"]:
    """Softmax attention with each A; queries (.., m, D), keys (.., n, D), values (.., n, d_v)."""
    found = []
    for power, scale in SCORES:
        logits = (queries * (scale * np.asarray(variances) ** -power)) @ np.swapaxes(keys, -1, -2)
        found.append(special.softmax(logits, axis=-1) @ values)
    return np.stack(found)


class Population(NamedTuple):
    """Averages over sequences that make both excess risks quadratics in w: w^T a w - 2 b w + c.

    `pretraining` and `downstream` hold a (score, score), b (score,) and c; c is the excess risk of predicting zero.
    """

    pretraining: tuple[np.ndarray, np.ndarray, float]
    downstream: tuple[np.ndarray, np.ndarray, float]


def population(
    rng: np.random.Generator, count: int, tokens: int, variances: Any, value_features: int, noise: float, prior: float
) -> Population:
    """Risks of the masked values, and of the latent's last coordinate (the weak one), averaged over value coordinates."""
    variances = np.asarray(variances, float)
    nodes, weights = special.roots_hermitenorm(NODES)
    shape = (-1, len(variances))
    queries = np.stack(np.meshgrid(*[nodes] * shape[1], indexing="ij"), -1).reshape(shape) * np.sqrt(variances)
    mass = np.prod(np.stack(np.meshgrid(*[weights / weights.sum()] * shape[1], indexing="ij"), -1).reshape(shape), 1)
    keys = np.sqrt(variances) * rng.normal(size=(count, tokens, shape[1]))
    values, _ = simulation.answers(rng, keys, queries[None], value_features, noise, prior)
    precision = np.swapaxes(keys, 1, 2) @ keys + (noise / prior) ** 2 * np.eye(shape[1])
    known = np.linalg.solve(precision, np.swapaxes(keys, 1, 2) @ values)
    answers = heads(queries, keys, values, variances)
    best = queries @ known
    weak = np.einsum("q,hsqv,q->hsv", mass, answers, queries[:, -1]) / variances[-1]
    last, each = known[:, -1], 1 / count
    pretraining = (
        each * np.einsum("q,hsqv,gsqv->hg", mass, answers, answers, optimize=True),
        each * np.einsum("q,hsqv,sqv->h", mass, answers, best, optimize=True),
        each * float(np.einsum("q,sqv->", mass, best**2)),
    )
    each /= value_features
    downstream = (
        each * np.einsum("hsv,gsv->hg", weak, weak),
        each * np.einsum("hsv,sv->h", weak, last),
        each * float(np.sum(last**2)),
    )
    return Population(pretraining, downstream)


def excess(readout: Any, risk: tuple[np.ndarray, np.ndarray, float]) -> Float[np.ndarray, " replicate"]:
    """Excess over the posterior mean's risk for each w (replicate, score)."""
    square, cross, nothing = risk
    return np.einsum("rh,hg,rg->r", readout, square, readout) - 2 * readout @ cross + nothing


def learn(features: Any, targets: Any, ridges: Any) -> Float[np.ndarray, "ridge score"]:
    """w of least |y - X w|^2 + ridge |w|^2 for each ridge; features (equation, score), targets (equation,)."""
    left, singular, right = np.linalg.svd(features, full_matrices=False)
    shrunk = singular / (singular**2 + np.asarray(ridges, float)[:, None])
    return (shrunk * (left.T @ targets)) @ right
