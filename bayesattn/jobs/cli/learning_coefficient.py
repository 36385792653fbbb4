"""Command `bayesattn learning-coefficient`: the learning coefficient of a posterior at several temperatures."""

from pathlib import Path
from typing import Annotated

import typer

import bayesattn as ba
from bayesattn._util.text import cells
from bayesattn.checks import mixing
from bayesattn.jobs import runs
from bayesattn.jobs.cli import options, output, screen
from bayesattn.jobs.plots import learning_coefficient_figure

COLUMNS = {
    "T": ("T", ".2g"),
    "E[S - S*] / 2T": ("value", ".3f"),
    "error": ("error", ".3f"),
    "fluctuation": ("fluctuation", ".3f"),
    "ESS": mixing.COLUMNS["ESS"],
    "R-hat": mixing.COLUMNS["R-hat"],
}
"""Columns of the table shown: the number under each heading, and its format."""


def learning_coefficient(
    model: options.ModelName,
    width: options.Width = None,
    data_seed: options.DataSeed = None,
    temperatures: Annotated[
        list[float] | None,
        typer.Option(
            "--temperature",
            "--temperatures",
            help="Temperature T; several may be given. By default nine powers of ten, or as many as float64 allows.",
        ),
    ] = None,
    best_fit: Annotated[
        float | None, typer.Option("--best-fit", help="S*, the least |Y - f|^2 of all weights, if it is known.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs, which are resumed; by default in out.")] = None,
    chains: options.Chains = 4,
    warmup: options.Warmup = 500,
    draws: options.Draws = 1000,
    seed: options.Seed = 0,
    figure: options.FigureFile = None,
    overwrite: options.OverwriteFigure = False,
    as_json: options.Json = False,
) -> None:
    """The learning coefficient at several temperatures, its limit and multiplicity. The same command resumes.

    Exit status 0 if the temperatures determine the limit, 2 if not.

    Example: bayesattn learning-coefficient hidden_markov --width 10
    """
    output.require_free_figure(figure, overwrite)
    case = ba.load_model(model, width=width, seed=data_seed)
    folder = out or output.run_folder("learning-coefficient", model, N=width, data=data_seed)
    with screen.working("sampling", quiet=as_json) as bar:
        found = ba.learning_coefficient(
            case,
            temperatures,
            best_fit=best_fit,
            chains=chains,
            warmup=warmup,
            draws=draws,
            seed=seed,
            sample=lambda cold, **job: runs.sample(cold, folder / f"T={cold.temperature!r}", **job),
            progress=lambda text: bar.update(note=text),
        )
    if as_json:
        screen.print_json(found.to_dict())
    else:
        summary = found.summary().reset_index(names="T")
        if "fluctuation" not in summary:
            summary["fluctuation"] = float("nan")
        rows = [cells(row, COLUMNS) for row in summary.to_dict("records")]
        screen.print_table(f"{case.name or model}: learning coefficient", rows)
        screen.say(f"S* = {found.best_fit.square:.4g}, {found.best_fit.how}")
        if found.stopped is not None:
            screen.say(found.stopped)
        for doubt in found.doubts:
            screen.say(doubt, style="yellow")
        screen.say(found.fit.statement)
        screen.say_where(f"runs in {folder}")
    output.save_figure(lambda: learning_coefficient_figure(found), figure, overwrite, as_json)
    raise typer.Exit(screen.HOLDS if found.fit.used else screen.CANNOT_TELL)
