"""Finite latents and vocabularies, by enumeration (EXCHANGEABILITY sections 4 and 6)."""

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import linalg, special

from bayesattn._util.checks import Checked, OwnsArrays, finite_array, owned, positive_integer
from bayesattn.errors import BayesattnError

NEVER = 1e300
"""What stands for the posterior given a sequence that never occurs."""
POSTERIOR_TOLERANCE = 1e-9
"""Largest difference in any entry between two posteriors that count as equal."""


@dataclass(frozen=True, eq=False)
class FiniteLatent(OwnsArrays):
    """Latent z of finitely many values, and tokens that are independent given z.

    Args:
        prior: p(z), shape (Z,).
        emission: T[x, z] = p(x | z), shape (vocabulary, Z), columns summing to 1.

    Raises:
        ValueError: shapes that do not fit, entries below 0, sums that are not 1.
    """

    prior: Any
    emission: Any

    def __post_init__(self):
        prior = finite_array("prior", self.prior, ("latents",))
        emission = finite_array("emission", self.emission, ("vocabulary", len(prior)))
        for name, array in (("prior", prior), ("emission", emission)):
            if (array < 0).any() or not np.allclose(array.sum(0), 1, rtol=0, atol=1e-9):
                raise BayesattnError(f"{name} must hold probabilities that sum to 1, got sums {array.sum(0)}")
        object.__setattr__(self, "prior", owned(prior))
        object.__setattr__(self, "emission", owned(emission))

    def sequences(self, tokens: int) -> Int[np.ndarray, "sequence token"]:
        """All sequences of `tokens` tokens, shape (vocabulary^tokens, tokens).

        Raises ValueError for fewer than one token.
        """
        positive_integer("tokens", tokens)
        return np.array(list(itertools.product(range(len(self.emission)), repeat=tokens)))

    def joint(self, sequences: Checked) -> Float[np.ndarray, "latent sequence"]:
        """p(z, X) of each sequence, shape (Z, sequence), for sequences of shape (sequence, token).

        Raises ValueError for another shape, and for tokens that are not numbers from 0 of the vocabulary.
        """
        return self.prior[:, None] * np.prod(self._probabilities(sequences), axis=1).T

    def posterior(self, sequences: Checked) -> Float[np.ndarray, "latent sequence"]:
        """pi(X) = p(z | X), shape (Z, sequence), for sequences of shape (sequence, token); NaN where p(X) = 0.

        Errors are those of `joint`.
        """
        with np.errstate(divide="ignore"):
            logs = np.log(self.prior)[:, None] + np.log(self._probabilities(sequences)).sum(1).T
        with np.errstate(invalid="ignore"):
            return special.softmax(logs, axis=0)

    def _probabilities(self, sequences: Checked) -> Float[np.ndarray, "sequence token latent"]:
        """p(x | z) of each token x."""
        tokens, last = finite_array("sequences", sequences, ("sequences", "tokens")), len(self.emission) - 1
        odd = (tokens < 0) | (tokens > last) | (tokens != np.round(tokens))
        if odd.any():
            raise BayesattnError(f"sequences must hold whole numbers from 0 to {last}, got {tokens[odd][0]:g}")
        return self.emission[tokens.astype(int)]

    def log_odds(self, counts: Checked, truth: int) -> Float[np.ndarray, " sequence"]:
        """Log odds of z* against its best rival given X, in nats, shape (sequence,).

        Args:
            counts: number of each token in each sequence, shape (sequence, vocabulary).
            truth: index of z*.

        Raises:
            ValueError: one latent only, an index that is not one of a latent, counts of another shape or below 0.
        """
        counts = finite_array("counts", counts, ("sequences", len(self.emission)))
        if (odd := (counts < 0) | (counts != np.round(counts))).any():
            raise BayesattnError(f"counts must be whole numbers of at least 0, got {counts[odd][0]:g}")
        truth, scores = self._require_rival(truth), self._scores(counts)
        return scores[:, truth] - np.delete(scores, truth, axis=1).max(1)

    def mean_log_odds(self, tokens: int, truth: int) -> float:
        """Mean log odds, in nats, of z* against its best rival over sequences drawn given z*, by enumeration of counts.

        Raises ValueError for fewer than one token, one latent only, or an index that is not one of a latent.
        """
        truth = self._require_rival(truth)
        counts, probabilities = self._counts(tokens, truth)
        return float(probabilities @ self.log_odds(counts, truth))

    def mean_error(self, tokens: int, truth: int) -> float:
        """E[1 - p(z* | X)] over sequences drawn given z*, by enumeration of counts.

        Raises ValueError for fewer than one token, or an index that is not one of a latent.
        """
        truth = self._index(truth)
        counts, probabilities = self._counts(tokens, truth)
        others = np.arange(len(self.prior)) != truth
        return float(probabilities @ special.softmax(self._scores(counts), axis=1)[:, others].sum(1))

    def _counts(self, tokens: int, truth: int) -> tuple[np.ndarray, np.ndarray]:
        """All count vectors of positive probability given z*, and their probabilities."""
        counts = _compositions(positive_integer("tokens", tokens), len(self.emission))
        weights = special.gammaln(tokens + 1) - special.gammaln(counts + 1).sum(1)
        probabilities = np.exp(weights + special.xlogy(counts, self.emission[:, truth]).sum(1))
        return counts[probabilities > 0], probabilities[probabilities > 0]

    def _scores(self, counts: Checked) -> np.ndarray:
        """log p(z, counts) up to a term that does not depend on z."""
        return np.log(self.prior) + special.xlogy(np.asarray(counts)[:, :, None], self.emission).sum(1)

    def divergence(self, truth: int) -> float:
        """min over z' of KL(P_z* || P_z'), in nats.

        Raises ValueError for one latent only, or an index that is not one of a latent.
        """
        truth = self._require_rival(truth)
        own, others = self.emission[:, [truth]], np.delete(self.emission, truth, axis=1)
        return float(special.rel_entr(own, others).sum(0).min())

    def chernoff(self, truth: int) -> float:
        """Least Chernoff information of z* and a rival: max over s of -log sum_x P^s Q^(1-s), in nats.

        Raises ValueError for one latent only, or an index that is not one of a latent.
        """
        truth = self._require_rival(truth)
        own, powers = self.emission[:, truth], np.linspace(0, 1, 10001)[1:-1, None]
        rivals = np.delete(self.emission, truth, axis=1).T
        return float(min(np.max(-np.log(np.sum(own**powers * rival ** (1 - powers), 1))) for rival in rivals))

    def _index(self, truth: int) -> int:
        return positive_integer("truth", truth, 0, len(self.prior) - 1)

    def _require_rival(self, truth: int) -> int:
        """Index of z*; raises ValueError unless it is one of at least two latents."""
        if len(self.prior) < 2:
            raise BayesattnError("latent must have at least two values, so that one is the rival of another, got one")
        return self._index(truth)


