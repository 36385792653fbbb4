"""Kernels that depend only on q . k, for keys uniform on the unit sphere of R^d (EXCHANGEABILITY section 3).

By the Funk-Hecke formula, averaging f(k) with weight exp(kappa q . k) multiplies each spherical harmonic of degree l by
a Bessel function. Here kappa = 1 / gamma, and all functions are scaled so that a large kappa does not overflow.
"""

from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import special

from bayesattn._util.checks import Checked, finite_array, positive, positive_integer
from bayesattn.errors import BayesattnError

LEAST_EIGENVALUE = 1e-30
"""Eigenvalues up to this size are left out."""


def bessel_ratio(degree: Checked, inverse_bandwidth: float, dimension: int) -> Any:
    """a_l(kappa) = I_{l+d/2-1}(kappa) / I_{d/2-1}(kappa): the factor of a harmonic of degree l after softmax smoothing.

    A number for one degree, an array for several.

    In three dimensions a_1 is Langevin's function coth(kappa) - 1 / kappa:

    >>> round(float(bessel_ratio(1, 2.0, 3)), 6), round(float(1 / np.tanh(2.0) - 1 / 2.0), 6)
    (0.537315, 0.537315)
    """
    kappa, order = _checked(inverse_bandwidth, dimension)
    return special.ive(np.asarray(degree) + order, kappa) / _scaled_bessel(order, kappa, dimension)


def log_partition(inverse_bandwidth: float, dimension: int) -> float:
    """log Z(kappa) = log E exp(kappa q . k) = log [Gamma(d/2) (2/kappa)^{d/2-1} I_{d/2-1}(kappa)]."""
    kappa, order = _checked(inverse_bandwidth, dimension)
    return float(
        special.gammaln(dimension / 2)
        + order * np.log(2 / kappa)
        + np.log(_scaled_bessel(order, kappa, dimension))
        + kappa
    )


def noise_factor(inverse_bandwidth: float, dimension: int) -> float:
    """Z(2 kappa) / Z(kappa)^2: n times the sum of squared softmax weights, for many tokens."""
    return float(
        np.exp(log_partition(2 * inverse_bandwidth, dimension) - 2 * log_partition(inverse_bandwidth, dimension))
    )


def eigenvalues(inverse_bandwidth: float, dimension: int) -> tuple[Float[np.ndarray, " degree"], np.ndarray]:
    """Eigenvalues Z(kappa) a_l(kappa) of the exponential kernel's covariance C, l = 0, 1, .., and multiplicities."""
    kappa, _ = _checked(inverse_bandwidth, dimension)
    degrees = np.arange(int(20 + 4 * kappa))
    values = np.exp(log_partition(kappa, dimension)) * bessel_ratio(degrees, kappa, dimension)
    kept = values > LEAST_EIGENVALUE
    if not np.isfinite(values).all():
        raise BayesattnError(f"inverse_bandwidth must leave eigenvalues within float64, got {kappa:g}")
    return values[kept], harmonics(degrees[kept], dimension)


def harmonics(degree: Checked, dimension: int) -> np.ndarray:
    """Number of linearly independent spherical harmonics of a degree on the sphere of R^d.

    >>> harmonics([0, 1, 2, 3], 3)
    array([1, 3, 5, 7])
    """
    degree = np.asarray(degree)
    lower = np.where(degree >= 2, special.comb(degree + dimension - 3, dimension - 1), 0)
    return np.round(special.comb(degree + dimension - 1, dimension - 1) - lower).astype(int)


def effective_dimension(spectrum: Checked, level: float, multiplicities: Checked = 1) -> float:
    """N(e) = tr(C (C + e)^{-1}) for the eigenvalues of C.

    Raises:
        ValueError: eigenvalues that are not finite, a level that is not above 0.
    """
    spectrum = finite_array("spectrum", spectrum, ("eigenvalues",))
    return float(np.sum(multiplicities * spectrum / (spectrum + positive("level", level))))


def uniform(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Points drawn uniformly from the unit sphere, with coordinates on the last axis."""
    points = rng.normal(size=shape)
    return points / np.linalg.norm(points, axis=-1, keepdims=True)


def _scaled_bessel(order: float, kappa: float, dimension: int) -> float:
    """e^(-kappa) I_order(kappa); raises ValueError if it underflows to 0."""
    value = float(special.ive(order, kappa))
    if value == 0:
        raise BayesattnError(f"inverse_bandwidth must not be so small in {dimension} dimensions, got {kappa:g}")
    return value


def _checked(inverse_bandwidth: Checked, dimension: Checked) -> tuple[float, float]:
    kappa = positive("inverse_bandwidth", inverse_bandwidth)
    return kappa, positive_integer("dimension", dimension, minimum=2) / 2 - 1
