"""Sampling of chains in blocks, independent of where draws and states are stored."""

import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from bayesattn._util.plain_values import PlainDict
from bayesattn._util.progress import begin_drawing
from bayesattn._util.random import key_of, stream
from bayesattn._util.settings import own_settings, with_own_settings
from bayesattn.errors import BayesattnError
from bayesattn.likelihoods import require_by_example
from bayesattn.models import Parameterisation, parameterisation_of, require_memory
from bayesattn.models.model import has_fixed_attention
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.models.posterior import Posterior
from bayesattn.samplers import curvature, external
from bayesattn.samplers.job import MINIBATCHED, SAMPLERS, WITH_REPLICAS, Job
from bayesattn.samplers.pilot import suited_replicas
from bayesattn.samplers.program import Program, program_of
from bayesattn.samplers.stopping import Goal
from bayesattn.samplers.tempered import AUTO

MOST_DRAWS_PER_BLOCK = 250
MOST_BYTES_PER_BLOCK = 2**25
"""Most draws and most bytes in a block: few enough for memory, and for frequent updates of the progress bar."""
MOST_SECONDS_PER_BLOCK = 5.0
"""Target upper limit of the time of a block, so that a crash loses little and an interrupt takes effect soon."""
SECONDS_BETWEEN_LOOKS = 0.2
"""How often the main thread wakes: only then does it handle a signal that the system gave to another thread."""
STEPS_OF_FIRST_BLOCK = 5
FACTORISATIONS = {"cholesky", "triangular_solve", "lu", "eigh", "svd", "qr"}
"""Names of JAX's primitives that factorise matrices, or solve with a factor."""
Chains = tuple[int, ...]
"""Chains that advance together: one chain, or all chains if they are vectorised."""
Outputs = dict[str, PlainDict]
"""Group -> name -> array, or the shape and dtype of an array."""


class Progress(NamedTuple):
    """Argument of a progress callback, after each block: chain, its steps done and its total steps, warm-up included."""

    chain: int
    done: int
    total: int


class Plan(NamedTuple):
    """Job ready to run: compiled program, its posterior, and the quantities computed before sampling.

    `shapes` are the shapes of the kept values of one draw. `block` is the largest number of draws that a block keeps.
    `key` is the random key of all chains, derived from the seed, the posterior, the sampler and the parameterisation.
    """

    program: Program
    posterior: Parameterisation
    prepared: PlainDict
    shapes: Outputs
    block: int
    key: Key[Array, ""]


@runtime_checkable
class Recorder(Protocol):
    """Storage of draws and sampler states; the threads of the chains call its methods."""

    def restore(self, chains: Chains, like: object) -> tuple[object, int] | None:
        """State and number of steps done of chains begun earlier; None for a new start. `like` has the state's shapes."""
        ...

    def record(self, chains: Chains, first: int, outputs: Outputs) -> None:
        """Store draws `first`, first + 1, ..; the leading axes of the arrays are (chain, draw)."""
        ...

    def checkpoint(self, chains: Chains, state: object, done: int, steps: int, seconds: float) -> None:
        """Store the state after `done` steps; the block just drawn was the last `steps` of them and took `seconds`."""
        ...


