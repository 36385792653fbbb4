"""Early stopping of sampling: at a target effective sample size, or at a time limit."""

import math
import threading
import time
import warnings
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from bayesattn._util.checks import positive
from bayesattn._util.plain_values import PlainMapping
from bayesattn.errors import BayesattnError
from bayesattn.models import CENTRAL
from bayesattn.models.hyperpriors import VECTORS
from bayesattn.samplers.job import Job

DRAWS_AT_FIRST_CHECK, GROWTH_BETWEEN_CHECKS = 100, 1.25
"""Draws of each chain at the first check, and their growth factor from check to check.

The counts at which checks take place do not depend on the speed of the machine.
"""
LARGEST_RHAT, FEWEST_EFFECTIVE_DRAWS, MOST_JUDGED_ENTRIES = 1.05, 50, 50
"""Largest R-hat and least effective sample size of all chains together that pass without a warning, and entries judged."""
FEWEST_ROUND_TRIPS = 10
"""Least number of round trips of each chain at which tempered draws say how much weight each mode has."""
FEWEST_DRAWS_FOR_ESS = 4
"""Smallest number of draws of each chain for which an effective sample size is defined."""


class Goal:
    """Goal at which sampling stops; all draws, if there is neither a target nor a limit.

    Args:
        job: the sampling settings; its `draws` are the largest number of draws.
        target_ess: effective sample size, of the bulk and of the tails, of every entry of U (or of the latent).
        max_seconds: time from now on, after which no further block is begun.

    Raises:
        ValueError: a target or limit that is not above 0, a target for draws of weights alone.
    """

    def __init__(self, job: Job, target_ess: float | None = None, max_seconds: float | None = None):
        self.job = job
        self.target = None if target_ess is None else positive("target_ess", target_ess)
        self.limit = None if max_seconds is None else positive("max_seconds", max_seconds)
        if self.target is not None and not set(CENTRAL) & set(job.keep):
            raise BayesattnError(f"target_ess needs draws of U, keep = {', '.join(CENTRAL)}, got {', '.join(job.keep)}")
        self.began, self.lock = time.monotonic(), threading.Lock()
        self.look, self.reached, self.over = DRAWS_AT_FIRST_CHECK, None, False
        self.values: Callable[[int], np.ndarray] = lambda count: np.empty((0, 0, 0))

    def enough(self, drawn: int) -> bool:
        """Whether to stop when every chain has `drawn` draws; `values(count)` returns entries of the first `count` draws."""
        if self.limit is not None and time.monotonic() - self.began > self.limit:
            self.over = True
        if self.target is not None and self.lock.acquire(blocking=False):  # Other threads continue to draw meanwhile.
            try:
                self._check(self.target, drawn)
            finally:
                self.lock.release()
        return self.over or self.reached is not None

    def _check(self, target: float, drawn: int) -> None:
        while self.reached is None and self.look <= drawn:
            if least_ess(self.values(self.look)) >= target:
                self.reached = self.look
            self.look = int(np.ceil(GROWTH_BETWEEN_CHECKS * self.look))

    def finish(self, drawn: int) -> int:
        """Number of draws of each chain in the result; warns of how many there are if the goal is not reached."""
        ess = None
        if self.target is not None:
            self._check(self.target, drawn)
            if self.reached is not None:
                return self.reached
            ess = least_ess(self.values(drawn))
        if drawn < self.job.kept or (ess is not None and ess < (self.target or 0)):
            after = f" after max_seconds = {self.limit:g}" if self.over else ""
            end = (
                "" if ess is None else f"; their least effective sample size is {ess:.0f}, target_ess = {self.target:g}"
            )
            warnings.warn(f"{drawn} of {self.job.kept} draws of each chain are there{after}{end}", stacklevel=4)
        return drawn


def entries(posterior: PlainMapping, count: int) -> Float[np.ndarray, "chain draw entry"]:
    """Entries of the first `count` posterior draws of U, on and below its diagonal, or of the latent."""
    name = next(name for name in CENTRAL if name in posterior)
    values = np.asarray(posterior[name][:, :count])
    if name == "order_parameter":
        return values[:, :, *np.tril_indices(values.shape[2])]
    return values.reshape(*values.shape[:2], -1)


