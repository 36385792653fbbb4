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
from jaxtyping import Bool, Float
from scipy import special, stats

from bayesattn._util.text import with_error
from bayesattn.architecture import Architecture
from bayesattn.questions.singular.law import attention_law

FEWEST = 4
"""Fewest temperatures that determine the limit."""
LEAST_FIT = 0.05
"""Least p-value of chi squared at which values fit."""
PROBABILITY = 0.95
"""Probability of intervals."""
NEAREST, FARTHEST = 1.0, 25.0
"""Least and largest log(1/T) - c at the warmest temperature used."""
SHIFTS = 50
POWERS = (0.125, 0.25, 0.375, 0.5, 0.75, 1.0)
"""Powers p of T in the next term."""
ORDERS = (0, 1, 2, 3)
"""Powers k of log(1/T) - c in the next term."""
TERM_ERROR, ITERATIONS = 0.2, 4
"""Relative error of the next term, for further terms and powers of log T; the term's size is found by iteration."""
LEAST_ERROR = 1e-5
"""Least relative error of a value: for wide networks some values are known to 1e-7, but further terms are larger."""
POINTS, GRID, NEGLIGIBLE = 25, 500, 1e-4
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
        which = "temperatures" if known.all() else f"of {len(known)} temperatures with a Monte Carlo error"
        return _untold(f"{known.sum()} {which} are too few, at least {FEWEST} are needed")
    logs, values = np.log(1 / temperatures[known]), values[known]
    errors = np.hypot(errors[known], LEAST_ERROR * np.abs(values))
    multiplicities = np.arange(1, largest + 1)
    for first in range(len(logs) - FEWEST + 1):
        chosen = slice(first, None)
        result = _Fit.of(logs[chosen], values[chosen], errors[chosen], multiplicities)
        if result.p_value >= LEAST_FIT:
            return result.limit(len(logs) - first)
    return _untold(f"no {FEWEST} of the coldest temperatures fit the law")


def _untold(reason: str) -> Limit:
    return Limit(UNDETERMINED, UNDETERMINED, 0, f"cannot tell: {reason}")


class _NextTerm(NamedTuple):
    """Fit of lambda and b for one p and k, each theta and each c: normal, with chi squared and the log of its weight."""

    mean: Float[np.ndarray, "multiplicity shift"]
    sd: Float[np.ndarray, "multiplicity shift"]
    misfit: Float[np.ndarray, "multiplicity shift"]
    log_weight: Float[np.ndarray, "multiplicity shift"]

    @classmethod
    def of(
        cls,
        term: Float[np.ndarray, "shift temperature"],
        values: Float[np.ndarray, "multiplicity shift temperature"],
        errors: Float[np.ndarray, " temperature"],
    ) -> "_NextTerm":
        """Fit by weighted least squares; the term has relative error `TERM_ERROR`, and its size is found by iteration."""
        size = np.zeros(values.shape[:-1])
        for _ in range(ITERATIONS):
            variances = errors**2 + (TERM_ERROR * size[..., None] * term) ** 2
            sums = [np.sum(term**order / variances, -1) for order in range(3)]
            sums[2] = sums[2] + LARGEST_TERM**-2
            pulled = [np.sum(term**order * values / variances, -1) for order in range(2)]
            determinant = sums[0] * sums[2] - sums[1] ** 2
            mean = (sums[2] * pulled[0] - sums[1] * pulled[1]) / determinant
            size = (sums[0] * pulled[1] - sums[1] * pulled[0]) / determinant
        residual = values - mean[..., None] - size[..., None] * term
        misfit = np.sum(residual**2 / variances, -1) + (size / LARGEST_TERM) ** 2
        log_weight = -(misfit + np.log(determinant) + np.sum(np.log(variances), -1)) / 2
        return cls(mean, np.sqrt(sums[2] / determinant), misfit, log_weight)

    def where(self, decreases: Bool[np.ndarray, " shift"]) -> "_NextTerm":
        """Fits in which the next term decreases with T throughout; all others get no weight."""
        return self._replace(
            misfit=np.where(decreases, self.misfit, np.inf), log_weight=np.where(decreases, self.log_weight, -np.inf)
        )