def bytes_per_draw(shapes: Outputs) -> int:
    """Memory of the kept values of one draw."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


class _ChainGroup(NamedTuple):
    """Chains waiting for their next block; the least advanced come first, `order` breaks ties."""

    done: int
    order: int
    chains: Chains
    state: object
    seconds_per_step: float = MOST_SECONDS_PER_BLOCK / STEPS_OF_FIRST_BLOCK


@with_own_settings
def plan(model: Posterior, job: Job, prepared: PlainDict | None = None, *, other_labels: bool = False) -> Plan:
    """Prepare a job to run.

    Args:
        model: the posterior.
        job: the sampling settings.
        prepared: quantities that an earlier plan of the same job computed before sampling.
        other_labels: True if labels will be replaced; kernels are then not compressed.
    """
    job = job.for_model(model)
    kind: type[Parameterisation] = parameterisation_of(model, job.parameterisation)
    if job.sampler in MINIBATCHED and getattr(model, "compressed", None) is not None:
        raise BayesattnError(
            f"sampler {job.sampler!r} takes minibatches of examples, got a compressed dataset, which holds none"
        )
    if job.sampler in MINIBATCHED and isinstance(model, NetworkPosterior):
        require_by_example(model.reference.likelihood, np.asarray(model.labels), f"sampler {job.sampler!r}")
    pair = external.is_pair(job.kernel)
    if pair and other_labels:
        raise BayesattnError(
            f"sampler must take other labels here, got {external.PAIR}, whose log density has fixed labels: use a NumPyro"
            " kernel"
        )
    at_once = job.chains if job.chain_method == "vectorised" else min(job.chains, cores())
    require_memory(model, job.parameterisation, at_once)
    if prepared is None:
        prepared = kind.prepare(model)
        # A pair has the coordinates of `log_density`.
        if not pair and job.parameterisation == "collapsed" and has_fixed_attention(model) and not model.has_priors:
            prepared = curvature.refined(model, prepared)
    arrays = {name: array for name, array in prepared.items() if name != "replicas"}
    posterior = kind.of(model, weights="weights" in job.keep, all_examples=other_labels, **arrays)
    key, options = stream(job.seed, "chains", model.fingerprint, job.sampler_name, job.parameterisation), job.options
    if job.sampler in WITH_REPLICAS and options.get("replicas", AUTO) == AUTO:
        if "replicas" not in prepared:
            # The same for all seeds, so that their draws can be put together.
            pilot_key = stream(0, "pilot", model.fingerprint, job.parameterisation)
            found = suited_replicas(kind.program, pilot_key, posterior)
            prepared = prepared | {"replicas": jnp.array(found)}
        options = {**options, "replicas": int(prepared["replicas"])}
    if pair:
        external.require_density(job.kernel, posterior)
    vectorised = job.chain_method == "vectorised"
    chain_program = program_of(posterior, job.kernel, options, job.warmup, tuple(job.keep), vectorised)
    shapes = chain_program.shapes(posterior)
    if not shapes["posterior"]:
        raise BayesattnError(f"keep must leave something of a model without test examples, got {', '.join(job.keep)}")
    block = max(1, min(MOST_DRAWS_PER_BLOCK, MOST_BYTES_PER_BLOCK // bytes_per_draw(shapes)))
    return Plan(chain_program, posterior, prepared, shapes, block, key)


def _chain_keys(job: Job, key: Key[Array, ""]) -> list[Key[Array, "..."]]:
    """Random keys for the start of the chains, one entry for each group of `units`."""
    keys = jax.random.split(key, job.chains)
    return [keys] if job.chain_method == "vectorised" else [*map(key_of, jax.device_get(jax.random.key_data(keys)))]


@with_own_settings
def advance(
    ready: Plan,
    job: Job,
    recorder: Recorder,
    progress: Callable[[Progress], None] | None = None,
    threads: int = 0,
    goal: Goal | None = None,
) -> None:
    """Run a job to its end, from the last state that the recorder has.

    After one or more KeyboardInterrupts, or an error in one of the chains, all chains finish their block and record it.
    `threads` is the largest number of chains that run at a time, by default one per core. `goal` may end the job earlier.

    Raises the errors of `sample` and those of the recorder.
    """
    runner = _Runner(ready, job, recorder)
    waiting: queue.PriorityQueue[_ChainGroup] = queue.PriorityQueue()
    stop, lock = threading.Event(), threading.Lock()
    active: set[int] = set()  # Threads that may be drawing a block; a thread that starts after the stop draws none.

    def report(group: _ChainGroup) -> None:
        if progress is not None:
            with lock:
                # A run may have more steps of a chain than are asked for.
                for chain in group.chains:
                    progress(Progress(chain, min(group.done, job.transitions), job.transitions))

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
                group = waiting.get_nowait()
            except queue.Empty:
                return  # Other workers have all other chains.
            group = runner.next_block(group)
            report(group)
            done[group.chains] = group.done
            if goal is not None and goal.enough(max(0, (min(done.values()) - job.warmup) // job.thin)):
                stop.set()
            if group.done < job.transitions:
                waiting.put(group)

    done: dict[Chains, int] = {}
    for group in runner.groups():
        done[group.chains] = group.done
        if group.done:
            report(group)
        if group.done < job.transitions:
            waiting.put(group)
    begin_drawing(progress)
    workers = max(1, min(waiting.qsize(), threads or cores()))
    if workers > 1 and job.sampler not in SAMPLERS and runner.factorises_batches():
        workers = 1
    pool = ThreadPoolExecutor(workers)
    try:
        futures = [pool.submit(work) for _ in range(workers)]
        while wait(futures, SECONDS_BETWEEN_LOOKS).not_done:
            pass
        for future in futures:
            future.result()
    finally:
        stop.set()
        _wait_for(active)
        pool.shutdown()


def _wait_for(active: set[int]) -> None:
    """Wait, through further interrupts, until all blocks in progress are recorded, which takes seconds."""
    while active:
        with suppress(KeyboardInterrupt):
            time.sleep(0.02)


def units(job: Job) -> list[Chains]:
    """Groups of chains that advance together."""
    chains = range(job.chains)
    return [tuple(chains)] if job.chain_method == "vectorised" else [(chain,) for chain in chains]


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Runner:
    """Start the chains of a job and advance them by blocks."""

    def __init__(self, ready: Plan, job: Job, recorder: Recorder):
        self.job, self.recorder = job, recorder
        self.program, self.posterior, _, _, self.block, self.key = ready

    def groups(self) -> list[_ChainGroup]:
        """All chains, each at its last checkpoint, or at its start if it has none."""
        begins = list(zip(units(self.job), _chain_keys(self.job, self.key), strict=True))
        like = jax.eval_shape(self.program.start, begins[0][1], self.posterior)
        groups = []
        for order, (chains, key) in enumerate(begins):
            state, done = self.recorder.restore(chains, like) or (None, 0)
            if state is None:
                state = self.program.start(key, self.posterior)
                _require_finite(_energy_and_gradient(state), "the starting point", chains)
            groups.append(_ChainGroup(done, order, chains, state))
        if any(group.done < self.job.transitions for group in groups):
            # Compile first, so that compilation is not timed with the first block.
            jax.block_until_ready(
                self.program.block(groups[0].state, self.posterior, 0, False, self.job.thin, self.block)
            )
        return groups

    def factorises_batches(self) -> bool:
        """Whether the program of a chain factorises several matrices at a time, on a CPU.

        XLA splits such a batch among its own threads and waits for them. Two chains that run at the same time, on two
        threads, can then wait for each other forever (jaxlib 0.10).
        """
        if jax.default_backend() != "cpu":
            return False
        key = _chain_keys(self.job, self.key)[0]
        state = jax.eval_shape(self.program.start, key, self.posterior)
        arguments = (state, self.posterior, 0, False, self.job.thin, self.block)
        traced = jax.make_jaxpr(self.program.block, static_argnums=5)(*arguments)
        return _factorises_batches(traced.jaxpr)

    def next_block(self, group: _ChainGroup) -> _ChainGroup:
        """Draw a block and record it."""
        job, done, count = self.job, group.done, self._steps(group)
        kept, keep = (done - job.warmup) // job.thin, done >= job.warmup
        began = time.perf_counter()
        state, outputs = jax.block_until_ready(
            self.program.block(group.state, self.posterior, count, keep, job.thin, self.block)
        )
        where = f"draws {done + 1} to {done + count} (warm-up included)"
        _require_finite(_energy_and_gradient(state), where, group.chains)
        if keep:
            outputs = jax.tree.map(lambda leaf: np.asarray(leaf)[:, : count // job.thin], outputs)
            _require_finite(outputs["posterior"], where, group.chains)
            self.recorder.record(group.chains, kept, outputs)
        seconds = time.perf_counter() - began
        self.recorder.checkpoint(group.chains, state, done + count, count, seconds)
        return group._replace(done=done + count, state=state, seconds_per_step=seconds / count)

    def _steps(self, group: _ChainGroup) -> int:
        """Steps of the next block: to the end of warm-up, of the job or of a full block, and within the time limit."""
        thin, kept = self.job.thin, (group.done - self.job.warmup) // self.job.thin
        affordable = max(1, int(MOST_SECONDS_PER_BLOCK / group.seconds_per_step))
        if kept < 0:
            return min(affordable, self.block * thin, self.job.warmup - group.done)
        return thin * min(max(1, affordable // thin), self.block - kept % self.block, self.job.kept - kept)


def _factorises_batches(traced: Any) -> bool:
    """Whether a traced program, or one inside it, factorises several matrices at a time."""
    for step in traced.eqns:
        if step.primitive.name in FACTORISATIONS and step.invars[0].aval.ndim > 2:
            return True
        parts = jax.tree.leaves([*step.params.values()], is_leaf=lambda part: hasattr(part, "eqns"))
        inner = [getattr(part, "jaxpr", part) for part in parts]
        if any(_factorises_batches(part) for part in inner if hasattr(part, "eqns")):
            return True
    return False


def of_each(function: Callable) -> Callable:
    """Function of each entry along the leading axis of its arguments; on a CPU of one entry after another.

    Where two factorisations of batches in one program can wait for each other, for the reason that `factorises_batches` has.
    """
    if jax.default_backend() != "cpu":
        return jax.vmap(function)
    return lambda *entries: jax.lax.map(lambda each: function(*each), entries)


def _energy_and_gradient(state: object) -> list[object]:
    """Potential energy and gradient of a state, as far as its sampler keeps them."""
    return [getattr(state, name) for name in ("potential_energy", "z_grad") if hasattr(state, name)]


def _require_finite(values: object, where: str, chains: Chains) -> None:
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(values)):
        raise FloatingPointError(
            f"sampling met a value that is not finite at {where} of chain {', '.join(map(str, chains))};"
            " a higher temperature or a smaller step size may help"
        )


def write_region(arrays: Outputs, chains: Chains, first: int, outputs: Outputs) -> None:
    """Copy the draws of a block into their region of NumPy or Zarr arrays."""
    for group, variables in outputs.items():
        for name, values in variables.items():
            arrays[group][name][chains[0] : chains[-1] + 1, first : first + values.shape[1]] = values
