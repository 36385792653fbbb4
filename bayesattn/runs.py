"""A run on disk: draws in a Zarr store, a checkpoint of every chain, and what is needed to go on.

A run is one Zarr store (format 3) with ArviZ's groups, its arrays allocated ahead with NaN where nothing is drawn yet.
Each block of draws is one region write, followed by an atomic checkpoint of the whole sampler state; a block that was
written but not checkpointed is drawn again, to the same bits. The folder `.run` inside the store holds checkpoints (NumPy
arrays and JSON, no pickles), a log of blocks with their wall times, and a lock.
"""

import errno
import io
import json
import os
import shutil
import tomllib
import uuid
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import filelock
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
import zarr

from bayesattn import provenance
from bayesattn.architecture import Architecture
from bayesattn.diagnostics import Diagnostics, diagnose, summary
from bayesattn.models import Model, Tokens
from bayesattn.samplers import Job, Progress, groups
from bayesattn.samplers.run import Chains, Outputs, Plan, advance, bytes_per_draw, plan, units, write_region

FORMAT = 1
KEY = "bayesattn"
"""Attribute of the store's root that holds the run's description."""
FOLDER = ".run"
LOCK_SECONDS = 2.0
"""A lock that someone merely looks at is free again long before."""
COMPRESS_BELOW = 2**16
"""Bytes per chunk: larger arrays of draws are stored as they are, for noise hardly compresses."""


class RunError(ValueError):
    """A folder that is not a run, or not one that can be read or resumed."""


class RunBusy(RunError):
    """Another process is at work on the run."""


