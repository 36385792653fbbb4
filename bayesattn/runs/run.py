"""A run on disk, begun or complete: opened, read, searched for damage."""

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
from bayesattn.models.description import restored
from bayesattn.posterior import Posterior
from bayesattn.runs import checkpoint, folder, log, provenance, store
from bayesattn.runs.folder import FOLDER, RunBusy, RunError
from bayesattn.runs.store import AGAIN, KEY
from bayesattn.samplers import Job
from bayesattn.samplers.blocks import Chains, units

if TYPE_CHECKING:
    from bayesattn.checks.diagnostics import Diagnostics

DIAGNOSTICS_VERSION = 1
"""Raise it when `diagnose` or `summary` give other numbers: those that are kept with runs are computed anew then."""
_searched: dict[Path, tuple[str, str | None]] = {}
"""`stamp` of the files of each run when this process looked for damage, and what it found."""


class Run(Described):
    """A run on disk, begun or complete.

    Opening one reads arrays and JSON and executes nothing; it asks for no lock and writes nothing. Raises RunError if `path`
    is not a run that can be read.
    """

    def __init__(self, path: str | Path):
        self.path = user_path("run", path)
        self.description, self.metadata, self._consolidated = store.read_root(self.path)

    def root(self) -> zarr.Group:
        """The Zarr group that the run is."""
        return zarr.open_group(self.path, mode="r", use_consolidated=self._consolidated)

    @cached_property
    def job(self) -> Job:
        """Settings of the run."""
        with self.reading("its settings"):
            return Job.restored(tomllib.loads(self.description["sampler"]))

    @cached_property
    def model(self) -> Any:
        """The posterior, with the data that the store holds."""
        with self.reading("the data of the model"):
            model = self._stored_model()
            same = provenance.identity(model, self.job) == self.identity
        if not same:
            raise RunError(f"{self.path} is damaged: the data that it holds are not those it was begun with; {AGAIN}")
        return model

    def _stored_model(self) -> Posterior:
        arrays: dict[str, np.ndarray] = {}
        tree = self.root()
        for group in ("observed_data", "constant_data"):
            arrays |= {name: np.asarray(array[...]) for name, array in tree[group].arrays()}  # pyright: ignore
        return restored(self.description, arrays)

    @property
    def done(self) -> list[int]:
        """Steps done of each chain, warm-up included, by its checkpoint."""
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
        """Draws, of those that are kept, that all chains have by now."""
        return max(0, (min(self.done) - self.job.warmup) // self.job.thin)

    @property
    def complete(self) -> bool:
        """Whether all draws are there."""
        return min(self.done) == self.job.transitions

    @property
    def state(self) -> str:
        """ "complete", "running", "failed", "interrupted", or "stopped" by a target or limit before all draws were there."""
        if self.complete:
            return "complete"
        # Asking for a lock makes its file, which a reader has no business to do.
        if (self.path / FOLDER / "lock").exists():
            try:
                with folder.locked(self.path, 0):
                    pass
            except RunBusy:
                return "running"
            except OSError:
                pass  # The disk can only be read.
        events = self.events()
        last = events[-1]["event"] if events else None
        return last if last in ("failed", "stopped") else "interrupted"

    @property
    def nbytes(self) -> int:
        """Bytes that all draws take, uncompressed, when the run is complete."""
        with self.reading("its arrays"):
            arrays = [about for about in self.metadata.values() if store.is_of_draws(about.get("dimension_names"))]
            return sum(map(store.bytes_of, arrays))

    def arrays_of_draws(self) -> PlainDict:
        """Zarr arrays of draws by group and name."""
        with self.reading("its arrays"):
            arrays = store.arrays_of(self.root())
            return {name: array for name, array in arrays.items() if store.is_of_draws(array.metadata.dimension_names)}

    def draws(self) -> xr.DataTree:
        """The draws that all chains have, read when they are used; while the run goes on, those there are by now.

        Raises RunError if they are not those that were written.
        """
        drawn = self.drawn
        self.require_sound()
        with self.reading("the draws"):
            # Of a name, xarray and fsspec would take `~` for a home and `::` for a chain of files within files.
            files: Any = LocalStore(self.path.absolute(), read_only=True)
            tree = xr.open_datatree(files, engine="zarr", chunks=None, consolidated=self._consolidated)
        tree.attrs[KEY] = json.dumps(self.description)
        return tree.map_over_datasets(lambda node: node.isel(draw=slice(drawn)) if "draw" in node.dims else node)

    def to_netcdf(self, file: str | Path) -> None:
        """Export draws and data as one NetCDF 4 file.

        Raises FileExistsError if it is there already, ImportError if the extra "netcdf" is not installed.
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
        """Diagnostics of the draws that are there."""
        from bayesattn.checks.diagnostics import Diagnostics, diagnose

        return self.remembered("diagnostics", lambda: diagnose(self.draws()).to_dict(), Diagnostics.from_dict)

    def summary(self) -> list[PlainDict]:
        """Rows of `bayesattn.checks.diagnostics.summary` for the draws that are there."""
        from bayesattn.checks.diagnostics import summary

        return self.remembered("summary", lambda: summary(self.draws()), lambda rows: [dict(row) for row in rows])

    def remembered(
        self,
        name: str,
        compute: Callable[[], Any],
        restore: Callable[[Any], Any],
        about: PlainDict | None = None,
    ) -> Any:
        """What is computed once, as plain values for JSON; stored beside the draws, read again while it is about the same.

        By default it is about the draws that there are, and DIAGNOSTICS_VERSION.
        """
        file, about = self.path / FOLDER / f"{name}.json", about or {"of": self.stamp(), "by": DIAGNOSTICS_VERSION}
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            stored = json.loads(file.read_text())
            if stored["about"] == about | {"sum": _digest(stored["value"])}:
                return restore(stored["value"])
        value = compute()
        if (self.path / FOLDER).is_dir():
            with suppress(OSError):  # On a disk that can only be read it is computed each time.
                content = {"about": about | {"sum": _digest(value)}, "value": value}
                replace_file(file, json.dumps(content).encode())
        return restore(value)

    def stamp(self) -> str:
        """Text that changes when a file of draws, data or checkpoints does, by name, size and time."""
        with self.reading("its files"):
            files = [file for file in self.path.rglob("*") if FOLDER not in file.relative_to(self.path).parts]
            files += [self.checkpoint_file(chains) for chains in units(self.job)]
            stats = {str(file): file.stat() for file in files if file.suffix != ".partial" and file.is_file()}
            return _digest(sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()))

    def require_sound(self) -> None:
        """Raise RunError, naming what is damaged, unless draws, data and checkpoints are those that were written."""
        path, stamp = self.path.absolute(), self.stamp()
        if path not in _searched or _searched[path][0] != stamp:
            with self.reading("its arrays"):
                _searched[path] = stamp, store.damage(self)
        if found := _searched[path][1]:
            raise RunError(f"{self.path} is damaged: {found}; {AGAIN}")

    @cached_property
    def _model_settings(self) -> PlainDict:
        """Name, width and temperature; None of what a latent model has not."""
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
        except Exception as error:  # Whatever is wrong with its files.
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
        """The run's log: starts with their environment, blocks with their wall time in seconds, ends."""
        return log.read(self.path / FOLDER / "log.jsonl")

    def checkpoint_file(self, chains: Chains) -> Path:
        """Where the state of chains that advance together is kept."""
        return self.path / FOLDER / f"chain-{'-'.join(map(str, chains))}.npz"

    def read_checkpoint(self, chains: Chains) -> tuple[int, list[np.ndarray]]:
        """Steps done, and the leaves of the sampler's state."""
        try:
            about, arrays = checkpoint.read(self.checkpoint_file(chains))
            leaves = [arrays[f"leaf_{index}"] for index in range(about["leaves"])]
        except checkpoint.UNREADABLE as error:
            raise self._unreadable(chains, error) from None
        return self._checked_steps(chains, about), leaves

    def _unreadable(self, chains: Chains, why: Any) -> RunError:
        name = self.checkpoint_file(chains).name
        return RunError(f"{self.path} is damaged: checkpoint {name} cannot be read ({why}); {AGAIN}")

    def _checked_steps(self, chains: Chains, about: PlainDict) -> int:
        if (about.get("run"), about.get("chains")) != (self.identity, list(chains)):
            raise self._unreadable(chains, "it is of another run or other chains")
        done, most = about.get("done"), self.job.transitions
        if not isinstance(done, int) or not 0 <= done <= most:
            raise self._unreadable(chains, f"its steps must be from 0 to {most}, got {done}")
        return done

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """Context that says what is damaged: Zarr and its codecs raise whatever they like at damaged files."""
        try:
            with warnings.catch_warnings():
                # Zarr lists the folder, and the hidden one in it, if its root has no consolidated metadata.
                warnings.filterwarnings("ignore", message="Object at", category=ZarrUserWarning)
                yield
        except RunError:
            raise
        except Exception as error:
            message = f"{self.path} is damaged: {what} cannot be read: {type(error).__name__}: {error}; {AGAIN}"
            raise RunError(message) from error


def _digest(value: Any) -> str:
    """SHA-256 of plain values, cut to 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
