"""Effective sample size of U per second: collapsed NUTS against weight-space NUTS, path level and token level, in one run.

Run with `uv run python benchmarks/effective_draws.py`; it takes about five minutes. `--attention` makes the table of a model
whose queries and keys are sampled too, in about twenty minutes.

A token chain and a path chain follow the same law, since both compute the same function; they differ in the cost of a
leapfrog step. So the effective sample size for each step is taken from path chains, and seconds for each step from chains
whose step is fixed. Weight-space warm-up is not counted, the collapsed one is. With `--attention` no warm-up is counted, and
a leapfrog step is taken to cost as much with a low-rank metric, or of a tempered replica, as of the chain by NUTS.
"""

import resource
import subprocess
import sys
import time
from typing import Any

import arviz_stats
import blackjax
import jax
import numpy as np
import xarray as xr

import bayesattn as ba
from bayesattn import tasks

CHAINS = 2
USABLE_RHAT = 1.05
"""Largest R-hat at which a rate is shown."""
TOKEN_RUNS = {10: {"warmup": 300, "draws": 300}, 100: {"warmup": 100, "draws": 60}}
"""Warm-up and draws of all-weights NUTS with sampled attention, at each width."""
STEPS_A_DRAW = 31
"""Of the chains that only measure the cost of a leapfrog step: full trees of depth 5."""


def least_effective(tree) -> float:
    """Effective sample size of the entry of U where it is least."""
    return float(arviz_stats.ess(tree["posterior"].to_dataset()["order_parameter"]).values.min())


def timed_sample(model: ba.Model | ba.AttentionModel, *, warmup: int, draws: int, **run):
    """Draws and seconds, the second time around so that everything is compiled."""
    for count in (2, draws):
        start = time.perf_counter()
        tree = ba.sample(model, chains=CHAINS, seed=1, warmup=warmup, draws=count, **run)
        seconds = time.perf_counter() - start
    return tree, seconds


def seconds_a_step(model: ba.Model | ba.AttentionModel, parameterisation: str, draws: int) -> float:
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


def identifiable(tree) -> xr.Dataset:
    """Quantities that do not change if heads of a layer change places: predictions, tr U, and its paths' shares, sorted."""
    draws = tree["posterior"].to_dataset()
    own = np.einsum("cdpp->cdp", draws["order_parameter"].values)
    total = xr.DataArray(own.sum(-1), dims=("chain", "draw"))
    shares = xr.DataArray(np.sort(own, axis=-1), dims=("chain", "draw", "place")) / total
    return xr.Dataset({"prediction": draws["prediction"], "total": total, "shares": shares[..., :-1]})


def with_low_rank_metric(model: ba.AttentionModel, warmup: int):
    """BlackJAX's NUTS with a low-rank metric, adapted on one chain."""
    density, keys = model.log_density("collapsed"), jax.random.split(jax.random.key(0))
    adaptation: Any = blackjax.window_adaptation_low_rank(blackjax.nuts, density.function)
    (_, parameters), _ = adaptation.run(keys[0], density.initial(keys[1]), num_steps=warmup)
    nuts = blackjax.nuts(density.function, **parameters)
    return nuts.init, nuts.step


def with_attention() -> None:
    """Print the table of a model whose queries and keys are sampled too."""
    task = tasks.HiddenMarkov(examples=30, test_examples=20, tokens=6, dimension=6, noise_orthogonal=0.3)
    data = task.dataset()
    print("| N | sampler | effective draws a second | a 1000 gradients | R-hat |\n| --- | --- | --- | --- | --- |")
    for width in TOKEN_RUNS:
        model = ba.AttentionModel(
            inputs=data.inputs,
            labels=data.labels,
            test_inputs=data.test_inputs,
            heads=(2, 2),
            widths=(width,) * 3,
            key_width=4,
            query_variance=0.3,
            key_variance=0.3,
            temperature=0.1,
        )
        cost = {name: seconds_a_step(model, name, 20) for name in model.parameterisations}
        runs = {
            "token NUTS": ("token", "nuts", TOKEN_RUNS[width]),
            "collapsed NUTS": ("collapsed", "nuts", {"warmup": 400, "draws": 1000}),
            "collapsed, low-rank metric": (
                "collapsed",
                with_low_rank_metric(model, 500),
                {"warmup": 100, "draws": 1000},
            ),
            "collapsed, tempered": ("collapsed", "tempered", {"warmup": 200, "draws": 300}),
        }
        for title, (parameterisation, sampler, run) in runs.items():
            tree = ba.sample(model, sampler, parameterisation, chains=2 * CHAINS, seed=1, progress=False, **run)
            found = identifiable(tree)
            least = min(float(each.min()) for each in arviz_stats.ess(found).values())
            rhat = max(float(each.max()) for each in arviz_stats.rhat(found).values())
            a_step = least / float(tree["sample_stats"].to_dataset()["n_steps"].sum())
            rates = f"{a_step / cost[parameterisation]:.3g} | {1000 * a_step:.3g}" if rhat <= USABLE_RHAT else "- | -"
            print(f"| {width} | {title} | {rates} | {rhat:.3f} |", flush=True)


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
    if "--attention" in sys.argv[1:]:
        with_attention()
        return
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
    cost_of_width(int(sys.argv[1])) if sys.argv[1:] and sys.argv[1].isdigit() else main()
