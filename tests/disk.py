"""A disk that fails, or a process that dies, at a chosen write: a layer over the public functions that write files."""

import builtins
import io
import os
import threading
from pathlib import Path

WRITES = ("mkdir", "replace", "rename", "link", "fsync")


class Disk:
    """Counts the writes to files under a folder, and calls `fault` instead of number `at`, counted from 1, or of `moved`.

    Writes are files opened for writing, folders made, names changed, links, and files brought onto the disk. `fault` gets
    the name of the function, the path, and the function that does it; `moved` is a path that is given another name.
    """

    def __init__(self, folder, fault=None, at=None, moved=None):
        self.folder, self.fault, self.at, self.moved = os.path.realpath(folder), fault, at, moved
        self.count, self.armed, self.lock = 0, True, threading.Lock()

    def patch(self, setattr_):
        """By `setattr_(owner, name, value)`, such as that of pytest's monkeypatch."""
        for name in WRITES:
            setattr_(os, name, self._watched(name, getattr(os, name)))
        setattr_(io, "open", self._opened(io.open))
        setattr_(builtins, "open", self._opened(builtins.open))

    def _due(self, name, path):
        if name == "rename" and path == self.moved:
            return True
        if not isinstance(path, int):
            path = os.path.realpath(os.path.dirname(os.fspath(path)))
            if not (path + os.sep).startswith(self.folder + os.sep):
                return False
        with self.lock:
            if not self.armed:
                return False
            self.count += 1
            return self.count == self.at

    def _watched(self, name, function):
        def watched(path, *arguments, **options):
            def act():
                return function(path, *arguments, **options)

            return self.fault(name, path, act) if self._due(name, path) else act()

        return watched

    def _opened(self, function):
        def watched(path, mode="r", *arguments, **options):
            def act():
                return function(path, mode, *arguments, **options)

            writes = set(mode) & set("wax+") and isinstance(path, str | Path)
            return self.fault("open", path, act) if writes and self._due("open", path) else act()

        return watched


def failing(number):
    """A fault: the write fails with an error of the operating system."""

    def fault(name, path, act):
        raise OSError(number, os.strerror(number), str(path))

    return fault


def dying(part, die):
    """A fault: the process dies before the write, in the midst of a file, or after it."""

    def fault(name, path, act):
        try:
            if part:
                result = act()
                if name == "open":
                    result.write(b"half of it")
                    result.flush()
        finally:  # A folder may be there already, which is an error that callers expect.
            die()

    return fault
