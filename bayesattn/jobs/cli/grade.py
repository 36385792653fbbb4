"""Command `bayesattn grade`: are these draws of a reference posterior right?"""

from pathlib import Path
from typing import Annotated

import typer

from bayesattn._util.text import cells
from bayesattn.jobs.cli import options, output, screen
from bayesattn.jobs.plots import grade_figure
from bayesattn.questions.reference.grading import BIASED, MARGIN, RIGHT
from bayesattn.questions.reference.grading import grade as graded

COLUMNS = {
    "bias (sd)": ("bias", "+.3f"),
    "error": ("error", ".3f"),
    "p": ("p", ".2g"),
    "sd ratio": ("sd ratio", ".3f"),
    "p of shares": ("p of shares", ".2g"),
    "ESS": ("ess", ".0f"),
}
"""Columns of the table shown: the number under each heading, and its format."""
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
    figure: options.FigureFile = None,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Are draws of a reference posterior right? Exit status 0 if they are, 1 if biased, 2 if the draws cannot tell.

    Example: bayesattn grade out/run two_heads --figure bias.png
    """
    output.require_free_figure(figure, overwrite)
    with screen.working("comparing", quiet=as_json):
        found = graded(draws, name, gradients=gradients, margin=margin)
        content = found.to_dict()
    if as_json:
        screen.print_json(content)
    else:
        worst = found.table.loc[found.smallest_p.nsmallest(MOST_ROWS).index].reset_index(names="quantity")
        rows = [{"quantity": row["quantity"]} | cells(row, COLUMNS) for row in worst.to_dict("records")]
        title = f"{name}: the {len(worst)} quantities of {len(found.table)} that fit least"
        screen.print_table(title, rows, ["quantity"])
        squared = content["squared_bias"]
        cost = "" if found.gradients is None else f" after {found.gradients:,} gradients"
        screen.say(
            f"squared bias: largest {squared['largest']:.2g}, mean {squared['mean']:.2g} posterior variances{cost}"
        )
        screen.say(found.statement(), style={RIGHT: "green", BIASED: "red"}.get(found.verdict, "yellow"))
    output.save_figure(lambda: grade_figure(found), figure, overwrite, as_json)
    raise typer.Exit({RIGHT: screen.HOLDS, BIASED: screen.FAILS}.get(found.verdict, screen.CANNOT_TELL))
