"""Command `bayesattn runs`: list of the runs in a folder."""

import re
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bayesattn._util.plain_values import PlainDict
from bayesattn._util.text import cell
from bayesattn.checks.diagnostics import WATCHED_QUANTITIES
from bayesattn.checks.mixing import COLUMNS
from bayesattn.jobs import runs as runs_on_disk
from bayesattn.jobs.cli import options, screen
from bayesattn.jobs.cli.screen import console

NAME_PARTS = re.compile(r"[^ /_,-]*[ /_,-]|[^ /_,-]+")
SHORTEST_NAME = 12
"""Smallest width, in characters, of the column of names of runs."""
STYLES = {"complete": "green", "stopped": "green", "running": "cyan"}
STYLES |= {"interrupted": "yellow", "failed": "red", "unreadable": "red"}


def runs(
    folder: Annotated[Path, typer.Argument(help="A run, or a folder that holds runs.")],
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh the list every --interval seconds until all runs end.")
    ] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between refreshes.")] = 2.0,
    netcdf: Annotated[Path | None, typer.Option(help="Export the run's draws to this NetCDF file.")] = None,
    as_json: options.Json = False,
) -> None:
    """List runs with state, progress, R-hat, effective sample size and divergences, and warn of what is wrong with them.

    Example: bayesattn runs out --watch
    """
    if netcdf is not None:
        runs_on_disk.Run(folder).to_netcdf(netcdf)
        if not as_json:
            screen.say_where(f"draws written to {netcdf}")
        return
    rows = runs_on_disk.overview(folder)
    if as_json:
        screen.print_json(rows)
        return
    if not watch:
        console.print(_page(folder, rows))
        return
    with Live(_page(folder, rows), console=console, auto_refresh=False) as live:
        while any(row["state"] == "running" for row in rows):
            time.sleep(interval)
            rows = runs_on_disk.overview(folder)
            live.update(_page(folder, rows), refresh=True)


def _page(folder: Path, rows: list[PlainDict]) -> Group:
    table = screen.new_table([_texts(row) for row in rows], ["run", "model", "sampler", "state"])
    table.padding = screen.NARROW_GAPS
    for column in table.columns[1:]:
        column.no_wrap = True  # Names of runs use the remaining room, and break between their parts.
    _break_names(table)
    notes = [Text(f"{row['run']}: {row['error']}", style="red") for row in rows if row["error"]]
    if any(row.get("diagnostics") for row in rows):
        notes.insert(0, Text(f"R-hat and ESS: the worst of {WATCHED_QUANTITIES}"))
    advice: dict[str, list[str]] = {}
    for row in rows:
        # A run that is still being sampled may improve.
        if row["state"] != "running":
            for warning in (row.get("diagnostics") or {}).get("warnings", ()):
                advice.setdefault(warning.rpartition(": ")[2], []).append(f"{row['run']}: {warning}")
        if row["state"] == "interrupted":
            resume = f"{row['run']}: interrupted; the command that started it resumes it"
            advice.setdefault("resume it", []).append(resume)
    for warnings in advice.values():
        more = f" (and {len(warnings) - 1} more runs like it)" if len(warnings) > 1 else ""
        notes.append(Text(warnings[0] + more, style="yellow"))
    return Group(Text(f"runs in {folder}", style="italic"), table, *notes)


def _texts(row: PlainDict) -> PlainDict:
    """Row of the table; the cells of a run that cannot be read are empty."""
    texts = dict.fromkeys(("run", "model", "N", "T", "sampler", "state", "done", "R-hat", "ESS", "div."), "")
    texts |= {"run": row["run"], "state": Text(row["state"], style=STYLES[row["state"]])}
    if row["state"] == "unreadable":
        return texts
    suffix = "" if row["parameterisation"] == "collapsed" else f" {row['parameterisation']}"
    texts |= {"model": row["model"], "sampler": row["sampler"] + suffix, "done": f"{100 * row['progress']:.0f} %"}
    texts |= {"N": _setting(row["width"]), "T": _setting(row["temperature"])}
    if diagnostics := row["diagnostics"]:
        texts |= {name: cell(diagnostics[number], form) for name, (number, form) in COLUMNS.items() if name in texts}
        texts["div."] = str(diagnostics["divergences"])
    return texts


def _break_names(table: Table) -> None:
    """Break names that do not fit on the screen between their parts: of models and samplers first, then of runs."""
    runs, *others = table.columns
    rest = Table(*others, box=None, padding=table.padding)
    rest.rows.extend(table.rows)
    if console.measure(rest).maximum + 2 * SHORTEST_NAME > console.width:
        for column in others:
            if column.header in ("model", "sampler"):
                column._cells = [_broken(str(name), SHORTEST_NAME) for name in column.cells]
    room = max(SHORTEST_NAME, console.width - console.measure(rest).maximum - 2)
    runs._cells = [_broken(str(name), room) for name in runs.cells]


def _broken(name: str, room: int) -> str:
    """Name in lines of at most `room` characters, broken only after " ", "/", "_", "-" or ",".

    >>> _broken("temperature=0.01,width=100", 18)
    'temperature=0.01,\\nwidth=100'
    """
    lines = [""]
    for part in NAME_PARTS.findall(name):
        if lines[-1] and len(lines[-1]) + len(part) > room:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _setting(number: float | None) -> str:
    """Text of a setting, empty if the model does not have it."""
    return "" if number is None else f"{number:g}"
