"""The bridge to part I: a softmax head of an attention network against draws of the latent that it would infer.

Tokens of the network hold a key, a query and a value part. Context tokens have a key and a value; the token that asks has a
query alone. A head whose query and key projections pick those parts then attends with softmax(kappa q . k), the asking
token itself being one more, with logit 0 and value 0.
"""

import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from bayesattn import attention, runs
from bayesattn.models import LatentModel
from bayesattn.questions import exchangeable as ex
from bayesattn.questions.exchangeable import rates
from reproductions.claims import Claim, Curve, Findings, Panel, listed, mean_of, worst
from reproductions.tokens.bayes import CHAINS, chain_claims
from reproductions.tokens.simulation import NOISE, PRIOR, RIDGE, Replicate, replicates, squared_errors

DIMENSION, VALUES, TOKENS = 3, 16, 64
SEQUENCES, QUERIES = 4, 8
KAPPAS = (2.0, 6.0)
"""Inverse bandwidths of the heads."""
SIZES = (16, 64, 256)
"""Numbers of tokens at which the errors of heads are compared with their law."""
REPLICATES, SIMULATED_VALUES = 4000, 3
SHOWN = 2
"""Value coordinates of each sequence in the figure."""


class Reading(NamedTuple):
    """What heads return at the queries of a context, and HMC draws of z q given the same tokens."""

    heads: Float[np.ndarray, "head query value"]
    draws: Float[np.ndarray, "chain draw query value"]


def draw_context(rng: np.random.Generator) -> Replicate:
    """One sequence: keys (n, d), values (n, d_v), queries (m, d), and z q (m, d_v), which is not observed."""
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
        model,
        folder,
        sampler="hmc",
        parameterisation="latent",
        chains=CHAINS,
        warmup=150,
        draws=100,
        seed=seed,
        progress=False,
    )
    return Reading(heads_return(context), run.draws()["posterior"].to_dataset()["prediction"].values)


def bridge(rng: np.random.Generator, fast: bool = False) -> Findings:
    """Heads read as posterior inference."""
    contexts = [draw_context(rng) for _ in range(SEQUENCES)]
    seeds = rng.choice(2**31, SEQUENCES, replace=False).tolist()
    with tempfile.TemporaryDirectory() as folder:
        readings = [
            read(context, Path(folder) / str(seed), seed) for seed, context in zip(seeds, contexts, strict=True)
        ]
    exact = [
        ex.query_posterior(context.keys, context.values, context.queries, NOISE, PRIOR).variance for context in contexts
    ]
    standardised = [
        (reading.draws - _cme(context)) / np.sqrt(np.asarray(variance))[:, None]
        for context, reading, variance in zip(contexts, readings, exact, strict=True)
    ]
    laws = "V^T (G + lambda I)^-1 k(q)", "sigma^2 phi^T M phi"
    claims = chain_claims("HMC draws of z q", laws, np.stack(standardised, 2))
    off = max(np.max(np.abs(r.heads - _with_sink(context))) for context, r in zip(contexts, readings, strict=True))
    claims.append(Claim("a head of the network is softmax attention with a token at 0", "0", 0.0, off, tolerance=1e-12))
    for kappa in KAPPAS:
        claims += _errors_of_heads(rng, kappa)
    distances = [
        np.mean(((context.truth - r.draws.mean((0, 1))) / r.draws.std((0, 1))) ** 2, 0)
        for context, r in zip(contexts, readings, strict=True)
    ]
    claims.append(
        Claim(
            f"z q itself is as far off as the draws say: mean squared distance, in deviations ({SEQUENCES * VALUES} z)",
            "1",
            1.0,
            mean_of(distances),
        )
    )
    panel = []
    posterior, deviation = (
        np.concatenate([getattr(r.draws, name)((0, 1))[:, :SHOWN].ravel() for r in readings])
        for name in ("mean", "std")
    )
    for number, kappa in enumerate(KAPPAS):
        returned = np.concatenate([r.heads[number][:, :SHOWN].ravel() for r in readings])
        panel.append(Curve(f"head, kappa = {kappa:g}", posterior, returned, deviation))
        panel.append(Curve(f"head / a_1, kappa = {kappa:g}", posterior, returned / _kept(kappa), deviation))
    axes = "posterior mean by HMC", "returned by a head"
    return Findings.of_row("tokens-heads", claims, Panel("Heads of a network", *axes, panel))