def _compositions(total: int, parts: int) -> Int[np.ndarray, "composition part"]:
    """All ways to write a total as an ordered sum of `parts` whole numbers of at least 0."""
    heads = np.arange(total + 1)
    if parts == 1:
        return np.array([[total]])
    if parts == 2:
        return np.column_stack([heads, total - heads])
    tails = [_compositions(total - int(head), parts - 1) for head in heads]
    return np.column_stack([np.repeat(heads, list(map(len, tails))), np.concatenate(tails)])


def cells(values: Checked, tolerance: float = POSTERIOR_TOLERANCE) -> Int[np.ndarray, " sequence"]:
    """Number of the cell of each sequence, from 0, shape (sequence,).

    Sequences share a cell if their columns of `values`, shape (.., sequence), agree within `tolerance` in every entry; those
    that never occur, whose posterior is NaN, share one.
    """
    columns = np.nan_to_num(np.atleast_2d(values).T, nan=NEVER)
    representatives: list[np.ndarray] = []
    numbers = np.empty(len(columns), int)
    for index, column in enumerate(columns):
        for number, other in enumerate(representatives):
            if np.max(np.abs(column - other)) <= tolerance:
                numbers[index] = number
                break
        else:
            numbers[index] = len(representatives)
            representatives.append(column)
    return numbers


def type_classes(tokens: int, vocabulary: int) -> int:
    """Number of count vectors of `tokens` tokens: (n + V - 1 choose V - 1).

    >>> type_classes(4, 3)
    15
    """
    return int(special.comb(tokens + vocabulary - 1, vocabulary - 1, exact=True))


