"""Many runs on Dask: a grid or list of settings in a TOML file, each run a store of its own that survives its worker."""

import dataclasses
import itertools
import json
import math
import os
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from glob import glob
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bayesattn import runs
from bayesattn.models import Model, load_model
from bayesattn.models.ready import describe
from bayesattn.samplers import Job
from bayesattn.samplers.run import advance, bytes_per_draw, cores, plan

CLUSTERS = {"slurm": "SLURMCluster", "pbs": "PBSCluster", "sge": "SGECluster", "lsf": "LSFCluster", "oar": "OARCluster"}
NESTED = ("task", "options")
CONNECT_SECONDS = 10
POLL_SECONDS = 1.0
PILOT_SECONDS = 3.0


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Settings(_Table):
    """What a run may be given: the options of `bayesattn sample`, and entries of the model's [task]."""

    model: str | None = None
    width: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    data_seed: Annotated[int, Field(ge=0)] | None = None
    task: dict[str, Any] | None = None
    sampler: str | None = None
    parameterisation: str | None = None
    chains: int | None = None
    warmup: int | None = None
    draws: int | None = None
    seed: int | None = None
    keep: list[str] | None = None
    thin: int | None = None
    chain_method: str | None = None
    options: dict[str, Any] | None = None


class Cluster(_Table):
    """[cluster]: a batch system, by dask-jobqueue, whose options are those of its cluster class."""

    kind: Literal["slurm", "pbs", "sge", "lsf", "oar"]
    jobs: Annotated[int, Field(ge=1)]
    options: dict[str, Any] = {}


class SweepTable(_Table):
    """A whole sweep file: [settings] of all runs, [grid] of lists, every combination of which is a run, [[runs]]."""

    settings: Settings = Settings()
    grid: dict[str, Any] = {}
    runs: list[Settings] = []
    cluster: Cluster | None = None


@dataclasses.dataclass(frozen=True)
class Planned:
    """A run of a sweep: its name, the settings that vary, and all of them; `out` is the folder of its store."""

    name: str
    varied: dict[str, Any]
    settings: dict[str, Any]
    out: Path

    @property
    def job(self) -> Job:
        """Settings of the sampler."""
        return Job(**{f.name: self.settings[f.name] for f in dataclasses.fields(Job) if f.name in self.settings})

    def model(self) -> Model:
        """The posterior."""
        wanted = {key: self.settings.get(key) for key in ("width", "temperature")}
        data = _data(self.settings["model"], self.settings.get("data_seed"), json.dumps(self.settings.get("task", {})))
        return data.replace(**{key: value for key, value in wanted.items() if value is not None})

    def finished(self) -> bool:
        """Whether its run, and no other, is complete."""
        try:
            run = runs.Run(self.out)
            run.require_same(self.model(), self.job)
        except runs.RunError:
            return False
        return run.complete

    def state(self) -> str:
        """State of its run, "new" if it has none."""
        return runs.Run(self.out).state if self.out.exists() else "new"


