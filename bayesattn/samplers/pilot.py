"""Estimated cost of a job, from a few seconds of sampling."""

import dataclasses
import math
import time
from contextlib import suppress
from typing import NamedTuple

from bayesattn.models import collapsed
from bayesattn.models.model import has_fixed_attention
from bayesattn.models.posterior import Posterior
from bayesattn.samplers import curvature
from bayesattn.samplers.blocks import Chains, Outputs, advance, bytes_per_draw, plan
from bayesattn.samplers.job import Job
from bayesattn.theory.bartlett import layer_shapes
from bayesattn.theory.cost import cost_of_mode, seconds_of
from bayesattn.theory.saddle_point import MOST_COORDINATES_FOR_HESSIAN

PILOT_SECONDS = 3.0
GRADIENTS_A_STEP = 31
"""Assumed gradients per step in many coordinates, if the options do not fix them: leaves of a tree of depth 5, a guess."""
FLOAT32_SHARE = 0.4
"""Time of a gradient in float32 relative to one in float64, measured with 169 paths and 1000 examples."""


class Pilot(NamedTuple):
    """Cost of a job, measured in a few seconds of warm-up, or estimated from the time of a gradient.

    `compilation` includes the time of the computations before sampling.
    """

    seconds_per_step: float
    compilation: float
    bytes_per_draw: int
    measured: bool = True


def gradients_a_step(job: Job) -> int:
    """Gradients per step: fixed by the options, or the number that samplers with trajectories are assumed to need."""
    options = job.options
    if job.sampler == "underdamped":
        given = {"length", "step_size"} <= options.keys()
        leaps = math.ceil(options["length"] / options["step_size"]) if given else GRADIENTS_A_STEP
        return options.get("steps", 1) * leaps
    fixed = options.get("num_steps", options.get("steps"))
    return fixed or (GRADIENTS_A_STEP if job.sampler in ("nuts", "hmc") else 1)


def estimate(model: Posterior, job: Job) -> Pilot:
    """Cost by `pilot`; in many coordinates, where preparing a chain takes minutes, estimated from the time of a gradient."""
    if job.parameterisation != "collapsed" or not has_fixed_attention(model):
        return pilot(model, job)
    shapes = layer_shapes(model.architecture)
    if not model.likelihood.conjugate or sum(shape.size for shape in shapes) <= MOST_COORDINATES_FOR_HESSIAN:
        return pilot(model, job)
    kernels = collapsed.compressed(model)
    cost = cost_of_mode(kernels, model.architecture)
    seconds = cost.seconds
    if curvature.is_worthwhile(shapes):
        gradient, hessian = seconds_of(kernels, model.architecture, shapes)
        seconds += curvature.ROUNDS * (
            curvature.STEPS_PER_ROUND * curvature.LEAPFROG_STEPS * gradient + curvature.HESSIAN_DRAWS * hessian
        )
    ready = plan(model, job, collapsed.prepare(model, "prior"))
    gradient = cost.gradient * (FLOAT32_SHARE if job.options.get("float32_gradients") else 1.0)
    return Pilot(gradients_a_step(job) * gradient, seconds, bytes_per_draw(ready.shapes), measured=False)


def pilot(model: Posterior, job: Job) -> Pilot:
    """Cost measured on the last block of a few seconds of warm-up of one chain; nothing is stored."""
    short = dataclasses.replace(job, chains=1, warmup=10**6, draws=job.thin)
    clock = _Stopwatch()
    ready = plan(model, short)
    with suppress(_PilotDone):
        advance(ready, short, clock)
    return Pilot(clock.seconds_per_step, clock.compilation, bytes_per_draw(ready.shapes))


class _PilotDone(Exception):
    pass


class _Stopwatch:
    """Recorder that times blocks, and ends the job after `PILOT_SECONDS`."""

    def __init__(self):
        self.began, self.first = time.perf_counter(), None
        self.seconds_per_step = self.compilation = math.nan

    def restore(self, chains: Chains, like: object) -> None:
        """No earlier state: every chain starts anew."""

    def record(self, chains: Chains, first: int, outputs: Outputs) -> None:
        """Discard the draws."""

    def checkpoint(self, chains: Chains, state: object, done: int, steps: int, seconds: float) -> None:
        """Time the block."""
        if self.first is None:
            self.first = time.perf_counter()
            self.compilation = max(0.0, self.first - self.began - seconds)
        self.seconds_per_step = seconds / steps
        if time.perf_counter() - self.first > PILOT_SECONDS:
            raise _PilotDone