def merged(joint: Checked, partition: Checked) -> Float[np.ndarray, "latent cell"]:
    """Joint distribution of the latent and the cell of a partition of sequences, shape (Z, cell).

    Args:
        joint: p(z, X), shape (Z, sequence).
        partition: number of the cell of each sequence, from 0, shape (sequence,).
    """
    joint = np.asarray(joint)
    law = np.zeros((len(joint), int(np.max(partition)) + 1))
    np.add.at(law.T, np.asarray(partition), joint.T)
    return law


def mutual_information(joint: Checked) -> float:
    """Mutual information of the two variables of a joint distribution (row, column), in nats."""
    joint = np.asarray(joint)
    return float(special.rel_entr(joint, np.outer(joint.sum(1), joint.sum(0))).sum())


def least_loss(joint: Checked, partition: Checked) -> float:
    """Least loss of information about the latent, in nats, when two cells of a partition are merged.

    Args:
        joint: p(z, X), shape (Z, sequence).
        partition: number of the cell of each sequence, from 0, shape (sequence,).

    Raises:
        ValueError: a partition of one cell.
    """
    together = merged(joint, partition)
    together = together[:, together.sum(0) > 0]  # Cells that never occur lose nothing.
    if together.shape[1] < 2:
        raise BayesattnError("partition must have at least two cells, so that two can be merged, got one")
    full = mutual_information(together)
    losses = []
    for first, second in itertools.combinations(range(together.shape[1]), 2):
        fewer = np.delete(together, second, axis=1)
        fewer[:, first] = together[:, first] + together[:, second]
        losses.append(full - mutual_information(fewer))
    return min(losses)


class Transfer(NamedTuple):
    """Largest factor by which a downstream task amplifies an error of masked prediction.

    `factor` is |H Q (T Q)^+|, or infinity if masked prediction does not see a direction that the task reads;
    `direction` is the change of the posterior that attains `factor`, with entries summing to 0; `smallest_gain` is
    sigma_min(T Q). Q: orthonormal basis of the changes that sum to 0.
    """

    factor: float
    direction: Float[np.ndarray, " latent"]
    smallest_gain: float


def transfer(emission: Checked, readout: Checked) -> Transfer:
    """Least factor in |H (pi_hat - pi)| <= factor |T (pi_hat - pi)|, and the change of the posterior that attains it.

    Args:
        emission: T of shape (vocabulary, Z): masked prediction identifies T pi.
        readout: H of shape (task, Z): the downstream task needs H pi.

    Raises:
        ValueError: shapes that do not fit.
    """
    emission = finite_array("emission", emission, ("vocabulary", "latents"))
    size = emission.shape[1]
    if size < 2:
        raise BayesattnError(f"emission must have at least two latents, got shape {emission.shape}")
    readout = finite_array("readout", readout, ("tasks", size))
    basis = linalg.null_space(np.ones((1, size)))
    seen = emission @ basis
    left, singular, right = np.linalg.svd(seen)
    singular_values = np.append(singular, np.zeros(size - 1 - len(singular)))
    smallest_gain = float(singular_values.min())
    is_unseen = singular_values <= np.finfo(float).eps * size * max(singular_values[0], 1.0)
    kept = np.flatnonzero(~is_unseen)
    # Rounding turns unseen directions towards seen ones, the farther the less these are seen.
    turned = max(singular_values[0], 1.0) / singular_values[kept[-1]] if len(kept) else 1.0
    if (direction := _unseen_direction(basis @ right.T[:, is_unseen], readout, turned)) is not None:
        return Transfer(np.inf, direction, smallest_gain)
    inverse = right.T[:, kept] / singular_values[kept] @ left.T[kept]
    _, gains, directions = np.linalg.svd(readout @ basis @ inverse)
    return Transfer(float(gains[0]), basis @ inverse @ directions[0], smallest_gain)


def _unseen_direction(unseen: np.ndarray, readout: np.ndarray, turned: float) -> np.ndarray | None:
    """Combination of the directions that masked prediction does not see, shape (Z, direction), that the task reads most.

    None if the task reads none of them, up to rounding errors, which are `turned` times as large as those of one product.
    """
    if not unseen.size:
        return None
    _, gains, directions = np.linalg.svd(readout @ unseen)
    is_read = gains[0] > 4 * np.finfo(float).eps * len(unseen) * turned * np.linalg.norm(readout)
    return unseen @ directions[0] if is_read else None
