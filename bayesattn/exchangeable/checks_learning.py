"""Checks of EXCHANGEABILITY sections 5 and 6: what is learnt, supervised and by masked tokens, and how it generalises."""

import itertools

import numpy as np

from bayesattn import exchangeable as ex
from bayesattn.exchangeable import learning, pretraining
from bayesattn.exchangeable.claims import Claim, Curve, Findings, Mean, mean_of

TOKENS = (8, 32, 128)
POPULATION = 40_000
SEQUENCES = 400
REPLICATES = 300
NOISE, PRIOR, VALUES = 0.5, 1.0, 2
IRREDUCIBLE = VALUES * NOISE**2
AGREEMENT = 0.15


def supervised(seed: int) -> Findings:
    """Section 5: the gap of test and training risk does not grow with the number of tokens."""
    rng = np.random.default_rng(seed)
    start = np.concatenate([2 * np.eye(2).ravel(), np.eye(VALUES).ravel()])
    claims = [_lipschitz(rng, start)]
    gaps, traces, approximation, optima = [], [], [], []
    for tokens in TOKENS:
        population = learning.draw_sequences(rng, POPULATION, tokens)
        optima.append(learning.fit(start, population))
        traces.append(learning.sharp_law(optima[-1], population).trace)
        approximation.append(mean_of(learning.losses(optima[-1], population)))
        found = _generalise(rng, optima[-1], SEQUENCES, tokens)
        gaps.append(mean_of(SEQUENCES * found.gap))
        claims.append(
            Claim(
                5,
                f"m x gap of test and training risk, n = {tokens}, m = {SEQUENCES}",
                "tr(H^-1 J), within 15 %",
                traces[-1],
                gaps[-1].value,
                error=gaps[-1].error,
                within=AGREEMENT * traces[-1],
            )
        )
        excess = mean_of(SEQUENCES * found.excess)
        claims.append(
            Claim(
                5,
                f"m x excess risk, n = {tokens}, m = {SEQUENCES}",
                "tr(H^-1 J) / 2, within 15 %",
                traces[-1] / 2,
                excess.value,
                error=excess.error,
                within=AGREEMENT * traces[-1] / 2,
            )
        )
    for tokens, gap in zip(TOKENS[1:], gaps[1:], strict=True):
        claims.append(
            Claim(
                5,
                f"the gap does not grow with n: m x gap at n = {tokens} against n = {TOKENS[0]}",
                "<= that at n = 8",
                gaps[0].value,
                gap.value,
                "<=",
                error=float(np.hypot(gap.error, gaps[0].error)),
            )
        )
    left = [risk.value - IRREDUCIBLE for risk in approximation]
    for (fewer, before), (more, after) in itertools.pairwise(zip(TOKENS, left, strict=True)):
        statement = f"approximation error A(n) falls from n = {fewer} to {more}"
        claims.append(Claim(5, statement, f"below A({fewer})", before, after, "<="))
    counts = np.array([200, 400, 800, 1600])
    several = [mean_of(_generalise(rng, optima[0], m, TOKENS[0]).gap) for m in counts]
    found = _power(counts, several)
    claims.append(Claim(5, "gap against m, slope (n = 8, m = 200 .. 1600)", "-1", -1.0, found.value, error=found.error))
    suprema = _suprema(rng, optima[0], counts)
    found = _power(counts, suprema)
    claims.append(
        Claim(
            5, "sup over theta of |test - training risk| against m, slope", "-1/2", -0.5, found.value, error=found.error
        )
    )
    by_tokens = Curve("m x gap", np.array(TOKENS), *np.array(gaps).T, law=np.array(traces))
    return Findings(claims, {"gap": [by_tokens]})


