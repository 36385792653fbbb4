"""Paths given by users, and atomic, durable writes of files."""

import math
import os
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from bayesattn.errors import BayesattnError

OPENERS: list[str] = []
"""Names of modules that, when imported, register with `bayesattn.models.draws.stored` who opens folders."""
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(:/|::[A-Za-z][A-Za-z0-9+.-]+:/)")
"""Beginning of a URL, or of a chain of URLs (fsspec). `Path` collapses two slashes to one. A Windows drive has one letter.
"""


def user_path(name: str, path: Any) -> Path:
    """Path given by a user, with `~` and `~user` expanded; every path given by a user passes through here.

    Raises ValueError if it is not a path on this machine, for example a URL; the message calls the argument `name`.
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
    # Expanding the path again must not mistake a folder named `~` for a home folder.
    return Path.cwd() / expanded if str(Path(expanded)).startswith("~") else Path(expanded)


def replace_file(file: Path, content: bytes) -> None:
    """Write a file atomically, even if other processes write it too or the machine stops."""
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
    """Raise FileExistsError if a path exists, even as a broken link."""
    if os.path.lexists(path):
        raise FileExistsError(f"{name} must not exist yet, got {path}, which exists; {otherwise}")


def finite(value: Any) -> Any:
    """Plain values for JSON, with None for numbers that are not finite, which JSON cannot represent."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def append_line(file: Path, line: str) -> None:
    """Append a line to a log; it begins on a new line even if the previous one was cut short."""
    with file.open("a+b") as stream:
        if stream.tell():
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                line = "\n" + line
        stream.write(line.encode() + b"\n")


def sync(folder: Path) -> None:
    """Flush a folder, and all files and folders in it, to the disk."""
    if os.name == "posix":
        with ThreadPoolExecutor() as pool:
            list(pool.map(_sync, [folder, *folder.rglob("*")]))


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk; Windows cannot open folders and does not need it."""
    if os.name == "posix":
        _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
