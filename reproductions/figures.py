"""Figures of experiments: points are measured, lines are laws."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayesattn.jobs.plots.style import MARKERS, legend_below, literal, palette, save, whole_numbers
from reproductions.stored import file_of, read

COLUMNS, PANEL = 3, (4.6, 4.4)
FAR_APART = 8.0
"""Ratio of the largest to the smallest number above 0 from which an axis is logarithmic, if none is below 0."""
MOST_CURVES = 12
"""Largest number of curves drawn in a panel."""


def figure(result: Mapping[str, Any]) -> Figure | None:
    """The panels of an experiment's result; None if it has none."""
    panels: Sequence[Mapping[str, Any]] = result["panels"]
    if not panels:
        return None
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    size = (PANEL[0] * columns, PANEL[1] * rows)
    drawn, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for place, panel in zip(axes.flat, panels, strict=False):
        _draw(place, panel)
    for place in axes.flat[len(panels) :]:
        place.set_axis_off()
    return drawn


def draw(folder: Path, only: Collection[str]) -> dict[str, OSError]:
    """Write figures of some experiments beside their results, where there is no newer one.

    Returns:
        By experiment, why a figure could not be written.
    """
    failed: dict[str, OSError] = {}
    for name, result in read(folder).items():
        file, content = (folder / f"{file_of(name)}{ending}" for ending in (".png", ".json"))
        if name not in only or (file.exists() and file.stat().st_mtime >= content.stat().st_mtime):
            continue
        if (drawn := figure(result)) is not None:
            try:
                save(drawn, file, overwrite=True)
            except OSError as error:
                failed[name] = error
            plt.close(drawn)
    return failed


def _draw(axes: Axes, panel: Mapping[str, Any]) -> None:
    axes.set_title(literal(panel["title"]), fontsize=10, wrap=True)
    axes.set(xlabel=panel["x"], ylabel=panel["y"])
    shown, colors = panel["curves"][:MOST_CURVES], palette()
    for place, curve in enumerate(shown):
        # Where colours begin anew, they come with other markers.
        color, marker = colors[place % len(colors)], MARKERS[(place + place // len(colors)) % len(MARKERS)]
        x, y = (np.array(curve[name], float) for name in ("x", "y"))
        error = None if curve["error"] is None else np.array(curve["error"], float)
        axes.errorbar(x, y, error, fmt=marker, color=color, markersize=4, capsize=2, label=literal(curve["label"]))
        if curve["law"] is not None:
            axes.plot(x, np.array(curve["law"], float), color=color, linewidth=1)
    for name in ("x", "y"):
        numbers = np.concatenate([np.array(curve[name], float) for curve in shown])
        if np.min(numbers) >= 0 and np.max(numbers) > FAR_APART * np.min(numbers[numbers > 0], initial=np.inf):
            axes.set(**{f"{name}scale": "log"})
        elif name == "x" and np.all(numbers == np.round(numbers)):
            whole_numbers(axes.xaxis)
    legend_below(axes)
    if (more := len(panel["curves"]) - MOST_CURVES) > 0:
        axes.text(0.02, 0.98, f"{more} more in the results", transform=axes.transAxes, va="top", fontsize=8)
