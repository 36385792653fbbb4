"""Create, extend and check the Zarr store of a run.

A run is one Zarr store (format 3) with ArviZ's groups, its arrays allocated ahead with NaN where nothing is drawn yet.
A chunk holds many blocks of draws. Writing a block rewrites its chunks, which are on disk before the checkpoint that
counts the block. A block that was written but not checkpointed is drawn again, to the same bits. Every chunk has a
checksum of Zarr's.
"""

from __future__ import annotations

import asyncio
import errno
import json
import math
import shutil
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.storage import LocalStore

from bayesattn._util.errors import BayesattnError
from bayesattn._util.files import replace_file, sync, sync_folder
from bayesattn._util.plain import PlainDict, PlainMapping
from bayesattn.models import PARAMETERISATIONS
from bayesattn.models.arviz import axes, axis_names, data_groups
from bayesattn.models.description import ATTRIBUTE, described
from bayesattn.posterior import Posterior
from bayesattn.runs import checkpoint, provenance
from bayesattn.runs.folder import FOLDER, UNFINISHED, RunBusy, RunError, beside, clear, is_free, locked, remove
from bayesattn.samplers import Job
from bayesattn.samplers.blocks import Plan, bytes_per_draw, units

if TYPE_CHECKING:
    from zarr.core.buffer import Buffer

    from bayesattn.runs.run import Run

FORMAT = 4
KEY = ATTRIBUTE
"""Attribute of the store's root that contains the description of the run, as JSON."""
REQUIRED_ENTRIES = ("identity", "environment", "sampler", "kind", "model", "about_model")
"""Required entries of a run's description, besides its format."""
CONSOLIDATED = "consolidated_metadata"
PREPARED = "prepared.npz"
"""File with the arrays computed before sampling."""
CHUNK_DRAWS = 10_000
CHUNK_BYTES = 2**22
"""Largest number of draws, and of bytes before compression, in a chunk, unless a single block has more."""
DRAW_AGAIN = "draw it again with overwrite=True: the same seed gives the same draws"

Metadata = dict[str, PlainDict]
"""Content of the zarr.json of each group and array of a store, by name."""


class DurableStore(LocalStore):
    """Zarr store in a folder that writes each file atomically, and returns only when the file is on the disk."""

    async def set(self, key: str, value: Buffer) -> None:
        """Replace a file atomically."""
        self._check_writable()
        await asyncio.to_thread(replace_file, self.root / key, value.to_bytes())


def open_root(path: Path) -> zarr.Group:
    """Root group of a run, opened for writing."""
    return zarr.open_group(DurableStore(path), mode="r+")


def read_root(path: Path) -> tuple[PlainDict, Metadata, bool]:
    """Description of a run, metadata of its groups and arrays, and whether its root contains consolidated metadata.

    Raises RunError if `path` is not a readable run.
    """
    if not path.exists():
        raise RunError(f"run must be a folder that `bayesattn sample` made, got {path}, which does not exist")
    try:
        root = json.loads((path / "zarr.json").read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"{path} must be a run, a Zarr store that `bayesattn sample` made, got no Zarr store") from None
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged: its zarr.json is not JSON: {error}; {DRAW_AGAIN}") from None
    except OSError as error:
        raise RunError(f"{path} is damaged: its zarr.json cannot be read: {error.strerror}") from None
    try:
        about = root["attributes"][KEY]
        # A string, which NetCDF can store too; early formats wrote a dictionary.
        about = dict(json.loads(about) if isinstance(about, str) else about)
    except (KeyError, TypeError, ValueError):
        raise RunError(
            f"{path} must be a run that `bayesattn sample` made, got a Zarr store of something else"
        ) from None
    if about.get("format") != FORMAT:
        environment = about.get("environment")
        maker = environment.get("bayesattn") if isinstance(environment, dict) else None
        raise RunError(
            f"{path} must be a run of store format {FORMAT}, got format {about.get('format')}, written by bayesattn"
            f" {maker or 'of another version'}: open it with that version, or draw it again with overwrite=True"
        )
    try:
        metadata, consolidated = dict(root[CONSOLIDATED]["metadata"]), True
    except (KeyError, TypeError, ValueError):
        metadata, consolidated = None, False  # Programs that write an attribute drop the consolidated metadata.
    try:
        metadata = metadata_of(path) if metadata is None else metadata
        sound = about.pop("checksum", None) == checksum(about, metadata) and about.keys() >= set(REQUIRED_ENTRIES)
    except (OSError, ValueError, TypeError, AttributeError):
        sound = False
    if not sound or metadata is None:
        raise RunError(f"{path} is damaged: its zarr.json is not what was written; {DRAW_AGAIN}")
    return about, metadata, consolidated


