"""Exact posterior of the Gaussian latent-variable model (EXCHANGEABILITY section 1).

Tokens are pairs of a key and a value, v_i = z phi(k_i) + noise, with noise ~ N(0, sigma^2 I) and entries of z ~ N(0, tau^2).
Value coordinates are independent of each other and have the same posterior covariance.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from bayesattn._util.checks import Checked, finite_array, positive
from bayesattn._util.settings import with_own_settings


class LatentPosterior(NamedTuple):
    """Posterior of z: mean (d_v, d_phi), covariance (d_phi, d_phi) of each of its rows."""

    mean: Float[Array, "value feature"]
    covariance: Float[Array, "feature feature"]


class QueryPosterior(NamedTuple):
    """Posterior of z phi(q): mean (query, d_v), variance (query,) of each value coordinate, without the noise."""

    mean: Float[Array, "query value"]
    variance: Float[Array, " query"]


@with_own_settings
def latent_posterior(features: Checked, values: Checked, noise: float, prior: float) -> LatentPosterior:
    """Posterior of z given tokens: mean V^T Phi M, covariance sigma^2 M, with M = (Phi^T Phi + sigma^2/tau^2 I)^{-1}.

    Args:
        features: Phi of shape (n, d_phi).
        values: V of shape (n, d_v).
        noise: sigma.
        prior: tau.

    Raises:
        ValueError: shapes that do not fit, no tokens, a standard deviation that is not above 0.
    """
    return _latent_posterior(*_checked(features, values, noise, prior))


@jax.jit
def _latent_posterior(features: Array, values: Array, noise: Checked, prior: Checked) -> LatentPosterior:
    precision = features.T @ features + (noise / prior) ** 2 * jnp.eye(features.shape[1])
    cholesky = (jnp.linalg.cholesky(precision), True)
    return LatentPosterior(
        cho_solve(cholesky, features.T @ values).T, noise**2 * cho_solve(cholesky, jnp.eye(len(precision)))
    )


@with_own_settings
def query_posterior(
    features: Checked, values: Checked, query_features: Checked, noise: float, prior: float
) -> QueryPosterior:
    """Posterior of z phi(q) for query features (m, d_phi); other arguments and errors as for `latent_posterior`."""
    latent = latent_posterior(features, values, noise, prior)
    queries = jnp.asarray(finite_array("query_features", query_features, ("queries", latent.mean.shape[1])))
    return _at_queries(latent, queries)


@jax.jit
def _at_queries(latent: LatentPosterior, queries: Array) -> QueryPosterior:
    return QueryPosterior(queries @ latent.mean.T, jnp.einsum("qf,fg,qg->q", queries, latent.covariance, queries))


@with_own_settings
def dual_posterior(
    gram: Checked, cross: Checked, diagonal: Checked, values: Checked, noise: float, prior: float
) -> QueryPosterior:
    """`query_posterior` from kernels alone, for any number of features, even infinitely many: a Gaussian process.

    Args:
        gram: K(k_i, k_j), shape (n, n).
        cross: K(k_i, q), shape (n, m).
        diagonal: K(q, q), shape (m,).
        values: V of shape (n, d_v).
        noise: sigma.
        prior: tau.

    Raises:
        ValueError: as `latent_posterior`.
    """
    gram = jnp.asarray(finite_array("gram", gram, (len(np.asarray(values)),) * 2))
    _, values, noise, prior = _checked(gram, values, noise, prior)
    cross = jnp.asarray(finite_array("cross", cross, (len(gram), "queries")))
    diagonal = jnp.asarray(finite_array("diagonal", diagonal, (cross.shape[1],)))
    return _dual_posterior(gram, cross, diagonal, values, noise, prior)


@jax.jit
def _dual_posterior(gram, cross, diagonal, values, noise, prior) -> QueryPosterior:
    cholesky = (jnp.linalg.cholesky(gram + (noise / prior) ** 2 * jnp.eye(len(gram))), True)
    weights = cho_solve(cholesky, cross)
    return QueryPosterior(weights.T @ values, prior**2 * (diagonal - jnp.einsum("nq,nq->q", cross, weights)))


@with_own_settings
def log_evidence(gram: Checked, values: Checked, noise: float, prior: float) -> float:
    """log p(V | keys) = sum over value coordinates of log N(V_j; 0, tau^2 G + sigma^2 I); arguments as `dual_posterior`."""
    gram = jnp.asarray(finite_array("gram", gram, (len(np.asarray(values)),) * 2))
    _, values, noise, prior = _checked(gram, values, noise, prior)
    return float(_log_evidence(gram, values, noise, prior))


@jax.jit
def _log_evidence(gram, values, noise, prior):
    cholesky = jnp.linalg.cholesky(prior**2 * gram + noise**2 * jnp.eye(len(gram)))
    fit = jnp.sum(values * cho_solve((cholesky, True), values))
    size = values.shape[1] * (2 * jnp.sum(jnp.log(jnp.diag(cholesky))) + len(gram) * np.log(2 * np.pi))
    return -(fit + size) / 2


@with_own_settings
def posterior_error(mean: Checked, exact: QueryPosterior, noise: float) -> Float[Array, " query"]:
    """KL divergence of the predictive N(mean, s^2 I) from the exact one: |m - m'|^2 / (2 s^2), s^2 = variance + sigma^2."""
    return _posterior_error(jnp.asarray(mean), exact, positive("noise", noise))


@jax.jit
def _posterior_error(mean, exact: QueryPosterior, noise):
    return jnp.sum((mean - exact.mean) ** 2, -1) / (2 * (exact.variance + noise**2))


def _checked(features: Checked, values: Checked, noise: Checked, prior: Checked) -> tuple[Array, Array, float, float]:
    features = finite_array("features", features, ("tokens", "features"))
    values = finite_array("values", values, (len(features), "value_features"))
    return jnp.asarray(features), jnp.asarray(values), positive("noise", noise), positive("prior", prior)
