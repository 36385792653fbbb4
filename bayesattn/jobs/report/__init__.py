"""Self-contained HTML page about runs: settings, verdict, figures, diagnostics, warnings and provenance."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bayesattn._util.checks import shown
from bayesattn._util.extras import require
from bayesattn._util.files import replace_file, require_new, user_path
from bayesattn._util.settings import with_own_settings
from bayesattn.errors import BayesattnError
from bayesattn.jobs.plots import validation_figure
from bayesattn.jobs.report.figures import by_model, embedded, theory_caption
from bayesattn.jobs.report.sections import page, section
from bayesattn.jobs.report.stored_theory import combining_widths
from bayesattn.jobs.report.verdicts import verdicts_of
from bayesattn.jobs.runs import Run


@with_own_settings
def report(runs: Sequence[str | Path], out: str | Path, *, overwrite: bool = False) -> Path:
    """Write a page about runs.

    Runs of one model at several widths share the figure of theory against draws. Runs that differ only in their seeds, each
    of another, are joined in this figure, and have a joint verdict besides their own. A run given twice counts once. Where
    the theory could not be solved, the page says why in place of a verdict.

    Args:
        runs: folders of runs that are complete, or have draws of all chains.
        out: the .html file.
        overwrite: whether to replace an existing file.

    Returns:
        The path of the file.

    Raises:
        FileExistsError: the file exists.
        ValueError: no runs, a single path instead of a list, or a run without draws so far.
        RunError: a folder that is not a readable run.
        ImportError: the extra "report" is not installed.
    """
    require("report", "a report")
    out = user_path("out", out)
    if not overwrite:
        require_new("out", out, "choose another, or give overwrite=True")
    if isinstance(runs, str | Path):
        raise BayesattnError(f"runs must be a list of folders, got {shown(runs)}")
    if not runs:
        raise BayesattnError("runs must hold at least one run, got none")
    paths = [*{user_path("runs", path).resolve(): path for path in runs}.values()]
    opened = [Run(path) for path in paths]
    for run in opened:
        if not run.drawn:
            raise BayesattnError(f"runs must have draws to report on, got {run.path}, which has none yet")
        if not run.complete:
            run.first = run.drawn  # All of the page is about the same draws, also while more are sampled.
    trees = {run.path: run.draws().load() for run in opened}
    found = verdicts_of(opened, trees)
    combining = combining_widths(opened)
    sections = [
        section(name, title, run, trees[run.path], found.of_runs[run.path], sentence)
        for name, title, run, sentence in zip(_names(paths), _titles(opened), opened, combining, strict=True)
    ]
    figures = [
        embedded(lambda some=several: validation_figure(some), *theory_caption(several, found.pools))
        for several in by_model(found.shown)
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_file(out, page(sections, figures, found.pooled).encode())
    return out


def _titles(runs: list[Run]) -> list[str]:
    """Titles with model, width and temperature of each run; with seed and sampler if several runs have the same."""
    titles = [run.title for run in runs]
    for more in (lambda run: f", seed {run.job.seed}", lambda run: f", {run.job.sampler} ({run.job.parameterisation})"):
        counts = Counter(titles)
        titles = [title + more(run) if counts[title] > 1 else title for run, title in zip(runs, titles, strict=True)]
    return titles


def _names(runs: Sequence[str | Path]) -> list[str]:
    """Shortest ends of the runs' paths that distinguish them."""
    paths = [user_path("runs", run).absolute().parts[1:] for run in runs]
    ends = [["/".join(path[-length:]) for path in paths] for length in range(1, max(map(len, paths)) + 1)]
    return next((names for names in ends if len(set(names)) == len(names)), ends[-1])
