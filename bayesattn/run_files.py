"""What a run on disk is made of: making its Zarr store, writing draws and checkpoints, reading them back.

A run is one Zarr store (format 3) with ArviZ's groups, its arrays allocated ahead with NaN where nothing is drawn yet.
Each block of draws is one region write, followed by an atomic checkpoint of the whole sampler state; a block that was
written but not checkpointed is drawn again, to the same bits. The folder `.run` inside the store holds checkpoints (NumPy
arrays and JSON, no pickles), a log of blocks with their wall times, and a lock.
"""

from __future__ import annotations

import errno
import io
import json
import shutil
import uuid
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import zarr

from bayesattn import provenance
from bayesattn._files import replace_file
from bayesattn.models import LatentModel, Model
from bayesattn.samplers import Job
from bayesattn.samplers.run import Chains, Outputs, Plan, bytes_per_draw, write_region

if TYPE_CHECKING:
    from bayesattn.runs import Run

FORMAT = 2
KEY = "bayesattn"
"""Attribute of the store's root that holds the run's description."""
FOLDER = ".run"
COMPRESS_BELOW = 2**16
"""Bytes per chunk: larger arrays of draws are stored as they are, for noise hardly compresses."""


class RunError(ValueError):
    """A folder that is not a run, or not one that can be read or resumed."""


class RunBusy(RunError):
    """Another process is at work on the run."""


def create(out: Path, model: Model | LatentModel, job: Job, ready: Plan) -> None:
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
        description = {
            "format": FORMAT,
            "identity": provenance.identity(model, job),
            "model": provenance.to_toml(provenance.model_table(model)),
            "sampler": provenance.to_toml(provenance.job_table(job)),
            "environment": provenance.environment(),
            "kind": type(model).__name__,
            "about_model": model.about(job.parameterisation == "token"),
        }
        root = zarr.create_group(new, zarr_format=3, attributes={KEY: description})
        _write_groups(root, model, job, ready)
        with warnings.catch_warnings():
            # Consolidated metadata, which readers want, has no place yet in the written standard of format 3.
            warnings.simplefilter("ignore")
            zarr.consolidate_metadata(root.store)
        (new / FOLDER).mkdir()
        write_arrays(new / FOLDER / "prepared.npz", ready.prepared)
        try:
            new.rename(out)
        except OSError as error:
            # Another job was quicker: there is a run now, whose lock decides.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _write_groups(root: zarr.Group, model: Model | LatentModel, job: Job, ready: Plan) -> None:
    """ArviZ's groups: data as they are, arrays of draws allocated and still empty."""
    dims = model.dims()
    names = model.coords() | {"chain": np.arange(job.chains), "draw": job.draw_numbers}

    def add(group: zarr.Group, name: str, values: Any, axes: list[str]) -> None:
        values = np.asarray(values)
        text = values.dtype.kind == "U"
        dtype = "string" if text else values.dtype
        array = group.create_array(name, shape=values.shape, dtype=dtype, dimension_names=axes)
        array[...] = values.astype(np.dtypes.StringDType()) if text else values

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


class Recorder:
    """Recorder of `bayesattn.samplers.run` that keeps everything in a run."""

    def __init__(self, run: Run):
        self.run = run
        with run.reading("its arrays"):
            tree = zarr.open_group(run.path, mode="r+")
            self.arrays = {
                name: {key: array for key, array in tree[name].arrays() if array.ndim > 1}  # pyright: ignore
                for name in tree
                if "draw" in dict(tree[name].arrays())  # pyright: ignore
            }

    def prepared(self) -> dict[str, np.ndarray]:
        """What was computed before sampling began."""
        try:
            with load_arrays(self.run.path / FOLDER / "prepared.npz") as stored:
                return dict(stored)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise RunError(f"{self.run.path} is damaged: prepared.npz cannot be read ({error})") from None

    def restore(self, chains: Chains, like: Any) -> tuple[Any, int] | None:
        """State and steps done by the checkpoint, after a look at whether the draws it speaks of are there."""
        if not self.run.checkpoint_file(chains).exists():
            return None
        about, arrays = self.run.read_checkpoint(chains)
        leaves, tree = jax.tree.flatten(like)
        raw = [jax.eval_shape(_raw, leaf) for leaf in leaves]
        if [(a.shape, a.dtype) for a in arrays] != [(r.shape, r.dtype) for r in raw]:
            raise RunError(
                f"{self.run.path} is damaged: its checkpoint of {named(chains)} has other shapes than its sampler"
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
            write_arrays(
                self.run.checkpoint_file(chains),
                {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)} | arrays,
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
                with self.run.reading(f"posterior/{name} of chain {chain}"):
                    values = np.asarray(array[chain, : max(0, kept)])
                missing = np.flatnonzero(~np.isfinite(values).all(axis=tuple(range(1, values.ndim))))
                if len(missing):
                    raise RunError(
                        f"{self.run.path} is damaged: posterior/{name} of chain {chain} lacks draw {missing[0]}, which was"
                        f" written; delete {FOLDER}/{self.run.checkpoint_file(chains).name} to draw {named(chains)} again"
                        " from the start, to the same draws"
                    )


def write_arrays(file: Path, arrays: dict[str, Any]) -> None:
    """As .npz, without pickles."""
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    replace_file(file, content.getvalue())


def load_arrays(file: Path) -> Any:
    """What `write_arrays` wrote; read at once, for NumPy leaves a damaged file open."""
    return np.load(io.BytesIO(file.read_bytes()), allow_pickle=False)


def _raw(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def named(chains: Chains) -> str:
    """Chains as a sentence names them."""
    return f"chain {chains[0]}" if len(chains) == 1 else f"chains {chains[0]} to {chains[-1]}"
