"""Command `bayesattn prune`: which heads can be removed?"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import bayesattn as ba
from bayesattn._util.plain import PlainDict, PlainMapping
from bayesattn._util.text import cell, with_error
from bayesattn.jobs import study
from bayesattn.jobs.cli.options import (
    HMC,
    Chains,
    Draws,
    FigureFile,
    Json,
    Overwrite,
    PrunedName,
    SamplerName,
    Seed,
    Temperature,
    Warmup,
    results_option,
)
from bayesattn.jobs.cli.screen import (
    bars,
    new_table,
    print_json,
    print_table,
    results_folder,
    save_results,
    say,
    say_where,
    training_bar,
)
from bayesattn.models import Model
from bayesattn.questions import pruning
from bayesattn.questions.pruning import Comparison
from bayesattn.samplers import Job
from bayesattn.tasks import training
from bayesattn.tasks.load import takes_seed


def prune(
    model: PrunedName,
    width: Annotated[int, typer.Option(help="Width at which U is drawn and solved for.")] = 10,
    temperature: Temperature = None,
    data_seed: Annotated[
        list[int] | None,
        typer.Option(help="Seed of the task's data and training; several give means and errors. By default 0, 1, 2."),
    ] = None,
    sampler: SamplerName = HMC,
    chains: Chains = 4,
    warmup: Warmup = 200,
    draws: Draws = 250,
    seed: Seed = 0,
    out: Annotated[Path | None, results_option("prune")] = None,
    figure: FigureFile = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Do head scores tell which heads can go? Remove heads of the trained network and of the posterior's mean predictor.

    If the model has validation examples, the temperature of greatest evidence is used, unless --temperature is given.

    Example: bayesattn prune one_shot_digits --width 10 --data-seed 0
    """
    folder = results_folder("prune", model, out, figure, overwrite)
    # Invalid settings of the sampler are found before training.
    settings: PlainDict = {
        "sampler": sampler.value,
        "chains": chains,
        "warmup": warmup,
        "draws": draws,
        "seed": seed,
    }
    Job(**settings)
    seeds = data_seed or ([0, 1, 2] if takes_seed(model) else [None])
    with bars(quiet=as_json) as shown:

        def networks() -> Iterator[tuple[Model, PlainMapping | None]]:
            for task_seed in seeds:
                trained = training_bar(shown, f"training, seed {task_seed}")
                case = ba.load_model(model, width=width, temperature=temperature, seed=task_seed, progress=trained)
                yield case, training.weights_of(case.task.get("attention"))

        outcome = study.prune(
            networks(),
            choose_temperature=temperature is None,
            choosing=lambda number: shown.add(f"temperature by evidence, seed {seeds[number]}"),
            sampling=lambda number: shown.sampling(f"sampling, seed {seeds[number]}", chains * (warmup + draws)),
            **settings,
        )
    content = {"model": model, "width": width, "data_seeds": seeds} | outcome.to_dict()
    save_results(folder, content, outcome.figure, figure, overwrite)
    if as_json:
        print_json(content)
    else:
        _print(outcome.comparisons, model, folder)


def _print(compared: list[Comparison], model: str, folder: Path) -> None:
    networks = compared[0].networks
    heads = pruning.heads_of(compared[0].model.architecture)
    temperatures = ", ".join(f"{t:g}" for t in dict.fromkeys(comparison.model.temperature for comparison in compared))
    seeds = f"{len(compared)} seeds" if len(compared) > 1 else "1 seed"
    table = new_table("head", "by theory", "by draws", *(f"lost, {name}" for name in networks))
    for number, (layer, head) in enumerate(heads):
        scores = [
            [np.concatenate(comparison.scores[name])[number] for comparison in compared] for name in ("theory", "draws")
        ]
        drops = [[100 * comparison.networks[name].drops[number] for comparison in compared] for name in networks]
        table.add_row(f"{layer + 1}.{head + 1}", *map(_mean, scores), *map(_mean, drops))
    width = compared[0].model.architecture.widths[0]
    print_table(f"Heads of {model}, N = {width}, T = {temperatures}, {seeds}", table)
    orders = list(dict.fromkeys(order for network in networks.values() for order in network.accuracies))
    table = new_table("network", "accuracy", "rank corr.", *orders, text=("network",))
    for name in networks:
        pruned = [comparison.networks[name] for comparison in compared]
        go = [
            _mean([network.dispensable(order) for network in pruned]) if order in pruned[0].accuracies else ""
            for order in orders
        ]
        correlation = _mean([comparison.correlation(name, "theory") for comparison in compared])
        table.add_row(name, _mean([100 * network.accuracy for network in pruned]), correlation, *go)
    print_table("Accuracy (%), and how many heads go in which order", table)
    errors = f"; ±: standard error over {seeds}" if len(compared) > 1 else ""
    say(
        "head: its layer and number; by theory, by draws: head scores; lost: points of test accuracy without the head alone;"
        " rank corr.: Spearman's, of the theory's score and what is lost; last columns: how many of"
        f" {len(heads)} heads go before more than {100 * pruning.MOST_ACCURACY_LOST:.0f} points are lost{errors}"
    )
    say_where(f"figure and results in {folder}")


def _mean(values: list[float]) -> str:
    if len(values) < 2:
        return cell(values[0], ".3g")
    return with_error(float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values))))
