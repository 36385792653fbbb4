"""Runs on disk: started, resumed, opened while they go on. What they are made of: `bayesattn.run_files`."""

import errno
import json
import os
import shutil
import tomllib
import uuid
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import xarray as xr
import zarr

from bayesattn import provenance
from bayesattn._files import replace_file
from bayesattn.diagnostics import Diagnostics, diagnose, summary
from bayesattn.models import LatentModel, Model
from bayesattn.run_files import (
    FOLDER,
    FORMAT,
    KEY,
    Recorder,
    RunBusy,
    RunError,
    create,
    load_arrays,
    named,
)
from bayesattn.samplers import Job, Progress
from bayesattn.samplers.run import Chains, advance, plan, units

MODELS = {kind.__name__: kind for kind in (Model, LatentModel)}
LOCK_SECONDS = 2.0
"""A lock that someone merely looks at is free again long before."""


def sample(
    model: Model | LatentModel,
    out: str | Path,
    *,
    progress: Callable[[Progress], None] | None = None,
    threads: int = 0,
    **settings: Any,
) -> "Run":
    """Start a run, resume it, or find it complete: the draws are the same, bit for bit, however often it stopped.

    Args:
        model: the posterior.
        out: folder of the run, made if it is not there.
        progress: called after each block of each chain.
        threads: most chains that run at a time, by default one a core.
        settings: those of `bayesattn.samplers.Job`.

    Raises:
        RunError: `out` holds something else, a run of another model or other settings, or one that is damaged.
        RunBusy: another process is at work on it.
        OSError: the folder cannot be written, or the disk is full; what was written before is kept.
        ValueError: settings that make no sense.
        FloatingPointError: a draw is not finite; the blocks before it are kept.
        KeyboardInterrupt: after the blocks under way were finished and recorded.
    """
    out, job = Path(out), Job(**settings)
    ready = None
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        ready = plan(model, job)
        create(out, model, job, ready)
    run = Run(out)
    with run.locked():
        run.require_same(model, job)
        if run.complete:
            return run
        for leftover in out.rglob("*.partial"):
            leftover.unlink(missing_ok=True)
        run.log(event="start", pid=os.getpid(), environment=provenance.environment())
        try:
            recorder = Recorder(run)
            ready = ready or plan(run.model, job, recorder.prepared())
            advance(ready, job, recorder, progress, threads)
        except KeyboardInterrupt:
            run.log(event="interrupted")
            raise
        except FloatingPointError as error:
            run.log(event="failed", error=str(error))
            raise
        run.log(event="complete")
    return run


