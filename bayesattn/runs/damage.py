"""What is damaged of a run, and back to the checkpoints before that."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bayesattn._files import replace_file
from bayesattn.runs import checkpoints, store
from bayesattn.runs.checkpoints import write_arrays
from bayesattn.runs.same import require_same_environment
from bayesattn.runs.store import EARLIER, FOLDER, PREPARED, RunError
from bayesattn.samplers.run import Chains, plan, units

if TYPE_CHECKING:
    from bayesattn.runs.run import Run


class Damage(NamedTuple):
    """What is wrong with the draws of chains, and the first draw that is not there; None where no draw can be told."""

    chains: Chains
    draw: int | None
    what: str


def found_in(run: Run) -> list[Damage]:
    """What is not as it was written, of draws, data and checkpoints; reads a chunk of draws at a time.

    Raises RunError if what is damaged cannot be drawn again: data, coordinates, descriptions of arrays.
    """
    anew = "draw the run anew with overwrite=True"
    with run.reading("its data"):
        everything = store.arrays_of(run.root())
        sums = store.fixed_sums(everything, run.job.kept)
    expected = run.description.get("sums", sums)
    for name in sorted(expected.keys() | sums.keys()):
        if sums.get(name) != expected.get(name):
            raise RunError(f"{run.path} is damaged: {name} is not what was written; {anew}")
    arrays, damaged = store.of_draws(everything), []
    for name in arrays:
        if not (run.path / name / "zarr.json").is_file():
            raise RunError(f"{run.path} is damaged: {name}/zarr.json is missing; {anew}")
    for chains in units(run.job):
        if not run.checkpoint_file(chains).exists():
            continue
        try:
            checkpoint = run.read_checkpoint(chains)
        except RunError as error:
            damaged.append(Damage(chains, None, str(error)))
            continue
        kept = max(0, (checkpoint.done - run.job.warmup) // run.job.thin)
        if checkpoint.sums is not None:
            wrong = checkpoint.sums.damage(arrays, chains, kept)
        else:
            wrong = _first_not_finite(arrays, chains, kept)
        if wrong:
            damaged.append(Damage(chains, wrong[0], f"{run.path} is damaged: {wrong[1]}"))
    return damaged


def go_back(run: Run, damage: Damage) -> None:
    """To the last checkpoint that is kept of the draws before the damage, else to the start."""
    file = run.checkpoint_file(damage.chains)
    last = run.job.transitions if damage.draw is None else run.job.warmup + damage.draw * run.job.thin
    names = (run.path / FOLDER / EARLIER).glob(f"{file.stem}.*.npz")
    steps = [int(text) for name in names if (text := name.stem.partition(".")[2]).isdecimal() and text.isascii()]
    for done in sorted((done for done in steps if done <= last), reverse=True):
        earlier = run.earlier_file(damage.chains, done)
        try:
            checkpoint = checkpoints.read(earlier)
        except checkpoints.UNREADABLE:
            continue
        if (checkpoint.run, checkpoint.done) == (run.identity, done):
            _clear(run, damage.chains, (done - run.job.warmup) // run.job.thin)
            if file.is_dir():
                _remove(file)
            replace_file(file, earlier.read_bytes())
            earlier.unlink()  # Should its draws turn out to be damaged too, the one before is next.
            return
    _clear(run, damage.chains, 0)
    _remove(file)


def prepare_again(run: Run) -> None:
    """Compute what was computed before sampling began, if that is damaged; raises RunError if it comes out otherwise."""
    with suppress(RunError):
        store.read_prepared(run)
        return
    require_same_environment(run)
    prepared = plan(run.model, run.job).prepared
    known = run.description.get("prepared")
    if store.sum_of(prepared) != known:
        why = "nothing tells what was written" if known is None else "computed again, it is not what was written"
        raise RunError(
            f"{run.path} is damaged: {PREPARED} cannot be read, and {why}; draw the run anew with overwrite=True"
        )
    _remove(run.path / FOLDER / PREPARED)
    write_arrays(run.path / FOLDER / PREPARED, prepared)
    run.log(event="repair", what=PREPARED)


def _clear(run: Run, chains: Chains, first: int) -> None:
    """Delete chunks that cannot be read, from a draw on: what is drawn again may be written to a part of them first."""
    for name, array in run.arrays_of_draws().items():
        for chain in chains:
            for chunk in range(first // array.chunks[1], -(-array.shape[1] // array.chunks[1])):
                key = array.metadata.encode_chunk_key((chain, chunk, *[0] * (array.ndim - 2)))
                file = run.path / name / key
                try:
                    np.asarray(array[chain, chunk * array.chunks[1] : (chunk + 1) * array.chunks[1]])
                    damaged = file.is_dir()
                except Exception:  # As above.
                    damaged = True
                if damaged:
                    _remove(file)


def _remove(path: Path) -> None:
    """A file, or a folder in its place."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _first_not_finite(arrays: Mapping[str, Any], chains: Chains, kept: int) -> tuple[int, str] | None:
    """As `Sums.damage`, of runs that have no sums: NaN stands where nothing was written."""
    for name in (name for name in arrays if name.startswith("posterior/")):
        size = arrays[name].chunks[1]
        for chain in chains:
            for begin in range(0, kept, size):
                end = min(begin + size, kept)
                where = f"{name} of chain {chain}, draws {begin} to {end - 1},"
                try:
                    values = np.asarray(arrays[name][chain, begin:end])
                except Exception as error:  # Zarr and its codecs raise whatever they like at damaged files.
                    return begin, f"{where} cannot be read: {type(error).__name__}: {error}"
                if not np.isfinite(values).all():
                    return begin, f"{where} is missing in part"
    return None