def _with_sink(drawn: Replicate, kappas: tuple[float, ...] = KAPPAS) -> np.ndarray:
    """Heads as softmax attention with one more token, of key and value 0."""
    pads = [(0, 0)] * (drawn.keys.ndim - 2) + [(0, 1), (0, 0)]
    keys, values = (np.pad(array, pads) for array in (drawn.keys, drawn.values))
    return np.stack([ex.softmax_attention(drawn.queries, keys, values, bandwidth=1 / kappa) for kappa in kappas])


def _errors_of_heads(rng: np.random.Generator, kappa: float) -> list[Claim]:
    """Errors of many sequences' heads against exact laws, and against what they are for many tokens."""
    kept, settings = _kept(kappa), (DIMENSION, NOISE, PRIOR, SIMULATED_VALUES)

    def error(drawn: Replicate) -> np.ndarray:
        (heads,) = _with_sink(drawn, (kappa,))
        return np.stack([heads / kept - drawn.truth, heads - _cme(drawn)])

    measured, gaps, laws = [], [], []
    for tokens in SIZES:
        squares = squared_errors(rng, REPLICATES, tokens, DIMENSION, error, SIMULATED_VALUES)
        law = rates.finite_softmax_error(tokens, 1 / kappa, *settings, kept=kept, sink=True) / kept**2
        # The posterior mean's error is orthogonal to any function of the tokens.
        gap = rates.finite_softmax_error(tokens, 1 / kappa, *settings, sink=True) - rates.isotropic_cme_error(
            tokens, DIMENSION, RIDGE, NOISE, PRIOR, SIMULATED_VALUES
        )
        laws.append(tokens * law)
        measured.append(mean_of(squares[0] / law))
        gaps.append(mean_of(squares[1] / gap))
    limit = rates.softmax_variance(kappa, *settings) / kept**2
    ones, of = [1.0] * len(SIZES), f"n = {listed(SIZES)}"
    products = listed(laws, ".2f")
    far = rates.finite_softmax_error(10**7, 1 / kappa, *settings, kept=kept, sink=True) / kept**2
    at = SIZES.index(TOKENS)
    return [
        worst(
            f"|head / a_1 - z q|^2 / law, kappa = {kappa:g}, worst of {of} (n x law = {products})",
            "exact at each n, with the asking token",
            ones,
            measured,
        ),
        Claim(
            f"its law for many tokens, kappa = {kappa:g} (n = 1e7)",
            "law of section 3 / a_1^2",
            limit,
            1e7 * far,
            tolerance=1e-5 * limit,
        ),
        worst(
            f"|head - posterior mean|^2 / law, kappa = {kappa:g}, worst of {of}",
            "head's error about z q - posterior variance",
            ones,
            gaps,
        ),
        Claim(
            f"a head returns the posterior mean: mean squared distance / law, kappa = {kappa:g}, n = {TOKENS}",
            "0",
            0.0,
            gaps[at],
            literal=True,
        ),
        Claim(
            f"the law for many tokens is enough at n = {SIZES[0]}, kappa = {kappa:g}: n x |head / a_1 - z q|^2",
            "law of section 3 / a_1^2",
            limit,
            measured[0].times(laws[0]),
            literal=True,
        )
        if kappa == max(KAPPAS)
        else Claim(
            f"|head - posterior mean|^2 does not vanish, kappa = {kappa:g}: law at n = 1e7",
            "(1 - a_1)^2 d_v tau^2",
            rates.softmax_bias(kappa, DIMENSION, PRIOR, SIMULATED_VALUES),
            rates.finite_softmax_error(10**7, 1 / kappa, *settings, sink=True),
            tolerance=1e-5,
        ),
    ]


def _kept(kappa: float) -> float:
    return float(ex.bessel_ratio(1, kappa, DIMENSION))


def _cme(context: Replicate) -> np.ndarray:
    return np.asarray(ex.cme_attention(context.queries, context.keys, context.values, ridge=RIDGE, kernel="linear"))
