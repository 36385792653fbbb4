"""Checks of EXCHANGEABILITY sections 1, 2 and 4: the exact posterior, attention as that posterior, sufficiency."""

import arviz_stats
import jax.numpy as jnp
import numpy as np

from bayesattn import exchangeable as ex
from bayesattn.exchangeable.claims import STANDARD_ERRORS, Claim, Curve, Findings, mean_of
from bayesattn.models import LatentModel
from bayesattn.samplers import sample

EXACT = 1e-10
NOISE, PRIOR = 0.5, 0.8
RIDGE = NOISE**2 / PRIOR**2
MOST_ERRORS = 4.0


def posterior(seed: int) -> Findings:
    """Section 1: three routes to the posterior, NUTS, exchangeability, evidence."""
    rng = np.random.default_rng(seed)
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
    claims = [
        Claim(
            1, "posterior of z phi(q): features = kernels = conditioning", "0", 0.0, float(max(apart)), tolerance=EXACT
        )
    ]
    evidence = ex.log_evidence(gram, values, NOISE, PRIOR)
    order = rng.permutation(12)
    permuted = ex.log_evidence(gram[np.ix_(order, order)], values[order], NOISE, PRIOR)
    claims.append(
        Claim(1, "tokens are exchangeable: log p(V) after a permutation", "same", evidence, permuted, tolerance=EXACT)
    )
    chained = 0.0
    for token in range(12):
        mean, variance = np.zeros((1, 2)), np.array([PRIOR**2 * gram[token, token]])
        if token:
            mean, variance = ex.query_posterior(features[:token], values[:token], features[[token]], NOISE, PRIOR)
        spread = float(variance[0]) + NOISE**2
        chained -= float(np.sum((values[token] - np.asarray(mean[0])) ** 2)) / (2 * spread) + np.log(2 * np.pi * spread)
    claims.append(
        Claim(
            1,
            "log evidence = sum of log predictives, token by token",
            "sum_i log p(v_i | v_<i)",
            chained,
            evidence,
            tolerance=EXACT,
        )
    )
    model = LatentModel(features=features, values=values, noise=NOISE, prior=PRIOR, query_features=queries)
    draws = sample(model, parameterisation="latent", chains=4, warmup=300, draws=1000, seed=seed)["posterior"]["latent"]
    exact = ex.latent_posterior(features, values, NOISE, PRIOR)
    errors = np.abs(draws.mean(("chain", "draw")).values - np.asarray(exact.mean)) / arviz_stats.mcse(draws).values
    claims.append(
        Claim(
            1, "NUTS draws of z: mean off, in Monte Carlo errors", "V^T Phi M", MOST_ERRORS, float(errors.max()), "<="
        )
    )
    deviation = np.sqrt(np.diag(exact.covariance))
    error = arviz_stats.mcse(draws, method="sd").values
    errors = np.abs(draws.std(("chain", "draw")).values - deviation) / error
    claims.append(
        Claim(
            1,
            "NUTS draws of z: deviation off, in Monte Carlo errors",
            "sigma M^(1/2)",
            MOST_ERRORS,
            float(errors.max()),
            "<=",
        )
    )
    return Findings(claims)


