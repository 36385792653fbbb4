"""Sweeps: many runs, planned in a file, sampled on Dask and collected in a table."""

from bayesattn.jobs.sweep.execute import by_run, require_extras, results, run
from bayesattn.jobs.sweep.plan import Cluster, Planned, Sweep

__all__ = ["Cluster", "Planned", "Sweep", "by_run", "require_extras", "results", "run"]
