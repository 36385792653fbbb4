"""The figure of all claims: points are measured, lines are laws."""

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayesattn.exchangeable.claims import FAMILY_LEVEL, Curve, Findings
from bayesattn.plots.style import MARKERS, legend_below, palette

PANELS: dict[str, dict[str, Any]] = {
    "cme": {"title": "(b) CME attention", "xlabel": "tokens n", "ylabel": "RMS error"},
    "fixed": {"title": "(b) softmax, fixed bandwidth", "xlabel": "tokens n", "ylabel": "RMS"},
    "shrinking": {"title": "(b) softmax, shrinking bandwidth", "xlabel": "tokens n", "ylabel": "RMS error"},
    "concentration": {
        "title": "(a) the posterior concentrates",
        "xlabel": "tokens n",
        "ylabel": "E log-odds of the true latent / n",
        "yscale": "linear",
    },
    "gap": {
        "title": "(c) supervised: no growth with n",
        "xlabel": "tokens n",
        "ylabel": "m x (test - training risk)",
        "yscale": "linear",
    },
    "condition": {
        "title": "(c) masked tokens: the condition number",
        "xlabel": "condition number of C",
        "ylabel": "excess risk",
    },
}


def figure(findings: Findings) -> Figure:
    """Six panels of laws, heads against draws of the latent, and how to read them."""
    drawn, axes = plt.subplots(2, 4, figsize=(17, 8.5), layout="constrained")
    for panel, (name, settings) in zip(axes.flat, PANELS.items(), strict=False):
        curves(panel, findings.panels[name])
        panel.set(**{"xscale": "log", "yscale": "log"} | settings)
        if settings.get("yscale") == "linear":
            places = findings.panels[name][0].x
            panel.set_xticks(places, [f"{place:g}" for place in places])
            panel.set_xticks([], minor=True)
        legend_below(panel)
    bridge(axes.flat[6], findings.panels["bridge"])
    _reading(axes.flat[7], findings)
    drawn.suptitle("Attention as inference of a latent posterior: measured and predicted", fontsize=14)
    return drawn


def curves(axes: Axes, measured: Sequence[Curve]) -> None:
    """Measured points with standard errors, and their laws."""
    for color, marker, curve in zip(cycle(palette()), cycle(MARKERS), measured, strict=False):
        axes.errorbar(
            curve.x, curve.y, curve.error, fmt=marker, color=color, markersize=4, capsize=3, label=curve.label
        )
        if curve.law is not None:
            axes.plot(curve.x, curve.law, color=color, linewidth=1)
        else:
            axes.plot(curve.x, curve.y, color=color, linewidth=0.7, linestyle=":")


def bridge(axes: Axes, measured: Sequence[Curve]) -> None:
    """What heads return against the posterior mean by HMC, with its standard deviation."""
    for color, marker, curve in zip(cycle(palette()), cycle(MARKERS), measured, strict=False):
        axes.errorbar(
            curve.x,
            curve.y,
            xerr=curve.error,
            fmt=marker,
            color=color,
            markersize=3,
            linewidth=0.4,
            label=curve.label,
        )
    ends = np.array([min(curve.x.min() for curve in measured), max(curve.x.max() for curve in measured)])
    axes.plot(ends, ends, color=palette().grey, linewidth=1, linestyle="--", label="equal")
    axes.set(
        title="heads of an attention network",
        xlabel="HMC: posterior mean of z q ± its deviation",
        ylabel="returned by a softmax head",
    )
    legend_below(axes)


def _reading(axes: Axes, findings: Findings) -> None:
    axes.set_axis_off()
    holds = findings.holds
    literal = [claim for claim in findings.claims if claim.literal]
    plain = [claim for claim in findings.claims if not claim.literal]
    lines = [
        "points: measured, with standard errors",
        "lines: the law, computed, not fitted",
        f"claims fail below p = {findings.level:.1e} (all together: {FAMILY_LEVEL:g})",
        "",
        f"{sum(map(holds, plain))} of {len(plain)} claims hold",
        f"{sum(not holds(claim) for claim in literal)} of {len(literal)} literal claims fail, as qualified:",
        *(f"  - {claim.statement.partition(':')[0]}" for claim in literal),
    ]
    axes.text(0, 1, "\n".join(lines), va="top", fontsize=9, wrap=True, transform=axes.transAxes)
