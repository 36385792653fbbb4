"""Errors of attention as functions of the number of tokens (EXCHANGEABILITY section 3).

All are mean squared errors summed over value coordinates; the model is that of
`bayesattn.questions.exchangeable.posterior`. The formulas for softmax attention hold for keys uniform on the sphere of R^d
and f(k) = z k, averaged over z; they were derived for this project.
"""

import numpy as np
from scipy import special

from bayesattn._util.checks import Checked, finite_array, positive, positive_integer
from bayesattn.questions.exchangeable.sphere import bessel_ratio, noise_factor

QUADRATURE_NODES, LOG_TIME_STEP = 400, 0.1
"""Number of nodes of the quadrature over q . k, and step of the quadrature over log t, in `finite_softmax_error`."""


def cme_error(features: Checked, query: Checked, latent: Checked, ridge: float, noise: float) -> float:
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


def mean_cme_error(
    features: Checked, query: Checked, ridge: float, noise: float, prior: float, value_features: int
) -> float:
    """`cme_error` averaged over z with entries N(0, tau^2); at ridge sigma^2/tau^2 it is d_v sigma^2 phi^T M phi."""
    smoothed, variance = _solved(features, query, ridge)
    bias = (ridge * positive("prior", prior)) ** 2 * np.sum(smoothed**2)
    return float(positive_integer("value_features", value_features) * (bias + positive("noise", noise) ** 2 * variance))


def isotropic_cme_error(
    tokens: float, dimension: int, ridge: float, noise: float, prior: float, value_features: int
) -> float:
    """`mean_cme_error` for keys uniform on the sphere of R^d and phi(k) = k, up to terms of relative order 1/n^2.

    With a = n/d + lambda and v = n (d - 1) / d^2, the mean square of Phi^T Phi - n/d, averages over keys are E M = 1/a
    + v/a^3 and E M^2 = 1/a^2 + 3 v/a^4 (derived here), and the error is d_v [sigma^2 E M + (lambda^2 tau^2 - lambda
    sigma^2) E M^2].
    """
    tokens, dimension = positive("tokens", tokens), positive_integer("dimension", dimension)
    ridge, noise, prior = positive("ridge", ridge), positive("noise", noise), positive("prior", prior)
    total, spread = tokens / dimension + ridge, tokens * (dimension - 1) / dimension**2
    inverse, square = 1 / total + spread / total**3, 1 / total**2 + 3 * spread / total**4
    return value_features * (noise**2 * inverse + (ridge**2 * prior**2 - ridge * noise**2) * square)


def spectral_cme_error(
    tokens: float,
    ridge: float,
    spectrum: Checked,
    multiplicities: Checked,
    noise: float,
    prior: float,
    value_features: int,
) -> tuple[float, float]:
    """Error of CME attention with a kernel of eigenvalues c_l, keys uniform on the sphere, up to relative order 1/n^2.

    With a_l = n c_l + lambda, and E[D X D]_l = n c_l (tr(C X) - c_l x_l) for D = Phi^T Phi - n C and X diagonal, E tr(C
    M) = sum c/a + sum c/a^2 E[D A^-1 D], and likewise for M C M.

    Args:
        tokens: n.
        ridge: lambda.
        spectrum: c_l for l = 0, 1, ..
        multiplicities: how often each eigenvalue occurs.
        noise: sigma.
        prior: tau, of f(k) = z k, which lies in the eigenspace of l = 1.
        value_features: d_v.

    Returns:
        The posterior variance d_v sigma^2 E phi^T M phi of the Gaussian process with this kernel (if lambda is sigma^2
        over its variance), and the mean squared error if the truth is z k.
    """
    eigenvalues, counts = np.asarray(spectrum, float), np.asarray(multiplicities)
    ridge, tokens = positive("ridge", ridge), positive("tokens", tokens)
    total = tokens * eigenvalues + ridge

    def fluctuation(diagonal: np.ndarray) -> np.ndarray:
        trace = np.sum(counts * eigenvalues * diagonal)
        return tokens * eigenvalues * (trace - eigenvalues * diagonal)

    around = fluctuation(1 / total)
    inverse = 1 / total + around / total**2
    twice = (
        eigenvalues / total**2 + 2 * around * eigenvalues / total**3 + fluctuation(eigenvalues / total**2) / total**2
    )
    trace, square = np.sum(counts * eigenvalues * inverse), np.sum(counts * twice)
    bias = (ridge * positive("prior", prior)) ** 2 * twice[1] / eigenvalues[1]
    variance = positive("noise", noise) ** 2
    return float(value_features * variance * trace), float(
        value_features * (bias + variance * (trace - ridge * square))
    )


