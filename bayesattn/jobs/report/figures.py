"""Figures of a report in both colour schemes, with captions and texts for screen readers."""

import base64
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bayesattn._util.random import digest
from bayesattn.checks.diagnostics import Diagnostics
from bayesattn.checks.validation import Validation
from bayesattn.jobs.plots.run import HEIGHTS, WIDTH, draw
from bayesattn.jobs.plots.style import png
from bayesattn.jobs.tables import MOST_PATHS

PAPER = "#121212"
"""Background of the page in dark mode."""
STYLES: dict[str, list[str | dict[str, str]]] = {
    "light": ["default"],
    "dark": ["dark_background", {"figure.facecolor": PAPER, "axes.facecolor": PAPER, "savefig.facecolor": PAPER}],
}
RESOLUTION = 100


@dataclass(frozen=True)
class EmbeddedFigure:
    """Figure in both colour schemes, as data URLs, with caption and text for screen readers."""

    light: str
    dark: str
    caption: str
    alternative: str


def embedded(make: Callable[[], Figure], caption: str, alternative: str) -> EmbeddedFigure:
    """Figure drawn once for each colour scheme."""
    drawn: dict[str, str] = {}
    places = None
    for scheme, style in STYLES.items():
        with plt.style.context(style):
            figure = make()
            # Layout, the most expensive step, is the same in both schemes; it cannot be reused for subfigures.
            if places is not None and not figure.subfigs:
                figure.set_layout_engine("none")
                for part, place in zip([*figure.axes, *figure.texts], places, strict=True):
                    part.set_position(place)
            content = png(figure, RESOLUTION)
            places = [part.get_position() for part in [*figure.axes, *figure.texts]]
            plt.close(figure)
        drawn[scheme] = "data:image/png;base64," + base64.b64encode(content).decode()
    return EmbeddedFigure(**drawn, caption=caption, alternative=alternative)


def captions(names: str, diagnosis: Diagnostics, latent: bool) -> dict[str, tuple[str, str]]:
    """Caption and text for screen readers of each figure."""
    overall = f"{diagnosis.overall()}."
    central, entries = ("the latent z", "entries") if latent else ("the order parameter U", "diagonal entries")
    least = "is not defined" if np.isnan(diagnosis.bfmi) else f"is {diagnosis.bfmi:.2f}"
    return {
        "trace": ("Traces, one colour per chain", f"Traces of {names}. {overall}"),
        "rank": (
            "Ranks: each chain's ECDF of ranks among all chains, minus the uniform CDF, with the band of mixed chains",
            f"Rank plots of {names}. {overall}",
        ),
        "ess": (
            "Effective sample size of bulk and tails as draws accumulate",
            f"Effective sample size of {names} against draws. {overall}",
        ),
        "energy": (
            "Energy, its changes from draw to draw, and the Bayesian fraction of missing information (BFMI) of each chain",
            f"Energy plot. The smallest BFMI {least}.",
        ),
        "U": (
            f"Posterior of {central}",
            f"Posterior mean of {central} as a heat map, or of its diagonal by heads if there are more than"
            f" {MOST_PATHS} paths; median, 50 % and 94 % interval of its {entries}, at most the {MOST_PATHS}"
            " largest.",
        ),
        "prediction": ("Predictions on the test examples", "Mean predictor and intervals on the test examples."),
    }


def diagnostic_figure(kind: str, draws: xr.DataTree) -> Figure:
    """Figure of a single kind, one of `bayesattn.jobs.plots.run.KINDS`."""
    figure = plt.figure(figsize=(WIDTH, HEIGHTS[kind]), layout="constrained")
    draw(figure, kind, draws)
    return figure


def by_model(validations: list[Validation]) -> list[list[Validation]]:
    """Groups of validations of one model on the same test examples, which differ only in width."""
    groups: dict[tuple[str, int], list[Validation]] = {}
    earlier: Counter[tuple[str, int]] = Counter()
    for validation in validations:
        model = validation.model.replace(width=1)
        tests = [array for array in (model.test_path_inputs, model.test_labels) if array is not None]
        same = digest(model.fingerprint, *tests)
        groups.setdefault((same, earlier[same, validation.width]), []).append(validation)
        earlier[same, validation.width] += 1
    return [*groups.values()]


def theory_caption(together: list[Validation], pooled: Sequence[Validation] = ()) -> tuple[str, str]:
    """Caption and text for screen readers of the figure of theory against draws of one model at several widths.

    `pooled` are validations of several seeds together.
    """
    model = together[0].model
    widths = ", ".join(f"{each.width} (seeds together)" if each in pooled else f"{each.width}" for each in together)
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
    return f"{model.name}: theory against draws at N = {widths}, T = {model.temperature:g}", " ".join(sentences)
