"""Runs on disk, which can be started, resumed, extended, replaced, and opened while they are sampled."""

from bayesattn.runs.folder import FOLDER, RunBusy, RunError, under_way
from bayesattn.runs.run import Run, blocks, is_run, overview
from bayesattn.runs.sampling import sample

__all__ = ["FOLDER", "Run", "RunBusy", "RunError", "blocks", "is_run", "overview", "sample", "under_way"]
