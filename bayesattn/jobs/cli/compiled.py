"""Cache of compiled programs in the user's cache folder, so that a command starts quickly the second time."""

import hashlib
import os
import platform
from contextlib import suppress
from importlib.metadata import version
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


def compile_quickly(level: int = 1) -> None:
    """Reduce the optimisation by XLA, before the first compilation, for commands that compile more than they run.

    XLA then compiles in less than half of the time, to the same functions up to rounding; at level 0 it compiles even
    faster, to slower functions. One thread compiles each program: it needs four fifths of the CPU time of many threads,
    and other processes compile too. The user's own settings are kept. Other versions of jaxlib are left unchanged, because
    they may not have these settings.
    """
    if version("jaxlib").startswith("0.10."):
        os.environ.setdefault(
            "XLA_FLAGS",
            f"--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level={level}"
            " --xla_cpu_parallel_codegen_split_count=1",
        )


def processor() -> bytes:
    """What Linux says of the processor and its instructions, or the name that Python has for it."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_bytes().split(b"\n\n")[0].splitlines()
        return b"\n".join(
            line for line in lines if line.startswith((b"model name", b"flags", b"Features", b"CPU part"))
        )
    return platform.processor().encode()
