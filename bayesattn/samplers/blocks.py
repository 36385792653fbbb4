"""Chains of draws, block by block, wherever draws and states are kept."""

import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Key
from threadpoolctl import threadpool_limits

from bayesattn._util.checks import one_of
from bayesattn._util.errors import BayesattnError
from bayesattn._util.plain import PlainDict
from bayesattn._util.progress import compiled
from bayesattn._util.random import fingerprint, stream
from bayesattn._util.settings import own_settings, with_own_settings
from bayesattn.models import PARAMETERISATIONS, Collapsed, Parameterisation, require_memory
from bayesattn.posterior import Posterior
from bayesattn.samplers import curvature
from bayesattn.samplers.goal import Goal
from bayesattn.samplers.job import MINIBATCHED, Job
from bayesattn.samplers.program import Program, program_of

MOST_DRAWS = 250
MOST_BYTES = 2**25
"""A block keeps at most so many draws and bytes: few enough for memory and for a lively progress bar."""
MOST_SECONDS = 5.0
"""Time that a block aims to stay below, so that little is lost with the machine and an interrupt is soon obeyed."""
FIRST_STEPS = 5
Chains = tuple[int, ...]
"""Chains that advance together: one, or all where they are vectorised."""
Outputs = dict[str, PlainDict]
"""Group -> name -> array, or what stands for one."""


class Progress(NamedTuple):
    """What a progress callback is told after each block: chain, its steps done, its total, warm-up included."""

    chain: int
    done: int
    total: int


class Plan(NamedTuple):
    """A job made ready: compiled program, the posterior it is run on, and what was computed before sampling could begin.

    `shapes` are those of what is kept of one draw, `block` the most draws that a block keeps, `key` that of all chains: it
    comes from the seed, the posterior, and how that is sampled.
    """

    program: Program
    posterior: Parameterisation
    prepared: PlainDict
    shapes: Outputs
    block: int
    key: Key[Array, ""]


@runtime_checkable
class Recorder(Protocol):
    """Where draws and sampler states go; methods are called from the threads of the chains."""

    def restore(self, chains: Chains, like: Any) -> tuple[Any, int] | None:
        """State and steps done of chains that began before, None for a new start; `like` has the state's shapes."""
        ...

    def record(self, chains: Chains, first: int, outputs: Outputs) -> None:
        """Keep draws `first`, first + 1, ..; arrays begin with axes (chain, draw)."""
        ...

    def checkpoint(self, chains: Chains, state: Any, done: int, steps: int, seconds: float) -> None:
        """Keep the state after `done` steps, the last `steps` of which took so many seconds."""
        ...


