"""Recorder of a run, which writes blocks of draws and sampler states to disk."""

import errno
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import zarr

from bayesattn._util.random import key_of
from bayesattn.runs import store
from bayesattn.runs.folder import RunError
from bayesattn.runs.run import Run
from bayesattn.samplers.blocks import Chains, Outputs, write_region


class Recorder:
    """Recorder for `bayesattn.samplers` that stores draws and states in a run."""

    def __init__(self, run: Run):
        self.run = run
        with run.reading("its arrays"):
            arrays = store.arrays_of(zarr.open_group(store.DurableStore(run.path), mode="r+"))
            self.arrays = {name: array.with_config({"write_empty_chunks": True}) for name, array in arrays.items()}

    def restore(self, chains: Chains, like: Any) -> tuple[Any, int] | None:
        """State and number of steps done in the checkpoint; None without a checkpoint."""
        done, stored = self.run.checkpoint(chains)
        if not stored:
            return None
        leaves, tree = jax.tree.flatten(like)
        expected = [jax.eval_shape(_raw, leaf) for leaf in leaves]
        if [(leaf.shape, leaf.dtype) for leaf in stored.values()] != [(leaf.shape, leaf.dtype) for leaf in expected]:
            raise RunError(
                f"{self.run.path} is damaged: {store.checkpoint_file(self.run.path, chains).name} has other shapes than"
                f" its sampler; {store.DRAW_AGAIN}"
            )
        pairs = zip(stored.values(), leaves, strict=True)
        state = [key_of(array) if _is_key(leaf) else jnp.asarray(array) for array, leaf in pairs]
        return jax.tree.unflatten(tree, state), done

    def record(self, chains: Chains, first: int, outputs: Outputs) -> None:
        """Write draws to the arrays, each array in its own thread, as most of the time is spent on the disk."""

        def write(name: str) -> None:
            group, variable = name.split("/")
            write_region({group: {variable: self.arrays[name]}}, chains, first, {group: {variable: drawn[name]}})

        drawn = {f"{group}/{name}": values for group, named in outputs.items() for name, values in named.items()}
        with self._writing(), ThreadPoolExecutor() as pool:
            list(pool.map(write, drawn))

    def checkpoint(self, chains: Chains, state: Any, done: int, steps: int, seconds: float) -> None:
        """Replace the checkpoint and log the block."""
        arrays = {f"leaf_{index}": np.asarray(_raw(leaf)) for index, leaf in enumerate(jax.tree.leaves(state))}
        about = {"run": self.run.identity, "chains": chains, "done": done, "leaves": len(arrays)}
        with self._writing():
            store.write_checkpoint(store.checkpoint_file(self.run.path, chains), about, arrays)
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
        except Exception as error:  # To write a block, Zarr reads the earlier draws of its chunk, which may be damaged.
            raise RunError(
                f"{self.run.path} is damaged: {type(error).__name__}: {error}; {store.DRAW_AGAIN}"
            ) from error


def _raw(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
