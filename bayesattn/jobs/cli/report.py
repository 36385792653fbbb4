"""Command `bayesattn report`: one page about runs."""

import os
from pathlib import Path
from typing import Annotated

import jax
import typer

from bayesattn._util.compiled import LEAST_COMPILE_SECONDS
from bayesattn.jobs.cli import options, output, screen
from bayesattn.jobs.runs.folder import runs_in


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs, or folders that hold runs.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    overwrite: options.OverwriteOut = False,
) -> None:
    """Write one self-contained HTML page about runs: verdict, figures, diagnostics, warnings, provenance.

    Example: bayesattn report out --out report.html
    """
    from bayesattn.jobs import report as page

    if (
        os.environ.get("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS") == LEAST_COMPILE_SECONDS
    ):  # Set by `keep_compiled`, not by the user.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    paths = [run for folder in runs for run in runs_in(folder)]
    output.refuse_to_overwrite(out, overwrite, folder=False)
    with screen.working("reading runs, solving the theory, drawing"):
        page.report(paths, out, overwrite=overwrite)
    screen.say_where(f"report in {out}")
