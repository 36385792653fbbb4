"""Importance of heads and paths, with its uncertainty: scores from U, losses without a head, and removal of heads."""

from bayesattn.questions.heads.losses import Losses, head_losses, predicted_losses
from bayesattn.questions.heads.path_combination import CombiningWidth, PathCorrelations
from bayesattn.questions.heads.removal import Removal, remove_heads
from bayesattn.questions.heads.scores import Heads, heads

__all__ = [
    "CombiningWidth",
    "Heads",
    "Losses",
    "PathCorrelations",
    "Removal",
    "head_losses",
    "heads",
    "predicted_losses",
    "remove_heads",
]
