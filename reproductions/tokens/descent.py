"""Checks of EXCHANGEABILITY section 5: what gradient descent has not learnt yet, as a third part of the risk."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

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
from reproductions.tokens import learning
from reproductions.tokens.simulation import NOISE

TOKENS, VALUES = 8, 2
STEPS = (1, 4, 16, 64)
"""t at which iterates are looked at."""
NEAR = 1e-3
"""Distance of the start from the empirical minimum, where its error is that of a quadratic."""
TOLERANCE = 1e-3
"""Tolerance of a ratio: what is left out is of relative order NEAR^2 / lambda_min, as odd orders cancel."""
SEQUENCES = 800
"""m of training sets, with twice as many beside them."""
POPULATION, BATCHES = 40_000, 20
START = 3.0
"""Distance of the start from the population's optimum in the metric of the Hessian, times m^(1/2)."""


class Population(NamedTuple):
    """Optimum of the risk, H and J there by batches, eigenvalues and vectors of the mean H, the step of descent."""

    optimum: np.ndarray
    hessians: np.ndarray
    seconds: np.ndarray
    eigenvalues: np.ndarray
    vectors: np.ndarray
    step: float


def descent(rng: np.random.Generator, fast: bool = False) -> Findings:
    """Optimisation error near one empirical minimum, and the risk of iterates over many training sets."""
    optimum = learning.population_optimum(TOKENS)
    batches = [learning.draw_sequences(rng, POPULATION // BATCHES, TOKENS) for _ in range(BATCHES)]
    known = _population(optimum.parameters, batches)
    claims, curve = _near_minimum(rng, known)
    losses = np.concatenate([learning.losses(optimum.parameters, batch) for batch in batches])
    claims.append(
        Claim(
            f"risk of the best parameters, n = {TOKENS}: noise plus approximation (A(n) = {optimum.approximation:.3f})",
            "d_v sigma^2 + A(n)",
            VALUES * NOISE**2 + optimum.approximation,
            mean_of(losses),
            planted=VALUES * NOISE**2,
            wrong="without A(n)",
        )
    )
    more, excess = _iterates(rng, known, batches, 40 if fast else 300)
    panels = [
        Panel("Optimisation error", "steps", "training risk less its minimum", [curve]),
        Panel("Excess risk of iterates", "steps", "m x excess test risk", [excess]),
    ]
    return Findings.of_row("tokens-descent", [*claims, *more], *panels)


def _population(optimum: learning.Parameters, batches: list[learning.Sequences]) -> Population:
    found = [learning.moments(optimum, *learning.expected_targets(batch)) for batch in batches]
    hessians, seconds = (np.array(part) for part in zip(*found, strict=True))
    eigenvalues, vectors = np.linalg.eigh(hessians.mean(0))
    return Population(np.asarray(optimum), hessians, seconds, eigenvalues, vectors, float(1 / eigenvalues[-1]))


@partial(jax.jit, static_argnames="steps")
def iterates(start: Any, data: learning.Sequences, step: float, *, steps: tuple[int, ...] = STEPS) -> Any:
    """Parameters of gradient descent on the training risk after so many steps, shape (step, parameter)."""

    def further(at, _):
        at = at - step * jax.grad(learning.risk)(at, data)
        return at, at

    _, path = jax.lax.scan(further, start, None, max(steps))
    return path[jnp.array(steps) - 1]


def _near_minimum(rng: np.random.Generator, known: Population) -> tuple[list[Claim], Curve]:
    """Excess training risk of iterates over that of the minimum, from starts on both sides of it."""
    data = learning.draw_sequences(rng, SEQUENCES, TOKENS)
    fitted = np.asarray(learning.fit(known.optimum, data))
    gradient, hessian = jax.jit(jax.grad(learning.risk)), jax.jit(jax.hessian(learning.risk))
    for _ in range(5):
        fitted = fitted - np.linalg.solve(hessian(fitted, data), gradient(fitted, data))
    eigenvalues, vectors = np.linalg.eigh(np.asarray(hessian(fitted, data)))
    step, away = float(1 / eigenvalues[-1]), NEAR * rng.normal(size=len(fitted)) / np.sqrt(eigenvalues)
    ends = [iterates(fitted + sign * vectors @ away, data, step) for sign in (1, -1)]
    measured = np.mean([[learning.risk(at, data) - learning.risk(fitted, data) for at in end] for end in ends], 0)
    times = np.array(STEPS)
    laws = np.array([optimisation(eigenvalues, away, step, power * times) for power in (2, 1)])
    ratios = measured / laws[0]
    at = int(np.argmax(np.abs(ratios - 1)))
    claim = Claim(
        f"optimisation error after t steps of gradient descent over its law, worst of t = {listed(STEPS)}",
        "sum lambda_i c_i^2 (1 - eta lambda_i)^(2t) / 2",
        1.0,
        ratios[at],
        tolerance=TOLERANCE,
        planted=laws[1, at] / laws[0, at],
        wrong="power t in place of 2t",
    )
    return [claim], Curve("training risk less its minimum", times, measured, law=laws[0])


def optimisation(eigenvalues: Any, away: Any, step: float, powers: Any) -> np.ndarray:
    """sum lambda_i c_i^2 (1 - eta lambda_i)^power / 2 at each power, c the start less the minimum along each direction."""
    kept = (1 - step * np.asarray(eigenvalues)) ** np.asarray(powers)[:, None]
    return kept @ (np.asarray(eigenvalues) * np.asarray(away) ** 2) / 2


def excess_law(
    hessian: np.ndarray, second: np.ndarray, away: np.ndarray, step: float, times: Any = STEPS
) -> tuple[np.ndarray, np.ndarray]:
    """m x excess test risk after t steps from theta* + Delta / sqrt(m): what is not unlearnt yet, and what was fitted.

    To leading order in 1/m the iterate is theta* + (1 - (1 - eta H)^t) (estimate - theta*) + (1 - eta H)^t Delta, so that
    parts are sum lambda_i Delta_i^2 (1 - eta lambda_i)^(2t) / 2 and sum (1 - (1 - eta lambda_i)^t)^2 J_ii / lambda_i / 2,
    which tend to 0 and tr(H^-1 J) / 2 (derived here). `away` is Delta, `second` J.
    """
    times = np.asarray(times)
    eigenvalues, vectors = np.linalg.eigh(hessian)
    spread = np.einsum("pi,pq,qi->i", vectors, second, vectors) / eigenvalues
    kept = (1 - step * eigenvalues) ** times[:, None]
    return optimisation(eigenvalues, vectors.T @ away, step, 2 * times), (1 - kept) ** 2 @ spread / 2


def _iterates(
    rng: np.random.Generator, known: Population, batches: list[learning.Sequences], replicates: int
) -> tuple[list[Claim], Curve]:
    signs = rng.choice([-1.0, 1.0], len(known.eigenvalues))
    away = START * signs / np.sqrt(known.eigenvalues * len(known.eigenvalues))
    training, test = (learning.draw_sequences(rng, (replicates, 2 * SEQUENCES), TOKENS) for _ in range(2))
    halves = [
        jax.tree.map(lambda leaf, part=part: leaf[:, part], training)
        for part in (slice(None, SEQUENCES), slice(SEQUENCES, None))
    ]
    first, second, both = (_excess(known, away, seen, test) for seen in (*halves, training))
    # Twice the value at 2m less that at m has no term of order 1/m.
    start = known.vectors @ away
    unlearnt, fitted = excess_law(known.hessians.mean(0), known.seconds.mean(0), start, known.step)
    full = unlearnt + learning.trace(known.hessians.mean(0), known.seconds.mean(0)) / 2
    leading = np.array([_leading(known, batch) for batch in batches]) + unlearnt
    columns = (2 * both - (first + second) / 2).T
    measured = [
        combined(mean_of(column), Mean(float(drawn))) for column, drawn in zip(columns, leading.mean(0), strict=True)
    ]
    # The law's error and that of what was taken from the measured excess have the same sequences behind them.
    uncertain = [
        jackknife(partial(_over_leading, place=place, away=start, step=known.step), [*known[1:3], leading])
        for place in range(len(STEPS))
    ]
    laws = [each._replace(value=float(law)) for each, law in zip(uncertain, unlearnt + fitted, strict=True)]
    times = f"t = {listed(STEPS)}"
    law = "sum lambda D^2 (1 - eta lambda)^2t / 2 + sum (1 - (1 - eta lambda)^t)^2 J / lambda / 2"
    claims = [
        Claim(
            f"m x excess test risk after {step} steps, m -> infinity: not unlearnt yet plus fitted",
            law,
            total,
            mean,
            planted=wrong,
            wrong=name,
        )
        for step, total, mean, wrong, name in zip(
            STEPS,
            laws,
            measured,
            [*full[:2], fitted[2], unlearnt[3]],
            [
                *["all of tr(H^-1 J) / 2 from the first step on"] * 2,
                "without the optimisation error",
                "without what was fitted",
            ],
            strict=True,
        )
    ]
    literal = worst(
        f"risk = best risk + tr(H^-1 J) / 2m + optimisation error of the start, worst of {times}",
        "tr(H^-1 J) / 2 + sum lambda D^2 (1 - eta lambda)^2t / 2",
        full.tolist(),
        measured,
        literal=True,
    )
    return [*claims, literal], curve_of("m x excess test risk", STEPS, measured, unlearnt + fitted)


def _over_leading(
    hessian: np.ndarray, second: np.ndarray, leading: np.ndarray, *, place: int, away: np.ndarray, step: float
) -> float:
    """The law less what the leading order was found to be, at one number of steps."""
    unlearnt, fitted = excess_law(hessian, second, away, step)
    return float((unlearnt + fitted - leading)[place])


def _excess(known: Population, away: np.ndarray, training: learning.Sequences, test: learning.Sequences) -> np.ndarray:
    """m x excess of each replicate (R, step), less its leading order, averaged over starts on both sides of the optimum.

    Odd powers of 1 / sqrt(m) cancel between the two.
    """
    count = training.targets.shape[1]
    sides = np.array([1.0, -1.0])[:, None, None]
    starts = known.optimum + sides[:, 0] * (known.vectors @ away) / np.sqrt(count)
    excess, slopes = (np.asarray(found) for found in _measured(known.optimum, starts, training, test, known.step))
    kept = (1 - known.step * known.eigenvalues) ** np.array(STEPS)[:, None]
    # Along eigenvectors, times sqrt(m): where the quadratic approximation has the iterate.
    estimate = -np.sqrt(count) * slopes @ known.vectors / known.eigenvalues
    leading = (1 - kept) * estimate[:, None, None] + sides * kept * away
    quadratic = np.sum(known.eigenvalues * leading**2, -1) / 2
    return np.mean(count * excess - quadratic, 1)


def _leading(known: Population, batch: learning.Sequences) -> np.ndarray:
    """Mean of what is fitted in the quadratic that `_excess` takes off, by gradients of a batch, shape (step,)."""
    gradients = np.asarray(_gradients(known.optimum, batch)) @ known.vectors
    fitted = 1 - (1 - known.step * known.eigenvalues) ** np.array(STEPS)[:, None]
    return (gradients**2).mean(0) @ (fitted**2 / known.eigenvalues).T / 2


_gradients = jax.jit(jax.jacfwd(learning.losses))


@jax.jit
def _measured(optimum, starts, training, test, step):
    """Excess test risk of iterates less its first-order change (replicate, start, step), and slopes of training risks."""

    def one(pair):
        seen, unseen = pair
        slope = jax.grad(learning.risk)(optimum, unseen)
        best = learning.risk(optimum, unseen)
        excess = jax.vmap(jax.vmap(lambda at: learning.risk(at, unseen) - best - (at - optimum) @ slope))
        reached = jax.vmap(lambda start: iterates(start, seen, step))(starts)
        return excess(reached), jax.grad(learning.risk)(optimum, seen)

    return jax.lax.map(one, (training, test))
