"""One self-contained HTML page about runs: what was run, the verdict, figures, diagnostics, warnings, provenance."""

import base64
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bayesattn import exchangeable
from bayesattn._util.extras import require
from bayesattn._util.files import replace_file, require_new, user_path
from bayesattn._util.random import digest, fingerprint
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import UNKNOWN, cell, rounded, with_error
from bayesattn.checks.diagnostics import Diagnostics, Scalar, moments
from bayesattn.checks.validation import LEVEL, Predicted, Validation, predicted, validate
from bayesattn.checks.verdict import CANNOT_TELL, DOES_NOT_HOLD, HOLDS, latent_verdict
from bayesattn.joining import FREE, concat
from bayesattn.models import LatentModel, Model
from bayesattn.plots import diagnostics, validation_figure
from bayesattn.plots.run import HEIGHTS, KINDS, MOST_PATHS, WIDTH, Names, draw, lacking, names_of
from bayesattn.plots.style import png
from bayesattn.runs import Run
from bayesattn.runs.provenance import job_table
from bayesattn.theory.bartlett import layer_shapes
from bayesattn.theory.problem import MOST_COORDINATES, too_many

PAPER = "#121212"
"""Background of the page in dark mode."""
STYLES: dict[str, list[Any]] = {
    "light": ["default"],
    "dark": ["dark_background", {"figure.facecolor": PAPER, "axes.facecolor": PAPER, "savefig.facecolor": PAPER}],
}
TEMPLATE = Path(__file__).parent / "page.html.j2"
SHOWN_ENTRIES = 4
"""Paths up to which all entries of U are in the table."""
ANSWERS = {HOLDS: True, DOES_NOT_HOLD: False, CANNOT_TELL: None}
RESOLUTION = 100
THEORY_VERSION = 1
"""Raise it when `predicted` gives other numbers beyond rounding: theories that are kept with runs are solved anew then."""


@dataclass(frozen=True)
class Picture:
    """A figure in both colour schemes, as data addresses, with what a screen reader says instead."""

    light: str
    dark: str
    caption: str
    alternative: str


@dataclass(frozen=True)
class Part:
    """One run: its settings, warnings, table of quantities and pictures of its diagnostics.

    `name` is the end of its path, `title` says what was drawn.
    """

    name: str
    title: str
    overview: dict[str, Any]
    warnings: list[str]
    verdict: str
    holds: bool | None
    rows: list[dict[str, str]]
    pictures: list[Picture]
    provenance: dict[str, str]


