"""Self-contained HTML page about runs: settings, verdict, figures, diagnostics, warnings and provenance."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import jax
import numpy as np
import xarray as xr

from bayesattn._util.checks import shown
from bayesattn._util.extras import require
from bayesattn._util.files import replace_file, require_new, user_path
from bayesattn._util.plain_values import PlainDict
from bayesattn._util.random import digest
from bayesattn._util.settings import with_own_settings
from bayesattn.checks.criteria import LEVEL
from bayesattn.checks.theory_predictions import Predicted, predicted
from bayesattn.checks.validate import validate
from bayesattn.errors import BayesattnError, ContradictoryLabels
from bayesattn.jobs import tables
from bayesattn.jobs.plots import KINDS, validation_figure
from bayesattn.jobs.plots.diagnostics import scalars
from bayesattn.jobs.plots.run import lacking
from bayesattn.jobs.report.figures import (
    EmbeddedFigure,
    by_model,
    captions,
    diagnostic_figure,
    embedded,
    theory_caption,
)
from bayesattn.jobs.runs import Run
from bayesattn.jobs.runs.provenance import job_table
from bayesattn.jobs.tables import Row, Verdict
from bayesattn.joining import SETTINGS_THAT_MAY_DIFFER, concat
from bayesattn.models.arviz import axis_names, data_groups, has_order_parameter
from bayesattn.models.model import Model
from bayesattn.models.network_posterior import is_network
from bayesattn.models.posterior import Posterior
from bayesattn.questions.heads import predicted_losses
from bayesattn.questions.heads.path_combination import combining_width
from bayesattn.theory.bartlett import layer_shapes
from bayesattn.theory.potential import too_many
from bayesattn.theory.saddle_point import NotConverged

TEMPLATE = Path(__file__).parent / "page.html.j2"
MATRICES = ("saddle", "corrected", "relative_variance")
"""Fields of `Predicted` that are stored with a run, besides mean predictors."""
THEORY_VERSION = 3
"""Increase this when theories, losses or sentences that are stored with runs change beyond rounding: they are renewed."""


@dataclass(frozen=True)
class RunSection:
    """Section on one run: settings, warnings, tables, and figures of its diagnostics.

    `name` is the end of the run's path, `title` describes the model, and `tables` maps captions to rows.
    """

    name: str
    title: str
    overview: PlainDict
    warnings: list[str]
    verdict: str
    holds: bool | None
    rows: list[Row]
    tables: dict[str, list[Row]]
    combining: str
    figures: list[EmbeddedFigure]
    provenance: dict[str, str]


@with_own_settings
def report(runs: Sequence[str | Path], out: str | Path, *, overwrite: bool = False) -> Path:
    """Write a page about runs.

    Runs of one model at several widths share the figure of theory against draws. Runs that differ only in their seeds, each
    of another, are joined in this figure, and have a joint verdict besides their own. A run given twice counts once.

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
        NotConverged: the theory of a run's model could not be solved.
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
    trees = {run.path: run.draws().load() for run in opened}
    pools = _pools(opened, trees)
    level = LEVEL / (len(opened) + len(pools))
    theories: dict[str, Predicted] = {}
    widths: dict[str, str] = {}
    sections, validations = [], {}
    for run, name, title in zip(opened, _names(paths), _titles(opened), strict=True):
        draws = trees[run.path]
        if _is_compared(run, draws):
            same = _posterior(run.model)
            theories[same] = theories.get(same) or _theory(run, same)
            validations[run.path] = validate(draws, model=run.model, level=level, prediction=theories[same])
            verdict = tables.theory_table(validations[run.path])
        else:
            verdict = tables.draws_table(run.model, draws, level)
        sections.append(_section(name, title, run, draws, verdict, _combining_width_sentence(run, widths)))
    pooled, together = [], []
    for first, *others in pools:
        model, draws = first.model, concat([trees[run.path] for run in (first, *others)])
        together.append(validate(draws, model=model, level=level, prediction=theories[_posterior(model)]))
        validations[first.path] = together[-1]
        for run in others:
            del validations[run.path]
        sentence, holds, _ = tables.theory_table(together[-1])
        seeds = ", ".join(map(str, sorted(run.job.seed for run in (first, *others))))
        pooled.append((f"{first.title}, seeds {seeds} together", sentence, holds))
    figures = [
        embedded(lambda some=several: validation_figure(some), *theory_caption(several, together))
        for several in by_model(list(validations.values()))
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_file(out, page(sections, figures, pooled).encode())
    return out


def _pools(runs: list[Run], trees: dict[Path, xr.DataTree]) -> list[list[Run]]:
    """Runs of one model whose draws can be joined and compared with theory: several of a kind, each of another seed."""
    alike: dict[str, list[Run]] = {}
    for run in runs:
        if _is_compared(run, trees[run.path]):
            alike.setdefault(_but_for_seed(run, trees[run.path]), []).append(run)
    return [group for group in alike.values() if 1 < len(group) == len({run.job.seed for run in group})]


def _but_for_seed(run: Run, draws: xr.DataTree) -> str:
    """Digest of all that `concat` compares, except seeds and numbers of chains: equal for runs whose draws can be joined."""
    settings = {name: value for name, value in job_table(run.job).items() if name not in SETTINGS_THAT_MAY_DIFFER}
    data = {name: array for group in data_groups(run.model, tokens=True).values() for name, array in group.items()}
    of_draws = [settings, draws["posterior"].sizes["draw"]]
    return digest([*of_draws, axis_names(run.model), [*data]], *data.values())


def _titles(runs: list[Run]) -> list[str]:
    """Titles with model, width and temperature of each run; with seed and sampler if several runs have the same."""
    titles = [run.title for run in runs]
    for more in (lambda run: f", seed {run.job.seed}", lambda run: f", {run.job.sampler} ({run.job.parameterisation})"):
        counts = Counter(titles)
        titles = [title + more(run) if counts[title] > 1 else title for run, title in zip(runs, titles, strict=True)]
    return titles


def _has_theory(model: Posterior) -> TypeGuard[Model]:
    """Whether the theory to first order in 1/N, with which draws are compared, is available for a model."""
    return is_network(model) and model.has_theory and not too_many(layer_shapes(model.architecture, full=True))


def _is_compared(run: Run, draws: xr.DataTree) -> bool:
    """Whether the draws of a run hold U, and the theory with which they are compared is available."""
    return _has_theory(run.model) and has_order_parameter(draws)


def _posterior(model: Model) -> str:
    """Digest of posterior and test inputs, which determine the theory of a model."""
    return digest(model.fingerprint, *([] if model.test_path_inputs is None else [model.test_path_inputs]))


def _theory(run: Run, posterior: str) -> Predicted:
    """Theory of a run's model, the most expensive part of a report, which is stored with the run for later reports."""

    def compute() -> PlainDict:
        of = predicted(run.model)
        means = of.mean_predictors and {name: mean.tolist() for name, mean in of.mean_predictors.items()}
        return {name: getattr(of, name).tolist() for name in MATRICES} | {"mean_predictors": means}

    def restore(stored: PlainDict) -> Predicted:
        means = stored["mean_predictors"]
        return Predicted(
            **{name: np.array(stored[name]) for name in MATRICES},
            mean_predictors=means and {name: np.array(mean) for name, mean in means.items()},
        )

    return run.remembered("theory", compute, restore, _cache_key(posterior))


def _combining_width_sentence(run: Run, known: dict[str, str]) -> str:
    """Sentence on the width at which paths stop combining, stored with the run; empty without such a theory."""
    model: Posterior = run.model
    if not _has_theory(model) or model.architecture.paths < 2:
        return ""
    of_all_widths = model.replace(width=1).fingerprint

    def compute() -> str:
        try:
            return combining_width(model).statement
        except NotConverged as error:
            return f"The width above which paths no longer combine is not known: {error}."

    if of_all_widths not in known:
        known[of_all_widths] = run.remembered("combining_paths", compute, str, _cache_key(of_all_widths))
    return known[of_all_widths]


def _losses_without_each_head(run: Run, draws: xr.DataTree) -> list[Row]:
    """What is lost without each head by the theory, stored with the run; no rows without a theory."""
    model: Posterior = run.model
    if not (tables.has_heads_table(model, draws) and _has_theory(model)):
        return []

    def compute() -> list[Row]:
        try:
            return tables.losses_table(predicted_losses(model))
        except (NotConverged, ContradictoryLabels):  # The latter if labels contradict each other without a head.
            return []

    return run.remembered("losses", compute, list, _cache_key(_posterior(model)))


def _cache_key(posterior: str) -> PlainDict:
    """Conditions under which a result of the theory that is stored with a run stays valid."""
    return {"of": posterior, "by": f"{THEORY_VERSION}, jax {jax.__version__}"}


def _names(runs: Sequence[str | Path]) -> list[str]:
    """Shortest ends of the runs' paths that distinguish them."""
    paths = [user_path("runs", run).absolute().parts[1:] for run in runs]
    ends = [["/".join(path[-length:]) for path in paths] for length in range(1, max(map(len, paths)) + 1)]
    return next((names for names in ends if len(set(names)) == len(names)), ends[-1])


@with_own_settings
def page(
    sections: list[RunSection],
    figures: list[EmbeddedFigure],
    pooled: Sequence[tuple[str, str, bool | None]] = (),
) -> str:
    """HTML of the sections and figures; names are escaped.

    `pooled` are titles, verdicts and answers of joined runs that differ only in their seeds.
    """
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        sections=sections, figures=figures, pooled=pooled, confidence=f"{1 - LEVEL:g}"
    )


