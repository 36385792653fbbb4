"""Which attention does the posterior choose? Hidden Markov chains with hand-made, random, trained and sampled heads.

`uv run python benchmarks/learned_attention.py [--examples 25 50 100] [--widths ..] [--seeds ..] [--figure FILE] [--fast]`
draws the posterior of all weights, queries and keys among them, at N = 10, 100, 1000 and 10^9, which is the limit of
infinite width to nine digits, and holds it against networks with fixed heads: the hand-made ones of the task, random ones,
and those of a network trained by gradients. Key width is the rank of the hand-made head, so that sampled heads can equal it.
It writes one file for each cell, goes on where it was stopped if run again, and prints a table. `--fast` takes a tiny task,
whose numbers mean nothing.

- accuracy: of the mean predictor on the test sequences.
- log evidence: log p(Y | heads) by `bayesattn.theory.evidence`; of sampled heads log p(Y), by parallel tempering, and by
  tempered sequential Monte Carlo (annealed).
- U: share of each path in tr U, in the order of the paths; heads of a layer that are sampled are exchangeable, so each
  draw's heads are put in the order of their alignment with the hand-made head (layer 1) and of their share in tr U
  (layer 2).
- alignment: cosine between the attention that the best aligned head of layer 1 pays and that of the hand-made same-token
  head, both without the uniform part, over the test sequences; beside it that of heads from the prior.
- R-hat: of the predictions, between runs that began with heads from the prior, trained ones and hand-made ones.
"""

import argparse
import dataclasses
import itertools
import json
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import arviz_stats
import jax
import matplotlib.pyplot as plt
import numpy as np
import optax
import xarray as xr
from numpyro.infer import MCMC

import bayesattn as ba
from bayesattn._util.text import with_error
from bayesattn.jobs.plots.style import palette
from bayesattn.models import CollapsedAttention
from bayesattn.models.interface import TEMPERED_FIELDS
from bayesattn.samplers.smc import anneal
from bayesattn.tasks import HiddenMarkov
from bayesattn.theory.predictor import right

WIDTHS = (10, 100, 1000, 10**9)
HEADS = ("hand-made", "random", "trained", "sampled", "annealed")
STARTS = ("prior", "trained", "hand-made")
"""Heads with which runs of sampled heads begin."""
TEMPERATURE, KEY_WIDTH, VARIANCE = 0.1, 13, 0.3
"""T, G, and the prior variance of the entries of queries and keys: logits then deviate by about 5.

G is the rank of the matrix of the hand-made head, so that a sampled head can equal it.
"""
FULL = {"test_examples": 400, "tokens": 12, "dimension": 16}
FAST = {"test_examples": 20, "tokens": 4, "dimension": 4}
NOISE = {"stay_probability": 0.8, "noise_difference": 0.3, "noise_sum": 0.3, "noise_orthogonal": 0.3}
"""Chains of which hand-made heads tell 98 % apart, and random ones hardly any."""
WARMUP, FAST_DRAWS, DRAWS = 300, 60, {25: 1500, 50: 2500, 100: 4000}
"""Transitions of a run's warm-up, and draws, by number of sequences: enough for twenty round trips."""
KEPT, BLOCK = 300, 100
"""Draws of which predictions are kept, and draws from checkpoint to checkpoint."""
EXAMPLES = (25, 50, 100)
REPLICAS = {25: 14, 50: 18, 100: 24}
"""Replicas by number of sequences: above twice the barrier."""
SEQUENCES = 50
"""Number of test sequences on which attention is compared."""
TRAINING_STEPS, LEARNING_RATE = 2000, 3e-3


def model_of(task: HiddenMarkov, width: int, examples: int, key_width: int = KEY_WIDTH) -> ba.AttentionModel:
    """Posterior of the network that samples queries and keys, of the first chains of a task."""
    data = task.dataset()
    return ba.AttentionModel(
        inputs=data.inputs[:examples],
        labels=data.labels[:examples],
        test_inputs=data.test_inputs,
        test_labels=data.test_labels,
        heads=(2, 2),
        widths=(width,) * 3,
        key_width=key_width,
        query_variance=VARIANCE,
        key_variance=VARIANCE,
        temperature=TEMPERATURE,
        name="learned attention",
    )


