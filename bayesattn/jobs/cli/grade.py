"""Command `bayesattn grade`: are these draws of a reference posterior right?"""

from pathlib import Path
from typing import Annotated

import typer

from bayesattn._util.text import cell
from bayesattn.jobs.cli.options import FigureFile, Json, Overwrite
from bayesattn.jobs.cli.screen import (
    CANNOT_TELL,
    FAILS,
    HOLDS,
    new_table,
    print_json,
    print_table,
    require_free_figure,
    say,
    say_where,
    working,
)
from bayesattn.questions.grading import BIASED, MARGIN, RIGHT
from bayesattn.questions.grading import grade as graded

COLUMNS = {"bias": "+.3f", "error": ".3f", "p": ".2g", "sd ratio": ".3f", "p of shares": ".2g", "ess": ".0f"}
"""Columns of the table shown, and their formats."""
MOST_ROWS = 12
"""Largest number of quantities shown: those with the smallest p."""


def grade(
    draws: Annotated[Path, typer.Argument(metavar="DRAWS", help="A run that `bayesattn sample` made.")],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of a reference posterior, as `reference list` has it.")
    ],
    gradients: Annotated[
        int | None, typer.Option(help="Gradients of all draws; by default those the run recorded, without warm-up.")
    ] = None,
    margin: Annotated[
        float, typer.Option(help="Bias, in standard deviations, that right draws must exclude.")
    ] = MARGIN,
    figure: FigureFile = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Are draws of a reference posterior right? Exit status 0 if they are, 1 if biased, 2 if the draws cannot tell.

    Example: bayesattn grade out/run two_heads --figure bias.png
    """
    require_free_figure(figure, overwrite)
    with working("comparing", quiet=as_json):
        found = graded(draws, name, gradients=gradients, margin=margin)
        content = found.to_dict()
    if as_json:
        print_json(content)
    else:
        table = new_table("quantity", "bias (sd)", "error", "p", "sd ratio", "p of shares", "ESS", text=("quantity",))
        worst = found.table.loc[found.smallest_p.nsmallest(MOST_ROWS).index]
        for quantity, *numbers in worst[list(COLUMNS)].itertuples():
            shown = (cell(float(number), form) for number, form in zip(numbers, COLUMNS.values(), strict=True))
            table.add_row(str(quantity), *shown)
        print_table(f"{name}: the {len(worst)} quantities of {len(found.table)} that fit least", table)
        squared = content["squared_bias"]
        cost = "" if found.gradients is None else f" after {found.gradients:,} gradients"
        say(f"squared bias: largest {squared['largest']:.2g}, mean {squared['mean']:.2g} posterior variances{cost}")
        say(found.statement(), style={RIGHT: "green", BIASED: "red"}.get(found.verdict, "yellow"))
    if figure is not None:
        from bayesattn.jobs.plots import grade_figure, save

        save(grade_figure(found), figure, overwrite=overwrite)
        if not as_json:
            say_where(f"figure in {figure}")
    raise typer.Exit({RIGHT: HOLDS, BIASED: FAILS}.get(found.verdict, CANNOT_TELL))
