"""One self-contained HTML page about runs: what was run, the verdict, figures, diagnostics, warnings, provenance."""

import base64
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bayesattn import exchangeable, plots
from bayesattn._extras import require
from bayesattn._files import replace_file
from bayesattn.diagnostics import FEWEST_CHAINS, moments
from bayesattn.models import LatentModel, Model
from bayesattn.runs import Run
from bayesattn.validation import (
    CANNOT_TELL,
    DOES_NOT_HOLD,
    DRAWS_PER_FREEDOM,
    HOLDS,
    LEVEL,
    Compared,
    Validation,
    doubts_about,
    validate,
)

STYLES = {"light": "default", "dark": "dark_background"}
TEMPLATE = Path(__file__).parent / "page.html.j2"
SHOWN_ENTRIES = 4
"""Quantities of which traces and ranks are drawn: the log posterior and the largest diagonal entries of U, or of z."""
RESOLUTION = 100


@dataclass(frozen=True)
class Picture:
    """A figure in both colour schemes, as data addresses, with what a screen reader says instead."""

    light: str
    dark: str
    caption: str
    alternative: str


@dataclass(frozen=True)
class Part:
    """One run: its settings, warnings, table of quantities and pictures of its diagnostics."""

    name: str
    overview: dict[str, Any]
    warnings: list[str]
    verdict: str
    holds: bool | None
    rows: list[dict[str, str]]
    pictures: list[Picture]
    provenance: dict[str, str]


def report(runs: Sequence[str | Path], out: str | Path, *, overwrite: bool = False) -> Path:
    """Write a page about runs; those of one model at several widths share their figures of theory against draws.

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
        ImportError: the extra "report" is not installed.
    """
    require("report", "a report")
    out = Path(out)
    if out.exists() and not overwrite:
        raise FileExistsError(f"out must not exist yet, got {out}, which does; choose another or overwrite it")
    if not runs:
        raise ValueError("runs must hold at least one run, got none")
    parts, validations = [], []
    level = LEVEL / len(runs)
    for path in runs:
        run = Run(path)
        if not min(run.done) > run.job.warmup:
            raise ValueError(f"runs must have draws to report on, got {path}, which has none yet")
        draws = run.draws().load()
        if isinstance(run.model, Model):
            validations.append(validate(run.model, draws, level=level))
            parts.append(_part(run, draws, *_held(validations[-1])))
        else:
            parts.append(_part(run, draws, *_held_latent(run.model, draws, level)))
    pictures = [
        picture(lambda some=together: plots.validation_figure(some), *_described(together))
        for together in _alike(validations)
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_file(out, page(parts, pictures).encode())
    return out


def page(parts: list[Part], pictures: list[Picture]) -> str:
    """The HTML of some runs; names in it are text."""
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        parts=parts, pictures=pictures, confidence=f"{1 - LEVEL:g}"
    )


def picture(make: Callable[[], Figure], caption: str, alternative: str) -> Picture:
    """A figure drawn once for each colour scheme."""
    drawn = {}
    for scheme, style in STYLES.items():
        with plt.style.context(style):
            figure = make()
            content = io.BytesIO()
            figure.savefig(content, format="png", dpi=RESOLUTION)
            plt.close(figure)
        drawn[scheme] = "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()
    return Picture(**drawn, caption=caption, alternative=alternative)


