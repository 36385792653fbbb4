"""Command `bayesattn plot`: figures of a run."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bayesattn.errors import BayesattnError
from bayesattn.jobs.cli import options, output, screen
from bayesattn.jobs.plots import KINDS
from bayesattn.jobs.plots.run import figure_and_lacking
from bayesattn.jobs.plots.style import checked_file, save

Kind = StrEnum("Kind", list(zip(KINDS, KINDS, strict=True)))


def plot(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run that `bayesattn sample` made.")],
    kind: Annotated[
        list[Kind] | None,
        typer.Option(help="What to draw; may be given several times. By default every kind that has data."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file: PNG, PDF or SVG by its ending. By default the run's name, as PNG, in this folder."
        ),
    ] = None,
    overwrite: options.OverwriteOut = False,
) -> None:
    """Draw a run on one page: traces, ranks, effective sample size, energy, U (or z) and predictions.

    Example: bayesattn plot out/run --out run.pdf
    """
    file = checked_file("--out", Path(f"{run.resolve().name}.png") if out is None else out, overwrite=True)
    if run.resolve() in file.resolve().parents:
        raise BayesattnError(f"--out must not be in the run, got {file}")
    output.refuse_to_overwrite(file, overwrite, folder=False)
    with screen.working("reading the run, drawing"):
        figure, missing = figure_and_lacking(run, [of.value for of in kind or ()] or None)
        save(figure, file, overwrite=overwrite)
    for name, why in ({} if kind else missing).items():
        screen.console.print(f"no {name}: {why}")
    screen.say_where(f"figure in {file}")
