"""The command: what both papers say, and what came out here."""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence

from bayesattn._util.compiled import keep_compiled
from bayesattn._util.files import user_path
from bayesattn._util.text import duration
from bayesattn.jobs.cli.screen import CANNOT_TELL, FAILS, HOLDS, bars, errors, print_json, say_where
from reproductions.compiled import compile_quickly
from reproductions.registry import PAPERS, ROWS

BAD_INPUT, INTERNAL, INTERRUPTED = 2, 70, 130
"""Exit statuses, as those of `bayesattn`."""
DESCRIPTION = """Every figure, claim and equation of both papers: what it says, what checks it, what came out, and the
verdict. Results are kept as they come, so that an interrupted check continues where it stopped. Exit status 0: all rows are
reproduced, with a qualification or without, and all literal readings of theorems fail as they should; 1: something is not;
2: a check cannot tell, or was not run."""
EXAMPLE = "Example: python -m reproductions 2405.15926 --fast"
HELP = {
    "row": f"a paper ({', '.join(PAPERS)}), a row such as {ROWS[0].id}, the beginning of its name, or an experiment, which"
    " means all rows that it is for, with their other experiments; all rows by default",
    "workers": "experiments at a time, by default two, or one on one core; each takes up to 2 GiB",
}


def parser() -> argparse.ArgumentParser:
    """Arguments of the command."""
    found = argparse.ArgumentParser("python -m reproductions", description=DESCRIPTION, epilog=EXAMPLE)
    found.add_argument("rows", metavar="ROW", nargs="*", help=HELP["row"])
    found.add_argument("--fast", action="store_true", help="fewer draws, in minutes instead of hours")
    found.add_argument("--seed", type=int, default=0, help="seed of all draws (default 0)")
    found.add_argument("--workers", type=int, help=HELP["workers"])
    found.add_argument("--out", default="out/reproductions", help="folder of results (default out/reproductions)")
    found.add_argument("--again", action="store_true", help="repeat experiments that have results, and replace these")
    found.add_argument("--show", action="store_true", help="run nothing, show the results")
    found.add_argument("--all", action="store_true", help="print every comparison of each row")
    found.add_argument("--json", action="store_true", help="print JSON, and nothing else, to standard output")
    found.add_argument("--debug", action="store_true", help="show where an error came from")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status of the command; bad input ends with one line and status 2, an unforeseen error with 70."""
    given = parser().parse_args(arguments)
    keep_compiled()
    # Before NumPy is imported: linear algebra of several threads slows experiments that run side by side.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // 4)))
    try:
        return _run(given)
    except KeyboardInterrupt:
        errors.print("interrupted")
        return INTERRUPTED
    except Exception as error:
        from bayesattn.theory import NotConverged

        foreseen = isinstance(error, ValueError | OSError | MemoryError | ArithmeticError | NotConverged)
        if given.debug or not foreseen:
            traceback.print_exception(error)
        errors.print(f"reproductions: {' '.join(str(error).split())}", soft_wrap=True)
        return BAD_INPUT if foreseen else INTERNAL


def _run(given: argparse.Namespace) -> int:
    start = time.perf_counter()
    if given.show and given.again:
        raise ValueError("--again runs experiments and --show runs none: one of them must go")
    if given.fast:
        compile_quickly()
    from bayesattn.samplers.blocks import cores
    from reproductions import figures, terminal
    from reproductions.results import MISSING, NOT_REPRODUCED, OPEN, Progress, check, chosen, outcomes
    from reproductions.stored import RESULTS_VERSION, folder_of, load

    out, rows = user_path("--out", given.out), chosen(given.rows)
    if given.show:
        found = outcomes(load(out, given.seed, given.fast), rows)
    else:
        with bars(quiet=given.json) as shown:
            bar = shown.add("reproductions", unit="experiments")

            def report(progress: Progress) -> None:
                note = "; ".join(f"{name}: {message}" for name, message in progress.running.items())
                bar.update(progress.done, total=progress.total, note=note)

            settings = {"seed": given.seed, "fast": given.fast, "again": given.again, "progress": report}
            found = check(out, given.rows, workers=given.workers or min(2, cores()), **settings)
    place, names = folder_of(out, given.seed, given.fast), {name for row in rows for name in row.by}
    if given.json:
        print_json({"seed": given.seed, "fast": given.fast, "rows": [outcome.to_dict() for outcome in found]})
    else:
        terminal.show(found, given.all)
    if not given.show:
        for name, error in figures.draw(place, names).items():
            errors.print(f"the figure of {name} could not be written: {error.strerror}", style="yellow")
    results = load(out, given.seed, given.fast)
    if other := [name for name in results if name in names and results[name]["results_version"] != RESULTS_VERSION]:
        errors.print(f"results of another version, --again replaces them: {', '.join(other)}", style="yellow")
    if not given.json:
        took = "" if given.show else f"{duration(time.perf_counter() - start)}; "
        say_where(f"{took}results and figures in {place}" if results else f"no results in {place}")
    verdicts = {outcome.verdict for outcome in found}
    if NOT_REPRODUCED in verdicts or any(outcome.unexpected for outcome in found):
        return FAILS
    return CANNOT_TELL if verdicts & {OPEN, MISSING} else HOLDS


if __name__ == "__main__":
    sys.exit(main())
