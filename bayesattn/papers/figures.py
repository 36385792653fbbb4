"""A figure of each experiment: points are measured, lines are laws."""

from collections.abc import Collection, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayesattn.papers.results import file_of, read
from bayesattn.plots.style import MARKERS, legend_below, literal, palette, save

COLUMNS, PANEL = 3, (4.6, 4.4)
FAR_APART = 8.0
"""Ratio of the largest to the smallest number from which an axis is logarithmic, if all are above 0."""
MOST_CURVES = 12
"""Curves of a panel that are drawn."""


def figure(result: Mapping[str, Any]) -> Figure | None:
    """The panels of an experiment's result; None if it has none."""
    panels: Mapping[str, Sequence[Mapping[str, Any]]] = result["panels"]
    if not panels:
        return None
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    size = (PANEL[0] * columns, PANEL[1] * rows)
    drawn, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for panel, (title, curves) in zip(axes.flat, panels.items(), strict=False):
        _draw(panel, title, curves)
    for panel in axes.flat[len(panels) :]:
        panel.set_axis_off()
    return drawn


def draw(folder: Path, only: Collection[str]) -> None:
    """Write figures of the results in a folder beside them, of some experiments, where there is no newer one."""
    for name, result in read(folder).items():
        file, content = (folder / f"{file_of(name)}{ending}" for ending in (".png", ".json"))
        if name not in only or (file.exists() and file.stat().st_mtime >= content.stat().st_mtime):
            continue
        if (drawn := figure(result)) is not None:
            save(drawn, file, overwrite=True)
            plt.close(drawn)


def _draw(axes: Axes, title: str, curves: Sequence[Mapping[str, Any]]) -> None:
    axes.set_title(literal(title), fontsize=10, wrap=True)
    shown = curves[:MOST_CURVES]
    for color, marker, curve in zip(cycle(palette()), cycle(MARKERS), shown, strict=False):
        x, y = (np.array(curve[name], float) for name in ("x", "y"))
        error = None if curve["error"] is None else np.array(curve["error"], float)
        axes.errorbar(x, y, error, fmt=marker, color=color, markersize=4, capsize=2, label=literal(curve["label"]))
        if curve["law"] is not None:
            axes.plot(x, np.array(curve["law"], float), color=color, linewidth=1)
    for name in ("x", "y"):
        numbers = np.concatenate([np.array(curve[name], float) for curve in shown])
        if np.min(numbers) > 0 and np.max(numbers) > FAR_APART * np.min(numbers):
            axes.set(**{f"{name}scale": "log"})
    legend_below(axes)
    if (more := len(curves) - MOST_CURVES) > 0:
        axes.text(0.02, 0.98, f"{more} more in the results", transform=axes.transAxes, va="top", fontsize=8)
