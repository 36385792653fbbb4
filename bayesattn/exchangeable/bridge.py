"""The bridge to part I: a softmax head of an attention network against draws of the latent that it would infer.

Tokens of the network hold a key, a query and a value part. Context tokens have a key and a value; the token that asks has a
query alone. A head whose query and key projections pick those parts then attends with softmax(kappa q . k), the asking
token itself being one more, with logit 0 and value 0.
"""

import tempfile
from pathlib import Path
from typing import NamedTuple

import arviz_stats
import numpy as np
from jaxtyping import Float

from bayesattn import attention, runs
from bayesattn import exchangeable as ex
from bayesattn.exchangeable import rates
from bayesattn.exchangeable.claims import Claim, Curve, Findings, Mean, mean_of
from bayesattn.exchangeable.simulation import NOISE, PRIOR, Replicate, replicates, squared_errors
from bayesattn.models import LatentModel

DIMENSION, VALUES, TOKENS = 3, 1, 64
SEQUENCES, QUERIES = 12, 8
KAPPAS = (2.0, 6.0)
"""Inverse bandwidths of the heads."""
MOST_ERRORS = 4.0
REPLICATES = 20_000


class Reading(NamedTuple):
    """What heads return at the queries of a context, and draws of z q: mean, standard deviation and the errors of both."""

    heads: Float[np.ndarray, "head query value"]
    mean: Float[np.ndarray, "query value"]
    deviation: Float[np.ndarray, "query value"]
    error: Float[np.ndarray, "query value"]
    deviation_error: Float[np.ndarray, "query value"]


def draw_context(rng: np.random.Generator) -> Replicate:
    """One sequence: keys (n, d), values (n, d_v), queries (m, d), and z q (m, d_v), which nobody is told."""
    return Replicate(*(batch[0] for batch in replicates(rng, 1, TOKENS, DIMENSION, VALUES, QUERIES)))


def heads_return(context: Replicate, kappas: tuple[float, ...] = KAPPAS) -> Float[np.ndarray, "head query value"]:
    """Through the network's own attention: one example for each query, whose asking token is the last."""
    key, query, value = (np.arange(DIMENSION), DIMENSION + np.arange(DIMENSION), 2 * DIMENSION + np.arange(VALUES))
    width = 2 * DIMENSION + VALUES
    inputs = np.zeros((len(context.queries), TOKENS + 1, width))
    inputs[:, :-1, key], inputs[:, :-1, value] = context.keys, context.values
    inputs[:, -1, query] = context.queries
    identity = np.eye(width)
    # Logits of the network are divided by sqrt(G).
    scales = np.sqrt(np.sqrt(DIMENSION) * np.array(kappas))[:, None, None]
    projections = scales * identity[query], scales * identity[key]
    (patterns,) = attention.matrices(inputs, [projections])
    return np.einsum("ehk,ekv->hev", np.asarray(patterns)[:, :, -1], inputs[..., value])


def read(context: Replicate, folder: Path, seed: int) -> Reading:
    """Heads, and HMC draws of the latent given the same tokens, from a run on disk."""
    model = LatentModel(
        features=context.keys, values=context.values, noise=NOISE, prior=PRIOR, query_features=context.queries
    )
    run = runs.sample(
        model, folder, sampler="hmc", parameterisation="latent", chains=4, warmup=200, draws=500, seed=seed
    )
    drawn = run.draws()["posterior"]["prediction"].compute()
    over = ("chain", "draw")
    errors = (arviz_stats.mcse(drawn), arviz_stats.mcse(drawn, method="sd"))
    moments = (np.asarray(each) for each in (drawn.mean(over), drawn.std(over), *errors))
    return Reading(heads_return(context), *moments)


