"""Datasets of token sequences, and training tokens with their attention, which only token parameterisations read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from bayesattn import fixed_attention
from bayesattn._util.checks import OwnsArrays, one_of, owned
from bayesattn.errors import BayesattnError


class TokenDataset(NamedTuple):
    """Token sequences, labels, and the fixed attention heads of a network that reads them.

    `weights` contains the heads layer by layer, in the format of `bayesattn.attention.path_inputs` (arrays, or pairs of
    queries and keys), and `head_names` their names. `path_groups` maps names to groups of paths, as indices, whose own GP
    limits are compared. With more than two classes, labels have a column for each class, and `output_names` are the names
    of the classes. `causal` and the masks, with one boolean for each token, are arguments of `path_inputs`.
    """

    inputs: Float[np.ndarray, "example token feature"]
    labels: Float[np.ndarray, "*example_and_output"]
    test_inputs: Float[np.ndarray, "test_example token feature"]
    test_labels: Float[np.ndarray, "*test_example_and_output"]
    weights: Sequence[np.ndarray | tuple[np.ndarray, np.ndarray]]
    head_names: tuple[tuple[str, ...], ...]
    path_groups: dict[str, tuple[int, ...]]
    readout: str = "last"
    nonlinearity: str = "softmax"
    validation_inputs: Float[np.ndarray, "validation_example token feature"] | None = None
    validation_labels: Float[np.ndarray, "*validation_example_and_output"] | None = None
    output_names: tuple[str, ...] = ()
    causal: bool = False
    mask: Bool[np.ndarray, "example token"] | None = None
    test_mask: Bool[np.ndarray, "test_example token"] | None = None
    validation_mask: Bool[np.ndarray, "validation_example token"] | None = None


@dataclass(frozen=True, eq=False)
class Tokens(OwnsArrays):
    """Training tokens and their attention, which the token parameterisation needs beyond path inputs.

    `attention` holds the matrices of each layer, (P, H_l, T, T), or a function that computes them: they can be hundreds of
    times larger than path inputs, and no other parameterisation needs them. `mask` (P, T) is False for padding, if there
    is any. `renormalise` is the argument of `bayesattn.attention.paths_from_matrices`, for matrices in half precision.
    Arrays are copied. Raises ValueError for shapes that do not fit, and rows of attention that do not add up to 1.
    """

    inputs: Float[np.ndarray, "example token feature"]
    attention: Sequence[ArrayLike] | Callable[[], Sequence[ArrayLike]]
    readout: str
    mask: np.ndarray | None = None
    renormalise: float | None = None

    def __post_init__(self):
        put = partial(object.__setattr__, self)
        one_of("tokens.readout", self.readout, fixed_attention.READOUTS)
        inputs, mask = fixed_attention.checked_tokens("tokens.inputs", self.inputs, self.mask)
        put("inputs", owned(inputs))
        put("mask", None if mask is None else owned(mask))
        if not callable(self.attention):
            examples, tokens, _ = inputs.shape
            matrices = fixed_attention.checked_matrices(self.attention, examples, tokens, mask, self.renormalise)
            put("attention", [owned(matrix) for matrix in matrices])

    @property
    def matrices(self) -> list[Float[np.ndarray, "example head query key"]]:
        """Attention matrices of each layer, recomputed at each access if `attention` is a function."""
        layers = self.attention() if callable(self.attention) else self.attention
        return [np.asarray(matrix) for matrix in layers]

    @classmethod
    def of(cls, data: TokenDataset) -> "Tokens":
        """Training tokens of a task's dataset; attention is recomputed when needed, from copies of its arrays."""
        inputs, mask = fixed_attention.checked_tokens("inputs", data.inputs, data.mask)
        inputs, mask = owned(inputs), None if mask is None else owned(mask)
        heads = fixed_attention.checked_heads(data.weights, inputs.shape[2])
        weights = [tuple(map(owned, layer)) if isinstance(layer, tuple) else owned(layer) for layer in heads]
        patterns = partial(fixed_attention.matrices, inputs, weights, data.nonlinearity, data.causal, mask)
        return cls(inputs, patterns, data.readout, mask)

    def require_fit(self, examples: int, features: int, heads: tuple[int, ...]) -> None:
        """Raise ValueError if tokens are not of that many examples, features and heads."""
        if self.inputs.shape[::2] != (examples, features):
            raise BayesattnError(
                f"tokens.inputs must have shape ({examples}, tokens, {features}), got {self.inputs.shape}"
            )
        if not callable(self.attention) and (got := tuple(np.shape(each)[1] for each in self.attention)) != heads:
            raise BayesattnError(f"tokens.attention must have {heads} heads per layer, got {got}")
