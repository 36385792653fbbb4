"""Verdicts: requirements on draws, the overall verdict of several, and draws of z against its exact posterior."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float

from bayesattn._util.errors import BayesattnError
from bayesattn.checks.comparison import Compared
from bayesattn.checks.mixing import moments
from bayesattn.models.draws import Draws, opened

VERDICTS = HOLDS, DOES_NOT_HOLD, CANNOT_TELL = ("holds", "does not hold", "cannot tell")
"""Verdicts in the order of the exit statuses of `bayesattn validate`."""
LEVEL = 0.01
"""Probability of rejecting a correct theory, and of a difference beyond the stated bound."""
MARGIN = 0.05
"""Difference, relative to U or to the predictor, within which the theory is said to hold."""
USABLE_ESS = 100
"""Smallest effective sample size per chain of usable draws."""
USABLE_RHAT = 1.02
"""Largest R-hat of usable draws.

Draws worse than usable cannot decide whether the theory holds; draws between usable and good have a warning. R-hat is
rank-normalised, the larger of bulk and folded R-hat. In 40 sets of 4 x 100 independent draws of ten entries, R-hat was above
1.01 in 65 % of the sets and above 1.02 in 12 %. With 4 x 250 draws, it was above 1.01 in 8 % and above 1.02 in none.
"""
DRAWS_PER_FREEDOM = 3
"""Effective sample size per degree of freedom of a Monte Carlo error: autocorrelations are estimated too."""


def doubts_about(name: str, chains: int, rhat: np.ndarray, ess: np.ndarray) -> list[str]:
    """Reasons why draws cannot decide anything, one sentence each: chains that did not mix, or too few draws."""
    doubts = []
    if chains < 2:
        doubts.append("one chain alone cannot show that it has mixed: draw several")
    elif np.isposinf(worst := np.max(rhat)):
        doubts.append(f"R-hat of {name} is infinite: chains are stuck in different places")
    elif not np.isfinite(worst):
        # Too few draws, or draws that are not finite: there is no effective sample size either.
        return [f"R-hat of {name} is not defined: draw more"]
    elif worst > USABLE_RHAT:
        doubts.append(f"R-hat of {name} is {worst:.4f}, expected at most {USABLE_RHAT}: chains differ; draw longer")
    enough = USABLE_ESS * chains
    if not (least := np.min(ess)) >= enough:  # Negated, so that NaN is a doubt.
        size = f"{least:.0f}" if np.isfinite(least) else "not defined"
        doubts.append(f"the effective sample size of {name} is {size}, expected at least {enough}: draw more")
    return doubts


@runtime_checkable
class Judged(Protocol):
    """Comparison with a verdict, such as a `Validation`."""

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        ...


def overall(validations: Sequence[Judged]) -> str:
    """Verdict of all widths: the theory does not hold if it fails at one, and holds only if it holds at every width."""
    verdicts = [validation.verdict for validation in validations]
    return next((verdict for verdict in (DOES_NOT_HOLD, CANNOT_TELL) if verdict in verdicts), HOLDS)


class LatentVerdict(NamedTuple):
    """Comparison of draws of a latent z with its exact posterior: `mean`, and `deviation` of each feature, in closed form.

    `draws` is the mean of the draws, `error` its Monte Carlo error, and `agrees` whether that error explains the difference.
    `bound` is the number of standard deviations within which they agree. `doubts` are reasons why the draws cannot tell.
    """

    mean: Float[np.ndarray, "value_feature feature"]
    deviation: Float[np.ndarray, " feature"]
    draws: Float[np.ndarray, "value_feature feature"]
    error: Float[np.ndarray, "value_feature feature"]
    agrees: Bool[np.ndarray, "value_feature feature"]
    bound: float
    doubts: list[str]

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        if self.doubts:
            return CANNOT_TELL
        return HOLDS if self.agrees.all() else DOES_NOT_HOLD


def latent_verdict(
    mean: Float[np.ndarray, "value_feature feature"],
    covariance: Float[np.ndarray, "feature feature"],
    draws: Draws,
    level: float = LEVEL,
) -> LatentVerdict:
    """Compare draws of z with the mean and the covariance of its exact posterior, at a family-wise level."""
    deviation = np.sqrt(np.diag(covariance))
    posterior = opened(draws)["posterior"].to_dataset()
    if "latent" not in posterior or posterior["latent"].shape[2:] != np.shape(mean):
        raise BayesattnError(f"draws must have posterior['latent'] of shape {np.shape(mean)} each, got others")
    sampled = posterior["latent"]
    of = moments(sampled)
    compared = Compared(
        names=[f"z[{value + 1}, {feature + 1}]" for value, feature in np.ndindex(*mean.shape)],
        difference=(of["mean"] - mean).ravel(),
        error=of["error"].ravel(),
        freedom=of["ess"].ravel() / DRAWS_PER_FREEDOM,
        allowance=np.zeros(mean.size),
        size=np.broadcast_to(deviation, mean.shape).ravel(),
        level=level,
        confidence_level=level,
    )
    return LatentVerdict(
        mean=mean,
        deviation=deviation,
        draws=of["mean"],
        error=of["error"],
        agrees=compared.agrees.reshape(mean.shape),
        bound=float(np.max(compared.bound)),
        doubts=doubts_about("z", sampled.sizes["chain"], of["rhat"], of["ess"]),
    )


def percent(share: float) -> str:
    """Share in percent, with two significant digits."""
    return f"{100 * share:.2g} %"
