"""Self-supervised pretraining by masked tokens, in closed form (EXCHANGEABILITY section 6).

Linear attention z_hat = C_VK Theta, C_VK = (1/n) sum_i v_i k_i^T, with Theta by least squares on the values at masked keys
of m sequences; keys and masked queries ~ N(0, S), v = z k + noise. The best that could be done is the posterior mean z_bar.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from bayesattn._util.checks import finite_array, positive, positive_integer
from reproductions.tokens import simulation

Matrix = Float[np.ndarray, "feature feature"]


def key_variances(condition: float) -> Float[np.ndarray, " feature"]:
    """Diagonal (1, kappa^{-1/2}, 1/kappa) of the covariance of keys, whose condition number is kappa."""
    if not (np.isfinite(condition) and condition >= 1):
        raise ValueError(f"condition must be a finite number of at least 1, got {condition}")
    return np.array([1.0, condition**-0.5, 1 / condition])


class Batch(NamedTuple):
    """Arrays of each sequence: C_VK (d_v, D), a masked query (D,), its value (d_v,), and the keys (n, D)."""

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
    keys = scale * rng.normal(size=(count, tokens, len(variances)))
    queries = scale * rng.normal(size=(count, 1, len(variances)))
    values, truth = simulation.answers(rng, keys, queries, value_features, noise, prior)
    targets = truth[:, 0] + noise * rng.normal(size=(count, value_features))
    return Batch(values.transpose(0, 2, 1) @ keys / tokens, queries[:, 0], targets, keys)


def learn(batch: Batch, ridges: Any = 0.0) -> Float[np.ndarray, "*ridge feature feature"]:
    """Theta of least sum |y - C_VK Theta q|^2 + ridge |Theta|^2, for one ridge or several; least squares at 0."""
    features = np.einsum("svf,sg->svfg", batch.covariances, batch.queries).reshape(batch.targets.size, -1)
    left, singular, right = np.linalg.svd(features, full_matrices=False)
    shrunk = singular / (singular**2 + np.asarray(ridges, float)[..., None])
    theta = (shrunk * (left.T @ batch.targets.reshape(-1))) @ right
    return theta.reshape(*np.shape(ridges), *(batch.queries.shape[1],) * 2)


class Moments(NamedTuple):
    """Second moments of a row of C_VK and of z_bar, one value coordinate; all rows are alike.

    `attention` is E c^T c for a row c of C_VK, `cross` E c^T z_bar = E c^T z, and `posterior` E z_bar^T z_bar, whose entries
    have the standard errors `posterior_error`.
    """

    attention: Matrix
    cross: Matrix
    posterior: Matrix
    posterior_error: Matrix


def moments(
    rng: np.random.Generator, tokens: int, variances: Any, noise: float, prior: float, draws: int = 20_000
) -> Moments:
    """In closed form, but the posterior's own moment, whose mean over keys is a Monte Carlo one of so many draws.

    E c^T c = tau^2 ((1 + 1/n) S^2 + tr(S) S / n) + sigma^2 S / n, E c^T z = tau^2 S,
    E z_bar^T z_bar = tau^2 I - sigma^2 E M, diagonal as the law of keys is unchanged by the sign of a coordinate.
    """
    variances = finite_array("variances", variances, ("features",))
    spread = np.diag(variances)
    attention = prior**2 * ((1 + 1 / tokens) * spread @ spread + variances.sum() * spread / tokens)
    attention += noise**2 * spread / tokens
    keys = np.sqrt(variances) * rng.normal(size=(draws, tokens, len(variances)))
    precision = keys.transpose(0, 2, 1) @ keys + (noise / prior) ** 2 * np.eye(len(variances))
    z_variance = noise**2 * np.diagonal(np.linalg.inv(precision), axis1=1, axis2=2)
    posterior, error = prior**2 - z_variance.mean(0), z_variance.std(0, ddof=1) / np.sqrt(draws)
    return Moments(attention, prior**2 * spread, np.diag(posterior), np.diag(error))


def best(known: Moments) -> Matrix:
    """Theta of the least population risk."""
    return np.linalg.solve(known.attention, known.cross)


def error_matrix(theta: Any, known: Moments) -> Float[np.ndarray, "*batch feature feature"]:
    """E e^T e for a row e of z_hat - z_bar, with these parameters (.., D, D)."""
    turned = np.swapaxes(theta, -1, -2)
    cross = turned @ known.cross
    return turned @ known.attention @ theta - cross - np.swapaxes(cross, -1, -2) + known.posterior


def pretraining_excess(theta: Any, variances: Any, known: Moments, value_features: int) -> Any:
    """E |(z_hat - z_bar) C^{1/2}|^2, the excess risk of masked prediction, C the covariance of masked queries; (..)."""
    diagonal = np.diagonal(error_matrix(theta, known), axis1=-2, axis2=-1)
    return value_features * np.sum(np.asarray(variances) * diagonal, -1)


def downstream_excess(theta: Any, readout: Any, known: Moments) -> Any:
    """E <B, z_hat - z_bar>^2, the excess risk of predicting <B, z>, for B of shape (d_v, D); shape (..).

    Given the keys, rows of z_hat - z_bar are independent and of mean zero, so it is tr(B E[e^T e] B^T).
    """
    readout = finite_array("readout", readout, ("value_features", len(known.posterior)))
    return np.einsum("vf,...fg,vg->...", readout, error_matrix(theta, known), readout)


def transfer_coefficient(readout: Any, variances: Any) -> float:
    """tr(B C^{-1} B^T): the downstream excess is at most this times the pretraining excess."""
    readout = finite_array("readout", readout, ("value_features", "features"))
    return float(np.sum(readout**2 / finite_array("variances", variances, (readout.shape[1],))))
