"""Figures of theory against draws, readable without the code; Okabe and Ito's colours, safe for colour-blind readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bayesattn.accuracy import Alignment
from bayesattn.calibration import Calibration, ecdf_band, ecdf_difference
from bayesattn.pruning import MOST_LOST, Comparison, heads_of
from bayesattn.temperature import Candidate, by_evidence, by_gp_evidence

if TYPE_CHECKING:
    from bayesattn.validation import Validation

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"
COLORS, MARKERS = (BLUE, ORANGE, GREEN, PURPLE, GREY), "os^Dv"
ORDER_STYLES: dict[str, dict[str, Any]] = {
    "theory": {"color": BLUE, "marker": "o"},
    "draws": {"color": GREEN, "marker": "s", "linestyle": ":"},
    "magnitude": {"color": PURPLE, "marker": "^", "linestyle": "-."},
    "random": {"color": GREY, "marker": "v", "linestyle": "--"},
}
MOST_NUMBERED = 8
"""Paths up to which each entry of U is written out."""
MOST_TICKS = 6
"""Widths up to which each has a tick of its own."""


def literal(name: str) -> str:
    """A user's name as a figure shows it as it is: `$` begins a formula, and a legend leaves out what begins with `_`."""
    return (" " if name.startswith("_") else "") + name.replace("$", r"\$")


def validation_figure(
    validations: Sequence[Validation], curve: Mapping[int, Sequence[Candidate]] | None = None
) -> Figure:
    """Everything about a model at several widths on one page: accuracy, deviations, U at the smallest width, alignment.

    `curve` holds the theory at these and more widths, as `bayesattn.temperature.candidates` makes it.
    """
    ordered = sorted(validations, key=lambda v: v.width)
    smallest = ordered[0]
    figure = plt.figure(figsize=(13, 8.5), layout="constrained")
    model = smallest.model
    temperatures = ", ".join(f"{t:g}" for t in dict.fromkeys(v.model.temperature for v in ordered))
    figure.suptitle(f"{literal(model.name)}: theory and draws of the posterior, T = {temperatures}", fontsize=13)
    rows: Any = figure.subfigures(2, 1)
    top_axes = rows[0].subplots(1, 3)
    if smallest.accuracy is not None:
        accuracy(top_axes[0], ordered, curve or {})
    else:
        top_axes[0].set_axis_off()
    order_parameter_against_width(top_axes[1], ordered)
    if smallest.alignment is not None:
        alignment(top_axes[2], smallest.alignment, smallest.width)
    else:
        top_axes[2].set_axis_off()
    order_parameters(rows[1], smallest)
    return figure


