"""Checks of EXCHANGEABILITY section 6: what a condition number makes of pretraining with softmax attention and a ridge."""

from typing import NamedTuple

import numpy as np

from reproductions.claims import Claim, Curve, Findings, Mean, Panel, combined, curve_of, exponent, mean_of
from reproductions.tokens import pretraining, simulation, smoothing
from reproductions.tokens.masked import CONDITION, EXCESS, MASKED, PRETRAINING_SEQUENCES, VALUES

CONDITIONS = (1.0, 10.0, 100.0, 1e3, 1e4, 1e8, 1e10)
FEWER = (1.0, 100.0, 1e4, 1e8, 1e10)
"""In the fast mode."""
HARMLESS = (1e3, 1e4)
"""Condition numbers at which heads that take keys as they are are compared with predicting zero."""
RIDGES = 10.0 ** np.arange(-6, 4)
"""Ridges, of which the one with the least error on as many further sequences is chosen."""
POPULATION = 40
"""Sequences that excess risks are averaged over, drawn anew for each group of learners."""
LEARNERS = 10
HEADS = {"whitening": slice(None), "plain": slice(len(smoothing.SCORES) // 2)}
"""Learners with all heads, and with those that take keys as they are."""


class Excess(NamedTuple):
    """Excess risks over the Bayes risk, and the Bayes risk downstream.

    `pretraining` and `whitening` (downstream) are those of the learner with whitening heads; `plain` heads and predicting
    `zero` have downstream risks alone.
    """

    pretraining: Mean
    whitening: Mean
    plain: Mean
    zero: Mean
    bayes: float


def condition(rng: np.random.Generator, fast: bool = False) -> Findings:
    """Transfer from masked tokens to the weak direction, with keys of condition numbers 1 .. 10^10."""
    found = {number: _excess(rng, number, 20 if fast else 200) for number in (FEWER if fast else CONDITIONS)}
    x, each = np.array(list(found)), list(found.values())
    curves = [
        curve_of("pretraining excess, softmax and ridge", x, [one.pretraining for one in each]),
        curve_of("downstream, weak direction: heads that whiten keys", x, [one.whitening for one in each]),
        curve_of("downstream: heads that take keys as they are", x, [one.plain for one in each]),
        curve_of("predicting zero: downstream", x, [one.zero for one in each]),
        Curve("Bayes risk downstream", x, np.array([one.bayes for one in each])),
        Curve("bound on downstream", x, x * np.array([one.pretraining.value for one in each])),
    ]
    panel = Panel("Masked softmax attention", CONDITION, EXCESS, curves)
    return Findings.of_row("tokens-condition", _claims(found), panel)


def _excess(rng: np.random.Generator, number: float, groups: int) -> Excess:
    variances = pretraining.key_variances(number)
    settings = {"variances": variances, "value_features": VALUES} | MASKED
    rows = []
    for _ in range(groups):
        known = smoothing.population(rng, POPULATION, **settings)
        learners = [_learners(rng, variances) for _ in range(LEARNERS)]
        whitening, plain = (np.array([learnt[name] for learnt in learners]) for name in HEADS)
        masked = smoothing.excess(whitening, known.pretraining).mean()
        weak = [smoothing.excess(readouts, known.downstream).mean() for readouts in (whitening, plain)]
        rows.append([masked, *weak, known.downstream[2]])
    masked, whitening, plain, zero = np.array(rows).T
    bayes = MASKED["prior"] ** 2 - float(zero.mean())
    return Excess(mean_of(masked), mean_of(whitening), mean_of(plain), mean_of(zero), bayes)


def _learners(rng: np.random.Generator, variances: np.ndarray) -> dict[str, np.ndarray]:
    """w learnt from masked tokens, with the ridge that is best for as many others; 0 for heads that are not used."""
    (features, targets), (others, answers) = (_equations(rng, variances) for _ in range(2))
    learnt = {}
    for name, used in HEADS.items():
        readouts = np.zeros((len(RIDGES), len(smoothing.SCORES)))
        readouts[:, used] = smoothing.learn(features[:, used], targets, RIDGES)
        learnt[name] = readouts[np.argmin(np.sum((answers - readouts @ others.T) ** 2, 1))]
    return learnt


def _equations(rng: np.random.Generator, variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What heads return at one masked query of each sequence (equation, score), and the values there."""
    shape = (PRETRAINING_SEQUENCES, MASKED["tokens"] + 1, len(variances))
    points = np.sqrt(variances) * rng.normal(size=shape)
    queries, keys = points[:, :1], points[:, 1:]
    values, truth = simulation.answers(rng, keys, queries, VALUES, MASKED["noise"], MASKED["prior"])
    returned = smoothing.heads(queries, keys, values, variances)
    targets = truth + MASKED["noise"] * rng.normal(size=truth.shape)
    return returned.reshape(len(returned), -1).T, targets.ravel()


def _claims(found: dict[float, Excess]) -> list[Claim]:
    name = "softmax attention that may whiten keys"
    # That no downstream excess is above the bound is an inequality on the same population, no test: see the panel.
    claims = [
        Claim(
            f"heads that take keys as they are, condition number {number:g}: downstream excess less that of predicting zero"
            f" ({found[number].zero.value:.3g})",
            "at most 0: what they do not see they leave alone",
            0.0,
            combined(found[number].plain, found[number].zero, -1.0),
            "<=",
            planted=found[number].whitening.value - found[number].zero.value,
            wrong="that of heads that whiten",
            wrong_relation=">=",
        )
        for number in HARMLESS
        if number in found
    ]
    at, early = found[1e4], [number for number in found if number <= 1e4]
    return [
        *claims,
        Claim(
            f"{name}: exponent of the downstream excess, condition numbers 10^8 .. 10^10",
            "1: the bound's",
            1.0,
            exponent([1e8, 1e10], [found[1e8].whitening, found[1e10].whitening]),
            planted=0.5,
            wrong="the square root",
        ),
        Claim(
            f"{name}: downstream excess in proportion to the condition number from the first: exponent, 1 .. 10^4",
            "1",
            1.0,
            exponent(early, [found[number].whitening for number in early]),
            literal=True,
        ),
        Claim(
            f"{name}: downstream excess at 10^4 at most that of predicting zero (Bayes risk {at.bayes:.3f})",
            f"excess of zero, {at.zero.value:.3f}",
            0.0,
            combined(at.whitening, at.zero, -1.0),
            "<=",
            literal=True,
        ),
        Claim(
            f"the condition number rules every learner: heads that take keys as they are ({at.plain.value:.3g}) suffer at"
            " 10^4 as those that whiten",
            f"excess of whitening heads, {at.whitening.value:.3g}",
            at.whitening,
            at.plain,
            literal=True,
        ),
    ]