def metadata_of(path: Path) -> Metadata:
    """Metadata of groups and arrays from their files, in the form of Zarr's consolidated metadata."""
    metadata = {}
    for file in sorted([*path.glob("*/zarr.json"), *path.glob("*/*/zarr.json")]):
        about = json.loads(file.read_bytes())
        group = {CONSOLIDATED: _consolidated({})} if about["node_type"] == "group" else {}
        metadata[file.parent.relative_to(path).as_posix()] = about | group
    return metadata


def _consolidated(metadata: Metadata) -> PlainDict:
    return {"kind": "inline", "must_understand": False, "metadata": metadata}


def checksum(description: PlainMapping, metadata: Metadata) -> int:
    """CRC-32 of the description of a run and the metadata of its groups and arrays."""
    return zlib.crc32(json.dumps([description, metadata], sort_keys=True).encode())


def create(out: Path, model: Posterior, job: Job, ready: Plan) -> None:
    """Create a run without draws in a hidden folder beside `out`, and rename that folder to `out`.

    Does nothing if another process has created the run meanwhile; raises RunBusy if one is creating it.
    """
    require_room(out, model, job.chains * job.kept * bytes_per_draw(ready.shapes))
    new = beside(out, UNFINISHED)
    (new / FOLDER).mkdir(parents=True, exist_ok=True)
    try:
        with locked(new):
            if not is_free(out):
                return
            clear(new)
            description = {
                "format": FORMAT,
                "identity": provenance.identity(model, job),
                "environment": provenance.environment(),
            } | described(model, job.parameterisation == "token")
            _write_groups(zarr.create_group(new, zarr_format=3), model, job, ready)
            about = {"run": description["identity"]}
            checkpoint.write(new / FOLDER / PREPARED, about, ready.prepared)
            sync(new)
            _describe(new, description, job, metadata_of(new))
            new.rename(out)
            sync_folder(out.parent)
    except RunBusy:
        raise RunBusy(f"{out} is being written by another process: wait for it, or choose another folder") from None
    finally:
        with suppress(
            RunBusy, OSError
        ):  # A folder that cannot be removed now is removed before the next run is sampled here.
            if new.exists():
                remove(new)


def require_room(out: Path, model: Posterior, draw_bytes: int) -> None:
    """Raise OSError unless the disk has room for `draw_bytes` bytes of draws and for the data of the model."""
    folder = next(folder for folder in out.parents if folder.exists())
    data = sum(values.nbytes for variables in data_groups(model).values() for values in variables.values())
    free = shutil.disk_usage(folder).free
    if draw_bytes + data > free:
        needed = f"the run needs {(draw_bytes + data) / 2**20:,.1f} MiB, {free / 2**20:,.1f} MiB are free"
        raise OSError(errno.ENOSPC, needed, str(folder))


def read_prepared(run: Run) -> dict[str, np.ndarray]:
    """Arrays computed before sampling; raises RunError if they cannot be read."""
    try:
        about, arrays = checkpoint.read(run.path / FOLDER / PREPARED)
        if about["run"] != run.identity:
            raise BayesattnError("it is of another run")
    except checkpoint.UNREADABLE as error:
        raise RunError(f"{run.path} is damaged: {PREPARED} cannot be read ({error}); {DRAW_AGAIN}") from None
    return arrays