def _generalise(
    rng: np.random.Generator, optimum: learning.Parameters, count: int, tokens: int
) -> learning.Generalisation:
    """Replicates in batches that fit into memory."""
    batch = max(1, min(REPLICATES, 2**24 // (4 * count * tokens)))
    found = []
    while sum(len(part.gap) for part in found) < REPLICATES:
        draw = [learning.draw_sequences(rng, (batch, size), tokens) for size in (count, 2 * count)]
        found.append(learning.generalise(optimum, *draw))
    return learning.Generalisation(*(np.concatenate(parts)[:REPLICATES] for parts in zip(*found, strict=True)))


def _lipschitz(rng: np.random.Generator, start: np.ndarray) -> Claim:
    """Largest change of f_theta over its bound, over random parameters and any number of tokens."""
    worst = 0.0
    for tokens in TOKENS:
        data = learning.draw_sequences(rng, 1000, tokens)
        most_value = float(np.linalg.norm(data.values, axis=-1).max())
        for _ in range(20):
            first, second = (start + rng.normal(size=len(start)) for _ in range(2))
            change = np.asarray(learning.attend(first, data) - learning.attend(second, data))
            (a, w), (a_other, w_other) = ((p[:4].reshape(2, 2), p[4:].reshape(2, 2)) for p in (first, second))
            norm = max(np.linalg.norm(w, 2), np.linalg.norm(w_other, 2))
            apart = (float(np.linalg.norm(a - a_other, 2)), float(np.linalg.norm(w - w_other, 2)))
            bound = learning.lipschitz_bound(*apart, most_value, 1.0, float(norm))
            worst = max(worst, float(np.linalg.norm(change, axis=-1).max()) / bound)
    return Claim(
        5, "change of f_theta over its bound, n = 8, 32, 128", "R_v |W-W'| + 2 B_W R_v R_k^2 |A-A'|", 1.0, worst, "<="
    )


def _suprema(rng: np.random.Generator, optimum: learning.Parameters, counts: np.ndarray) -> list[Mean]:
    """E sup over parameters around the optimum of |test - training risk|."""
    tried = np.asarray(optimum) + rng.normal(size=(64, len(optimum)))
    population = learning.draw_sequences(rng, 200_000, TOKENS[0])
    risks = np.array([learning.risk(p, population) for p in tried])
    found = []
    for count in counts:
        data = learning.draw_sequences(rng, (100, int(count)), TOKENS[0])
        found.append(
            mean_of(np.max(np.abs([learning.risk(p, data) - r for p, r in zip(tried, risks, strict=True)]), axis=0))
        )
    return found


def _power(x: np.ndarray, means: list[Mean]) -> Mean:
    """Slope of the logarithm of means against log x."""
    centred = np.log(x) - np.log(x).mean()
    weights = centred / (centred @ centred)
    values, errors = np.array(means).T
    return Mean(float(weights @ np.log(values)), float(np.linalg.norm(weights * errors / values)))


CONDITIONS = (1.0, 10.0, 100.0, 1000.0, 10000.0)
MASKED = {"tokens": 64, "noise": 0.3, "prior": 1.0}
PRETRAINING_SEQUENCES = 40
"""Few, so that what is not learnt outweighs what linear attention cannot express."""


def pretrained(seed: int) -> Findings:
    """Section 6: the condition number decides what masked-token pretraining is worth downstream."""
    rng = np.random.default_rng(seed)
    claims, excesses, downstream, bounds = [], [], [], []
    weak = np.zeros((VALUES, 3))
    weak[0, 2] = 1.0
    for condition in CONDITIONS:
        variances = pretraining.key_variances(condition)
        known = pretraining.moments(rng, variances=variances, **MASKED)
        learnt = [
            pretraining.learn(
                pretraining.draw(rng, PRETRAINING_SEQUENCES, variances=variances, value_features=VALUES, **MASKED)
            )
            for _ in range(2000)
        ]
        excesses.append(mean_of([pretraining.pretraining_excess(theta, variances, known, VALUES) for theta in learnt]))
        downstream.append(mean_of([pretraining.downstream_excess(theta, weak, known) for theta in learnt]))
        readouts = [weak, *rng.normal(size=(20, VALUES, 3))]
        bounds.append(
            max(
                pretraining.downstream_excess(theta, b, known)
                / pretraining.transfer_coefficient(b, variances)
                / pretraining.pretraining_excess(theta, variances, known, VALUES)
                for theta in learnt[:50]
                for b in readouts
            )
        )
    claims += _moments(rng)
    excess, errors = np.array(excesses).T
    claims.append(
        Claim(
            6,
            "pretraining excess at condition number 10000 against 1",
            "does not grow",
            excess[0],
            excess[-1],
            "<=",
            error=float(np.hypot(errors[0], errors[-1])),
        )
    )
    claims.append(
        Claim(
            6,
            "downstream excess / (tr(B C^-1 B^T) x pretraining excess), worst of 5250",
            "<= 1",
            1.0,
            max(bounds),
            "<=",
        )
    )
    growth = [_power(np.array(CONDITIONS[i : i + 2]), downstream[i : i + 2]) for i in range(len(CONDITIONS) - 1)]
    claims.append(
        Claim(
            6,
            "downstream excess in the weak direction: exponent rises with the condition number",
            f"above {growth[0].value:.2f} (1 .. 10)",
            growth[0].value,
            growth[-1].value,
            ">=",
        )
    )
    claims.append(
        Claim(
            6,
            "its local exponent, condition number 1000 .. 10000",
            "-> 1, here within 0.1",
            1.0,
            growth[-1].value,
            error=growth[-1].error,
            within=0.1,
        )
    )
    x = np.array(CONDITIONS)
    panel = [
        Curve("pretraining excess", x, excess, errors),
        Curve("downstream excess, weak direction (line: bound)", x, *np.array(downstream).T, law=excess * x),
    ]
    return Findings(claims + _finite(rng), {"condition": panel})


def _moments(rng: np.random.Generator) -> list[Claim]:
    """Closed forms of the second moments against draws: excess risk of a fixed Theta."""
    variances = pretraining.key_variances(10.0)
    known = pretraining.moments(rng, variances=variances, **MASKED)
    theta = pretraining.best(known)
    drawn = pretraining.draw(rng, 20000, variances=variances, value_features=VALUES, **MASKED)
    loss = np.sum((drawn.targets - np.einsum("svf,fg,sg->sv", drawn.covariances, theta, drawn.queries)) ** 2, 1)
    # Risk = irreducible noise + Bayes risk of z_bar + excess.
    bayes = VALUES * np.sum(variances * (MASKED["prior"] ** 2 - np.diag(known.posterior)))
    predicted = VALUES * MASKED["noise"] ** 2 + bayes + pretraining.pretraining_excess(theta, variances, known, VALUES)
    measured = mean_of(loss)
    return [
        Claim(
            6,
            "risk of masked prediction at the best Theta, condition number 10",
            "noise + Bayes risk + excess",
            predicted,
            measured.value,
            error=measured.error,
        )
    ]


def _finite(rng: np.random.Generator) -> list[Claim]:
    """Finite latents: what masked prediction identifies."""
    emission = rng.dirichlet(np.ones(5), size=4).T
    readout = rng.normal(size=(2, 4))
    found = ex.transfer(emission, readout)
    changes = rng.normal(size=(2000, 4))
    changes -= changes.mean(1, keepdims=True)
    ratios = np.linalg.norm(changes @ readout.T, axis=1) / np.linalg.norm(changes @ emission.T, axis=1)
    claims = [
        Claim(
            6,
            "finite z: |H d| / |T d|, worst of 2000 random d",
            "|H Q (T Q)^+|",
            found.factor,
            float(ratios.max()),
            "<=",
            tolerance=1e-10,
        )
    ]
    d = found.direction
    attained = np.linalg.norm(readout @ d) / np.linalg.norm(emission @ d)
    claims.append(
        Claim(
            6, "the worst direction by SVD attains it", "|H Q (T Q)^+|", found.factor, float(attained), tolerance=1e-10
        )
    )
    blind = emission.copy()
    blind[:, 3] = blind[:, 2]
    unseen = ex.transfer(blind, readout).direction
    seen = float(np.linalg.norm(blind @ unseen))
    claims.append(
        Claim(
            6,
            "sigma_min(T Q) = 0: masked prediction is blind to a change of pi",
            "|T d| = 0",
            0.0,
            seen,
            tolerance=1e-10,
        )
    )
    moved = float(np.linalg.norm(readout @ unseen))
    claims.append(
        Claim(6, "that change moves the downstream task: no pretraining helps", "|H d| > 0", 1e-3, moved, ">=")
    )
    return claims