class Sweep:
    """The runs that a sweep file asks for.

    Args:
        file: the TOML file.
        out: folder that gets a store for each run and the table of results; `out/` and the file's name unless given.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not TOML, an unknown key, a value that makes no sense, two runs alike; a pydantic ValidationError is
            one.
    """

    def __init__(self, file: str | Path, out: str | Path | None = None):
        self.file = Path(file)
        self.out = Path(out) if out is not None else Path("out") / self.file.stem
        try:
            content = tomllib.loads(self.file.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{file} is not valid TOML: {error}") from None
        self.table = SweepTable.model_validate(content)
        self.runs = self._planned()
        for planned in self.runs:
            self._check(planned)

    def _planned(self) -> list[Planned]:
        shared = self.table.settings.model_dump(exclude_none=True)
        listed = [entry.model_dump(exclude_none=True) for entry in self.table.runs] or [{}]
        planned: dict[str, Planned] = {}
        for entry, point in itertools.product(listed, _grid_points(self.table.grid)):
            for key in entry.keys() & point.keys() - set(NESTED):
                raise ValueError(f"{key} must be either in [grid] or in [[runs]], got both")
            varied = _merged(entry, point)
            settings = _merged(shared, varied)
            name = _name(varied) or "run"
            if name in planned:
                raise ValueError(f"runs must differ in their settings, got {name!r} twice")
            if "model" not in settings:
                raise ValueError(f"model must be given in [settings], [grid] or [[runs]], got none for {name!r}")
            if settings["model"].endswith(".toml"):
                settings["model"] = str((self.file.parent / settings["model"]).absolute())
            planned[name] = Planned(name, varied, settings, (self.out / f"{name}.zarr").absolute())
        return list(planned.values())

    def _check(self, planned: Planned) -> None:
        """Everything that can be known to be wrong before the first run starts."""
        try:
            _ = planned.model(), planned.job
        except ValidationError as error:
            raise ValueError(f"{planned.name}: {describe(error)}") from error
        except (ValueError, OSError) as error:
            raise ValueError(f"{planned.name}: {error}") from error


def run_one(planned: Planned, threads: int) -> dict[str, Any]:
    """Bring one run to its end, on whatever worker this is; errors are part of the answer."""
    try:
        run = runs.sample(planned.model(), planned.out, threads=threads, **vars(planned.job))
        run.summary()
    except Exception as error:  # One bad run must not end the others.
        return {"name": planned.name, "state": "failed", "error": f"{type(error).__name__}: {error}"}
    return {"name": planned.name, "state": "complete", "error": None}


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
    while waiting:
        try:
            finished = wait(waiting, timeout=POLL_SECONDS, return_when="FIRST_COMPLETED").done
        except TimeoutError:
            finished = set()
        for future in finished:
            # A worker that died under a run time and again, or lacks bayesattn, is an error of Dask's.
            failure = future.exception()
            answer = {"error": f"{type(failure).__name__}: {failure}"} if failure else future.result()
            errors[futures[future].name] = answer["error"]
        waiting -= finished
        if progress:
            complete = len(sweep.runs) - len(waiting) - sum(error is not None for error in errors.values())
            progress(_standing(sweep, complete, sum(error is not None for error in errors.values())))


def _standing(sweep: Sweep, complete: int, failed: int) -> dict[str, Any]:
    total = sum(planned.job.chains * planned.job.transitions for planned in sweep.runs)
    done = sum(_steps_done(planned) for planned in sweep.runs)
    return {"done": done, "total": total, "complete": complete, "failed": failed, "runs": len(sweep.runs)}


def _steps_done(planned: Planned) -> int:
    try:
        return sum(runs.Run(planned.out).done)
    except runs.RunError:
        return 0


@contextmanager
def _client(sweep: Sweep, workers: int | None, scheduler: str | None, pending: int) -> Iterator[tuple[Any, int]]:
    """A Dask client, and how many threads each run may use."""
    import dask
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
    with tempfile.TemporaryDirectory() as scratch, dask.config.set({"distributed.worker.use-file-locking": False}):
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
        about |= {"seed": planned.job.seed} | _flat(planned.varied) | {"model": about["model"]}
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


@lru_cache(maxsize=16)
def _data(model: str, data_seed: int | None, task: str) -> Model:
    """A model at its own width and temperature; runs on the same data share it."""
    return load_model(model, seed=data_seed, task=json.loads(task))


def _grid_points(grid: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every combination of the lists in [grid], checked like other settings."""
    axes: list[list[dict[str, Any]]] = []
    for key, values in grid.items():
        if key not in Settings.model_fields:
            raise ValueError(f"[grid] may hold {', '.join(Settings.model_fields)}, got {key!r}")
        if key in NESTED and isinstance(values, dict):
            lists = {(key, inner): inner_values for inner, inner_values in values.items()}
        else:
            lists = {(key,): values}
        for names, choices in lists.items():
            if not isinstance(choices, list) or not choices:
                raise ValueError(f"grid.{'.'.join(names)} must be a list of at least one value, got {choices!r}")
            axes.append([{key: {names[1]: choice}} if len(names) == 2 else {key: choice} for choice in choices])
    for combination in itertools.product(*axes):
        point: dict[str, Any] = {}
        for part in combination:
            point = _merged(point, part)
        checked = Settings.model_validate(point).model_dump()
        yield {key: checked[key] for key in point}


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """`second` over `first`, inside [task] and options too."""
    nested = {key: {**first.get(key, {}), **second.get(key, {})} for key in NESTED if key in first or key in second}
    return first | second | nested


def _flat(varied: dict[str, Any]) -> dict[str, Any]:
    """Settings with those of [task] and options on one level, as columns and names want them."""
    flat = {key: value for key, value in varied.items() if key not in NESTED}
    for key in NESTED:
        flat |= varied.get(key, {})
    return {key: Path(value).stem if key == "model" else value for key, value in flat.items()}


def _name(varied: dict[str, Any]) -> str:
    """What tells a run from the others, fit for a file name."""
    parts = []
    for key, value in _flat(varied).items():
        text = (
            "+".join(map(str, value))
            if isinstance(value, list)
            else f"{value:g}"
            if isinstance(value, float)
            else str(value)
        )
        parts.append(f"{key}={text}")
    return ",".join(parts).replace("/", "-")
