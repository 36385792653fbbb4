"""Attention blocks with sampled queries and keys, hidden attention and ReLU values, against the theory of a frozen network.

`uv run python benchmarks/realistic_blocks.py [--fast] [--widths N ..] [--out FOLDER]` samples all weights by NUTS for each
combination of what attention reads, the strength alpha of ReLU, and the width; it writes one JSON file for each, goes on
with what is missing if run again, and prints a table. Each of the eighteen took 2 to 14 minutes of one core, two of them
longer beside other work. `--fast` takes tiny networks and few draws, whose numbers mean nothing. The task is a small one
of hidden Markov chains.

The theory knows neither learned attention nor nonlinear values. It is given the posterior mean of the attention matrices,
as that of a linear network with fixed attention, whose saddle point is solved. Heads are exchangeable under the prior,
so each draw's heads are first put in the order of their share of tr U; otherwise all heads had the same mean. Compared are:

- tr U over its mean under the prior, and the share of the strongest path in tr U, each draw's own, averaged;
- the kernel: cosine between the posterior mean of the last layer's kernel s_a^2 z^L.z^L / N_a and the theory's K(U), on
  the test inputs. They are not the same kernel even in a linear network, because in the theory V_0 is integrated out
  under the prior: the row "inputs, alpha = 0" says how much;
- the accuracy of the mean predictors on the test inputs.

Where R-hat of a prediction is above 1.05 the table says that it cannot tell.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

import bayesattn as ba
from bayesattn import tasks
from bayesattn.models import parameterisation_of
from bayesattn.theory.predictor import right

HEADS, KEY_WIDTH, TEMPERATURE = (2, 2), 4, 0.3
LOGITS = 4.0
"""Prior variance of queries and keys on hidden tokens; on inputs, 1 / N_0 of it. Logits then deviate by about 2."""
TASK = {"tokens": 5, "dimension": 4, "stay_probability": 0.9, "noise_difference": 0.5, "noise_sum": 0.5}
USABLE_RHAT = 1.05
CANNOT_TELL = "cannot tell"


class Plan(NamedTuple):
    """What is sampled, and for how long."""

    widths: tuple[int, ...] = (3, 10, 30)
    strengths: tuple[float, ...] = (0.0, 0.5, 1.0)
    examples: int = 30
    test_examples: int = 200
    chains: int = 4
    warmup: int = 300
    draws: int = 400
    thin: int = 2


FAST = Plan((4,), (0.0, 1.0), examples=6, test_examples=10, chains=2, warmup=60, draws=60, thin=2)


class Cell(NamedTuple):
    """A network."""

    attention_on: str
    strength: float
    width: int


class Everywhere(NamedTuple):
    """Posterior means: attention matrices of each layer and the last layer's kernel of each chain."""

    attention: list[np.ndarray]
    kernels: np.ndarray


def model_of(cell: Cell, plan: Plan) -> ba.AttentionModel:
    """Posterior of a network, whose test inputs are the training inputs followed by the test inputs, all watched."""
    data = tasks.HiddenMarkov(examples=plan.examples, test_examples=plan.test_examples, **TASK).dataset()
    everywhere = np.concatenate([data.inputs, data.test_inputs])
    variance = LOGITS if cell.attention_on == "hidden" else LOGITS / everywhere.shape[2]
    return ba.AttentionModel(
        inputs=data.inputs,
        labels=data.labels,
        test_inputs=everywhere,
        test_labels=np.concatenate([data.labels, data.test_labels]),
        watched=range(len(everywhere)),
        heads=HEADS,
        widths=(cell.width,) * (len(HEADS) + 1),
        key_width=KEY_WIDTH,
        query_variance=variance,
        key_variance=variance,
        temperature=TEMPERATURE,
        attention_on=cell.attention_on,
        values="relu",
        values_strength=cell.strength,
    )


def strengths_of_paths(draws: xr.Dataset) -> np.ndarray:
    """Diagonal of U of each draw by the heads of each layer, shape (chain, draw, H_1, .., H_L)."""
    own = np.einsum("cdpp->cdp", draws["order_parameter"].values)
    return own.reshape(*own.shape[:2], *HEADS)


