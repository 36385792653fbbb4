"""Pruning figures: head scores against the accuracy lost without each head, and accuracy as heads are removed."""

from collections.abc import Sequence
from itertools import cycle

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bayesattn._util.checks import Checked
from bayesattn._util.plain_values import PlainDict
from bayesattn._util.text import UNKNOWN
from bayesattn.errors import BayesattnError
from bayesattn.jobs.plots.style import MARKERS, legend_below, literal, name_ticks, palette, whole_numbers
from bayesattn.models.draws import Draws, opened_with_fixed_attention
from bayesattn.questions.heads.removal import MOST_ACCURACY_LOST
from bayesattn.questions.heads.units import heads_of
from reproductions.one_shot.pruning import Comparison, Pruned, compare

ORDER_STYLES: dict[str, PlainDict] = {
    "theory": {"color": "blue", "marker": "o"},
    "draws": {"color": "green", "marker": "s", "linestyle": ":"},
    "magnitude": {"color": "purple", "marker": "^", "linestyle": "-."},
    "random": {"color": "grey", "marker": "v", "linestyle": "--"},
}
"""Line style of each order of removal, with the name of its colour."""

NETWORKS = {"posterior": "Posterior's mean predictor", "trained": "Trained network"}


def pruning_figure(comparisons: Sequence[Comparison | Draws] | Comparison | Draws) -> Figure:
    """Head scores, accuracy lost without each head, and accuracy as heads are removed; one comparison for each seed.

    Instead of comparisons, give draws, runs or folders; they are first compared with the theory of their model.

    Raises ValueError for an empty sequence, for other arguments, and for draws of a model that does not support pruning.
    """
    comparisons = _compared(comparisons)
    networks, model = list(comparisons[0].networks), comparisons[0].model
    figure = plt.figure(figsize=(13.5, 4.6 * len(networks)), layout="constrained")
    width, count = model.architecture.widths[0], len(comparisons)
    seeds = "1 seed of the data" if count == 1 else f"{count} seeds of the data"
    figure.suptitle(f"{literal(model.name)}: heads scored at N = {width}, and removed; {seeds}", fontsize=13)
    grid = figure.add_gridspec(len(networks), 3)
    scores(figure.add_subplot(grid[:, 0]), comparisons)
    for row, name in enumerate(networks):
        lost_without_each(figure.add_subplot(grid[row, 1]), comparisons, name)
        accuracy_as_heads_go(figure.add_subplot(grid[row, 2]), [each.networks[name] for each in comparisons], name)
    return figure


def _compared(comparisons: Checked) -> list[Comparison]:
    several = [*comparisons] if isinstance(comparisons, list | tuple) else [comparisons]
    if not several:
        raise BayesattnError("comparisons must hold at least one, got none")
    return [each if isinstance(each, Comparison) else compare(*opened_with_fixed_attention(each)) for each in several]


def scores(axes: Axes, comparisons: Sequence[Comparison]) -> None:
    """Draw the score of each head, by theory and by draws, in a colour for each seed."""
    names = [f"{layer + 1}.{head + 1}" for layer, head in heads_of(comparisons[0].model.architecture)]
    places = np.arange(len(names))
    for color, marker, comparison in zip(cycle(palette()), cycle(MARKERS), comparisons, strict=False):
        of = {kind: np.concatenate(comparison.scores[kind]) for kind in ("theory", "draws")}
        axes.plot(places, of["theory"], marker=marker, color=color, linewidth=0.8, markerfacecolor="none")
        axes.plot(places, of["draws"], marker="x", color=color, linestyle="none")
    name_ticks(axes.xaxis, names, tilted=len(names) > 16)
    axes.set(xlabel="head, as layer.head", ylabel="head score", title="Head scores", ylim=(0, 1.05))
    ink = plt.rcParams["text.color"]
    handles = [
        Line2D([], [], color=ink, marker="o", markerfacecolor="none", linewidth=0.8, label="by theory"),
        Line2D([], [], color=ink, marker="x", linestyle="none", label="by draws"),
    ]
    legend_below(axes, 2, handles=handles, title="one colour per seed" if len(comparisons) > 1 else None)


def lost_without_each(axes: Axes, comparisons: Sequence[Comparison], name: str) -> None:
    """Draw the accuracy that a network loses without each head against the head's score."""
    for color, marker, comparison in zip(cycle(palette()), cycle(MARKERS), comparisons, strict=False):
        of = np.concatenate(comparison.scores["theory"])
        axes.plot(of, 100 * comparison.networks[name].drops, marker=marker, color=color, linestyle="none")
    correlations = np.array([comparison.correlation(name, "theory") for comparison in comparisons])
    known = correlations[~np.isnan(correlations)]
    if len(known):
        text = f"rank correlation {np.mean(known):.2f}"
        if unknown := len(correlations) - len(known):
            text += f" ({UNKNOWN} of {unknown} of {len(correlations)} seeds)"
    elif all(np.ptp(comparison.networks[name].drops) == 0 for comparison in comparisons):
        text = "the same is lost with each"
    else:
        text = f"rank correlation {UNKNOWN}"
    axes.set(
        xlabel="head score by theory",
        ylabel="accuracy lost without the head (points)",
        title=f"{NETWORKS[name]}:\n{text}",
    )


def accuracy_as_heads_go(axes: Axes, pruned: Sequence[Pruned], name: str) -> None:
    """Draw the accuracy as heads are removed, in the order of each score: mean and standard deviation over seeds."""
    for order in pruned[0].accuracies:
        curves = 100 * np.array([network.accuracies[order] for network in pruned])
        deviation = curves.std(0, ddof=1) if len(pruned) > 1 else None
        style = ORDER_STYLES[order] | {"color": getattr(palette(), ORDER_STYLES[order]["color"])}
        label = "at random, mean" if order == "random" else f"by {order}"
        settings: PlainDict = {"capsize": 2, "linewidth": 1.2, "markersize": 4, "label": label}
        axes.errorbar(np.arange(curves.shape[1]), curves.mean(0), deviation, **settings | style)
    least = float(100 * np.mean([network.accuracy - MOST_ACCURACY_LOST for network in pruned]))
    allowed = f"{100 * MOST_ACCURACY_LOST:g} points below the whole network"
    axes.axhline(least, color=palette().grey, linewidth=1, linestyle=(0, (1, 1)), label=allowed)
    whole_numbers(axes.xaxis)
    what = f", mean ± sd over {len(pruned)} seeds" if len(pruned) > 1 else ""
    axes.set(xlabel="heads removed, lowest score first", ylabel=f"test accuracy (%){what}", title=NETWORKS[name])
    legend_below(axes, 2, title="heads removed in the order of scores")
