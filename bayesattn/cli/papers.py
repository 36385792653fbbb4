"""bayesattn papers: what the two papers say, and what came out here."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from bayesattn._text import duration, printable
from bayesattn.cli.compiled import compile_quickly
from bayesattn.cli.options import Json, Seed
from bayesattn.cli.screen import CANNOT_TELL, FAILS, HOLDS, bars, errors, print_json, say, say_where, screen
from bayesattn.papers import (
    MISSING,
    NOT_REPRODUCED,
    OPEN,
    PAPERS,
    QUALIFIED,
    REPRODUCED,
    Outcome,
    Stand,
    check,
    chosen,
    code,
    folder_of,
    load,
    outcomes,
)
from bayesattn.papers.page import counted, numbers, reason
from bayesattn.samplers.run import cores

NARROW = 72
"""Columns below which there is no room for two of text."""
SIDE_BY_SIDE = min(2, cores())
"""Experiments at a time: each takes up to 2 GiB, and hardly more than one core."""
STYLES = {
    REPRODUCED: "green",
    QUALIFIED: "green",
    NOT_REPRODUCED: "red",
    OPEN: "yellow",
    MISSING: "dim",
}


def papers(
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="A paper, 2405.15926 or 2212.14852, a row or the beginning of its name, or an experiment, which means all"
            " rows that it is for, with their other experiments."
        ),
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="In minutes instead of hours, with fewer draws.")] = False,
    seed: Seed = 0,
    out: Annotated[Path, typer.Option(help="Folder of results, which are taken from there if they are there.")] = Path(
        "out/papers"
    ),
    again: Annotated[
        bool, typer.Option("--again", help="Run also what has been run, and replace its results.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Experiments at a time, by default two, or one on one core.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Run nothing: show what the results say.")] = False,
    show_all: Annotated[bool, typer.Option("--all", help="Print every comparison of each row.")] = False,
    as_json: Json = False,
) -> None:
    """Every figure, claim and equation of both papers: what it says, what checks it, what came out, and the verdict.

    Results are kept as they come, so that an interrupted check goes on where it stopped. Exit status 0: all that was asked
    for is reproduced, with a qualification or without; 1: something is not; 2: something cannot be told or was not run.

    Example: bayesattn papers --only 2405.15926 --fast
    """
    start = time.perf_counter()
    if show and again:
        raise ValueError("--again runs experiments and --show runs none: one of them must go")
    if fast:
        compile_quickly()
    rows = chosen(only or ())
    if show:
        found = outcomes(load(out, seed, fast), rows)
    else:
        with bars(quiet=as_json) as shown:
            bar = shown.add("papers", unit="experiments")

            def tell(stand: Stand) -> None:
                note = "; ".join(f"{name}: {told}" for name, told in stand.running.items())
                bar.update(stand.done, total=stand.total, note=note)

            found = check(
                out, only or (), seed=seed, fast=fast, again=again, workers=workers or SIDE_BY_SIDE, progress=tell
            )
    place, names = folder_of(out, seed, fast), {name for row in rows for name in row.by}
    took = "" if show else f"{duration(time.perf_counter() - start)}; "
    if as_json:
        print_json({"seed": seed, "fast": fast, "rows": [outcome.to_dict() for outcome in found]})
    else:
        _print(found, show_all)
    if not show:
        from bayesattn.papers import figures

        for name, error in figures.draw(place, names).items():
            errors.print(f"the figure of {name} could not be written: {error.strerror}", style="yellow")
    results = load(out, seed, fast)
    if other := [name for name in results if name in names and results[name]["code"] != code()]:
        listed = ", ".join(other)
        errors.print(f"made by other code than today's, --again replaces them: {listed}", style="yellow")
    if not as_json:
        say_where(f"{took}results and figures in {place}" if results else f"no results in {place}")
    verdicts = {outcome.verdict for outcome in found}
    raise typer.Exit(FAILS if NOT_REPRODUCED in verdicts else CANNOT_TELL if verdicts & {OPEN, MISSING} else HOLDS)


def _print(found: list[Outcome], show_all: bool) -> None:
    for paper, title in PAPERS.items():
        of_paper = [outcome for outcome in found if outcome.row.paper == paper]
        if not of_paper:
            continue
        say(f"arXiv:{paper}  {title}", style="bold")
        if screen.width < NARROW:
            for outcome in of_paper:
                say(f"{outcome.row.id}, {outcome.row.place}", style="bold")
                screen.print(_told(outcome, show_all), end="\n\n")
            continue
        table = Table(show_header=False, box=None, padding=(0, 2, 1, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for outcome in of_paper:
            table.add_row(f"{outcome.row.id}\n{outcome.row.place}", _told(outcome, show_all))
        screen.print(table)
    say(f"Of {len(found)} rows: {counted(found)}.", style="bold")


def _told(outcome: Outcome, show_all: bool) -> Text:
    row, telling, said = outcome.row, outcome.telling, reason(outcome)
    text = Text(f"{row.says}\n")
    text.append(outcome.verdict, style=STYLES[outcome.verdict])
    text.append(f": {said}\n" if said else "\n")
    for claim in outcome.claims if show_all else [telling] if telling else []:
        word = f"literally taken, {claim['verdict']}" if claim["literal"] else claim["verdict"]
        predicted, measured, planted = numbers(claim)
        wrong = f"; planted, {planted}" if planted else ""
        text.append(f"{word}: {printable(claim['statement'])}: predicted {predicted}, measured {measured}{wrong}\n")
    return text.append(row.command, style="dim")