def extend(run: Run, job: Job) -> None:
    """Extend the arrays for more draws; the root's zarr.json, with their number, is replaced last and atomically."""
    require_room(run.path, run.model, run.nbytes * (job.kept - run.job.kept) // run.job.kept)
    metadata = {}
    for name, about in run.metadata.items():
        axes = about.get("dimension_names") or []
        if "draw" in axes:
            sizes = zip(axes, about["shape"], strict=True)
            about = about | {"shape": [job.kept if axis == "draw" else size for axis, size in sizes]}
        metadata[name] = about
        own = {key: value for key, value in about.items() if key != CONSOLIDATED}
        replace_file(run.path / name / "zarr.json", json.dumps(own).encode())
        if name.endswith("/draw"):
            numbers = zarr.open_array(DurableStore(run.path), path=name, mode="r+")
            numbers[...] = job.draw_numbers
    _describe(run.path, run.description, job, metadata)


def _describe(path: Path, description: PlainMapping, job: Job, metadata: Metadata) -> None:
    """Write the description of a run, with the settings of `job`, to the root of its store, after all other files."""
    content = json.loads((path / "zarr.json").read_bytes())
    about = dict(description) | {"sampler": provenance.to_toml(provenance.job_table(job))}
    content["attributes"][KEY] = json.dumps(about | {"checksum": checksum(about, metadata)})
    content[CONSOLIDATED] = _consolidated(metadata)
    replace_file(path / "zarr.json", json.dumps(content).encode())


def arrays_of(root: zarr.Group) -> PlainDict:
    """All arrays of a run, by group and name."""
    return {
        f"{group}/{name}": array for group, members in sorted(root.groups()) for name, array in sorted(members.arrays())
    }


def is_of_draws(axes: Sequence[str | None] | None) -> bool:
    """Whether the leading axes of an array are (chain, draw)."""
    return tuple(axes or ())[:2] == ("chain", "draw")


def bytes_of(about: PlainMapping) -> int:
    """Uncompressed size in bytes of an array, from its metadata."""
    return math.prod(about["shape"]) * np.dtype(about["data_type"]).itemsize


def damage(run: Run) -> str | None:
    """First damage of a run, an array that is incomplete or unreadable, as a phrase; None if there is none.

    Reads one chunk at a time, which verifies Zarr's checksum. Draws are checked as far as the checkpoints state that they
    exist. Raises RunError if a checkpoint cannot be read.
    """
    for chains in units(run.job):
        if run.checkpoint_file(chains).exists():
            run.read_checkpoint(chains)
    kept = [max(0, (done - run.job.warmup) // run.job.thin) for done in run.done]
    for name, array in arrays_of(run.root()).items():
        for place in np.ndindex(array.cdata_shape):
            where, part = name, tuple(slice(i * n, (i + 1) * n) for i, n in zip(place, array.chunks, strict=True))
            if drawn := is_of_draws(array.metadata.dimension_names):
                chain, first = place[0], place[1] * array.chunks[1]
                last = min(first + array.chunks[1], kept[chain])
                if first >= last:
                    continue
                where = f"{name} of chain {chain}, draws {first} to {last - 1},"
                part = (part[0], slice(first, last), *part[2:])
            if not (run.path / name / array.metadata.encode_chunk_key(place)).is_file():
                return f"{where} is missing"
            try:
                values = np.asarray(array[part])
            except Exception as error:  # Zarr and its codecs raise various errors for damaged files.
                return f"{where} cannot be read: {type(error).__name__}: {error}"
            if drawn and name.startswith("posterior/") and not np.isfinite(values).all():
                return f"{where} is missing in part"
    return None


def _write_groups(root: zarr.Group, model: Posterior, job: Job, ready: Plan) -> None:
    """Write the ArviZ groups: data, and empty arrays for the draws."""
    dims = axes(model)
    coords = axis_names(model) | {"chain": np.arange(job.chains), "draw": job.draw_numbers}
    usual: PlainDict = {
        "compressors": [ZstdCodec(level=1), Crc32cCodec()],
        "chunk_key_encoding": {"name": "default", "separator": "."},
        "config": {"write_empty_chunks": True},
    }

    def add(group: zarr.Group, name: str, values: Any, along: list[str]) -> None:
        values = np.asarray(values)
        text = values.dtype.kind == "U"
        dtype = "string" if text else values.dtype
        array = group.create_array(name, shape=values.shape, dtype=dtype, dimension_names=along, **usual)
        array[...] = values.astype(np.dtypes.StringDType()) if text else values

    def add_coords(group: zarr.Group, sizes: Mapping[str, int]) -> None:
        for dim, size in sizes.items():
            add(group, dim, coords.get(dim, np.arange(size)), [dim])

    for name, variables in data_groups(model, PARAMETERISATIONS[job.parameterisation].needs_tokens).items():
        group, sizes = root.create_group(name), {}
        for variable, values in variables.items():
            add(group, variable, values, dims.get(variable, []))
            sizes |= dict(zip(dims.get(variable, []), values.shape, strict=True))
        add_coords(group, sizes)
    for name, variables in ready.shapes.items():
        group, sizes = root.create_group(name), {"chain": job.chains, "draw": job.kept}
        for variable, like in variables.items():
            group.create_array(
                variable,
                shape=(job.chains, job.kept, *like.shape),
                chunks=(1, draws_per_chunk(ready.block, like.size * like.dtype.itemsize), *like.shape),
                dtype=like.dtype,
                fill_value=np.nan if like.dtype.kind == "f" else 0,
                dimension_names=["chain", "draw", *dims.get(variable, [])],
                **usual,
            )
            sizes |= dict(zip(dims.get(variable, []), like.shape, strict=True))
        add_coords(group, sizes)


def draws_per_chunk(block: int, draw_bytes: int) -> int:
    """Number of draws in a chunk of an array, a whole number of blocks."""
    return block * max(1, min(CHUNK_DRAWS, CHUNK_BYTES // max(1, draw_bytes)) // block)
