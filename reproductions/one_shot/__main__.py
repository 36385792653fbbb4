"""Heads of trained one-shot networks, removed by score: `python -m reproductions.one_shot one_shot_digits`."""

import argparse
from collections.abc import Sequence

import numpy as np
import pandas as pd

import bayesattn as ba
from bayesattn.questions.heads.units import heads_of
from reproductions.one_shot import READY, load, training
from reproductions.one_shot.pruning import Comparison, compare


def main() -> None:
    """Sample each seed's posterior at N = 10, and print scores, what is lost without each head, and with how many heads."""
    parser = argparse.ArgumentParser(prog="python -m reproductions.one_shot", description=__doc__)
    parser.add_argument("name", choices=[*READY])
    parser.add_argument("--temperature", type=float, default=0.3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--draws", type=int, default=250)
    asked = parser.parse_args()
    compared = []
    for seed in asked.seeds:
        model = load(asked.name, temperature=asked.temperature, seed=seed)
        draws = ba.sample(model, "hmc", warmup=200, draws=asked.draws, keep=["order_parameter"])
        compared.append(compare(model, draws, training.weights_of(model.task["attention"])))
    print(tables(compared))


def tables(compared: Sequence[Comparison]) -> str:
    """Means over seeds: for each head its scores and what is lost without it; for each network how many heads can go."""
    networks, heads = compared[0].networks, heads_of(compared[0].model.architecture)
    columns = {score: [np.concatenate(each.scores[score]) for each in compared] for score in compared[0].scores}
    columns |= {f"lost, {name} (%)": [100 * each.networks[name].drops for each in compared] for name in networks}
    by_head = pd.DataFrame(
        {name: np.mean(values, 0) for name, values in columns.items()},
        index=pd.Index([f"{layer + 1}.{head + 1}" for layer, head in heads], name="head"),
    )
    rows = {
        name: {
            "accuracy (%)": np.mean([100 * each.networks[name].accuracy for each in compared]),
            "rank correlation": np.nanmean([each.correlation(name, "theory") for each in compared]),
            **{
                f"go by {order}": np.mean([each.networks[name].dispensable(order) for each in compared])
                for order in networks[name].accuracies
            },
        }
        for name in networks
    }
    return f"{by_head.round(3).to_string()}\n\n{pd.DataFrame(rows).T.round(2).to_string()}"


if __name__ == "__main__":
    main()
