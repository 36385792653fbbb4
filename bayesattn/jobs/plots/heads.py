"""Figure of heads: scores with their posterior, the strongest paths, and accuracy as heads are removed."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayesattn._util.checks import require_kind
from bayesattn.jobs.plots.style import legend_below, literal, name_ticks, palette, whole_numbers
from bayesattn.questions.heads import Heads, Removal
from bayesattn.questions.heads.removal import MOST_ACCURACY_LOST

MOST_CELLS_WITH_TEXT = 40
SHOWN = 16
"""Most heads and paths whose names are drawn."""


def heads_figure(
    heads: Heads, paths: Heads | None = None, removal: Removal | None = None, title: str | None = None
) -> Figure:
    """Figure of head scores (with intervals, and as a map by layer), strongest paths, and accuracy as heads are removed.

    Args:
        heads: result of `bayesattn.heads`.
        paths: result of `bayesattn.heads(.., of="paths")`; the strongest paths are drawn.
        removal: result of `bayesattn.remove_heads`.
        title: title of the figure.

    Raises ValueError for other objects.
    """
    require_kind("heads", heads, Heads)
    for name, value, kind in (("paths", paths, Heads), ("removal", removal, Removal)):
        if value is not None:
            require_kind(name, value, kind)
    panels: list[Any] = [lambda axes: scores(axes, heads, "head")]
    layers = {name[0] for name in heads.names if isinstance(name, tuple)}
    if len(layers) > 1:
        panels.append(lambda axes: layer_map(axes, heads))
    if paths is not None and len(layers) > 1:
        panels.append(lambda axes: scores(axes, paths, "path"))
    if removal is not None and np.isfinite(removal.accuracy).all():
        panels.append(lambda axes: accuracy(axes, removal))
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(5.4 * columns, 4.4 * rows), layout="constrained", squeeze=False)
    for place, panel in zip(axes.ravel(), panels, strict=True):
        panel(place)
    if title:
        figure.suptitle(literal(title), fontsize=13)
    return figure


def _named(name: Any) -> str:
    return literal(f"{name[0]}: {name[1]}" if isinstance(name, tuple) else str(name))


def scores(axes: Axes, heads: Heads, what: str) -> None:
    """Draw posterior means and 94 % intervals, largest at the top; beside each head, the probability that it is least."""
    order = np.argsort(-heads.scores, kind="stable")[:SHOWN][::-1]
    places = np.arange(len(order))
    low, high = heads.scores[order] - heads.lower[order], heads.upper[order] - heads.scores[order]
    axes.errorbar(
        heads.scores[order], places, xerr=np.maximum([low, high], 0), fmt="o", ms=4, color=palette().blue, capsize=2
    )
    if what == "head":
        beside = {"xycoords": ("axes fraction", "data"), "fontsize": 8, "va": "center"}
        for place, at in zip(places.tolist(), order, strict=True):
            axes.annotate(f"{heads.probability_least[at]:.2f}", (1.02, place), **beside)
        axes.annotate("P(least)", (1.02, len(order) - 0.4), **beside)
    axes.set_ylim(-0.6, len(order) - 0.4)
    name_ticks(axes.yaxis, [_named(heads.names[at]) for at in order])
    left_out = len(heads.names) - len(order)
    more = f", the largest {len(order)} of {len(heads.names)}" if left_out else ""
    title = ("Heads" if what == "head" else "Paths") + more
    axes.set(xlabel="score, mean and 94 % interval", xlim=(0, 1.03), title=title)


def layer_map(axes: Axes, heads: Heads) -> None:
    """Draw a map of layers and heads: posterior mean of the score by colour, with its standard deviation as text."""
    layers = sorted({name[0] for name in heads.names})
    places = {layer: [at for at, name in enumerate(heads.names) if name[0] == layer] for layer in layers}
    means = np.full((len(layers), max(map(len, places.values()))), np.nan)
    crowded = means.size > MOST_CELLS_WITH_TEXT
    for row, layer in enumerate(layers):
        for column, at in enumerate(places[layer]):
            means[row, column] = heads.scores[at]
            ink = "black" if heads.scores[at] > 0.6 else "white"
            if not crowded:
                text = f"{heads.scores[at]:.2f}\n±{heads.sd[at]:.2f}"
                axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=7)
    image = axes.imshow(means, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    axes.figure.colorbar(image, ax=axes, shrink=0.8)
    axes.set_yticks(range(len(layers)), [f"layer {layer}" for layer in layers])
    axes.set_xticks(range(means.shape[1]), [str(1 + head) for head in range(means.shape[1])])
    axes.set(xlabel="head of the layer, in order", title="Score, posterior mean" + ("" if crowded else " ± sd"))


def accuracy(axes: Axes, removal: Removal) -> None:
    """Draw the test accuracy as heads are removed, with its standard error."""
    removed, values, errors = np.arange(len(removal.accuracy)), 100 * removal.accuracy, 100 * removal.accuracy_error
    axes.plot(removed, values, "o-", ms=4, color=palette().blue, label="by evidence, values inferred again")
    axes.fill_between(
        removed, values - errors, values + errors, color=palette().blue, alpha=0.2, lw=0, label="± 1 error"
    )
    allowed = f"{100 * MOST_ACCURACY_LOST:g} points below the whole network"
    least = values[0] - 100 * MOST_ACCURACY_LOST
    axes.axhline(least, color=palette().grey, lw=1, ls=(0, (1, 1)), label=allowed)
    whole_numbers(axes.xaxis)
    axes.set(xlabel="heads removed", ylabel="test accuracy (%)", title="Pruning with inference")
    legend_below(axes, 1)