@with_own_settings
def report(runs: Sequence[str | Path], out: str | Path, *, overwrite: bool = False) -> Path:
    """Write a page about runs.

    Runs of one model at several widths share their figures of theory against draws. Runs that differ in their seeds alone
    are put together there, and get a verdict together besides each its own.

    Args:
        runs: folders of runs that are complete, or have draws of all chains.
        out: the .html file.
        overwrite: whether a file there is replaced.

    Returns:
        The file.

    Raises:
        FileExistsError: there is such a file.
        ValueError: no runs, or one without draws yet.
        RunError: a folder that is not a run that can be read.
        NotConverged: the theory of a run's model could not be solved.
        ImportError: the extra "report" is not installed.
    """
    require("report", "a report")
    out = user_path("out", out)
    if not overwrite:
        require_new("out", out, "choose another, or give overwrite=True")
    if not runs:
        raise ValueError("runs must hold at least one run, got none")
    opened = [Run(path) for path in runs]
    for run in opened:
        if not min(run.done) > run.job.warmup:
            raise ValueError(f"runs must have draws to report on, got {run.path}, which has none yet")
    alike: dict[str, list[int]] = {}
    for number, run in enumerate(opened):
        alike.setdefault(_but_for_seed(run), []).append(number)
    together = [numbers for numbers in alike.values() if len(numbers) > 1 and _held_against_theory(opened[numbers[0]])]
    titles, level = _titles(opened), LEVEL / (len(runs) + len(together))
    theories: dict[str, Predicted] = {}
    parts, trees, held = [], [], {}
    for number, (run, name) in enumerate(zip(opened, _names(runs), strict=True)):
        draws = run.draws().load()
        trees.append(draws)
        if _held_against_theory(run):
            same = _posterior(run.model)
            theories[same] = theories.get(same) or _theory(run, same)
            held[number] = validate(run.model, draws, level=level, prediction=theories[same])
            found = _held(held[number])
        elif isinstance(run.model, Model):
            found = _not_held(run.model, draws)
        else:
            found = _held_latent(run.model, draws, level)
        parts.append(_part(name, titles[number], run, draws, *found))
    pooled = []
    for first, *others in together:
        model, draws = opened[first].model, concat([trees[number] for number in (first, *others)])
        seeds = sorted(opened[number].job.seed for number in (first, *others))
        held[first] = validate(model, draws, level=level, prediction=theories[_posterior(model)])
        for number in others:
            del held[number]
        said, answer, _ = _held(held[first])
        pooled.append((f"{opened[first].title}, seeds {', '.join(map(str, seeds))} together", said, answer))
    notes = {held[numbers[0]]: ", seeds together" for numbers in together}
    pictures = [
        picture(lambda some=several: validation_figure(some), *_described(several, notes.get(several[0], "")))
        for several in _alike(list(held.values()))
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_file(out, page(parts, pictures, pooled).encode())
    return out


def _held_against_theory(run: Run) -> bool:
    return isinstance(run.model, Model) and _has_theory(run.model)


def _but_for_seed(run: Run) -> str:
    """What runs have in common whose draws can be put together: all but seeds and numbers of chains."""
    settings = {name: value for name, value in job_table(run.job).items() if name not in FREE}
    data = [getattr(run.model, name) for name in run.model.data_names]
    return digest([fingerprint(run.model), settings, run.drawn], *(array for array in data if array is not None))


def _titles(runs: list[Run]) -> list[str]:
    """Model, width and temperature of each run; seed and sampler too where several runs have the same."""
    titles = [run.title for run in runs]
    for more in (lambda run: f", seed {run.job.seed}", lambda run: f", {run.job.sampler} ({run.job.parameterisation})"):
        counts = Counter(titles)
        titles = [title + more(run) if counts[title] > 1 else title for run, title in zip(runs, titles, strict=True)]
    return titles


def _has_theory(model: Model) -> bool:
    """Whether draws can be held against theory to first order in 1/N."""
    return model.likelihood.conjugate and not too_many(layer_shapes(model.architecture, full=True))


def _posterior(model: Model) -> str:
    """What decides the theory of a model: its posterior and its test inputs."""
    return digest(fingerprint(model), *([] if model.test_path_inputs is None else [model.test_path_inputs]))


def _theory(run: Run, posterior: str) -> Predicted:
    """The theory of a run's model, which costs most of a report: kept with the run for the next one."""

    def compute() -> list[Any]:
        return [_plain(part) for part in predicted(run.model)]

    def restore(parts: list[Any]) -> Predicted:
        saddle, corrected, relative_variance, means = parts
        arrays = None if means is None else {name: np.array(mean) for name, mean in means.items()}
        return Predicted(np.array(saddle), np.array(corrected), np.array(relative_variance), arrays)

    return run.remembered(
        "theory", compute, restore, {"of": posterior, "by": f"{THEORY_VERSION}, jax {jax.__version__}"}
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def _names(runs: Sequence[str | Path]) -> list[str]:
    """The end of each run's path, as long as tells them apart."""
    paths = [user_path("runs", run).absolute().parts[1:] for run in runs]
    for length in range(1, max(map(len, paths)) + 1):
        names = ["/".join(path[-length:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return ["/".join(path) for path in paths]


@with_own_settings
def page(parts: list[Part], pictures: list[Picture], pooled: Sequence[tuple[str, str, bool | None]] = ()) -> str:
    """The HTML of some runs; names in it are text.

    `pooled` are titles, verdicts and answers of runs that differ in their seeds alone, put together.
    """
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        parts=parts, pictures=pictures, pooled=pooled, confidence=f"{1 - LEVEL:g}"
    )


def picture(make: Callable[[], Figure], caption: str, alternative: str) -> Picture:
    """A figure drawn once for each colour scheme."""
    drawn: dict[str, str] = {}
    places = None
    for scheme, style in STYLES.items():
        with plt.style.context(style):
            figure = make()
            # What costs most, to lay it out, is the same in both; parts of a figure would lose their places.
            if places is not None and not figure.subfigs:
                figure.set_layout_engine("none")
                for part, place in zip([*figure.axes, *figure.texts], places, strict=True):
                    part.set_position(place)
            content = png(figure, RESOLUTION)
            places = [part.get_position() for part in [*figure.axes, *figure.texts]]
            plt.close(figure)
        drawn[scheme] = "data:image/png;base64," + base64.b64encode(content).decode()
    return Picture(**drawn, caption=caption, alternative=alternative)


def _part(
    name: str, title: str, run: Run, draws: xr.DataTree, verdict: str, holds: bool | None, rows: list[dict[str, str]]
) -> Part:
    diagnosis = run.diagnose()
    missing, quantities, names = lacking(draws), diagnostics.scalars(draws), names_of(draws)
    words = {
        kind: (f"{title}: {caption[0].lower()}{caption[1:]}", alternative)
        for kind, (caption, alternative) in _words(
            ", ".join(quantities), diagnosis, isinstance(run.model, LatentModel)
        ).items()
    }
    pictures = [
        picture(lambda kind=kind: _figure(kind, draws, quantities, names), *words[kind])
        for kind in KINDS
        if kind not in missing
    ]
    description = run.description
    environment = "\n".join(f"{name} = {value}" for name, value in description["environment"].items())
    return Part(
        name=name,
        title=title,
        overview=run.overview(),
        warnings=diagnosis.warnings(),
        verdict=verdict,
        holds=holds,
        rows=rows,
        pictures=pictures,
        provenance={
            "model": description["model"],
            "sampler": description["sampler"],
            "environment": environment,
            "content hash": description["identity"],
        },
    )


def _words(names: str, diagnosis: Diagnostics, latent: bool) -> dict[str, tuple[str, str]]:
    """Caption of each figure, and what a screen reader says in its place."""
    overall = f"{diagnosis.overall()}."
    central, entries = ("the latent z", "entries") if latent else ("the order parameter U", "diagonal entries")
    least = "is not defined" if np.isnan(diagnosis.bfmi) else f"is {diagnosis.bfmi:.2f}"
    return {
        "trace": ("Traces, a colour a chain", f"Traces of {names}. {overall}"),
        "rank": (
            "Ranks: each chain's ECDF of ranks among all chains, less that of uniform ranks, with the band of mixed chains",
            f"Rank plots of {names}. {overall}",
        ),
        "ess": (
            "Effective sample size of bulk and tails as draws accumulate",
            f"Effective sample size of {names} against draws. {overall}",
        ),
        "energy": (
            "Energy, its changes from draw to draw, and the Bayesian fraction of missing information (BFMI) of each chain",
            f"Energy plot. The least BFMI {least}.",
        ),
        "U": (
            f"Posterior of {central}",
            f"Posterior mean of {central} as a matrix of colours, or of its diagonal by heads where there are more than"
            f" {MOST_PATHS} paths; median, 50 % and 94 % interval of its {entries}, the {MOST_PATHS} greatest of more.",
        ),
        "prediction": ("Predictions on the test examples", "Mean predictor and intervals on the test examples."),
    }


def _figure(kind: str, draws: xr.DataTree, quantities: dict[str, Scalar], names: Names) -> Figure:
    figure = plt.figure(figsize=(WIDTH, HEIGHTS[kind]), layout="constrained")
    draw(figure, kind, draws, quantities, names)
    return figure


def _held(validation: Validation) -> tuple[str, bool | None, list[dict[str, str]]]:
    """Verdict and table of U, theory against draws."""
    names, agrees_with_theory = validation.model.row_names, validation.agrees
    rows = []
    for row, column in zip(*np.tril_indices(len(names)), strict=True):
        error = float(validation.error[row, column])
        agrees = _agrees(agrees_with_theory[row, column], error)
        if len(names) > SHOWN_ENTRIES and row != column and agrees != "no":
            continue
        rows.append(
            {
                "entry of U": names[row] if row == column else f"{names[row]}, {names[column]}",
                "saddle point": rounded(float(validation.saddle[row, column]), error),
                "first order in 1/N": rounded(float(validation.corrected[row, column]), error),
                "draws": with_error(float(validation.order_parameter[row, column]), error),
                "R-hat": cell(validation.rhat[row, column], ".3f"),
                "ESS": cell(validation.ess[row, column], ".0f"),
                "agrees": agrees,
            }
        )
    said = f"Does the theory hold at N = {validation.width}? {validation.statement()}."
    return said, ANSWERS[validation.verdict], rows


def _not_held(model: Model, draws: xr.DataTree) -> tuple[str, None, list[dict[str, str]]]:
    """Of labels that the theory is not for, or more paths: the greatest diagonal entries of U by the draws."""
    reason = (
        f"its expansion to first order in 1/N is for at most {MOST_COORDINATES:,} coordinates of the order parameters"
        if model.likelihood.conjugate
        else "it is for the Gaussian likelihood, and these labels are classes"
    )
    said = f"Draws were not held against the theory: {reason}."
    if "order_parameter" not in draws["posterior"]:
        return said, None, []
    own = xr.DataArray(
        np.einsum("cdpp->cdp", draws["posterior"].to_dataset()["order_parameter"].values),
        dims=("chain", "draw", "path"),
    )
    of = moments(own)
    greatest = np.argsort(-of["mean"], kind="stable")[:MOST_PATHS]
    return (
        said,
        None,
        [
            {
                "entry of U": model.row_names[path],
                "draws": with_error(float(of["mean"][path]), float(of["error"][path])),
            }
            for path in greatest
        ],
    )


def _held_latent(model: LatentModel, draws: xr.DataTree, level: float) -> tuple[str, bool | None, list[dict[str, str]]]:
    """Verdict and table of z, closed form against draws; differences are in units of the posterior's deviation."""
    exact = exchangeable.latent_posterior(model.features, model.values, model.noise, model.prior)
    found = latent_verdict(np.asarray(exact.mean), np.asarray(exact.covariance), draws, level)
    rows = []
    for value, feature in np.ndindex(*found.mean.shape):
        error = float(found.error[value, feature])
        rows.append(
            {
                "entry of z": f"{value + 1}, {feature + 1}",
                "exact mean": f"{found.mean[value, feature]:.4g}",
                "exact deviation": f"{found.deviation[feature]:.4g}",
                "draws": with_error(float(found.draws[value, feature]), error),
                "agrees": _agrees(found.agrees[value, feature], error),
            }
        )
    said = {
        CANNOT_TELL: f"Whether the draws agree with the exact posterior cannot be told: {'; '.join(found.doubts)}.",
        DOES_NOT_HOLD: "The draws do not agree with the exact posterior.",
        HOLDS: f"The draws agree with the exact posterior to within {found.bound:.2g} of its standard deviations.",
    }
    return said[found.verdict], ANSWERS[found.verdict], rows


def _agrees(agrees: Any, error: float) -> str:
    """Without a Monte Carlo error nothing can be said."""
    return ("yes" if agrees else "no") if np.isfinite(error) else UNKNOWN


def _alike(validations: list[Validation]) -> list[list[Validation]]:
    """Validations of one model, which differ in width alone, together."""
    together: list[list[Validation]] = []
    for validation in validations:
        for group in together:
            first = group[0].model
            same = (
                first.temperature == validation.model.temperature
                and first.architecture.with_width(1) == validation.model.architecture.with_width(1)
                and np.array_equal(first.labels, validation.model.labels)
                and np.array_equal(first.path_inputs, validation.model.path_inputs)
            )
            if same and validation.width not in [v.width for v in group]:
                group.append(validation)
                break
        else:
            together.append([validation])
    return together


def _described(together: list[Validation], note: str = "") -> tuple[str, str]:
    model, widths = together[0].model, ", ".join(str(validation.width) for validation in together)
    sentences = [
        f"At N = {validation.width} the diagonal entries of U are "
        + ", ".join(
            f"{name} {draws:.3g} by draws and {theory:.3g} by theory"
            for name, draws, theory in zip(
                model.row_names, np.diag(validation.order_parameter), np.diag(validation.corrected), strict=True
            )
        )
        + "."
        for validation in together
    ]
    return f"{model.name}: theory against draws at N = {widths}, T = {model.temperature:g}{note}", " ".join(sentences)
