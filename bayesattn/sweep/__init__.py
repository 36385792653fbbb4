"""Sweeps: many runs, planned in a file, estimated, sampled on Dask and collected in a table."""

from bayesattn.sweep.estimate import Estimate, estimates, start_up
from bayesattn.sweep.execute import require_extras, run
from bayesattn.sweep.plan import Cluster, Planned, Sweep
from bayesattn.sweep.table import results

__all__ = ["Cluster", "Estimate", "Planned", "Sweep", "estimates", "require_extras", "results", "run", "start_up"]
