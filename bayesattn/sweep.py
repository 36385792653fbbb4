"""Many runs on Dask, each of them a store of its own that survives its worker."""

import dataclasses
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from bayesattn import runs
from bayesattn.models import Model
from bayesattn.samplers import Job
from bayesattn.samplers.run import advance, bytes_per_draw, cores, plan
from bayesattn.sweep_file import Cluster, Planned, Sweep, flat

CLUSTERS = {"slurm": "SLURMCluster", "pbs": "PBSCluster", "sge": "SGECluster", "lsf": "LSFCluster", "oar": "OARCluster"}
CONNECT_SECONDS = 10
POLL_SECONDS = 1.0
PILOT_SECONDS = 3.0


def run_one(planned: Planned, threads: int) -> str | None:
    """Bring one run to its end, on whatever worker this is; returns its error, for one bad run must not end the others."""
    try:
        runs.sample(planned.model(), planned.out, threads=threads, **vars(planned.job)).summary()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def run(
    sweep: Sweep,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    threads: int | None = None,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> pd.DataFrame:
    """Bring all runs of a sweep to their end: finished ones are skipped, interrupted ones resumed.

    Args:
        sweep: the runs.
        workers: processes of the embedded cluster, by default one a core, or one a GPU.
        scheduler: address of a running Dask scheduler, instead of an embedded cluster.
        threads: chains that a run draws at a time, by default the cores divided among the workers, 1 elsewhere.
        progress: told steps done and total, runs complete, failed and total, about every second.

    Returns:
        The table of results, which is also written to results.parquet and results.csv in the sweep's folder.

    Raises:
        ConnectionError: no scheduler answers at the address.
        ImportError: [cluster] needs dask-jobqueue.
    """
    sweep.out.mkdir(parents=True, exist_ok=True)
    errors: dict[str, str | None] = {planned.name: None for planned in sweep.runs}
    pending = [planned for planned in sweep.runs if not planned.finished()]
    try:
        if pending:
            with _client(sweep, workers, scheduler, len(pending)) as (client, threads_each):
                _run_all(client, sweep, pending, threads or threads_each, errors, progress)
    finally:
        table = results(sweep, errors)
        _write_table(table, sweep.out)
    return table


def _run_all(client: Any, sweep: Sweep, pending: list[Planned], threads: int, errors: dict, progress) -> None:
    import distributed

    wait: Any = distributed.wait
    futures = {client.submit(run_one, planned, threads, pure=False): planned for planned in pending}
    waiting = set(futures)
    total = sum(planned.job.chains * planned.job.transitions for planned in sweep.runs)
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
        if progress:
            failed = sum(error is not None for error in errors.values())
            progress(
                {
                    "done": sum(map(_steps_done, sweep.runs)),
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
def _client(sweep: Sweep, workers: int | None, scheduler: str | None, pending: int) -> Iterator[tuple[Any, int]]:
    """A Dask client, and how many threads each run may use."""
    from distributed import Client

    if scheduler is not None:
        try:
            client = Client(scheduler, timeout=CONNECT_SECONDS)
        except (OSError, ValueError) as error:
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


def _embedded_cluster(workers: int | None, pending: int, scratch: str) -> tuple[Any, int]:
    """Spawned processes of one thread each: one a core, or one a GPU, which sees no other."""
    from distributed import LocalCluster, Nanny, Scheduler, SpecCluster

    devices = gpus()
    if not devices:
        count = min(workers or cores(), pending)
        cluster = LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            processes=True,
            memory_limit=0,
            dashboard_address=None,  # pyright: ignore[reportArgumentType]
            local_directory=scratch,
        )
        return cluster, max(1, cores() // count)
    count = min(workers or len(devices), len(devices), pending)
    nannies = {
        index: {
            "cls": Nanny,
            "options": {
                "nthreads": 1,
                "memory_limit": 0,
                "local_directory": scratch,
                "env": {"CUDA_VISIBLE_DEVICES": devices[index]},
            },
        }
        for index in range(count)
    }
    scheduler = {"cls": Scheduler, "options": {"dashboard": False, "host": "127.0.0.1"}}
    return SpecCluster(workers=nannies, scheduler=scheduler), 1


def gpus() -> list[str]:
    """Names of the CUDA devices that may be used, found without starting JAX on them; none where JAX is kept off them."""
    if os.environ.get("JAX_PLATFORMS", "cuda").split(",")[0] not in ("cuda", "gpu"):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name.strip() not in ("", "-1")]
    return [str(index) for index in range(len(glob("/dev/nvidia[0-9]*")))]


def batch_cluster(table: Cluster) -> Any:
    """The dask-jobqueue cluster of a [cluster] table; raises ImportError without dask-jobqueue."""
    try:
        import dask_jobqueue
    except ImportError:
        raise ImportError("[cluster] needs dask-jobqueue: pip install 'bayesattn[cluster]'") from None
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
        except runs.RunError as damage:
            about["state"], error, quantities = "failed", error or str(damage), [{}]
        if error:
            about["state"] = "failed"
        rows += [about | {"error_message": error} | quantity for quantity in quantities]
    return pd.DataFrame(rows)


def _write_table(table: pd.DataFrame, folder: Path) -> None:
    for name, write in (("results.csv", table.to_csv), ("results.parquet", table.to_parquet)):
        partial = folder / f".{name}.partial"
        write(partial, index=False)
        partial.replace(folder / name)


class Estimate(NamedTuple):
    """What a run still costs: steps to go, seconds on one worker, bytes of its whole store."""

    run: str
    state: str
    steps: int
    seconds: float
    bytes: int


def estimates(sweep: Sweep, threads: int = 1) -> Iterator[Estimate]:
    """What each run of a sweep still costs, if it draws so many chains at a time.

    Seconds per step are those that a run logged, else those of a pilot of a few seconds of warm-up, which runs that
    compile to the same program share.
    """
    pilots: dict[Any, tuple[float, int]] = {}
    for planned in sweep.runs:
        job, state, done = planned.job, planned.state(), _steps_done(planned)
        remaining = job.chains * job.transitions - done
        if done:
            blocks = [event for event in runs.Run(planned.out).events() if event["event"] == "block"]
            chains = len(blocks[0]["chains"])
            per_step = sum(event["seconds"] for event in blocks) / (chains * sum(event["steps"] for event in blocks))
            size = runs.Run(planned.out).nbytes
        else:
            model = planned.model()
            widths = model.architecture.widths
            kind = (
                *(job.sampler, job.parameterisation, job.chain_method, repr(job.options), job.keep, job.thin),
                model.path_inputs.shape,
                widths if job.parameterisation != "collapsed" or "weights" in job.keep else None,
            )
            if kind not in pilots:
                pilots[kind] = _pilot(model, job)
            per_step, bytes_each = pilots[kind]
            size = job.chains * job.kept * bytes_each
        yield Estimate(planned.name, state, remaining, remaining * per_step / min(job.chains, threads), size)


def _pilot(model: Model, job: Job) -> tuple[float, int]:
    """Seconds per step of one chain, by the last of a few seconds of warm-up, and bytes per draw."""
    pilot = dataclasses.replace(job, chains=1, warmup=10**6, draws=job.thin)
    ready, clock = plan(model, pilot), _Stopwatch()
    with suppress(_Enough):
        advance(ready, pilot, clock)
    return clock.seconds_per_step, bytes_per_draw(ready.shapes)


class _Enough(Exception):
    pass


class _Stopwatch:
    """Recorder that times blocks, and ends the job when it has seen enough."""

    def __init__(self):
        self.began, self.seconds_per_step = time.perf_counter(), math.nan

    def restore(self, chains: Any, like: Any) -> None:
        """Nothing began before."""

    def record(self, chains: Any, first: int, outputs: Any) -> None:
        """Nothing to keep."""

    def checkpoint(self, chains: Any, state: Any, done: int, steps: int, seconds: float) -> None:
        """Look at the time."""
        self.seconds_per_step = seconds / steps
        if time.perf_counter() - self.began > PILOT_SECONDS:
            raise _Enough