def softmax_bias(inverse_bandwidth: float, dimension: int, prior: float, value_features: int) -> float:
    """Mean of |S f - f|^2 over z, (1 - a_1)^2 d_v tau^2: softmax attention converges to S f = a_1 f, not to f."""
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

    The bias of the ratio is -Z(2 kappa) / Z(kappa)^2 (a_1(2 kappa) - a_1(kappa)) z q / n; it enters through its product
    with the bias of S f.
    """
    kappa, rest = 1 / positive("bandwidth", bandwidth), (prior, value_features)
    kept, twice = (float(bessel_ratio(1, factor * kappa, dimension)) for factor in (1, 2))
    ratio = 2 * (1 - kept) * (twice - kept) * noise_factor(kappa, dimension) * value_features * prior**2
    return softmax_bias(kappa, dimension, *rest) + (softmax_variance(kappa, dimension, noise, *rest) + ratio) / tokens


def finite_softmax_error(
    tokens: int,
    bandwidth: float,
    dimension: int,
    noise: float,
    prior: float,
    value_features: int,
    kept: float = 1.0,
    sink: bool = False,
) -> float:
    """Exact mean squared error of softmax attention about `kept` times f, for any number of tokens (derived here).

    With weights u = exp(kappa q.k) / Z(kappa), 1/(sum u)^2 = int t exp(-t sum u) dt turns all averages over tokens into
    products. With L = E exp(-t u) and x = u (k - kept q),

        E sum u^2 / (sum u)^2 = int t n E[u^2 exp(-t u)] L^(n-1) dt,
        E |sum x|^2 / (sum u)^2 = int t {n E[|x|^2 exp(-t u)] L^(n-1) + n (n-1) |E[x exp(-t u)]|^2 L^(n-2)} dt,

    and the error is d_v times (sigma^2 times the first plus tau^2 times the second). Averages over a token are
    integrals over q.k.

    Args:
        tokens: n.
        bandwidth: gamma = 1 / kappa.
        dimension: d.
        noise: sigma.
        prior: tau.
        value_features: d_v.
        kept: 1 for the error about f, a_1(kappa) for the error about the limit of attention.
        sink: whether there is one more token with logit 0 and value 0, like the asking token of a head.

    Raises:
        ValueError: fewer than one token, a bandwidth, noise or prior that is not above 0.
    """
    tokens, kappa = positive_integer("tokens", tokens), 1 / positive("bandwidth", bandwidth)
    noise, prior = positive("noise", noise), positive("prior", prior)
    order = (positive_integer("dimension", dimension, minimum=2) - 3) / 2
    cosine, mass = special.roots_jacobi(QUADRATURE_NODES, order, order)
    mass /= mass.sum()
    scale = mass @ np.exp(kappa * (cosine - 1))
    weight, extra = np.exp(kappa * (cosine - 1)) / scale, np.exp(-kappa) / scale if sink else 0.0
    # Up to a time at which even the least weight is damped.
    log_time = np.arange(-25.0, 5 - np.log(weight.min()), LOG_TIME_STEP)
    time = np.exp(log_time) / tokens
    damped = -np.expm1(-np.outer(time, weight))
    log_left = np.log1p(-np.minimum(damped @ mass, np.nextafter(1, 0)))
    power = lambda fewer: np.exp((tokens - fewer) * log_left)  # noqa: E731
    average = lambda function: ((1 - damped) * function) @ mass  # noqa: E731
    along = average(weight * (cosine - kept))
    spread = average(weight**2 * (1 - 2 * kept * cosine + kept**2))
    off = tokens * spread * power(1) + tokens * (tokens - 1) * along**2 * power(2)
    off += -2 * kept * extra * tokens * along * power(1) + (kept * extra) ** 2 * power(0)
    noisy = tokens * average(weight**2) * power(1)
    return float(
        value_features * LOG_TIME_STEP * (time**2 * np.exp(-time * extra)) @ (noise**2 * noisy + prior**2 * off)
    )


def _solved(features: Checked, query: Checked, ridge: float) -> tuple[np.ndarray, float]:
    """M phi, and phi^T M Phi^T Phi M phi."""
    features = finite_array("features", features, ("tokens", "features"))
    query = finite_array("query", query, (features.shape[1],))
    smoothed = np.linalg.solve(features.T @ features + positive("ridge", ridge) * np.eye(len(query)), query)
    return smoothed, float(np.sum((features @ smoothed) ** 2))
