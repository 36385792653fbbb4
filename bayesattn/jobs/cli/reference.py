"""Command `bayesattn reference`: posteriors to grade samplers against."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bayesattn._util.errors import BayesattnError
from bayesattn.jobs.cli.options import Json
from bayesattn.jobs.cli.screen import new_table, print_json, print_table, say, say_where
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
    as_json: Json = False,
) -> None:
    """Posteriors whose truth is known: list them, show a truth, or write one for other tools.

    npz has data and truth; numpyro also a program of all weights that needs no bayesattn.

    Example: bayesattn reference export two_heads --format numpyro
    """
    if action == "list":
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
            print_json({"files": [str(file) for file in files]})
        for file in [] if as_json else files:
            say_where(str(file))


def _list(as_json: bool) -> None:
    loaded = [load(name) for name in names()]
    if as_json:
        print_json(
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
    table = new_table("name", "what", "quantities", "routes differ by", text=("what",))
    for each in loaded:
        agreement = each.truth.agreement
        table.add_row(
            each.name, each.about, str(len(each.truth.names)), f"{agreement.largest:.1f} < {agreement.bound:.1f}"
        )
    print_table("reference posteriors", table)
    say(
        "routes differ by: largest difference between the two routes to the truth, in standard errors, over all quantities,"
        " and the largest that chance explains"
    )


def _show(name: str, as_json: bool) -> None:
    loaded = load(name)
    if as_json:
        print_json({"name": name, "quantities": loaded.truth.table.reset_index().to_dict(orient="list")})
        return
    table = new_table("quantity", "mean", "error", "sd", "error ", "10 %", "50 %", "90 %", text=("quantity",))
    truth, best = loaded.truth, loaded.truth.combined
    for row in zip(truth.names, best.mean, best.mean_error, best.sd, best.sd_error, *truth.quantiles.T, strict=True):
        table.add_row(row[0], *(f"{number:.4g}" for number in row[1:]))
    print_table(f"{name}: {loaded.about}", table)
    say(f"by collapsed chains and {truth.route}")