def bridge(seed: int) -> Findings:
    """Heads read as posterior inference."""
    rng = np.random.default_rng(seed)
    contexts = [draw_context(rng) for _ in range(SEQUENCES)]
    with tempfile.TemporaryDirectory() as folder:
        readings = [read(each, Path(folder) / str(number), seed) for number, each in enumerate(contexts)]
    apart = [
        np.max(np.abs(reading.mean - _cme(each)) / reading.error)
        for each, reading in zip(contexts, readings, strict=True)
    ]
    claims = [
        Claim(
            7,
            f"HMC draws of z q, {SEQUENCES} sequences: off CME attention, in Monte Carlo errors",
            "V^T (G + lambda I)^-1 k(q)",
            MOST_ERRORS,
            float(max(apart)),
            "<=",
        )
    ]
    sinks = [
        ex.softmax_attention(
            each.queries,
            np.vstack([each.keys, np.zeros(DIMENSION)]),
            np.vstack([each.values, np.zeros(VALUES)]),
            bandwidth=1 / KAPPAS[0],
        )
        for each in contexts
    ]
    off = max(float(np.max(np.abs(r.heads[0] - np.asarray(s)))) for r, s in zip(readings, sinks, strict=True))
    claims.append(Claim(7, "a head of the network is softmax attention", "0", 0.0, off, tolerance=1e-12))
    panel = []
    posterior, deviation = (
        np.concatenate([getattr(r, name) for r in readings])[:, 0] for name in ("mean", "deviation")
    )
    truth = np.concatenate([each.truth for each in contexts])[:, 0]
    for number, kappa in enumerate(KAPPAS):
        returned = np.concatenate([r.heads[number] for r in readings])[:, 0]
        panel.append(Curve(f"head, kappa = {kappa:g}", posterior, returned, deviation))
        panel.append(Curve(f"head / a_1, kappa = {kappa:g}", posterior, returned / _kept(kappa), deviation))
        law = rates.softmax_variance(kappa, DIMENSION, NOISE, PRIOR, VALUES) / _kept(kappa) ** 2
        measured = mean_of(TOKENS * _squared_errors(rng, kappa))
        # Next order in 1/n: fewer tokens than all count, by Z(2 kappa) / Z(kappa)^2.
        claims.append(
            Claim(
                7,
                f"n x |head / a_1 - z q|^2, kappa = {kappa:g}, n = {TOKENS}",
                "law of section 3 / a_1^2",
                law,
                measured.value,
                error=measured.error,
                tolerance=law * ex.noise_factor(kappa, DIMENSION) / TOKENS,
            )
        )
    exact = [ex.query_posterior(each.keys, each.values, each.queries, NOISE, PRIOR).variance for each in contexts]
    spread = [
        np.max(np.abs(reading.deviation[:, 0] - np.sqrt(variance)) / reading.deviation_error[:, 0])
        for reading, variance in zip(readings, exact, strict=True)
    ]
    claims.append(
        Claim(
            7,
            "HMC draws of z q: deviation off the exact one, in Monte Carlo errors",
            "sigma (phi^T M phi)^(1/2)",
            MOST_ERRORS,
            float(max(spread)),
            "<=",
        )
    )
    distance = _clustered(np.concatenate([r.heads[0][:, 0] for r in readings]), posterior, deviation)
    claims.append(
        Claim(
            7,
            "a head returns the posterior mean: mean squared distance, in posterior deviations",
            "0",
            0.0,
            distance.value,
            error=distance.error,
            literal=True,
        )
    )
    within = _clustered(truth, posterior, deviation)
    claims.append(
        Claim(
            7,
            "z q itself is as far off as the draws say: mean squared distance, in deviations",
            "1",
            1.0,
            within.value,
            error=within.error,
        )
    )
    return Findings(claims, {"bridge": panel})


def _squared_errors(rng: np.random.Generator, kappa: float) -> np.ndarray:
    """|head / a_1 - z q|^2 of many sequences with a query each; a head is softmax attention with one more token, at 0."""

    def error(drawn: Replicate) -> np.ndarray:
        keys, values = (np.pad(each, [(0, 0), (0, 1), (0, 0)]) for each in (drawn.keys, drawn.values))
        found = ex.softmax_attention(drawn.queries, keys, values, bandwidth=1 / kappa)
        return np.asarray(found) / _kept(kappa) - drawn.truth

    return squared_errors(rng, REPLICATES, TOKENS, DIMENSION, error, VALUES, queries=1)


def _clustered(values: np.ndarray, posterior: np.ndarray, deviation: np.ndarray) -> Mean:
    """Mean squared distance over queries; sequences, not queries, are independent."""
    return mean_of((((values - posterior) / deviation) ** 2).reshape(SEQUENCES, QUERIES).mean(1))


def _kept(kappa: float) -> float:
    return float(ex.bessel_ratio(1, kappa, DIMENSION))


def _cme(context: Replicate) -> np.ndarray:
    ridge = NOISE**2 / PRIOR**2
    return np.asarray(ex.cme_attention(context.queries, context.keys, context.values, ridge=ridge, kernel="linear"))
