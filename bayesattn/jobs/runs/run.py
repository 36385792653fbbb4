"""Run on disk, complete or not: access to draws, state and diagnostics, and checks for damage."""

import json
import os
import tomllib
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
import zarr
from zarr.storage import LocalStore

from bayesattn._util.checks import positive_integer
from bayesattn._util.extras import require
from bayesattn._util.files import replace_file, require_new, user_path
from bayesattn._util.plain_values import PlainDict
from bayesattn._util.random import digest
from bayesattn._util.text import Described
from bayesattn.errors import BayesattnError
from bayesattn.jobs.runs import log, provenance, store
from bayesattn.jobs.runs.damage import first_damage
from bayesattn.jobs.runs.folder import FOLDER, RunBusy, RunError, damaged, is_of_system, locked, runs_in
from bayesattn.jobs.runs.stored_results import remembered
from bayesattn.likelihoods import UnknownLikelihood
from bayesattn.models.arviz import DATA_GROUPS
from bayesattn.models.draws import stored
from bayesattn.models.stored_model import ATTRIBUTE, restored, shown_temperature
from bayesattn.samplers import Job
from bayesattn.samplers.blocks import Chains, units

if TYPE_CHECKING:
    from bayesattn.checks.diagnostics import Diagnostics

DIAGNOSTICS_VERSION = 2
"""Increase this when `diagnose` or `summary` give other numbers: the numbers stored with runs are then recomputed."""


