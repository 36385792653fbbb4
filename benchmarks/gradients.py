"""Gradient of the log posterior: token, path and collapsed parameterisation of the hidden Markov model, and the solver.

Run with `uv run python benchmarks/gradients.py`; with `--attention`, of models whose queries and keys are sampled too;
with `--predictions`, what a draw of `predict` and of leave-one-out costs in gradients.
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


def with_predictions() -> None:
    """Print what one draw of `predict` at 100 new inputs, and of leave-one-out, costs in gradients of the chains."""
    rng, draws = np.random.default_rng(0), 500

    def network(examples, heads, features, outputs=1, **settings):
        arch = ba.Architecture(heads, (10,) * (len(heads) + 1), (1.0,) * (len(heads) + 2), outputs=outputs, **settings)
        labels = rng.normal(size=(examples, outputs) if outputs > 1 else examples)
        path_inputs = rng.normal(size=(examples + 100, arch.paths, features))
        model = ba.Model(path_inputs=path_inputs[100:], labels=labels, architecture=arch, temperature=0.1)
        return model, path_inputs[:100]

    def attention(examples, heads, tokens, features):
        inputs, labels = rng.normal(size=(examples + 100, tokens, features)), rng.normal(size=examples)
        shape = {"heads": heads, "widths": (10,) * (len(heads) + 1), "key_width": 4, "temperature": 0.1}
        return ba.AttentionModel(inputs=inputs[100:], labels=labels, **shape), inputs[:100]

    cases = {
        "150 x 3 labels, 4 paths, 8 features": lambda: network(150, (2, 2), 8, 3),
        "the same with skips": lambda: network(150, (2, 2), 8, 3, skips=(1.0, 1.0)),
        "100 labels, 4 paths, 29 features": lambda: network(100, (2, 2), 29),
        "100 labels, 64 paths, 10 features": lambda: network(100, (4, 4, 4), 10),
        "60 labels, sampled attention, 7 tokens, 13 features": lambda: attention(60, (2, 2), 7, 13),
    }
    print("| model | gradient | predict | leave-one-out |\n| --- | --- | --- | --- |")
    for name, case in cases.items():
        model, new = case()
        density = model.log_density("collapsed")
        vectors = jax.vmap(density.initial)(jax.random.split(jax.random.key(0), 2 * draws))
        drawn = ba.from_vectors(np.asarray(vectors).reshape(2, draws, -1), model, "collapsed")
        calls = {"gradient": gradient(model, "collapsed")}
        calls["predict"] = lambda drawn=drawn, new=new: ba.predict(drawn, new).mean
        calls["leave-one-out"] = lambda drawn=drawn: ba.with_groups(drawn, "log_likelihood").attrs
        seconds = interleaved_seconds(calls, repeats=5)
        each = seconds["gradient"] / REPEATS
        costs = " | ".join(f"{seconds[key] / (2 * draws) / each:.1f}" for key in ("predict", "leave-one-out"))
        print(f"| {name} | {1e3 * each:.3f} ms | {costs} |", flush=True)


def main() -> None:
    """Print the table."""
    if "--predictions" in sys.argv[1:]:
        with_predictions()
        return
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
