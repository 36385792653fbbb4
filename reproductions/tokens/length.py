"""Checks of EXCHANGEABILITY section 5 for many tokens: the generalisation error's limit, several heads, two layers."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from bayesattn.questions import exchangeable as ex
from reproductions.claims import (
    Claim,
    Curve,
    Findings,
    Mean,
    Panel,
    combined,
    curve_of,
    jackknife,
    listed,
    mean_of,
    worst,
)
from reproductions.tokens import learning, networks
from reproductions.tokens.simulation import NOISE, NUMBER, RISK_GAP

SEQUENCES = 800
"""m of training sets, with twice as many beside them."""
BATCHES = 20
MOST_LOGITS = 2**16
"""Largest number of logits of a batch of the population."""
DRAWN = 20_000
"""Sequences for the mean of g^T H^-1 g."""


class Case(NamedTuple):
    """A network, the ridge of its training, numbers of tokens (fast, full), and logits of a sequence of n tokens."""

    name: str
    network: networks.Network
    ridge: float
    start: tuple[float, ...]
    tokens: tuple[tuple[int, ...], tuple[int, ...]]
    logits: Callable[[int], int]


HEAD = (2.0, 0.0, 0.0, 2.0, 0.8, 0.0, 0.0, 0.8)
SMALLER = (1.0, 0.0, 0.0, 1.0, 0.4, 0.0, 0.0, 0.4)
ONE = Case("one head", networks.rescaled, 0.0, HEAD, ((64, 128), (8, 32, 128, 512, 1024)), lambda n: n)
HEADS = Case("two heads", networks.two_heads, 0.05, HEAD + SMALLER, ((8, 32), (8, 32, 128, 512, 1024)), lambda n: 2 * n)
"""Two heads come near their limit where n is far above 1 / ridge."""
LAYERS = Case(
    "two layers", networks.two_layers, 0.05, (2.0, 0.0, 2.0, *HEAD), ((8, 16, 32), (8, 16, 32, 64)), lambda n: n * n
)
CASES = (ONE, HEADS, LAYERS)


class Law(NamedTuple):
    """Penalised optimum of a network, Hessian with the ridge, and tr((H + ridge)^-1 (J - g g^T))."""

    case: Case
    optimum: np.ndarray
    hessian: np.ndarray
    trace: Mean


def length(rng: np.random.Generator, fast: bool = False) -> Findings:
    """m x gap of test and training risk against n, and its limit."""
    claims, curves = [], []
    for case in CASES[:2] if fast else CASES:
        part, curve = _case(rng, case, fast)
        claims += part
        curves.append(curve)
    panel = Panel("Several heads and layers", NUMBER, RISK_GAP, curves)
    return Findings.of_row("tokens-length", claims, panel)


def _case(rng: np.random.Generator, case: Case, fast: bool) -> tuple[list[Claim], Curve]:
    lengths, replicates = case.tokens[not fast], 40 if fast or case is LAYERS else 120
    laws: list[Law] = []
    for tokens in lengths:
        laws.append(_law(rng, case, tokens, laws[-1].optimum if laws else None))
    traces = [law.trace for law in laws]
    limit, endless = _limit(case, laws[-1].optimum)
    formula = "tr((H + ridge)^-1 (J - g g^T))" if case.ridge else "tr(H^-1 J)"
    known = f"tr(H^-1 J) = {limit:.3f}, in closed form" if case is ONE else f"{formula} by quadrature, {limit:.3f}"
    half = {"planted": limit / 2, "wrong": "half of it"}
    name, without = case.name, ", kappa held" if case is ONE else ""
    claims = [
        worst(
            f"{name}: the largest over n is that at n = {lengths[0]}; {formula} at n = {listed(lengths[1:])}",
            f"at most that at n = {lengths[0]}",
            [traces[0]] * len(traces[1:]),
            traces[1:],
            relation="<=",
            planted=traces[0],
            wrong="no less at any other n",
            wrong_relation=">=",
        )
    ]
    if lengths[-1] == 2 * lengths[-2] and case is not LAYERS:
        statement = f"{name}: {formula}, n = {lengths[-2]}, {lengths[-1]} -> infinity"
        far = combined(traces[-1].times(2), traces[-2], -1.0)
        claims.append(Claim(statement, known, limit, far, **half))
    # One of the two in the fast mode, for its compilation.
    if case is not ONE or not fast:
        draw = partial(learning.draw_sequences, rng, tokens=lengths[0])
        statement = f"{name}: m x gap of test and training risk, n = {lengths[0]}, m -> infinity"
        claims.append(_learnt(statement, formula, laws[0], draw, replicates))
    if case is ONE or not fast:
        draw = partial(networks.draw_many_tokens, rng)
        statement = f"{name}, attention to infinitely many tokens{without}: m x gap, m -> infinity"
        law = "2 sigma^2 for each of 7 parameters" if case is ONE else formula
        claims.append(_learnt(statement, law, endless, draw, replicates))
    line = np.full(len(lengths), limit)
    return claims, curve_of(f"{name}: m x gap (line: n = infinity)", lengths, traces, line)


def _learnt(
    statement: str, formula: str, law: Law, draw: Callable[[Any], learning.Sequences], replicates: int
) -> Claim:
    """The gap of drawn training sets against the law."""
    gap, half = _gap(draw, law, replicates), law.trace.value / 2
    return Claim(statement, formula, law.trace, gap, planted=half, wrong="half of it, the excess's law")


def _law(rng: np.random.Generator, case: Case, tokens: int, near: np.ndarray | None = None) -> Law:
    """By averages over drawn sequences whose targets are averaged out given the tokens."""
    size = min(2000, max(100, MOST_LOGITS // case.logits(tokens)))
    batches = [learning.expected_targets(learning.draw_sequences(rng, size, tokens)) for _ in range(BATCHES)]
    optimum = _optimum(case, tokens, batches, near)
    parts = [networks.moments(optimum, *batch, network=case.network) for batch in batches]
    gradients, hessians, seconds = (np.array(part) for part in zip(*parts, strict=True))
    # Without a ridge the optimum is known, and the mean gradient there is 0.
    trace = jackknife(partial(networks.penalised_trace, case.ridge), [gradients * (case.ridge > 0), hessians, seconds])
    return Law(case, optimum, hessians.mean(0) + case.ridge * np.eye(len(optimum)), trace)


def _optimum(case: Case, tokens: int, batches: Sequence[tuple], near: np.ndarray | None) -> np.ndarray:
    if case is ONE:
        found = learning.population_optimum(tokens).parameters
        return np.concatenate([found[:4], found[4:] * float(ex.bessel_ratio(1, found[0], 2))])
    if near is None:
        loss = networks.objective(case.network, case.ridge)
        near = np.asarray(learning.fit(np.array(case.start), batches[0][0], objective=loss))
    return networks.minimum(near, batches, case.network, case.ridge)


def _limit(case: Case, near: np.ndarray) -> tuple[float, Law]:
    """tr((H + ridge)^-1 (J - g g^T)) as n tends to infinity, and the law of training at n = infinity itself.

    They differ for one head, of which one parameter has nothing to learn at n = infinity.
    """
    whole = networks.all_many_tokens()
    if case is ONE:
        known = networks.many_tokens()
        without = case._replace(network=partial(networks.unscaled, known.kappa))
        optimum = np.concatenate([np.zeros(3), np.eye(2).ravel() / ex.bessel_ratio(1, known.kappa, 2)])
        found = networks.moments(optimum, *whole, network=without.network)
        return known.trace, Law(without, optimum, np.asarray(found.hessian), Mean(14 * NOISE**2))
    optimum = networks.minimum(near, [whole], case.network, case.ridge)
    found = networks.moments(optimum, *whole, network=case.network)
    limit = networks.penalised_trace(case.ridge, *map(np.asarray, found))
    return limit, Law(case, optimum, np.asarray(found.hessian) + case.ridge * np.eye(len(optimum)), Mean(limit))


def _gap(draw: Callable[[Any], learning.Sequences], law: Law, replicates: int) -> Mean:
    """m x gap as m tends to infinity, of drawn training sets of m and 2m sequences.

    What G^T H^-1 G leaves unexplained has mean b + c / m + O(1/m^2), and twice its value at 2m less that at m has no c;
    the mean of m G^T H^-1 G is that of one sequence's, whatever H is.
    """
    settings = law.case.network, law.case.ridge
    objective = networks.objective(*settings)
    training, test = (draw((replicates, 2 * SEQUENCES)) for _ in range(2))
    halves = [
        jax.tree.map(lambda leaf, part=part: leaf[:, part], training)
        for part in (slice(None, SEQUENCES), slice(SEQUENCES, None))
    ]
    first, second, both = (
        learning.generalise(law.optimum, law.hessian, seen, test, objective) for seen in (*halves, training)
    )
    left = [np.asarray(found.gap - found.quadratic) for found in (first, second, both)]
    extrapolated = 4 * SEQUENCES * left[2] - SEQUENCES * (left[0] + left[1]) / 2
    drawn = learning.quadratics(law.optimum, law.hessian, draw((DRAWN,)), networks.losses(*settings))
    return combined(mean_of(extrapolated), mean_of(drawn))