def mean_attention(draws: xr.Dataset) -> list[np.ndarray]:
    """Posterior mean of the attention matrices of each layer, heads of each draw in the order of their share of tr U."""
    paths, means = strengths_of_paths(draws), []
    for layer in range(len(HEADS)):
        other_layers = tuple(2 + other for other in range(len(HEADS)) if other != layer)
        order = np.argsort(-paths.sum(other_layers), axis=-1)[:, :, None, :, None, None]
        matrices = draws[f"attention_{layer + 1}"].values
        means.append(np.take_along_axis(matrices, order, axis=3).mean((0, 1)))
    return means


def mean_kernels(model: ba.AttentionModel, draws: xr.Dataset) -> np.ndarray:
    """Mean of s_a^2 z^L.z^L / N_a over the draws of each chain, on all inputs, shape (chain, example, example)."""
    posterior, width = parameterisation_of(model, "token").of(model), model.architecture.widths[-1]
    names = [name for name in draws.data_vars if str(name).startswith(("V_", "queries_", "keys_"))]
    weights = {str(name): jnp.asarray(draws[name].values) for name in names}
    reads_all = {"a": jnp.sqrt(width) * jnp.eye(width)}

    def kernel(weights: dict[str, jax.Array]) -> jax.Array:
        """Kernel of a draw: a readout that is sqrt(N_a) times the identity has outputs z^L."""
        hidden = posterior.predictions_of(weights | reads_all)["prediction"]
        return hidden @ hidden.T * model.architecture.variances[-1] / width

    @jax.jit
    def mean(weights: dict[str, jax.Array]) -> jax.Array:
        count = len(weights["V_0"])
        first = jnp.zeros((len(model.test_inputs),) * 2)
        total, _ = jax.lax.scan(lambda total, each: (total + kernel(each), None), first, weights)
        return total / count

    return np.stack([mean({name: value[chain] for name, value in weights.items()}) for chain in draws["chain"].values])


def cosine(kernel: np.ndarray, other: np.ndarray) -> float:
    """Alignment of two kernels."""
    return float(np.sum(kernel * other) / (np.linalg.norm(kernel) * np.linalg.norm(other)))


def accuracy(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Share of labels whose sign the outputs have."""
    return float(np.mean(right(outputs, labels)))


def with_error(draws: np.ndarray) -> tuple[float, float]:
    """Mean over (chain, draw) and its Monte Carlo error."""
    return float(draws.mean()), float(arviz_stats.mcse(draws))


def sampled(model: ba.AttentionModel, draws: xr.Dataset) -> dict[str, Any]:
    """Order parameter and predictions of the draws."""
    paths = strengths_of_paths(draws).reshape(*draws["order_parameter"].shape[:2], -1)
    prior = model.architecture.paths * np.prod(model.architecture.variances[1:])
    means = draws["prediction"].mean(("chain", "draw")).values
    return {
        "trace": with_error(paths.sum(-1) / prior),
        "strongest": with_error(paths.max(-1) / paths.sum(-1)),
        "accuracy": accuracy(means[model.examples :], model.test_labels[model.examples :]),
        "rhat": float(arviz_stats.rhat(draws["prediction"]).max(skipna=False)),
        "rhat of U": float(arviz_stats.rhat(xr.DataArray(paths.sum(-1), dims=("chain", "draw")))),
    }


def frozen(model: ba.AttentionModel, attention: list[np.ndarray], kernels: np.ndarray) -> dict[str, Any]:
    """The linear network with this attention by the theory: order parameter, accuracy, and its kernel's alignment."""
    path_inputs = np.asarray(ba.attention.paths_from_matrices(model.test_inputs, attention, model.readout))
    train, test = np.split(path_inputs, [model.examples])
    linear = ba.Model(
        path_inputs=train,
        labels=model.labels,
        test_path_inputs=test,
        architecture=model.architecture,
        temperature=model.temperature,
    )
    saddle = ba.theory.solve(linear, throw=False)
    u = np.asarray(saddle.order_parameter)
    theory = np.asarray(ba.theory.kernel(u, test, test, model.architecture))
    of_chains = [cosine(each[model.examples :, model.examples :], theory) for each in kernels]
    together = cosine(kernels.mean(0)[model.examples :, model.examples :], theory)
    outputs = np.asarray(ba.theory.predict(u, linear).mean)
    return {
        "alignment": (together, float(np.std(of_chains, ddof=1) / np.sqrt(len(of_chains)))),
        "theory": {
            "converged": bool(saddle.converged),
            "trace": float(np.trace(u) / (model.architecture.paths * np.prod(model.architecture.variances[1:]))),
            "strongest": float(np.diag(u).max() / np.trace(u)),
            "accuracy": accuracy(outputs, model.test_labels[model.examples :]),
        },
    }


def result(cell: Cell, plan: Plan, folder: Path) -> dict[str, Any]:
    """Numbers of a network, from its file or made now."""
    settings = {"plan": [*plan[2:]], "task": TASK, "network": [*HEADS, KEY_WIDTH, TEMPERATURE, LOGITS]}
    file = folder / f"{cell.attention_on}_{cell.strength:g}_{cell.width}.json"
    if file.exists() and (stored := json.loads(file.read_text()))["settings"] == settings:
        return stored
    start, model = time.perf_counter(), model_of(cell, plan)
    tree = ba.sample(
        model,
        "nuts",
        "token",
        chains=plan.chains,
        warmup=plan.warmup,
        draws=plan.draws,
        thin=plan.thin,
        keep=("order_parameter", "prediction", "queries_keys", "weights"),
        progress=False,
    )
    draws, statistics = tree["posterior"].to_dataset(), tree["sample_stats"].to_dataset()
    found = sampled(model, draws) | frozen(model, mean_attention(draws), mean_kernels(model, draws))
    found |= {
        "cell": cell._asdict(),
        "gradients a draw": float(statistics["n_steps"].mean()),
        "divergent": float(statistics["diverging"].mean()),
        "seconds": round(time.perf_counter() - start, 1),
        "settings": settings,
    }
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(found, indent=1))
    unfinished.replace(file)
    return found


