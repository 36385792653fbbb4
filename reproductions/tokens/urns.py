"""Urns, whose draws reinforce themselves: laws of sequences that name no latent (EXCHANGEABILITY section 4)."""

from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import special

from bayesattn._util.checks import finite_array
from bayesattn.questions.exchangeable.finite import FiniteLatent


def law(sequences: Any, start: Any, repeat: float = 0.0) -> Float[np.ndarray, " sequence"]:
    """Probability of each sequence, colour by colour: the next one is drawn in proportion to what the urn holds.

    Polya's urn, whose draws are exchangeable; not so where the colour drawn last counts for more.

    >>> law([[0, 1], [1, 0]], [1.0, 1.0]).tolist()
    [0.16666666666666666, 0.16666666666666666]

    Args:
        sequences: colours drawn, shape (sequence, n).
        start: what the urn holds of each colour at the start, shape (colour,); each draw adds one of its colour.
        repeat: how much more the colour drawn last counts for.
    """
    sequences = np.asarray(sequences)
    content = np.tile(finite_array("start", start, ("colours",)), (len(sequences), 1))
    rows, probability = np.arange(len(sequences)), np.ones(len(sequences))
    for place, colour in enumerate(sequences.T):
        weights = content.copy()
        if place:
            weights[rows, sequences[:, place - 1]] += repeat
        probability *= weights[rows, colour] / weights.sum(1)
        content[rows, colour] += 1
    return probability


def dirichlet(start: Any, nodes: int = 8) -> FiniteLatent:
    """A latent of finitely many values with the moments of Dirichlet(start): shares of the colours in the long run.

    Shares are broken off one by one, each a Beta variable on Gauss-Jacobi nodes, so that moments up to degree
    2 x nodes - 1 are exact: with up to so many tokens it is the latent of Polya's urn.
    """
    start = finite_array("start", start, ("colours",))
    prior, shares, left = np.ones(1), np.empty((0, 1)), np.ones(1)
    for place, own in enumerate(start[:-1]):
        points, weights = special.roots_jacobi(nodes, start[place + 1 :].sum() - 1, own - 1)
        broken = (1 + points) / 2
        shares = np.vstack([np.repeat(shares, nodes, axis=1), np.outer(left, broken).ravel()])
        prior = np.outer(prior, weights / weights.sum()).ravel()
        left = np.outer(left, 1 - broken).ravel()
    return FiniteLatent(prior, np.vstack([shares, left]))
