"""Posterior samplers, and the runner that draws every chain in blocks."""

from bayesattn.samplers.blocks import Progress
from bayesattn.samplers.job import AUTO, BIASED, QUANTITIES, SAMPLERS, WITH_REPLICAS, Job, suited_sampler
from bayesattn.samplers.run import sample

DRAWS_VERSION = 2
"""Increase this when the draws of any sampler change beyond rounding: runs of other versions are not continued."""

__all__ = [
    "AUTO",
    "BIASED",
    "DRAWS_VERSION",
    "QUANTITIES",
    "SAMPLERS",
    "WITH_REPLICAS",
    "Job",
    "Progress",
    "sample",
    "suited_sampler",
]