def bytes_per_draw(shapes: Outputs) -> int:
    """Memory that the kept values of one draw take."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


class _Turn(NamedTuple):
    """Chains that wait for their next block; the least advanced come first, `order` breaks ties."""

    done: int
    order: int
    chains: Chains
    state: Any
    seconds_per_step: float = MOST_SECONDS / FIRST_STEPS


@with_own_settings
def plan(model: Posterior, job: Job, prepared: PlainDict | None = None, *, other_labels: bool = False) -> Plan:
    """Make a job ready.

    Args:
        model: the posterior.
        job: what is drawn of it.
        prepared: what an earlier plan of the same job found.
        other_labels: whether labels will be replaced, so that the kernels have to be those of all examples.
    """
    one_of(f"parameterisation of a {type(model).__name__}", job.parameterisation, model.parameterisations)
    if job.sampler in MINIBATCHED and getattr(model, "compressed", None) is not None:
        raise BayesattnError(
            f"sampler {job.sampler!r} takes minibatches of examples, got a compressed dataset, which holds none"
        )
    at_once = job.chains if job.chain_method == "vectorised" else min(job.chains, cores())
    kind = PARAMETERISATIONS[job.parameterisation]
    require_memory(model, job.parameterisation, at_once)
    computed = _prepared(model, kind) if prepared is None else prepared
    posterior = kind.of(model, weights="weights" in job.keep, all_examples=other_labels, **computed)
    vectorised = job.chain_method == "vectorised"
    chain_program = program_of(posterior, job.sampler, job.options, job.warmup, tuple(job.keep), vectorised)
    shapes = chain_program.shapes(posterior)
    if not shapes["posterior"]:
        raise BayesattnError(f"keep must leave something of a model without test examples, got {', '.join(job.keep)}")
    block = max(1, min(MOST_DRAWS, MOST_BYTES // bytes_per_draw(shapes)))
    key = stream(job.seed, "chains", fingerprint(model), job.sampler, job.parameterisation)
    return Plan(chain_program, posterior, computed, shapes, block, key)


def _prepared(model: Any, kind: type[Parameterisation]) -> PlainDict:
    """What has to be computed before sampling begins."""
    found = kind.prepare(model)
    return curvature.refined(model, found) if kind is Collapsed else found


def _chain_keys(job: Job, key: Key[Array, ""]) -> list[Any]:
    """What each of `units` starts from."""
    keys = jax.random.split(key, job.chains)
    return [keys] if job.chain_method == "vectorised" else list(keys)


@with_own_settings
def advance(
    ready: Plan,
    job: Job,
    recorder: Recorder,
    progress: Callable[[Progress], None] | None = None,
    threads: int = 0,
    goal: Goal | None = None,
) -> None:
    """Bring a job to its end from wherever the recorder says it is.

    One KeyboardInterrupt or several, or an error in one of the chains, let all chains finish their block and record it.
    `threads` is the most chains that run at a time, by default one a core; `goal` may end it earlier.

    Raises what `sample` does, and whatever the recorder raises.
    """
    runner = _Runner(ready, job, recorder)
    waiting: queue.PriorityQueue[_Turn] = queue.PriorityQueue()
    stop, lock = threading.Event(), threading.Lock()
    active: set[int] = set()  # Threads that may be at a block: one that begins when all are to stop draws none.

    def tell(turn: _Turn) -> None:
        if progress is not None:
            with lock:
                for chain in turn.chains:
                    progress(Progress(chain, turn.done, job.transitions))

    def work() -> None:
        active.add(threading.get_ident())
        try:
            with own_settings():
                draw_blocks()
        except BaseException:
            stop.set()
            raise
        finally:
            active.discard(threading.get_ident())

    def draw_blocks() -> None:
        while not stop.is_set():
            try:
                turn = waiting.get_nowait()
            except queue.Empty:
                return  # All other chains are in the hands of other workers.
            turn = runner.next_block(turn)
            tell(turn)
            done[turn.chains] = turn.done
            if goal is not None and goal.enough(max(0, (min(done.values()) - job.warmup) // job.thin)):
                stop.set()
            if turn.done < job.transitions:
                waiting.put(turn)

    done: dict[Chains, int] = {}
    for turn in runner.turns():
        done[turn.chains] = turn.done
        if turn.done:
            tell(turn)
        if turn.done < job.transitions:
            waiting.put(turn)
    compiled(progress)
    workers = max(1, min(waiting.qsize(), threads or cores()))
    # Chains that each start BLAS threads on every core take three times as long as chains that do not.
    with threadpool_limits(1, user_api="blas"):
        pool = ThreadPoolExecutor(workers)
        try:
            for future in [pool.submit(work) for _ in range(workers)]:
                future.result()
        finally:
            stop.set()
            _wait_for(active)
            pool.shutdown()


def _wait_for(active: set[int]) -> None:
    """Until all blocks under way are recorded, however often the user asks to stop: they take seconds."""
    while active:
        with suppress(KeyboardInterrupt):
            time.sleep(0.02)


def units(job: Job) -> list[Chains]:
    """Chains that advance together."""
    chains = range(job.chains)
    return [tuple(chains)] if job.chain_method == "vectorised" else [(chain,) for chain in chains]


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Runner:
    """Starts the chains of a job and brings them from block to block."""

    def __init__(self, ready: Plan, job: Job, recorder: Recorder):
        self.job, self.recorder = job, recorder
        self.program, self.posterior, _, _, self.block, self.key = ready

    def turns(self) -> list[_Turn]:
        """Where each of the chains stands, by its last checkpoint."""
        begins = list(zip(units(self.job), _chain_keys(self.job, self.key), strict=True))
        like = jax.eval_shape(self.program.start, begins[0][1], self.posterior)
        turns = []
        for order, (chains, key) in enumerate(begins):
            state, done = self.recorder.restore(chains, like) or (None, 0)
            if state is None:
                state = self.program.start(key, self.posterior)
                _require_finite((state.potential_energy, state.z_grad), "the starting point", chains)
            turns.append(_Turn(done, order, chains, state))
        if any(turn.done < self.job.transitions for turn in turns):
            # Compiles, lest the time of the first block mislead.
            jax.block_until_ready(
                self.program.block(turns[0].state, self.posterior, 0, False, self.job.thin, self.block)
            )
        return turns

    def next_block(self, turn: _Turn) -> _Turn:
        """Draw a block and record it."""
        job, done, count = self.job, turn.done, self._steps(turn)
        kept, keep = (done - job.warmup) // job.thin, done >= job.warmup
        began = time.perf_counter()
        state, outputs = jax.block_until_ready(
            self.program.block(turn.state, self.posterior, count, keep, job.thin, self.block)
        )
        where = f"draws {done + 1} to {done + count} (warm-up included)"
        _require_finite((state.potential_energy, state.z_grad), where, turn.chains)
        if keep:
            outputs = jax.tree.map(lambda leaf: np.asarray(leaf)[:, : count // job.thin], outputs)
            _require_finite(outputs["posterior"], where, turn.chains)
            self.recorder.record(turn.chains, kept, outputs)
        seconds = time.perf_counter() - began
        self.recorder.checkpoint(turn.chains, state, done + count, count, seconds)
        return turn._replace(done=done + count, state=state, seconds_per_step=seconds / count)

    def _steps(self, turn: _Turn) -> int:
        """Steps of the next block: up to the end of warm-up, of the job or of a full block, and not for too long."""
        thin, kept = self.job.thin, (turn.done - self.job.warmup) // self.job.thin
        affordable = max(1, int(MOST_SECONDS / turn.seconds_per_step))
        if kept < 0:
            return min(affordable, self.block * thin, self.job.warmup - turn.done)
        return thin * min(max(1, affordable // thin), self.block - kept % self.block, self.job.kept - kept)


def _require_finite(values: Any, where: str, chains: Chains) -> None:
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(values)):
        raise FloatingPointError(
            f"sampling met a value that is not finite at {where} of chain {', '.join(map(str, chains))};"
            " a higher temperature or a smaller step size may help"
        )


def write_region(arrays: Outputs, chains: Chains, first: int, outputs: Outputs) -> None:
    """Copy the draws of a block into their places in NumPy or Zarr arrays."""
    for group, variables in outputs.items():
        for name, values in variables.items():
            arrays[group][name][chains[0] : chains[-1] + 1, first : first + values.shape[1]] = values
