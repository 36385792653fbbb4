"""What a run on disk is made of: its Zarr store made, made longer, locked; sums of what it holds.

A run is one Zarr store (format 3) with ArviZ's groups, its arrays allocated ahead with NaN where nothing is drawn yet.
Each block of draws is one region write, brought onto the disk before an atomic checkpoint of the whole sampler state counts;
a block that was written but not checkpointed is drawn again, to the same bits. The folder `.run` inside the store holds
checkpoints, a log of blocks with their wall times, and a lock. Checkpoints of the ends of chunks stay in `.run/earlier`, so
that a damaged chunk can be drawn again.
"""

from __future__ import annotations

import errno
import json
import math
import shutil
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
import numpy as np
import zarr

from bayesattn._files import replace_file, sync, sync_folder
from bayesattn.models import LatentModel, Model
from bayesattn.models.description import ATTRIBUTE, described
from bayesattn.runs import checkpoints, provenance
from bayesattn.runs.checkpoints import load_arrays, write_arrays
from bayesattn.samplers import Job
from bayesattn.samplers.run import Chains, Plan, bytes_per_draw

if TYPE_CHECKING:
    from bayesattn.runs.run import Run

FORMAT = 3
READABLE = (2, FORMAT)
"""Format 2 has no sums of its draws, which are checked for NaN alone."""
KEY = ATTRIBUTE
"""Attribute of the store's root that holds the run's description."""
CONSOLIDATED = "consolidated_metadata"
INLINE = {"kind": "inline", "must_understand": False}
FOLDER = ".run"
EARLIER = "earlier"
PREPARED = "prepared.npz"
"""What was computed before sampling began."""
COMPRESS_BELOW = 2**16
"""Bytes per chunk: larger arrays of draws are stored as they are, for noise hardly compresses."""
IN_FLIGHT_SECONDS = 0.2
"""When one of Zarr's writes fails, others go on, and make the folder again if it is deleted before they end."""
LOCK_SECONDS = 2.0
"""A lock that someone merely looks at is free again long before."""

Members = dict[str, dict[str, Any]]
"""The zarr.json of each group and array of a store, by name."""


class RunError(ValueError):
    """A folder that is not a run, or not one that can be read or resumed."""


class RunBusy(RunError):
    """Another process is at work on the run."""


