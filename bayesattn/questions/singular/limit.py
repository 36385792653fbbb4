"""Limit of the learning coefficient at small T, and its multiplicity, from values at several temperatures.

A posterior with learning coefficient lambda of multiplicity theta has Z(T) ~ T^lambda (log(1/T) - c)^(theta - 1), so

    lambda_hat(T) = lambda - (theta - 1) / (log(1/T) - c) - b T^p (log(1/T) - c)^k + ..

(Watanabe 2009), where the powers p are the distances of further poles of the zeta function, and k depends on how much larger
their multiplicities are. With theta > 1 the approach is slow, and c, the logarithm of a scale of the loss, matters at every
T. So theta, c, b, p and k are not fitted but averaged over. A priori, theta has a probability in proportion to 1 / theta, up
to `largest_multiplicity`; log(1/T) - c is uniform from 1 to 25 at the warmest temperature used; p is one of `POWERS` and k
of `ORDERS`; and the term with b is normal at the warmest temperature used, with a standard deviation of 1/2. At each
temperature, the term with b has an error of 20 % of its size, which allows for the terms after it. The fit uses the longest
series of temperatures that ends at the coldest, has at least `FEWEST`, and fits. The rule is ours.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import special, stats

from bayesattn._util.text import with_error
from bayesattn.architecture import Architecture
from bayesattn.questions.singular.law import attention_law

FEWEST = 4
"""Fewest temperatures that determine the limit."""
SMALLEST_P_VALUE = 0.05
"""Smallest p-value of chi squared at which values fit."""
PROBABILITY = 0.95
"""Probability of intervals."""
NEAREST, FARTHEST = 1.0, 25.0
"""Smallest and largest log(1/T) - c at the warmest temperature used."""
SHIFTS = 50
"""Points of the quadrature over log(1/T) - c."""
POWERS = (0.125, 0.25, 0.375, 0.5, 0.75, 1.0)
"""Powers p of T in the next term."""
ORDERS = (0, 1, 2, 3)
"""Powers k of log(1/T) - c in the next term."""
TERM_ERROR, ITERATIONS = 0.2, 4
"""Relative error of the next term, for further terms and powers of log T; the term's size is found by iteration."""
SMALLEST_ERROR = 1e-5
"""Smallest relative error of a value: for wide networks some values are known to 1e-7, but further terms are larger."""
POINTS, GRID = 25, 500
"""Points across each normal density of lambda, and points of the grid on which their mixture is evaluated."""
NEGLIGIBLE = 1e-4
"""Weight relative to the largest below which a density of the mixture is left out."""
LARGEST_TERM = 0.5
"""Prior standard deviation of the next term at the warmest temperature used."""


class Interval(NamedTuple):
    """Estimate, its standard error, and the ends of its 95 % interval; NaN if the series cannot tell."""

    value: float
    error: float
    low: float
    high: float


UNDETERMINED = Interval(*[float("nan")] * 4)


class Limit(NamedTuple):
    """Limit of small T: the coefficient lambda, its multiplicity theta, how many temperatures were used, and a sentence."""

    coefficient: Interval
    multiplicity: Interval
    used: int
    statement: str


def largest_multiplicity(arch: Architecture, features: int) -> int:
    """Largest theta considered: of any product of L + 2 matrices (Aoyagi 2024), or of this network with labels 0."""
    product = (arch.depth + 2) ** 2 // 4 + 1
    return product if any(arch.skips) else max(product, attention_law(arch, features).multiplicity)


def fitted(
    temperatures: Float[np.ndarray, " temperature"],
    values: Float[np.ndarray, " temperature"],
    errors: Float[np.ndarray, " temperature"],
    largest: int,
) -> Limit:
    """Fit to values at temperatures, warmest first, with theta from 1 to `largest`; values without an error are left out."""
    known = np.isfinite(errors) & (errors > 0)
    if known.sum() < FEWEST:
        which = "temperatures" if known.all() else f"usable temperatures of {len(known)}"
        return _undetermined(f"{known.sum()} {which} are too few, at least {FEWEST} are needed")
    logs, values = np.log(1 / temperatures[known]), values[known]
    errors = np.hypot(errors[known], SMALLEST_ERROR * np.abs(values))
    multiplicities = np.arange(1, largest + 1)
    for first in range(len(logs) - FEWEST + 1):
        chosen = slice(first, None)
        result = _Posterior.of_values(logs[chosen], values[chosen], errors[chosen], multiplicities)
        if result.p_value >= SMALLEST_P_VALUE:
            used = len(logs) - first
            return result.limit(used, "" if known[-used:].all() else " that are usable")
    return _undetermined(f"no {FEWEST} of the coldest temperatures fit the law")


def _undetermined(reason: str) -> Limit:
    return Limit(UNDETERMINED, UNDETERMINED, 0, f"cannot tell: {reason}")


