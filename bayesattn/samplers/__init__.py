"""Posterior samplers, and the runner that draws every chain in blocks."""

from bayesattn.samplers.auto import suited_sampler
from bayesattn.samplers.blocks import Progress
from bayesattn.samplers.job import AUTO, BIASED, QUANTITIES, SAMPLERS, WITH_REPLICAS, Job
from bayesattn.samplers.run import sample
from bayesattn.samplers.tempered import Tempered

DRAWS_VERSIONS = {name: 3 if name in WITH_REPLICAS else 2 for name in SAMPLERS}
"""Increase that of a sampler when its draws change beyond rounding: runs of other versions are not continued."""

__all__ = [
    "AUTO",
    "BIASED",
    "DRAWS_VERSIONS",
    "QUANTITIES",
    "SAMPLERS",
    "WITH_REPLICAS",
    "Job",
    "Progress",
    "Tempered",
    "sample",
    "suited_sampler",
]