def attention(seed: int) -> Findings:
    """Section 2: which attention is the posterior mean."""
    rng = np.random.default_rng(seed)
    shape = (3, 4)  # batch, heads
    keys, queries = ex.uniform(rng, *shape, 20, 3), ex.uniform(rng, *shape, 5, 3)
    values = rng.normal(size=(*shape, 20, 2))
    found = ex.cme_attention(queries, keys, values, ridge=RIDGE, kernel="linear")
    exact = [
        [ex.query_posterior(keys[b, h], values[b, h], queries[b, h], NOISE, PRIOR).mean for h in range(4)]
        for b in range(3)
    ]
    off = float(jnp.max(jnp.abs(found - jnp.array(exact))))
    claims = [Claim(2, "CME attention at sigma^2/tau^2 is the posterior mean", "0", 0.0, off, tolerance=EXACT)]
    gram, cross = (
        ex.gram("exponential", keys[0, 0], keys[0, 0], 0.5),
        ex.gram("exponential", keys[0, 0], queries[0, 0], 0.5),
    )
    diagonal = np.diag(ex.gram("exponential", queries[0, 0], queries[0, 0], 0.5))
    process = ex.dual_posterior(gram, cross, diagonal, values[0, 0], NOISE, PRIOR).mean
    found = ex.cme_attention(queries, keys, values, ridge=RIDGE, bandwidth=0.5)[0, 0]
    off = float(jnp.max(jnp.abs(found - process)))
    claims.append(Claim(2, "the same for the exponential kernel (a Gaussian process)", "0", 0.0, off, tolerance=EXACT))
    gaussian = ex.cme_attention(queries, keys, values, ridge=RIDGE, kernel="gaussian", bandwidth=0.5)
    same = ex.cme_attention(queries, keys, values, ridge=ex.same_ridge(RIDGE, 0.5), bandwidth=0.5)
    off = float(jnp.max(jnp.abs(gaussian - same)))
    claims.append(
        Claim(
            2, "CME: Gaussian(lambda) = exponential(lambda e^(1/gamma)) on the sphere", "0", 0.0, off, tolerance=EXACT
        )
    )

    def by_distance(points: np.ndarray, others: np.ndarray) -> np.ndarray:
        return np.exp(-np.sum((points[..., :, None, :] - others[..., None, :, :]) ** 2, -1) / (2 * 0.5))

    solved = np.linalg.solve(by_distance(keys, keys) + RIDGE * np.eye(20), values)
    off = float(np.max(np.abs(np.asarray(gaussian) - by_distance(queries, keys) @ solved)))
    claims.append(Claim(2, "CME, Gaussian kernel: by distances between points", "0", 0.0, off, tolerance=EXACT))
    weights = by_distance(queries, keys)
    averaged = weights @ values / weights.sum(-1, keepdims=True)
    off = float(jnp.max(jnp.abs(averaged - ex.softmax_attention(queries, keys, values, bandwidth=0.5))))
    claims.append(Claim(2, "softmax: Gaussian kernel's weights = exponential kernel's", "0", 0.0, off, tolerance=EXACT))
    smoothed = ex.softmax_attention(queries[0, 0], keys[0, 0], values[0, 0], bandwidth=0.5)
    posterior = ex.query_posterior(keys[0, 0], values[0, 0], queries[0, 0], NOISE, PRIOR)
    attended = ex.cme_attention(queries[0, 0], keys[0, 0], values[0, 0], ridge=RIDGE, kernel="linear")
    for name, mean, literal in (("CME", attended, False), ("softmax", smoothed, True)):
        divergence = float(jnp.mean(ex.posterior_error(mean, posterior, NOISE)))
        statement = f"{name} attention is the posterior mean: KL of the predictives"
        claims.append(Claim(2, statement, "0", 0.0, divergence, tolerance=EXACT, literal=literal))
    return Findings(claims)


GENERIC = ex.FiniteLatent([0.5, 0.3, 0.2], [[0.6, 0.1, 0.3], [0.3, 0.2, 0.5], [0.1, 0.7, 0.2]])
ALIKE = ex.FiniteLatent([0.35, 0.35, 0.3], [[0.5, 0.2, 0.3], [0.2, 0.5, 0.3], [0.3, 0.3, 0.4]])
"""Swapping the first two tokens swaps the first two latents."""
TOKENS = 4
READOUT = np.array([[0.7, 0.4, 0.1], [0.3, 0.6, 0.9]])


