"""Many runs on Dask, each of them a store of its own that survives its worker."""

import dataclasses
import errno
import io
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import jax
import pandas as pd

from bayesattn import runs
from bayesattn._extras import require
from bayesattn._files import replace_file
from bayesattn.models import Model
from bayesattn.samplers import Job
from bayesattn.samplers.run import advance, bytes_per_draw, cores, plan
from bayesattn.sweep_file import Cluster, Planned, Sweep, flat

CLUSTERS = {"slurm": "SLURMCluster", "pbs": "PBSCluster", "sge": "SGECluster", "lsf": "LSFCluster", "oar": "OARCluster"}
HOST = "127.0.0.1"
CONNECT_SECONDS = 10
POLL_SECONDS = 1.0
PILOT_SECONDS = 3.0


def run_one(planned: Planned, threads: int, overwrite: bool = False, repair: bool = False) -> str | None:
    """Bring one run to its end, on whatever worker this is; returns its error, for one bad run must not end the others."""
    try:
        model, job = planned.model(), vars(planned.job)
        try:
            run = runs.sample(model, planned.out, threads=threads, repair=repair, **job)
        except runs.RunError as error:
            if not overwrite or isinstance(error, runs.RunBusy):
                raise
            run = runs.sample(model, planned.out, threads=threads, overwrite=True, **job)
        run.summary()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def run(
    sweep: Sweep,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    security: Mapping[str, Any] | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    repair: bool = False,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> pd.DataFrame:
    """Bring all runs of a sweep to their end: finished ones are skipped, interrupted ones resumed, short ones go on.

    The embedded cluster listens on 127.0.0.1 alone. Whoever can reach a scheduler or its workers can run code there: use a
    remote one over TLS, or in a network that you trust.

    Args:
        sweep: the runs.
        workers: processes of the embedded cluster, by default one a core, or one a GPU.
        scheduler: address of a running Dask scheduler, instead of an embedded cluster.
        security: options of `distributed.Security` for it, such as tls_ca_file, tls_client_cert and tls_client_key.
        threads: chains that a run draws at a time, by default the cores divided among the workers, 1 elsewhere.
        overwrite: replace what stands in place of a run and cannot be one: of other settings, damaged.
        repair: draw what is damaged of a run again.
        progress: told steps done and total, runs complete, failed and total, about every second.

    Returns:
        The table of results, which is also written to results.parquet and results.csv in the sweep's folder.

    Raises:
        BlockingIOError: another process is at work on the sweep.
        ConnectionError: no scheduler answers at the address.
        ImportError: the extra "sweep" is not installed, or "cluster" where there is a [cluster].
        ValueError: `security` without a scheduler at a tls:// address, or with an option that there is not.
    """
    if security and not (scheduler or "").startswith("tls://"):
        raise ValueError(f"security needs a scheduler at a tls:// address, got {scheduler}")
    require("sweep", "a sweep")
    if sweep.table.cluster is not None:
        require("cluster", "[cluster]")
    sweep.out.mkdir(parents=True, exist_ok=True)
    errors: dict[str, str | None] = {planned.name: None for planned in sweep.runs}
    lock = filelock.FileLock(sweep.out / ".lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise BlockingIOError(
            f"{sweep.out} is being swept by another process: wait for it, or choose another out"
        ) from None
    try:
        pending = [planned for planned in sweep.runs if not planned.finished()]
        try:
            if pending:
                with _client(sweep, workers, scheduler, security, len(pending)) as (client, threads_each):
                    work = partial(run_one, threads=threads or threads_each, overwrite=overwrite, repair=repair)
                    _run_all(client, work, sweep, pending, errors, progress)
        finally:
            table = results(sweep, errors)
            _write_table(table, sweep.out)
    finally:
        lock.release()
    return table


def _run_all(client: Any, work: Callable, sweep: Sweep, pending: list[Planned], errors: dict, progress) -> None:
    import distributed

    wait: Any = distributed.wait
    futures = {client.submit(work, planned, pure=False): planned for planned in pending}
    waiting = set(futures)
    total = sum(planned.job.chains * planned.job.transitions for planned in sweep.runs)
    started = {planned.name for planned in pending}
    at_rest = sum(_steps_done(planned) for planned in sweep.runs if planned.name not in started)
    while waiting:
        try:
            finished = wait(waiting, timeout=POLL_SECONDS, return_when="FIRST_COMPLETED").done
        except TimeoutError:
            finished = set()
        for future in finished:
            # A worker that died under a run time and again, or lacks bayesattn, is an error of Dask's.
            failure = future.exception()
            errors[futures[future].name] = f"{type(failure).__name__}: {failure}" if failure else future.result()
        waiting -= finished
        at_rest += sum(_steps_done(futures[future]) for future in finished)
        if progress:
            failed = sum(error is not None for error in errors.values())
            progress(
                {
                    "done": at_rest + sum(_steps_done(futures[future]) for future in waiting),
                    "total": total,
                    "complete": len(sweep.runs) - len(waiting) - failed,
                    "failed": failed,
                    "runs": len(sweep.runs),
                }
            )


def _steps_done(planned: Planned) -> int:
    try:
        return sum(runs.Run(planned.out).done)
    except runs.RunError:
        return 0


@contextmanager
def _client(
    sweep: Sweep, workers: int | None, scheduler: str | None, security: Mapping[str, Any] | None, pending: int
) -> Iterator[tuple[Any, int]]:
    """A Dask client, and how many threads each run may use."""
    from distributed import Client

    if scheduler is not None:
        try:
            client = Client(scheduler, timeout=CONNECT_SECONDS, security=_security(security))
        except (OSError, ValueError, RuntimeError, TypeError) as error:
            raise ConnectionError(
                f"scheduler must be the address of a running Dask scheduler, such as tcp://host:8786, got {scheduler!r}:"
                f" {error}"
            ) from None
        with client:
            yield client, 1
        return
    with tempfile.TemporaryDirectory() as scratch:
        if sweep.table.cluster is not None:
            cluster, threads = batch_cluster(sweep.table.cluster), 1
            cluster.scale(jobs=sweep.table.cluster.jobs)
        else:
            cluster, threads = _embedded_cluster(workers, pending, scratch)
        with cluster, Client(cluster) as client:
            yield client, threads


def _security(options: Mapping[str, Any] | None) -> Any:
    """None leaves it to Dask's own configuration."""
    from distributed import Security

    if not options:
        return None
    for name in ("tls_ca_file", "tls_client_cert", "tls_client_key"):
        if name in options and not Path(options[name]).is_file():
            raise FileNotFoundError(errno.ENOENT, f"{name} must be a file", str(options[name]))
    try:
        return Security(**{"require_encryption": True, **options})
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"security must be options of distributed.Security, got {', '.join(options)}: {error}"
        ) from None


