"""Cache of compiled programs in the user's cache folder, so that a command starts quickly the second time."""

import hashlib
import os
import platform
from contextlib import suppress
from pathlib import Path

import platformdirs

LEAST_COMPILE_SECONDS = "0.03"
"""Compile time in seconds below which a program is not cached."""
MOST_CACHE_BYTES = str(2**30)
"""Largest size of the cache in bytes; the least recently used programs are deleted first."""


def keep_compiled() -> None:
    """Set the cache folder of JAX, which must not be imported yet.

    JAX's own environment variables have priority: with JAX_ENABLE_COMPILATION_CACHE=false nothing is cached.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    # Compiled programs are for one kind of processor, but several machines may share a home directory.
    with suppress(OSError, RuntimeError):  # Skip caching if no directory is writable, or there is no home directory.
        name = f"compiled-{hashlib.sha256(processor()).hexdigest()[:8]}"
        folder = Path(platformdirs.user_cache_dir("bayesattn")) / name
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            return
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", LEAST_COMPILE_SECONDS)
        os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", MOST_CACHE_BYTES)


def processor() -> bytes:
    """What Linux says of the processor and its instructions, or the name that Python has for it."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_bytes().split(b"\n\n")[0].splitlines()
        return b"\n".join(
            line for line in lines if line.startswith((b"model name", b"flags", b"Features", b"CPU part"))
        )
    return platform.processor().encode()
