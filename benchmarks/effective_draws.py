"""Effective sample size of U per second: collapsed NUTS against weight-space NUTS, path level and token level, in one run.

Run with `uv run python benchmarks/effective_draws.py`; it takes about five minutes.

A token chain and a path chain follow the same law, since both compute the same function; they differ in the cost of a
leapfrog step. So the effective sample size for each step is taken from path chains, and seconds for each step from chains
whose step is fixed. Weight-space warm-up is not counted, the collapsed one is.
"""

import resource
import subprocess
import sys
import time
from typing import Any

import arviz_stats
import numpy as np

import bayesattn as ba

CHAINS = 2
STEPS_A_DRAW = 31
"""Of the chains that only measure the cost of a leapfrog step: full trees of depth 5."""


def least_effective(tree) -> float:
    """Effective sample size of the entry of U where it is least."""
    return float(arviz_stats.ess(tree["posterior"].to_dataset()["order_parameter"]).values.min())


def timed_sample(model: ba.Model, *, warmup: int, draws: int, **run):
    """Draws and seconds, the second time around so that everything is compiled."""
    for count in (2, draws):
        start = time.perf_counter()
        tree = ba.sample(model, chains=CHAINS, seed=1, warmup=warmup, draws=count, **run)
        seconds = time.perf_counter() - start
    return tree, seconds


def seconds_a_step(model: ba.Model, parameterisation: str, draws: int) -> float:
    """Wall time over the leapfrog steps of all chains together."""
    fixed = {"adapt_step_size": False, "adapt_mass_matrix": False, "step_size": 1e-5, "max_tree_depth": 5}
    tree, seconds = timed_sample(model, parameterisation=parameterisation, warmup=0, draws=draws, options=fixed)
    assert (tree["sample_stats"].to_dataset()["n_steps"] == STEPS_A_DRAW).all()
    return seconds / (CHAINS * draws * STEPS_A_DRAW)


def row(model: ba.Model, width: int, path_run: dict[str, Any], token_draws: int) -> str:
    """One line of the table."""
    wide = model.replace(width=width)
    paths = ba.sample(wide, parameterisation="path", chains=CHAINS, seed=1, **path_run)
    effective_a_step = least_effective(paths) / float(paths["sample_stats"].to_dataset()["n_steps"].sum())
    rates = {
        "token": effective_a_step / seconds_a_step(wide, "token", token_draws),
        "path": effective_a_step / seconds_a_step(wide, "path", 500),
    }
    tree, seconds = timed_sample(wide, warmup=200, draws=4000)
    rates["collapsed"] = least_effective(tree) / seconds
    cells = [f"{rates[name]:.3g}" for name in ("token", "path", "collapsed")]
    cells += [f"{rates['collapsed'] / rates[name]:.0f}" for name in ("token", "path")]
    return f"| {width} | {' | '.join(cells)} |"


def cost_of_width(width: int) -> None:
    """Print milliseconds a draw and peak memory of collapsed NUTS at one width; run in a process of its own."""
    model = ba.load_model("hidden_markov", width=width)
    ba.sample(model, chains=1, warmup=200, draws=50)
    times = []
    for seed in range(7):
        start = time.perf_counter()
        tree = ba.sample(model, chains=1, warmup=200, draws=1000, seed=seed)
        times.append((time.perf_counter() - start) / 1200)
    steps = float(tree["sample_stats"].to_dataset()["n_steps"].mean())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"{1e3 * np.median(times):.3f} {peak:.0f} {steps:.2f}")


def main() -> None:
    """Print both tables."""
    # First: a process starts with the peak memory of the one that started it.
    print(
        "Collapsed NUTS, one chain\n\n| N | ms a draw | peak MiB | leapfrog steps a draw |\n| --- | --- | --- | --- |"
    )
    for width in (100, 1_000_000):
        command = [sys.executable, __file__, str(width)]
        cells = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        print(f"| {width} | {' | '.join(cells)} |", flush=True)
    model = ba.load_model("hidden_markov")
    print("\nEffective sample size per second of the entry of U where it is least, two chains on two cores\n")
    print("| N | token NUTS | path NUTS | collapsed NUTS | collapsed / token | collapsed / path |")
    print("| --- | --- | --- | --- | --- | --- |")
    print(row(model, 10, {"warmup": 200, "draws": 400}, 40), flush=True)
    print(row(model, 100, {"warmup": 150, "draws": 200}, 12), flush=True)


if __name__ == "__main__":
    cost_of_width(int(sys.argv[1])) if len(sys.argv) > 1 else main()