def calibration_figure(calibrations: Mapping[str, Calibration]) -> Figure:
    """ECDF of each quantity's ranks minus the uniform one, a panel for each sampler, with the band of uniform ranks."""
    columns = min(4, len(calibrations))
    rows = -(-len(calibrations) // columns)
    figure, panels = plt.subplots(
        rows,
        columns,
        figsize=(max(4.5, 3.4 * columns), 3.0 * rows + 0.6),
        layout="constrained",
        sharey=True,
        squeeze=False,
    )
    for panel in panels.flat[len(calibrations) :]:
        panel.set_axis_off()
    for panel, (name, calibration) in zip(panels.flat, calibrations.items(), strict=False):
        ranks = np.arange(calibration.draws + 1)
        low, high = ecdf_band(len(calibration.ranks), calibration.draws)
        panel.fill_between(ranks, low, high, color=GREY, alpha=0.25, linewidth=0, step="post")
        for quantity, values in zip(calibration.names, calibration.ranks.T, strict=True):
            color = {"U": BLUE, "corr": PURPLE, "f": ORANGE}.get(quantity.split()[0], GREEN)
            panel.step(ranks, ecdf_difference(values, calibration.draws), where="post", color=color, linewidth=0.9)
        verdict = {True: "uniform", False: "NOT uniform", None: "cannot tell"}[calibration.holds]
        panel.set_title(f"{literal(name)}: {verdict},\n{len(calibration.ranks)} simulations", fontsize=10)
        panel.set_xlabel(f"rank among {calibration.draws} posterior draws")
    for panel in panels[:, 0]:
        panel.set_ylabel("ECDF - uniform")
    colours = {"entries of U": BLUE, "their correlations": PURPLE, "predictions": ORANGE, "log likelihood": GREEN}
    handles: list[Artist] = [Line2D([], [], color=color, label=label) for label, color in colours.items()]
    handles.append(Patch(color=GREY, alpha=0.25, label="95 % of uniform curves"))
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return figure


def pruning_figure(comparisons: Sequence[Comparison]) -> Figure:
    """Head scores against what is lost with each head, and accuracy as heads go; one comparison for each seed."""
    networks = list(comparisons[0].networks)
    figure, panels = plt.subplots(
        len(networks), 3, figsize=(13, 4 * len(networks)), layout="constrained", squeeze=False
    )
    model = comparisons[0].model
    heads = [f"{layer + 1}.{head + 1}" for layer, head in heads_of(model.architecture)]
    width, count = model.architecture.widths[0], len(comparisons)
    figure.suptitle(f"{literal(model.name)}: heads scored at N = {width}, and removed; {count} seeds", fontsize=13)
    for row, name in zip(panels, networks, strict=True):
        pruned = [comparison.networks[name] for comparison in comparisons]
        for color, marker, comparison, network in zip(cycle(COLORS), cycle(MARKERS), comparisons, pruned, strict=False):
            scores = [np.concatenate(comparison.scores[kind]) for kind in ("theory", "draws")]
            row[0].plot(heads, scores[0], marker=marker, color=color, linewidth=0.8)
            row[0].plot(heads, scores[1], marker="x", color=color, linestyle="none")
            row[1].plot(scores[0], 100 * network.drops, marker=marker, color=color, linestyle="none")
        row[0].set(
            xlabel="layer.head", ylabel="head score", title="Scores (x: by draws), a colour a seed", ylim=(0, 1.05)
        )
        correlations = [comparison.correlation(name, "theory") for comparison in comparisons]
        title = f"{name}: rank correlation {np.mean(correlations):.2f}"
        row[1].set(xlabel="head score by theory", ylabel="accuracy lost without the head (points)", title=title)
        for order in pruned[0].accuracies:
            curves = 100 * np.array([network.accuracies[order] for network in pruned])
            row[2].errorbar(
                np.arange(curves.shape[1]),
                curves.mean(0),
                curves.std(0),
                capsize=2,
                linewidth=1.2,
                label=order,
                **ORDER_STYLES[order],
            )
        row[2].axhline(100 * np.mean([network.accuracy - MOST_LOST for network in pruned]), color=GREY, linewidth=0.8)
        row[2].set(
            xlabel="heads removed, lowest score first",
            ylabel="test accuracy (%)",
            title=f"{name}: mean ± sd over seeds",
        )
        row[2].legend(frameon=False, fontsize=8, title="order by", title_fontsize=8)
    return figure


def accuracy(axes: Axes, validations: Sequence[Validation], curve: Mapping[int, Sequence[Candidate]]) -> None:
    """Accuracy of the mean predictor against width: theory, draws with both their errors, GP limits.

    With a curve the theory's line goes through all its widths, and the GP limit has a temperature of its own.
    """
    shares = [v.accuracy for v in validations if v.accuracy is not None]
    widths = [v.width for v in validations]
    names = ("corrected", "draws", "error", "test_error")
    corrected, draws, error, of_test_set = (100 * np.array([getattr(s, name) for s in shares]) for name in names)
    chosen = {width: by_evidence(tried) for width, tried in curve.items()}
    line = {width: best.test_accuracy for width, best in chosen.items() if best.test_accuracy is not None}
    line = line or dict(zip(widths, [share.theory for share in shares], strict=True))
    axes.plot(list(line), 100 * np.array(list(line.values())), color=BLUE, label="theory, saddle point")
    axes.plot(
        widths, corrected, color=BLUE, marker="x", linestyle=":", label="theory, to first order in 1/N", markersize=4
    )
    axes.errorbar(widths, draws, of_test_set, fmt="none", ecolor=ORANGE, alpha=0.5, elinewidth=1, capsize=4)
    label = "draws ± Monte Carlo (thick), ± test set (thin)"
    axes.errorbar(widths, draws, error, fmt="o", markersize=4, color=ORANGE, elinewidth=3, label=label, zorder=3)
    own = [by_gp_evidence(tried).gp_test_accuracy for tried in curve.values()]
    limits = {"GP limit, all paths": own[0] if own and own[0] is not None else shares[0].gp}
    limits |= {f"GP limit, {literal(k)}": g for k, g in shares[0].gp_of_groups.items()}
    for (label, share), style in zip(limits.items(), ("--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1))), strict=False):
        axes.axhline(100 * share, color=GREY, linestyle=style, linewidth=1.2, label=label)
    _width_axis(axes, sorted(line))
    axes.set(ylabel="test accuracy (%)", title="Accuracy of the mean predictor")
    low, high = axes.get_ylim()
    axes.set_ylim(low - 0.55 * (high - low), high)
    axes.legend(fontsize=7.5, loc="lower left", ncols=1, frameon=False)


def order_parameter_against_width(axes: Axes, validations: Sequence[Validation]) -> None:
    """Diagonal of U against width, relative to the saddle point: draws with Monte Carlo errors, and corrected theory.

    Of many paths the four of greatest U are shown.
    """
    widths = np.array([v.width for v in validations], float)
    names = [*map(literal, validations[0].model.path_names)]
    greatest = np.sort(np.argsort(-np.diag(validations[0].saddle), kind="stable")[:4])
    for number, (path, color) in enumerate(zip(greatest, (BLUE, ORANGE, GREEN, PURPLE), strict=False)):
        saddle = np.array([v.saddle[path, path] for v in validations])
        corrected = np.array([v.corrected[path, path] for v in validations]) / saddle - 1
        draws = np.array([v.order_parameter[path, path] for v in validations]) / saddle - 1
        error = np.array([v.error[path, path] for v in validations]) / saddle
        axes.plot(widths, 100 * corrected, color=color, linestyle=":")
        shift = 1 + 0.05 * (number - 1.5)  # beside each other, so that error bars can be told apart
        axes.errorbar(
            shift * widths, 100 * draws, 100 * error, fmt="o", markersize=4, color=color, capsize=3, label=names[path]
        )
    axes.axhline(0, color=BLUE, linewidth=1)
    _width_axis(axes, widths)
    axes.set(ylabel="deviation of U from the saddle point (%)", title="Order parameter, diagonal entry of each path")
    axes.legend(fontsize=8, frameon=False, title="points: draws; dotted: first order in 1/N", title_fontsize=8)


def alignment(axes: Axes, aligned: Alignment, width: int) -> None:
    """Alignment of the kernel's eigenvectors with the labels: draws with Monte Carlo errors, and GP limit."""
    numbers = np.arange(1, len(aligned.eigenvectors) + 1)
    style: dict[str, Any] = {"markersize": 3, "linewidth": 0.8}
    label = f"draws, N = {width}: {aligned.draws:.4f} ± {aligned.error:.4f}"
    axes.errorbar(
        numbers,
        aligned.eigenvectors,
        aligned.eigenvectors_error,
        marker="o",
        color=BLUE,
        capsize=2,
        label=label,
        **style,
    )
    axes.plot(numbers, aligned.gp_eigenvectors, marker="s", color=GREY, label=f"GP limit: {aligned.gp:.4f}", **style)
    axes.set_xscale("log")
    axes.set(
        xlabel="eigenvector of the kernel, largest eigenvalue first",
        ylabel=r"alignment with the labels  $|u_k \cdot Y| / |Y|$",
        title="Kernel alignment",
    )
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.3 * (high - low))
    axes.legend(frameon=False, fontsize=8, loc="upper right", title="kernel-target alignment", title_fontsize=8)


def order_parameters(figure: Any, validation: Validation) -> None:
    """U by theory and by draws on one colour scale, with path names."""
    names = [*map(literal, validation.model.path_names)]
    panels = [
        ("saddle point", validation.saddle),
        ("theory to first order in 1/N", validation.corrected),
        ("draws", validation.order_parameter),
    ]
    limit = max(np.abs(matrix).max() for _, matrix in panels)
    axes_row = figure.subplots(1, 3, sharey=True)
    for axes, (title, matrix) in zip(axes_row, panels, strict=True):
        image = axes.imshow(matrix, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
        axes.set_title(f"U at N = {validation.width}: {title}", fontsize=10)
        many = len(names) > MOST_NUMBERED
        tilt: dict[str, Any] = {"rotation": 90} if many else {"rotation": 30, "ha": "right"}
        axes.set_xticks(range(len(names)), names, fontsize=8, **tilt)
        axes.set_yticks(range(len(names)), names, fontsize=8)
        if many:
            continue
        for row, column in np.ndindex(*matrix.shape):
            text = f"{matrix[row, column]:.2f}"
            if title == "draws":
                text += f"\n±{validation.error[row, column]:.2f}"
            color = "white" if abs(matrix[row, column]) > 0.6 * limit else "black"
            axes.text(column, row, text, ha="center", va="center", color=color, fontsize=8)
    figure.colorbar(image, ax=list(axes_row), label="order parameter U", shrink=0.85)


def _width_axis(axes: Axes, widths: Any) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    if len(widths) <= MOST_TICKS:
        axes.set_xticks(widths)
    axes.set_xticks([], minor=True)
    axes.set_xlabel("width N (all layers)")
