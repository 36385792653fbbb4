"""Checks of EXCHANGEABILITY sections 1, 2 and 4: the exact posterior, attention as that posterior, sufficiency."""

import itertools

import numpy as np
from scipy import special

from bayesattn.models import LatentModel
from bayesattn.questions import exchangeable as ex
from bayesattn.samplers import sample
from reproductions.claims import Claim, Findings, Panel, curve_of, mean_of, worst
from reproductions.tokens.simulation import NOISE, NUMBER, PRIOR, RIDGE, answers

EXACT = 1e-10
CHAINS = 24
"""Independent chains, so that the error of what they draw needs no autocorrelations."""


def posterior(rng: np.random.Generator, fast: bool = False) -> Findings:
    """Section 1: three routes to the posterior, NUTS, exchangeability, evidence."""
    features, queries = rng.normal(size=(12, 3)), rng.normal(size=(5, 3))
    values = features @ rng.normal(size=(2, 3)).T + NOISE * rng.normal(size=(12, 2))
    gram, cross, diagonal = features @ features.T, features @ queries.T, np.sum(queries**2, 1)
    primal = ex.query_posterior(features, values, queries, NOISE, PRIOR)
    dual = ex.dual_posterior(gram, cross, diagonal, values, NOISE, PRIOR)
    # Conditioning of the joint Gaussian of values and z phi(q).
    joint = PRIOR**2 * np.block([[gram, cross], [cross.T, queries @ queries.T]])
    joint[:12, :12] += NOISE**2 * np.eye(12)
    gain = np.linalg.solve(joint[:12, :12], joint[:12, 12:]).T
    conditional = gain @ values, np.diag(joint[12:, 12:] - gain @ joint[:12, 12:])
    apart = [
        np.max(np.abs(np.asarray(a) - np.asarray(b)))
        for other in (dual, conditional)
        for a, b in zip(primal, other, strict=True)
    ]
    found = Findings()
    statement = "posterior of z phi(q): features = kernels = conditioning"
    found.add("tokens-cme", Claim(statement, "0", 0.0, float(max(apart)), tolerance=EXACT))
    evidence = ex.log_evidence(gram, values, NOISE, PRIOR)
    order = rng.permutation(12)
    permuted = ex.log_evidence(gram[np.ix_(order, order)], values[order], NOISE, PRIOR)
    chained = 0.0
    for token in range(12):
        mean, variance = np.zeros((1, 2)), np.array([PRIOR**2 * gram[token, token]])
        if token:
            mean, variance = ex.query_posterior(features[:token], values[:token], features[[token]], NOISE, PRIOR)
        spread = float(variance[0]) + NOISE**2
        chained -= float(np.sum((values[token] - np.asarray(mean[0])) ** 2)) / (2 * spread) + np.log(2 * np.pi * spread)
    found.add(
        "tokens-latent",
        Claim("tokens are exchangeable: log p(V) after a permutation", "same", evidence, permuted, tolerance=EXACT),
        Claim(
            "log evidence = sum of log predictives, token by token",
            "sum_i log p(v_i | v_<i)",
            chained,
            evidence,
            tolerance=EXACT,
        ),
    )
    model = LatentModel(features=features, values=values, noise=NOISE, prior=PRIOR, query_features=queries)
    drawn = sample(
        model,
        parameterisation="latent",
        chains=CHAINS,
        warmup=200,
        draws=300,
        seed=int(rng.integers(2**31)),
        progress=False,
    )
    exact = ex.latent_posterior(features, values, NOISE, PRIOR)
    off = drawn["posterior"]["latent"].values - np.asarray(exact.mean)
    deviations = np.sqrt(np.diag(exact.covariance))
    found.add("tokens-cme", *chain_claims("NUTS draws of z", ("V^T Phi M", "sigma^2 M"), off / deviations))
    return found


def chain_claims(name: str, laws: tuple[str, str], standardised: np.ndarray) -> list[Claim]:
    """Draws less their exact mean, in exact deviations (chain, draw, ..): mean 0 and mean square 1.

    Chains are independent, so each entry's mean has a Student's t error over chains.
    """
    means, squares = standardised.mean(1), (standardised**2).mean(1)
    entries = [mean_of(entry) for entry in means.reshape(len(means), -1).T]
    shape = "".join(f" x {size}" for size in standardised.shape[2:])[3:]
    return [
        worst(
            f"{name}: mean off the exact one, in deviations, worst of {shape}", laws[0], [0.0] * len(entries), entries
        ),
        Claim(
            f"{name}: mean square about the exact mean, over the exact variance",
            laws[1],
            1.0,
            mean_of(squares.reshape(len(squares), -1).mean(1)),
        ),
    ]


