"""Zarr store and checkpoints of a run: their formats, creation, extension and verification.

A run is one Zarr store (format 3) with ArviZ's groups. Its arrays are allocated in advance, with NaN for missing draws.
A chunk holds many blocks of draws. Writing a block rewrites the chunks that it lies in. Only when they are on disk is the
checkpoint written that counts the block. A block that was written but not checkpointed is drawn again, bit for bit. Zarr
gives every chunk a checksum. A checkpoint is an .npz file without pickles, with the checksums of the zip format.
"""

from __future__ import annotations

import asyncio
import errno
import io
import json
import shutil
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.storage import LocalStore

from bayesattn._util.files import replace_file, sync, sync_folder
from bayesattn._util.plain_values import PlainDict, PlainMapping
from bayesattn.jobs.runs import provenance
from bayesattn.jobs.runs.folder import (
    FOLDER,
    UNFINISHED,
    RunError,
    beside,
    clean,
    damaged,
    is_free,
    is_of_system,
    locked,
)
from bayesattn.models import parameterisation_of
from bayesattn.models.arviz import axes, axis_names, data_groups
from bayesattn.models.posterior import Posterior
from bayesattn.models.stored_model import ATTRIBUTE, described
from bayesattn.samplers import Job
from bayesattn.samplers.blocks import Chains, Plan, bytes_per_draw

FORMAT = 4
REQUIRED_ENTRIES = {"identity", "environment", "sampler", "kind", "model", "about_model"}
"""Required entries of a run's description, besides its format."""
CONSOLIDATED = "consolidated_metadata"
CHUNK_DRAWS = 10_000
CHUNK_BYTES = 2**22
"""Most draws, and most bytes before compression, in a chunk; a chunk holds whole blocks, at least one."""

Metadata = dict[str, PlainDict]
"""Content of the zarr.json of each group and array of a store, by name."""


class DurableStore(LocalStore):
    """Zarr store in a folder that writes each file atomically, and returns only when the file is on the disk."""

    async def set(self, key: str, value: Any) -> None:
        """Replace a file atomically."""
        self._check_writable()
        await asyncio.to_thread(replace_file, self.root / key, value.to_bytes())


def checkpoint_file(path: Path, chains: Chains) -> Path:
    """Checkpoint file of chains that advance together.

    With an empty tuple: the file of arrays computed once before sampling.
    """
    return path / FOLDER / (f"chain-{'-'.join(map(str, chains))}.npz" if chains else "prepared.npz")


def write_checkpoint(file: Path, about: PlainMapping, arrays: PlainMapping) -> None:
    """Write a checkpoint of arrays, with a description in plain values for JSON; replaces an existing one."""
    content = io.BytesIO()
    described = np.frombuffer(json.dumps(about).encode(), np.uint8)
    np.savez(content, allow_pickle=False, about=described, **arrays)
    replace_file(file, content.getvalue())


def read_root(path: Path) -> tuple[PlainDict, Metadata]:
    """Description of a run, and metadata of its groups and arrays; raises RunError if `path` is not a readable run."""
    if not path.exists():
        raise RunError(f"run must be a folder that `bayesattn sample` made, got {path}, which does not exist")
    try:
        root = json.loads((path / "zarr.json").read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"{path} must be a run, a Zarr store that `bayesattn sample` made, got no Zarr store") from None
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"its zarr.json is not JSON: {error}") from None
    except OSError as error:
        if is_of_system(error):
            raise
        raise RunError(f"{path} is damaged: its zarr.json cannot be read: {error.strerror}") from None
    try:
        about = root["attributes"][ATTRIBUTE]
        # Now a JSON string, because NetCDF cannot store a dictionary, which early formats wrote.
        about = dict(json.loads(about) if isinstance(about, str) else about)
        maker = about.get("environment", {}).get("bayesattn", "of another version")
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        raise RunError(
            f"{path} must be a run that `bayesattn sample` made, got a Zarr store of something else"
        ) from None
    if "format" not in about:
        raise RunError(
            f"{path} must be a run that `bayesattn sample` made, got saved draws of memory: use xarray.open_datatree"
        )
    if about["format"] != FORMAT:
        raise RunError(
            f"{path} must be a run of store format {FORMAT}, got format {about['format']}, written by bayesattn"
            f" {maker}: open it with that version, or draw it again with overwrite=True (--overwrite)"
        )
    try:
        # Programs that write an attribute drop the consolidated metadata.
        metadata = root[CONSOLIDATED]["metadata"] if root.get(CONSOLIDATED) else metadata_of(path)
        sound = about.pop("checksum", None) == checksum(about, metadata) and about.keys() >= REQUIRED_ENTRIES
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        sound, metadata = False, {}
    if not sound:
        raise damaged(path, "its zarr.json is not what was written")
    return about, metadata


def metadata_of(path: Path) -> Metadata:
    """Metadata of groups and arrays from their files, in the form of Zarr's consolidated metadata."""
    metadata = {}
    for file in sorted([*path.glob("*/zarr.json"), *path.glob("*/*/zarr.json")]):
        about = json.loads(file.read_bytes())
        group = {CONSOLIDATED: _consolidated({})} if about["node_type"] == "group" else {}
        metadata[file.parent.relative_to(path).as_posix()] = about | group
    return metadata