def row(found: dict[str, Any]) -> list[str]:
    """Cells of the table for a network."""
    cell, theory = found["cell"], found["theory"]
    usable = found["rhat"] <= USABLE_RHAT

    def of_draws(name: str) -> str:
        value = found[name]
        if not usable:
            return CANNOT_TELL
        return f"{value:.3f}" if isinstance(value, float) else f"{value[0]:.3f} ± {value[1]:.3f}"

    def of_theory(name: str) -> str:
        # The theory is given the attention of the draws.
        return (f"{theory[name]:.3f}" if theory["converged"] else "not solved") if usable else CANNOT_TELL

    return [
        cell["attention_on"],
        f"{cell['strength']:g}",
        str(cell["width"]),
        of_draws("trace"),
        of_theory("trace"),
        of_draws("strongest"),
        of_theory("strongest"),
        of_draws("alignment"),
        of_draws("accuracy"),
        of_theory("accuracy"),
        f"{found['rhat']:.3f}",
        f"{found['gradients a draw']:.0f}",
        f"{found['seconds'] / 60:.1f}",
    ]


HEADER = [
    *("attention on", "alpha", "N", "tr U / prior", "theory", "strongest path", "theory", "kernels' cosine"),
    *("accuracy", "theory", "R-hat", "gradients a draw", "minutes"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--fast", action="store_true", help="tiny networks and few draws")
    parser.add_argument("--widths", nargs="*", type=int, help="in place of those of the plan")
    parser.add_argument("--out", type=Path, default=Path("out") / "realistic_blocks")
    arguments = parser.parse_args()
    plan = FAST if arguments.fast else Plan()
    folder = arguments.out / "fast" if arguments.fast else arguments.out
    widths = arguments.widths or plan.widths
    cells = [Cell(on, alpha, width) for width in widths for on in ("inputs", "hidden") for alpha in plan.strengths]
    rows = []
    for cell in cells:
        rows.append(row(result(cell, plan, folder)))
        print(", ".join(rows[-1]), flush=True)
    print("\n".join(["", *(f"| {' | '.join(each)} |" for each in (HEADER, ["---"] * len(HEADER), *rows))]))


if __name__ == "__main__":
    main()