@contextmanager
def locked(folder: Path, timeout: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold the lock of a run, which the operating system frees when the process dies; raises RunBusy."""
    file = folder / FOLDER / "lock"
    lock = filelock.FileLock(file)
    busy = RunBusy(f"{folder} is being written by another process: wait for it, or choose another folder")
    try:
        lock.acquire(timeout=timeout)
    except (filelock.Timeout, FileNotFoundError):  # Or it has just been replaced by another run.
        raise busy from None
    try:
        if not file.exists():
            raise busy  # It was replaced by another run while this process waited.
        yield
    finally:
        lock.release()


def read_root(path: Path) -> dict[str, Any]:
    """What the zarr.json of a run says; raises RunError if `path` is not a run that can be read."""
    if not path.exists():
        raise RunError(f"run must be a folder that `bayesattn sample` made, got {path}, which does not exist")
    try:
        root = json.loads((path / "zarr.json").read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"{path} must be a run, a Zarr store that `bayesattn sample` made, got no Zarr store") from None
    except (ValueError, RecursionError) as error:
        raise RunError(
            f"{path} is damaged: its zarr.json is not JSON: {error}; replace it with overwrite=True"
        ) from None
    except OSError as error:
        raise RunError(f"{path} is damaged: its zarr.json cannot be read: {error.strerror}") from None
    try:
        about = root["attributes"][KEY]
        # A text, which NetCDF can hold too; earlier versions wrote a dictionary.
        about = root["attributes"][KEY] = dict(json.loads(about) if isinstance(about, str) else about)
    except (KeyError, TypeError, ValueError):
        raise RunError(
            f"{path} must be a run that `bayesattn sample` made, got a Zarr store of something else"
        ) from None
    if about.get("format") not in READABLE:
        environment = about.get("environment")
        maker = environment.get("bayesattn") if isinstance(environment, dict) else None
        raise RunError(
            f"{path} must be a run of store format {' or '.join(map(str, READABLE))}, got format {about.get('format')},"
            f" written by bayesattn {maker or 'of another version'}: open it with that version"
        )
    if not isinstance(about.get("sums", {}), dict):
        raise RunError(f"{path} is damaged: its zarr.json lacks sums; replace it with overwrite=True")
    kinds = {"identity": str, "model": str, "sampler": str, "kind": str, "environment": dict, "about_model": dict}
    for key, kind in kinds.items():
        if not isinstance(about.get(key), kind):
            raise RunError(f"{path} is damaged: its zarr.json lacks {key}; replace it with overwrite=True")
    return root


def create(out: Path, model: Model | LatentModel, job: Job, ready: Plan) -> None:
    """Make a run with all its arrays, nothing drawn yet, in a hidden folder beside `out` that a rename turns into it."""
    require_room(out, model, job.chains * job.kept * bytes_per_draw(ready.shapes))
    out.parent.mkdir(parents=True, exist_ok=True)
    new = out.with_name(f".{out.name}.{uuid.uuid4().hex}.new")
    try:
        (new / FOLDER / EARLIER).mkdir(parents=True)
        with locked(new):  # By which the leftover of a process that was killed is known.
            description = {
                "format": FORMAT,
                "identity": provenance.identity(model, job),
                "environment": provenance.environment(),
                "prepared": sum_of(ready.prepared),
            } | described(model, job.parameterisation == "token")
            root = zarr.create_group(new, zarr_format=3)
            arrays = _write_groups(root, model, job, ready)
            write_arrays(new / FOLDER / PREPARED, ready.prepared)
            _describe(new, description | {"sums": fixed_sums(arrays, job.kept)}, job, consolidated(new))
            try:
                new.rename(out)
            except OSError as error:
                # Another job was quicker: there is a run now, whose lock decides.
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            sync_folder(out.parent)
    except BaseException:
        time.sleep(IN_FLIGHT_SECONDS)
        raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def require_room(out: Path, model: Model | LatentModel, draws: int) -> None:
    """Raise OSError unless the disk has room for draws of so many bytes and the data of the model."""
    place = next(folder for folder in out.parents if folder.exists())
    needed, free = draws + sum(_bytes(group) for group in model.groups().values()), shutil.disk_usage(place).free
    if needed > free:
        raise OSError(
            errno.ENOSPC, f"the run needs {needed / 2**20:,.1f} MiB, {free / 2**20:,.1f} MiB are free", str(place)
        )


def _bytes(variables: Mapping[str, np.ndarray]) -> int:
    return sum(values.nbytes for values in variables.values())


def read_prepared(run: Run) -> dict[str, np.ndarray]:
    """What was computed before sampling began; raises RunError if that is not what was written."""
    try:
        with load_arrays(run.path / FOLDER / PREPARED) as stored:
            prepared = dict(stored)
        if "prepared" in run.description and run.description["prepared"] != sum_of(prepared):
            raise ValueError("it is not what was written")
    except checkpoints.UNREADABLE as error:
        raise RunError(
            f"{run.path} is damaged: {PREPARED} cannot be read ({error}); `bayesattn sample` with --repair (repair=True)"
            " computes it again"
        ) from None
    return prepared


def sum_of(arrays: Mapping[str, Any]) -> int:
    """CRC-32 of arrays, with their names and shapes."""
    crc = 0
    for name, values in sorted(arrays.items()):
        values = np.asarray(values)
        crc = zlib.crc32(f"{name} {values.dtype} {values.shape}".encode(), crc)
        crc = zlib.crc32(values.tobytes(), crc)
    return crc


def extend(run: Run, job: Job) -> None:
    """Make room for more draws; the description, which says how many there are to be, changes last and at once.

    What the run is made of comes from the description, which was found sound, so that a member that has gone is made again.
    """
    require_room(run.path, run.model, run.nbytes * (job.kept - run.job.kept) // run.job.kept)
    members, sums = {}, dict(run.description.get("sums") or fixed_sums(arrays_of(run.root()), run.job.kept))
    for name, about in run.members.items():
        axes = about.get("dimension_names") or []
        if "draw" in axes:
            sizes = zip(axes, about["shape"], strict=True)
            about = about | {"shape": [job.kept if axis == "draw" else size for axis, size in sizes]}
        members[name] = about
        (run.path / name).mkdir(exist_ok=True)
        own = {key: value for key, value in about.items() if key != CONSOLIDATED}
        replace_file(run.path / name / "zarr.json", json.dumps(own).encode())
        if name.endswith("/draw"):
            array = zarr.open_array(run.path / name, mode="r+")
            array[...] = job.draw_numbers
            sums |= fixed_sums({name: array}, job.kept)
    _describe(run.path, run.description | {"sums": sums}, job, members)


def _describe(path: Path, description: dict[str, Any], job: Job, members: Members) -> None:
    """Write what a run is, with the settings of `job`, into its store's root; all else is on the disk by then."""
    sync(path)
    content = json.loads((path / "zarr.json").read_bytes())
    description = description | {"sampler": provenance.to_toml(provenance.job_table(job))}
    description["sum"] = sum_of_description(description, members)
    content["attributes"][KEY] = json.dumps(description)
    content[CONSOLIDATED] = INLINE | {"metadata": members}
    replace_file(path / "zarr.json", json.dumps(content).encode())


def consolidated(path: Path) -> Members:
    """What `zarr.consolidate_metadata` would write into the root of a store, which stays as it is meanwhile."""
    members = {}
    for file in sorted([*path.glob("*/zarr.json"), *path.glob("*/*/zarr.json")]):
        about = json.loads(file.read_bytes())
        group = {CONSOLIDATED: INLINE | {"metadata": {}}} if about["node_type"] == "group" else {}
        members[file.parent.relative_to(path).as_posix()] = about | group
    return members


def sum_of_description(description: dict[str, Any], members: Members) -> int:
    """CRC-32 of what a store's zarr.json says of the run and, in its consolidated metadata, of groups and arrays."""
    own = {key: value for key, value in description.items() if key != "sum"}
    return zlib.crc32(json.dumps([own, INLINE | {"metadata": members}], sort_keys=True).encode())


def fixed_sums(arrays: Mapping[str, Any], kept: int) -> dict[str, int]:
    """CRC-32 of each array that holds no draws: data and coordinates, of which there may be more draws than `kept`."""
    sums = {}
    for name, array in arrays.items():
        if not is_of_draws(array.metadata.dimension_names):
            values = np.asarray(array[:kept] if name.endswith("/draw") else array[...])
            text = values.dtype.kind not in "biufc"
            content = "\n".join(map(str, values.ravel().tolist())).encode() if text else values.tobytes()
            sums[name] = zlib.crc32(content)
    return sums


def arrays_of_draws(root: zarr.Group) -> dict[str, Any]:
    """Arrays that begin with axes (chain, draw), by group and name."""
    return of_draws(arrays_of(root))


def of_draws(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Those among arrays of a run."""
    return {name: array for name, array in arrays.items() if is_of_draws(array.metadata.dimension_names)}


def arrays_of(root: zarr.Group) -> dict[str, Any]:
    """All arrays that a run holds, by group and name."""
    return {
        f"{group}/{name}": array for group, members in sorted(root.groups()) for name, array in sorted(members.arrays())
    }


def is_of_draws(axes: Sequence[str | None] | None) -> bool:
    """Whether an array with these axes begins with (chain, draw)."""
    return tuple(axes or ())[:2] == ("chain", "draw")


def chunk_of(about: Mapping[str, Any]) -> list[int]:
    """Shape of the chunks of an array, by its zarr.json."""
    return about["chunk_grid"]["configuration"]["chunk_shape"]


def bytes_of(about: Mapping[str, Any], shape: Sequence[int]) -> int:
    """Bytes of so many of an array's numbers, by its zarr.json."""
    return math.prod(shape) * np.dtype(about["data_type"]).itemsize


def _write_groups(root: zarr.Group, model: Model | LatentModel, job: Job, ready: Plan) -> dict[str, Any]:
    """ArviZ's groups: data as they are, arrays of draws allocated and still empty. All arrays, by group and name."""
    dims, arrays = model.dims(), {}
    names = model.coords() | {"chain": np.arange(job.chains), "draw": job.draw_numbers}

    def add(group: zarr.Group, name: str, values: Any, axes: list[str]) -> None:
        values = np.asarray(values)
        text = values.dtype.kind == "U"
        dtype = "string" if text else values.dtype
        array = group.create_array(name, shape=values.shape, dtype=dtype, dimension_names=axes)
        array[...] = values.astype(np.dtypes.StringDType()) if text else values
        arrays[f"{group.basename}/{name}"] = array

    def add_coords(group: zarr.Group, sizes: dict[str, int]) -> None:
        for dim, size in sizes.items():
            add(group, dim, names.get(dim, np.arange(size)), [dim])

    for name, variables in model.groups(tokens=job.parameterisation == "token").items():
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
            arrays[f"{name}/{variable}"] = group.create_array(
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
    return arrays


def named(chains: Chains) -> str:
    """Chains as a sentence names them."""
    return f"chain {chains[0]}" if len(chains) == 1 else f"chains {chains[0]} to {chains[-1]}"
