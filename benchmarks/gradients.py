"""Gradient of the log posterior: token, path and collapsed parameterisation of the hidden Markov model, and the solver.

Run with `uv run python benchmarks/gradients.py`; with `--attention`, of models whose queries and keys are sampled too.
"""

import sys
from typing import Any

import jax
import numpy as np
from numpyro.infer.util import potential_energy
from timing import interleaved_seconds

import bayesattn as ba
from bayesattn.models import parameterisation_of

REPEATS = 100
"""Gradients of each call, so that what the call itself takes counts little."""


def gradient(model: ba.Model | ba.AttentionModel, parameterisation: str):
    """A function that evaluates the gradient `REPEATS` times, from the first point of a chain."""
    kind = parameterisation_of(model, parameterisation)
    prepared: Any = kind.prepare(model)
    posterior = kind.of(model, **prepared)
    sites = posterior.initial(jax.random.key(0))

    @jax.jit
    def many(sites, posterior):
        slope = jax.grad(lambda z: potential_energy(kind.program, (posterior,), {}, z))
        step = lambda _, z: jax.tree.map(lambda a, b: a - 1e-9 * b, z, slope(z))  # noqa: E731
        return jax.lax.fori_loop(0, REPEATS, step, sites)

    return lambda: many(sites, posterior)


def with_attention() -> None:
    """Print the table of models whose queries and keys are sampled too."""
    rng = np.random.default_rng(0)
    data = {"inputs": rng.normal(size=(100, 13, 29)), "labels": np.sign(rng.normal(size=100))}
    print("| N | token | collapsed | token / collapsed |\n| --- | --- | --- | --- |")
    for width in (10, 100, 1000):
        model = ba.AttentionModel(**data, heads=(2, 2), widths=(width,) * 3, key_width=4, temperature=0.1)
        names = ("token", "collapsed") if width < 1000 else ("collapsed",)
        seconds = interleaved_seconds({name: gradient(model, name) for name in names}, repeats=5)
        each = {name: 1e3 * value / REPEATS for name, value in seconds.items()}
        token = f"{each['token']:.2f} ms" if "token" in each else ""
        ratio = f"{each['token'] / each['collapsed']:.1f}" if token else ""
        print(f"| {width} | {token} | {each['collapsed']:.2f} ms | {ratio} |", flush=True)


def main() -> None:
    """Print the table."""
    if "--attention" in sys.argv[1:]:
        with_attention()
        return
    model = ba.load_model("hidden_markov")
    print("| N | token | path | collapsed | token / path | token / collapsed |")
    print("| --- | --- | --- | --- | --- | --- |")
    for width in (10, 100):
        wide = model.replace(width=width)
        seconds = interleaved_seconds({name: gradient(wide, name) for name in model.parameterisations}, repeats=9)
        each = {name: 1e3 * value / REPEATS for name, value in seconds.items()}
        ratios = (each["token"] / each["path"], each["token"] / each["collapsed"])
        print(f"| {width} | " + " | ".join(f"{each[name]:.3f} ms" for name in ("token", "path", "collapsed")), end="")
        print(f" | {ratios[0]:.0f} | {ratios[1]:.0f} |")
    print("\n| N | solver, compiled |\n| --- | --- |")
    for width in (10, 30, 100, 300, 1000):
        wide = model.replace(width=width)
        seconds = interleaved_seconds({"solve": lambda wide=wide: ba.theory.solve(wide)}, repeats=15)
        print(f"| {width} | {1e3 * seconds['solve']:.0f} ms |")


if __name__ == "__main__":
    main()
