"""Posterior samplers, and the runner that draws every chain in blocks."""

from bayesattn.samplers.blocks import Progress
from bayesattn.samplers.job import BIASED, QUANTITIES, SAMPLERS, WITH_REPLICAS, Job
from bayesattn.samplers.run import sample

DRAWS_VERSION = 2
"""Increase this when the draws of any sampler change beyond rounding: runs of other versions are not continued."""

__all__ = ["BIASED", "DRAWS_VERSION", "QUANTITIES", "SAMPLERS", "WITH_REPLICAS", "Job", "Progress", "sample"]
