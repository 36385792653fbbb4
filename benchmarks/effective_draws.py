"""Effective draws of U a second: collapsed NUTS against token-level NUTS as the authors ran it, in one run.

Run with `uv run python benchmarks/effective_draws.py`; it takes about ten minutes, nearly all of them for the token chains.
"""

import resource
import subprocess
import sys
import time

import arviz_stats
import numpy as np

import bayesattn as ba


def effective_per_second(model: ba.Model, parameterisation: str, warmup: int, draws: int) -> tuple[float, float, float]:
    """Least effective draws over the entries of U, seconds of a run with everything compiled, and their ratio."""
    run = {"parameterisation": parameterisation, "chains": 2, "warmup": warmup}
    ba.sample(model, draws=2, **run, options={"max_tree_depth": 1} if parameterisation == "token" else None)
    start = time.perf_counter()
    tree = ba.sample(model, draws=draws, **run, seed=1)
    seconds = time.perf_counter() - start
    effective = float(np.min(arviz_stats.ess(tree["posterior"]["order_parameter"]).values))
    return effective, seconds, effective / seconds


def cost_of_width(width: int) -> None:
    """Print milliseconds a draw and peak memory of collapsed NUTS at one width; run in a process of its own."""
    model = ba.load_model("hidden_markov", width=width)
    ba.sample(model, chains=1, warmup=200, draws=50)
    times = []
    for seed in range(7):
        start = time.perf_counter()
        tree = ba.sample(model, chains=1, warmup=200, draws=1000, seed=seed)
        steps = float(tree["sample_stats"]["n_steps"].mean())
        times.append((time.perf_counter() - start) / 1200)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"{1e3 * np.median(times):.4f} {peak:.0f} {steps:.2f}")


def main() -> None:
    """Print both tables."""
    model = ba.load_model("hidden_markov")
    print("Least effective draws of U a second, two chains on two cores, warm-up included, compilation not\n")
    print("| N | token NUTS | collapsed NUTS | ratio |\n| --- | --- | --- | --- |")
    for width, token_run in ((10, (100, 100)), (100, (60, 60))):
        wide = model.replace(width=width)
        token = effective_per_second(wide, "token", *token_run)
        collapsed = effective_per_second(wide, "collapsed", 200, 2000)
        print(
            f"| {width} | {token[0]:.0f} in {token[1]:.0f} s | {collapsed[0]:.0f} in {collapsed[1]:.1f} s"
            f" | {collapsed[2] / token[2]:.0f} |",
            flush=True,
        )
    print(
        "\nCollapsed NUTS, one chain\n\n| N | ms a draw | peak MiB | leapfrog steps a draw |\n| --- | --- | --- | --- |"
    )
    for width in (100, 1_000_000):
        command = [sys.executable, __file__, str(width)]
        cells = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        print(f"| {width} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    cost_of_width(int(sys.argv[1])) if len(sys.argv) > 1 else main()
