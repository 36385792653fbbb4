"""Command `bayesattn sweep`: many runs, on local cores or on a cluster."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from bayesattn._util.plain import PlainDict
from bayesattn._util.text import duration
from bayesattn.jobs.cli.options import Json
from bayesattn.jobs.cli.screen import (
    FAILS,
    as_options,
    bars,
    errors,
    new_table,
    print_json,
    print_table,
    say,
    say_where,
    screen,
    working,
)
from bayesattn.samplers.blocks import cores

if TYPE_CHECKING:
    import pandas as pd

    from bayesattn.jobs.sweep import Sweep


def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP.toml", help="Settings, grid or list of the runs.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the runs and the table; by default out/ and the file's name.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Local worker processes; by default one per core, or one per GPU.")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A running Dask scheduler to use instead.")
    ] = None,
    tls_ca: Annotated[Path | None, typer.Option(help="CA certificate of a tls:// scheduler.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Own certificate, for a tls:// scheduler.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Key of the own certificate.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Chains that a run draws at a time.")] = None,
    overwrite: Annotated[
        bool, typer.Option(help="Replace runs of other settings, and those that are damaged.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs and what they would cost, and stop.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Complete many runs. Finished ones are skipped, interrupted ones resumed, failed ones recorded.

    A sweep file is trusted like code, because it may name files and batch jobs. A scheduler is trusted too, because it runs
    what it is sent.

    Example: bayesattn sweep sweep.toml --dry-run
    """
    os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "warning")  # Dask logs everything by default.
    from bayesattn.jobs import sweep as sweeps  # Dask and pandas are slow to import.

    plan = sweeps.Sweep(file, out)
    if dry_run:
        workers = min(workers or cores(), len(plan.runs))
        _print_estimates(plan, workers, threads or max(1, cores() // workers), as_json)
        return
    tls = {"tls_ca_file": tls_ca, "tls_client_cert": tls_cert, "tls_client_key": tls_key}
    sweeps.require_extras(plan)
    security = {name: str(file) for name, file in tls.items() if file is not None}
    options = {"workers": workers, "scheduler": scheduler, "security": security, "threads": threads}
    table = _run(plan, options | {"overwrite": overwrite}, quiet=as_json)
    by_run = table.groupby("run", sort=False).first()
    states = by_run["state"].value_counts().to_dict()
    if as_json:
        print_json({"out": str(plan.out), "states": states, "results": str(plan.out / "results.parquet")})
    else:
        for name, error in by_run["error_message"].dropna().items():
            screen.print(f"{name}: {as_options(str(error))}", style="red", soft_wrap=True)
        counted = ", ".join(f"{count} {state}" for state, count in states.items())
        say_where(f"{len(by_run)} runs in {plan.out}: {counted}; table in results.csv and results.parquet")
    if states.get("complete", 0) < len(by_run):
        raise typer.Exit(FAILS)


def _run(plan: "Sweep", options: PlainDict, quiet: bool) -> "pd.DataFrame":
    from bayesattn.jobs import sweep as sweeps

    with bars(quiet) as shown:
        bar = shown.add("starting workers", unit="steps")

        def report(standing: PlainDict) -> None:
            failed = f", {standing['failed']} failed" if standing["failed"] else ""
            text = f"{standing['complete']} of {standing['runs']} runs{failed}"
            bar.update(standing["done"], description=text, total=standing["total"])

        try:
            return sweeps.run(plan, **options, progress=report)
        except KeyboardInterrupt as interrupt:
            errors.print("bayesattn: interrupted; what was drawn is kept, and the same command resumes")
            raise typer.Exit(interrupt.args[0] if interrupt.args else 130) from None


def _print_estimates(plan: "Sweep", workers: int, threads: int, as_json: bool) -> None:
    from bayesattn.jobs import sweep as sweeps

    with working("timing each kind of run for some seconds", as_json):
        rows = list(sweeps.estimates(plan, threads))
        started = sweeps.start_up() if any(row.steps for row in rows) else 0.0
    # In the worst case each worker compiles each kind of run.
    before = started + sum(row.compilation for row in rows)
    seconds = before + max(sum(row.seconds for row in rows) / workers, max(row.seconds for row in rows))
    if as_json:
        print_json({"runs": [row._asdict() for row in rows], "workers": workers, "start": before, "seconds": seconds})
        return
    table = new_table("run", "state", "steps to go", "time", "on disk", text=("run", "state"))
    for row in rows:
        table.add_row(row.run, row.state, str(row.steps), duration(row.seconds), decimal(row.bytes))
    print_table(f"{len(rows)} runs in {plan.out}; time on one worker", table)
    total = decimal(sum(row.bytes for row in rows))
    say(
        f"about {duration(seconds)} on {workers} workers, {duration(before)} of it to start and to compile, and {total}"
        " on disk"
    )
    if untrained := sum(row.training for row in rows):
        say(f"{untrained} runs first train a network, which takes additional time; `bayesattn train` shows it")