class Run(Described):
    """Run on disk, complete or not.

    Opening a run reads arrays and JSON; it executes no code, takes no lock and writes nothing. Raises RunError if `path` is
    not a readable run.

    Args:
        path: folder of the run.
        first: number of kept draws of each chain that are read, the first ones; by default all.
    """

    def __init__(self, path: str | Path, first: int | None = None):
        self.path = user_path("run", path)
        self.first = None if first is None else positive_integer("first", first)
        self.description, self.metadata = store.read_root(self.path)

    @property
    def identity(self) -> str:
        """Content hash of model and settings."""
        return self.description["identity"]

    def root(self) -> zarr.Group:
        """Root Zarr group of the run."""
        return zarr.open_group(self.path, mode="r")

    @cached_property
    def job(self) -> Job:
        """Sampling settings of the run."""
        with self.reading("its settings"):
            return Job.restored(tomllib.loads(self.description["sampler"]))

    @cached_property
    def model(self) -> Any:
        """Posterior, restored with the data in the store."""
        with self.reading("the data of the model"):
            groups = [members for name, members in self.root().groups() if name in DATA_GROUPS]
            arrays = {name: np.asarray(array[...]) for members in groups for name, array in members.arrays()}
            try:
                model = restored(self.description, arrays)
            except UnknownLikelihood as error:
                raise RunError(f"{self.path} can be read only where its likelihood is known: {error}") from error
            if provenance.identity(model, self.job) != self.identity:
                raise damaged(self.path, "the data that it holds are not those it was begun with")
            return model

    def checkpoint(self, chains: Chains, with_arrays: bool = True) -> tuple[int, dict[str, np.ndarray]]:
        """Number of steps done and arrays of a checkpoint (`store.checkpoint_file`); 0 and none for chains without one."""
        file, most = store.checkpoint_file(self.path, chains), self.job.transitions
        if chains and not file.exists():
            if file.parent.is_dir():
                return 0, {}
            raise RunError(
                f"{self.path} is damaged: it lacks its hidden folder {FOLDER}, as after a copy without hidden files;"
                " copy the whole folder"
            )
        try:
            with file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
                about = json.loads(stored["about"].tobytes())
                arrays = {name: stored[name] for name in stored.files if with_arrays and name != "about"}
            done = about["done"] if chains else 0
            if (about.get("run"), about.get("chains", [])) != (self.identity, [*chains]):
                raise BayesattnError("it is of another run or other chains")
            if isinstance(done, int) and done > most:  # The run was extended after it was opened here.
                most = Run(self.path).job.transitions
            if not isinstance(done, int) or not 0 <= done <= most:
                raise BayesattnError(f"its steps must be from 0 to {most}, got {done}")
            if with_arrays and len(arrays) != about.get("leaves", len(arrays)):
                raise BayesattnError(f"it must hold {about['leaves']} arrays, got {len(arrays)}")
        except Exception as error:  # After one flipped bit, a zip file may seem encrypted or of another version.
            if is_of_system(error):
                raise
            raise damaged(self.path, f"checkpoint {file.name} cannot be read ({error})") from None
        return done, arrays

    @property
    def done(self) -> list[int]:
        """Number of steps done of each chain, warm-up included, according to its checkpoint, at most those of its job."""
        done = [step for chains in units(self.job) for step in len(chains) * [self.checkpoint(chains, False)[0]]]
        return [min(step, self.job.transitions) for step in done]

    @property
    def drawn(self) -> int:
        """Number of kept draws that all chains have so far, at most `first`."""
        drawn = max(0, (min(self.done) - self.job.warmup) // self.job.thin)
        return drawn if self.first is None else min(drawn, self.first)

    @property
    def complete(self) -> bool:
        """Whether the run has all its draws."""
        return min(self.done) == self.job.transitions

    @property
    def state(self) -> str:
        """State: "complete", "running", "failed", "interrupted", or "stopped" early by a target or limit."""
        if self.complete:
            return "complete"
        try:
            # Acquiring a lock creates its file, which a reader must not do.
            if (self.path / FOLDER / "lock").exists():
                with locked(self.path, 0):
                    pass
        except RunBusy:
            return "running"
        except OSError:
            pass  # The disk is read-only.
        events = self.events()
        last = events[-1]["event"] if events else None
        return last if last in ("failed", "stopped") else "interrupted"

    @property
    def nbytes(self) -> int:
        """Uncompressed size in bytes of all draws of the complete run."""
        with self.reading("its arrays"):
            return sum(array.nbytes for array in store.arrays_of(self.root()).values() if store.is_of_draws(array))

    def draws(self) -> xr.DataTree:
        """Draws that all chains have so far, at most the `first`, read lazily.

        Raises RunError if the draws are damaged.
        """
        drawn = self.drawn
        self.require_sound()
        with self.reading("the draws"):
            # Given a name, xarray and fsspec would expand `~` and interpret `::` as chained file systems.
            files: Any = LocalStore(self.path.absolute(), read_only=True)
            tree = xr.open_datatree(files, engine="zarr", chunks=None)
        tree.attrs[ATTRIBUTE] = json.dumps(self.description)
        return tree.map_over_datasets(lambda node: node.isel(draw=slice(drawn)) if "draw" in node.dims else node)

    def to_netcdf(self, file: str | Path) -> None:
        """Export draws and data as one NetCDF 4 file.

        Raises FileExistsError if the file exists, ImportError if the extra "netcdf" is not installed.
        """
        require("netcdf", "an export to NetCDF")
        file = user_path("file", file).absolute()
        require_new("file", file)
        partial = Path(f"{file}.{uuid.uuid4().hex}.partial")
        try:
            self.draws().to_netcdf(partial, engine="h5netcdf")
            partial.rename(file)
        finally:
            partial.unlink(missing_ok=True)

    def diagnose(self) -> "Diagnostics":
        """Diagnostics of the draws so far."""
        from bayesattn.checks.diagnostics import Diagnostics, diagnose

        return self.remembered("diagnostics", lambda: diagnose(self.draws()).to_dict(), Diagnostics.from_dict)

    def summary(self) -> list[PlainDict]:
        """Rows of `bayesattn.checks.diagnostics.summary` for the draws so far."""
        from bayesattn.checks.diagnostics import summary

        return self.remembered("summary", lambda: summary(self.draws()), lambda rows: [dict(row) for row in rows])

    def remembered(
        self, name: str, compute: Callable[[], Any], restore: Callable[[Any], Any], about: PlainDict | None = None
    ) -> Any:
        """Result of `compute`, plain values for JSON, cached beside the draws and used again while `about` is unchanged.

        By default `about` is the stamp of the present draws and DIAGNOSTICS_VERSION.
        """
        drawn = {} if self.first is None else {"first": self.drawn}
        about = about or {"of": self.stamp(), "by": DIAGNOSTICS_VERSION} | drawn
        return remembered(self.path / FOLDER / f"{name}.json", about, compute, restore)

    def stamp(self) -> str:
        """Text that changes with the name, size or time of any file of draws, data or checkpoints."""
        with self.reading("its files"):
            files = [file for file in self.path.rglob("*") if FOLDER not in file.relative_to(self.path).parts]
            files += [store.checkpoint_file(self.path, chains) for chains in units(self.job)]
            stats = {
                str(file.relative_to(self.path)): file.stat()
                for file in files
                if file.suffix != ".partial" and file.is_file()
            }
            return digest(sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()))

    def require_sound(self) -> None:
        """Raise RunError, which names the damage, unless draws, data and checkpoints are intact."""
        with self.reading("its arrays"):
            if damage := _damage(self.path.absolute(), self.stamp()):
                raise damaged(self.path, damage)

    def damage(self) -> str | None:
        """First damage, an array that is incomplete or unreadable, as a phrase; None if there is none.

        Draws are checked up to the number that the checkpoints state. Raises RunError if a checkpoint cannot be read.
        """
        for chains in units(self.job):
            self.checkpoint(chains)
        kept = [max(0, (done - self.job.warmup) // self.job.thin) for done in self.done]
        return first_damage(self.path, self.root(), kept)

    def extend(self, job: Job) -> None:
        """Extend the arrays for more draws; the root's zarr.json, with their number, is replaced last and atomically."""
        store.require_room(self.path, self.nbytes * (job.kept - self.job.kept) // self.job.kept)
        metadata = {}
        for name, about in self.metadata.items():
            if "draw" in (along := about.get("dimension_names") or []):
                sizes = zip(along, about["shape"], strict=True)
                about = about | {"shape": [job.kept if axis == "draw" else size for axis, size in sizes]}
            metadata[name] = about
            own = {key: value for key, value in about.items() if key != store.CONSOLIDATED}
            replace_file(self.path / name / "zarr.json", json.dumps(own).encode())
            if name.endswith("/draw"):
                zarr.open_array(store.DurableStore(self.path), path=name, mode="r+")[...] = job.draw_numbers
        store.describe(self.path, self.description, job, metadata)

    @cached_property
    def _model_settings(self) -> PlainDict:
        """Name, width and temperature of the model; None for those that it does not have, or that have a prior."""
        table = self._model_table
        width = table["architecture"]["widths"][0] if "architecture" in table else None
        name = self.description["about_model"]["name"]
        return {"model": name, "width": width, "temperature": table.get("temperature")}

    @cached_property
    def _model_table(self) -> PlainDict:
        return tomllib.loads(self.description["model"])

    @property
    def title(self) -> str:
        """Name, width and temperature of the model in one line; reads no draws, diagnostics or log."""
        name, width, _ = self._model_settings.values()
        parts = [f"N = {width}"] if width is not None else []
        parts += [f"T = {temperature}"] if (temperature := shown_temperature(self._model_table)) else []
        return ", ".join([name, *parts])

    def overview(self) -> PlainDict:
        """State, progress, settings and diagnostics, for a table."""
        done, state, events = self.done, self.state, self.events()
        return self._model_settings | {
            "sampler": self.job.sampler,
            "parameterisation": self.job.parameterisation,
            "seed": self.job.seed,
            "state": state,
            "progress": sum(done) / (self.job.chains * self.job.transitions),
            "seconds": sum(event["seconds"] for event in log.blocks(events)),
            "error": events[-1].get("error") if state == "failed" else None,
            "diagnostics": self.diagnose().to_dict() if min(done) > self.job.warmup else None,
        }

    def _described(self) -> tuple[str, dict[str, str]]:
        rows = {}
        try:
            job, rows["model"] = self.job, self.title
            rows["sampler"] = f"{job.sampler}, {job.parameterisation} parameterisation, seed {job.seed}"
            thinned = f", {job.kept} of them kept" if job.thin > 1 else ""
            rows["draws"] = f"{job.draws} of each of {job.chains} chains{thinned}, after {job.warmup} of warm-up"
            rows |= {} if self.first is None else {"read": f"the first {self.first} kept draws of each chain"}
            state, done = self.state, sum(self.done) / (job.chains * job.transitions)
            return f"Run {self.path}: {state}", rows | {"progress": f"{100 * done:.0f} % of all steps"}
        except Exception as error:  # The files may be damaged in any way.
            return f"Run {self.path}: unreadable", rows | {"error": f"{type(error).__name__}: {error}"}

    def locked(self) -> AbstractContextManager[None]:
        """Context in which no other process writes the run; raises RunBusy."""
        return locked(self.path)

    def log(self, **event: Any) -> None:
        """Append an event, with its time, to the run's log; only times and states are read from the log."""
        log.append(self.path / FOLDER, event)

    def events(self) -> list[PlainDict]:
        """Events of the log: starts with their environment, blocks with their wall time in seconds, ends."""
        return log.events(self.path / FOLDER)

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """Context that turns errors into a RunError naming `what`: Zarr and its codecs raise various ones.

        Errors of the system, which may pass, stay as they are.
        """
        try:
            with warnings.catch_warnings():
                # Without consolidated metadata in its root, Zarr lists the folder with the hidden one in it.
                warnings.filterwarnings("ignore", "Object at|Failed to open Zarr store with consolidated metadata")
                yield
        except Exception as error:
            if isinstance(error, RunError) or is_of_system(error):
                raise
            raise damaged(self.path, f"{what} cannot be read: {type(error).__name__}: {error}") from error


@lru_cache(maxsize=1000)
def _damage(path: Path, stamp: str) -> str | None:
    """Damage of the run at a path as a phrase, or None; cached while the stamp of its files is the same."""
    return Run(path).damage()


def is_run(path: str | Path) -> bool:
    """Whether there is a readable run at a path."""
    try:
        Run(path)
    except (RunError, OSError):
        return False
    return True


def overview(folder: str | Path) -> list[PlainDict]:
    """State and numbers of every run in a folder, or of the folder itself if it is a run; a damaged one is "unreadable".

    Raises RunError if there is no run.
    """
    rows, folder = [], user_path("folder", folder)
    for path in runs_in(folder):
        # The path "." has no name.
        row: PlainDict = {"run": str(path.relative_to(folder)) if path != folder else Path(os.path.abspath(path)).name}
        try:
            rows.append(row | Run(path).overview())
        except Exception as error:  # An error of one run must not hide the others.
            text = str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
            rows.append(row | {"state": "unreadable", "error": text})
    return rows


@stored.register
def _(draws: Run) -> Run:
    return draws


@stored.register(str)
@stored.register(Path)
def _(draws: str | Path) -> Run:
    return Run(draws)
