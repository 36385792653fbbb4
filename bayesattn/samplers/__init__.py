"""Samplers of a posterior, and the runner that draws blocks of every chain."""

from bayesattn.samplers.run import SAMPLERS, Progress, sample

__all__ = ["SAMPLERS", "Progress", "sample"]
