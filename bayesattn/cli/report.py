"""bayesattn report: one page about runs."""

from pathlib import Path
from typing import Annotated

import typer

from bayesattn.cli.options import Overwrite
from bayesattn.cli.screen import errors, refuse_to_overwrite, screen
from bayesattn.runs.places import found_in


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs, or folders that hold runs.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    overwrite: Overwrite = False,
) -> None:
    """Write one self-contained HTML page about runs: verdict, figures, diagnostics, warnings, provenance."""
    from bayesattn import report as page

    paths = [run for folder in runs for run in found_in(folder)]
    refuse_to_overwrite(out, overwrite, folder=False)
    with errors.status("reading runs, solving the theory, drawing"):
        page.report(paths, out, overwrite=overwrite)
    screen.print(f"report in {out}")
