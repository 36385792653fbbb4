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

FOLDER = Path(__file__).parents[1] / "build" / "influence"
CHAINS, KEPT = 10, 2000
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
        start, self.unravel = ravel_pytree(path.draw_prior(jax.random.key(0)))
        self.inputs, self.labels = jnp.asarray(model.path_inputs), jnp.asarray(model.labels)
        self.new = None if model.test_path_inputs is None else jnp.asarray(model.test_path_inputs)
        self.likelihood = arrays_of(model.likelihood)
        names = ("V_0", *(f"V_{layer + 1}" for layer in range(model.architecture.depth)), "a")
        variances = dict(zip(names, model.architecture.variances, strict=True))
        like = self.unravel(start)
        self.precision = ravel_pytree({name: jnp.full_like(like[name], 1 / variances[name]) for name in like})[0]
        self.start = start

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

    def trained(self) -> jax.Array:
        """Weights of least potential, by Adam from a prior draw."""
        optimiser = optax.adam(optax.cosine_decay_schedule(RATE, TRAINING_STEPS))

        @jax.jit
        def descend(vector: jax.Array) -> jax.Array:
            def step(state: Any, _: None) -> tuple[Any, None]:
                vector, moments = state
                changes, moments = optimiser.update(jax.grad(self.potential)(vector), moments)
                return (optax.apply_updates(vector, changes), moments), None

            return jax.lax.scan(step, (vector, optimiser.init(vector)), None, TRAINING_STEPS)[0][0]

        return descend(self.start)

    def by_sgld(self, trained: jax.Array, setting: Setting, key: jax.Array) -> tuple[np.ndarray, np.ndarray]:
        """Influences on losses and outputs: covariances over draws of all chains."""
        examples = len(self.inputs)

        def slope(vector: jax.Array, key: jax.Array) -> jax.Array:
            chosen, scale = None, 1.0
            if setting.batch is not None:
                chosen, scale = jax.random.randint(key, (setting.batch,), 0, examples), examples / setting.batch
            fit = jax.grad(lambda each: jnp.sum(self.log_likelihoods(each, chosen)))(vector)
            return self.precision * vector + setting.gamma * (vector - trained) - scale * fit

        def step(vector: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
            batch_key, noise_key = jax.random.split(key)
            noise = jnp.sqrt(setting.step) * jax.random.normal(noise_key, vector.shape)
            return vector - setting.step / 2 * slope(vector, batch_key) + noise, None

        @jax.jit
        @jax.vmap
        def chain(key: jax.Array) -> tuple[jax.Array, jax.Array]:
            def block(vector: jax.Array, keys: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
                vector, _ = jax.lax.scan(step, vector, keys)
                return vector, (self.log_likelihoods(vector), self.outputs(vector))

            kept = min(KEPT // CHAINS, setting.steps)
            keys = jax.random.split(key, setting.steps).reshape(kept, setting.steps // kept)
            return jax.lax.scan(block, trained, keys)[1]

        drawn = (np.asarray(each) for each in chain(jax.random.split(key, CHAINS)))
        log_likelihoods, outputs = (each.reshape(-1, each.shape[2]) for each in drawn)
        centred, new = log_likelihoods - log_likelihoods.mean(0), outputs - outputs.mean(0)
        return -centred.T @ centred / len(centred), new.T @ centred / len(centred)

    def by_gradients(self, trained: jax.Array, inverse: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Influences on losses and outputs through a matrix, by default the identity."""
        slopes, of_outputs = (
            np.asarray(jax.jit(jax.jacrev(each))(trained)) for each in (self.log_likelihoods, self.outputs)
        )
        moved = slopes.T if inverse is None else inverse @ slopes.T
        return -slopes @ moved, of_outputs @ moved

    def inverse_hessian(self, trained: jax.Array) -> np.ndarray:
        """Inverse of the Hessian of the potential, with the absolute values of its eigenvalues."""
        values, vectors = np.linalg.eigh(np.asarray(jax.jit(jax.hessian(self.potential))(trained)))
        return vectors / np.maximum(np.abs(values), 1e-6) @ vectors.T


def compared(found: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    """Rank correlation and relative error."""
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
    rows["weights"] = len(weights.start)
    trained = weights.trained()

    def add(method: str, of_losses: np.ndarray, of_outputs: np.ndarray, start: float) -> None:
        rows[method] = {"losses": compared(of_losses, losses), "outputs": compared(of_outputs, outputs)}
        rows[method]["seconds"] = round(time.perf_counter() - start, 1)
        print(name, method, rows[method], flush=True)

    for number, setting in enumerate(SETTINGS):
        start = time.perf_counter()
        add(str(setting), *weights.by_sgld(trained, setting, jax.random.key(number)), start)
    start = time.perf_counter()
    if len(weights.start) <= MOST_WEIGHTS:
        add(HESSIAN, *weights.by_gradients(trained, weights.inverse_hessian(trained)), start)
    add(GRADIENTS, *weights.by_gradients(trained, None), start)
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
    """Rank correlation and relative error as text."""
    found = rows.get(method, {}).get(of)
    if found is None or not found:
        return "-"
    if np.isnan(found["error"]):
        return "diverges"
    rank = "all 0" if np.isnan(found["rank"]) else f"{found['rank']:.2f}"
    return rank if method == GRADIENTS else f"{rank}, {found['error']:.2f}"


def ranks_of(found: dict[str, dict[str, Any]], method: str, of: str) -> list[float]:
    """Rank correlations of all posteriors, where they are known."""
    every = [rows[method][of]["rank"] for rows in found.values() if method in rows]
    return [rank for rank in every if np.isfinite(rank)]


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
        medians = [f"{np.median(ranks_of(found, method, of)):.2f}" for method in METHODS.values()]
        lines += [f"| median rank correlation | | | {' | '.join(medians)} |", ""]
    lines += [
        "## Left out",
        "",
        "First order against the change if an example is left out, of the examples with Pareto k up to 0.7.",
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
        across = place + np.linspace(-0.2, 0.2, max(2, len(ranks)))[: len(ranks)]
        axes.plot(across, ranks, "o", ms=4, color=palette().blue, alpha=0.7)
        axes.plot([place - 0.3, place + 0.3], [np.median(ranks)] * 2, color=palette().orange)
    axes.set_xticks(range(len(METHODS)), [*METHODS])
    axes.set(ylabel="rank correlation with the exact values", title="Influence on losses, one point a posterior")
    save(figure, file.with_suffix(".png"), overwrite=True)


INTRODUCTION = """# How wrong is your influence function?

Which training examples carry a prediction? Bayesian influence functions (Kreer et al. 2025) answer with covariances
under the posterior, estimated by stochastic gradient Langevin dynamics. Here {count} posteriors have
[exact values](howto/influence.md), up to the Monte Carlo error in the tables.

```
uv run python benchmarks/influence.py --page docs/influence.md
```

makes this page. Each cell has the rank correlation with the exact values over all entries, and the relative error. SGLD
starts at trained weights w\\*, ten chains; A and B have settings of a much used package, devinterp, as on
[the page on learning coefficients](llc.md), with a Gaussian of precision γ around w\\*; C and D have the posterior
alone, so that they and the exact values are of one and the same posterior.

{settings}
- *Hessian*: influence functions at w\\* through its inverse (Koh and Liang 2017), of networks up to 2,500 weights
- *gradients*: their products at w\\* (TracIn with one checkpoint), which have no scale

One seed of each. Short chains around trained weights see the neighbourhood of one point of a posterior that is far wider,
and rank influences no better than the inverse Hessian. Longer chains without the Gaussian do well where their step suits:
the same step diverges on hidden_markov, and is too long for cold.

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
