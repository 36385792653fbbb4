"""Influence of training examples: exact values, and estimates by stochastic gradients, an inverse Hessian and gradients.

    uv run python benchmarks/influence.py [--only REFERENCE ..] [--page FILE]

On each of the reference posteriors with known truth: the derivative of the loss of each training example, and of f at each
test input, by the weight of each training example, exactly given draws of U (`ba.influence`). Beside it

- SGLD as it is used for Bayesian influence functions (Kreer et al. 2025): from trained weights w*, with a Gaussian of
  precision gamma around them besides the prior; covariances over all draws of ten chains. The first two settings are those
  of a much used package, devinterp, as on the page on learning coefficients; the others are longer, without the Gaussian,
  so that they and the exact values are of one and the same posterior;
- influence functions: gradients at w* through the inverse Hessian of the log posterior (Koh and Liang 2017);
- products of gradients at w* (TracIn with one checkpoint, Pruthi et al. 2020), which have no scale: rank correlation alone;
- what changes if an example is left out, exactly, beside the first order.

Rank correlation (Spearman) and relative error (Frobenius norm of the difference over that of the exact values) are over all
entries. It writes a file for each reference into build/influence and goes on with what is missing.
"""

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from scipy import stats

import bayesattn as ba
from bayesattn import models
from bayesattn.jobs.plots import save
from bayesattn.jobs.plots.style import palette
from bayesattn.models.parameterisation import arrays_of
from bayesattn.network import network

Influences = list[tuple[np.ndarray, np.ndarray]]
"""Influences on losses and outputs from each start."""
FOLDER = Path(__file__).parents[1] / "build" / "influence"
CHAINS, KEPT = 10, 2000
SEEDS = range(3)
TRAINING_STEPS, RATE = 5000, 0.01
MOST_WEIGHTS = 2500
"""Most weights whose Hessian is inverted."""
MOST_DRAWS = 4000


class Setting(NamedTuple):
    """Settings of SGLD."""

    step: float
    steps: int
    batch: int | None
    gamma: float

    def __str__(self) -> str:
        batch = "all examples" if self.batch is None else f"batches of {self.batch}"
        return f"SGLD, step {self.step:g}, {self.steps:,} steps, {batch}" + (
            f", γ = {self.gamma:g}" if self.gamma else ""
        )


SETTINGS = (
    Setting(6e-5, 2_000, None, 1.0),
    Setting(6e-5, 200, 32, 1.0),
    Setting(1e-4, 20_000, None, 0.0),
    Setting(1e-3, 20_000, None, 0.0),
)
HESSIAN, GRADIENTS = "inverse Hessian at w*", "products of gradients at w*"


