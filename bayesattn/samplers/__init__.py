"""Samplers of a posterior, and the runner that draws blocks of every chain."""

from bayesattn.samplers.job import BIASED, QUANTITIES, SAMPLERS, WITH_REPLICAS, Job
from bayesattn.samplers.run import Progress, sample

__all__ = ["BIASED", "QUANTITIES", "SAMPLERS", "WITH_REPLICAS", "Job", "Progress", "sample"]
