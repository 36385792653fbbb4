"""Criteria of verdicts: level, margin, what usable draws have; the sentence of a verdict is in `validation`."""

import math
from collections.abc import Collection

import numpy as np

from bayesattn._util.text import draw_more
from bayesattn.samplers.stopping import doubts_about_trips

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
ONE_CHAIN = "one chain alone cannot show that it has mixed: draw several"
MOST_PLAIN_RHAT = 1000.0
"""R-hat above which its digits say nothing."""
DRAWS_PER_FREEDOM = 3
"""Effective sample size per degree of freedom of a Monte Carlo error: autocorrelations are estimated too."""


def doubts_about(
    name: str, chains: int, rhat: np.ndarray, ess: np.ndarray, round_trips: float = float("nan")
) -> list[str]:
    """Reasons why draws cannot decide anything, one sentence each: chains that did not mix, or too few draws.

    `round_trips` is the least number of a chain, NaN of draws that are not tempered.
    """
    doubts = doubts_about_trips(round_trips)
    if chains < 2:
        doubts.append(ONE_CHAIN)
    elif np.isposinf(worst := np.max(rhat)):
        doubts.append(f"R-hat of {name} is infinite: chains are stuck in different places")
    elif not np.isfinite(worst):
        # Too few draws, or draws that are not finite: there is no effective sample size either.
        return [f"R-hat of {name} is not defined: draw more"]
    elif worst > USABLE_RHAT:
        size = format(worst, ".4f" if worst < MOST_PLAIN_RHAT else ".2g")
        doubts.append(f"R-hat of {name} is {size}, expected at most {USABLE_RHAT}: chains differ; draw longer")
    enough = USABLE_ESS * chains
    if not (least := np.min(ess)) >= enough:  # Negated, so that NaN is a doubt.
        size = f"{least:.0f}" if np.isfinite(least) else "not defined"
        times = math.nan if doubts else enough / least
        doubts.append(f"the effective sample size of {name} is {size}, expected at least {enough}: {draw_more(times)}")
    return doubts


def times_as_many(difference: np.ndarray, bound: np.ndarray, margin: float) -> float:
    """How many times as many draws bring all bounds below the margin, if differences stay; infinite if none do.

    What a bound adds to a difference falls as the root of the number of draws.
    """
    left = bound > margin
    room = margin - difference[left]
    if np.any(room <= 0):
        return math.inf
    return float(np.max(((bound - difference)[left] / room) ** 2, initial=1.0))


def overall(verdicts: Collection[str]) -> str:
    """Verdict of all widths: the theory does not hold if it fails at one, and holds only if it holds at every width."""
    return next((verdict for verdict in (DOES_NOT_HOLD, CANNOT_TELL) if verdict in verdicts), HOLDS)


def percent(share: float) -> str:
    """Share in percent, with two significant digits."""
    return f"{100 * share:.2g} %"
