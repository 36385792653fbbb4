"""Warm, blocked, interleaved timings: medians of one run, so that ratios survive a noisy machine."""

import time
from collections.abc import Callable
from statistics import median

import jax


def interleaved_seconds(calls: dict[str, Callable], repeats: int = 15) -> dict[str, float]:
    """Median seconds per call of each function, all of them called in turn; the first round, which compiles, is left out."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            if repeat:
                times[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in times.items()}
