"""Where runs stand: found in folders, taking the place of others, what a process that was killed left beside them."""

import os
import re
import shutil
import time
import uuid
from contextlib import suppress
from pathlib import Path

from bayesattn._files import sync_folder, user_path
from bayesattn.runs.store import FOLDER, RunBusy, RunError, locked

STALE_SECONDS = 60
"""Age at which a folder that was never locked is a leftover: a living process locks it within moments."""


def settled(out: str | Path) -> Path:
    """Where a run is to stand: links followed, and tidied up after processes that were killed while they made it.

    Raises RunError where a run cannot stand, such as in the folder that this process works in.
    """
    out = followed(out)
    _require_possible(out)
    here = Path(os.path.realpath(out))
    if here == Path.cwd() or here in Path.cwd().parents:
        raise RunError(f"out must be a folder other than the one that this command runs in, got {out}")
    for old in _left_beside(out, "old"):
        try:
            with _lock_if_any(old):
                if not out.exists():
                    old.rename(out)  # Killed between the two renames of `swap`.
                else:
                    shutil.rmtree(old, ignore_errors=True)
        except RunBusy:
            pass
    for new in [*_left_beside(out, "new"), *_left_beside(replacement(out), "new")]:
        try:
            if (new / FOLDER / "lock").exists() or time.time() - new.stat().st_mtime > STALE_SECONDS:
                with _lock_if_any(new):
                    shutil.rmtree(new, ignore_errors=True)
        except (RunBusy, OSError):
            pass  # Its maker is at work, or has just renamed it.
    return out


def _left_beside(out: Path, ending: str) -> list[Path]:
    """What a process that made or replaced this run may have left; folders of a like name are someone else's."""
    pattern = re.compile(rf"\.{re.escape(out.name)}\.[0-9a-f]{{32}}\.{ending}", re.DOTALL)
    with suppress(FileNotFoundError):
        return sorted(path for path in out.parent.iterdir() if pattern.fullmatch(path.name))
    return []


def _require_possible(out: Path) -> None:
    if out.is_symlink():
        raise RunError(f"out must be a folder, got {out}, a link that leads to itself")
    try:
        str(out).encode()
    except UnicodeEncodeError:
        raise RunError(f"out must be a name in UTF-8, got {str(out)!r}") from None
    above = next((folder for folder in out.parents if os.path.lexists(folder)), out.parent)
    if above.exists() and not above.is_dir():
        raise RunError(f"out must be in a folder, got {out}, but {above} is a file")


def followed(out: str | Path) -> Path:
    """A place as it was named, but for links, which are never renamed themselves."""
    out = user_path("out", out)
    return Path(os.path.realpath(out)) if out.is_symlink() or out.name in ("", "..") else out


def is_free(out: Path) -> bool:
    """Whether nothing stands at a place but perhaps an empty folder."""
    return not out.exists() or (out.is_dir() and not any(out.iterdir()))


def require_replaceable(out: Path) -> None:
    """Raise RunError unless what stands at a place is a run, be it damaged; RunBusy if one is being written."""
    if not (out / "zarr.json").is_file() or not (out / FOLDER).is_dir():
        raise RunError(f"out must be a run, which overwriting replaces, got {out}, which is something else")
    with locked(out, 0):
        pass


def replacement(out: Path) -> Path:
    """Where a run that is to replace another is drawn."""
    return out.with_name(f".{out.name}.replacement")


def swap(new: Path, out: Path) -> None:
    """Put a complete run in the place of another, which is gone only then; the caller holds the lock of the new one."""
    with locked(out, 0):
        old = out.with_name(f".{out.name}.{uuid.uuid4().hex}.old")
        out.rename(old)
        try:
            new.rename(out)
        except BaseException:
            if not out.exists():
                old.rename(out)
            raise
        sync_folder(out.parent)
    shutil.rmtree(old, ignore_errors=True)


def remove(path: Path) -> None:
    """Delete a run that is of no use; raises RunBusy while it is being written."""
    with _lock_if_any(path):
        doomed = path.with_name(f".{path.name}.{uuid.uuid4().hex}.new")  # `settled` deletes what is left of it.
        path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def found_in(folder: str | Path) -> list[Path]:
    """Every run in a folder, or the run that it is; raises RunError if there is none."""
    folder = user_path("folder", folder)
    if not folder.is_dir():
        raise RunError(f"folder must be a run or hold runs, got {folder}, which is not a folder")
    runs = []
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if "zarr.json" in files or (Path(place) / FOLDER / "lock").exists():
            folders.clear()
            runs.append(Path(place))
    if not runs:
        raise RunError(f"folder must be a run or hold runs, got {folder}, which holds none")
    return runs


def _lock_if_any(folder: Path):
    (folder / FOLDER).mkdir(exist_ok=True)
    return locked(folder, 0)