def attention(rng: np.random.Generator, fast: bool = False) -> Findings:
    """Section 2: which attention is the posterior mean."""
    shape = (3, 4)  # batch, heads
    keys, queries = ex.uniform(rng, *shape, 20, 3), ex.uniform(rng, *shape, 5, 3)
    values = rng.normal(size=(*shape, 20, 2))
    cme = ex.cme_attention(queries, keys, values, ridge=RIDGE, kernel="linear")
    exact = [
        [ex.query_posterior(keys[b, h], values[b, h], queries[b, h], NOISE, PRIOR).mean for h in range(4)]
        for b in range(3)
    ]
    off = float(np.max(np.abs(np.asarray(cme) - np.asarray(exact))))
    claims = [Claim("CME attention at sigma^2/tau^2 is the posterior mean", "0", 0.0, off, tolerance=EXACT)]
    gram, cross = (
        ex.gram("exponential", keys[0, 0], keys[0, 0], 0.5),
        ex.gram("exponential", keys[0, 0], queries[0, 0], 0.5),
    )
    diagonal = np.diag(ex.gram("exponential", queries[0, 0], queries[0, 0], 0.5))
    process = ex.dual_posterior(gram, cross, diagonal, values[0, 0], NOISE, PRIOR).mean
    cme = ex.cme_attention(queries, keys, values, ridge=RIDGE, bandwidth=0.5)[0, 0]
    off = float(np.max(np.abs(np.asarray(cme) - np.asarray(process))))
    claims.append(Claim("the same for the exponential kernel (a Gaussian process)", "0", 0.0, off, tolerance=EXACT))
    gaussian = ex.cme_attention(queries, keys, values, ridge=RIDGE, kernel="gaussian", bandwidth=0.5)
    same = ex.cme_attention(queries, keys, values, ridge=ex.same_ridge(RIDGE, 0.5), bandwidth=0.5)
    off = float(np.max(np.abs(np.asarray(gaussian) - np.asarray(same))))
    claims.append(
        Claim("CME: Gaussian(lambda) = exponential(lambda e^(1/gamma)) on the sphere", "0", 0.0, off, tolerance=EXACT)
    )

    def by_distance(points: np.ndarray, others: np.ndarray) -> np.ndarray:
        return np.exp(-np.sum((points[..., :, None, :] - others[..., None, :, :]) ** 2, -1) / (2 * 0.5))

    solved = np.linalg.solve(by_distance(keys, keys) + RIDGE * np.eye(20), values)
    off = float(np.max(np.abs(np.asarray(gaussian) - by_distance(queries, keys) @ solved)))
    claims.append(Claim("CME, Gaussian kernel: by distances between points", "0", 0.0, off, tolerance=EXACT))
    weights = by_distance(queries, keys)
    averaged = weights @ values / weights.sum(-1, keepdims=True)
    off = float(
        np.max(np.abs(np.asarray(averaged) - np.asarray(ex.softmax_attention(queries, keys, values, bandwidth=0.5))))
    )
    claims.append(Claim("softmax: Gaussian kernel's weights = exponential kernel's", "0", 0.0, off, tolerance=EXACT))
    shape = (20, 4)
    keys, queries = ex.uniform(rng, *shape, 20, 3), ex.uniform(rng, *shape, 5, 3)
    values, _ = answers(rng, keys, queries, 2, NOISE, PRIOR)
    means = {
        "CME": ex.cme_attention(queries, keys, values, ridge=RIDGE, kernel="linear"),
        "softmax": ex.softmax_attention(queries, keys, values, bandwidth=0.5),
    }
    for name, mean in means.items():
        divergences = []
        for place in np.ndindex(shape):
            exact = ex.query_posterior(keys[place], values[place], queries[place], NOISE, PRIOR)
            divergences.append(float(np.mean(ex.posterior_error(mean[place], exact, NOISE))))
        statement = f"{name} attention is the posterior mean: KL of the predictives, mean of 80 sequences"
        if name == "CME":
            claims.append(Claim(statement, "0", 0.0, max(divergences), tolerance=EXACT))
        else:
            claims.append(Claim(statement, "0", 0.0, mean_of(divergences), literal=True))
    return Findings.of_row("tokens-cme", claims)


GENERIC = ex.FiniteLatent([0.5, 0.3, 0.2], [[0.6, 0.1, 0.3], [0.3, 0.2, 0.5], [0.1, 0.7, 0.2]])
ALIKE = ex.FiniteLatent([0.35, 0.35, 0.3], [[0.5, 0.2, 0.3], [0.2, 0.5, 0.3], [0.3, 0.3, 0.4]])
"""Swapping the first two tokens swaps the first two latents."""
TOKENS = 4
READOUT = np.array([[0.7, 0.4, 0.1], [0.3, 0.6, 0.9]])


