"""What runs on disk cost: storing, blocks against one long scan, and memory as draws grow.

Run with `uv run python benchmarks/runs.py`.
"""

import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from threadpoolctl import threadpool_limits
from timing import interleaved_seconds

import bayesattn as ba
from bayesattn import runs
from bayesattn.samplers import Job
from bayesattn.samplers.blocks import advance, plan
from bayesattn.samplers.run import InMemory

WARMUP, DRAWS, REPEATS = 200, 2000, 20


def storing() -> None:
    """The same job into memory and onto disk, in turn, from the same plan."""
    model = ba.load_model("hidden_markov")
    with tempfile.TemporaryDirectory() as folder:
        count = 0

        def on_disk():
            nonlocal count
            count += 1
            return runs.sample(model, Path(folder) / str(count), warmup=WARMUP, draws=DRAWS).path

        seconds = interleaved_seconds(
            {
                "memory": lambda: ba.sample(model, warmup=WARMUP, draws=DRAWS)["posterior"]["order_parameter"].values,
                "disk": lambda: on_disk() and None,
            },
            repeats=7,
        )
    extra = 100 * (seconds["disk"] / seconds["memory"] - 1)
    print(
        f"default model, 4 chains of {WARMUP} + {DRAWS}: memory {seconds['memory']:.2f} s, disk {seconds['disk']:.2f} s,"
    )
    print(f"storing costs {extra:.1f} % of sampling time")


def blocks() -> None:
    """One chain in blocks, against one uninterrupted scan of the same steps from the same state."""
    model, job = ba.load_model("hidden_markov"), Job(chains=1, warmup=0, draws=DRAWS, keep=("order_parameter",))
    ready = plan(model, job)
    key = jax.random.split(jax.random.key(0), 1)[0]
    state = ready.program.start(key, ready.posterior)

    def whole():
        return jax.block_until_ready(ready.program.block(state, ready.posterior, DRAWS, True, 1, DRAWS))[1]

    def in_blocks():
        recorder = InMemory(job, ready.shapes)
        advance(ready, job, recorder)
        return recorder.outputs

    assert jnp.array_equal(whole()["posterior"]["bartlett"], in_blocks()["posterior"]["bartlett"])
    # Lower quartiles in random order, and the scan a second time: that difference is what the machine cannot tell.
    calls = {"scan": whole, "scan again": whole, "blocks": in_blocks}
    times: dict[str, list[float]] = {name: [] for name in calls}
    with threadpool_limits(1, user_api="blas"):
        for name in random.Random(0).sample([*calls] * REPEATS, REPEATS * len(calls)):
            began = time.perf_counter()
            calls[name]()
            times[name].append(time.perf_counter() - began)
    scan, again, in_block_time = (float(np.quantile(times[name], 0.25)) for name in calls)
    print(f"one chain of {DRAWS}, lower quartiles of {REPEATS}: one scan {scan:.3f} s;", end=" ")
    print(f"blocks {100 * (in_block_time / scan - 1):+.1f} %, the same scan again {100 * (again / scan - 1):+.1f} %")


def memory() -> None:
    """Greatest memory of a job of its own, at 1000 and 10,000 draws."""
    peaks = {}
    for draws in (1000, 10_000):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, str(draws), folder]
            peaks[draws] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"{draws} draws: greatest memory {peaks[draws] / 2**20:.2f} GiB")
    print(f"10,000 against 1000 draws: {100 * (peaks[10_000] / peaks[1000] - 1):+.1f} % memory")


def one_job(draws: int, folder: str) -> None:
    """What `bayesattn sample` does, in this process; prints its greatest memory in KiB."""
    run = runs.sample(ba.load_model("hidden_markov"), Path(folder) / "run", warmup=WARMUP, draws=draws)
    run.summary()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        one_job(int(sys.argv[1]), sys.argv[2])
    else:
        blocks()
        storing()
        memory()