class Weights:
    """A posterior as a function of one vector of weights."""

    def __init__(self, model: ba.Model):
        path, self.skips = models.Path.of(model), model.architecture.optional_skips
        self.starts = jnp.stack([ravel_pytree(path.draw_prior(jax.random.key(seed)))[0] for seed in SEEDS])
        self.unravel = ravel_pytree(path.draw_prior(jax.random.key(0)))[1]
        self.inputs, self.labels = jnp.asarray(model.path_inputs), jnp.asarray(model.labels)
        self.new = None if model.test_path_inputs is None else jnp.asarray(model.test_path_inputs)
        self.likelihood = arrays_of(model.likelihood)
        names = ("V_0", *(f"V_{layer + 1}" for layer in range(model.architecture.depth)), "a")
        variances = dict(zip(names, model.architecture.variances, strict=True))
        like = self.unravel(self.starts[0])
        self.precision = ravel_pytree({name: jnp.full_like(like[name], 1 / variances[name]) for name in like})[0]

    def log_likelihoods(self, vector: jax.Array, chosen: jax.Array | None = None) -> jax.Array:
        """log p(Y_i | w) of all examples, or of some."""
        inputs, labels = (each if chosen is None else each[chosen] for each in (self.inputs, self.labels))
        return self.likelihood.log_prob(network(self.unravel(vector), inputs, self.skips), labels)

    def outputs(self, vector: jax.Array) -> jax.Array:
        """f at the test inputs, as one vector; empty without any."""
        if self.new is None:
            return jnp.zeros(0)
        return network(self.unravel(vector), self.new, self.skips).reshape(-1)

    def potential(self, vector: jax.Array) -> jax.Array:
        """Minus the log posterior, up to a constant."""
        return jnp.sum(self.precision * vector**2) / 2 - jnp.sum(self.log_likelihoods(vector))

    def trained(self) -> list[jax.Array]:
        """Weights of least potential, by Adam from a prior draw of each seed."""
        optimiser = optax.adam(optax.cosine_decay_schedule(RATE, TRAINING_STEPS))

        @jax.jit
        def descend(vector: jax.Array) -> jax.Array:
            def step(state: Any, _: None) -> tuple[Any, None]:
                vector, moments = state
                changes, moments = optimiser.update(jax.grad(self.potential)(vector), moments)
                return (optax.apply_updates(vector, changes), moments), None

            return jax.lax.scan(step, (vector, optimiser.init(vector)), None, TRAINING_STEPS)[0][0]

        return [descend(start) for start in self.starts]

    def by_sgld(self, starts: list[jax.Array], setting: Setting, keys: list[jax.Array]) -> Influences:
        """Influences on losses and outputs: covariances over draws of all chains from each start."""
        examples = len(self.inputs)

        def slope(vector: jax.Array, trained: jax.Array, key: jax.Array) -> jax.Array:
            chosen, scale = None, 1.0
            if setting.batch is not None:
                chosen, scale = jax.random.randint(key, (setting.batch,), 0, examples), examples / setting.batch
            fit = jax.grad(lambda each: jnp.sum(self.log_likelihoods(each, chosen)))(vector)
            return self.precision * vector + setting.gamma * (vector - trained) - scale * fit

        def step(state: tuple[jax.Array, jax.Array], key: jax.Array) -> tuple[Any, None]:
            vector, trained = state
            batch_key, noise_key = jax.random.split(key)
            noise = jnp.sqrt(setting.step) * jax.random.normal(noise_key, vector.shape)
            return (vector - setting.step / 2 * slope(vector, trained, batch_key) + noise, trained), None

        @jax.jit
        @partial(jax.vmap, in_axes=(None, 0))
        def chain(trained: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
            def block(state: Any, keys: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
                state, _ = jax.lax.scan(step, state, keys)
                return state, (self.log_likelihoods(state[0]), self.outputs(state[0]))

            kept = min(KEPT // CHAINS, setting.steps)
            keys = jax.random.split(key, setting.steps).reshape(kept, setting.steps // kept)
            return jax.lax.scan(block, (trained, trained), keys)[1]

        found = []
        for start, key in zip(starts, keys, strict=True):
            drawn = (np.asarray(each) for each in chain(start, jax.random.split(key, CHAINS)))
            log_likelihoods, outputs = (each.reshape(-1, each.shape[2]) for each in drawn)
            centred, new = log_likelihoods - log_likelihoods.mean(0), outputs - outputs.mean(0)
            found.append((-centred.T @ centred / len(centred), new.T @ centred / len(centred)))
        return found

    def by_gradients(self, starts: list[jax.Array], inverses: list[np.ndarray] | None) -> Influences:
        """Influences on losses and outputs through a matrix, by default the identity."""
        slopes = jax.jit(
            lambda vector: tuple(jax.jacrev(each)(vector) for each in (self.log_likelihoods, self.outputs))
        )
        found = []
        for place, start in enumerate(starts):
            of_losses, of_outputs = map(np.asarray, slopes(start))
            moved = of_losses.T if inverses is None else inverses[place] @ of_losses.T
            found.append((-of_losses @ moved, of_outputs @ moved))
        return found

    def inverse_hessians(self, starts: list[jax.Array]) -> list[np.ndarray]:
        """Inverses of the Hessian of the potential, with the absolute values of its eigenvalues."""
        hessian = jax.jit(jax.hessian(self.potential))
        pairs = [np.linalg.eigh(np.asarray(hessian(start))) for start in starts]
        return [vectors / np.maximum(np.abs(values), 1e-6) @ vectors.T for values, vectors in pairs]


def compared(found: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    """Rank correlation and relative error, NaN where it diverges."""
    if not exact.size or not np.isfinite(found).all():
        return {"rank": float("nan"), "error": float("nan")}
    rank: Any = stats.spearmanr(found.ravel(), exact.ravel())
    return {"rank": float(rank.statistic), "error": float(np.linalg.norm(found - exact) / np.linalg.norm(exact))}


def rows_of(name: str) -> dict[str, Any]:
    """Comparisons on one reference posterior."""
    model, start = ba.reference.load(name).model, time.perf_counter()
    draws = ba.sample(model, chains=4, warmup=500, draws=MOST_DRAWS // 4, seed=0, progress=False)
    sampled = time.perf_counter() - start
    has_test = model.test_path_inputs is not None
    of = ("losses", "outputs") if has_test else ("losses",)
    ba.influence(draws, of, thin=4)
    start = time.perf_counter()
    found = ba.influence(draws, of, thin=1)
    seconds = time.perf_counter() - start
    losses = found["losses"].values
    outputs = found["outputs"].values.reshape(-1, len(losses)) if has_test else np.zeros((0, len(losses)))
    exact = {"losses": losses, "outputs": outputs}
    errors = {each: float(np.linalg.norm(found[f"{each}_error"]) / np.linalg.norm(exact[each])) for each in of}
    rows: dict[str, Any] = {
        "examples": len(losses),
        "sampling": sampled,
        "influence": seconds,
        "error of exact": errors,
    }
    weights = Weights(model)
    rows["weights"] = weights.starts.shape[1]
    trained = weights.trained()

    def add(method: str, each: Influences, start: float) -> None:
        rows[method] = {
            "losses": [compared(of_losses, losses) for of_losses, _ in each],
            "outputs": [compared(of_outputs, outputs) for _, of_outputs in each],
        }
        rows[method]["seconds"] = round(time.perf_counter() - start, 1)
        print(name, method, rows[method], flush=True)

    for number, setting in enumerate(SETTINGS):
        start = time.perf_counter()
        keys = [jax.random.fold_in(jax.random.key(number), seed) for seed in SEEDS]
        add(str(setting), weights.by_sgld(trained, setting, keys), start)
    start = time.perf_counter()
    if weights.starts.shape[1] <= MOST_WEIGHTS:
        add(HESSIAN, weights.by_gradients(trained, weights.inverse_hessians(trained)), start)
    add(GRADIENTS, weights.by_gradients(trained, None), start)
    if has_test:
        out = ba.influence(draws, "left_out", refit=False)
        change, known = out["outputs_left_out"].values.reshape(-1, len(losses)), out["pareto_k"].values <= 0.7
        rows["left out"] = compared(-outputs[:, known], change[:, known]) | {"known": int(known.sum())}
    return rows


METHODS = {
    **{f"SGLD {letter}": str(setting) for letter, setting in zip("ABCD", SETTINGS, strict=True)},
    "Hessian": HESSIAN,
    "gradients": GRADIENTS,
}
"""Methods by the names that tables have room for."""


def cell(rows: dict[str, Any], method: str, of: str) -> str:
    """Rank correlation, its smallest and largest value over seeds, and the median relative error, as text."""
    found = rows.get(method, {}).get(of, [])
    errors = [each["error"] for each in found]
    ranks = [each["rank"] for each in found if np.isfinite(each["rank"])]
    if not found or np.isnan(errors).all():
        return "diverges" if found else "-"
    if not ranks:
        return "all 0"
    rank = f"{min(ranks):.2f} to {max(ranks):.2f}"
    diverged = f" ({np.isnan(errors).sum()} of {len(errors)} diverge)" if np.isnan(errors).any() else ""
    return rank + ("" if method == GRADIENTS else f", {np.nanmedian(errors):.2f}") + diverged


def ranks_of(found: dict[str, dict[str, Any]], method: str, of: str) -> list[list[float]]:
    """Rank correlations of each posterior over seeds, where they are known."""
    every = [[each["rank"] for each in rows[method][of]] for rows in found.values() if method in rows]
    return [known for ranks in every if (known := [rank for rank in ranks if np.isfinite(rank)])]


def median_of(ranks: list[list[float]]) -> float:
    """Median over posteriors of the median over seeds."""
    return float(np.median([np.median(each) for each in ranks]))


def page(found: dict[str, dict[str, Any]], file: Path) -> None:
    """Write the tables, and the figure beside them."""
    settings = "\n".join(f"- *{name}*: {method.removeprefix('SGLD, ')}" for name, method in [*METHODS.items()][:4])
    lines = [INTRODUCTION.format(count=len(found), settings=settings)]
    head, rule = "| posterior | examples, weights | own error of exact |", "| --- | --- | --- |"
    for of, title in (("losses", "Loss of each training example"), ("outputs", "f at each test input")):
        lines += [f"## {title}", "", head + "".join(f" {name} |" for name in METHODS), rule + " --- |" * len(METHODS)]
        for name, rows in found.items():
            if of in rows["error of exact"]:
                own = f"{rows['error of exact'][of]:.3f}"
                cells = [f"{rows['examples']}, {rows['weights']}", own]
                cells += [cell(rows, method, of) for method in METHODS.values()]
                lines.append(f"| {name} | {' | '.join(cells)} |")
        medians = [f"{median_of(ranks_of(found, method, of)):.2f}" for method in METHODS.values()]
        lines += [f"| median rank correlation | | | {' | '.join(medians)} |", ""]
    lines += [
        "## Left out",
        "",
        "First order against the change if an example with Pareto k up to 0.7 is left out.",
        "",
        "| posterior | examples | rank correlation, relative error |",
        "| --- | --- | --- |",
    ]
    for name, rows in found.items():
        if each := rows.get("left out"):
            agreement = f"{each['rank']:.3f}, {each['error']:.2f}" if each["known"] else "-"
            lines.append(f"| {name} | {each['known']} of {rows['examples']} | {agreement} |")
    file.write_text("\n".join(lines) + "\n")
    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    for place, method in enumerate(METHODS.values()):
        ranks = ranks_of(found, method, "losses")
        for across, each in zip(place + np.linspace(-0.25, 0.25, len(ranks)), ranks, strict=True):
            axes.plot([across] * 2, [min(each), max(each)], lw=1, color=palette().blue, alpha=0.7)
            axes.plot(across, np.median(each), "o", ms=3.5, color=palette().blue)
        axes.plot([place - 0.35, place + 0.35], [median_of(ranks)] * 2, color=palette().orange)
    axes.set_xticks(range(len(METHODS)), [*METHODS])
    axes.set(
        ylabel="rank correlation with the exact values",
        title="Influence on losses, one line a posterior, over three seeds",
    )
    save(figure, file.with_suffix(".png"), overwrite=True)


INTRODUCTION = """# How wrong is your influence function?

Which training examples carry a prediction? Bayesian influence functions (Kreer et al. 2025) answer with covariances
under the posterior, estimated by stochastic gradient Langevin dynamics. Here {count} posteriors have [exact
values](howto/influence.md), up to the Monte Carlo error in the tables.

```
uv run python benchmarks/influence.py --page docs/influence.md
```

makes this page. Each cell has the least and greatest rank correlation with the exact values, over all entries, of three
seeds of trained weights w\\* and noise, and the median relative error. SGLD starts ten chains at w\\*. A and B have
[settings of devinterp](llc.md), a much used package, with a Gaussian of precision γ around w\\*. C and D have
none, so that they and the exact values are of one posterior.

{settings}
- *Hessian*: influence functions at w\\* through its inverse (Koh and Liang 2017), up to 2,500 weights
- *gradients*: products at w\\* (TracIn with one checkpoint), which have no scale

Short chains around trained weights see the neighbourhood of one point of a far wider posterior, and rank influences no
better than the inverse Hessian. Longer chains without the Gaussian do well where their step suits: that of D diverges
on hidden_markov, and is too long for cold.

![Rank correlation with the exact values, by method](influence.png)
"""


def main() -> None:
    """Fill in what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=ba.reference.names())
    parser.add_argument("--page", type=Path)
    arguments = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in arguments.only:
        if not (file := FOLDER / f"{name}.json").exists():
            file.write_text(json.dumps(rows_of(name), indent=1))
            jax.clear_caches()
    if arguments.page:
        files = {name: FOLDER / f"{name}.json" for name in ba.reference.names()}
        page({name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}, arguments.page)


if __name__ == "__main__":
    main()
