"""A figure of each experiment: points are measured, lines are laws."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayesattn.papers.stored import file_of, read
from bayesattn.plots.style import MARKERS, legend_below, literal, palette, save, whole_numbers

COLUMNS, PANEL = 3, (4.6, 4.4)
FAR_APART = 8.0
"""Ratio of the largest to the smallest number above 0 from which an axis is logarithmic, if none is below 0."""
MOST_CURVES = 12
"""Curves of a panel that are drawn."""


class Axis(NamedTuple):
    """What a panel's axes show, and its title where its name is none."""

    x: str
    y: str
    title: str = ""


WIDTH, TOKENS, LOAD, NOISE = "width N", "tokens n", "load P / N", "strength of the noise"
COMPONENT, SHARE, RISK = "principal components, largest first", "share right", "excess risk"
AXES = {
    "Accuracy against noise": Axis(NOISE, SHARE),
    "Accuracy": Axis(WIDTH, SHARE),
    "U": Axis(WIDTH, "entry of U"),
    "Overlap": Axis(COMPONENT, "overlap with the labels"),
    "Kernel-target alignment": Axis(WIDTH, "alignment"),
    "Deviation": Axis(WIDTH, "deviation relative to U"),
    "Saddle point": Axis(WIDTH, "largest deviation"),
    "Gain over the GP limit against noise": Axis(NOISE, "gain in share right"),
    "Gain in accuracy": Axis(LOAD, "gain in share right"),
    "Gain in kernel-target alignment": Axis(LOAD, "gain in alignment"),
    "Largest entry": Axis(LOAD, "largest entry of U - I"),
    "One-shot accuracy after": Axis("heads removed", SHARE),
    "One-shot accuracy lost with a head, against the rank": Axis(
        "rank of the head's score, lowest first", "share lost"
    ),
    "One-shot accuracy lost with a head, against its score": Axis("score of the head", "share lost"),
    "One-shot accuracy against": Axis(WIDTH, SHARE),
    "One-shot accuracy of each network": Axis("seed of the task", SHARE),
    "One-shot rank correlation of each network": Axis("seed of the task", "rank correlation with points lost"),
    "One-shot rank correlation": Axis("correlation of outputs, theory and network", "rank correlation"),
    "cme": Axis(TOKENS, "RMS error", "CME attention"),
    "covariance": Axis("posterior covariance by attention", "drawn", "Covariance by attention"),
    "optimisation error": Axis("steps", "training risk less its minimum", "Optimisation error"),
    "excess risk of iterates": Axis("steps", "m x excess test risk", "Excess risk of iterates"),
    "bits lost": Axis("probability that the state stays", "bits lost", "Attention against the exact posterior"),
    "bridge": Axis("posterior mean by HMC", "returned by a head", "Heads of a network"),
    "length": Axis(TOKENS, "m x (test - training risk)", "Several heads and layers"),
    "softmax condition": Axis("condition number of C", RISK, "Masked softmax attention"),
    "masked sizes": Axis("sequences m", "excess over the best", "Masked tokens: what is not learnt"),
    "condition": Axis("condition number of C", RISK, "Masked tokens"),
    "fixed": Axis(TOKENS, "RMS", "Softmax, fixed bandwidth"),
    "shrinking": Axis(TOKENS, "RMS error", "Softmax, shrinking bandwidth"),
    "concentration": Axis(TOKENS, "E log-odds of the true latent / n", "The posterior concentrates"),
    "gap": Axis(TOKENS, "m x (test - training risk)", "Supervised: no growth with n"),
    "urn": Axis("draws n", "bits", "Information about y"),
}
"""By the beginning of a panel's name; the first that fits."""


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


def draw(folder: Path, only: Collection[str]) -> dict[str, OSError]:
    """Write figures of the results in a folder beside them, of some experiments, where there is no newer one.

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


def _draw(axes: Axes, title: str, curves: Sequence[Mapping[str, Any]]) -> None:
    named = next((axis for beginning, axis in AXES.items() if title.startswith(beginning)), Axis("", ""))
    axes.set_title(literal(named.title or title), fontsize=10, wrap=True)
    axes.set(xlabel=named.x, ylabel=named.y)
    shown, colors = curves[:MOST_CURVES], palette()
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
    if (more := len(curves) - MOST_CURVES) > 0:
        axes.text(0.02, 0.98, f"{more} more in the results", transform=axes.transAxes, va="top", fontsize=8)