class _Fit(NamedTuple):
    """Posterior of lambda for each theta, c and next term: normal, with weights."""

    weights: Float[np.ndarray, "multiplicity shift term"]
    means: Float[np.ndarray, "multiplicity shift term"]
    sds: Float[np.ndarray, "multiplicity shift term"]
    multiplicities: Float[np.ndarray, " multiplicity"]
    p_value: float

    @classmethod
    def of(
        cls,
        logs: Float[np.ndarray, " temperature"],
        values: Float[np.ndarray, " temperature"],
        errors: Float[np.ndarray, " temperature"],
        multiplicities: Float[np.ndarray, " multiplicity"],
    ) -> "_Fit":
        """Posterior, in closed form for lambda and b, and by quadrature over theta, c, p and k."""
        distances = np.linspace(NEAREST, FARTHEST, SHIFTS)[:, None]
        colder = logs - logs[0]
        below = (multiplicities[:, None, None] - 1) / (distances + colder)
        fits = [
            _NextTerm.of(np.exp(-power * colder) * (1 + colder / distances) ** order, values + below, errors).where(
                power * distances[:, 0] >= order
            )
            for power in POWERS
            for order in ORDERS
        ]
        log_rarity = np.log(multiplicities[:, None, None])
        # Two parameters are fitted, lambda and b; theta, c, p and k hardly reduce the degrees of freedom.
        freedom = max(1, len(logs) - 2)
        return cls(
            special.softmax(np.stack([fit.log_weight for fit in fits], -1) - log_rarity),
            np.stack([fit.mean for fit in fits], -1),
            np.stack([fit.sd for fit in fits], -1),
            multiplicities,
            float(stats.chi2.sf(min(fit.misfit.min() for fit in fits), freedom)),
        )

    def densest(self) -> tuple[float, float]:
        """Ends of the region of highest density of lambda that has probability `PROBABILITY`."""
        matters = self.weights > NEGLIGIBLE * self.weights.max()
        weights, means, sds = (
            np.broadcast_to(each, self.weights.shape)[matters] for each in (self.weights, self.means, self.sds)
        )
        # The grid is fine where normal densities are narrow or numerous.
        points = means + sds * np.linspace(-4, 4, POINTS)[:, None]
        grid = np.unique(np.quantile(points, np.linspace(0, 1, GRID)))
        density = stats.norm.pdf(grid[:, None], means, sds) @ weights
        mass = density * np.gradient(grid)
        order = np.argsort(-density)
        inside = grid[order[: int(np.searchsorted(np.cumsum(mass[order]), PROBABILITY * mass.sum())) + 1]]
        return float(inside.min()), float(inside.max())

    def limit(self, used: int) -> Limit:
        """Mean, standard error and intervals of lambda; most probable theta."""
        mean = float(np.sum(self.weights * self.means))
        error = float(np.sqrt(np.sum(self.weights * (self.sds**2 + (self.means - mean) ** 2))))
        low, high = self.densest()
        shares = self.weights.sum((1, 2))
        order = np.argsort(-shares)
        likeliest = float(self.multiplicities[order[0]])
        spread = float(np.sqrt(shares @ (self.multiplicities - likeliest) ** 2))
        kept = self.multiplicities[order[: int(np.searchsorted(np.cumsum(shares[order]), PROBABILITY)) + 1]]
        multiplicity = Interval(likeliest, spread, float(kept.min()), float(kept.max()))
        ends = f"{multiplicity.low:.0f}" + (f" to {multiplicity.high:.0f}" if len(kept) > 1 else "")
        statement = (
            f"lambda = {with_error(mean, error)}, {PROBABILITY:.0%} from {low:.3g} to {high:.3g}; multiplicity {ends};"
            f" of the {used} coldest temperatures"
        )
        return Limit(Interval(mean, error, low, high), multiplicity, used, statement)