def factored(heads: Any, key_width: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Queries and keys of each layer whose logits are those of bilinear heads, up to the key width."""
    found = []
    for layer in heads:
        left, values, right = np.linalg.svd(np.asarray(layer))
        roots = np.sqrt(values[:, :, None] * np.sqrt(key_width))
        pair = (roots * right)[:, :key_width], (roots * np.swapaxes(left, 1, 2))[:, :key_width]
        missing = key_width - pair[0].shape[1]
        found.append(tuple(np.pad(each, ((0, 0), (0, missing), (0, 0))) for each in pair))
    return found


def trained_heads(model: ba.AttentionModel, seed: int, steps: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Queries and keys of a network whose weights, all of them, climb the log posterior by Adam from a prior draw."""
    density = model.replace(width=min(model.architecture.widths[0], 100)).log_density("token")
    optimiser = optax.adam(LEARNING_RATE)

    @jax.jit
    def trained(vector):
        def step(carry, _):
            vector, state = carry
            value, slope = jax.value_and_grad(lambda v: -density.function(v))(vector)
            change, state = optimiser.update(slope, state, vector)
            return (optax.apply_updates(vector, change), state), value

        return jax.lax.scan(step, (vector, optimiser.init(vector)), length=steps)[0][0]

    sites = density.sites(trained(density.initial(jax.random.key(seed))))
    named = density.posterior.prior.named(sites)  # pyright: ignore[reportAttributeAccessIssue]
    return [(np.asarray(named[f"queries_{layer}"]), np.asarray(named[f"keys_{layer}"])) for layer in (1, 2)]


def alignment(inputs: np.ndarray, heads: Any, hand_made: np.ndarray) -> np.ndarray:
    """Cosine of the attention of each head of layer 1 with the hand-made head's, without the uniform part."""
    [mine] = ba.attention.matrices(inputs, [heads])
    [own] = ba.attention.matrices(inputs, [hand_made[None]])
    mine, own = (np.asarray(each) - 1 / inputs.shape[1] for each in (mine, own))
    products = np.einsum("ehqk,eqk->h", mine, own[:, 0])
    norms = np.sqrt(np.einsum("ehqk->h", mine**2) * np.sum(own**2))
    return products / np.where(norms == 0, np.inf, norms)


def fixed_cell(model: ba.AttentionModel, heads: Any, hand_made: np.ndarray) -> dict:
    """Theory of the posterior with these heads."""
    fixed = model.given(heads)
    solved = ba.theory.solve(fixed)
    evidence = ba.theory.evidence(fixed, seed=0)
    own = np.diag(solved.order_parameter)
    mean = np.asarray(ba.theory.predict(solved.order_parameter, fixed).mean)
    return {
        "accuracy": float(np.mean(right(mean, model.test_labels))),
        "log_evidence": [evidence.log_evidence, evidence.error],
        "shares": list(own / own.sum()),
        "alignment": float(alignment(model.test_inputs[:SEQUENCES], heads[0], hand_made).max()),
    }


def run(
    model: ba.AttentionModel, heads: list | None, replicas: int, draws: int, seed: int, checkpoint: Path
) -> xr.Dataset:
    """Tempered draws of one chain, begun with these queries and keys, or with some from the prior.

    Goes on from the checkpoint if there is one, to the same draws as without a stop.
    """
    posterior = CollapsedAttention.ready(model)
    sites = posterior.initial(jax.random.key(seed))
    if heads is not None:
        for layer, pair in enumerate(heads, 1):
            sites |= {
                f"whitened_{kind}_{layer}": array / np.sqrt(VARIANCE)
                for kind, array in zip(("queries", "keys"), pair, strict=True)
            }
    kernel = ba.samplers.Tempered(type(posterior).program, replicas=replicas)
    length = min(BLOCK, draws)
    mcmc = MCMC(kernel, num_warmup=WARMUP, num_samples=length, progress_bar=False)
    blocks: list[Any] = []
    if checkpoint.exists():
        mcmc.post_warmup_state, blocks = pickle.loads(checkpoint.read_bytes())
    while length * len(blocks) < draws:
        before = mcmc.post_warmup_state
        key = jax.random.PRNGKey(seed) if before is None else before.rng_key
        mcmc.run(key, posterior, init_params=sites)
        mcmc.post_warmup_state = mcmc.last_state
        block = mcmc.get_samples(group_by_chain=True), mcmc.get_extra_fields(group_by_chain=True)
        blocks.append(jax.device_get(block))
        new = checkpoint.with_suffix(".new")
        new.write_bytes(pickle.dumps((jax.device_get(mcmc.last_state), blocks)))
        new.replace(checkpoint)
        print(f"{checkpoint.stem}: {length * len(blocks)} of {draws} draws", flush=True)
    samples, statistics = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *blocks)
    tree = ba.from_numpyro(samples, model, "collapsed", seed=seed)
    tree["sample_stats"] = xr.Dataset(
        {
            name: (
                ("chain", "draw", *(f"{name}_{axis}" for axis in range(statistics[field].ndim - 2))),
                statistics[field],
            )
            for field, name in TEMPERED_FIELDS.items()
        },
        coords={"draw": tree["posterior"]["draw"]},
    )
    found = ba.tempering(tree)
    kept = tree["posterior"].to_dataset().isel(draw=slice(None, None, max(1, draws // KEPT)))
    numbers = {"log_evidence": found.log_evidence, "evidence_error": found.error, "barrier": found.barrier}
    numbers |= {"round_trips": int(found.round_trips[0]), "restarts": int(found.restarts[0])}
    names = ["order_parameter", "prediction", *(f"{kind}_{layer}" for layer in (1, 2) for kind in ("queries", "keys"))]
    return kept[names].assign_attrs(numbers | {"powers": found.powers[0], "barriers": found.barriers[0]})


def sampled_cell(runs: list[xr.Dataset], model: ba.AttentionModel, hand_made: np.ndarray) -> dict:
    """Numbers of runs of sampled heads that began in different places."""
    posterior = xr.concat(runs, "chain")
    logs, errors = (np.array([one.attrs[name] for one in runs]) for name in ("log_evidence", "evidence_error"))
    aligned, shares = [], []
    thin = max(1, posterior.sizes["draw"] // 50)
    for chain in range(posterior.sizes["chain"]):
        for draw in range(0, posterior.sizes["draw"], thin):
            one = posterior.isel(chain=chain, draw=draw)
            cosines = alignment(
                model.test_inputs[:SEQUENCES], (one["queries_1"].values, one["keys_1"].values), hand_made
            )
            own = np.diag(one["order_parameter"].values).reshape(2, 2)[np.argsort(-cosines)]
            own = own[:, np.argsort(-own.sum(0))]
            aligned.append(cosines.max())
            shares.append(own.ravel() / own.sum())
    by_chain = np.reshape(aligned, (posterior.sizes["chain"], -1))
    mean = posterior["prediction"].mean(("chain", "draw")).values
    return {
        "accuracy": float(np.mean(right(mean, model.test_labels))),
        "log_evidence": [float(logs.mean()), float(np.std(logs, ddof=1) / np.sqrt(len(logs)))],
        "log_evidence_by_run": logs.tolist(),
        "errors_by_run": errors.tolist(),
        "barrier": float(np.mean([one.attrs["barrier"] for one in runs])),
        "round_trips": [int(one.attrs["round_trips"]) for one in runs],
        "shares": np.mean(shares, axis=0).tolist(),
        "alignment": float(np.mean(aligned)),
        "alignment_by_run": by_chain.mean(1).tolist(),
        "rhat": float(arviz_stats.rhat(posterior[["prediction"]])["prediction"].max()),
    }


def prior_alignment(model: ba.AttentionModel, hand_made: np.ndarray) -> float:
    """Mean alignment of the best head of networks drawn from the prior."""
    rng, found = np.random.default_rng(0), []
    for _ in range(50):
        heads = tuple(np.sqrt(VARIANCE) * rng.normal(size=(2, KEY_WIDTH, model.features)) for _ in range(2))
        found.append(alignment(model.test_inputs[:SEQUENCES], heads, hand_made).max())
    return float(np.mean(found))


def cell(examples: int, width: int, kind: str, seed: int, fast: bool, folder: Path, starts: list[str]) -> dict | None:
    """Numbers of one cell, from its file if that is there; of sampled heads None until all starts have run."""
    name = f"{kind.replace(' ', '_')}-{examples}-{width}-{seed}"
    file = folder / f"{name}.json"
    if file.exists():
        return json.loads(file.read_text())
    sizes: dict[str, Any] = (FAST if fast else FULL) | NOISE
    task = HiddenMarkov(**sizes, examples=examples + examples % 2, seed=seed)
    model, data = model_of(task, width, examples), task.dataset()
    hand_made = np.asarray(data.weights[0])[0]
    file.parent.mkdir(parents=True, exist_ok=True)
    trained = partial(trained_heads, model, seed, 20 if fast else TRAINING_STEPS)
    if kind == "sampled":
        begun = {"prior": lambda: None, "trained": trained, "hand-made": lambda: factored(data.weights, KEY_WIDTH)}
        for number, start in enumerate(starts):
            if not (of_run := folder / f"{name}-{start}.nc").exists():
                replicas = REPLICAS.get(examples, 12)
                draws = FAST_DRAWS if fast else DRAWS.get(examples, 1500)
                checkpoint = of_run.with_suffix(".checkpoint")
                run(model, begun[start](), replicas, draws, 10 * seed + number, checkpoint).to_netcdf(of_run)
                checkpoint.unlink()
        files = [folder / f"{name}-{start}.nc" for start in STARTS]
        if not all(of_run.exists() for of_run in files):
            return None
        found = sampled_cell([xr.load_dataset(of_run) for of_run in files], model, hand_made)
    elif kind == "annealed":
        annealed = anneal(model, islands=4, particles=16 if fast else 256, seed=seed)
        found = {"log_evidence": [annealed.log_evidence, annealed.error], "islands": annealed.islands.tolist()}
    else:
        random = partial(dataclasses.replace, task, layers=(("random",) * 2,) * 2)
        made = {"hand-made": lambda: data.weights, "random": lambda: random().dataset().weights, "trained": trained}
        found = fixed_cell(model, made[kind](), hand_made)
    found |= {"heads": kind, "examples": examples, "width": width, "prior_alignment": prior_alignment(model, hand_made)}
    file.write_text(json.dumps(found, indent=1))
    return found


def table(cells: list[dict]) -> list[str]:
    """Rows of the table."""
    lines = [
        "| heads | P | N | accuracy | log evidence | share of each path in tr U | alignment | round trips | R-hat |",
        "|" + " --- |" * 9,
    ]
    for each in cells:
        width = "limit" if each["width"] == WIDTHS[-1] else f"{each['width']:,}"
        rhat = each.get("rhat")
        row = (
            each["heads"],
            str(each["examples"]),
            width,
            f"{100 * each['accuracy']:.1f} %" if "accuracy" in each else "",
            with_error(*each["log_evidence"]),
            ", ".join(f"{share:.2f}" for share in each.get("shares", ())),
            f"{each['alignment']:.2f}" if "alignment" in each else "",
            ", ".join(map(str, each.get("round_trips", ()))),
            "" if rhat is None else f"{rhat:.2f}" + (": cannot tell" if rhat > 1.05 else ""),
        )
        lines.append("| " + " | ".join(row) + " |")
    lines.append(
        f"\nThe best aligned of two heads from the prior has alignment {cells[0]['prior_alignment']:.2f} on average."
    )
    return lines


def draw(cells: list[dict], file: Path) -> None:
    """Write the figure: evidence, accuracy and alignment of each kind of heads against the width."""
    colors, titles = palette(), ("The evidence of attention", "What it predicts", "How it looks")
    names = ("log evidence (nats)", "accuracy (%)", "alignment with hand-made head")
    styles = zip(HEADS[:-1], "s^Do", (colors.green, colors.grey, colors.purple, colors.orange), strict=True)
    figure, panels = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
    for kind, marker, color in styles:
        if not (mine := [each for each in cells if each["heads"] == kind]):
            continue
        places = [min(each["width"], 10 * WIDTHS[-2]) for each in mine]
        logs, errors = np.array([each["log_evidence"] for each in mine]).T
        values = (logs, [100 * each["accuracy"] for each in mine], [each["alignment"] for each in mine])
        for panel, value, error in zip(panels, values, (errors, None, None), strict=True):
            panel.errorbar(places, value, error, fmt=f"{marker}-", ms=5, color=color, label=kind)
    panels[2].axhline(cells[0]["prior_alignment"], color=colors.grey, ls="--", lw=1)
    for panel, title, name in zip(panels, titles, names, strict=True):
        panel.set(xscale="log", xlabel="width N", ylabel=name, title=title)
        panel.set_xticks([10, 100, 1000, 10000], ["10", "100", "1000", "∞"])
        panel.minorticks_off()
    panels[0].legend(fontsize=8, frameon=False)
    panels[2].legend(panels[2].get_lines()[-1:], ["heads from the prior"], fontsize=8, frameon=False, loc="center")
    figure.savefig(file, dpi=150)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("out/learned_attention"))
    parser.add_argument("--only", nargs="*", choices=HEADS, default=HEADS)
    parser.add_argument("--starts", nargs="*", choices=STARTS, default=STARTS, help="of sampled heads")
    parser.add_argument("--examples", nargs="*", type=int)
    parser.add_argument("--widths", nargs="*", type=int, default=WIDTHS)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--figure", type=Path, help="draw the figure of the largest number of examples here")
    given = parser.parse_args()
    folder = given.out / ("fast" if given.fast else "full")
    sizes = given.examples or ([10] if given.fast else EXAMPLES)
    cells = []
    for kind, examples, width, seed in itertools.product(given.only, sizes, given.widths, given.seeds):
        found = cell(examples, width, kind, seed, given.fast, folder, given.starts)
        if found is not None:
            cells.append(found)
            print(table(cells[-1:])[2], flush=True)
    print("\n".join(["", *table(cells)]))
    if given.figure is not None:
        draw([each for each in cells if each["examples"] == max(sizes)], given.figure)


if __name__ == "__main__":
    main()
