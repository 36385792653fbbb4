"""A run on disk, begun or complete: opened, read, held to what it was begun with."""

import json
import os
import tomllib
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
import zarr
from zarr.errors import ZarrUserWarning
from zarr.storage import LocalStore

from bayesattn._extras import require
from bayesattn._files import digest_of, replace_file, require_new, user_path
from bayesattn._text import Described
from bayesattn.models import LatentModel, Model
from bayesattn.models.description import restored
from bayesattn.runs import checkpoints, damage, log, provenance, store
from bayesattn.runs.checkpoints import Checkpoint
from bayesattn.runs.same import require_same_environment
from bayesattn.runs.store import EARLIER, FOLDER, KEY, RunBusy, RunError, named
from bayesattn.samplers import Job
from bayesattn.samplers.run import Chains, units

if TYPE_CHECKING:
    from bayesattn.diagnostics import Diagnostics

COMPUTED_BY = digest_of(provenance.PACKAGE / name for name in ("accuracy.py", "diagnostics.py"))
"""Version of diagnostics that are kept with a run: those of other code are computed anew."""
_searched: dict[Path, tuple[str, list[damage.Damage]]] = {}
"""Of each run the `stamp` of its files when this process looked for damage, and what it found; nothing if it is sound."""


class Run(Described):
    """A run on disk, begun or complete.

    Opening one reads arrays and JSON and executes nothing; it asks for no lock and writes nothing. Raises RunError if `path`
    is not a run that can be read.
    """

    consolidated = True
    """Whether the root of the store says what groups and arrays it has."""

    def __init__(self, path: str | Path):
        self.path = user_path("run", path)
        root = store.read_root(self.path)
        self.description: dict[str, Any] = root["attributes"][KEY]
        self.members, self.consolidated = self._members(root)

    def _members(self, root: dict[str, Any]) -> tuple[store.Members, bool]:
        """What the store says of groups and arrays, and whether its root says so.

        Another program that writes an attribute leaves that out; then the groups and arrays tell, if they are those of the
        run and no others.
        """
        own, damaged = self.description, f"{self.path} is damaged: its zarr.json is not what was written"
        with suppress(KeyError, TypeError):
            members = dict(root[store.CONSOLIDATED]["metadata"])
            if "sum" not in own or own["sum"] == store.sum_of_description(own, members):
                return members, True
        with self.reading("what its zarr.json says of groups and arrays"):
            members = store.consolidated(self.path)
        if "sum" in own and own["sum"] != store.sum_of_description(own, members):
            groups = {name.partition("/")[0] for name in own.get("sums", {})}
            foreign = sorted(name for name in members if name.partition("/")[0] not in groups)
            if foreign and own["sum"] == store.sum_of_description(
                own, {n: members[n] for n in members if n not in foreign}
            ):
                raise RunError(f"{self.path} holds {foreign[0]}, which is not part of the run: move it elsewhere")
            raise RunError(f"{damaged}; replace it with overwrite=True")
        return members, False

    def root(self, mode: Any = "r") -> zarr.Group:
        """The Zarr group that the run is."""
        return zarr.open_group(self.path, mode=mode, use_consolidated=None if self.consolidated else False)

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
            same = provenance.identity(model, self.job, self.description["format"]) == self.identity
        if not same:
            raise RunError(f"{self.path} is damaged: the data that it holds are not those it was begun with")
        return model

    def _stored_model(self) -> Model | LatentModel:
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
        file = self.checkpoint_file(chains)
        try:
            run, done = checkpoints.described(file)
        except FileNotFoundError:
            self.require_folder()
            return 0
        except checkpoints.UNREADABLE as error:
            raise self._unreadable(chains, error) from None
        self._require_own(file, run, done)
        return done

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
                with store.locked(self.path, 0):
                    pass
            except RunBusy:
                return "running"
            except OSError:
                pass  # Whoever may only read cannot ask for the lock.
        events = self.events()
        last = events[-1]["event"] if events else None
        return last if last in ("failed", "stopped") else "interrupted"

    @cached_property
    def described_draws(self) -> store.Members:
        """What the store says of its arrays of draws, by group and name."""
        with self.reading("its arrays"):
            return {
                name: about for name, about in self.members.items() if store.is_of_draws(about.get("dimension_names"))
            }

    @property
    def nbytes(self) -> int:
        """Bytes that all draws take, uncompressed, when the run is complete."""
        return sum(store.bytes_of(about, about["shape"]) for about in self.described_draws.values())

    def arrays_of_draws(self, mode: Any = "r") -> dict[str, Any]:
        """Zarr arrays of draws by group and name."""
        with self.reading("its arrays"):
            return store.arrays_of_draws(self.root(mode))

    @cached_property
    def draws_per_chunk(self) -> int:
        """Draws that a chunk of each array holds."""
        return store.chunk_of(next(iter(self.described_draws.values())))[1]

    @cached_property
    def bytes_per_chunk(self) -> int:
        """Bytes that the chunks of all arrays of one chain take, uncompressed."""
        return sum(store.bytes_of(about, store.chunk_of(about)) for about in self.described_draws.values())

    def draws(self) -> xr.DataTree:
        """The draws that all chains have, read when they are used; while the run goes on, those there are by now.

        Raises RunError if they are not those that were written.
        """
        drawn = self.drawn
        self.require_sound()
        with self.reading("the draws"):
            # Of a name, xarray and fsspec would take `~` for a home and `::` for a chain of files within files.
            files: Any = LocalStore(self.path.absolute(), read_only=True)
            tree = xr.open_datatree(files, engine="zarr", chunks=None, consolidated=self.consolidated)
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
        from bayesattn.diagnostics import Diagnostics, diagnose

        return self.remembered("diagnostics", lambda: diagnose(self.draws()).to_dict(), Diagnostics.from_dict)

    def summary(self) -> list[dict[str, Any]]:
        """Rows of `bayesattn.diagnostics.summary` for the draws that are there."""
        from bayesattn.diagnostics import summary

        return self.remembered("summary", lambda: summary(self.draws()), lambda rows: [dict(row) for row in rows])

    def remembered(
        self,
        name: str,
        compute: Callable[[], Any],
        restore: Callable[[Any], Any],
        about: dict[str, str] | None = None,
    ) -> Any:
        """What is computed once, as plain values for JSON; stored beside the draws, read again while it is about the same.

        By default it is about the draws that there are, and the code of diagnostics.
        """
        file, about = self.path / FOLDER / f"{name}.json", about or {"of": self.stamp(), "by": COMPUTED_BY}
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            stored = json.loads(file.read_text())
            if stored["about"] == about | {"sum": _sum_of(stored["value"])}:
                return restore(stored["value"])
        value = compute()
        if (self.path / FOLDER).is_dir():
            with suppress(OSError):  # Whoever may only read computes it again.
                content = {"about": about | {"sum": _sum_of(value)}, "value": value}
                replace_file(file, json.dumps(content).encode())
        return restore(value)

    def stamp(self) -> str:
        """Changes when a file of draws or data does."""
        with self.reading("its files"):
            files = [
                file
                for folder, folders, names in os.walk(self.path)
                if not (FOLDER in folders and folders.remove(FOLDER))
                for file in (os.path.join(folder, name) for name in names)
                if not file.endswith(".partial")
            ]
            files += [str(self.checkpoint_file(chains)) for chains in units(self.job)]
            return provenance.digest_of_times(file for file in sorted(files) if os.path.exists(file))

    def require_sound(self) -> None:
        """Raise RunError, naming what is damaged, unless draws, data and checkpoints are those that were written."""
        path, stamp = self.path.absolute(), self.stamp()
        if path not in _searched or _searched[path][0] != stamp:
            _searched[path] = stamp, damage.found_in(self)
        if wrong := _searched[path][1]:
            raise RunError(
                f"{wrong[0].what}; `bayesattn sample` with --repair (repair=True) draws"
                f" {' and '.join(named(part.chains) for part in wrong)} again from the checkpoint before, to the same draws"
            )

    def mend(self) -> None:
        """Go back to the checkpoints before what is damaged; the caller holds the lock, and draws what is missing."""
        while wrong := damage.found_in(self):
            require_same_environment(self)
            for part in wrong:
                damage.go_back(self, part)
                self.log(event="repair", chains=part.chains, what=part.what)

    @cached_property
    def _model_settings(self) -> dict[str, Any]:
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

    def overview(self) -> dict[str, Any]:
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

    def locked(self, timeout: float = store.LOCK_SECONDS) -> AbstractContextManager[None]:
        """Hold the run's lock, which the operating system frees when the process dies; raises RunBusy."""
        return store.locked(self.path, timeout)

    def log(self, **event: Any) -> None:
        """Append an event to the run's log."""
        log.append(self.path / FOLDER / "log.jsonl", **event)

    def events(self) -> list[dict[str, Any]]:
        """The run's log: starts with their environment, blocks with their wall time in seconds, ends."""
        return log.read(self.path / FOLDER / "log.jsonl")

    def checkpoint_file(self, chains: Chains) -> Path:
        """Where the state of chains that advance together is kept."""
        return self.path / FOLDER / f"chain-{'-'.join(map(str, chains))}.npz"

    def earlier_file(self, chains: Chains, done: int) -> Path:
        """Where their state after `done` steps, the end of a chunk, is kept."""
        return self.path / FOLDER / EARLIER / f"{self.checkpoint_file(chains).stem}.{done}.npz"

    def read_checkpoint(self, chains: Chains) -> Checkpoint:
        """The last checkpoint of chains."""
        file = self.checkpoint_file(chains)
        try:
            checkpoint = checkpoints.read(file)
        except checkpoints.UNREADABLE as error:
            raise self._unreadable(chains, error) from None
        self._require_own(file, checkpoint.run, checkpoint.done)
        chunks = -(-max(0, (checkpoint.done - self.job.warmup) // self.job.thin) // self.draws_per_chunk)
        sums = checkpoint.sums
        if self.description["format"] > 2 and (
            sums is None
            or (sums.values.shape[0], sums.values.shape[2], sums.size) != (len(chains), chunks, self.draws_per_chunk)
            or set(sums.variables) != self.described_draws.keys()
        ):
            raise self._unreadable(chains, "its sums are not of the draws that it speaks of")
        return checkpoint

    def _unreadable(self, chains: Chains, why: Any) -> RunError:
        return RunError(
            f"{self.path} is damaged: checkpoint {self.checkpoint_file(chains).name} cannot be read ({why}); delete it to"
            f" draw {named(chains)} again from the start, to the same draws"
        )

    def _require_own(self, file: Path, run: str, done: int) -> None:
        if run != self.identity:
            raise RunError(f"{self.path} is damaged: checkpoint {file.name} is of another run; delete it")
        if not 0 <= done <= self.job.transitions:
            raise RunError(
                f"{self.path} is damaged: checkpoint {file.name} speaks of {done} steps, the settings in zarr.json of"
                f" {self.job.transitions}"
            )

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """Say what is damaged: Zarr and its codecs raise whatever they like at damaged files."""
        try:
            with nullcontext() if self.consolidated else warnings.catch_warnings():
                if not self.consolidated:  # Zarr looks into each folder then, and wonders at the hidden one.
                    warnings.filterwarnings("ignore", message="Object at", category=ZarrUserWarning)
                yield
        except RunError:
            raise
        except Exception as error:
            raise RunError(f"{self.path} is damaged: {what} cannot be read: {type(error).__name__}: {error}") from error


def _sum_of(value: Any) -> str:
    return provenance.digest_of_text(json.dumps(value, sort_keys=True))
