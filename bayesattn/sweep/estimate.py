"""What a sweep will cost."""

import dataclasses
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from bayesattn import runs
from bayesattn.models import Model
from bayesattn.samplers import Job
from bayesattn.samplers.run import advance, bytes_per_draw, plan
from bayesattn.sweep.plan import Planned, Sweep

PILOT_SECONDS = 3.0


class Estimate(NamedTuple):
    """What a run still costs.

    Steps to go, their seconds on one worker, seconds that compilation and preparation take a worker before the first run of
    its kind, bytes of its whole store, and whether a network is to be trained first, whose time is not known.
    """

    run: str
    state: str
    steps: int
    seconds: float
    compilation: float
    bytes: int
    training: bool


class Pilot(NamedTuple):
    """What a few seconds of warm-up show of a kind of run."""

    seconds_per_step: float
    compilation: float
    bytes_per_draw: int


def estimates(sweep: Sweep, threads: int = 1) -> Iterator[Estimate]:
    """What each run of a sweep still costs, if it draws so many chains at a time.

    Seconds per step are those that a run logged, else those of a pilot of a few seconds of warm-up, which runs that
    compile to the same program share; compilation is counted with the first of them. Nothing is trained: the pilot takes
    networks as they are before.
    """
    pilots: dict[Any, Pilot] = {}
    for planned in sweep.runs:
        job, state, done = planned.job, planned.state(), planned.steps_done
        remaining, logged = job.chains * job.transitions - done, _logged_seconds(planned) if done else None
        compilation = 0.0
        if logged is not None and not remaining:
            per_step, size = logged, runs.Run(planned.out).nbytes
        else:
            model = planned.model(trained=False)
            widths = model.architecture.widths
            kind = (
                *(
                    job.sampler,
                    job.parameterisation,
                    job.chain_method,
                    repr(job.options),
                    job.keep,
                    job.thin,
                    job.warmup,
                ),
                model.path_inputs.shape,
                widths if job.parameterisation != "collapsed" or "weights" in job.keep else None,
            )
            if kind not in pilots:
                pilots[kind] = _pilot(model, job)
                compilation = pilots[kind].compilation
            per_step = pilots[kind].seconds_per_step if logged is None else logged
            size = job.chains * job.kept * pilots[kind].bytes_per_draw
        seconds = remaining * per_step / min(job.chains, threads)
        yield Estimate(
            planned.name, state, remaining, seconds, compilation, size, bool(remaining) and planned.must_train
        )


def _logged_seconds(planned: Planned) -> float | None:
    """Seconds per step and chain by a run's log, None if it tells nothing."""
    blocks = runs.blocks(runs.Run(planned.out).events())
    steps = sum(len(event["chains"]) * event["steps"] for event in blocks)
    return sum(event["seconds"] for event in blocks) / steps if steps else None


def start_up() -> float:
    """Seconds that a worker takes to start and import everything, measured once."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import bayesattn.sweep, distributed"], check=True, capture_output=True)
    return time.perf_counter() - began


def _pilot(model: Model, job: Job) -> Pilot:
    """By the last block of a few seconds of warm-up of one chain."""
    pilot = dataclasses.replace(job, chains=1, warmup=10**6, draws=job.thin)
    clock = _Stopwatch()
    ready = plan(model, pilot)
    with suppress(_Enough):
        advance(ready, pilot, clock)
    return Pilot(clock.seconds_per_step, clock.compilation, bytes_per_draw(ready.shapes))


class _Enough(Exception):
    pass


class _Stopwatch:
    """Recorder that times blocks, and ends the job when it has seen enough."""

    def __init__(self):
        self.began, self.first = time.perf_counter(), None
        self.seconds_per_step = self.compilation = math.nan

    def restore(self, chains: Any, like: Any) -> None:
        """Nothing began before."""

    def record(self, chains: Any, first: int, outputs: Any) -> None:
        """Nothing to keep."""

    def checkpoint(self, chains: Any, state: Any, done: int, steps: int, seconds: float) -> None:
        """Look at the time."""
        if self.first is None:
            self.first = time.perf_counter()
            self.compilation = max(0.0, self.first - self.began - seconds)
        self.seconds_per_step = seconds / steps
        if time.perf_counter() - self.first > PILOT_SECONDS:
            raise _Enough
