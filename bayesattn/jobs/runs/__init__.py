"""Runs on disk, which can be started, resumed, extended, replaced, and opened while they are sampled.

`sampling` decides whether a run goes on, `recorder` restores its checkpoint, `store` says why a killed process loses one
block at most.
"""

from bayesattn.jobs.runs.folder import FOLDER, RunBusy, RunError, under_way
from bayesattn.jobs.runs.run import Run, is_run, overview
from bayesattn.jobs.runs.sampling import sample

__all__ = ["FOLDER", "Run", "RunBusy", "RunError", "is_run", "overview", "sample", "under_way"]
