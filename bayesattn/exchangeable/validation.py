"""Every claim of EXCHANGEABILITY, checked."""

from collections.abc import Callable

import numpy as np

from bayesattn._checks import seed_number
from bayesattn._settings import with_own_settings
from bayesattn.exchangeable.checks import bayes, bridge, convergence, masked, supervised
from bayesattn.exchangeable.claims import Findings

CHECKS: dict[str, Callable[[np.random.Generator], Findings]] = {
    "exact posterior": bayes.posterior,
    "two attentions": bayes.attention,
    "conditional mean embedding": convergence.conditional_mean_embedding,
    "softmax, fixed bandwidth": convergence.fixed_bandwidth,
    "softmax, shrinking bandwidth": convergence.shrinking_bandwidth,
    "sufficiency": bayes.sufficiency,
    "supervised learning": supervised.supervised,
    "masked-token pretraining": masked.pretrained,
    "heads as posterior inference": bridge.bridge,
}
SECTIONS = {
    1: "the exact posterior",
    2: "which attention is the posterior mean",
    3: "claim (b): error against the number of tokens n",
    4: "claim (a): sufficiency and minimality",
    5: "claim (c): supervised, generalisation independent of n",
    6: "claim (c): masked tokens and the condition number",
    7: "heads of an attention network as posterior inference",
}


def stream(seed: int, name: str) -> np.random.Generator:
    """Random numbers of one check, which no other check shares."""
    return np.random.default_rng([seed, *name.encode()])


@with_own_settings
def validate(seed: int = 0, progress: Callable[[str], None] | None = None) -> Findings:
    """Check every claim; about a minute, much of it compilation.

    Args:
        seed: of all that is drawn.
        progress: told the name of each check before it begins.

    Returns:
        Claims in the order of EXCHANGEABILITY's sections, and the curves of the figure.

    Raises:
        ValueError: a seed below 0.
    """
    seed_number("seed", seed)
    findings = Findings()
    for name, check in CHECKS.items():
        if progress is not None:
            progress(name)
        part = check(stream(seed, name))
        findings.claims += part.claims
        findings.panels |= part.panels
    return findings
