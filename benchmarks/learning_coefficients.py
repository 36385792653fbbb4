"""How wrong are estimates of the learning coefficient? Stochastic gradients and weight-space chains against exact values.

    uv run python benchmarks/learning_coefficients.py [--only NETWORK ..] [--out FOLDER] [--page FILE]

writes one JSON file per case as it goes, and goes on where it was stopped; `--page docs/llc.md` writes the page and its
figure of what is there.

Three networks with labels 0 and n = 1,000 or 1,000,000 normal path inputs, n beta = n / log n, so T = log n for
L_n = S / (2n). The prior is Gaussian around the best weights w* = 0, of precision gamma: the localisation of the published
estimator (Lau, Furman, Wang, Murfet and Wei 2023), so exact value and estimate are of one and the same posterior. SGLD
starts at w*, or at a prior draw:

    w <- w - step / 2 (n beta grad L_n(w) + gamma w) + Normal(0, step),

with the gradient of all examples, or of a minibatch; with the preconditioner of Li, Chen, Carlson and Carin (2016), without
its correction term, as it is used. Estimates are n beta (mean L_n - L_n(w*)), L_n of all examples.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.flatten_util import ravel_pytree

import bayesattn as ba
from bayesattn import models
from bayesattn._util.text import with_error
from bayesattn.jobs.plots import save
from bayesattn.jobs.plots.style import palette
from bayesattn.network import network

CHAINS = 10
ARCHITECTURES = {
    "two heads, widths 2 and 6": ((2,), (2, 6), 1),
    "two layers of two heads, width 4": ((2, 2), (4, 4, 4), 1),
    "deep linear, widths 3, 3, two outputs": ((1,), (3, 3), 2),
}
FEATURES = 5
SIZES, GAMMAS = (10**3, 10**6), (1.0, 100.0)
EXACT = "exact: chains of U"
WEIGHT_SAMPLERS = {"mala": {"steps": 20}, "mclmc": {"steps": 20}, "nuts": {}}
"""Samplers of all weights, and options; presets take thousands of steps a draw."""
DECAY, LEAST_SLOPE = 0.99, 1e-5
"""Of the preconditioner, as published."""
LARGEST = 1000.0
"""Estimate above which a chain diverges."""
HIGHEST = 2.5
"""Largest ratio shown."""
Row = dict[str, Any]


class Setting(NamedTuple):
    """Settings of a stochastic gradient chain."""

    step: float
    steps: int
    batch: int | None
    preconditioned: bool
    from_prior: bool

    def __str__(self) -> str:
        words = ["pSGLD" if self.preconditioned else "SGLD", f"step {self.step:g}", f"{self.steps:,} steps"]
        words += ["all examples" if self.batch is None else f"batches of {self.batch}"]
        return ", ".join([*words, "from the prior" if self.from_prior else "from w*"])


def posterior(name: str, examples: int, gamma: float) -> ba.Model:
    """Model at T = log n with prior variances 1 / gamma."""
    heads, widths, outputs = ARCHITECTURES[name]
    arch = ba.Architecture(heads, widths, (1 / gamma,) * (len(heads) + 2), outputs=outputs)
    rng = np.random.default_rng(examples)
    inputs = rng.normal(size=(examples, arch.paths, FEATURES))
    labels = np.zeros((examples, outputs)) if outputs > 1 else np.zeros(examples)
    return ba.Model(path_inputs=inputs, labels=labels, architecture=arch, temperature=math.log(examples))


def settings() -> Iterator[Setting]:
    """As a much used package tests and presets its estimator; sweeps over step size, length, batches, preconditioning."""
    yield Setting(6e-5, 2_000, None, False, False)
    yield Setting(6e-5, 200, 32, False, False)
    for batch in (None, 512):
        for step in (1e-5, 1e-4, 1e-3, 1e-2):
            yield Setting(step, 20_000, batch, False, True)
    for steps in (2_000, 200_000):
        yield Setting(1e-3, steps, None, False, True)
    for step in (1e-6, 1e-5, 1e-4):
        yield Setting(step, 20_000, 512, True, True)


def stochastic(model: ba.Model, gamma: float, setting: Setting, key: jax.Array) -> np.ndarray:
    """S of each of up to 2,000 draws of each chain, after the first tenth of the steps."""
    path, temperature = models.Path.of(model), model.temperature
    start, unravel = ravel_pytree(path.draw_prior(key))
    # Sums over all examples follow from their triangle.
    compressed = ba.Dataset.gather((model.path_inputs, model.labels), model.architecture)
    rows = jnp.asarray(compressed.path_inputs)
    inputs, count = path.path_inputs, len(model.path_inputs)

    def square(vector: jax.Array, inputs: jax.Array) -> jax.Array:
        return jnp.sum(network(unravel(vector), inputs) ** 2)

    def gradient(vector: jax.Array, key: jax.Array) -> jax.Array:
        if setting.batch is None:
            return jax.grad(square)(vector, rows) / (2 * temperature)
        chosen = inputs[jax.random.randint(key, (setting.batch,), 0, count)]
        return count / setting.batch * jax.grad(square)(vector, chosen) / (2 * temperature)

    def step(carry: tuple[jax.Array, jax.Array], key: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        vector, average = carry
        batch_key, noise_key = jax.random.split(key)
        slope = gradient(vector, batch_key)
        average = DECAY * average + (1 - DECAY) * (slope * temperature / count) ** 2
        scale = 1 / (LEAST_SLOPE + jnp.sqrt(average)) if setting.preconditioned else jnp.ones_like(vector)
        noise = jnp.sqrt(setting.step * scale) * jax.random.normal(noise_key, vector.shape)
        vector = vector - setting.step / 2 * scale * (slope + gamma * vector) + noise
        return (vector, average), square(vector, rows)

    @jax.jit
    @jax.vmap
    def chain(key: jax.Array) -> jax.Array:
        start_key, key = jax.random.split(key)
        begin = ravel_pytree(path.draw_prior(start_key))[0] if setting.from_prior else jnp.zeros_like(start)
        squares = jax.lax.scan(step, (begin, jnp.zeros_like(begin)), jax.random.split(key, setting.steps))[1]
        kept = squares[setting.steps // 10 if setting.from_prior else 0 :]
        return kept[:: max(1, len(kept) // 2000)]

    return np.asarray(chain(jax.random.split(key, CHAINS)))


def rows_of(name: str, examples: int, gamma: float) -> Iterator[Row]:
    """Estimates of one network: the exact value first."""
    model = posterior(name, examples, gamma)
    start = time.perf_counter()

    def row(method: str, value: float, error: float, gradients: int | None) -> Row:
        return {
            "network": name,
            "n": examples,
            "gamma": gamma,
            "method": method,
            "value": value,
            "error": error,
            "gradients": gradients,
            "seconds": round(time.perf_counter() - start, 1),
        }

    found = ba.learning_coefficient(model, model.temperature, best_fit=0.0)
    yield row(EXACT, float(found.value[0]), float(found.error[0]), None)
    for number, setting in enumerate(settings()):
        start = time.perf_counter()
        by_chain = stochastic(model, gamma, setting, jax.random.key(number)).mean(1) / (2 * model.temperature)
        finite = bool(np.isfinite(by_chain).all())
        value = float(by_chain.mean()) if finite else float("nan")
        error = float(by_chain.std(ddof=1) / np.sqrt(CHAINS)) if finite else float("nan")
        yield row(str(setting), value, error, CHAINS * setting.steps)
    compressed = model.replace(dataset=ba.Dataset.gather((model.path_inputs, model.labels), model.architecture))
    inputs = jnp.asarray(compressed.path_inputs)
    for sampler, options in WEIGHT_SAMPLERS.items():
        start = time.perf_counter()
        job: Any = {
            "chains": 4,
            "warmup": 1000,
            "draws": 2000,
            "keep": ["weights"],
            "progress": False,
            "options": options,
        }
        draws = ba.sample(compressed, sampler, "path", **job)
        weights = draws["posterior"].to_dataset()
        names = [str(each) for each in weights if each == "a" or str(each).startswith("V_")]
        flat = {each: jnp.asarray(weights[each].values).reshape(-1, *weights[each].shape[2:]) for each in names}
        squares = jax.lax.map(lambda draw: jnp.sum(network(draw, inputs) ** 2), flat)
        estimate = ba.learning_coefficient(compressed, losses=np.asarray(squares).reshape(4, -1), best_fit=0.0)
        gradients = int(draws["sample_stats"].to_dataset()["n_steps"].sum())
        yield row(f"{sampler} of the weights", float(estimate.value[0]), float(estimate.error[0]), gradients)


def case(name: str, examples: int, gamma: float, file: Path) -> list[Row]:
    """Rows of one case, from its file or made now."""
    if file.exists():
        return json.loads(file.read_text())
    rows = []
    for row in rows_of(name, examples, gamma):
        rows.append(row)
        print(f"{name:38} n {examples:8} gamma {gamma:4g}  {row['method']:50} {shown(row):20}", flush=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(rows, indent=1))
    jax.clear_caches()
    return rows


def shown(row: Row) -> str:
    """Value and error of a row."""
    return with_error(row["value"], row["error"]) if row["value"] < LARGEST else "diverges"


INTRODUCTION = """---
hide: [toc]
---

