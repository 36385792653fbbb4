"""Importance of heads and paths, with its uncertainty: scores from U, losses without a head, and removal of heads."""

from bayesattn.head_posterior.losses import Losses, head_losses, predicted_losses
from bayesattn.head_posterior.posterior import (
    CombiningWidth,
    Heads,
    PathCorrelations,
    combining_width,
    heads,
    path_correlations,
)
from bayesattn.head_posterior.removal import Removal, remove_heads

__all__ = [
    "CombiningWidth",
    "Heads",
    "Losses",
    "PathCorrelations",
    "Removal",
    "combining_width",
    "head_losses",
    "heads",
    "path_correlations",
    "predicted_losses",
    "remove_heads",
]
