"""Binary tokens of a two-state hidden Markov chain: exact posteriors of its state, and attention that is trained to it.

EXCHANGEABILITY section 8, derived here. The chain starts fair, stays in its state with one probability and shows it with
another. A chain that never leaves its state is a mixture of independent tokens: exchangeable.
"""

import itertools
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bayesattn._util.checks import positive_integer
from reproductions.tokens import learning

TO_BITS = 1 / np.log(2)


class Chain(NamedTuple):
    """Probabilities to stay in the state and to show it, and the number of tokens n."""

    stay: float
    shown: float
    tokens: int

    def sequences(self) -> Int[np.ndarray, "sequence token"]:
        """All sequences of n binary tokens."""
        return np.array(list(itertools.product((0, 1), repeat=positive_integer("tokens", self.tokens))))

    def joint(self, sequences: Any) -> Float[np.ndarray, "sequence state"]:
        """p(X, last state) by the forward algorithm."""
        sequences = np.asarray(sequences)
        emission = np.array([[self.shown, 1 - self.shown], [1 - self.shown, self.shown]])
        moves = np.array([[self.stay, 1 - self.stay], [1 - self.stay, self.stay]])
        forward = 0.5 * emission[sequences[:, 0]]
        for token in sequences.T[1:]:
            forward = forward @ moves * emission[token]
        return forward


def entropy(joint: Any) -> float:
    """H(state | group) in bits of a joint law (group, state)."""
    joint = np.asarray(joint)
    conditional = joint / joint.sum(1, keepdims=True)
    return float(-np.sum(joint * np.log(conditional)) * TO_BITS)


def without_order(joint: Any, sequences: Any) -> Float[np.ndarray, "count state"]:
    """p(number of ones, state): what predictors that do not see the order can know."""
    counts = np.asarray(sequences).sum(1)
    law = np.zeros((counts.max() + 1, 2))
    np.add.at(law, counts, joint)
    return law


def attend(parameters: Any, sequences: Any, positions: bool) -> Float[Array, " sequence"]:
    """Log-odds of state 1: b + w sum_i softmax(s x_i + p_i) x_i, as a head reads tokens from a learnt query.

    Parameters s, w, b, and p_2 .. p_n where the head sees positions (p_1 = 0, as softmax does not see a constant).
    """
    score, weight, offset = parameters[:3]
    places = jnp.concatenate([jnp.zeros(1), parameters[3:]]) if positions else 0.0
    return offset + weight * jnp.sum(jax.nn.softmax(score * sequences + places, axis=-1) * sequences, -1)


@cache
def cross_entropy(positions: bool) -> Any:
    """Mean of -log p(state | X) in nats over (sequences, frequency of each with each state), with a network of `attend`."""

    def loss(parameters: Any, data: tuple[Any, Any]) -> Any:
        sequences, frequencies = data
        odds = attend(parameters, sequences, positions)
        return jnp.sum(frequencies * jax.nn.softplus(jnp.stack([odds, -odds], axis=1)))

    return loss


@partial(jax.jit, static_argnames="positions")
def train(
    start: Any, hessian: Any, sequences: Any, frequencies: Any, *, positions: bool
) -> Float[Array, "replicate parameter"]:
    """Parameters of least cross-entropy on each training set, frequencies of shape (replicate, sequence, state).

    The search starts at parameters, near which the loss has about this Hessian.
    """
    loss = cross_entropy(positions)
    return jax.lax.map(lambda seen: learning.fit(start, (sequences, seen), hessian, loss), frequencies)
