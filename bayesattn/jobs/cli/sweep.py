"""Command `bayesattn sweep`: many runs, on local cores or on a cluster."""

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayesattn._util.plain_values import PlainDict
from bayesattn._util.text import cell, with_error
from bayesattn.jobs.cli import options, screen

if TYPE_CHECKING:
    import pandas as pd

    from bayesattn.jobs.sweep import Sweep

TITLE = "Accuracy (%), greatest diagonal entry of U, worst R-hat and ESS"


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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs and their states, and stop.")] = False,
    as_json: options.Json = False,
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
        _print_plan(plan, as_json)
        return
    tls = {"tls_ca_file": tls_ca, "tls_client_cert": tls_cert, "tls_client_key": tls_key}
    sweeps.require_extras(plan, scheduler)
    security = {name: str(file) for name, file in tls.items() if file is not None}
    options = {"workers": workers, "scheduler": scheduler, "security": security, "threads": threads}
    table = _run(plan, options | {"overwrite": overwrite}, quiet=as_json)
    each = sweeps.by_run(table)
    states = each["state"].value_counts().to_dict()
    if as_json:
        screen.print_json({"out": str(plan.out), "states": states, "results": str(plan.out / "results.parquet")})
    else:
        rows = each.to_dict("records")
        screen.print_table(TITLE, [_row(of_run) for of_run in rows], ["run"])
        for of_run in rows:
            if isinstance(error := of_run["error_message"], str):
                screen.console.print(f"{of_run['run']}: {error}", style="red", soft_wrap=True)
        counted = ", ".join(f"{count} {state}" for state, count in states.items())
        screen.say_where(f"{len(each)} runs in {plan.out}: {counted}; also in results.csv, and all in results.parquet")
    if states.get("complete", 0) < len(each):
        raise typer.Exit(screen.FAILS)


def _row(of_run: PlainDict) -> dict[str, str]:
    """A run as a row of the table on screen."""
    return {
        "run": of_run["run"],
        "state": of_run["state"],
        "accuracy": with_error(
            100 * of_run["accuracy"], 100 * math.hypot(of_run["accuracy_error"], of_run["accuracy_test_error"])
        ),
        "U": with_error(of_run["U"], of_run["U_error"]),
        "R-hat": cell(of_run["rhat"], ".3f"),
        "ESS": cell(of_run["ess"], ".0f"),
        "s": cell(of_run.get("seconds"), ".0f"),
    }


def _run(plan: "Sweep", options: PlainDict, quiet: bool) -> "pd.DataFrame":
    from bayesattn.jobs import sweep as sweeps

    with screen.bars(quiet) as shown:
        bar = shown.add("starting workers", unit="steps")

        def report(standing: PlainDict) -> None:
            failed = f", {standing['failed']} failed" if standing["failed"] else ""
            text = f"{standing['complete']} of {standing['runs']} runs{failed}"
            bar.update(standing["done"], description=text, total=standing["total"])

        try:
            return sweeps.run(plan, **options, progress=report)
        except KeyboardInterrupt as interrupt:
            screen.errors.print("bayesattn: interrupted; what was drawn is kept, and the same command resumes")
            raise typer.Exit(interrupt.args[0] if interrupt.args else 130) from None


def _print_plan(plan: "Sweep", as_json: bool) -> None:
    rows = [{"run": planned.name, "state": planned.state} for planned in plan.runs]
    if as_json:
        screen.print_json({"runs": rows})
    else:
        screen.print_table(f"{len(rows)} runs in {plan.out}", rows, ["run", "state"])
