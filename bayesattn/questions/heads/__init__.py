"""Importance of heads and paths, with its uncertainty: scores from U, losses without a head, and removal of heads."""

from bayesattn.questions.heads.losses import Losses, head_losses, predicted_losses
from bayesattn.questions.heads.posterior import (
    CombiningWidth,
    Heads,
    PathCorrelations,
    combining_width,
    heads,
    path_correlations,
)
from bayesattn.questions.heads.removal import Removal, remove_heads

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
