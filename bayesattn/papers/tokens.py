"""Experiments on exchangeable tokens (arXiv:2212.14852): each check's claims, sorted into the rows of the registry."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from bayesattn.exchangeable import claims
from bayesattn.exchangeable.checks import (
    condition,
    covariance,
    descent,
    forward,
    length,
    masked,
    positions,
    supervised,
    urn,
)
from bayesattn.exchangeable.validation import CHECKS, stream
from bayesattn.papers.experiment import Experiment, Findings, Settings, with_planted


class Check(NamedTuple):
    """What is checked, how, and where its claims belong.

    `rows` maps ids of rows to beginnings of the statements that belong there; the first row takes all others. Claims that
    name no wrong law of their own get one that is off by `size`, chosen so that it is found.
    """

    title: str
    run: Callable[[np.random.Generator, bool], claims.Findings]
    rows: Mapping[str, tuple[str, ...]]
    size: float


def _as_ever(name: str) -> Callable[[np.random.Generator, bool], claims.Findings]:
    """A check of `bayesattn.exchangeable.validate`, the same in both modes."""
    return lambda rng, fast: CHECKS[name](rng)


def _supervised(rng: np.random.Generator, fast: bool) -> claims.Findings:
    return supervised.supervised(rng, share=0.5 if fast else 1.0)


TABLE: dict[str, Check] = {
    "exact posterior": Check(
        "the posterior of the latent, by three routes and by NUTS",
        _as_ever("exact posterior"),
        {"tokens-cme": (), "tokens-latent": ("tokens are exchangeable", "log evidence")},
        0.2,
    ),
    "two attentions": Check(
        "which attention is the posterior mean", _as_ever("two attentions"), {"tokens-cme": ()}, 0.2
    ),
    "conditional mean embedding": Check(
        "errors of CME attention against the number of tokens",
        _as_ever("conditional mean embedding"),
        {"tokens-rate": ()},
        0.2,
    ),
    "softmax, fixed bandwidth": Check(
        "softmax attention at fixed bandwidth",
        _as_ever("softmax, fixed bandwidth"),
        {"tokens-softmax": ()},
        1.0,
    ),
    "softmax, shrinking bandwidth": Check(
        "softmax attention at shrinking bandwidth",
        _as_ever("softmax, shrinking bandwidth"),
        {"tokens-softmax": ()},
        0.3,
    ),
    "sufficiency": Check(
        "sufficiency and minimality by enumeration",
        _as_ever("sufficiency"),
        {"tokens-minimal": (), "tokens-sufficient": ("sufficient",), "tokens-rate": ("E log-odds", "E[1 - p")},
        0.1,
    ),
    "supervised learning": Check(
        "generalisation of attention that is learnt with targets",
        _supervised,
        {"tokens-generalisation": ()},
        1.0,
    ),
    "masked-token pretraining": Check(
        "masked tokens, and what they are worth downstream",
        _as_ever("masked-token pretraining"),
        {"tokens-masked": ()},
        0.3,
    ),
    "masked-token sizes": Check(
        "what masked tokens have not taught yet, against the numbers of sequences and tokens",
        masked.sizes,
        {"tokens-pretraining": ()},
        0.3,
    ),
    "heads as posterior inference": Check(
        "heads of a network against draws of the latent",
        _as_ever("heads as posterior inference"),
        {"tokens-heads": ()},
        1.0,
    ),
    "urn": Check(
        "an urn, whose law names no latent",
        urn.urn,
        {"tokens-sufficient": (), "tokens-latent": ("urn draws",)},
        0.1,
    ),
    "positions": Check(
        "tokens that include their positions, in attention networks",
        positions.positions,
        {"tokens-positions": ()},
        0.1,
    ),
    "covariance": Check(
        "the posterior's covariance by attention", covariance.covariance, {"tokens-covariance": ()}, 0.3
    ),
    "length": Check(
        "generalisation at any number of tokens, for several heads and layers",
        length.length,
        {"tokens-length": ()},
        0.3,
    ),
    "descent": Check("risk of attention during gradient descent", descent.descent, {"tokens-descent": ()}, 0.3),
    "masked softmax": Check(
        "the condition number and softmax attention with a ridge",
        condition.condition,
        {"tokens-condition": ()},
        0.3,
    ),
    "forward": Check(
        "trained attention against the posterior of a hidden Markov chain",
        forward.forward,
        {"tokens-hidden-markov": ()},
        0.3,
    ),
}


def _row(check: Check, claim: claims.Claim) -> str:
    rest, *others = check.rows
    return next((row for row in others if claim.statement.startswith(check.rows[row])), rest)


def _run(name: str, settings: Settings) -> Findings:
    check = TABLE[name]
    part = check.run(stream(settings.seed, name), settings.fast)
    found = Findings(panels=part.panels)
    for claim in part.claims:
        found.add(_row(check, claim), with_planted(claim, check.size))
    return found


EXPERIMENTS: dict[str, Experiment] = {
    name: Experiment(check.title, partial(_run, name)) for name, check in TABLE.items()
}
"""By the name that the registry's rows say they are checked by."""
