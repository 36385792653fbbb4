"""What to do if the noise is not known: its exact posterior beside four ways to set one value.

    uv run --extra images python benchmarks/unknown_noise.py [--examples ..] [--seeds 5] [--tasks ..] [--figure FILE]

Labels of networks of width 10, one layer of two heads, drawn from the prior, on normal path inputs (rank 60), with noise of
variance 0.1; and of the ready tasks, whose noise nobody knows. T and s_a^2 are not known to any method:

- exact: the posterior of U, T and s_a^2 by NUTS or, of digits, HMC (T ~ LogNormal(-1, 1.5), s_a^2 ~ LogNormal(0, 1));
- maximum: both where the evidence is greatest (`theory.maximum_evidence`), then the exact posterior of U at these;
- Laplace: noise and one prior precision for each weight matrix, by the marginal likelihood of laplace-torch while the same
  network is trained (`marglik_training`, full Gauss-Newton curvature; linearised predictions), in an environment of its own;
- GP: the kernel of infinite width, its scale and noise by scikit-learn's marginal likelihood;
- ridge: regression on all path inputs, penalty by leave-one-out errors.

For each: T over the true one, whether its 94 % interval covers it (of those that have an interval), mean log density of new
noisy labels, share of these in their 94 % interval, and the root mean square error of the mean. It writes a file for each
data set into build/unknown_noise, goes on with what is missing, and prints tables.
"""

import argparse
import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, WhiteKernel
from sklearn.linear_model import RidgeCV

import bayesattn as ba
from bayesattn.models.conditional import conditional_of, new_inputs

FOLDER = Path(__file__).parents[1] / "build" / "unknown_noise"
NOISE, WIDTH, FEATURES, TEST = 0.1, 10, 30, 300
PRIORS = {"temperature": dist.LogNormal(-1.0, 1.5), "variances": (1.0, 1.0, dist.LogNormal(0.0, 1.0))}
LEVEL = 0.94
ENDS = (1 - LEVEL) / 2, (1 + LEVEL) / 2
METHODS = ("exact", "maximum", "Laplace", "GP", "ridge")
MOST_COORDINATES_OF_NUTS = 200
"""Most coordinates for NUTS; with more, the first trees of its warm-up take a minute each, and HMC draws."""
MOST_WEIGHTS = 2500
"""Most weights of a network whose full curvature laplace-torch decomposes at every step of its training."""


def synthetic(examples: int, seed: int) -> ba.Model:
    """Noisy labels of a network drawn from the prior."""
    rng = np.random.default_rng([examples, seed])
    inputs = rng.normal(size=(examples + TEST, 2, FEATURES))
    lower, values, readout = (rng.normal(size=s) for s in ((WIDTH, FEATURES), (2, WIDTH, WIDTH), (WIDTH,)))
    hidden = np.einsum("hmn,ni,phi->pm", values, lower, inputs) / np.sqrt(2 * WIDTH * FEATURES)
    labels = hidden @ readout / np.sqrt(WIDTH) + np.sqrt(NOISE) * rng.normal(size=len(inputs))
    new = {"test_path_inputs": inputs[examples:], "test_labels": labels[examples:]}
    return ba.Model(
        path_inputs=inputs[:examples], labels=labels[:examples], heads=(2,), widths=(WIDTH,) * 2, **new, **PRIORS
    )


def of_task(name: str) -> ba.Model:
    """A ready task with priors of T and s_a^2, at width 10."""
    model = ba.load_model(name, width=WIDTH)
    variances = (*model.architecture.variances[:-1], PRIORS["variances"][-1])
    return model.replace(temperature=PRIORS["temperature"], variances=variances)


