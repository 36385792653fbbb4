"""Seconds per gradient of `bayesattn.sample` over those of NumPyro's `MCMC.run`, for the same kernel and posterior.

Run with `uv run python benchmarks/overhead.py`; it takes about ten minutes. `MCMC.run` traces its program whenever it is
called, so the time of a short run is subtracted from that of a long one, of both, and compiled programs come from a
folder: what is subtracted is small. One chain each, NUTS of NumPyro's, U kept.
"""

import statistics
import tempfile
import time
from collections.abc import Callable

import jax
from numpyro.infer import MCMC, NUTS

import bayesattn as ba

WARMUP, REPEATS = 200, 5


def bare(model: ba.Model, draws: int) -> tuple[float, int]:
    """Seconds and gradients of `MCMC.run`."""
    kernel = NUTS(model.numpyro("collapsed"), adapt_mass_matrix=False)
    mcmc = MCMC(kernel, num_warmup=WARMUP, num_samples=draws, progress_bar=False)
    start = time.perf_counter()
    mcmc.run(jax.random.key(0), extra_fields=("num_steps",))
    jax.block_until_ready(mcmc.get_samples())
    return time.perf_counter() - start, int(mcmc.get_extra_fields()["num_steps"].sum())


def ours(model: ba.Model, draws: int) -> tuple[float, int]:
    """Seconds and gradients of `bayesattn.sample`."""
    settings = {"chains": 1, "warmup": WARMUP, "keep": ("order_parameter",), "progress": False}
    start = time.perf_counter()
    tree = ba.sample(model, NUTS, options={"adapt_mass_matrix": False}, draws=draws, seed=0, **settings)
    return time.perf_counter() - start, int(tree["sample_stats"].to_dataset()["n_steps"].sum())


def seconds_per_gradient(run: Callable[[ba.Model, int], tuple[float, int]], model: ba.Model, draws: int) -> float:
    """Difference of a run of this many draws and one of a hundredth."""
    (short, few), (long, many) = run(model, draws // 100), run(model, draws)
    return (long - short) / (many - few)


def main() -> None:
    folder = tempfile.TemporaryDirectory()
    jax.config.update("jax_compilation_cache_dir", folder.name)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    print("| model | MCMC.run (us a gradient) | bayesattn.sample | ratio |\n| --- | --- | --- | --- |")
    models = {"two_heads": (ba.reference.load("two_heads").model, 200_000)}
    models |= {"two_layers": (ba.reference.load("two_layers").model, 200_000)}
    models |= {"hidden_markov, N = 10": (ba.load_model("hidden_markov", width=10), 2_000)}
    for name, (model, draws) in models.items():
        model = model.replace(test_path_inputs=None, test_labels=None)
        for run in (bare, ours):
            seconds_per_gradient(run, model, draws)  # Compiles.
        times = [[seconds_per_gradient(run, model, draws) for run in (bare, ours)] for _ in range(REPEATS)]
        ratios = [mine / theirs for theirs, mine in times]
        theirs, mine = (1e6 * statistics.median(each) for each in zip(*times, strict=True))
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"| {name} | {theirs:.2f} | {mine:.2f} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
