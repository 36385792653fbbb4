"""bayesattn prune: which heads can go?"""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

import bayesattn as ba
from bayesattn import pruning, study
from bayesattn.cli.options import (
    HMC,
    Chains,
    Draws,
    FigureFile,
    Json,
    ModelName,
    Overwrite,
    SamplerName,
    Seed,
    Temperature,
    Warmup,
)
from bayesattn.cli.screen import (
    free_folder,
    print_json,
    refuse_to_overwrite,
    require_free_figure,
    sampling_progress,
    save_results,
    screen,
    training_progress,
)
from bayesattn.models.load import takes_seed
from bayesattn.pruning import Comparison
from bayesattn.samplers import Job
from bayesattn.tasks import training


def prune(
    model: ModelName,
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
    out: Annotated[
        Path | None, typer.Option(help="Folder for figure and results; by default out/prune-MODEL, numbered if taken.")
    ] = None,
    figure: FigureFile = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Do head scores tell which heads can go? Remove heads of the trained network and of the posterior's mean predictor.

    The temperature is the one of greatest evidence where the model has validation examples, unless --temperature is given.
    """
    folder = out or free_folder(Path("out") / f"prune-{Path(model).stem}")
    refuse_to_overwrite(folder, overwrite)
    require_free_figure(figure, overwrite)
    # Bad settings of the sampler are found before any training.
    settings: dict[str, Any] = {
        "sampler": sampler.value,
        "chains": chains,
        "warmup": warmup,
        "draws": draws,
        "seed": seed,
    }
    Job(**settings)
    seeds, comparisons = data_seed or ([0, 1, 2] if takes_seed(model) else [None]), []
    for task_seed in seeds:
        with training_progress(f"training, seed {task_seed}", quiet=as_json) as trained:
            case = ba.load_model(model, width=width, temperature=temperature, seed=task_seed, progress=trained)
        networks = [(case, training.weights_of(case.task.get("attention")))]
        with sampling_progress(chains * (warmup + draws), quiet=as_json) as bar:
            comparisons += study.prune(
                networks,
                choose_temperature=temperature is None,
                choosing=lambda _, task_seed=task_seed: bar(f"temperature by evidence, seed {task_seed}", None),
                sampling=lambda _, task_seed=task_seed: bar(f"sampling, seed {task_seed}"),
                **settings,
            ).comparisons
    outcome = study.PruningStudy(comparisons)
    content = {"model": model, "width": width, "data_seeds": seeds} | outcome.to_dict()
    save_results(folder, content, outcome.figure(), figure)
    if as_json:
        print_json(content)
    else:
        _print(outcome.comparisons, model, folder)


def _print(compared: list[Comparison], model: str, folder: Path) -> None:
    networks = compared[0].networks
    heads = pruning.heads_of(compared[0].model.architecture)
    temperatures = ", ".join(f"{comparison.model.temperature:g}" for comparison in compared)
    title = (
        f"Heads of {model}, N = {compared[0].model.architecture.widths[0]}, {len(compared)} seeds, T = {temperatures}"
    )
    table = Table(title=title, box=None)
    for heading in ("layer", "head", "by theory", "by draws", *(f"lost, {name}" for name in networks)):
        table.add_column(heading, justify="right")
    for number, (layer, head) in enumerate(heads):
        scores = [
            [np.concatenate(comparison.scores[name])[number] for comparison in compared] for name in ("theory", "draws")
        ]
        drops = [[100 * comparison.networks[name].drops[number] for comparison in compared] for name in networks]
        cells = [_mean(values, ".2f") for values in scores] + [_mean(values, ".1f") for values in drops]
        table.add_row(str(layer + 1), str(head + 1), *cells)
    screen.print(table)
    table = Table(title="Accuracy (%), and how many heads go in which order", box=None)
    for heading in ("network", "accuracy", "rank corr.", *(order for order in _orders(compared))):
        table.add_column(heading, justify="right" if heading != "network" else "left")
    for name in networks:
        pruned = [comparison.networks[name] for comparison in compared]
        go = [
            _mean([network.dispensable(order) for network in pruned], ".1f") if order in pruned[0].accuracies else ""
            for order in _orders(compared)
        ]
        accuracy = _mean([100 * network.accuracy for network in pruned], ".1f")
        table.add_row(
            name, accuracy, _mean([comparison.correlation(name, "theory") for comparison in compared], ".2f"), *go
        )
    screen.print(table)
    screen.print(
        "by theory, by draws: head scores; lost: points of test accuracy without the head alone; rank corr.: Spearman's, of"
        f" the theory's score and what is lost; last columns: how many of {len(heads)} heads go before more than"
        f" {100 * pruning.MOST_LOST:.0f} points are lost; ±: standard error over {len(compared)} seeds"
    )
    screen.print(f"figure and results in {folder}")


def _orders(compared: list[Comparison]) -> list[str]:
    return list(dict.fromkeys(order for network in compared[0].networks.values() for order in network.accuracies))


def _mean(values: list[float], form: str) -> str:
    error = f" ± {np.std(values, ddof=1) / np.sqrt(len(values)):{form}}" if len(values) > 1 else ""
    return f"{np.mean(values):{form}}{error}"
