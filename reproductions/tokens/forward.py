"""Checks of EXCHANGEABILITY section 8: trained attention against the exact posterior of a hidden Markov chain's state."""

import itertools
from typing import NamedTuple

import jax
import numpy as np

from reproductions.claims import Claim, Curve, Findings, Mean, Panel, curve_of, mean_of
from reproductions.tokens import chains, learning
from reproductions.tokens.chains import TO_BITS, Chain

TOKENS, SHOWN = 8, 0.8
STAYS = (0.6, 0.8, 0.9, 0.97)
"""Probabilities to stay, of chains whose tokens are not exchangeable."""
SEQUENCES = 20_000
"""m of training sets."""
ROUNDING = 12
"""Decimals of sums that cancel."""
LEAST = 1e-6
"""Least eigenvalue of the metric of a search."""
START = (0.1, 2.0, -1.0)
"""s, w, b where training begins."""


class Lost(NamedTuple):
    """Bits lost about the last state against the forward algorithm.

    By the best predictor that does not see the order, by attention without and with positions, and by knowing no token.
    """

    least: float
    without: Mean
    positions: Mean
    nothing: float


def forward(rng: np.random.Generator, fast: bool = False) -> Findings:
    """Bits lost by attention with and without positions, over how long chains stay in a state."""
    stays, replicates = (STAYS[2:3], 60) if fast else (STAYS, 400)
    lost = [_lost(rng, Chain(stay, SHOWN, TOKENS), replicates) for stay in (*stays, 1.0)]
    claims = [_oracle(Chain(0.9, SHOWN, 5))]
    for stay, bits in zip(stays, lost[:-1], strict=True):
        claims += _ordered(stay, bits)
    claims += _exchangeable(lost[-1])
    x = np.array([*stays, 1.0])
    least = np.array([bits.least for bits in lost]).round(ROUNDING)
    curves = [
        curve_of("attention without positions", x, [bits.without for bits in lost]),
        curve_of("attention with positions", x, [bits.positions for bits in lost]),
        Curve("best predictor that does not see the order", x, least),
    ]
    panel = Panel("Attention against the exact posterior", "probability that the state stays", "bits lost", curves)
    return Findings.of_row("tokens-hidden-markov", claims, panel)


def _oracle(chain: Chain) -> Claim:
    """The forward algorithm against a sum over all paths of the state."""
    sequences = chain.sequences()
    found, paths = chain.joint(sequences), np.zeros((len(sequences), 2))
    for states in itertools.product((0, 1), repeat=chain.tokens):
        moves = np.prod([chain.stay if a == b else 1 - chain.stay for a, b in itertools.pairwise(states)])
        shown = np.prod(np.where(sequences == np.array(states), chain.shown, 1 - chain.shown), 1)
        paths[:, states[-1]] += 0.5 * moves * shown
    at = np.unravel_index(np.argmax(np.abs(found - paths)), found.shape)
    wrong = chain._replace(stay=1.0).joint(sequences)
    return Claim(
        f"forward algorithm: p(X, state), worst of {found.size}, n = {chain.tokens}",
        "sum over paths of the state",
        paths[at],
        found[at],
        tolerance=1e-14,
        planted=wrong[at],
        wrong="a state that never changes",
    )


def _lost(rng: np.random.Generator, chain: Chain, replicates: int) -> Lost:
    sequences = chain.sequences()
    joint = chain.joint(sequences)
    exact = chains.entropy(joint)
    least = chains.entropy(chains.without_order(joint, sequences)) - exact
    frequencies = rng.multinomial(SEQUENCES, joint.ravel(), size=(2, replicates)) / SEQUENCES
    bits = []
    for positions, drawn in zip((False, True), frequencies, strict=True):
        loss = chains.cross_entropy(positions)
        start = np.r_[START, np.zeros((TOKENS - 1) * positions)]
        optimum = learning.fit(start, (sequences, joint), objective=loss)
        metric = _metric(np.asarray(jax.jit(jax.hessian(loss))(optimum, (sequences, joint))))
        seen = drawn.reshape(replicates, *joint.shape)
        trained = chains.train(optimum, metric, sequences, seen, positions=positions)
        losses = jax.jit(jax.vmap(loss, (0, None)))(trained, (sequences, joint))
        bits.append(mean_of(losses * TO_BITS - exact))
    return Lost(least, bits[0], bits[1], 1 - exact)


def _metric(hessian: np.ndarray) -> np.ndarray:
    """The Hessian, made positive definite for the search where attention to some places is not determined."""
    eigenvalues, vectors = np.linalg.eigh(hessian)
    return vectors * np.maximum(np.abs(eigenvalues), LEAST) @ vectors.T


def _ordered(stay: float, bits: Lost) -> list[Claim]:
    """Without positions attention loses what the order tells, and with them less, but not nothing."""
    of = f"stay probability {stay:g}, n = {TOKENS}: bits lost"
    return [
        # That it loses no less than the best predictor without the order is an inequality of information, no test.
        Claim(
            f"{of} by attention without positions, fewer than without any token ({bits.nothing:.3f}); the best predictor"
            f" that does not see the order loses {bits.least:.3f}",
            "H(state) - H(state | X), by enumeration",
            bits.nothing,
            bits.without,
            "<=",
            planted=bits.nothing,
            wrong="no fewer",
            wrong_relation=">=",
        ),
        Claim(
            f"{of} by attention with positions, at most those of attention without",
            "the order tells something",
            bits.without,
            bits.positions,
            "<=",
            planted=bits.without,
            wrong="no fewer",
            wrong_relation=">=",
        ),
        Claim(f"{of} by attention with positions: it is the forward algorithm", "0", 0.0, bits.positions, literal=True),
        Claim(
            f"{of} by attention without positions: it infers the posterior of any chain",
            "0",
            0.0,
            bits.without,
            literal=True,
        ),
    ]


def _exchangeable(bits: Lost) -> list[Claim]:
    """A state that never changes: attention can express its posterior, and loses what m sequences leave open."""
    claims = [
        Claim(
            f"state that never changes (exchangeable tokens), n = {TOKENS}: bits lost by not seeing the order",
            "0: counts are sufficient",
            0.0,
            bits.least,
            tolerance=1e-12,
        )
    ]
    for name, parameters, lost in (("without", 3, bits.without), ("with", TOKENS + 2, bits.positions)):
        law = parameters / (2 * SEQUENCES) * TO_BITS
        claims.append(
            Claim(
                f"state that never changes: bits lost by attention {name} positions, m = {SEQUENCES}, over the law",
                f"{parameters} parameters / (2 m log 2)",
                1.0,
                lost.times(1 / law),
                planted=2.0,
                wrong="twice as many",
            )
        )
    return claims
