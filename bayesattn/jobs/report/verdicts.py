"""Verdicts of a report: theory against draws of each run, and of runs together that differ only in their seeds."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import xarray as xr

from bayesattn._util.random import digest
from bayesattn.checks.theory_predictions import Predicted
from bayesattn.checks.thresholds import LEVEL
from bayesattn.checks.validate import validate
from bayesattn.checks.validation import Validation
from bayesattn.jobs import tables
from bayesattn.jobs.report.stored_theory import is_compared, posterior_of, theory_of
from bayesattn.jobs.runs import Run
from bayesattn.jobs.runs.provenance import job_table
from bayesattn.jobs.tables import Verdict
from bayesattn.joining import SETTINGS_THAT_MAY_DIFFER, concat
from bayesattn.models.arviz import axis_names, data_groups
from bayesattn.theory.saddle_point import NotConverged


class Verdicts(NamedTuple):
    """Verdicts on some runs, all at one level.

    Args:
        of_runs: verdict on each run, by its path.
        pooled: title, sentence and answer of each group of runs together.
        pools: comparison of each of these groups.
        shown: comparisons for figures: of each group, and of each run in none.
    """

    of_runs: dict[Path, Verdict]
    pooled: list[tuple[str, str, bool | None]]
    pools: list[Validation]
    shown: list[Validation]


def verdicts_of(runs: Sequence[Run], trees: dict[Path, xr.DataTree]) -> Verdicts:
    """Verdicts on runs with the draws `trees`, by path; those of one model share the solution of the theory."""
    groups = pools_of(runs, trees)
    level = LEVEL / (len(runs) + len(groups))
    theories: dict[str, Predicted] = {}
    compared: dict[Path, Validation] = {}
    of_runs: dict[Path, Verdict] = {}
    for run in runs:
        draws = trees[run.path]
        if not is_compared(run, draws):
            of_runs[run.path] = tables.draws_table(run.model, draws, level)
            continue
        same = posterior_of(run.model)
        try:
            theories[same] = theories.get(same) or theory_of(run, same)
        except NotConverged as error:
            of_runs[run.path] = Verdict(f"The draws were not compared with the theory: {error}.", None, [])
            continue
        compared[run.path] = validate(draws, model=run.model, level=level, prediction=theories[same])
        of_runs[run.path] = tables.theory_table(compared[run.path])
    pooled, pools = [], []
    for (first, *others), title in zip(groups, _titles(groups), strict=True):
        if first.path not in compared:
            continue
        model, draws = first.model, concat([trees[run.path] for run in (first, *others)])
        pools.append(validate(draws, model=model, level=level, prediction=theories[posterior_of(model)]))
        compared[first.path] = pools[-1]
        for run in others:
            del compared[run.path]
        sentence, holds, _ = tables.theory_table(pools[-1])
        pooled.append((title, sentence, holds))
    return Verdicts(of_runs, pooled, pools, [*compared.values()])


def pools_of(runs: Sequence[Run], trees: dict[Path, xr.DataTree]) -> list[list[Run]]:
    """Runs of one model whose draws can be joined and compared with theory: several of a kind, each of another seed."""
    alike: dict[str, list[Run]] = {}
    for run in runs:
        if is_compared(run, trees[run.path]):
            alike.setdefault(_but_for_seed(run, trees[run.path]), []).append(run)
    return [group for group in alike.values() if 1 < len(group) == len({run.job.seed for run in group})]


def _titles(groups: Sequence[Sequence[Run]]) -> list[str]:
    """Titles of groups of runs: model, width, temperature and seeds; with the sampler if several have the same model."""
    counts, titles = Counter(first.title for first, *_ in groups), []
    for first, *others in groups:
        sampler = f", {first.job.sampler} ({first.job.parameterisation})" if counts[first.title] > 1 else ""
        seeds = ", ".join(map(str, sorted(run.job.seed for run in (first, *others))))
        titles.append(f"{first.title}{sampler}, seeds {seeds} together")
    return titles


def _but_for_seed(run: Run, draws: xr.DataTree) -> str:
    """Digest of all that `concat` compares, except seeds and numbers of chains: equal for runs whose draws can be joined."""
    settings = {name: value for name, value in job_table(run.job).items() if name not in SETTINGS_THAT_MAY_DIFFER}
    data = {name: array for group in data_groups(run.model, tokens=True).values() for name, array in group.items()}
    of_draws = [settings, draws["posterior"].sizes["draw"]]
    return digest([*of_draws, axis_names(run.model), [*data]], *data.values())
