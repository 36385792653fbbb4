"""Which attention does the posterior choose? Hidden Markov chains with hand-made, random, trained and sampled heads.

`uv run python benchmarks/learned_attention.py [--fast] [--figure FILE]` draws the posterior of all weights, queries and
keys among them, at N = 10, 100, 1000 and 10^9, which is the limit of infinite width to nine digits, and holds it against
networks with fixed heads: the hand-made ones of the task, random ones, and those of a network trained by gradients. It
writes one JSON file for each cell, goes on with what is missing if run again, and prints a table. `--fast` takes a tiny
task, whose numbers mean nothing. The cells of fixed heads took 13 minutes in all on two busy cores; each of sampled heads
takes most of an hour of one core.

- accuracy: of the mean predictor on the test sequences.
- log evidence: log p(Y | heads) by `bayesattn.theory.evidence`; of sampled heads log p(Y), by tempered sequential Monte
  Carlo.
- U: share of each path in tr U, in the order of the paths; heads of a layer that are sampled are exchangeable, so each
  draw's heads are put in the order of their alignment with the hand-made head (layer 1) and of their share in tr U
  (layer 2).
- alignment: cosine between the attention that the best aligned head of layer 1 pays and that of the hand-made same-token
  head, both without the uniform part, over the test sequences; beside it that of heads from the prior.
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import arviz_stats
import jax
import matplotlib.pyplot as plt
import numpy as np
import optax
import xarray as xr

import bayesattn as ba
from bayesattn.checks.diagnostics import diagnose
from bayesattn.jobs.plots.style import palette
from bayesattn.samplers.smc import anneal
from bayesattn.tasks import HiddenMarkov
from bayesattn.theory.predictor import right

WIDTHS = (10, 100, 1000, 10**9)
HEADS = ("hand-made", "random", "trained", "sampled")
TEMPERATURE, KEY_WIDTH, VARIANCE = 0.1, 4, 0.3
"""T, G, and the prior variance of the entries of queries and keys: logits then deviate by about 5.

