"""Where files are, as users name them, and how the package writes them: as a whole or not at all, and onto the disk."""

import math
import os
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from bayesattn._util.errors import BayesattnError

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(:/|::[A-Za-z][A-Za-z0-9+.-]+:/)")
"""How a URL begins, fsspec's chains of them included; of its slashes `Path` leaves one. Windows' drives have one letter."""


def user_path(name: str, path: Any) -> Path:
    """The path that a user names, `~` and `~user` expanded; whatever a user names goes through here.

    Raises ValueError if it is none of a file on this machine, such as a URL; `name` is what the user calls it.
    """
    try:
        text = os.fspath(path)
    except TypeError:
        text = None
    if not isinstance(text, str) or not text or "\0" in text:
        raise BayesattnError(f"{name} must be a path, got {path!r}")
    if URL.match(text):
        raise BayesattnError(f"{name} must be a path on this machine, got {text!r}, a URL, which is not served")
    expanded = os.path.expanduser(text)
    if text.startswith("~") and expanded == text:
        user = Path(text).parts[0]
        raise BayesattnError(
            f"{name} must begin with a folder that is there, got {text!r}, and {user} has no home folder here"
        )
    # A folder that is called `~` is not to be taken for a home by whoever expands the path again.
    return Path.cwd() / expanded if str(Path(expanded)).startswith("~") else Path(expanded)


def replace_file(file: Path, content: bytes) -> None:
    """Write a file that is there as a whole or not at all, whoever else writes it and whenever the machine stops."""
    partial = file.with_name(f".{file.name}.{uuid.uuid4().hex}.partial")
    try:
        with partial.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, file)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
    sync_folder(file.parent)


def require_new(name: str, path: str | Path, otherwise: str = "choose another") -> None:
    """Raise FileExistsError if something stands at a path, be it a link to nowhere."""
    if os.path.lexists(path):
        raise FileExistsError(f"{name} must not exist yet, got {path}, which does; {otherwise}")


def finite(value: Any) -> Any:
    """Plain values as JSON has them: None for numbers that are not finite."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def append_line(file: Path, line: str) -> None:
    """Append to a log; a line that an earlier end cut short does not swallow this one."""
    with file.open("a+b") as stream:
        if stream.tell():
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                line = "\n" + line
        stream.write(line.encode() + b"\n")


def sync(folder: Path) -> None:
    """Bring a folder, and all files and folders in it, onto the disk."""
    if os.name == "posix":
        with ThreadPoolExecutor() as pool:
            list(pool.map(_sync, [folder, *folder.rglob("*")]))


def sync_folder(folder: Path) -> None:
    """Bring names in a folder onto the disk; Windows, which opens no folders, needs no such thing."""
    if os.name == "posix":
        _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
