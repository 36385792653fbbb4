"""Laws of the errors of attention against the number of tokens (EXCHANGEABILITY section 3).

All are mean squared errors summed over value coordinates; the model is that of `bayesattn.exchangeable.posterior`. Laws of
softmax attention hold for keys uniform on the sphere of R^d and f(k) = z k, averaged over z; they were derived for this
project.
"""

from typing import Any

import numpy as np

from bayesattn._checks import finite_array, positive, positive_integer
from bayesattn.exchangeable.sphere import bessel_ratio, noise_factor


def cme_error(features: Any, query: Any, latent: Any, ridge: float, noise: float) -> float:
    """E |V^T Phi M phi - z phi|^2 over the noise, for one z: lambda^2 |z M phi|^2 + d_v sigma^2 phi^T M Phi^T Phi M phi.

    Args:
        features: Phi of shape (n, d_phi).
        query: phi of shape (d_phi,).
        latent: z of shape (d_v, d_phi).
        ridge: lambda, above 0.
        noise: sigma.

    Raises:
        ValueError: shapes that do not fit, a ridge or noise that is not above 0.
    """
    smoothed, variance = _solved(features, query, ridge)
    latent = finite_array("latent", latent, ("value_features", len(smoothed)))
    return float(ridge**2 * np.sum((latent @ smoothed) ** 2) + len(latent) * positive("noise", noise) ** 2 * variance)


def mean_cme_error(features: Any, query: Any, ridge: float, noise: float, prior: float, value_features: int) -> float:
    """The same averaged over z, with entries N(0, tau^2); at ridge sigma^2/tau^2 it is d_v sigma^2 phi^T M phi."""
    smoothed, variance = _solved(features, query, ridge)
    bias = (ridge * positive("prior", prior)) ** 2 * np.sum(smoothed**2)
    return float(positive_integer("value_features", value_features) * (bias + positive("noise", noise) ** 2 * variance))


def isotropic_cme_error(
    tokens: float, dimension: int, ridge: float, noise: float, prior: float, value_features: int
) -> float:
    """Its limit for many keys uniform on the sphere of R^d and phi(k) = k, where Phi^T Phi is n / d times the identity."""
    information = positive("tokens", tokens) / positive_integer("dimension", dimension)
    noise, prior = positive("noise", noise), positive("prior", prior)
    shrinkage = 1 / (information + positive("ridge", ridge)) ** 2
    return value_features * shrinkage * ((ridge * prior) ** 2 + noise**2 * information)


def softmax_bias(inverse_bandwidth: float, dimension: int, prior: float, value_features: int) -> float:
    """|S f - f|^2 averaged over z: softmax attention converges to S f = a_1 f, off by (1 - a_1)^2 d_v tau^2."""
    return float((1 - bessel_ratio(1, inverse_bandwidth, dimension)) ** 2 * value_features * prior**2)


def softmax_variance(
    inverse_bandwidth: float, dimension: int, noise: float, prior: float, value_features: int
) -> float:
    """n times the mean squared error about S f, for many tokens.

    E[w^2 (|f - m|^2 + d_v sigma^2)] / (E w)^2 with w = exp(kappa q.k) and m = S f(q).

    In closed form: Z(2 kappa) / Z(kappa)^2 d_v [sigma^2 + tau^2 (1 - 2 a_1(kappa) a_1(2 kappa) + a_1(kappa)^2)].
    """
    kept = bessel_ratio(1, inverse_bandwidth, dimension)
    spread = 1 - 2 * kept * bessel_ratio(1, 2 * inverse_bandwidth, dimension) + kept**2
    return float(noise_factor(inverse_bandwidth, dimension) * value_features * (noise**2 + prior**2 * spread))


def shrinking_bandwidth(tokens: float, dimension: int, constant: float = 1.0) -> float:
    """gamma_n = c n^{-2/(p+4)} with p = d - 1: the bandwidth at which bias and variance shrink together."""
    return positive("constant", constant) * positive("tokens", tokens) ** (-2 / (dimension + 3))


def softmax_error(
    tokens: float, bandwidth: float, dimension: int, noise: float, prior: float, value_features: int
) -> float:
    """Mean squared error about f itself to order 1/n: bias, variance, and the bias of a ratio of means.

    The latter is -Z(2 kappa) / Z(kappa)^2 (a_1(2 kappa) - a_1(kappa)) z q / n, and acts through
    its product with that of S f.
    """
    kappa, rest = 1 / positive("bandwidth", bandwidth), (prior, value_features)
    kept, twice = (float(bessel_ratio(1, factor * kappa, dimension)) for factor in (1, 2))
    ratio = 2 * (1 - kept) * (twice - kept) * noise_factor(kappa, dimension) * value_features * prior**2
    return softmax_bias(kappa, dimension, *rest) + (softmax_variance(kappa, dimension, noise, *rest) + ratio) / tokens


def _solved(features: Any, query: Any, ridge: float) -> tuple[np.ndarray, float]:
    """M phi, and phi^T M Phi^T Phi M phi."""
    features = finite_array("features", features, ("tokens", "features"))
    query = finite_array("query", query, (features.shape[1],))
    smoothed = np.linalg.solve(features.T @ features + positive("ridge", ridge) * np.eye(len(query)), query)
    return smoothed, float(np.sum((features @ smoothed) ** 2))