def sample(
    model: Model,
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
        _create(out, model, job, ready)
    run = Run(out)
    with run.locked():
        run.require_same(model, job)
        if run.complete:
            return run
        for leftover in out.rglob("*.partial"):
            leftover.unlink(missing_ok=True)
        run.log(event="start", pid=os.getpid(), environment=provenance.environment())
        try:
            recorder = _Recorder(run)
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
    def model(self) -> Model:
        """The posterior, with the data that the store holds."""
        with self._reading("the data of the model"):
            model = self._stored_model()
        if provenance.identity(model, self.job) != self.identity:
            raise RunError(f"{self.path} is damaged: the data that it holds are not those it was begun with")
        return model

    def _stored_model(self) -> Model:
        about, arrays = self.description["about_model"], {}
        tree = zarr.open_group(self.path, mode="r")
        for group in ("observed_data", "constant_data"):
            arrays |= {name: np.asarray(array[...]) for name, array in tree[group].arrays()}  # pyright: ignore
        shape = tomllib.loads(self.description["model"])["architecture"]
        tokens = None
        if about["readout"]:
            matrices = [arrays[f"token_matrices_{layer + 1}"] for layer in range(len(shape["heads"]))]
            tokens = Tokens(arrays["token_inputs"], matrices, about["readout"])
        wanted = ("path_inputs", "labels", "test_path_inputs", "test_labels")
        return Model(
            **{name: arrays[name] for name in wanted if name in arrays},
            temperature=float(arrays["temperature"]),
            architecture=Architecture(*(tuple(shape[key]) for key in ("heads", "widths", "variances"))),
            tokens=tokens,
            **{key: about[key] for key in ("head_names", "path_groups", "name", "task")},
        )

    @property
    def done(self) -> list[int]:
        """Steps done of each chain, warm-up included, by its checkpoint."""
        done = [0] * self.job.chains
        for chains in units(self.job):
            if self._checkpoint(chains).exists():
                steps = self._read_checkpoint(chains, leaves=False)[0]["done"]
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
        return "failed" if self.last_event().get("event") == "failed" else "interrupted"

    @property
    def nbytes(self) -> int:
        """Bytes that all draws take, uncompressed, when the run is complete."""
        with self._reading("its arrays"):
            tree = zarr.open_group(self.path, mode="r")
            groups_of_draws = [dict(tree[name].arrays()) for name in tree]  # pyright: ignore
            return sum(array.nbytes for group in groups_of_draws if "draw" in group for array in group.values())

    def draws(self) -> xr.DataTree:
        """The draws that all chains have, read when they are used; while the run goes on, those there are by now."""
        kept = max(0, (min(self.done) - self.job.warmup) // self.job.thin)
        with self._reading("the draws"):
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
        return Diagnostics.from_dict(self._results()["diagnostics"])

    def summary(self) -> list[dict[str, Any]]:
        """Rows of `bayesattn.diagnostics.summary` for the draws that are there."""
        return self._results()["summary"]

    def _results(self) -> dict[str, Any]:
        """Diagnostics and summary; those of a complete run are kept with it."""
        kept, complete = self.path / FOLDER / "results.json", self.complete
        if complete and kept.exists():
            return json.loads(kept.read_text())
        draws = self.draws()
        found = {"diagnostics": diagnose(draws).to_dict(), "summary": summary(draws)}
        if complete and os.access(kept.parent, os.W_OK):
            _replace(kept, json.dumps(found).encode())
        return found

    def overview(self) -> dict[str, Any]:
        """State, progress, settings and diagnostics, for a table."""
        done, state = self.done, self.state
        shape = tomllib.loads(self.description["model"])
        return {
            "model": self.description["about_model"]["name"],
            "width": shape["architecture"]["widths"][0],
            "temperature": shape["temperature"],
            "sampler": self.job.sampler,
            "parameterisation": self.job.parameterisation,
            "seed": self.job.seed,
            "state": state,
            "progress": sum(done) / (self.job.chains * self.job.transitions),
            "seconds": sum(event["seconds"] for event in self.events() if event["event"] == "block"),
            "error": self.last_event().get("error") if state == "failed" else None,
            "diagnostics": self.diagnose().to_dict() if min(done) > self.job.warmup else None,
        }

    def require_same(self, model: Model, job: Job) -> None:
        """Raise RunError, naming the first difference, unless the run is of this model, settings and environment."""
        asked, has = provenance.job_table(job), provenance.job_table(self.job)
        asked |= provenance.model_table(model)["architecture"] | {"temperature": model.temperature}
        has |= provenance.model_table(self.model)["architecture"] | {"temperature": self.model.temperature}
        for name, value in has.items():
            if asked.get(name) != value:
                raise RunError(
                    f"{self.path} holds a run with {name} = {value}, got {asked.get(name)}: ask for the same, or choose"
                    " another folder"
                )
        for name in ("labels", "path_inputs", "test_path_inputs"):
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

    def last_event(self) -> dict[str, Any]:
        """The last line of the log, {} if there is none."""
        events = self.events()
        return events[-1] if events else {}

    def _checkpoint(self, chains: Chains) -> Path:
        return self.path / FOLDER / f"chain-{'-'.join(map(str, chains))}.npz"

    def _read_checkpoint(self, chains: Chains, leaves: bool = True) -> tuple[dict[str, Any], list[np.ndarray]]:
        file = self._checkpoint(chains)
        try:
            with _load(file) as stored:
                about = json.loads(stored["about"].tobytes())
                arrays = [stored[f"leaf_{index}"] for index in range(about["leaves"])] if leaves else []
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise RunError(
                f"{self.path} is damaged: checkpoint {file.name} cannot be read ({error}); delete it to draw"
                f" {_named(chains)} again from the start, to the same draws"
            ) from None
        if about.get("run") != self.description["identity"]:
            raise RunError(f"{self.path} is damaged: checkpoint {file.name} is of another run; delete it")
        return about, arrays

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """Zarr and its codecs raise whatever they like at damaged files."""
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


def overview(folder: str | Path) -> list[dict[str, Any]]:
    """Every run in a folder, or the run that it is; a damaged one with state "unreadable" and its error.

    Raises RunError if there is none.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise RunError(f"folder must be a run or hold runs, got {folder}, which is not a folder")
    rows = []
    for found, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if "zarr.json" not in files:
            continue
        folders.clear()
        name = str(Path(found).relative_to(folder)) if Path(found) != folder else folder.name
        try:
            rows.append({"run": name} | Run(found).overview())
        except RunError as error:
            rows.append({"run": name, "state": "unreadable", "error": str(error)})
    if not rows:
        raise RunError(f"folder must be a run or hold runs, got {folder}, which holds none")
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


def _create(out: Path, model: Model, job: Job, ready: Plan) -> None:
    """Make a run with all its arrays, nothing drawn yet, in a hidden folder beside `out` that a rename turns into it."""
    needed = job.chains * job.kept * bytes_per_draw(ready.shapes)
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(out.parent).free
    if needed > free:
        raise OSError(
            errno.ENOSPC, f"the run needs {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free", str(out.parent)
        )
    new = out.with_name(f".{out.name}.{uuid.uuid4().hex}.new")
    try:
        about = {
            "head_names": model.head_names,
            "path_groups": {name: list(paths) for name, paths in model.path_groups.items()},
            "name": model.name,
            "task": model.task,
            "readout": model.tokens.readout if model.tokens and job.parameterisation == "token" else None,
        }
        description = {
            "format": FORMAT,
            "identity": provenance.identity(model, job),
            "model": provenance.to_toml(provenance.model_table(model)),
            "sampler": provenance.to_toml(provenance.job_table(job)),
            "environment": provenance.environment(),
            "about_model": about,
        }
        root = zarr.create_group(new, zarr_format=3, attributes={KEY: description})
        _write_groups(root, model, job, ready)
        with warnings.catch_warnings():
            # Consolidated metadata, which readers want, has no place yet in the written standard of format 3.
            warnings.simplefilter("ignore")
            zarr.consolidate_metadata(root.store)
        (new / FOLDER).mkdir()
        _write_arrays(new / FOLDER / "prepared.npz", ready.prepared)
        new.rename(out)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _write_groups(root: zarr.Group, model: Model, job: Job, ready: Plan) -> None:
    """ArviZ's groups: data as they are, arrays of draws allocated and still empty."""
    dims = groups.dims(model)
    names = groups.coords(model) | {"chain": np.arange(job.chains), "draw": np.arange(0, job.draws, job.thin)}

    def add(group: zarr.Group, name: str, values: Any, axes: list[str]) -> None:
        values = np.asarray(values)
        text = values.dtype.kind == "U"
        dtype = "string" if text else values.dtype
        array = group.create_array(name, shape=values.shape, dtype=dtype, dimension_names=axes)
        array[...] = values.astype(np.dtypes.StringDType()) if text else values

    def add_coords(group: zarr.Group, sizes: dict[str, int]) -> None:
        for dim, size in sizes.items():
            add(group, dim, names.get(dim, np.arange(size)), [dim])

    for name, variables in groups.data(model, tokens=job.parameterisation == "token").items():
        group, sizes = root.create_group(name), {}
        for variable, values in variables.items():
            add(group, variable, values, dims.get(variable, []))
            sizes |= dict(zip(dims.get(variable, []), values.shape, strict=True))
        add_coords(group, sizes)
    for name, variables in ready.shapes.items():
        group, sizes = root.create_group(name), {"chain": job.chains, "draw": job.kept}
        for variable, like in variables.items():
            chunks = (1, min(ready.block, job.kept), *like.shape)
            large = np.prod(chunks) * like.dtype.itemsize >= COMPRESS_BELOW
            group.create_array(
                variable,
                shape=(job.chains, job.kept, *like.shape),
                chunks=chunks,
                dtype=like.dtype,
                fill_value=np.nan if like.dtype.kind == "f" else 0,
                compressors=None if large else "auto",
                dimension_names=["chain", "draw", *dims.get(variable, [])],
            )
            sizes |= dict(zip(dims.get(variable, []), like.shape, strict=True))
        add_coords(group, sizes)


class _Recorder:
    """Recorder of `bayesattn.samplers.run` that keeps everything in a run."""

    def __init__(self, run: Run):
        self.run = run
        with run._reading("its arrays"):
            tree = zarr.open_group(run.path, mode="r+")
            self.arrays = {
                name: {key: array for key, array in tree[name].arrays() if array.ndim > 1}  # pyright: ignore
                for name in tree
                if "draw" in dict(tree[name].arrays())  # pyright: ignore
            }

    def prepared(self) -> dict[str, np.ndarray]:
        """What was computed before sampling began."""
        try:
            with _load(self.run.path / FOLDER / "prepared.npz") as stored:
                return dict(stored)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise RunError(f"{self.run.path} is damaged: prepared.npz cannot be read ({error})") from None

    def restore(self, chains: Chains, like: Any) -> tuple[Any, int] | None:
        """State and steps done by the checkpoint, after a look at whether the draws it speaks of are there."""
        if not self.run._checkpoint(chains).exists():
            return None
        about, arrays = self.run._read_checkpoint(chains)
        leaves, tree = jax.tree.flatten(like)
        raw = [jax.eval_shape(_raw, leaf) for leaf in leaves]
        if [(a.shape, a.dtype) for a in arrays] != [(r.shape, r.dtype) for r in raw]:
            raise RunError(
                f"{self.run.path} is damaged: its checkpoint of {_named(chains)} has other shapes than its sampler"
            )
        self._require_draws(chains, (about["done"] - self.run.job.warmup) // self.run.job.thin)
        state = [
            jax.random.wrap_key_data(jnp.asarray(array)) if _is_key(leaf) else jnp.asarray(array)
            for array, leaf in zip(arrays, leaves, strict=True)
        ]
        return jax.tree.unflatten(tree, state), about["done"]

    def record(self, chains: Chains, first: int, outputs: Outputs) -> None:
        """One region write per array."""
        with self._writing():
            write_region(self.arrays, chains, first, outputs)

    def checkpoint(self, chains: Chains, state: Any, done: int, steps: int, seconds: float) -> None:
        """Replace the checkpoint by a rename, and log the block."""
        leaves = [np.asarray(_raw(leaf)) for leaf in jax.tree.leaves(state)]
        about = {"run": self.run.description["identity"], "done": done, "leaves": len(leaves)}
        arrays = {f"leaf_{index}": leaf for index, leaf in enumerate(leaves)}
        with self._writing():
            _write_arrays(
                self.run._checkpoint(chains), {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)} | arrays
            )
            self.run.log(event="block", chains=chains, done=done, steps=steps, seconds=round(seconds, 4))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(
                error.errno or errno.EIO,
                f"{error.strerror or error} while writing a block; the blocks before it are safe, and the same command"
                " goes on from there",
                str(self.run.path),
            ) from error

    def _require_draws(self, chains: Chains, kept: int) -> None:
        """A disk may lose what a checkpoint says was written; NaN stands where nothing was."""
        for name, array in self.arrays["posterior"].items():
            for chain in chains:
                with self.run._reading(f"posterior/{name} of chain {chain}"):
                    values = np.asarray(array[chain, : max(0, kept)])
                missing = np.flatnonzero(~np.isfinite(values).all(axis=tuple(range(1, values.ndim))))
                if len(missing):
                    raise RunError(
                        f"{self.run.path} is damaged: posterior/{name} of chain {chain} lacks draw {missing[0]}, which was"
                        f" written; delete {FOLDER}/{self.run._checkpoint(chains).name} to draw {_named(chains)} again from"
                        " the start, to the same draws"
                    )


def _write_arrays(file: Path, arrays: dict[str, Any]) -> None:
    """As .npz, without pickles."""
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    _replace(file, content.getvalue())


def _load(file: Path) -> Any:
    """What `_write_arrays` wrote; read at once, for NumPy leaves a damaged file open."""
    return np.load(io.BytesIO(file.read_bytes()), allow_pickle=False)


def _replace(file: Path, content: bytes) -> None:
    """Write a file that is there as a whole or not at all."""
    partial = file.with_name(file.name + ".partial")
    partial.write_bytes(content)
    os.replace(partial, file)


def _raw(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _close(ours: Any, theirs: Any) -> bool:
    """Other processors may compute path inputs with another last bit; a run goes on with those it began with."""
    if ours is None or theirs is None:
        return ours is theirs
    return ours.shape == theirs.shape and np.allclose(ours, theirs, rtol=1e-9, atol=1e-9 * float(np.std(ours)))


def _named(chains: Chains) -> str:
    return f"chain {chains[0]}" if len(chains) == 1 else f"chains {chains[0]} to {chains[-1]}"


def _parsed(line: str) -> dict[str, Any] | None:
    """A line that was cut short says nothing."""
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None