def doubts_about_trips(round_trips: "float | np.ndarray") -> list[str]:
    """Reason why tempered draws do not say how much weight each mode has, one sentence; none if there are trips enough."""
    if not (fewest := np.min(round_trips)) < FEWEST_ROUND_TRIPS:  # NaN of draws that are not tempered.
        return []
    return [
        f"replicas of a chain made {fewest:.0f} round trip{'' if fewest == 1 else 's'} between posterior and prior, fewer"
        f" than {FEWEST_ROUND_TRIPS}: the weights of modes are not known, whatever R-hat is; draw longer"
    ]


def warn_of_few_trips(statistics: PlainMapping, count: int) -> None:
    """Warn if replicas of a chain made few round trips in the first `count` draws; a few draws are not judged."""
    if count >= DRAWS_AT_FIRST_CHECK and "round_trips" in statistics:
        for doubt in doubts_about_trips(statistics["round_trips"][:, count - 1]):
            warnings.warn(doubt, stacklevel=4)


def warn_of_poor_mixing(posterior: PlainMapping, count: int, thin: int = 1, target: float = math.inf) -> None:
    """Warn if the first `count` draws of each chain disagree between chains, or hold few effective draws.

    Few are fewer than `FEWEST_EFFECTIVE_DRAWS`, and than the target that was asked for.

    Judged are entries of U (or of the latent), predictions, readouts and numbers with priors, at most 50 of each.
    `bayesattn.diagnose` says more, and has stricter thresholds. Fewer than `DRAWS_AT_FIRST_CHECK` transitions
    are not judged, which is said too.
    """
    import arviz_stats
    import xarray as xr

    if count * thin < DRAWS_AT_FIRST_CHECK:
        if count >= FEWEST_DRAWS_FOR_ESS:  # Of fewer no error is known.
            warnings.warn(
                f"{count} draws of each chain are too few to show whether chains have mixed, so means and errors of these"
                f" draws are not to be trusted; draw {math.ceil(DRAWS_AT_FIRST_CHECK / thin)} or more",
                stacklevel=4,
            )
        return
    judged = [entries(posterior, count)] if set(CENTRAL) & posterior.keys() else []
    numbers = [name for name, values in posterior.items() if values.ndim == 2]  # Of a likelihood, one for each draw.
    for name in [*numbers, *(name for name in ("prediction", "readout", *VECTORS) if name in posterior)]:
        values = np.asarray(posterior[name][:, :count])
        judged.append(values.reshape(*values.shape[:2], -1))
    worst, least = 1.0, np.inf
    for values in judged:
        some = values[:, :, np.unique(np.linspace(0, values.shape[2] - 1, MOST_JUDGED_ENTRIES).astype(int))]
        draws = xr.DataArray(some[:, :, np.ptp(some, axis=(0, 1)) > 0], dims=("chain", "draw", "entry"))
        if draws.size:
            with np.errstate(divide="ignore", invalid="ignore"):
                least = min(least, float(arviz_stats.ess(draws).min()))
                worst = max(worst, float(arviz_stats.rhat(draws).max()) if len(draws) > 1 else 1.0)
    if worst > LARGEST_RHAT or least < min(FEWEST_EFFECTIVE_DRAWS, target):
        warnings.warn(
            f"chains have not mixed: R-hat is {worst:.2f} and the least effective sample size {least:.0f}, so means and"
            " errors of these draws are not to be trusted; draw longer, or see bayesattn.diagnose",
            stacklevel=4,
        )


def least_ess(values: Float[np.ndarray, "chain draw entry"]) -> float:
    """Smallest effective sample size, of bulk or tails, over all entries; 0 if it is not defined."""
    import arviz_stats
    import xarray as xr

    if values.shape[1] < FEWEST_DRAWS_FOR_ESS or (np.ptp(values, axis=(0, 1)) == 0).any():
        return 0.0
    draws = xr.DataArray(values, dims=("chain", "draw", "entry"))
    return float(min(arviz_stats.ess(draws, method=method).min() for method in ("bulk", "tail")))
