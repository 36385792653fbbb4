"""Checks of EXCHANGEABILITY section 5: what is learnt, supervised, and how it generalises."""

import jax
import numpy as np
from scipy import linalg

from reproductions.claims import Claim, Findings, Mean, Panel, combined, curve_of, jackknife, listed, mean_of, worst
from reproductions.tokens import learning
from reproductions.tokens.simulation import NOISE, NUMBER, RISK_GAP

TOKENS = (8, 32, 128)
POPULATION = (40_000, 20_000, 8_000)
"""Sequences for the law, by the number of tokens."""
BATCHES = 20
SEQUENCES = 800
"""m: with fewer some minima lie far away, and no law for many sequences holds."""
REPLICATES = (150, 70, 30)
"""Number of training sets of 2m sequences and their halves, by the number of tokens."""
FAST_SHARE = 0.5
"""Share of the training sets and of the population in the fast mode."""
THETAS = 24
VALUES = 2
MOST_KEY = 1.7
"""R_k, so that its power in the bound matters."""


def supervised(rng: np.random.Generator, fast: bool = False) -> Findings:
    """Section 5: test and training risk, and how their gap depends on the numbers of sequences and tokens."""
    share = FAST_SHARE if fast else 1.0
    gaps, traces, claims = [], [], _lipschitz()
    approximation, slopes, suprema = [], [], []
    for tokens, population, replicates in zip(TOKENS, POPULATION, REPLICATES, strict=True):
        population, replicates = round(share * population), round(share * replicates)
        optimum = learning.population_optimum(tokens)
        batches = [learning.draw_sequences(rng, population // BATCHES, tokens) for _ in range(BATCHES)]
        averaged = [learning.expected_targets(batch) for batch in batches]
        moments = [learning.moments(optimum.parameters, *pair) for pair in averaged]
        hessians, seconds = (np.array(matrices) for matrices in zip(*moments, strict=True))
        losses = np.concatenate([_losses(optimum.parameters, batch) for batch in batches])
        approximation.append((VALUES * NOISE**2 + optimum.approximation, mean_of(losses)))
        gradients = np.array([_slope(optimum.parameters, batch) for batch, _ in averaged])
        slopes += [mean_of(column) for column in gradients.T]
        trace = jackknife(learning.trace, [hessians, seconds])
        traces.append(trace)
        suprema += _suprema(rng, optimum.parameters, batches)
        left = _generalise(rng, optimum.parameters, hessians.mean(0), SEQUENCES, replicates, tokens)
        drawn = np.concatenate([learning.quadratics(optimum.parameters, hessians.mean(0), batch) for batch in batches])
        of = f"n = {tokens}, m = {SEQUENCES} and {2 * SEQUENCES} -> infinity"
        for name, part in (("gap of test and training risk", 1.0), ("excess risk", 0.5)):
            measured = combined(mean_of(left[part]), mean_of(part * drawn))
            law = f"tr(H^-1 J){' / 2' if part == 0.5 else ''}"
            claims.append(Claim(f"m x {name}, {of}", law, trace.times(part), measured))
            if part == 1:
                gaps.append(measured)
    laws, measured = zip(*approximation, strict=True)
    claims += [
        worst(
            f"risk at the optimum, worst of n = {listed(TOKENS)} (A(n) = "
            + f"{listed([law - VALUES * NOISE**2 for law in laws], '.3f')})",
            "d_v sigma^2 + A(n), exactly",
            laws,
            measured,
        ),
        worst("slope of the risk at A = kappa I, W = w I: worst entry", "0", [0.0] * len(slopes), slopes),
        worst(
            f"max over {THETAS} theta of |test - training risk| / law, worst of n = {listed(TOKENS)}, m = 100, 400",
            "E max |N(0, covariance of losses / m)|",
            *zip(*suprema, strict=True),
        ),
        Claim(
            f"m x gap is the same at n = {TOKENS[0]} and {TOKENS[-1]}: its ratio",
            "1",
            1.0,
            _ratio(gaps[-1], gaps[0]),
            literal=True,
        ),
    ]
    curve = curve_of("m x gap", TOKENS, gaps, np.array([trace.value for trace in traces]))
    panel = Panel("Supervised: no growth with n", NUMBER, RISK_GAP, [curve])
    return Findings.of_row("tokens-generalisation", claims, panel)


_slope = jax.jit(jax.grad(learning.risk))
_losses = jax.jit(learning.losses)


def _ratio(top: Mean, bottom: Mean) -> Mean:
    """Ratio of independent means, whose errors are small beside them."""
    relative = combined(top.times(1 / top.value), bottom.times(1 / bottom.value), -1.0)
    return Mean(1.0, *relative[1:]).times(top.value / bottom.value)


def _generalise(
    rng: np.random.Generator,
    optimum: learning.Parameters,
    hessian: np.ndarray,
    sequences: int,
    replicates: int,
    tokens: int,
) -> dict[float, np.ndarray]:
    """m x gap and m x excess of each replicate, less m G^T H^-1 G and its half, for m -> infinity; keys 1 and 1/2.

    m G^T H^-1 G has the same mean for every m, whatever the matrix H: that of g^T H^-1 g for one sequence, which is drawn
    apart. It explains most of the variance. What is left has mean b + c / m + O(1/m^2), and twice its value at 2m less that
    at m has no c.
    """
    count = -(-replicates * 8 * sequences * tokens // 2**24)
    batch, parts = -(-replicates // count), []
    for _ in range(count):
        training, test = (learning.draw_sequences(rng, (batch, 2 * sequences), tokens) for _ in range(2))
        halves = [
            jax.tree.map(lambda leaf, part=part: leaf[:, part], training)
            for part in (slice(None, sequences), slice(sequences, None))
        ]
        several = [learning.generalise(optimum, hessian, seen, test) for seen in (*halves, training)]
        parts.append(np.array(several))
    first, second, both = np.concatenate(parts, 2)[:, :, :replicates]
    fewer, more = sequences * (first + second) / 2, 2 * sequences * both
    return {
        share: 2 * (more[row] - share * more[2]) - (fewer[row] - share * fewer[2])
        for row, share in ((0, 1.0), (1, 0.5))
    }


def _lipschitz() -> list[Claim]:
    """Largest change of f_theta over its bound, in cases made to come close, at every number of tokens."""
    start, law = np.concatenate([2 * np.eye(2).ravel(), np.eye(VALUES).ravel()]), "R_v |W-W'| + 2 B_W R_v R_k^2 |A-A'|"
    along_w, along_a = [], []
    for tokens in TOKENS:
        # Tokens that are alike: f = W v, along the direction in which W changes most.
        other = start.copy()
        other[4:] += np.array([[0.5, 0.0], [0.0, 0.1]]).ravel()
        key, value = np.array([MOST_KEY, 0.0]), np.array([1.5, 0.0])
        signs = np.ones((tokens, 1))
        along_w.append(_over_bound(_sequence(key, signs * key, signs * value), start, other))
        # Opposite halves: f = tanh(q^T A k) W v, whose slope at A = 0 is half of the bound.
        signs[::2] = -1
        first, second = np.concatenate([np.zeros(4), start[4:]]), np.concatenate([[1e-4, 0, 0, 0], start[4:]])
        along_a.append(_over_bound(_sequence(key, signs * key, signs * value), first, second))
    of = f"n = {listed(TOKENS)}"
    off_w, off_a = (max(along, key=lambda one, at=at: abs(one - at)) for along, at in ((along_w, 1.0), (along_a, 0.5)))
    return [
        Claim(
            f"Lipschitz bound, W: change of f_theta over it, alike tokens, {of}: attained",
            law,
            1.0,
            off_w,
            tolerance=1e-10,
        ),
        Claim(
            f"Lipschitz bound, A: the same, opposite tokens, A near 0, {of}: half of it",
            law,
            0.5,
            off_a,
            tolerance=1e-6,
        ),
    ]


def _sequence(query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> learning.Sequences:
    return learning.Sequences(query[None], keys[None], values[None], values[:1])


def _over_bound(data: learning.Sequences, first: np.ndarray, second: np.ndarray) -> float:
    change = np.asarray(learning.attend(first, data) - learning.attend(second, data))
    (a, w), (a_other, w_other) = ((p[:4].reshape(2, 2), p[4:].reshape(2, 2)) for p in (first, second))
    most_value, most_key = (float(np.linalg.norm(vectors, axis=-1).max()) for vectors in (data.values, data.keys))
    norm = float(max(np.linalg.norm(w, 2), np.linalg.norm(w_other, 2)))
    apart = (float(np.linalg.norm(a - a_other, 2)), float(np.linalg.norm(w - w_other, 2)))
    return float(np.linalg.norm(change, axis=-1).max()) / learning.lipschitz_bound(*apart, most_value, most_key, norm)


def _suprema(
    rng: np.random.Generator, optimum: learning.Parameters, batches: list[learning.Sequences]
) -> list[tuple[Mean, Mean]]:
    """E sup over parameters drawn around the optimum of |risk of m sequences - risk of all|, its law (as 1) and over it.

    By the central limit theorem the differences are normal with the covariance of losses times 1/m - 1/M, M being the whole
    population, up to O(1/m): the terms of order m^(-1/2) are odd, and the maximum of absolute values is even.
    """
    tried = np.asarray(optimum) + rng.normal(size=(THETAS, len(optimum)))
    losses = np.concatenate([[_losses(p, batch) for p in tried] for batch in batches], 1)
    size = losses.shape[1]
    normal = mean_of(np.max(np.abs(rng.normal(size=(40_000, THETAS)) @ linalg.cholesky(np.cov(losses))), 1))
    # The law's own error: that of the largest variance.
    top = losses[np.argmax(losses.var(1))]
    spread = mean_of((top - top.mean()) ** 2)
    own = np.hypot(normal.error / normal.value, spread.error / spread.value / 2)
    centred, pairs = losses - losses.mean(1, keepdims=True), []
    for count in (100, 400):
        groups = centred.reshape(THETAS, size // count, count).mean(2)
        measured = mean_of(np.max(np.abs(groups), 0) / (normal.value * np.sqrt(1 / count - 1 / size)))
        pairs.append((Mean(1.0, float(own)), measured))
    return pairs
