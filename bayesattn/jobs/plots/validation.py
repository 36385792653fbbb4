"""Figures of theory against draws at one or several widths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase

from bayesattn._util.checks import Checked
from bayesattn._util.plain_values import PlainDict
from bayesattn._util.text import rounded, with_error
from bayesattn.checks.alignment import Alignment, why_unaligned
from bayesattn.checks.theory_predictions import size_of
from bayesattn.checks.thresholds import CANNOT_TELL, LEVEL, overall
from bayesattn.errors import BayesattnError
from bayesattn.jobs.plots.style import heat_map, legend_below, name_ticks, palette, short, whole_numbers, width_axis
from bayesattn.models.draws import Draws
from bayesattn.questions.temperature import Candidate, by_evidence, by_gp_evidence

if TYPE_CHECKING:
    from bayesattn.checks.validation import Validation

MOST_PATHS_DRAWN = 4
"""Largest number of paths, and of pairs of paths, whose U is drawn against width."""
MOST_EIGENVECTORS_ON_LINEAR_AXIS = 10
"""With more eigenvectors than this, their axis is logarithmic."""


def validation_figure(
    validations: Sequence[Validation | Draws] | Validation | Draws,
    curve: Mapping[int, Sequence[Candidate]] | None = None,
) -> Figure:
    """Validation at several widths on one page: accuracy, U against width, U at the smallest width, and alignment.

    Without test labels, or if all labels are 0, the panels that need them are omitted, and the title says so. Instead of
    validations, you may give draws, runs or folders. They are first compared with the theory of their model, each at level
    0.01 divided by the number of arguments, so that 0.01 holds for all together.

    Args:
        validations: validations or draws, one or several.
        curve: candidates from `bayesattn.questions.temperature.candidates`, by width; may include widths without draws.

    Raises:
        ValueError: no validations, an argument that is neither a validation nor draws, draws that are not of a network
            with fixed attention, models that differ in more than width and temperature.
        RunError: a folder that is not a readable run.
        NotConverged: a solver of the theory failed.
    """
    ordered = sorted(_validated(validations), key=lambda v: v.width)
    smallest, model = ordered[0], ordered[0].model
    posteriors = {v.model.replace(width=1, temperature=model.temperature).fingerprint for v in ordered}
    if len(posteriors) > 1:
        raise BayesattnError(
            "validations must be of one model at several widths and temperatures, got models that differ in more"
        )
    temperatures = ", ".join(f"{t:g}" for t in dict.fromkeys(v.model.temperature for v in ordered))
    title, panels = f"{short(model.name)}: theory and draws of the posterior, T = {temperatures}", []
    verdict = overall([v.verdict for v in ordered])
    title += f"; {'the draws' if verdict == CANNOT_TELL else 'the theory'} {verdict}"
    if any(v.accuracy is not None for v in ordered):
        panels.append(partial(accuracy, validations=ordered, curve=curve or {}))
    else:
        title += "\nno accuracy: the model has no test labels"
    panels.append(partial(order_parameter_against_width, validations=ordered))
    if len(ordered) > 1 and len(model.row_names) > 1:
        panels.append(partial(cross_terms_against_width, validations=ordered))
    if smallest.alignment is not None:
        panels.append(partial(alignment, aligned=smallest.alignment, width=smallest.width))
    else:
        title += f"\nno alignment: {why_unaligned(model.labels, model.compressed is not None)}"
    figure = plt.figure(figsize=(max(13, 4.4 * len(panels)), 9.5), layout="constrained")
    figure.suptitle(title, fontsize=13)
    above, below = figure.subfigures(2, 1, height_ratios=(1.15, 1))
    for axes, draw in zip(above.subplots(1, len(panels), squeeze=False).flat, panels, strict=True):
        draw(axes)
    order_parameters(below, smallest)
    return figure


def _validated(validations: Checked) -> list[Validation]:
    """Validations unchanged, and draws compared with the theory of their model."""
    from bayesattn.checks.validate import validate

    several = [*validations] if isinstance(validations, list | tuple) else [validations]
    if not several:
        raise BayesattnError("validations must hold at least one, got none")

    def validated(each: Checked) -> Validation:
        if hasattr(each, "saddle"):
            return each
        return validate(each, level=LEVEL / len(several))

    return [validated(each) for each in several]


def accuracy(axes: Axes, validations: Sequence[Validation], curve: Mapping[int, Sequence[Candidate]]) -> None:
    """Draw the accuracy of the mean predictor against width: theory, draws with both errors, and GP limits.

    Validations without accuracy are left out. With a curve, the theory's line covers all widths of the curve, and the GP
    limit of all paths uses the temperature that its own evidence prefers.
    """
    colors = palette()
    shares = [v.accuracy for v in validations if v.accuracy is not None]
    widths = np.array([v.width for v in validations if v.accuracy is not None], float)
    names = ("corrected", "draws", "error", "test_error")
    corrected, draws, error, of_test_set = (100 * np.array([getattr(s, name) for s in shares]) for name in names)
    chosen = {width: by_evidence(tried) for width, tried in curve.items()}
    line = {width: best.test_accuracy for width, best in chosen.items() if best.test_accuracy is not None}
    line = line or dict(zip(widths, [share.theory for share in shares], strict=True))
    # Theory and draws are often equal, so they are drawn beside each other.
    aside, drawn = (1.5, widths) if len({*line, *widths}) == 1 else (1.0, 1.08 * widths)
    axes.plot(
        np.array(list(line)) / aside,
        100 * np.array(list(line.values())),
        color=colors.blue,
        marker="s",
        markersize=8,
        markerfacecolor="none",
        label="theory, saddle point",
    )
    axes.errorbar(drawn, draws, of_test_set, fmt="none", ecolor=colors.orange, alpha=0.5, elinewidth=1, capsize=4)
    label = "draws ± Monte Carlo (thick), ± test set (thin)"
    axes.errorbar(drawn, draws, error, fmt="o", markersize=4, color=colors.orange, elinewidth=3, label=label)
    axes.plot(
        widths * aside,
        corrected,
        color=colors.blue,
        marker="x",
        markersize=7,
        markeredgewidth=1.5,
        linestyle=":",
        zorder=4,
        label="theory, to first order in 1/N",
    )
    own = [by_gp_evidence(tried).gp_test_accuracy for tried in curve.values()]
    limits = [("all paths", own[0] if own and own[0] is not None else shares[0].gp), *shares[0].gp_of_groups.items()]
    for (name, share), style in zip(limits, cycle(("--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1)))), strict=False):
        label = f"GP limit, {short(name)}"
        axes.axhline(100 * share, color=colors.grey, linestyle=style, linewidth=1.2, label=label)
    width_axis(axes, sorted(line))
    if aside > 1:
        axes.set_xticks(widths[0] * np.array([1 / aside, 1, aside]), ["saddle point", "draws", "first order"])
        axes.set_xlabel(f"width N = {widths[0]:g} (all layers)")
    axes.set(ylabel="test accuracy (%)", title="Accuracy of the mean predictor")
    legend_below(axes)


def order_parameter_against_width(axes: Axes, validations: Sequence[Validation]) -> None:
    """Draw the diagonal of U relative to the saddle point: draws with Monte Carlo errors, and corrected theory.

    With several widths it is drawn against width, for at most the four paths with the largest U; with one width, by path.
    """
    names = validations[0].model.row_names
    saddle, corrected, draws, error = (
        np.array([np.diag(getattr(v, name)) for v in validations])
        for name in ("saddle", "corrected", "order_parameter", "error")
    )
    curves = (100 * (corrected / saddle - 1), 100 * (draws / saddle - 1), 100 * (error / saddle))
    axes.set(ylabel="deviation of U from the saddle point (%)")
    axes.axhline(0, color=palette().grey, linewidth=1, label="saddle point")
    if len(validations) == 1:
        _by_path(axes, names, *(curve[0] for curve in curves))
        axes.set_title(f"Order parameter U, diagonal entries at N = {validations[0].width}")
        return
    most = _against_width(axes, validations, saddle[0], *curves, [short(name) for name in names])
    axes.set_title(f"Order parameter U, diagonal entries{most}")
    legend_below(axes, 2, title="dots: draws ± Monte Carlo error; crosses: theory to first order in 1/N")


def cross_terms_against_width(axes: Axes, validations: Sequence[Validation]) -> None:
    """Draw off-diagonal entries of U relative to the diagonal: draws with errors, corrected theory and saddle point.

    Of many pairs of paths, only the four with the largest correlations at the smallest width are drawn.
    """
    names = validations[0].model.row_names
    rows, columns = np.tril_indices(len(names), -1)
    drawn, corrected, saddle = (
        np.array([(getattr(v, name) / size_of(getattr(v, name)))[rows, columns] for v in validations])
        for name in ("order_parameter", "corrected", "saddle")
    )
    error = np.array([(v.error / size_of(v.order_parameter))[rows, columns] for v in validations])
    axes.axhline(0, color=palette().grey, linewidth=1)
    labels = [f"{short(names[column])},\n{short(names[row])}" for row, column in zip(rows, columns, strict=True)]
    most = _against_width(axes, validations, np.abs(saddle[0]), corrected, drawn, error, labels, saddle)
    axes.set(ylabel=r"$U_{ij} / (U_{ii} U_{jj})^{1/2}$", title=f"Cross-path entries of U{most}")
    legend_below(axes, 2, title="dots: draws; crosses: theory to first order; lines: saddle point")


def _against_width(
    axes: Axes,
    validations: Sequence[Validation],
    sizes: np.ndarray,
    corrected: np.ndarray,
    draws: np.ndarray,
    error: np.ndarray,
    labels: Sequence[str],
    lines: np.ndarray | None = None,
) -> str:
    """Draw the columns with the largest `sizes` against width; arrays have one row per width.

    Returns a note for the title on how many are drawn; empty if all are.
    """
    widths = np.array([v.width for v in validations], float)
    greatest = np.sort(np.argsort(-sizes, kind="stable")[:MOST_PATHS_DRAWN])
    for number, (entry, color) in enumerate(zip(greatest, palette(), strict=False)):
        if lines is not None:
            axes.plot(widths, lines[:, entry], color=color, linewidth=0.8)
        axes.plot(widths, corrected[:, entry], color=color, linestyle=":", marker="x", markersize=5)
        shift = 1 + 0.05 * (number - (len(greatest) - 1) / 2)  # beside each other, so that error bars do not overlap
        style: PlainDict = {"fmt": "o", "markersize": 4, "capsize": 3, "color": color, "label": labels[entry]}
        axes.errorbar(shift * widths, draws[:, entry], error[:, entry], **style)
    width_axis(axes, [v.width for v in validations])
    return "" if len(sizes) <= MOST_PATHS_DRAWN else f", {MOST_PATHS_DRAWN} greatest of {len(sizes)}"


def _by_path(axes: Axes, names: Sequence[str], corrected: np.ndarray, draws: np.ndarray, error: np.ndarray) -> None:
    """Draw deviations from the saddle point at one width, by path."""
    colors, places, aside = palette(), np.arange(len(names)), 0.15
    style: PlainDict = {"fmt": "o", "markersize": 4, "capsize": 3, "color": colors.orange}
    axes.errorbar(places - aside, draws, error, label="draws ± Monte Carlo error", **style)
    style = {"color": colors.blue, "marker": "x", "markersize": 7, "linestyle": "none"}
    axes.plot(places + aside, corrected, label="theory, to first order in 1/N", **style)
    name_ticks(axes.xaxis, names, tilted=True)
    axes.set_xlim(-0.6, len(names) - 0.4)
    # The height of the names below the axis is not known, so the legend is above.
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.1), ncols=2, fontsize=8, frameon=False)


def alignment(axes: Axes, aligned: Alignment, width: int) -> None:
    """Draw the alignment of the kernel's eigenvectors with the labels: draws with Monte Carlo errors, and GP limit."""
    colors = palette()
    numbers = np.arange(1, len(aligned.eigenvectors) + 1)
    style: PlainDict = {"markersize": 3, "linewidth": 0.8}
    label = f"draws, N = {width}: {with_error(aligned.draws, aligned.error)}"
    own = {"marker": "o", "color": colors.blue, "capsize": 2, "label": label}
    axes.errorbar(numbers, aligned.eigenvectors, aligned.eigenvectors_error, **own | style)
    axes.plot(
        numbers,
        aligned.gp_eigenvectors,
        marker="s",
        color=colors.grey,
        label=f"GP limit: {rounded(aligned.gp, aligned.error)}",
        **style,
    )
    if len(numbers) <= MOST_EIGENVECTORS_ON_LINEAR_AXIS:
        axes.set_xlim(0.5, len(numbers) + 0.5)
        whole_numbers(axes.xaxis)
    else:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    axes.set(
        xlabel="eigenvector of the kernel, largest eigenvalue first",
        ylabel=r"alignment with the labels  $|u_k \cdot Y| / |Y|$",
        title="Kernel alignment",
    )
    legend_below(axes, title="kernel-target alignment")


def order_parameters(figure: FigureBase, validation: Validation) -> None:
    """Draw U by theory and by draws on one colour scale, with path names."""
    names = validation.model.row_names
    panels = [
        ("saddle point", validation.saddle, None),
        ("theory to first order in 1/N", validation.corrected, None),
        ("draws", validation.order_parameter, validation.error),
    ]
    limit = max(np.abs(matrix).max() for _, matrix, _ in panels)
    axes_row = figure.subplots(1, 3, sharey=True)
    for axes, (title, matrix, errors) in zip(axes_row, panels, strict=True):
        image = heat_map(axes, matrix, names, names, limit, errors)
        axes.set_title(f"U at N = {validation.width}: {title}", fontsize=10)
    figure.colorbar(image, ax=list(axes_row), label="order parameter U", shrink=0.85)