def _consolidated(metadata: Metadata) -> PlainDict:
    """Metadata of groups and arrays in the form of Zarr's consolidated metadata."""
    return {"kind": "inline", "must_understand": False, "metadata": metadata}


def checksum(description: PlainMapping, metadata: Metadata) -> int:
    """CRC-32 of the description of a run and the metadata of its groups and arrays."""
    return zlib.crc32(json.dumps([description, metadata], sort_keys=True).encode())


def create(out: Path, model: Posterior, job: Job, ready: Plan) -> None:
    """Create a run without draws in a hidden folder beside `out`, and rename that folder to `out`.

    Does nothing if another process has created the run meanwhile; raises RunBusy if one is creating it.
    """
    data = sum(values.nbytes for variables in data_groups(model).values() for values in variables.values())
    require_room(out, data + job.chains * job.kept * bytes_per_draw(ready.shapes))
    clean(out)
    new = beside(out, UNFINISHED)
    (new / FOLDER).mkdir(parents=True, exist_ok=True)
    try:
        with locked(new, out=out):
            if not is_free(out):
                return
            description = {
                "format": FORMAT,
                "identity": provenance.identity(model, job),
                "environment": provenance.environment(job.sampler_name),
            } | described(model, job.parameterisation == "token")
            _write_groups(zarr.create_group(new, zarr_format=3), model, job, ready)
            write_checkpoint(checkpoint_file(new, ()), {"run": description["identity"]}, ready.prepared)
            sync(new)
            describe(new, description, job, metadata_of(new))
            new.rename(out)
            sync_folder(out.parent)
    finally:
        clean(out)


def require_room(out: Path, needed: int) -> None:
    """Raise OSError unless the disk has room for `needed` more bytes of a run."""
    folder = next(folder for folder in out.parents if folder.exists())
    free = shutil.disk_usage(folder).free
    if needed > free:
        message = f"the run needs {needed / 2**20:,.1f} MiB, {free / 2**20:,.1f} MiB are free"
        raise OSError(errno.ENOSPC, message, str(folder))


def describe(path: Path, description: PlainMapping, job: Job, metadata: Metadata) -> None:
    """Write the description of a run, with the settings of `job`, to the root of its store, after all other files."""
    content = json.loads((path / "zarr.json").read_bytes())
    about = dict(description) | {"sampler": tomli_w.dumps(provenance.job_table(job))}
    content["attributes"][ATTRIBUTE] = json.dumps(about | {"checksum": checksum(about, metadata)})
    content[CONSOLIDATED] = _consolidated(metadata)
    replace_file(path / "zarr.json", json.dumps(content).encode())


def arrays_of(root: zarr.Group) -> dict[str, zarr.Array]:
    """All arrays of a run, by group and name."""
    return {name: member for name, member in sorted(root.members(max_depth=1)) if isinstance(member, zarr.Array)}


def is_of_draws(array: zarr.Array) -> bool:
    """Whether the leading axes of an array are (chain, draw)."""
    return tuple(getattr(array.metadata, "dimension_names", None) or ())[:2] == ("chain", "draw")


def _write_groups(root: zarr.Group, model: Posterior, job: Job, ready: Plan) -> None:
    """Write the ArviZ groups: data, and empty arrays for the draws."""
    dims = axes(model)
    coords = axis_names(model) | {"chain": np.arange(job.chains), "draw": job.draw_numbers}
    data = data_groups(model, parameterisation_of(model, job.parameterisation).needs_tokens)

    def add(group: zarr.Group, name: str, along: Iterable[str], kind: str, **content: Any) -> None:
        group.create_array(
            name,
            dimension_names=[*along],
            compressors=[ZstdCodec(level=1), Crc32cCodec()],
            chunk_key_encoding={"name": "default", "separator": "."},
            config={"write_empty_chunks": True},
            # Missing draws and data are read as NaN, where there is one.
            **({"fill_value": np.nan} if kind == "f" else {}),
            **content,
        )

    def write(group: zarr.Group, name: str, along: Iterable[str], values: Any) -> None:
        values = np.asarray(values)
        values = values.astype(np.dtypes.StringDType()) if values.dtype.kind == "U" else values
        add(group, name, along, values.dtype.kind, data=values)

    for name, variables in (data | ready.shapes).items():
        group, all_sizes = root.create_group(name), {}
        for variable, like in variables.items():
            sizes = dict(zip(dims.get(variable, []), like.shape, strict=True))
            if name in data:
                write(group, variable, sizes, like)
            else:
                sizes = {"chain": job.chains, "draw": job.kept} | sizes
                most = min(CHUNK_DRAWS, CHUNK_BYTES // max(1, like.size * like.dtype.itemsize))
                chunks = (1, ready.block * max(1, most // ready.block), *like.shape)
                shape = tuple(sizes.values())
                add(group, variable, sizes, like.dtype.kind, dtype=like.dtype, shape=shape, chunks=chunks)
            all_sizes |= sizes
        for dim, size in all_sizes.items():
            write(group, dim, [dim], coords.get(dim, np.arange(size)))
