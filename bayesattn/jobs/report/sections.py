"""Sections of a report, one for each run, and the page that holds them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import xarray as xr

from bayesattn._util.plain_values import PlainDict
from bayesattn._util.settings import with_own_settings
from bayesattn.checks.thresholds import LEVEL
from bayesattn.jobs import tables
from bayesattn.jobs.plots import KINDS
from bayesattn.jobs.plots.diagnostics import scalars
from bayesattn.jobs.plots.run import lacking
from bayesattn.jobs.report.figures import EmbeddedFigure, captions, diagnostic_figure, embedded
from bayesattn.jobs.report.stored_theory import losses_without_each_head
from bayesattn.jobs.runs import Run
from bayesattn.jobs.tables import Row, Verdict

TEMPLATE = Path(__file__).parent / "page.html.j2"


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
def page(
    sections: list[RunSection], figures: list[EmbeddedFigure], pooled: Sequence[tuple[str, str, bool | None]] = ()
) -> str:
    """HTML of the sections and figures; names are escaped.

    `pooled` are titles, verdicts and answers of joined runs that differ only in their seeds.
    """
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        sections=sections, figures=figures, pooled=pooled, confidence=f"{1 - LEVEL:g}"
    )


def section(name: str, title: str, run: Run, draws: xr.DataTree, verdict: Verdict, combining: str) -> RunSection:
    """Section on a run with these draws; `combining` is the sentence on the width at which paths stop combining."""
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
    by_examples = (
        "Training examples of greatest influence on the predictions: root mean square change of the mean of f at the test"
        " inputs per unit of the example's weight in the likelihood"
    )
    if lost := losses_without_each_head(run, draws):
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
            by_examples: tables.influence_table(run.model, draws),
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
