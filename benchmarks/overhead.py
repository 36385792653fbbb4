"""Seconds per gradient of `bayesattn.sample` over those of NumPyro's `MCMC.run`, for the same kernel and posterior.

Run with `uv run python benchmarks/overhead.py`; it takes about five minutes. `MCMC.run` compiles whenever it is called,
so the time of a short run is subtracted from that of a long one, of both. One chain each, NUTS of NumPyro's, U kept.
"""

import statistics
import time
from collections.abc import Callable

import jax
from numpyro.infer import MCMC, NUTS

import bayesattn as ba

WARMUP, SHORT, LONG, REPEATS = 200, 2000, 102_000, 5


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


def seconds_per_gradient(run: Callable[[ba.Model, int], tuple[float, int]], model: ba.Model) -> float:
    """Difference of a long and a short run."""
    (short, few), (long, many) = run(model, SHORT), run(model, LONG)
    return (long - short) / (many - few)


def main() -> None:
    print("| model | MCMC.run (us a gradient) | bayesattn.sample | ratio |\n| --- | --- | --- | --- |")
    models = {"two_heads": ba.reference.load("two_heads").model, "two_layers": ba.reference.load("two_layers").model}
    models |= {"hidden_markov, N = 10": ba.load_model("hidden_markov", width=10)}
    for name, model in models.items():
        model = model.replace(test_path_inputs=None, test_labels=None)
        ours(model, SHORT)  # Compiles.
        times = [(seconds_per_gradient(bare, model), seconds_per_gradient(ours, model)) for _ in range(REPEATS)]
        ratios = [mine / theirs for theirs, mine in times]
        theirs, mine = (1e6 * statistics.median(each) for each in zip(*times, strict=True))
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"| {name} | {theirs:.2f} | {mine:.2f} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