# How wrong is your learning coefficient?

People estimate the learning coefficient of a network, or the local one (LLC) at trained weights, by stochastic gradient
Langevin dynamics (SGLD; Lau et al. 2023). Here these estimators run on posteriors whose value is
[known](learning-coefficient.md) up to a small Monte Carlo error.

```
uv run python benchmarks/learning_coefficients.py --page docs/llc.md
```

makes this page; {cases} of 12 cases took {minutes:.0f} minutes of one process. Three networks have labels 0, n normal
examples, T = log n (nβ = n / log n), and a Gaussian prior of precision γ around the best weights w* = 0. This prior is
the localisation of the published estimator, so exact value and estimates are of one posterior: the local coefficient at
w* = 0, the most singular point, and with this prior the global one. Trained weights elsewhere have no exact value here.
At γ = 100 the prior confines weights to 0.1; at n = 1,000 the exact value is then that of the prior.

Each estimate by SGLD has {chains} chains. *From w\\** means without burn-in, as published; *from the prior* means after
a tenth of the steps. The first two SGLD rows of each table have settings of a much used package, devinterp: its test of
accuracy (with γ = 1), and the batch and number of its default draws. The package has no default step.

![Estimates over exact values](llc.png)

"""


def verdict(rows: list[Row]) -> str:
    """Sentences about the rows of stochastic gradients."""
    exact = {(row["network"], row["n"], row["gamma"]): row["value"] for row in rows if row["method"] == EXACT}
    sentences = []
    for family in ("SGLD", "pSGLD"):
        chains = [
            (row, exact[row["network"], row["n"], row["gamma"]])
            for row in rows
            if row["method"].startswith(f"{family},")
        ]
        finite = [(row, value) for row, value in chains if row["value"] < LARGEST]
        near = sum(abs(row["value"] / value - 1) < 0.1 for row, value in finite)
        sure = sum(abs(row["value"] - value) > 4 * row["error"] for row, value in finite)
        sentences.append(
            f"Of {len(chains)} estimates by {family}, {near} are within 10 % of the exact value, {len(chains) - len(finite)}"
            f" diverge, and {sure} of the others are off by more than four times the error of their own chains."
        )
    return " ".join(sentences)


def page(rows: list[Row]) -> str:
    """The page of all rows."""
    cases_there, minutes = sum(row["method"] == EXACT for row in rows), sum(row["seconds"] for row in rows) / 60
    lines = INTRODUCTION.format(cases=cases_there, minutes=minutes, chains=CHAINS).splitlines()
    lines += [verdict(rows), ""]
    for name in ARCHITECTURES:
        own = [row for row in rows if row["network"] == name]
        cases = [
            (n, gamma) for n in SIZES for gamma in GAMMAS if any((row["n"], row["gamma"]) == (n, gamma) for row in own)
        ]
        if not cases:
            continue
        lines += [f"## {name[0].upper()}{name[1:]}", ""]
        lines += ["| | " + " | ".join(f"n = {n:,}, γ = {gamma:g}" for n, gamma in cases) + " |"]
        lines += ["| --- " * (1 + len(cases)) + "|"]
        for method in dict.fromkeys(row["method"] for row in own):
            cells = []
            for n, gamma in cases:
                values = {row["method"]: row for row in own if (row["n"], row["gamma"]) == (n, gamma)}
                row, exact = values[method], values[EXACT]["value"]
                off = (
                    f" ({100 * (row['value'] / exact - 1):+.0f} %)"
                    if method != EXACT and row["value"] < LARGEST
                    else ""
                )
                cells.append(shown(row) + off)
            lines.append(f"| {method} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def figure(rows: list[Row]) -> Any:
    """Estimate over exact value against the number of gradients, one panel for each network."""
    names = [name for name in ARCHITECTURES if any(row["network"] == name for row in rows)]
    drawn, panels = plt.subplots(1, len(names), figsize=(10, 4), sharey=True, squeeze=False)
    colors = palette()
    families = {"SGLD": colors.orange, "pSGLD": colors.green, "MALA, MCLMC, NUTS": colors.blue}
    for panel, name in zip(panels[0], names, strict=True):
        own = [row for row in rows if row["network"] == name]
        exact = {(row["n"], row["gamma"]): row["value"] for row in own if row["method"] == EXACT}
        for family, color in families.items():
            chosen = [row for row in own if row["method"].startswith(family)]
            if family not in ("SGLD", "pSGLD"):
                chosen = [row for row in own if row["method"].endswith("of the weights")]
            values = np.array([[row[key] for key in ("value", "error")] for row in chosen])
            ratios, errors = values.T / [exact[row["n"], row["gamma"]] for row in chosen]
            gradients = np.array([row["gradients"] for row in chosen])
            inside = ratios < HIGHEST
            style: Any = {"fmt": "o", "ms": 4, "color": color, "alpha": 0.7, "capsize": 2, "label": family}
            panel.errorbar(gradients[inside], ratios[inside], errors[inside], **style)
            panel.plot(gradients[~inside], np.full(np.sum(~inside), HIGHEST), "^", ms=8, color=color)
        panel.axhline(1, color="black", lw=1)
        panel.set(xscale="log", xlabel="gradients of all chains", ylim=(0, HIGHEST))
        panel.set_title(name, fontsize=9)
    panels[0, 0].set_ylabel("estimate / exact value (triangles: more)")
    drawn.legend(*panels[0, 0].get_legend_handles_labels(), loc="lower center", ncols=3, fontsize=8)
    drawn.subplots_adjust(left=0.07, right=0.98, bottom=0.24, top=0.91, wspace=0.08)
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", choices=[*ARCHITECTURES], default=[*ARCHITECTURES], metavar="NETWORK")
    parser.add_argument("--out", type=Path, default=Path("out/learning_coefficients"))
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    rows = []
    for name in given.only:
        for examples in SIZES:
            for gamma in GAMMAS:
                file = given.out / f"{[*ARCHITECTURES].index(name)}-{examples}-{gamma:g}.json"
                rows += case(name, examples, gamma, file)
    if given.page:
        given.page.write_text(page(rows))
        save(figure(rows), given.page.with_suffix(".png"), overwrite=True)


if __name__ == "__main__":
    main()
