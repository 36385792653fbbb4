"""Checkpoints of a run: the whole state of chains, and sums by which damage to their draws is found.

A checkpoint is an .npz without pickles: the leaves of the sampler's state, what it says of itself as JSON, and the CRC-32 of
each variable of each chain over every chunk of draws. Sums go on from block to block as the state does, so they do not
depend on how draws came in blocks, nor on how often a run was killed.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bayesattn._files import replace_file
from bayesattn.samplers.run import Chains, Outputs

READ_BYTES = 2**25
"""Most of the draws of a variable that are read at once to find damage, if a chunk of them is smaller."""
UNREADABLE = (Exception,)
"""What reading a damaged file of arrays raises: one flipped bit, and zip readers find it encrypted or of another version."""


class Checkpoint(NamedTuple):
    """Run that it is of, steps done, leaves of the state, and sums of the draws; None where none were kept."""

    run: str
    done: int
    leaves: list[np.ndarray]
    sums: Sums | None


class Sums:
    """CRC-32 of draws that are there: of each chain, each variable ("posterior/prediction") and each `size` draws."""

    def __init__(self, variables: Sequence[str], size: int, values: np.ndarray):
        self.variables, self.size, self.values = list(variables), size, values

    @classmethod
    def of_nothing(cls, variables: Sequence[str], size: int, chains: Chains) -> Sums:
        """Sums of chains without draws."""
        return cls(variables, size, np.zeros((len(chains), len(variables), 0), np.uint32))

    def add(self, first: int, outputs: Outputs) -> None:
        """Go on with draws `first`, first + 1, .., arrays of which begin with axes (chain, draw)."""
        for column, variable in enumerate(self.variables):
            group, name = variable.split("/")
            for row, values in enumerate(np.asarray(outputs[group][name])):
                for begin in range(first - first % self.size, first + len(values), self.size):
                    part = values[max(0, begin - first) : begin + self.size - first]
                    sums = self._at(begin)
                    sums[row, column] = zlib.crc32(part.tobytes(), int(sums[row, column]))

    def damage(self, arrays: Mapping[str, Any], chains: Chains, kept: int) -> tuple[int, str] | None:
        """The first draw of the first chunk that is not what was written, and what is wrong with it.

        Reads a chunk at a time, or as many as are small.
        """
        wrong = [
            found
            for row, chain in enumerate(chains)
            for column, variable in enumerate(self.variables)
            if (found := self._first_wrong(variable, arrays[variable], chain, self.values[row, column], kept))
        ]
        return min(wrong, key=lambda found: found[0], default=None)

    def _first_wrong(
        self, variable: str, array: Any, chain: int, sums: np.ndarray, kept: int, most: int = READ_BYTES
    ) -> tuple[int, str] | None:
        at_once = self.size * max(1, most // max(1, self.size * int(np.prod(array.shape[2:])) * array.dtype.itemsize))
        for first in range(0, kept, at_once):
            last = min(first + at_once, kept)
            where = f"{variable} of chain {chain}, draws"
            try:
                values = np.asarray(array[chain, first:last])
            except Exception as error:  # Zarr and its codecs raise whatever they like at damaged files.
                if most:
                    return self._first_wrong(variable, array, chain, sums, kept, 0)
                return first, f"{where} {first} to {last - 1}, cannot be read: {type(error).__name__}: {error}"
            for begin in range(first, last, self.size):
                end = min(begin + self.size, last)
                part = values[begin - first : end - first]
                if zlib.crc32(part.tobytes()) != sums[begin // self.size]:
                    missing = part.dtype.kind == "f" and not np.isfinite(part).all()
                    what = "is missing in part" if missing else "is not what was written"
                    return begin, f"{where} {begin} to {end - 1}, {what}"
        return None

    def _at(self, draw: int) -> np.ndarray:
        """Sums of the chunk of a draw, which may be the first of its chunk."""
        chunk = draw // self.size
        if chunk == self.values.shape[2]:
            self.values = np.concatenate(
                [self.values, np.zeros_like(self.values, shape=(*self.values.shape[:2], 1))], 2
            )
        return self.values[:, :, chunk]


def write(file: Path, checkpoint: Checkpoint) -> None:
    """Replace a checkpoint."""
    about: dict[str, Any] = {"run": checkpoint.run, "done": checkpoint.done, "leaves": len(checkpoint.leaves)}
    arrays = {f"leaf_{index}": leaf for index, leaf in enumerate(checkpoint.leaves)}
    if checkpoint.sums is not None:
        about |= {"variables": checkpoint.sums.variables, "size": checkpoint.sums.size}
        arrays["sums"] = checkpoint.sums.values
    write_arrays(file, {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)} | arrays)


def read(file: Path) -> Checkpoint:
    """A checkpoint as it was written; raises one of UNREADABLE."""
    with load_arrays(file) as stored:
        about = json.loads(stored["about"].tobytes())
        leaves = [stored[f"leaf_{index}"] for index in range(about["leaves"])]
        sums = None
        if "variables" in about:
            sums = Sums(about["variables"], about["size"], stored["sums"])
            if sums.values.ndim != 3 or sums.values.shape[1] != len(sums.variables):
                raise ValueError("its sums are not of the variables that it names")
    return Checkpoint(str(about["run"]), int(about["done"]), leaves, sums)


def described(file: Path) -> tuple[str, int]:
    """Run and steps done that a checkpoint tells of, without its state; read again only when the file has changed."""
    stat = file.stat()
    return _described(file, stat.st_ino, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4096)
def _described(file: Path, *_: int) -> tuple[str, int]:
    with zipfile.ZipFile(file) as archive:
        content = np.lib.format.read_array(io.BytesIO(archive.read("about.npy")), allow_pickle=False)
    about = json.loads(content.tobytes())
    return str(about["run"]), int(about["done"])


def write_arrays(file: Path, arrays: dict[str, Any]) -> None:
    """As .npz, without pickles."""
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    replace_file(file, content.getvalue())


def load_arrays(file: Path) -> Any:
    """What `write_arrays` wrote; read at once, for NumPy leaves a damaged file open."""
    return np.load(io.BytesIO(file.read_bytes()), allow_pickle=False)
