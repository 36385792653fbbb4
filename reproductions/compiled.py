"""Options of XLA for programs that are compiled more than they run."""

import os
from importlib.metadata import version


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
