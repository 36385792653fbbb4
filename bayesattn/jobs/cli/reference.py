"""Command `bayesattn reference`: posteriors to grade samplers against."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bayesattn._util.text import cells
from bayesattn.errors import BayesattnError
from bayesattn.jobs.cli import options, screen
from bayesattn.questions.reference import load, names
from bayesattn.questions.reference.formats import FORMATS
from bayesattn.questions.reference.formats import export as write

Action = StrEnum("Action", ["list", "show", "export"])
Format = StrEnum("Format", list(FORMATS))


def reference(
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="list, show or export.")],
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of a reference posterior.")] = None,
    form: Annotated[Format, typer.Option("--format", help="What is exported: arrays, or a program too.")] = Format[
        "npz"
    ],
    out: Annotated[Path | None, typer.Option(help="Folder for the files; by default out/reference.")] = None,
    as_json: options.Json = False,
) -> None:
    """Posteriors whose truth is known: list them, show a truth, or write one for other tools.

    npz has data and truth; numpyro also a program of all weights that needs no bayesattn.

    Example: bayesattn reference export two_heads --format numpyro
    """
    if action == "list":
        if name is not None:
            raise BayesattnError(f"NAME must not be given to list, got {name}")
        _list(as_json)
        return
    if name is None:
        raise BayesattnError(f"NAME must be given to {action.value}, one of {', '.join(names())}")
    folder = Path("out") / "reference" if out is None else out
    if action == "show":
        _show(name, as_json)
    else:
        files = write(name, folder, format=form.value)
        if as_json:
            screen.print_json({"files": [str(file) for file in files]})
        else:
            for file in files:
                screen.say_where(str(file))


def _list(as_json: bool) -> None:
    loaded = [load(name) for name in names()]
    if as_json:
        screen.print_json(
            [
                {
                    "name": each.name,
                    "about": each.about,
                    "quantities": len(each.truth.names),
                    "largest_error": each.truth.largest_error,
                    "routes": ["collapsed chains", each.truth.route],
                    "largest_difference": each.truth.agreement.largest,
                    "bound": each.truth.agreement.bound,
                }
                for each in loaded
            ]
        )
        return
    rows = [
        {
            "name": each.name,
            "what": each.about,
            "quantities": str(len(each.truth.names)),
            "routes differ by": f"{each.truth.agreement.largest:.1f} < {each.truth.agreement.bound:.1f}",
        }
        for each in loaded
    ]
    screen.print_table("reference posteriors", rows, ["what"])
    screen.say(
        "routes differ by: largest difference between the two routes to the truth, in standard errors, over all quantities,"
        " and the largest that chance explains"
    )


def _show(name: str, as_json: bool) -> None:
    loaded = load(name)
    if as_json:
        screen.print_json({"name": name, "quantities": loaded.truth.table.reset_index().to_dict(orient="list")})
        return
    columns = {"mean": "mean", "error": "mean error", "sd": "sd", "error ": "sd error"}
    columns |= {f"{share} %": f"{share}%" for share in (10, 50, 90)}
    forms = {heading: (column, ".4g") for heading, column in columns.items()}
    table = loaded.truth.table.reset_index().to_dict("records")
    rows = [{"quantity": row["quantity"]} | cells(row, forms) for row in table]
    screen.print_table(f"{name}: {loaded.about}", rows, ["quantity"])
    screen.say(f"by collapsed chains and {loaded.truth.route}")
