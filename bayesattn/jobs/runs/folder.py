"""Folders of runs: search, write locks, and replacement of one run by another.

Beside a run `out` there may temporarily be `.out.unfinished`, in which a run is created until it can be opened;
`.out.replacement`, a run that is sampled to replace another; and `.out.replaced`, the replaced run.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import filelock

from bayesattn._util.files import sync_folder, user_path
from bayesattn.errors import BayesattnError

FOLDER = ".run"
"""Hidden folder inside a run, with checkpoints, log and lock."""
UNFINISHED, REPLACEMENT, REPLACED = "unfinished", "replacement", "replaced"
LOCK_SECONDS = 2.0
"""Time to wait for a lock; a reader that only tests the lock releases it much sooner."""


class RunError(BayesattnError):
    """Error for a folder that is not a run, or a run that cannot be read or resumed."""


class RunBusy(RunError):
    """Error for a run that another process is writing."""


def is_of_system(error: BaseException) -> bool:
    """Whether an error may pass, of memory, permissions or a device, so that it does not say that files are damaged."""
    of_files = FileNotFoundError | NotADirectoryError | IsADirectoryError
    of_device = isinstance(error, OSError) and error.errno is not None and not isinstance(error, of_files)
    return of_device or isinstance(error, MemoryError)


def damaged(path: Path, how: str) -> RunError:
    """Error for a damaged run, which says what to do."""
    again = "draw it again with overwrite=True (--overwrite): the same seed gives the same draws"
    return RunError(f"{path} is damaged: {how}; {again}")


@contextmanager
def locked(folder: Path, timeout: float = LOCK_SECONDS, out: Path | None = None) -> Iterator[None]:
    """Context in which no other process writes the run in a folder; raises RunBusy, which names `out`, if one does.

    The operating system releases the lock when the process ends.
    """
    file = folder / FOLDER / "lock"
    lock = filelock.FileLock(file)
    busy = RunBusy(f"{out or folder} is being written by another process: wait for it, or choose another folder")
    try:
        place = folder.stat().st_ino
        lock.acquire(timeout=timeout)
    except (filelock.Timeout, FileNotFoundError):  # Without a file, it has just been replaced by another run.
        raise busy from None
    try:
        if not file.exists() or folder.stat().st_ino != place:
            raise busy  # It was replaced by another run while this process waited.
        yield
    finally:
        lock.release()


def beside(out: Path, ending: str) -> Path:
    """Path of the hidden folder beside a run with this ending."""
    return out.with_name(f".{out.name}.{ending}")


def with_links_resolved(out: str | Path) -> Path:
    """Path of a run as the user named it, with a link resolved, since links are never renamed themselves."""
    out = user_path("out", out)
    return Path(os.path.realpath(out)) if out.is_symlink() or out.name in ("", "..") else out


def under_way(out: str | Path) -> Path:
    """Path at which the run for `out` is sampled: a hidden folder beside it while the run replaces another."""
    new = beside(with_links_resolved(out), REPLACEMENT)
    return new if new.exists() else user_path("out", out)


def recovered(out: str | Path) -> Path:
    """Path of a run to be sampled, with links resolved, after what killed processes left is put back or removed.

    Raises RunError if there cannot be a run at the path, for example in the working directory of this process.
    """
    out = with_links_resolved(out)
    if out.is_symlink():
        raise RunError(f"out must be a folder, got {out}, a link that leads to itself")
    try:
        str(out).encode()
    except UnicodeEncodeError:
        raise RunError(f"out must be a name in UTF-8, got {str(out)!r}") from None
    if above := next(filter(Path.is_file, out.parents), None):
        raise RunError(f"out must be in a folder, got {out}, but {above} is a file")
    here = Path(os.path.realpath(out))
    if here == Path.cwd() or here in Path.cwd().parents:
        raise RunError(f"out must be a folder other than the one that this command runs in, got {out}")
    replaced = beside(out, REPLACED)
    with suppress(RunBusy, FileNotFoundError):
        # A process was killed between the two renames of `replace`.
        if replaced.exists() and _no_more_than_a_lock(out):
            with locked(replaced, 0):
                # Another may have put it back before this one had the lock.
                if (replaced / "zarr.json").exists() and _no_more_than_a_lock(out):
                    _restore(replaced, out)
    clean(out)
    return out


def clean(out: Path) -> None:
    """Delete what killed processes left beside a run, but for a replacement that was begun; and the run that it replaced."""
    for leftover in (beside(out, REPLACED), beside(out, UNFINISHED), beside(beside(out, REPLACEMENT), UNFINISHED)):
        with suppress(RunBusy, OSError):  # It is deleted before the next run is sampled here.
            if leftover.exists():
                remove(leftover)


def is_free(out: Path) -> bool:
    """Whether there is nothing at a path, or an empty folder."""
    return not out.exists() or (out.is_dir() and not any(out.iterdir()))


def replace(new: Path, out: Path) -> None:
    """Replace a run, which the caller has locked, by a complete new one; the old run is left for `clean` to delete."""
    replaced = beside(out, REPLACED)
    out.rename(replaced)
    try:
        new.rename(out)
    except BaseException:
        if _no_more_than_a_lock(out):
            _restore(replaced, out)
        raise
    sync_folder(out.parent)


def _no_more_than_a_lock(out: Path) -> bool:
    """Whether nothing is at a path but what a reader makes there that tests the lock between two renames."""
    return {path.name for path in out.rglob("*")} <= {FOLDER, "lock"} and not out.is_file()


def _restore(replaced: Path, out: Path) -> None:
    """Give a replaced run its name back."""
    if out.exists():
        shutil.rmtree(out)
    replaced.rename(out)


def remove(folder: Path) -> None:
    """Delete a run or a partial run, its lock last; raises RunBusy if it is being written."""
    (folder / FOLDER).mkdir(exist_ok=True)
    with locked(folder, 0):
        for path in sorted(folder.iterdir(), key=lambda path: path.name == FOLDER):
            if path.is_symlink() or not path.is_dir():
                path.unlink(missing_ok=True)
            else:
                shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):  # Another process may have begun a run in the folder.
        folder.rmdir()


def runs_in(folder: str | Path) -> list[Path]:
    """Paths of all runs in a folder, or of the folder itself if it is a run.

    Raises RunError if there is none, OSError if the folder cannot be read.
    """
    folder = user_path("folder", folder)
    runs = []
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if "zarr.json" in files or (Path(place) / FOLDER / "lock").exists():
            folders.clear()
            runs.append(Path(place))
        # Links may lead in circles: of what they lead to, runs alone are looked at.
        runs += [
            path for name in folders if (path := Path(place, name)).is_symlink() and (path / "zarr.json").is_file()
        ]
    if not runs:
        why = "is not a folder"
        if folder.is_dir():
            why = "holds none"
            os.scandir(folder).close()  # `os.walk` passes over a folder that it may not read.
        raise RunError(f"folder must be a run or hold runs, got {folder}, which {why}")
    return runs
