"""How the package writes files: there as a whole or not at all, and on the disk before anything relies on them."""

import ctypes
import hashlib
import math
import os
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any


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


def require_new(name: str, path: str | Path, otherwise: str = "choose another or overwrite it") -> None:
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
    """Bring all that was written to the file system of a folder onto the disk; one call, for a block has many files."""
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None) if os.name == "posix" else None
    if syncfs is None:
        getattr(os, "sync", lambda: None)()
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if syncfs(descriptor):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), str(folder))
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Bring names in a folder onto the disk; Windows, which opens no folders, needs no such thing."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest_of(files: Iterable[Path]) -> str:
    """Twelve hexadecimal digits of the SHA-256 of files, so that a change of code is seen without a new version."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
