"""What JAX compiles is kept in the user's cache folder, so that the same command starts quickly the second time."""

import hashlib
import os
import platform
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import platformdirs

SECONDS = "0.03"
"""What compiled faster than that is not kept."""
BYTES = str(2**30)
"""Most that is kept: what was not used for longest goes first."""


def keep_compiled() -> None:
    """Tell JAX, which is not imported yet, where to keep it.

    JAX's own variables come first: with JAX_ENABLE_COMPILATION_CACHE=false nothing is kept.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    # Compiled programs are those of one kind of processor, and a home may be that of many machines.
    with suppress(OSError, RuntimeError):  # Whoever has no place for a cache, or no home, does without.
        name = f"compiled-{hashlib.sha256(_processor()).hexdigest()[:8]}"
        folder = Path(platformdirs.user_cache_dir("bayesattn")) / name
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            return
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", SECONDS)
        os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", BYTES)


def compile_quickly(level: int = 1) -> None:
    """Tell XLA, which has compiled nothing yet, to optimise little: for commands that compile more than they run.

    It compiles in less than half of the time, to the same functions but for rounding; at level 0 faster still, to slower
    ones. Each program is compiled by one thread, in four fifths of the CPU time that many take: other processes do the same.
    Other versions, which may not know these settings, are left alone, and so are the user's own settings.
    """
    if version("jaxlib").startswith("0.10."):
        os.environ.setdefault(
            "XLA_FLAGS",
            f"--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level={level}"
            " --xla_cpu_parallel_codegen_split_count=1",
        )


def _processor() -> bytes:
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_bytes().split(b"\n\n")[0].splitlines()
        return b"\n".join(
            line for line in lines if line.startswith((b"model name", b"flags", b"Features", b"CPU part"))
        )
    return platform.processor().encode()