class _WeightedLine(NamedTuple):
    """Weighted least squares of intercept + slope x, with a normal prior of the slope; one fit for each leading index."""

    intercept: np.ndarray
    slope: np.ndarray
    intercept_sd: np.ndarray
    determinant: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> "_WeightedLine":
        """Fit along the last axis: the normal equations are [[w, wx], [wx, wxx]] (intercept, slope) = (wy, wxy)."""
        w, wx, wxx = weights.sum(-1), np.sum(weights * x, -1), np.sum(weights * x**2, -1) + LARGEST_TERM**-2
        wy, wxy = np.sum(weights * y, -1), np.sum(weights * x * y, -1)
        determinant = w * wxx - wx**2
        intercept, slope = (wxx * wy - wx * wxy) / determinant, (w * wxy - wx * wy) / determinant
        return cls(intercept, slope, np.sqrt(wxx / determinant), determinant)


class _Posterior(NamedTuple):
    """Posterior of lambda for each theta, c, p and k: normal, with weights."""

    weights: Float[np.ndarray, "multiplicity shift power order"]
    means: Float[np.ndarray, "multiplicity shift power order"]
    sds: Float[np.ndarray, "multiplicity shift power order"]
    multiplicities: Float[np.ndarray, " multiplicity"]
    p_value: float

    @classmethod
    def of_values(
        cls,
        logs: Float[np.ndarray, " temperature"],
        values: Float[np.ndarray, " temperature"],
        errors: Float[np.ndarray, " temperature"],
        multiplicities: Float[np.ndarray, " multiplicity"],
    ) -> "_Posterior":
        """Posterior, in closed form for lambda and b, and by quadrature over theta, c, p and k.

        lambda and b come from weighted least squares, in which the next term has the relative error `TERM_ERROR`. Its size
        is found by iteration.
        """
        # Axes: theta, log(1/T) - c at the warmest temperature, p, k, temperature.
        theta = multiplicities[:, None, None, None, None]
        distance = np.linspace(NEAREST, FARTHEST, SHIFTS)[:, None, None, None]
        power, order = np.array(POWERS)[:, None, None], np.array(ORDERS)[:, None]
        colder = logs - logs[0]
        term = np.exp(-power * colder) * (1 + colder / distance) ** order
        values = values + (theta - 1) / (distance + colder)
        amplitude = np.zeros((len(multiplicities), *term.shape[:-1]))
        for _ in range(ITERATIONS):
            variances = errors**2 + (TERM_ERROR * amplitude[..., None] * term) ** 2
            fit = _WeightedLine.of(term, values, 1 / variances)
            amplitude = fit.slope
        residual = values - fit.intercept[..., None] - amplitude[..., None] * term
        misfit = np.sum(residual**2 / variances, -1) + (amplitude / LARGEST_TERM) ** 2
        log_weight = -(misfit + np.log(fit.determinant) + np.sum(np.log(variances), -1)) / 2 - np.log(theta[..., 0])
        decreases = (power * distance >= order)[..., 0]  # The next term falls with T throughout; others have no weight.
        # Two parameters are fitted, lambda and b; theta, c, p and k hardly reduce the degrees of freedom.
        freedom = max(1, len(logs) - 2)
        return cls(
            special.softmax(np.where(decreases, log_weight, -np.inf)),
            fit.intercept,
            fit.intercept_sd,
            multiplicities,
            float(stats.chi2.sf(np.min(np.where(decreases, misfit, np.inf)), freedom)),
        )

    def highest_density_ends(self) -> tuple[float, float]:
        """Ends of the region of highest density of lambda that has probability `PROBABILITY`."""
        matters = self.weights > NEGLIGIBLE * self.weights.max()
        weights, means, sds = (each[matters] for each in (self.weights, self.means, self.sds))
        # The grid is fine where normal densities are narrow or numerous.
        points = means + sds * np.linspace(-4, 4, POINTS)[:, None]
        grid = np.unique(np.quantile(points, np.linspace(0, 1, GRID)))
        density = stats.norm.pdf(grid[:, None], means, sds) @ weights
        mass = density * np.gradient(grid)
        order = np.argsort(-density)
        inside = grid[order[: int(np.searchsorted(np.cumsum(mass[order]), PROBABILITY * mass.sum())) + 1]]
        return float(inside.min()), float(inside.max())

    def limit(self, used: int, which: str) -> Limit:
        """Mean, standard error and intervals of lambda; most probable theta; `which` says more of the temperatures used."""
        mean = float(np.sum(self.weights * self.means))
        error = float(np.sqrt(np.sum(self.weights * (self.sds**2 + (self.means - mean) ** 2))))
        low, high = self.highest_density_ends()
        shares = self.weights.sum((1, 2, 3))
        order = np.argsort(-shares)
        likeliest = float(self.multiplicities[order[0]])
        spread = float(np.sqrt(shares @ (self.multiplicities - likeliest) ** 2))
        kept = self.multiplicities[order[: int(np.searchsorted(np.cumsum(shares[order]), PROBABILITY)) + 1]]
        multiplicity = Interval(likeliest, spread, float(kept.min()), float(kept.max()))
        ends = f"{multiplicity.low:.0f}" + (f" to {multiplicity.high:.0f}" if len(kept) > 1 else "")
        statement = (
            f"lambda = {with_error(mean, error)}, {100 * PROBABILITY:.0f} % from {low:.3g} to {high:.3g};"
            f" multiplicity {ends}; from the {used} coldest temperatures{which}"
        )
        return Limit(Interval(mean, error, low, high), multiplicity, used, statement)