def sufficiency(seed: int) -> Findings:
    """Section 4: the posterior is sufficient and minimal, and concentrates exponentially fast."""
    sequences = GENERIC.sequences(TOKENS)
    joint, tasks = GENERIC.joint(sequences), READOUT @ GENERIC.joint(sequences)
    partition = ex.cells(GENERIC.posterior(sequences))
    claims = []
    for name, law in (("z", joint), ("y", tasks)):
        whole, kept = ex.mutual_information(law), ex.mutual_information(ex.merged(law, partition))
        claims.append(
            Claim(4, f"sufficient: I({name}; pi(X)) = I({name}; X)", f"{whole:.6f} nats", whole, kept, tolerance=1e-12)
        )
    claims.append(
        Claim(
            4,
            "cells of pi are the type classes (|Z| = 3, V = 3, n = 4)",
            "(n+V-1 choose V-1)",
            ex.type_classes(TOKENS, 3),
            partition.max() + 1,
        )
    )
    claims.append(
        Claim(
            4,
            "minimal: least information lost by merging two cells",
            "> 0",
            1e-9,
            ex.least_loss(joint, partition),
            ">=",
        )
    )
    # A task that does not tell the first two latents apart needs fewer cells than pi has.
    sequences = ALIKE.sequences(TOKENS)
    posterior, task = ALIKE.posterior(sequences), np.array([[0.8, 0.8, 0.1], [0.2, 0.2, 0.9]])
    predictive = ex.cells(task @ posterior)
    whole = ex.mutual_information(task @ ALIKE.joint(sequences))
    kept = ex.mutual_information(ex.merged(task @ ALIKE.joint(sequences), predictive))
    claims.append(
        Claim(
            4,
            "a task blind to a swap: p(y | X) alone is sufficient for y",
            f"{whole:.6f} nats",
            whole,
            kept,
            tolerance=1e-12,
        )
    )
    of_posterior = int(ex.cells(posterior).max() + 1)
    claims.append(
        Claim(
            4,
            "it has fewer cells than pi, one for each type class up to the swap",
            "(15 + 3) / 2",
            9,
            predictive.max() + 1,
        )
    )
    claims.append(
        Claim(
            4,
            "pi is minimal for each single task: cells needed by this one",
            "as pi",
            of_posterior,
            predictive.max() + 1,
            literal=True,
        )
    )
    rng = np.random.default_rng(seed)
    features, values = rng.normal(size=(200, 3)), rng.normal(size=(200, 2))
    found = ex.latent_posterior(features, values, NOISE, PRIOR)
    precision = np.linalg.inv(found.covariance) * NOISE**2
    recovered = precision - RIDGE * np.eye(3), np.asarray(found.mean) @ precision
    off = max(np.max(np.abs(recovered[0] - features.T @ features)), np.max(np.abs(recovered[1] - values.T @ features)))
    claims.append(
        Claim(
            4,
            "Gaussian: pi(X) gives back (Phi^T Phi, V^T Phi), of 12 numbers whatever n (here 200)",
            "0",
            0.0,
            float(off),
            tolerance=1e-8,
        )
    )
    counts = [25, 50, 100, 200, 400, 800]
    measured = [mean_of(GENERIC.log_odds(rng.multinomial(n, GENERIC.emission[:, 0], size=4000), 0) / n) for n in counts]
    exact = np.array([GENERIC.mean_log_odds(n, 0) / n for n in counts])
    worst = max(abs(m.value - e) / m.error for m, e in zip(measured, exact, strict=True))
    claims.append(
        Claim(
            4,
            "E log-odds of the true z: drawn against enumerated, worst of 6 n, in errors",
            "0",
            STANDARD_ERRORS,
            worst,
            "<=",
        )
    )
    growth = (counts[-1] * exact[-1] - counts[-2] * exact[-2]) / (counts[-1] - counts[-2])
    claims.append(
        Claim(
            4,
            "E log-odds (the typical error) grow by this much a token, by enumeration",
            "min KL(P_z* || P_z')",
            GENERIC.divergence(0),
            growth,
            tolerance=1e-6,
        )
    )
    wrong = [GENERIC.mean_error(n, 0) for n in counts[-2:]]
    # A factor n^(-1/2) comes before the exponential.
    exponent = -np.log(wrong[1] / wrong[0] * np.sqrt(2)) / (counts[-1] - counts[-2])
    law = "Chernoff information, max_s -log sum P^s Q^(1-s)"
    claims.append(
        Claim(
            4,
            "E[1 - p(z* | X)] falls exponentially, by enumeration",
            law,
            GENERIC.chernoff(0),
            exponent,
            tolerance=1e-4,
        )
    )
    means, errors = np.array(measured).T
    return Findings(
        claims, {"concentration": [Curve("true latent against its best rival", np.array(counts), means, errors, exact)]}
    )