def _section(name: str, title: str, run: Run, draws: xr.DataTree, verdict: Verdict, combining: str) -> RunSection:
    diagnosis, description = run.diagnose(), run.description
    missing = lacking(draws)
    words = captions(", ".join(scalars(draws)), diagnosis, latent="latent" in draws["posterior"])
    figures = []
    for kind in KINDS:
        if kind not in missing:
            caption, alternative = words[kind]
            titled = f"{title}: {caption[0].lower()}{caption[1:]}"
            figure = embedded(lambda kind=kind: diagnostic_figure(kind, draws), titled, alternative)
            figures.append(figure)
    sentence, holds, rows = verdict
    by_heads = "Head scores: how much each head matters, relative to the most important one (± one Monte Carlo error)"
    by_paths = "Strongest correlations of paths in U, 0 where paths do not combine (± one Monte Carlo error)"
    if lost := _losses_without_each_head(run, draws):
        by_heads += "; lost without the head, the others inferred again, by the theory"
        by_heads += " (± one error over test examples)" if "log score lost (nats)" in lost[0] else ""
    return RunSection(
        name=name,
        title=title,
        overview=run.overview(),
        warnings=diagnosis.warnings(),
        verdict=sentence,
        holds=holds,
        rows=rows,
        tables={
            by_heads: tables.heads_table(run.model, draws, lost),
            by_paths: tables.correlations_table(run.model, draws),
        },
        combining=combining,
        figures=figures,
        provenance={
            "model": description["model"],
            "sampler": description["sampler"],
            "environment": "\n".join(f"{name} = {value}" for name, value in description["environment"].items()),
            "content hash": description["identity"],
        },
    )
