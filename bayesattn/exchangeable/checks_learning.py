"""Checks of EXCHANGEABILITY sections 5 and 6: what is learnt, supervised and by masked tokens, and how it generalises."""

import itertools

import jax
import numpy as np

from bayesattn import exchangeable as ex
from bayesattn.exchangeable import learning, pretraining
from bayesattn.exchangeable.claims import STANDARD_ERRORS, Claim, Curve, Findings, Mean, exponent, mean_of

TOKENS = (8, 32, 128)
POPULATION = 40_000
SEQUENCES = 400
REPLICATES = 300
NOISE, PRIOR, VALUES = 0.5, 1.0, 2
IRREDUCIBLE = VALUES * NOISE**2
AGREEMENT = 0.15
MOST_KEY = 1.7
"""R_k, so that its power in the bound matters."""


def supervised(seed: int) -> Findings:
    """Section 5: the gap of test and training risk does not grow with the number of tokens."""
    rng = np.random.default_rng(seed)
    start = np.concatenate([2 * np.eye(2).ravel(), np.eye(VALUES).ravel()])
    claims = _lipschitz(rng, start)
    gaps, traces, approximation, optima, slopes = [], [], [], [], []
    for tokens in TOKENS:
        population = learning.draw_sequences(rng, POPULATION, tokens)
        optima.append(learning.fit(start, population))
        slopes.append(float(np.abs(jax.grad(learning.risk)(optima[-1], population)).max()))
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
    left = [Mean(risk.value - IRREDUCIBLE, risk.error) for risk in approximation]
    for (fewer, before), (more, after) in itertools.pairwise(zip(TOKENS, left, strict=True)):
        statement = f"approximation error A(n) falls from n = {fewer} to {more}"
        least_fall = STANDARD_ERRORS * float(np.hypot(before.error, after.error))
        claims.append(
            Claim(5, statement, f"below A({fewer}), by 3 errors", before.value - least_fall, after.value, "<=")
        )
    claims.append(Claim(5, "largest slope of the risk at the minima found", "0", 1e-6, max(slopes), "<="))
    counts = np.array([200, 400, 800, 1600])
    several = [mean_of(_generalise(rng, optima[0], m, TOKENS[0]).gap) for m in counts]
    found = exponent(counts, several)
    claims.append(Claim(5, "gap against m, slope (n = 8, m = 200 .. 1600)", "-1", -1.0, found.value, error=found.error))
    suprema = _suprema(rng, optima[0], counts)
    found = exponent(counts, suprema)
    claims.append(
        Claim(
            5,
            "max over 64 theta of |test - training risk| against m, slope",
            "-1/2",
            -0.5,
            found.value,
            error=found.error,
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


def _lipschitz(rng: np.random.Generator, start: np.ndarray) -> list[Claim]:
    """Largest change of f_theta over its bound: over random parameters, and in cases made to come close."""
    worst = 0.0
    for tokens in TOKENS:
        data = learning.draw_sequences(rng, 1000, tokens)
        longer = data._replace(queries=MOST_KEY * data.queries, keys=MOST_KEY * data.keys)
        worst = max(worst, *(_over_bound(longer, *(start + rng.normal(size=(2, len(start))))) for _ in range(20)))
    # One token: f = W v, along the direction in which W changes most.
    first, second = start.copy(), start.copy()
    second[4:] += np.array([[0.5, 0.0], [0.0, 0.1]]).ravel()
    one = learning.Sequences(*map(np.asarray, ([[1.0, 0.0]], [[[1.0, 0.0]]], [[[2.0, 0.0]]], [[0.0, 0.0]])))
    along_w = _over_bound(one, first, second)
    # Two tokens with opposite keys and values: f = tanh(q^T A k) W v, whose slope at A = 0 is half of the bound.
    key, value = np.array([MOST_KEY, 0.0]), np.array([1.5, 0.0])
    two = learning.Sequences(key[None], np.stack([key, -key])[None], np.stack([value, -value])[None], value[None])
    first, second = np.concatenate([np.zeros(4), start[4:]]), np.concatenate([[1e-4, 0, 0, 0], start[4:]])
    along_a = _over_bound(two, first, second)
    law = "R_v |W-W'| + 2 B_W R_v R_k^2 |A-A'|"
    return [
        Claim(5, f"change of f_theta over its bound, n = 8, 32, 128, keys of norm {MOST_KEY}", law, 1.0, worst, "<="),
        Claim(5, "the same for one token and another W: attained", law, 1.0, along_w, tolerance=1e-10),
        Claim(5, "the same for two opposite tokens and another A near 0", "1/2", 0.5, along_a, tolerance=1e-6),
    ]


def _over_bound(data: learning.Sequences, first: np.ndarray, second: np.ndarray) -> float:
    change = np.asarray(learning.attend(first, data) - learning.attend(second, data))
    (a, w), (a_other, w_other) = ((p[:4].reshape(2, 2), p[4:].reshape(2, 2)) for p in (first, second))
    most_value, most_key = (float(np.linalg.norm(each, axis=-1).max()) for each in (data.values, data.keys))
    norm = float(max(np.linalg.norm(w, 2), np.linalg.norm(w_other, 2)))
    apart = (float(np.linalg.norm(a - a_other, 2)), float(np.linalg.norm(w - w_other, 2)))
    return float(np.linalg.norm(change, axis=-1).max()) / learning.lipschitz_bound(*apart, most_value, most_key, norm)


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
    claims += _closed_forms(rng, weak)
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
            "closed forms: downstream / (tr(B C^-1 B^T) x pretraining excess), worst of 5250",
            "<= 1",
            1.0,
            max(bounds),
            "<=",
        )
    )
    growth = [exponent(np.array(CONDITIONS[i : i + 2]), downstream[i : i + 2]) for i in range(len(CONDITIONS) - 1)]
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


def _closed_forms(rng: np.random.Generator, weak: np.ndarray) -> list[Claim]:
    """Both excess risks of a fixed Theta: closed forms against drawn z_hat - z_bar."""
    claims = []
    for condition in (CONDITIONS[0], 1000.0):
        variances = pretraining.key_variances(condition)
        known = pretraining.moments(rng, variances=variances, **MASKED)
        theta = 1.2 * pretraining.best(known)
        batch = pretraining.draw(rng, 20000, variances=variances, value_features=VALUES, **MASKED)
        precision = batch.keys.transpose(0, 2, 1) @ batch.keys
        precision += (MASKED["noise"] / MASKED["prior"]) ** 2 * np.eye(len(variances))
        difference = batch.covariances @ theta - MASKED["tokens"] * batch.covariances @ np.linalg.inv(precision)
        drawn = {
            "pretraining": np.sum(difference**2 * variances, (1, 2)),
            "downstream": np.einsum("vf,svf->s", weak, difference) ** 2,
        }
        closed = {
            "pretraining": pretraining.pretraining_excess(theta, variances, known, VALUES),
            "downstream": pretraining.downstream_excess(theta, weak, known),
        }
        for name, law in closed.items():
            measured = mean_of(drawn[name])
            claims.append(
                Claim(
                    6,
                    f"{name} excess of a fixed Theta, condition number {condition:g}: z_hat - z_bar drawn",
                    "closed form",
                    law,
                    measured.value,
                    error=measured.error,
                )
            )
    return claims


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
