"""Command `bayesattn learning-coefficient`: the learning coefficient of a posterior at several temperatures."""

from pathlib import Path
from typing import Annotated

import typer

import bayesattn as ba
from bayesattn._util.text import cell
from bayesattn.jobs import runs
from bayesattn.jobs.cli.options import Chains, DataSeed, Draws, FigureFile, Json, ModelName, Seed, Warmup, Width, models
from bayesattn.jobs.cli.screen import (
    CANNOT_TELL,
    HOLDS,
    new_table,
    print_json,
    print_table,
    require_free_figure,
    say,
    say_where,
    working,
)

COLUMNS = {"value": ".3f", "error": ".3f", "fluctuation": ".3f", "ess": ".0f", "rhat": ".3f"}
"""Columns of the table shown, and their formats."""
HEADINGS = "T", "E[S - S*] / 2T", "error", "fluctuation", "ESS", "R-hat"


def learning_coefficient(
    model: ModelName,
    width: Width = None,
    data_seed: DataSeed = None,
    temperatures: Annotated[
        list[float] | None,
        typer.Option(
            "--temperature",
            "--temperatures",
            help="Temperature T; several may be given. By default nine decades, or as many as float64 allows.",
        ),
    ] = None,
    best_fit: Annotated[
        float | None, typer.Option("--best-fit", help="S*, the least |Y - f|^2 of all weights, if it is known.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the runs, which are resumed; by default in out."),
    ] = None,
    chains: Chains = 4,
    warmup: Warmup = 500,
    draws: Draws = 1000,
    seed: Seed = 0,
    figure: FigureFile = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing file at --figure.")] = False,
    as_json: Json = False,
) -> None:
    """The learning coefficient at several temperatures, its limit and multiplicity. The same command resumes.

    Exit status 0 if the temperatures determine the limit, 2 if not.

    Example: bayesattn learning-coefficient hidden_markov --width 10
    """
    require_free_figure(figure, overwrite)
    [case] = models(model, None if width is None else [width], None, data_seed)
    parts = {"N": width, "data": data_seed}
    name = "-".join(
        ["learning-coefficient", Path(model).stem, *(f"{k}={v}" for k, v in parts.items() if v is not None)]
    )
    folder = out or Path("out") / name
    with working("sampling", quiet=as_json) as bar:
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
        print_json(found.to_dict())
    else:
        table = new_table(*HEADINGS)
        summary = found.summary()
        if "fluctuation" not in summary:
            summary["fluctuation"] = float("nan")
        for temperature, *numbers in summary[[*COLUMNS]].itertuples():
            shown = (cell(float(number), form) for number, form in zip(numbers, COLUMNS.values(), strict=True))
            table.add_row(f"{temperature:.2g}", *shown)
        print_table(f"{case.name or model}: learning coefficient", table)
        say(f"S* = {found.best_fit.square:.4g}, {found.best_fit.how}")
        if found.stopped is not None:
            say(found.stopped)
        say(found.fit.statement)
        say_where(f"runs in {folder}")
    if figure is not None:
        from bayesattn.jobs.plots import learning_coefficient_figure, save

        save(learning_coefficient_figure(found), figure, overwrite=overwrite)
        if not as_json:
            say_where(f"figure in {figure}")
    raise typer.Exit(HOLDS if found.fit.used else CANNOT_TELL)
