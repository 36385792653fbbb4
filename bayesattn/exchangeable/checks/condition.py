"""Checks of EXCHANGEABILITY section 6: what a condition number makes of pretraining with softmax attention and a ridge."""

from typing import NamedTuple

import numpy as np

from bayesattn.exchangeable import pretraining, simulation, smoothing
from bayesattn.exchangeable.checks.masked import MASKED, PRETRAINING_SEQUENCES, VALUES
from bayesattn.exchangeable.claims import Claim, Curve, Findings, Mean, exponent, jackknife, mean_of

CONDITIONS = (1.0, 10.0, 100.0, 1e3, 1e4)
RIDGES = 10.0 ** np.arange(-6, 4)
"""Of which the one with the least error on as many further sequences is taken."""
POPULATION = 100
"""Sequences that excess risks are averaged over, drawn anew for each group of learners."""
LEARNERS = 20


class Excess(NamedTuple):
    """Excess risks over the Bayes risk, and the Bayes risk downstream; `ratio` is downstream / (bound x pretraining)."""

    pretraining: Mean
    downstream: Mean
    zero: Mean
    bayes: float
    ratio: Mean


def condition(rng: np.random.Generator, fast: bool = False) -> Findings:
    """Transfer from masked tokens to the weak direction, with keys of condition numbers 1 .. 10^4."""
    found = [_excess(rng, number, 12 if fast else 100) for number in CONDITIONS]
    x = np.array(CONDITIONS)
    return Findings(
        _claims(found),
        {
            "softmax condition": [
                _curve("softmax, ridge: pretraining excess", x, [one.pretraining for one in found]),
                _curve("softmax, ridge: downstream, weak direction", x, [one.downstream for one in found]),
                _curve("predicting zero: downstream", x, [one.zero for one in found]),
                Curve("Bayes risk downstream", x, np.array([one.bayes for one in found])),
                Curve("bound on downstream", x, x * np.array([one.pretraining.value for one in found])),
            ]
        },
    )


def _curve(label: str, x: np.ndarray, means: list[Mean]) -> Curve:
    return Curve(label, x, np.array([mean.value for mean in means]), np.array([mean.error for mean in means]))


def _excess(rng: np.random.Generator, number: float, groups: int) -> Excess:
    variances = pretraining.key_variances(number)
    settings = {"variances": variances, "value_features": VALUES} | MASKED
    rows = []
    for _ in range(groups):
        known = smoothing.population(rng, POPULATION, **settings)
        readouts = np.array([_learner(rng, settings) for _ in range(LEARNERS)])
        risks = [smoothing.excess(readouts, risk).mean() for risk in (known.pretraining, known.downstream)]
        rows.append([*risks, known.downstream[2]])
    learnt, weak, zero = np.array(rows).T
    return Excess(
        mean_of(learnt),
        mean_of(weak),
        mean_of(zero),
        MASKED["prior"] ** 2 - float(zero.mean()),
        jackknife(lambda above, below: float(above / below) / number, [weak, learnt]),
    )


def _learner(rng: np.random.Generator, settings: dict) -> np.ndarray:
    """w learnt from masked tokens, with the ridge that is best for as many others."""
    sets = []
    for _ in range(2):
        keys = np.sqrt(settings["variances"]) * rng.normal(size=(PRETRAINING_SEQUENCES, MASKED["tokens"], 3))
        queries = np.sqrt(settings["variances"]) * rng.normal(size=(PRETRAINING_SEQUENCES, 1, 3))
        values, truth = simulation.answers(rng, keys, queries, VALUES, MASKED["noise"], MASKED["prior"])
        features = smoothing.heads(queries, keys, values, settings["variances"])
        targets = truth + MASKED["noise"] * rng.normal(size=truth.shape)
        sets.append((features.reshape(len(features), -1).T, targets.ravel()))
    (features, targets), (others, answers) = sets
    readouts = smoothing.learn(features, targets, RIDGES)
    return readouts[np.argmin(np.sum((answers - readouts @ others.T) ** 2, 1))]


def _claims(found: list[Excess]) -> list[Claim]:
    claims = []
    for number, one in zip(CONDITIONS, found, strict=True):
        claims.append(
            Claim(
                6,
                f"softmax attention, condition number {number:g}: downstream excess ({one.downstream.value:.3g}, of zero"
                f" {one.zero.value:.3g}) over the bound",
                "downstream <= tr(B C^-1 B^T) x pretraining",
                1.0,
                one.ratio,
                "<=",
            )
        )
    growth = exponent(CONDITIONS, [one.downstream for one in found])
    claims.append(
        Claim(
            6,
            "softmax attention with a ridge: downstream excess grows with the condition number 1 .. 10^4: exponent",
            "1",
            1.0,
            growth,
            literal=True,
        )
    )
    return claims
