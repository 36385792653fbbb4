"""Cache of compiled programs in the user's cache folder, so that whoever starts again need not compile again."""

import hashlib
import os
import platform
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import platformdirs

LEAST_COMPILE_SECONDS = "0.03"
"""Compile time in seconds below which a program is not cached."""
MOST_CACHE_BYTES = str(2**30)
"""Largest size of the cache in bytes; the least recently used programs are deleted first."""


def keep_compiled() -> Path | None:
    """Keep compiled programs in the user's cache folder, for this process and those that come after it.

    Most of the first seconds of a session are spent on compilation. Programs of up to 1 GiB are kept; those used least
    recently are deleted first. JAX's own settings have priority: where it has a cache already, by JAX_COMPILATION_CACHE_DIR
    or else, nothing changes, and with JAX_ENABLE_COMPILATION_CACHE=false nothing is kept. The command `bayesattn` keeps its
    programs without being asked.

    Returns:
        The folder; None if nothing changes, or if no folder is writable.
    """
    jax = sys.modules.get("jax")
    if "JAX_COMPILATION_CACHE_DIR" in os.environ or (jax is not None and jax.config.jax_compilation_cache_dir):
        return None
    # Compiled programs are for one kind of processor, but several machines may share a home directory.
    with suppress(OSError, RuntimeError):  # Skip caching if no directory is writable, or there is no home directory.
        name = f"compiled-{hashlib.sha256(processor()).hexdigest()[:8]}"
        folder = Path(platformdirs.user_cache_dir("bayesattn")) / name
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            return None
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", LEAST_COMPILE_SECONDS)
        os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", MOST_CACHE_BYTES)
        if jax is not None:
            _tell(jax)
        return folder
    return None


def _tell(jax: Any) -> None:
    """Give JAX, which reads the environment when it is imported, the values that are there now."""
    from jax.experimental.compilation_cache import compilation_cache

    jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
    least = float(os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", least)
    jax.config.update("jax_compilation_cache_max_size", int(os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"]))
    compilation_cache.reset_cache()  # JAX decides once, at its first compilation, whether it has a cache.


def processor() -> bytes:
    """What Linux says of the processor and its instructions, or the name that Python has for it."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_bytes().split(b"\n\n")[0].splitlines()
        return b"\n".join(
            line for line in lines if line.startswith((b"model name", b"flags", b"Features", b"CPU part"))
        )
    return platform.processor().encode()
