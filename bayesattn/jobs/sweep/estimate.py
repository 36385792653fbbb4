"""Estimated cost of a sweep."""

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bayesattn.jobs import runs
from bayesattn.jobs.sweep.plan import Planned, Sweep
from bayesattn.samplers.pilot import Pilot, estimate
from bayesattn.theory.bartlett import layer_shapes


class Estimate(NamedTuple):
    """Remaining cost of a run.

    `steps` are the remaining steps and `seconds` their time on one worker. `compilation` is the time in seconds that a
    worker needs for compilation and preparation before the first run of its kind, `bytes` the size of the whole store.
    `training` says whether a network must be trained first, whose time is not known.
    """

    run: str
    state: str
    steps: int
    seconds: float
    compilation: float
    bytes: int
    training: bool


def estimates(sweep: Sweep, threads: int = 1) -> Iterator[Estimate]:
    """Remaining cost of each run of a sweep, if a run samples `threads` chains at a time.

    Seconds per step are those that the run logged, or else those of a pilot of a few seconds of warm-up. Runs that compile
    to the same program share a pilot, and compilation is counted with the first of them. Nothing is trained: the pilot uses
    networks as they are before training.
    """
    pilots: dict[tuple, Pilot] = {}
    for planned in sweep.runs:
        job, state, done = planned.job, planned.state(), planned.steps_done
        remaining, logged = job.chains * job.transitions - done, _logged_seconds(planned) if done else None
        compilation = 0.0
        if logged is not None and not remaining:
            per_step, size = logged, runs.Run(planned.out).nbytes
        else:
            model = planned.model(trained=False)
            job = job.for_model(model)
            kind = (
                *(job.sampler, job.parameterisation, job.chain_method, repr(job.options), job.keep, job.warmup),
                *(np.shape(getattr(model, name)) for name in model.data_names),
                getattr(model, "key_width", None),
                type(model.likelihood),
                layer_shapes(model.architecture),
                model.architecture.widths if job.parameterisation != "collapsed" or "weights" in job.keep else None,
            )
            if kind not in pilots:
                pilots[kind] = estimate(model, job)
                compilation = pilots[kind].compilation
            per_step = pilots[kind].seconds_per_step if logged is None else logged
            size = job.chains * job.kept * pilots[kind].bytes_per_draw
        seconds = remaining * per_step / min(job.chains, threads)
        yield Estimate(
            planned.name, state, remaining, seconds, compilation, size, bool(remaining) and planned.must_train
        )


def _logged_seconds(planned: Planned) -> float | None:
    """Seconds per step and chain from the log of a run; None if the log has no blocks."""
    blocks = runs.blocks(runs.Run(planned.out).events())
    steps = sum(len(event["chains"]) * event["steps"] for event in blocks)
    return sum(event["seconds"] for event in blocks) / steps if steps else None


def start_up() -> float:
    """Seconds that a worker needs to start and to import all modules, measured once per call."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import bayesattn.sweep, distributed"], check=True, capture_output=True)
    return time.perf_counter() - began
