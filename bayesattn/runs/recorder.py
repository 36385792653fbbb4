"""What samplers hand over, written into a run: draws and checkpoints."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bayesattn._files import sync
from bayesattn._random import key_of
from bayesattn.runs import checkpoints
from bayesattn.runs.checkpoints import Checkpoint, Sums
from bayesattn.runs.run import Run
from bayesattn.runs.store import RunError, named
from bayesattn.samplers.run import Chains, Outputs, write_region


class Recorder:
    """Recorder of `bayesattn.samplers.run` that keeps everything in a run."""

    def __init__(self, run: Run):
        self.run, self.arrays, self.sums = run, {}, {}
        for variable, array in run.arrays_of_draws(mode="r+").items():
            group, name = variable.split("/")
            self.arrays.setdefault(group, {})[name] = array

    def restore(self, chains: Chains, like: Any) -> tuple[Any, int] | None:
        """State and steps done by the checkpoint."""
        variables = sorted(f"{group}/{name}" for group, arrays in self.arrays.items() for name in arrays)
        self.sums[chains] = Sums.of_nothing(variables, self.run.draws_per_chunk, chains)
        if not self.run.checkpoint_file(chains).exists():
            return None
        checkpoint = self.run.read_checkpoint(chains)
        leaves, tree = jax.tree.flatten(like)
        raw = [jax.eval_shape(_raw, leaf) for leaf in leaves]
        if [(a.shape, a.dtype) for a in checkpoint.leaves] != [(r.shape, r.dtype) for r in raw]:
            raise RunError(
                f"{self.run.path} is damaged: its checkpoint of {named(chains)} has other shapes than its sampler;"
                " draw it anew with overwrite=True"
            )
        self.sums[chains] = checkpoint.sums
        state = [
            key_of(array) if _is_key(leaf) else jnp.asarray(array)
            for array, leaf in zip(checkpoint.leaves, leaves, strict=True)
        ]
        return jax.tree.unflatten(tree, state), checkpoint.done

    def record(self, chains: Chains, first: int, outputs: Outputs) -> None:
        """One region write per array."""
        with self._writing():
            write_region(self.arrays, chains, first, outputs)
            if (sums := self.sums[chains]) is not None:
                sums.add(first, outputs)

    def checkpoint(self, chains: Chains, state: Any, done: int, steps: int, seconds: float) -> None:
        """Bring the block onto the disk, replace the checkpoint by a rename, and log the block."""
        leaves = [np.asarray(_raw(leaf)) for leaf in jax.tree.leaves(state)]
        with self._writing():
            sync(self.run.path)
            file = self.run.checkpoint_file(chains)
            checkpoints.write(file, Checkpoint(self.run.identity, done, leaves, self.sums[chains]))
            self._keep(chains, file, done)
            self.run.log(event="block", chains=chains, done=done, steps=steps, seconds=round(seconds, 4))

    def _keep(self, chains: Chains, file: Path, done: int) -> None:
        """Keep the checkpoint of the end of a chunk too, unless it is larger than the draws that it would bring back."""
        kept, rest = divmod(done - self.run.job.warmup, self.run.job.thin * self.run.draws_per_chunk)
        if rest or kept < 0 or file.stat().st_size > max(2**20, len(chains) * self.run.bytes_per_chunk):
            return
        earlier = self.run.earlier_file(chains, done)
        with suppress(OSError):  # Without it, or on a disk that knows no links, more is drawn again.
            earlier.unlink(missing_ok=True)
            os.link(file, earlier)

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


def _raw(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