def _part(run: Run, draws: xr.DataTree, verdict: str, holds: bool | None, rows: list[dict[str, str]]) -> Part:
    import arviz_plots

    diagnosis = run.diagnose()
    overall = f"{diagnosis.overall()}."
    scalars = _scalars(draws)
    names = ", ".join(map(str, scalars["posterior"].data_vars))
    diagnostics: Iterable[tuple[Callable[[], Any], str, str]] = [
        (lambda: arviz_plots.plot_trace(scalars), "Traces", f"Traces of {names}, a colour a chain."),
        (
            lambda: arviz_plots.plot_rank(scalars),
            "Ranks: ECDF differences of each chain's ranks, with the band in which 99 % of mixed chains stay",
            f"Rank plots of {names}. {overall}",
        ),
        (
            lambda: arviz_plots.plot_ess_evolution(scalars),
            "Effective sample size as draws accumulate",
            f"Effective sample size of {names} against draws. {overall}",
        ),
    ]
    pictures = [picture(lambda make=make: _figure(make()), *words) for make, *words in diagnostics]
    if "energy" in draws["sample_stats"]:
        least = "is not defined" if np.isnan(diagnosis.bfmi) else f"is {diagnosis.bfmi:.2f}"
        words = ("Energy: marginal and transition densities", f"Energy plot. The least BFMI {least}.")
        pictures.append(picture(lambda: _figure(arviz_plots.plot_energy(draws)), *words))
    description = run.description
    environment = "\n".join(f"{name} = {value}" for name, value in description["environment"].items())
    return Part(
        name=run.path.name,
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


def _held(validation: Validation) -> tuple[str, bool | None, list[dict[str, str]]]:
    """Verdict and table of U, theory against draws."""
    names = validation.model.path_names
    agrees_with_theory = validation.agrees
    several = validation.diagnostics.chains >= FEWEST_CHAINS
    rows = []
    for row, column in zip(*np.tril_indices(len(names)), strict=True):
        agrees = agrees_with_theory[row, column]
        if len(names) > SHOWN_ENTRIES and row != column and agrees:
            continue
        rows.append(
            {
                "entry of U": names[row] if row == column else f"{names[row]}, {names[column]}",
                "saddle point": f"{validation.saddle[row, column]:.4g}",
                "first order in 1/N": f"{validation.corrected[row, column]:.4g}",
                "draws": f"{validation.order_parameter[row, column]:.4g} ± {validation.error[row, column]:.2g}",
                "R-hat": f"{validation.rhat[row, column]:.3f}" if several else "n/a",
                "ESS": f"{validation.ess[row, column]:.0f}",
                "agrees": "yes" if agrees else "no",
            }
        )
    holds = {HOLDS: True, DOES_NOT_HOLD: False, CANNOT_TELL: None}[validation.verdict]
    return f"Does the theory hold at N = {validation.width}? {validation.statement()}.", holds, rows


def _held_latent(model: LatentModel, draws: xr.DataTree, level: float) -> tuple[str, bool | None, list[dict[str, str]]]:
    """Verdict and table of z, closed form against draws; differences are in units of the posterior's deviation."""
    exact = exchangeable.latent_posterior(model.features, model.values, model.noise, model.prior)
    mean, deviation = np.asarray(exact.mean), np.sqrt(np.diag(exact.covariance))
    sampled = draws["posterior"].to_dataset()["latent"]
    of = moments(sampled)
    drawn, error, rhat, ess = of["mean"], of["error"], of["rhat"], of["ess"]
    rows = []
    compared = Compared(
        names=[f"z[{value + 1}, {feature + 1}]" for value, feature in np.ndindex(*mean.shape)],
        difference=(drawn - mean).ravel(),
        error=error.ravel(),
        freedom=ess.ravel() / DRAWS_PER_FREEDOM,
        allowance=np.zeros(mean.size),
        size=np.broadcast_to(deviation, mean.shape).ravel(),
        level=level,
        confidence_level=level,
    )
    agrees = compared.agrees.reshape(mean.shape)
    for value, feature in np.ndindex(*mean.shape):
        rows.append(
            {
                "entry of z": f"{value + 1}, {feature + 1}",
                "exact mean": f"{mean[value, feature]:.4g}",
                "exact deviation": f"{deviation[feature]:.4g}",
                "draws": f"{drawn[value, feature]:.4g} ± {error[value, feature]:.2g}",
                "agrees": "yes" if agrees[value, feature] else "no",
            }
        )
    if doubts := doubts_about("z", sampled.sizes["chain"], rhat, ess):
        return f"Whether the draws agree with the exact posterior cannot be told: {'; '.join(doubts)}.", None, rows
    if not agrees.all():
        return "The draws do not agree with the exact posterior.", False, rows
    within = f"to within {np.max(compared.bound):.2g} of its standard deviations"
    return f"The draws agree with the exact posterior {within}.", True, rows


def _scalars(draws: xr.DataTree) -> xr.DataTree:
    """Log posterior and the largest entries of U, or of z, as variables of their own."""
    posterior = draws["posterior"].to_dataset()
    chosen = {}
    if "lp" in draws["sample_stats"]:
        chosen["log posterior"] = draws["sample_stats"]["lp"]
    if "order_parameter" in posterior:
        means = np.diag(posterior["order_parameter"].mean(("chain", "draw")).values)
        for path in np.argsort(-means, kind="stable")[: SHOWN_ENTRIES - 1]:
            # A slash parts the groups of a tree.
            name = plots.literal(f"U[{posterior['path'].values[path]}]".replace("/", "\N{DIVISION SLASH}"))
            chosen[name] = posterior["order_parameter"].isel(path=path, other_path=path)
    else:
        means = np.abs(posterior["latent"].mean(("chain", "draw")).values)
        for flat in np.argsort(-means, axis=None, kind="stable")[: SHOWN_ENTRIES - 1]:
            value, feature = np.unravel_index(flat, means.shape)
            chosen[f"z[{value + 1}, {feature + 1}]"] = posterior["latent"].isel(value_feature=value, feature=feature)
    plain = {name: array.reset_coords(drop=True) for name, array in chosen.items()}
    return xr.DataTree.from_dict({"posterior": xr.Dataset(plain)})


def _figure(collection: Any) -> Figure:
    figure = collection.viz["figure"].item()
    for panel in figure.axes:
        for axis in (panel.xaxis, panel.yaxis):
            # Chains are counted; there is none between two.
            if axis.get_label_text() == "Chain":
                axis.set_major_locator(MaxNLocator(integer=True))
    return figure


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


def _described(together: list[Validation]) -> tuple[str, str]:
    model, widths = together[0].model, ", ".join(str(validation.width) for validation in together)
    sentences = [
        f"At N = {validation.width} the diagonal entries of U are "
        + ", ".join(
            f"{name} {draws:.3g} by draws and {theory:.3g} by theory"
            for name, draws, theory in zip(
                model.path_names, np.diag(validation.order_parameter), np.diag(validation.corrected), strict=True
            )
        )
        + "."
        for validation in together
    ]
    return f"{model.name}: theory against draws at N = {widths}", " ".join(sentences)
