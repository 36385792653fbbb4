"""Run on disk, complete or not: access to draws, state and diagnostics, and checks for damage."""

import hashlib
import json
import tomllib
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
import zarr
from zarr.errors import ZarrUserWarning
from zarr.storage import LocalStore

from bayesattn._util.extras import require
from bayesattn._util.files import replace_file, require_new, user_path
from bayesattn._util.plain import PlainDict
from bayesattn._util.text import Described
from bayesattn.likelihoods import UnknownLikelihood
from bayesattn.models.description import restored
from bayesattn.posterior import Posterior
from bayesattn.runs import checkpoint, folder, log, provenance, store
from bayesattn.runs.folder import FOLDER, RunBusy, RunError
from bayesattn.runs.store import DRAW_AGAIN, KEY
from bayesattn.samplers import Job
from bayesattn.samplers.blocks import Chains, units

if TYPE_CHECKING:
    from bayesattn.checks.diagnostics import Diagnostics

DIAGNOSTICS_VERSION = 1
"""To be raised when `diagnose` or `summary` give other numbers: the numbers stored with runs are then recomputed."""
_damage_of_runs: dict[Path, tuple[str, str | None]] = {}
"""By path of each run checked in this process: `stamp` of its files, and the damage found or None."""


class Run(Described):
    """Run on disk, complete or not.

    Opening a run reads arrays and JSON; it executes no code, takes no lock and writes nothing. Raises RunError if `path` is
    not a readable run.
    """

    def __init__(self, path: str | Path):
        self.path = user_path("run", path)
        self.description, self.metadata, self._consolidated = store.read_root(self.path)

    def root(self) -> zarr.Group:
        """Root Zarr group of the run."""
        return zarr.open_group(self.path, mode="r", use_consolidated=self._consolidated)

    @cached_property
    def job(self) -> Job:
        """Sampling settings of the run."""
        with self.reading("its settings"):
            return Job.restored(tomllib.loads(self.description["sampler"]))

    @cached_property
    def model(self) -> Any:
        """Posterior, restored with the data in the store."""
        with self.reading("the data of the model"):
            try:
                model = self._stored_model()
            except UnknownLikelihood as error:
                raise RunError(f"{self.path} can be read where its likelihood is known: {error}") from error
            same = provenance.identity(model, self.job) == self.identity
        if not same:
            raise RunError(
                f"{self.path} is damaged: the data that it holds are not those it was begun with; {DRAW_AGAIN}"
            )
        return model

    def _stored_model(self) -> Posterior:
        arrays: dict[str, np.ndarray] = {}
        tree = self.root()
        for group in ("observed_data", "constant_data"):
            arrays |= {name: np.asarray(array[...]) for name, array in tree[group].arrays()}  # pyright: ignore
        return restored(self.description, arrays)

    @property
    def done(self) -> list[int]:
        """Number of steps done of each chain, warm-up included, according to its checkpoint."""
        done = [0] * self.job.chains
        for chains in units(self.job):
            for chain in chains:
                done[chain] = self._steps_done(chains)
        return done

    def _steps_done(self, chains: Chains) -> int:
        try:
            about = checkpoint.read_description(self.checkpoint_file(chains))
        except FileNotFoundError:
            self.require_folder()
            return 0
        except checkpoint.UNREADABLE as error:
            raise self._unreadable(chains, error) from None
        return self._checked_steps(chains, about)

    @property
    def drawn(self) -> int:
        """Number of kept draws that all chains have so far."""
        return max(0, (min(self.done) - self.job.warmup) // self.job.thin)

    @property
    def complete(self) -> bool:
        """Whether the run has all its draws."""
        return min(self.done) == self.job.transitions

    @property
    def state(self) -> str:
        """State: "complete", "running", "failed", "interrupted", or "stopped" early by a target or limit."""
        if self.complete:
            return "complete"
        # Acquiring a lock creates its file, which a reader must not do.
        if (self.path / FOLDER / "lock").exists():
            try:
                with folder.locked(self.path, 0):
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
            arrays = [about for about in self.metadata.values() if store.is_of_draws(about.get("dimension_names"))]
            return sum(map(store.bytes_of, arrays))

    def arrays_of_draws(self) -> PlainDict:
        """Zarr arrays of draws, by group and name."""
        with self.reading("its arrays"):
            arrays = store.arrays_of(self.root())
            return {name: array for name, array in arrays.items() if store.is_of_draws(array.metadata.dimension_names)}

    def draws(self) -> xr.DataTree:
        """Draws that all chains have so far, read lazily.

        Raises RunError if the draws are damaged.
        """
        drawn = self.drawn
        self.require_sound()
        with self.reading("the draws"):
            # Given a name, xarray and fsspec would expand `~` and interpret `::` as chained file systems.
            files: Any = LocalStore(self.path.absolute(), read_only=True)
            tree = xr.open_datatree(files, engine="zarr", chunks=None, consolidated=self._consolidated)
        tree.attrs[KEY] = json.dumps(self.description)
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

    @property
    def identity(self) -> str:
        """Content hash of model and settings."""
        return self.description["identity"]

    def diagnose(self) -> "Diagnostics":
        """Diagnostics of the draws so far."""
        from bayesattn.checks.diagnostics import Diagnostics, diagnose

        return self.remembered("diagnostics", lambda: diagnose(self.draws()).to_dict(), Diagnostics.from_dict)

    def summary(self) -> list[PlainDict]:
        """Rows of `bayesattn.checks.diagnostics.summary` for the draws so far."""
        from bayesattn.checks.diagnostics import summary

        return self.remembered("summary", lambda: summary(self.draws()), lambda rows: [dict(row) for row in rows])

    def remembered(
        self,
        name: str,
        compute: Callable[[], Any],
        restore: Callable[[Any], Any],
        about: PlainDict | None = None,
    ) -> Any:
        """Result of `compute`, plain values for JSON, cached beside the draws and used again while `about` is unchanged.

        By default `about` is the stamp of the present draws and DIAGNOSTICS_VERSION.
        """
        file, about = self.path / FOLDER / f"{name}.json", about or {"of": self.stamp(), "by": DIAGNOSTICS_VERSION}
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            stored = json.loads(file.read_text())
            if stored["about"] == about | {"sum": _digest(stored["value"])}:
                return restore(stored["value"])
        value = compute()
        if (self.path / FOLDER).is_dir():
            with suppress(OSError):  # On a read-only disk the result is computed each time.
                content = {"about": about | {"sum": _digest(value)}, "value": value}
                replace_file(file, json.dumps(content).encode())
        return restore(value)

    def stamp(self) -> str:
        """Text that changes with the name, size or time of any file of draws, data or checkpoints."""
        with self.reading("its files"):
            files = [file for file in self.path.rglob("*") if FOLDER not in file.relative_to(self.path).parts]
            files += [self.checkpoint_file(chains) for chains in units(self.job)]
            stats = {str(file): file.stat() for file in files if file.suffix != ".partial" and file.is_file()}
            return _digest(sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()))

    def require_sound(self) -> None:
        """Raise RunError, which names the damage, unless draws, data and checkpoints are intact."""
        path, stamp = self.path.absolute(), self.stamp()
        if path not in _damage_of_runs or _damage_of_runs[path][0] != stamp:
            with self.reading("its arrays"):
                _damage_of_runs[path] = stamp, store.damage(self)
        if damage := _damage_of_runs[path][1]:
            raise RunError(f"{self.path} is damaged: {damage}; {DRAW_AGAIN}")

    @cached_property
    def _model_settings(self) -> PlainDict:
        """Name, width and temperature of the model; None for those that a latent model does not have."""
        table = tomllib.loads(self.description["model"])
        width = table["architecture"]["widths"][0] if "architecture" in table else None
        name = self.description["about_model"]["name"]
        return {"model": name, "width": width, "temperature": table.get("temperature")}

    @property
    def title(self) -> str:
        """Name, width and temperature of the model in one line; reads no draws, diagnostics or log."""
        name, width, temperature = self._model_settings.values()
        parts = [f"N = {width}"] if width is not None else []
        parts += [f"T = {temperature:g}"] if temperature is not None else []
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
            state, done = self.state, sum(self.done) / (job.chains * job.transitions)
            return f"Run {self.path}: {state}", rows | {"progress": f"{100 * done:.0f} % of all steps"}
        except Exception as error:  # The files may be damaged in any way.
            return f"Run {self.path}: unreadable", rows | {"error": f"{type(error).__name__}: {error}"}

    def require_folder(self) -> None:
        """Raise RunError if the hidden folder of checkpoints is missing."""
        if not (self.path / FOLDER).is_dir():
            raise RunError(
                f"{self.path} is damaged: it lacks its hidden folder {FOLDER}, which a copy of all but hidden files leaves"
                " out; copy the whole folder"
            )

    def locked(self, timeout: float = folder.LOCK_SECONDS) -> AbstractContextManager[None]:
        """Context in which no other process writes the run; raises RunBusy."""
        return folder.locked(self.path, timeout)

    def log(self, **event: Any) -> None:
        """Append an event to the run's log."""
        log.append(self.path / FOLDER / "log.jsonl", **event)

    def events(self) -> list[PlainDict]:
        """Events of the log: starts with their environment, blocks with their wall time in seconds, ends."""
        return log.read(self.path / FOLDER / "log.jsonl")

    def checkpoint_file(self, chains: Chains) -> Path:
        """Checkpoint file of chains that advance together."""
        return self.path / FOLDER / f"chain-{'-'.join(map(str, chains))}.npz"

    def read_checkpoint(self, chains: Chains) -> tuple[int, list[np.ndarray]]:
        """Number of steps done, and leaves of the sampler's state."""
        try:
            about, arrays = checkpoint.read(self.checkpoint_file(chains))
            leaves = [arrays[f"leaf_{index}"] for index in range(about["leaves"])]
        except checkpoint.UNREADABLE as error:
            raise self._unreadable(chains, error) from None
        return self._checked_steps(chains, about), leaves

    def _unreadable(self, chains: Chains, why: Any) -> RunError:
        name = self.checkpoint_file(chains).name
        return RunError(f"{self.path} is damaged: checkpoint {name} cannot be read ({why}); {DRAW_AGAIN}")

    def _checked_steps(self, chains: Chains, about: PlainDict) -> int:
        if (about.get("run"), about.get("chains")) != (self.identity, list(chains)):
            raise self._unreadable(chains, "it is of another run or other chains")
        done, most = about.get("done"), self.job.transitions
        if not isinstance(done, int) or not 0 <= done <= most:
            raise self._unreadable(chains, f"its steps must be from 0 to {most}, got {done}")
        return done

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """Context that turns any error into a RunError naming `what`: Zarr and its codecs raise various errors."""
        try:
            with warnings.catch_warnings():
                # Without consolidated metadata in its root, Zarr lists the folder with the hidden one in it.
                warnings.filterwarnings("ignore", message="Object at", category=ZarrUserWarning)
                yield
        except RunError:
            raise
        except Exception as error:
            message = f"{self.path} is damaged: {what} cannot be read: {type(error).__name__}: {error}; {DRAW_AGAIN}"
            raise RunError(message) from error


def _digest(value: Any) -> str:
    """SHA-256 of plain values, truncated to 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
