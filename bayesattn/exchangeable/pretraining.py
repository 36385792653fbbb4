"""Self-supervised pretraining by masked tokens, in closed form (EXCHANGEABILITY section 6).

Linear attention z_hat = C_VK Theta, C_VK = (1/n) sum_i v_i k_i^T, with Theta by least squares on the values at masked keys
of m sequences; keys and masked queries ~ N(0, S), v = z k + noise. The best that could be done is the posterior mean z_bar.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from bayesattn._checks import finite_array, positive, positive_integer

Matrix = Float[np.ndarray, "feature feature"]


def key_variances(condition: float) -> Float[np.ndarray, " feature"]:
    """Diagonal (1, kappa^{-1/2}, 1/kappa) of the covariance of keys, whose condition number is kappa."""
    if not (np.isfinite(condition) and condition >= 1):
        raise ValueError(f"condition must be a finite number of at least 1, got {condition}")
    return np.array([1.0, condition**-0.5, 1 / condition])


class Batch(NamedTuple):
    """Of each sequence: C_VK (d_v, D), a masked query (D,), its value (d_v,), and the keys (n, D)."""

    covariances: Float[np.ndarray, "sequence value feature"]
    queries: Float[np.ndarray, "sequence feature"]
    targets: Float[np.ndarray, "sequence value"]
    keys: Float[np.ndarray, "sequence token feature"]


def draw(
    rng: np.random.Generator, count: int, tokens: int, variances: Any, value_features: int, noise: float, prior: float
) -> Batch:
    """Sequences with a latent of their own each."""
    variances = finite_array("variances", variances, ("features",))
    for name, number in (("count", count), ("tokens", tokens), ("value_features", value_features)):
        positive_integer(name, number)
    noise, prior = positive("noise", noise), positive("prior", prior)
    scale = np.sqrt(variances)
    latents = prior * rng.normal(size=(count, value_features, len(variances)))
    keys = scale * rng.normal(size=(count, tokens, len(variances)))
    queries = scale * rng.normal(size=(count, len(variances)))
    values = keys @ latents.transpose(0, 2, 1) + noise * rng.normal(size=(count, tokens, value_features))
    targets = np.einsum("svf,sf->sv", latents, queries) + noise * rng.normal(size=(count, value_features))
    return Batch(values.transpose(0, 2, 1) @ keys / tokens, queries, targets, keys)


def learn(batch: Batch) -> Matrix:
    """Theta by least squares: minimises sum |y - C_VK Theta q|^2."""
    features = np.einsum("svf,sg->svfg", batch.covariances, batch.queries).reshape(batch.targets.size, -1)
    found, *_ = np.linalg.lstsq(features, batch.targets.reshape(-1), rcond=None)
    return found.reshape((batch.queries.shape[1],) * 2)


class Moments(NamedTuple):
    """Second moments of a row of C_VK and of z_bar, one value coordinate; all rows are alike.

    `attention` is E c^T c for a row c of C_VK, `cross` E c^T z_bar = E c^T z, and `posterior` E z_bar^T z_bar.
    """

    attention: Matrix
    cross: Matrix
    posterior: Matrix


def moments(
    rng: np.random.Generator, tokens: int, variances: Any, noise: float, prior: float, draws: int = 4000
) -> Moments:
    """In closed form, but the posterior's own moment, whose mean over keys is a Monte Carlo one of so many draws.

    E c^T c = tau^2 ((1 + 1/n) S^2 + tr(S) S / n) + sigma^2 S / n, E c^T z = tau^2 S,
    E z_bar^T z_bar = tau^2 I - sigma^2 E M.
    """
    variances = finite_array("variances", variances, ("features",))
    spread = np.diag(variances)
    attention = prior**2 * ((1 + 1 / tokens) * spread @ spread + variances.sum() * spread / tokens)
    attention += noise**2 * spread / tokens
    keys = np.sqrt(variances) * rng.normal(size=(draws, tokens, len(variances)))
    precision = keys.transpose(0, 2, 1) @ keys + (noise / prior) ** 2 * np.eye(len(variances))
    posterior = prior**2 * np.eye(len(variances)) - noise**2 * np.linalg.inv(precision).mean(0)
    return Moments(attention, prior**2 * spread, posterior)


def best(known: Moments) -> Matrix:
    """Theta of the least population risk."""
    return np.linalg.solve(known.attention, known.cross)


def error_matrix(theta: Any, known: Moments) -> Matrix:
    """E e^T e for a row e of z_hat - z_bar, with these parameters."""
    cross = np.asarray(theta).T @ known.cross
    return theta.T @ known.attention @ theta - cross - cross.T + known.posterior


def pretraining_excess(theta: Any, variances: Any, known: Moments, value_features: int) -> float:
    """E |(z_hat - z_bar) C^{1/2}|^2, the excess risk of masked prediction, C the covariance of masked queries."""
    return float(value_features * np.sum(np.asarray(variances) * np.diag(error_matrix(theta, known))))


def downstream_excess(theta: Any, readout: Any, known: Moments) -> float:
    """E <B, z_hat - z_bar>^2, the excess risk of predicting <B, z>, for B of shape (d_v, D).

    Given the keys, rows of z_hat - z_bar are independent and of mean zero, so it is tr(B E[e^T e] B^T).
    """
    readout = finite_array("readout", readout, ("value_features", len(known.posterior)))
    return float(np.sum(readout @ error_matrix(theta, known) * readout))


def transfer_coefficient(readout: Any, variances: Any) -> float:
    """tr(B C^{-1} B^T): the downstream excess is at most this times the pretraining excess."""
    readout = finite_array("readout", readout, ("value_features", "features"))
    return float(np.sum(readout**2 / finite_array("variances", variances, (readout.shape[1],))))