def _embedded_cluster(workers: int | None, pending: int, scratch: str) -> tuple[Any, int]:
    """Spawned processes of one thread each: one a core, or one a GPU, which sees no other.

    All listen on 127.0.0.1 alone, and serve no page: Dask runs whatever code it is sent.
    """
    import dask
    from distributed import Nanny, Scheduler, SpecCluster

    devices = gpus()
    count = min(workers or len(devices) or cores(), len(devices) or pending, pending)
    here = {"host": HOST, "dashboard_address": f"{HOST}:0", "dashboard": False}
    worker = here | {"nthreads": 1, "memory_limit": 0, "local_directory": scratch}
    nannies = {
        index: {
            "cls": Nanny,
            "options": worker | ({"env": {"CUDA_VISIBLE_DEVICES": devices[index]}} if devices else {}),
        }
        for index in range(count)
    }
    no_pages = {"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []}
    with dask.config.set(no_pages):
        cluster = SpecCluster(workers=nannies, scheduler={"cls": Scheduler, "options": here})
    return cluster, 1 if devices else max(1, cores() // count)


def gpus() -> list[str]:
    """Names of the CUDA devices that JAX sees, as CUDA_VISIBLE_DEVICES has them; none where JAX does without."""
    if jax.default_backend() != "gpu":
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else map(str, range(jax.local_device_count()))
    return [name.strip() for name in names][: jax.local_device_count()]


def batch_cluster(table: Cluster) -> Any:
    """The dask-jobqueue cluster of a [cluster] table."""
    import dask_jobqueue

    options = {"cores": 1, "processes": 1, "memory": "4GB"} | table.options
    return getattr(dask_jobqueue, CLUSTERS[table.kind])(**options)


def results(sweep: Sweep, errors: dict[str, str | None] | None = None) -> pd.DataFrame:
    """Tidy table: a row for each quantity of each run that is complete, and one for each other run with state and error."""
    rows = []
    for planned in sweep.runs:
        about = {"run": planned.name, "model": Path(planned.settings["model"]).stem}
        about |= {
            key: getattr(planned.job, key) for key in ("sampler", "parameterisation", "chains", "warmup", "draws")
        }
        about |= {"seed": planned.job.seed} | flat(planned.varied)
        error = (errors or {}).get(planned.name)
        try:
            found: dict[str, Any] = runs.Run(planned.out).overview() if planned.out.exists() else {"state": "new"}
            about |= {key: found[key] for key in ("state", "width", "temperature", "seconds") if key in found}
            error = error or found.get("error")
            quantities = runs.Run(planned.out).summary() if found["state"] == "complete" and not error else [{}]
            diagnostics = found.get("diagnostics") or {}
            about["divergences"] = diagnostics.get("divergences")
        except (runs.RunError, OSError) as damage:
            about["state"], error, quantities = "failed", error or str(damage), [{}]
        if error:
            about["state"] = "failed"
        rows += [about | {"error_message": error} | quantity for quantity in quantities]
    return pd.DataFrame(rows)


def _write_table(table: pd.DataFrame, folder: Path) -> None:
    replace_file(folder / "results.csv", table.to_csv(index=False).encode())
    content = io.BytesIO()
    table.to_parquet(content, index=False)
    replace_file(folder / "results.parquet", content.getvalue())


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
        job, state, done = planned.job, planned.state(), _steps_done(planned)
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