def sufficiency(rng: np.random.Generator, fast: bool = False) -> Findings:
    """Section 4: the posterior is sufficient and minimal, and concentrates exponentially fast."""
    sequences = GENERIC.sequences(TOKENS)
    joint, tasks = GENERIC.joint(sequences), READOUT @ GENERIC.joint(sequences)
    partition = ex.cells(GENERIC.posterior(sequences))
    found = Findings()
    for name, law in (("z", joint), ("y", tasks)):
        whole, kept = ex.mutual_information(law), ex.mutual_information(ex.merged(law, partition))
        statement = f"sufficient: I({name}; pi(X)) = I({name}; X)"
        found.add("tokens-sufficient", Claim(statement, f"{whole:.6f} nats", whole, kept, tolerance=1e-12))
    cells = ex.merged(joint, partition)
    found.add(
        "tokens-minimal",
        Claim(
            "cells of pi are the type classes (|Z| = 3, V = 3, n = 4)",
            "(n+V-1 choose V-1)",
            ex.type_classes(TOKENS, 3),
            partition.max() + 1,
        ),
        Claim(
            "minimal: least information lost by merging two cells",
            "weight x Jensen-Shannon divergence",
            min(_merging_loses(cells[:, a], cells[:, b]) for a, b in itertools.combinations(range(cells.shape[1]), 2)),
            ex.least_loss(joint, partition),
            tolerance=1e-14,
        ),
        Claim(
            "minimal: pairs of sequences that may be merged without loss (below 1e-12 nats)",
            "those that are permutations",
            _permutations(sequences),
            sum(_merging_loses(a, b) < 1e-12 for a, b in itertools.combinations(joint.T, 2)),
        ),
    )
    # A task that does not tell the first two latents apart needs fewer cells than pi has.
    sequences = ALIKE.sequences(TOKENS)
    posterior, task = ALIKE.posterior(sequences), np.array([[0.8, 0.8, 0.1], [0.2, 0.2, 0.9]])
    predictive = ex.cells(task @ posterior)
    whole = ex.mutual_information(task @ ALIKE.joint(sequences))
    kept = ex.mutual_information(ex.merged(task @ ALIKE.joint(sequences), predictive))
    of_posterior = int(ex.cells(posterior).max() + 1)
    found.add(
        "tokens-minimal",
        Claim(
            "a task blind to a swap: p(y | X) alone is sufficient for y",
            f"{whole:.6f} nats",
            whole,
            kept,
            tolerance=1e-12,
        ),
        Claim(
            "it has fewer cells than pi, one for each type class up to the swap",
            "(15 + 3) / 2",
            9,
            predictive.max() + 1,
        ),
        Claim(
            "pi is minimal for each single task: cells needed by this one",
            "as pi",
            of_posterior,
            predictive.max() + 1,
            literal=True,
        ),
    )
    features, values = rng.normal(size=(200, 3)), rng.normal(size=(200, 2))
    gaussian = ex.latent_posterior(features, values, NOISE, PRIOR)
    precision = np.linalg.inv(gaussian.covariance) * NOISE**2
    recovered = precision - RIDGE * np.eye(3), np.asarray(gaussian.mean) @ precision
    off = max(np.max(np.abs(recovered[0] - features.T @ features)), np.max(np.abs(recovered[1] - values.T @ features)))
    statement = "Gaussian: pi(X) gives back (Phi^T Phi, V^T Phi), of 12 numbers whatever n (here 200)"
    found.add("tokens-minimal", Claim(statement, "0", 0.0, float(off), tolerance=1e-8))
    counts = [25, 50, 100, 200, 400, 800]
    measured = [mean_of(GENERIC.log_odds(rng.multinomial(n, GENERIC.emission[:, 0], size=4000), 0) / n) for n in counts]
    exact = np.array([GENERIC.mean_log_odds(n, 0) / n for n in counts])
    growth = (counts[-1] * exact[-1] - counts[-2] * exact[-2]) / (counts[-1] - counts[-2])
    wrong = [GENERIC.mean_error(n, 0) for n in counts[-2:]]
    # A factor n^(-1/2) comes before the exponential.
    exponent = -np.log(wrong[1] / wrong[0] * np.sqrt(2)) / (counts[-1] - counts[-2])
    found.add(
        "tokens-rate",
        worst(
            "E log-odds of the true z: drawn over enumerated, worst of 6 n (25 .. 800)",
            "1",
            [1.0] * len(counts),
            [mean.times(1 / law) for mean, law in zip(measured, exact, strict=True)],
        ),
        Claim(
            "E log-odds (the typical error) grow by this much a token, by enumeration",
            "min KL(P_z* || P_z')",
            GENERIC.divergence(0),
            growth,
            tolerance=1e-6,
        ),
        Claim(
            "E[1 - p(z* | X)] falls exponentially, by enumeration",
            "Chernoff information, max_s -log sum P^s Q^(1-s)",
            GENERIC.chernoff(0),
            exponent,
            tolerance=1e-4,
        ),
    )
    curve = curve_of("true latent against its best rival", counts, measured, exact)
    found.panels.append(Panel("The posterior concentrates", NUMBER, "E log-odds of the true latent / n", [curve]))
    return found


def _merging_loses(first: np.ndarray, second: np.ndarray) -> float:
    """I(z; X) lost by taking two values of X for one: their joint laws with z, shape (Z,) each."""
    weights, both = (first.sum(), second.sum()), first + second
    mixed = both / both.sum()
    return float(
        sum(
            weight * special.rel_entr(joint / weight, mixed).sum()
            for weight, joint in zip(weights, (first, second), strict=True)
        )
    )


def _permutations(sequences: np.ndarray) -> int:
    """Pairs of sequences that are permutations of each other."""
    _, counts = np.unique(np.sort(sequences, 1), axis=0, return_counts=True)
    return int(np.sum(counts * (counts - 1)) // 2)
