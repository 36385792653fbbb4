"""Experiments on exchangeable tokens (arXiv:2212.14852)."""

from dataclasses import replace
from functools import partial

import numpy as np

from reproductions.claims import Findings
from reproductions.experiment import Experiment, Settings
from reproductions.tokens import (
    bayes,
    bridge,
    condition,
    convergence,
    covariance,
    descent,
    forward,
    length,
    masked,
    positions,
    supervised,
    urn,
)

CHECKS = {
    "exact posterior": (bayes.posterior, "the posterior of the latent, by three routes and by NUTS", 0.2),
    "two attentions": (bayes.attention, "which attention is the posterior mean", 0.2),
    "conditional mean embedding": (
        convergence.conditional_mean_embedding,
        "errors of CME attention against the number of tokens",
        0.2,
    ),
    "softmax, fixed bandwidth": (convergence.fixed_bandwidth, "softmax attention at fixed bandwidth", 1.0),
    "softmax, shrinking bandwidth": (convergence.shrinking_bandwidth, "softmax attention at shrinking bandwidth", 0.3),
    "sufficiency": (bayes.sufficiency, "sufficiency and minimality by enumeration", 0.1),
    "supervised learning": (supervised.supervised, "generalisation of attention that is learnt with targets", 1.0),
    "masked-token pretraining": (masked.pretrained, "masked tokens, and what they are worth downstream", 0.3),
    "masked-token sizes": (
        masked.sizes,
        "what masked tokens have not taught yet, against the numbers of sequences and tokens",
        0.3,
    ),
    "heads as posterior inference": (bridge.bridge, "heads of a network against draws of the latent", 1.0),
    "urn": (urn.urn, "an urn, whose law names no latent", 0.1),
    "positions": (positions.positions, "tokens that include their positions, in attention networks", 0.1),
    "covariance": (covariance.covariance, "the posterior's covariance by attention", 0.3),
    "length": (length.length, "generalisation at any number of tokens, for several heads and layers", 0.3),
    "descent": (descent.descent, "risk of attention during gradient descent", 0.3),
    "masked softmax": (condition.condition, "the condition number and softmax attention with a ridge", 0.3),
    "forward": (forward.forward, "trained attention against the posterior of a hidden Markov chain", 0.3),
}
"""The function of each experiment, called with random numbers and whether to be fast, its title, and a relative size.

Claims without a wrong law of their own get one that is off by this size, chosen so that it is found.
"""


def stream(seed: int, name: str) -> np.random.Generator:
    """Random numbers of one experiment, which no other experiment shares."""
    return np.random.default_rng([seed, *name.encode()])


def _run(name: str, settings: Settings) -> Findings:
    check, _, size = CHECKS[name]
    found = check(stream(settings.seed, name), settings.fast)
    return replace(found, claims=[claim.with_planted(size) for claim in found.claims])


EXPERIMENTS = {name: Experiment(title, partial(_run, name)) for name, (_, title, _) in CHECKS.items()}
"""Experiments by the names in the registry's rows."""
