"""What a job will cost, by a few seconds of it."""

import dataclasses
import math
import time
from contextlib import suppress
from typing import Any, NamedTuple

from bayesattn.models import collapsed
from bayesattn.posterior import Posterior
from bayesattn.samplers import curvature
from bayesattn.samplers.blocks import advance, bytes_per_draw, plan
from bayesattn.samplers.job import Job
from bayesattn.theory.bartlett import layer_shapes
from bayesattn.theory.cost import cost_of_mode, seconds_of
from bayesattn.theory.saddle_point import MOST_FOR_HESSIAN

PILOT_SECONDS = 3.0
GRADIENTS_A_STEP = 31
"""That a step of many coordinates is taken to need where options do not fix it: leaves of a tree of five levels, a guess."""


class Pilot(NamedTuple):
    """What a few seconds of warm-up show of a kind of run, or the time of a gradient.

    Compilation counts what is to be prepared, too.
    """

    seconds_per_step: float
    compilation: float
    bytes_per_draw: int
    measured: bool = True


def gradients_a_step(job: Job) -> int:
    """Those that the options fix, or as many as NUTS and HMC are taken to need."""
    fixed = job.options.get("num_steps", job.options.get("steps"))
    return fixed or (GRADIENTS_A_STEP if job.sampler in ("nuts", "hmc") else 1)


def estimate(model: Any, job: Job) -> Pilot:
    """`pilot`, but of many coordinates by the time of a gradient: to prepare the chain takes minutes there."""
    if job.parameterisation != "collapsed":
        return pilot(model, job)
    shapes = layer_shapes(model.architecture)
    if not model.likelihood.conjugate or sum(shape.size for shape in shapes) <= MOST_FOR_HESSIAN:
        return pilot(model, job)
    seen = collapsed.compressed(model)
    cost = cost_of_mode(seen, model.architecture)
    seconds = cost.seconds
    if curvature.is_worthwhile(shapes):
        gradient, hessian = seconds_of(seen, model.architecture, shapes)
        seconds += curvature.ROUNDS * (curvature.STEPS * curvature.LEAPS * gradient + curvature.LOOKS * hessian)
    ready = plan(model, job, collapsed.prepare(model, "prior"))
    return Pilot(gradients_a_step(job) * cost.gradient, seconds, bytes_per_draw(ready.shapes), measured=False)


def pilot(model: Posterior, job: Job) -> Pilot:
    """By the last block of a few seconds of warm-up of one chain; nothing is kept."""
    short = dataclasses.replace(job, chains=1, warmup=10**6, draws=job.thin)
    clock = _Stopwatch()
    ready = plan(model, short)
    with suppress(_Enough):
        advance(ready, short, clock)
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
