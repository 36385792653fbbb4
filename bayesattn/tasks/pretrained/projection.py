"""Tokens projected to principal components."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from bayesattn._util.checks import Checked, positive_integer
from bayesattn._util.text import Described
from bayesattn.errors import BayesattnError
from bayesattn.fixed_attention import checked_tokens


@dataclass(frozen=True, eq=False, repr=False)
class Projection(Described):
    """Projection of tokens to principal components, divided by one number, so that entries have mean square 1.

    Args:
        mean: mean of the tokens it was made from, shape (N,).
        components: orthonormal rows, shape (N_0, N), the largest variance first.
        scale: root mean square of the projected entries.
        lost: share of the tokens' variance that the projection leaves out.
    """

    mean: Float[np.ndarray, " feature"]
    components: Float[np.ndarray, "component feature"]
    scale: float
    lost: float

    def __call__(self, inputs: Checked, mask: Checked = None) -> Float[np.ndarray, "example token component"]:
        """Tokens of shape (P, T, N), projected to (P, T, N_0) float32; with a mask, padding may be NaN.

        Raises ValueError for another shape or NaN.
        """
        inputs, _ = checked_tokens("inputs", inputs, mask, ("examples", "tokens", len(self.mean)))
        return (((inputs - self.mean) @ self.components.T) / self.scale).astype(np.float32)

    def _described(self) -> tuple[str, dict[str, str]]:
        kept, features = self.components.shape
        return f"Projection of {features} features to {kept} principal components", {
            "lost": f"{100 * self.lost:.1f} % of the variance"
        }


def principal_components(inputs: Checked, features: int, mask: Checked = None) -> Projection:
    """Projection to principal components of tokens; compute it from training examples, and apply it to all examples.

    Args:
        inputs: tokens, shape (P, T, N).
        features: N_0, the number of components, at most N.
        mask: True for tokens and False for padding, shape (P, T).

    Raises:
        ValueError: wrong shapes, more components than features or tokens, tokens that are all equal.
    """
    inputs, mask = checked_tokens("inputs", inputs, mask)
    tokens = inputs.reshape(-1, inputs.shape[2]) if mask is None else inputs[mask]
    count = positive_integer("features", features, 1, min(tokens.shape))
    mean = tokens.mean(0)
    values, vectors = np.linalg.eigh(np.cov(tokens, rowvar=False, bias=True).reshape(len(mean), len(mean)))
    values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
    if not np.ptp(tokens, axis=0).max() > 0:
        raise BayesattnError("inputs must hold tokens that differ, got equal ones")
    kept = values[:count].sum()
    return Projection(mean, vectors[:, :count].T, math.sqrt(kept / count), float(1 - kept / values.sum()))
