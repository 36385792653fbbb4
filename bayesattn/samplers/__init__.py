"""Samplers of a posterior, and the runner that draws blocks of every chain."""

from bayesattn.samplers.blocks import Progress
from bayesattn.samplers.job import BIASED, QUANTITIES, SAMPLERS, WITH_REPLICAS, Job
from bayesattn.samplers.run import sample

DRAWS_VERSION = 1
"""Raise it when the draws of any sampler change beyond rounding: runs that were begun with another are not gone on with."""

__all__ = ["BIASED", "DRAWS_VERSION", "QUANTITIES", "SAMPLERS", "WITH_REPLICAS", "Job", "Progress", "sample"]