def scores(means: np.ndarray, variances: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Scores of an equal mixture of normal predictions, shape (draw, example), of noisy labels."""
    deviations = np.sqrt(variances)
    below = stats.norm.cdf(labels, means, deviations).mean(0)
    densities = np.logaddexp.reduce(stats.norm.logpdf(labels, means, deviations)) - np.log(len(means))
    return {
        "log_score": float(densities.mean()),
        "covered": float(np.mean((below > ENDS[0]) & (below < ENDS[1]))),
        "rmse": float(np.sqrt(np.mean((means.mean(0) - labels) ** 2))),
    }


def sampled(model: ba.Model, seed: int) -> tuple[dict[str, Any], Any]:
    """Scores of the exact posterior, and its draws."""
    sampler = "nuts" if model.log_density().size <= MOST_COORDINATES_OF_NUTS else "hmc"
    draws = ba.sample(model, sampler, chains=4, warmup=500, draws=500, seed=seed, progress=False)
    conditional = conditional_of(model)
    posterior = draws["posterior"].to_dataset().isel(draw=slice(None, None, 4)).stack(all=("chain", "draw"))
    posterior = posterior.transpose("all", ...)
    each = {name: jnp.asarray(posterior[name].values) for name in conditional.variables}
    inputs = new_inputs(model, model.test_path_inputs, None)
    means, variances = jax.lax.map(lambda draw: conditional.outputs(draw, inputs, None)[:2], each)
    noise = each["temperature"].reshape(-1, *[1] * (means.ndim - 1)) if model.has_priors else model.temperature
    means, variances = np.asarray(means), np.asarray(variances + noise)
    parts = np.split(np.arange(len(means)), draws["posterior"].sizes["chain"])
    by_chain = [scores(means[part], variances[part], model.test_labels)["log_score"] for part in parts]
    found = scores(means, variances, model.test_labels) | {"log_score_by_chain": by_chain}
    return found | {"rhat": float(ba.diagnose(draws).rhat)}, draws


def exact(model: ba.Model, seed: int) -> dict[str, Any]:
    """Exact posterior of U, T and s_a^2."""
    found, draws = sampled(model, seed)
    temperature = draws["posterior"]["temperature"].values
    return found | {"noise": float(np.median(temperature)), "interval": np.quantile(temperature, ENDS).tolist()}


def maximum(model: ba.Model, seed: int) -> dict[str, Any]:
    """T and s_a^2 where the evidence is greatest."""
    if model.architecture.outputs > 1:
        return {"left out": "annealing of one evidence takes minutes, and a maximum about ten of them"}
    found = ba.theory.maximum_evidence(model, seed=seed)
    noise: Any = found.values["temperature"]
    deviation = found.deviations["temperature"]
    half = stats.norm.ppf(ENDS[1]) * deviation
    interval = [] if np.isnan(deviation) else [noise * float(np.exp(sign * half)) for sign in (-1, 1)]
    edges = {"noise": noise, "interval": interval, "edges": list(found.edges)}
    try:
        return sampled(model.at(found.values), seed)[0] | edges
    except ba.theory.NotConverged:
        return edges


def flat(model: ba.Model) -> tuple[np.ndarray, np.ndarray]:
    """All path inputs of an example as one vector of square 1 on average where entries are normal: training, test."""
    scale = np.sqrt(np.prod(model.path_inputs.shape[1:]))
    return tuple(each.reshape(len(each), -1) / scale for each in (model.path_inputs, model.test_path_inputs))  # pyright: ignore[reportReturnType]


def gaussian_process(model: ba.Model, seed: int) -> dict[str, Any]:
    """Kernel of infinite width with learned scale and noise."""
    inputs, new = flat(model)
    kernel = ConstantKernel(1.0, (1e-6, 1e6)) * DotProduct(1e-10, "fixed") + WhiteKernel(0.1, (1e-10, 1e4))
    process: Any = GaussianProcessRegressor(kernel, alpha=0.0, n_restarts_optimizer=4, random_state=seed)
    mean, deviation = process.fit(inputs, model.labels).predict(new, return_std=True)
    noise = {"noise": float(process.kernel_.k2.noise_level)}
    return scores(mean[None], deviation[None] ** 2, model.test_labels) | noise


def ridge(model: ba.Model, seed: int) -> dict[str, Any]:
    """Ridge regression; the variance of predictions is the mean squared leave-one-out error."""
    inputs, new = flat(model)
    penalties = np.logspace(-6, 6, 61)
    fitted: Any = RidgeCV(penalties, fit_intercept=False, store_cv_results=True).fit(inputs, model.labels)
    squares = fitted.cv_results_.reshape(-1, len(penalties)).mean(0)[penalties == fitted.alpha_][0]
    values = np.linalg.svd(inputs, compute_uv=False) ** 2
    degrees = np.sum(values / (values + fitted.alpha_))
    residual = np.mean((model.labels - fitted.predict(inputs)) ** 2) / max(1 - degrees / len(inputs), 1e-9)
    mean = fitted.predict(new)[None]
    return scores(mean, np.full(mean.shape, squares), model.test_labels) | {"noise": float(residual)}


def laplace(model: ba.Model, seed: int) -> dict[str, Any]:
    """Marginal likelihood of laplace-torch, by `LAPLACE` in an environment of its own."""
    if model.architecture.number_of_weights(model.features) > MOST_WEIGHTS:
        return {"left out": f"more than {MOST_WEIGHTS} weights"}
    file = FOLDER / "laplace.npz"
    arrays = {name: getattr(model, name) for name in ("path_inputs", "labels", "test_path_inputs")}
    arch = model.architecture
    np.savez(file, widths=arch.widths, heads=arch.heads, skips=arch.skips, seed=seed, **arrays)
    subprocess.run([environment(), "-c", LAPLACE, str(file)], check=True, capture_output=True, text=True)
    with np.load(file) as found:
        mean, variance = (found[name].reshape(1, *model.test_labels.shape) for name in ("mean", "variance"))
        predicted = scores(mean, variance + found["noise"], model.test_labels)
        return predicted | {"noise": float(found["noise"])}


def environment() -> Path:
    """Python with laplace-torch, installed if it is not there."""
    python = FOLDER / "laplace" / "bin" / "python"
    if not (FOLDER / "laplace" / "installed").exists():
        venv.create(FOLDER / "laplace", with_pip=True, clear=True)
        packages = ["torch==2.13.0", "laplace-torch==0.3"]
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-compile", *packages], check=True)
        # Its wheel is for another build of PyTorch than some processors get, and nothing here needs it.
        subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision"], check=True)
        (FOLDER / "laplace" / "installed").touch()
    return python


LAPLACE = """
import sys
import numpy as np, torch
from laplace.curvature import CurvlinopsGGN
from laplace.marglik_training import marglik_training
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
with np.load(sys.argv[1]) as file:
    data = dict(file)
torch.manual_seed(int(data["seed"]))
heads, widths, skips = (data[name].tolist() for name in ("heads", "widths", "skips"))
inputs, labels, new = (torch.tensor(data[name]) for name in ("path_inputs", "labels", "test_path_inputs"))
labels = labels.reshape(len(labels), -1)


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lower = torch.nn.Linear(inputs.shape[2], widths[0], bias=False)
        sizes = zip(heads, widths, widths[1:])
        self.values = torch.nn.ModuleList(torch.nn.Linear(h * below, above, bias=False) for h, below, above in sizes)
        self.readout = torch.nn.Linear(widths[-1], labels.shape[1], bias=False)
        for layer in (self.lower, *self.values, self.readout):
            torch.nn.init.normal_(layer.weight)

    def forward(self, x):
        hidden = self.lower(x) / x.shape[2] ** 0.5
        for count, skip, values in zip(heads, skips, self.values):
            skipping = int(skip > 0)
            hidden = hidden.unflatten(1, (count + skipping, -1))
            of_heads = hidden[:, skipping:].transpose(1, 2).flatten(2)
            attended = values(of_heads) / of_heads.shape[2] ** 0.5
            hidden = attended + skip * hidden[:, 0] if skipping else attended
        return self.readout(hidden[:, 0]) / hidden.shape[2] ** 0.5


loader = DataLoader(TensorDataset(inputs, labels), batch_size=len(inputs))
found, *_ = marglik_training(
    Network(), loader, "regression", "full", CurvlinopsGGN, optimizer_kwargs={"lr": 1e-2}, n_epochs=1500,
    prior_structure="layerwise", n_epochs_burnin=100, marglik_frequency=20, n_hypersteps=20,
)
mean, variance = found(new)
variance = variance.detach().reshape(len(mean), labels.shape[1], -1).diagonal(dim1=1, dim2=2)
np.savez(sys.argv[1], mean=mean.detach().numpy(), variance=variance.numpy(), noise=float(found.sigma_noise) ** 2)
"""

BY_NAME = {"exact": exact, "maximum": maximum, "Laplace": laplace, "GP": gaussian_process, "ridge": ridge}


def cell(name: str, model: ba.Model, seed: int, methods: list[str]) -> dict[str, Any]:
    """Results of all methods on one data set, stored one by one."""
    file = FOLDER / f"{name}.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    for method in methods:
        if method not in found:
            found[method] = BY_NAME[method](model, seed)
            file.write_text(json.dumps(found))
            print(name, method, found[method], flush=True)
    return found


def summary(cells: list[dict[str, Any]], noise: float | None) -> list[str]:
    """Rows of a table, a method each: means over data sets."""
    rows = ["| | T / true | intervals that cover | log score | new labels covered | RMSE |", "| --- " * 6 + "|"]
    for method in METHODS:
        known = [each[method] for each in cells if "log_score" in each.get(method, {})]
        if not known:
            continue
        ratios = np.array([each["noise"] for each in known]) / (noise or 1.0)
        intervals = [each["interval"] for each in known if each.get("interval")]
        covering = sum(low <= noise <= high for low, high in intervals) if noise else 0
        edges = sum("temperature" in each.get("edges", ()) for each in known)
        which = f"{covering} of {len(intervals)}" if intervals and noise else "-"
        which += f", {edges} without a maximum" if edges else ""
        low, middle, high = np.quantile(ratios, [0, 0.5, 1])
        text = f"{middle:.2g} ({low:.2g} to {high:.2g})" if len(known) > 1 else f"{middle:.3g}"
        means = {name: np.mean([each[name] for each in known]) for name in ("log_score", "covered", "rmse")}
        cells_of_row = (
            method,
            text,
            which,
            f"{means['log_score']:.3f}",
            f"{100 * means['covered']:.1f} %",
            f"{means['rmse']:.3f}",
        )
        rows.append(f"| {' | '.join(cells_of_row)} |")
    return rows


def draw(cells: dict[int, list[dict[str, Any]]], file: str) -> None:
    """T by each method, over the number of examples, with its interval."""
    colours, figure = plt.rcParams["axes.prop_cycle"].by_key()["color"], plt.figure(figsize=(7, 3.2))
    axes = figure.add_subplot()
    for place, of_seeds in enumerate(cells.values()):
        for number, method in enumerate(METHODS):
            for seed, each in enumerate(of_seeds):
                if "noise" not in (found := each.get(method, {})):
                    continue
                at = place + (number - 2) * 0.17 + (seed - 2) * 0.025
                value, low = max(found["noise"], 1e-4), found.get("interval")
                axes.plot(at, value, "o" if value > 1e-4 else "v", color=colours[number], markersize=3)
                if low:
                    axes.plot([at, at], low, color=colours[number], linewidth=1)
    for number, method in enumerate(METHODS):
        axes.plot([], [], "o", color=colours[number], label=method, markersize=4)
    axes.axhline(NOISE, color="grey", linewidth=0.8, zorder=0)
    axes.set_yscale("log")
    axes.set_ylim(8e-5, 3)
    axes.set_xticks(range(len(cells)), [f"{examples}" for examples in cells])
    axes.set_xlabel("training examples (rank 60), five data sets each")
    axes.set_ylabel("variance of the noise")
    axes.legend(frameon=False, ncols=len(METHODS), loc="lower center", bbox_to_anchor=(0.5, 1), fontsize=9)
    figure.savefig(file, dpi=160, bbox_inches="tight")


def main() -> None:
    """Print a table for each number of examples, one of all, and one for each task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, nargs="*", default=[20, 50, 100, 300])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", nargs="*", default=["hidden_markov", "digits", "splice"])
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=METHODS)
    parser.add_argument("--figure")
    arguments = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    cells: dict[int, list[dict[str, Any]]] = {}
    for examples in arguments.examples:
        names = [(f"{examples}_{seed}", synthetic(examples, seed), seed) for seed in range(arguments.seeds)]
        cells[examples] = [cell(*each, arguments.methods) for each in names]
        print(f"\n{examples} examples\n", *summary(cells[examples], NOISE), "", sep="\n", flush=True)
    if cells:
        print("\nAll\n", *summary([each for of_seeds in cells.values() for each in of_seeds], NOISE), "", sep="\n")
    for task in arguments.tasks:
        print(
            f"\n{task}\n", *summary([cell(task, of_task(task), 0, arguments.methods)], None), "", sep="\n", flush=True
        )
    if arguments.figure:
        draw(cells, arguments.figure)


if __name__ == "__main__":
    sys.exit(main())
