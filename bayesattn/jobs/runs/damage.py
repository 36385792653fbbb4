"""Damage of the arrays of a run on disk."""

from pathlib import Path

import numpy as np
import zarr

from bayesattn.jobs.runs import store
from bayesattn.jobs.runs.folder import is_of_system


def first_damage(path: Path, root: zarr.Group, kept: list[int]) -> str | None:
    """First array of a run that is incomplete or unreadable, as a phrase; None if there is none.

    Reads one chunk at a time, which verifies Zarr's checksum. `kept` is the number of draws that each chain must have.
    """
    for name, array in store.arrays_of(root).items():
        for place in np.ndindex(array.cdata_shape):
            where, count = name, None
            if drawn := store.is_of_draws(array):
                chain, first = place[0], place[1] * array.chunks[1]
                count = min(array.chunks[1], kept[chain] - first)
                if count <= 0:
                    continue
                where = f"{name} of chain {chain}, draws {first} to {first + count - 1},"
            if not (path / name / array.metadata.encode_chunk_key(place)).is_file():
                return f"{where} is missing"
            try:
                values = np.asarray(array.blocks[place])
            except Exception as error:  # Zarr and its codecs raise various errors for damaged files.
                if is_of_system(error):
                    raise
                return f"{where} cannot be read: {type(error).__name__}: {error}"
            if drawn and name.startswith("posterior/") and not np.isfinite(values[:, :count]).all():
                return f"{where} is missing in part"
    return None