class Run:
    """A run on disk, begun or complete.

    Opening one reads arrays and JSON and executes nothing. Raises RunError if `path` is not a run that can be read.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not self.path.exists():
            raise RunError(f"run must be a folder that `bayesattn sample` made, got {path}, which does not exist")
        try:
            root = json.loads((self.path / "zarr.json").read_text())
            self.description: dict[str, Any] = root["attributes"][KEY]
        except (FileNotFoundError, NotADirectoryError):
            raise RunError(
                f"{path} must be a run, a Zarr store that `bayesattn sample` made, got no Zarr store"
            ) from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise RunError(f"{path} is damaged: its zarr.json is not JSON: {error}") from None
        except (KeyError, TypeError):
            raise RunError(
                f"{path} must be a run that `bayesattn sample` made, got a Zarr store of something else"
            ) from None
        if self.description.get("format") != FORMAT:
            maker = self.description.get("environment", {}).get("bayesattn", "another version")
            raise RunError(
                f"{path} must be a run of store format {FORMAT}, got format {self.description.get('format')},"
                f" written by bayesattn {maker}: open it with that version"
            )

    @cached_property
    def job(self) -> Job:
        """Settings of the run."""
        return Job(**tomllib.loads(self.description["sampler"]))

    @cached_property
    def model(self) -> Any:
        """The posterior, with the data that the store holds."""
        with self.reading("the data of the model"):
            model = self._stored_model()
        if provenance.identity(model, self.job) != self.identity:
            raise RunError(f"{self.path} is damaged: the data that it holds are not those it was begun with")
        return model

    def _stored_model(self) -> Model | LatentModel:
        arrays: dict[str, np.ndarray] = {}
        tree = zarr.open_group(self.path, mode="r")
        for group in ("observed_data", "constant_data"):
            arrays |= {name: np.asarray(array[...]) for name, array in tree[group].arrays()}  # pyright: ignore
        kind = MODELS[self.description["kind"]]
        return kind.restored(tomllib.loads(self.description["model"]), self.description["about_model"], arrays)

    @property
    def done(self) -> list[int]:
        """Steps done of each chain, warm-up included, by its checkpoint."""
        done = [0] * self.job.chains
        for chains in units(self.job):
            if self.checkpoint_file(chains).exists():
                steps = self.read_checkpoint(chains, leaves=False)[0]["done"]
                for chain in chains:
                    done[chain] = steps
        return done

    @property
    def complete(self) -> bool:
        """Whether all draws are there."""
        return min(self.done) == self.job.transitions

    @property
    def state(self) -> str:
        """ "complete", "running", "failed" or "interrupted"."""
        if self.complete:
            return "complete"
        try:
            with self.locked(0):
                pass
        except RunBusy:
            return "running"
        except PermissionError:
            pass  # Whoever may only read cannot ask for the lock.
        events = self.events()
        return "failed" if events and events[-1]["event"] == "failed" else "interrupted"

    @property
    def nbytes(self) -> int:
        """Bytes that all draws take, uncompressed, when the run is complete."""
        with self.reading("its arrays"):
            tree = zarr.open_group(self.path, mode="r")
            groups_of_draws = [dict(tree[name].arrays()) for name in tree]  # pyright: ignore
            return sum(array.nbytes for group in groups_of_draws if "draw" in group for array in group.values())

    def draws(self) -> xr.DataTree:
        """The draws that all chains have, read when they are used; while the run goes on, those there are by now."""
        kept = max(0, (min(self.done) - self.job.warmup) // self.job.thin)
        with self.reading("the draws"):
            tree = xr.open_datatree(self.path, engine="zarr", chunks=None)
        return tree.map_over_datasets(lambda node: node.isel(draw=slice(kept)) if "draw" in node.dims else node)

    def to_netcdf(self, file: str | Path) -> None:
        """Export draws and data as one NetCDF 4 file; raises FileExistsError if it is there already."""
        if Path(file).exists():
            raise FileExistsError(errno.EEXIST, "the file to export to must not exist yet", str(file))
        partial = Path(f"{file}.{uuid.uuid4().hex}.partial")
        try:
            tree = self.draws()
            tree.attrs = {KEY: json.dumps(self.description)}
            tree.to_netcdf(partial, engine="h5netcdf")
            partial.rename(file)
        finally:
            partial.unlink(missing_ok=True)

    @property
    def identity(self) -> str:
        """Content hash of model and settings."""
        return self.description["identity"]

    def diagnose(self) -> Diagnostics:
        """Diagnostics of the draws that are there."""
        return Diagnostics.from_dict(self._result("diagnostics", lambda draws: diagnose(draws).to_dict()))

    def summary(self) -> list[dict[str, Any]]:
        """Rows of `bayesattn.diagnostics.summary` for the draws that are there."""
        return self._result("summary", summary)

    def _result(self, name: str, compute: Callable[[xr.DataTree], Any]) -> Any:
        """What is computed from the draws; that of a complete run is kept with it."""
        kept, complete = self.path / FOLDER / f"{name}.json", self.complete
        if complete and kept.exists():
            return json.loads(kept.read_text())
        found = compute(self.draws())
        if complete and os.access(kept.parent, os.W_OK):
            replace_file(kept, json.dumps(found).encode())
        return found

    def overview(self) -> dict[str, Any]:
        """State, progress, settings and diagnostics, for a table."""
        done, state, events = self.done, self.state, self.events()
        shape = tomllib.loads(self.description["model"])
        return {
            "model": self.description["about_model"]["name"],
            "width": shape["architecture"]["widths"][0] if "architecture" in shape else None,
            "temperature": shape.get("temperature"),
            "sampler": self.job.sampler,
            "parameterisation": self.job.parameterisation,
            "seed": self.job.seed,
            "state": state,
            "progress": sum(done) / (self.job.chains * self.job.transitions),
            "seconds": sum(event["seconds"] for event in events if event["event"] == "block"),
            "error": events[-1].get("error") if state == "failed" else None,
            "diagnostics": self.diagnose().to_dict() if min(done) > self.job.warmup else None,
        }

    def require_same(self, model: Model | LatentModel, job: Job) -> None:
        """Raise RunError, naming the first difference, unless the run is of this model, settings and environment."""
        asked, has = provenance.job_table(job), provenance.job_table(self.job)
        asked, has = asked | _settings(model), has | _settings(self.model)
        for name, value in has.items():
            if asked.get(name) != value:
                raise RunError(
                    f"{self.path} holds a run with {name} = {value}, got {asked.get(name)}: ask for the same, or choose"
                    " another folder"
                )
        for name in self.model.data_names:
            ours, theirs = getattr(self.model, name), getattr(model, name)
            if not _close(ours, theirs):
                raise RunError(f"{self.path} holds a run on other data: its {name} differ; choose another folder")
        if not self.complete and (
            found := provenance.differences(self.description["environment"], provenance.environment())
        ):
            raise RunError(
                f"{self.path} was begun with {', '.join(found)}: resumed, its draws would not be those of one run;"
                " resume it with what it was begun with, or choose another folder"
            )

    @contextmanager
    def locked(self, timeout: float = LOCK_SECONDS) -> Iterator[None]:
        """Hold the run's lock, which the operating system frees when the process dies; raises RunBusy."""
        lock = filelock.FileLock(self.path / FOLDER / "lock")
        try:
            lock.acquire(timeout=timeout)
        except filelock.Timeout:
            raise RunBusy(
                f"{self.path} is being written by another process: wait for it, or choose another folder"
            ) from None
        try:
            yield
        finally:
            lock.release()

    def log(self, **event: Any) -> None:
        """Append an event to the run's log."""
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds")} | event)
        with (self.path / FOLDER / "log.jsonl").open("a") as file:
            file.write(line + "\n")

    def events(self) -> list[dict[str, Any]]:
        """The run's log: starts with their environment, blocks with their wall time in seconds, ends."""
        try:
            lines = (self.path / FOLDER / "log.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [event for event in map(_parsed, lines) if event]

    def checkpoint_file(self, chains: Chains) -> Path:
        """Where the state of chains that advance together is kept."""
        return self.path / FOLDER / f"chain-{'-'.join(map(str, chains))}.npz"

    def read_checkpoint(self, chains: Chains, leaves: bool = True) -> tuple[dict[str, Any], list[np.ndarray]]:
        """What the last checkpoint of chains says of itself, and the leaves of their state."""
        file = self.checkpoint_file(chains)
        try:
            with load_arrays(file) as stored:
                about = json.loads(stored["about"].tobytes())
                arrays = [stored[f"leaf_{index}"] for index in range(about["leaves"])] if leaves else []
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise RunError(
                f"{self.path} is damaged: checkpoint {file.name} cannot be read ({error}); delete it to draw"
                f" {named(chains)} again from the start, to the same draws"
            ) from None
        if about.get("run") != self.description["identity"]:
            raise RunError(f"{self.path} is damaged: checkpoint {file.name} is of another run; delete it")
        return about, arrays

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """Say what is damaged: Zarr and its codecs raise whatever they like at damaged files."""
        try:
            yield
        except Exception as error:
            raise RunError(f"{self.path} is damaged: {what} cannot be read: {type(error).__name__}: {error}") from error


def is_run(path: str | Path) -> bool:
    """Whether a readable run stands at a path."""
    try:
        Run(path)
    except RunError:
        return False
    return True


def found_in(folder: str | Path) -> list[Path]:
    """Every run in a folder, or the run that it is; raises RunError if there is none."""
    folder = Path(folder)
    if not folder.is_dir():
        raise RunError(f"folder must be a run or hold runs, got {folder}, which is not a folder")
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if "zarr.json" in files:
            folders.clear()
            found.append(Path(place))
    if not found:
        raise RunError(f"folder must be a run or hold runs, got {folder}, which holds none")
    return found


def overview(folder: str | Path) -> list[dict[str, Any]]:
    """State and figures of every run in a folder, or of the run that it is; a damaged one is "unreadable".

    Raises RunError if there is none.
    """
    rows = []
    for path in found_in(folder):
        name = str(path.relative_to(folder)) if path != Path(folder) else path.name
        try:
            rows.append({"run": name} | Run(path).overview())
        except RunError as error:
            rows.append({"run": name, "state": "unreadable", "error": str(error)})
    return rows


def discard(path: str | Path) -> None:
    """Delete a run, if there is one; raises RunError for anything else, RunBusy while it is being written."""
    path = Path(path)
    if not path.exists():
        return
    with Run(path).locked(0):
        doomed = path.with_name(f".{path.name}.{uuid.uuid4().hex}.old")
        path.rename(doomed)
    shutil.rmtree(doomed)


def _settings(model: Model | LatentModel) -> dict[str, Any]:
    """Entries of a model's table, without [task], those of [architecture] among the others."""
    table = provenance.model_table(model)
    table.pop("task", None)
    return table.pop("architecture", {}) | table


def _close(ours: Any, theirs: Any) -> bool:
    """Other processors may compute path inputs with another last bit; a run goes on with those it began with."""
    if ours is None or theirs is None:
        return ours is theirs
    return ours.shape == theirs.shape and np.allclose(ours, theirs, rtol=1e-9, atol=1e-9 * float(np.std(ours)))


def _parsed(line: str) -> dict[str, Any] | None:
    """A line that was cut short says nothing."""
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None