The matrix of the hand-made head has rank 13, so no head of key width 4 equals it: cut to its four largest
singular values, it has alignment 0.17.
"""
FULL = {"examples": 100, "test_examples": 400, "tokens": 12, "dimension": 16}
FAST = {"examples": 10, "test_examples": 20, "tokens": 4, "dimension": 4}
NOISE = {"stay_probability": 0.8, "noise_difference": 0.3, "noise_sum": 0.3, "noise_orthogonal": 0.3}
"""Chains of which hand-made heads tell 98 % apart, and random ones hardly any."""
SAMPLING, WIDE_SAMPLING, FAST_SAMPLING = (4, 600, 1000), (4, 400, 600), (2, 50, 60)
"""Chains, warm-up and draws of each, up to N = 100, for wider networks, and with --fast."""
SEQUENCES = 50
"""Number of test sequences on which attention is compared."""
TRAINING_STEPS, LEARNING_RATE = 2000, 3e-3


def model_of(task: HiddenMarkov, width: int) -> ba.AttentionModel:
    """Posterior of the network that samples queries and keys."""
    data = task.dataset()
    return ba.AttentionModel(
        inputs=data.inputs,
        labels=data.labels,
        test_inputs=data.test_inputs,
        test_labels=data.test_labels,
        heads=(2, 2),
        widths=(width,) * 3,
        key_width=KEY_WIDTH,
        query_variance=VARIANCE,
        key_variance=VARIANCE,
        temperature=TEMPERATURE,
        name="learned attention",
    )


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


def sampled_cell(model: ba.AttentionModel, hand_made: np.ndarray, seed: int, fast: bool) -> dict:
    """Posterior with sampled heads."""
    began = time.perf_counter()
    keep = ("order_parameter", "prediction", "queries_keys")
    wide = model.architecture.widths[0] > 100
    chains, warmup, count = FAST_SAMPLING if fast else WIDE_SAMPLING if wide else SAMPLING
    draws = ba.sample(model, chains=chains, warmup=warmup, draws=count, keep=keep, seed=seed, progress=False)
    posterior, seconds = draws["posterior"].to_dataset(), time.perf_counter() - began
    mean = posterior["prediction"].mean(("chain", "draw")).values
    annealed = anneal(model, islands=4, particles=16 if fast else 128, seed=seed)
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
    by_chain = xr.DataArray(np.reshape(aligned, (posterior.sizes["chain"], -1)), dims=("chain", "draw"))
    rhat = float(arviz_stats.rhat(posterior[["prediction"]])["prediction"].max())
    diagnosed = diagnose(draws)
    return {
        "accuracy": float(np.mean(right(mean, model.test_labels))),
        "log_evidence": [annealed.log_evidence, annealed.error],
        "islands": annealed.islands.tolist(),
        "shares": np.mean(shares, axis=0).tolist(),
        "alignment": float(np.mean(aligned)),
        "alignment_by_chain": by_chain.mean("draw").values.tolist(),
        "rhat": rhat,
        "ess": diagnosed.ess,
        "seconds": seconds,
    }


def prior_alignment(model: ba.AttentionModel, hand_made: np.ndarray) -> float:
    """Mean alignment of the best head of networks drawn from the prior."""
    rng, found = np.random.default_rng(0), []
    for _ in range(50):
        heads = tuple(np.sqrt(VARIANCE) * rng.normal(size=(2, KEY_WIDTH, model.features)) for _ in range(2))
        found.append(alignment(model.test_inputs[:SEQUENCES], heads, hand_made).max())
    return float(np.mean(found))


def cell(task: HiddenMarkov, width: int, kind: str, seed: int, fast: bool, folder: Path) -> dict:
    """Numbers of one cell, from its file if that is there."""
    file = folder / f"{kind.replace(' ', '_')}-{width}-{task.seed}-{seed}.json"
    if file.exists():
        return json.loads(file.read_text())
    model, data = model_of(task, width), task.dataset()
    hand_made = np.asarray(data.weights[0])[0]
    if kind == "sampled":
        found = sampled_cell(model, hand_made, seed, fast)
    else:
        made = {
            "hand-made": lambda: data.weights,
            "random": lambda: dataclasses.replace(task, layers=(("random",) * 2,) * 2).dataset().weights,
            "trained": lambda: trained_heads(model, seed, 20 if fast else TRAINING_STEPS),
        }
        found = fixed_cell(model, made[kind](), hand_made)
    found |= {"heads": kind, "width": width, "prior_alignment": prior_alignment(model, hand_made)}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found, indent=1))
    return found


def table(cells: list[dict]) -> list[str]:
    """Rows of the table."""
    lines = [
        "| heads | N | accuracy | log evidence | share of each path in tr U | alignment | R-hat |",
        "|" + " --- |" * 7,
    ]
    for each in cells:
        width = "limit" if each["width"] == WIDTHS[-1] else f"{each['width']:,}"
        rhat = each.get("rhat")
        told = "" if rhat is None else f"{rhat:.2f}" + (": cannot tell" if rhat > 1.05 else "")
        shares = ", ".join(f"{share:.2f}" for share in each["shares"])
        evidence = "{:.1f} ± {:.1g}".format(*each["log_evidence"])
        row = (
            each["heads"],
            width,
            f"{100 * each['accuracy']:.1f} %",
            evidence,
            shares,
            f"{each['alignment']:.2f}",
            told,
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
    styles = zip(HEADS, "s^Do", (colors.green, colors.grey, colors.purple, colors.orange), strict=True)
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
    parser.add_argument("--widths", nargs="*", type=int, default=WIDTHS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figure", type=Path, help="draw the figure here")
    given = parser.parse_args()
    sizes: dict[str, Any] = (FAST if given.fast else FULL) | NOISE
    task = HiddenMarkov(**sizes)
    folder = given.out / ("fast" if given.fast else "full")
    cells = []
    for kind in given.only:
        for width in given.widths:
            cells.append(cell(task, width, kind, given.seed, given.fast, folder))
            print(table(cells[-1:])[2], flush=True)
    print("\n".join(["", *table(cells)]))
    if given.figure is not None:
        draw(cells, given.figure)


if __name__ == "__main__":
    main()
