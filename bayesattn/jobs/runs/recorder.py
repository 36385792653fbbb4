"""Blocks of draws and sampler states on their way to disk, and back when a run resumes."""

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
from bayesattn.jobs.runs import store
from bayesattn.jobs.runs.folder import RunError, damaged, is_of_system
from bayesattn.jobs.runs.run import Run
from bayesattn.samplers.blocks import Chains, Outputs, write_region


class Recorder:
    """Recorder for `bayesattn.samplers.blocks` that stores draws and states in a run."""

    def __init__(self, run: Run):
        self.run = run
        with run.reading("its arrays"):
            self.arrays = {
                group: {name: array.with_config({"write_empty_chunks": True}) for name, array in members.arrays()}
                for group, members in zarr.open_group(store.DurableStore(run.path), mode="r+").groups()
            }

    def restore(self, chains: Chains, like: Any) -> tuple[Any, int] | None:
        """State and number of steps done in the checkpoint; None without a checkpoint."""
        done, stored = self.run.checkpoint(chains)
        if not stored:
            return None
        leaves, tree = jax.tree.flatten(like)
        expected = [jax.eval_shape(_raw, leaf) for leaf in leaves]
        if [(leaf.shape, leaf.dtype) for leaf in stored.values()] != [(leaf.shape, leaf.dtype) for leaf in expected]:
            file = store.checkpoint_file(self.run.path, chains).name
            raise damaged(self.run.path, f"{file} has other shapes than its sampler")
        pairs = zip(stored.values(), leaves, strict=True)
        state = [key_of(array) if _is_key(leaf) else jnp.asarray(array) for array, leaf in pairs]
        return jax.tree.unflatten(tree, state), done

    def record(self, chains: Chains, first: int, outputs: Outputs) -> None:
        """Write draws to the arrays, each array in its own thread, as most of the time is spent on the disk."""
        parts = [{group: {name: values}} for group, named in outputs.items() for name, values in named.items()]
        with self._writing(), ThreadPoolExecutor() as pool:
            list(pool.map(lambda part: write_region(self.arrays, chains, first, part), parts))

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
            if not self.run.path.exists():
                raise RunError(
                    f"{self.run.path} must stay where it is while it is sampled, but it was deleted or renamed"
                ) from error
            raise OSError(
                error.errno or errno.EIO,
                f"{error.strerror or error} while writing a block; the blocks before it are safe, and the same command"
                " goes on from there",
                str(self.run.path),
            ) from error
        except Exception as error:  # To write a block, Zarr reads the earlier draws of its chunk, which may be damaged.
            if is_of_system(error):
                raise
            raise damaged(self.run.path, f"{type(error).__name__}: {error}") from error


def _raw(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
