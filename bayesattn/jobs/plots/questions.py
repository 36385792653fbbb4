"""Figures of questions: calibration, heads, grades and learning coefficients."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bayesattn._util.checks import require_kind, shown
from bayesattn._util.plain_values import PlainDict
from bayesattn.checks.ranks import ecdf_band, ecdf_difference
from bayesattn.errors import BayesattnError
from bayesattn.jobs.plots.run import intervals
from bayesattn.jobs.plots.style import (
    MARKERS,
    heat_map,
    legend_below,
    literal,
    name_ticks,
    palette,
    short,
    whole_numbers,
)
from bayesattn.models.hyperpriors import shown_prior
from bayesattn.questions.calibration import VERDICTS, Calibration
from bayesattn.questions.heads import Heads, Losses, Removal
from bayesattn.questions.heads.losses import CLEAR_LOSS
from bayesattn.questions.heads.removal import MOST_ACCURACY_LOST
from bayesattn.questions.reference.grading import Grade

MOST_COLUMNS = 4
"""Largest number of panels beside each other."""
SHOWN = 16
"""Most heads and paths whose names are drawn."""


def calibration_figure(calibrations: Mapping[str, Calibration]) -> Figure:
    """ECDF of each quantity's ranks minus the uniform CDF, a panel for each sampler, with the band of uniform ranks.

    Raises ValueError for anything other than calibrations by name, such as draws, which have no ranks of this kind.
    """
    if not isinstance(calibrations, Mapping) or not all(
        hasattr(each, "ranks") for each in calibrations.values() or [None]
    ):
        raise BayesattnError(
            f"calibrations must be results of bayesattn.calibration by name, got {shown(calibrations)}"
        )
    colors = palette()
    kinds = {
        "U": ("entries of U", colors.blue),
        "corr": ("their correlations", colors.purple),
        "f": ("predictions", colors.orange),
        "log": ("log likelihood", colors.green),
        "others": ("numbers, queries and keys", plt.rcParams["text.color"]),
    }

    def kind_of(quantity: str) -> str:
        first = quantity.split()[0]
        return first if first in kinds else "others"

    drawn = {kind_of(name) for calibration in calibrations.values() for name in calibration.names}
    columns = min(MOST_COLUMNS, len(calibrations))
    rows = -(-len(calibrations) // columns)
    size = (max(6.0, 3.4 * columns), 3.0 * rows + 0.9)
    figure, panels = plt.subplots(rows, columns, figsize=size, layout="constrained", sharey=True, squeeze=False)
    for panel in panels.flat[len(calibrations) :]:
        panel.remove()
    for panel, (name, calibration) in zip(panels.flat, calibrations.items(), strict=False):
        ranks = np.arange(calibration.draws + 1)
        low, high = ecdf_band(len(calibration.ranks), calibration.draws)
        panel.fill_between(ranks, low, high, color=colors.grey, alpha=0.25, linewidth=0, step="post")
        for quantity, values in zip(calibration.names, calibration.ranks.T, strict=True):
            _, color = kinds[kind_of(quantity)]
            panel.step(ranks, ecdf_difference(values, calibration.draws), where="post", color=color, linewidth=0.9)
        count = len(calibration.ranks)
        panel.set_title(
            f"{literal(name)}: {VERDICTS[calibration.holds]},\n{count} simulation{'s' if count > 1 else ''}",
            fontsize=10,
        )
        panel.set_xlabel(f"rank among {calibration.draws} posterior draws")
        whole_numbers(panel.xaxis)
    for panel in panels[:, 0]:
        panel.set_ylabel("ECDF - uniform")
    handles: list[Artist] = [
        Line2D([], [], color=color, label=label) for kind, (label, color) in kinds.items() if kind in drawn
    ]
    handles.append(Patch(color=colors.grey, alpha=0.25, label="95 % of uniform curves"))
    columns = 3 if size[0] < 9 else len(handles)
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
    return figure


def heads_figure(
    heads: Heads,
    paths: Heads | None = None,
    removal: Removal | None = None,
    title: str | None = None,
    losses: Losses | None = None,
) -> Figure:
    """Figure of head scores (with intervals, and as a map by layer), strongest paths, losses, and heads removed.

    Args:
        heads: result of `bayesattn.heads`.
        paths: result of `bayesattn.heads(.., of="paths")`; the strongest paths are drawn.
        removal: result of `bayesattn.remove_heads`; its accuracy is drawn.
        title: title of the figure; by default the model's name, N_1 and T.
        losses: result of `bayesattn.head_losses`; the log evidence lost without each head is drawn.

    Raises ValueError for other objects.
    """
    require_kind("heads", heads, Heads)
    for name, value, kind in (("paths", paths, Heads), ("removal", removal, Removal), ("losses", losses, Losses)):
        if value is not None:
            require_kind(name, value, kind)
    panels: list[Callable[[Axes], None]] = [lambda axes: scores(axes, heads, "head")]
    layers = {name[0] for name in heads.names if isinstance(name, tuple)}
    if len(layers) > 1:
        panels.append(lambda axes: layer_map(axes, heads))
    if paths is not None and len(layers) > 1:
        panels.append(lambda axes: scores(axes, paths, "path"))
    if losses is not None:
        panels.append(lambda axes: evidence_lost(axes, losses, heads))
    if removal is not None and np.isfinite(removal.accuracy).all():
        panels.append(lambda axes: accuracy(axes, removal))
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(5.4 * columns, 4.4 * rows), layout="constrained", squeeze=False)
    for place, panel in zip(axes.ravel(), panels, strict=False):
        panel(place)
    for place in axes.ravel()[len(panels) :]:
        place.remove()
    model = heads.model
    noise = "" if model.temperature is None else f", T = {shown_prior(model.temperature)}"
    figure.suptitle(literal(title or f"{model.name}, {model.size}{noise}"), fontsize=13)
    return figure


def _named(name: Any) -> str:
    return f"{name[0]}: {name[1]}" if isinstance(name, tuple) else str(name)


def _label_heads(axes: Axes, of: Heads | Losses) -> None:
    """Say what the two parts of a head's name are."""
    if any(isinstance(name, tuple) for name in of.names):
        axes.set_ylabel("layer of the network: head")


def scores(axes: Axes, heads: Heads, what: str) -> None:
    """Draw median and intervals of each score, largest mean first; beside each head, the probability that it is least."""
    order = np.argsort(-heads.scores, kind="stable")[:SHOWN]
    drawn = heads.drawn[..., order].reshape(-1, len(order))
    intervals(axes, drawn, [_named(heads.names[at]) for at in order])
    if what == "head":
        style: PlainDict = {"color": palette().orange, "markersize": 12, "markeredgewidth": 2}
        axes.plot(heads.prior[order], np.arange(len(order)), "|", label="prior mean", **style)
        legend_below(axes, 4)
        beside = {"xycoords": ("axes fraction", "data"), "fontsize": 8, "va": "center"}
        axes.annotate("P(least)", (1.02, -0.6), **beside)
        for place, at in enumerate(order):
            axes.annotate(f"{heads.probability_least[at]:.2f}", (1.02, place), **beside)
    more = f", the largest {len(order)} of {len(heads.names)}" if len(order) < len(heads.names) else ""
    axes.set(xlabel="score", title=("Heads" if what == "head" else "Paths") + more)
    _label_heads(axes, heads)


def evidence_lost(axes: Axes, losses: Losses, heads: Heads) -> None:
    """Draw the log evidence lost without each head, with its Monte Carlo error if it has one, in the order of the scores.

    The greatest loss is first if losses are of other units than the scores.
    """
    same = [*losses.names] == [*heads.names]
    order, colors = np.argsort(-(heads.scores if same else losses.evidence), kind="stable")[:SHOWN], palette()
    errors = np.nan_to_num(losses.evidence_error[order])
    style: PlainDict = {"fmt": "o", "ms": 4, "color": colors.blue, "capsize": 4}
    axes.errorbar(losses.evidence[order], np.arange(len(order)), xerr=errors if errors.any() else None, **style)
    axes.axvline(0, color=colors.grey, linewidth=1, linestyle="--")
    axes.axvline(CLEAR_LOSS, color=colors.grey, linewidth=1, linestyle=":", label=f"{CLEAR_LOSS:g} nats: odds of 150")
    legend_below(axes, 1)
    name_ticks(axes.yaxis, [_named(losses.names[at]) for at in order])
    axes.set_ylim(len(order) - 0.5, -0.5)
    how = "± Monte Carlo error" if np.isfinite(losses.evidence_error).any() else "by the theory"
    axes.set(xlabel=f"log evidence lost (nats), {how}", title="Without the head")
    _label_heads(axes, losses)


def layer_map(axes: Axes, heads: Heads) -> None:
    """Draw a map of layers and heads: posterior mean of the score, with its standard deviation if they are few."""
    layers = [name[0] for name in heads.names]
    rows = sorted(set(layers))
    means, deviations = np.full((2, len(rows), max(map(layers.count, rows))), np.nan)
    for row, layer in enumerate(rows):
        own = [at for at, of in enumerate(layers) if of == layer]
        means[row, : len(own)], deviations[row, : len(own)] = heads.scores[own], heads.sd[own]
    named = [[str(of[1]) for of in heads.names if of[0] == layer] for layer in rows]
    same = all(names == named[0] for names in named)
    columns = named[0] if same else [str(1 + head) for head in range(means.shape[1])]
    ends = ["" if same else ": " + " .. ".join(dict.fromkeys((names[0], names[-1]))) for names in named]
    of_rows = [f"layer {layer}{each}" for layer, each in zip(rows, ends, strict=True)]
    image = heat_map(axes, means, of_rows, columns, 1.0, deviations)
    axes.figure.colorbar(image, ax=axes, shrink=0.8).ax.set_ylim(0, 1)
    axes.set(xlabel="head of the layer" + ("" if same else ", in order"), title="Score, posterior mean ± sd")


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


def grade_figure(grades: Sequence[Grade] | Grade, labels: Sequence[str] | None = None) -> Figure:
    """Figure of the squared bias of the means against gradients: maximum over quantities (left) and mean (right).

    The squared bias of right draws falls in parallel to the grey line, 1 / gradients; a bias ends in a plateau.

    Args:
        grades: grades on one reference posterior.
        labels: names of the grades, such as the samplers; by default numbers.

    Raises:
        ValueError: arguments that are not grades, grades on several references, or a wrong number of labels.
    """
    listed = [grades] if isinstance(grades, Grade) else [*grades]
    if not listed or not all(isinstance(each, Grade) for each in listed):
        raise BayesattnError(f"grades must be results of bayesattn.grade, got {shown(grades)}")
    if len(names := {each.reference.name for each in listed}) > 1:
        raise BayesattnError(f"grades must be on one reference posterior, got {', '.join(sorted(names))}")
    labels = (
        [*labels] if labels is not None else ["draws"] if len(listed) == 1 else [*map(str, range(1, len(listed) + 1))]
    )
    if len(labels) != len(listed):
        raise BayesattnError(f"labels must be {len(listed)}, one for each grade, got {len(labels)}")
    figure, panels = plt.subplots(1, 2, figsize=(8.4, 4.2), layout="constrained", sharex=True, sharey=True)
    known = all(each.gradients is not None for each in listed)
    paths = [each.trajectory() for each in listed]
    costs = [
        path["gradients"] if known else path["draws"] * len(each.values)
        for path, each in zip(paths, listed, strict=True)
    ]
    for panel, of in zip(panels, ("largest", "mean"), strict=True):
        for number, (path, cost, label) in enumerate(zip(paths, costs, labels, strict=True)):
            color, marker = palette()[number % 4], MARKERS[number % len(MARKERS)]
            panel.loglog(cost, path[of], marker=marker, ms=4, color=color, label=short(label))
        # 1 / n, through the first point of the first grade.
        ends, start = costs[0].iloc[[0, -1]], paths[0][of].iloc[0]
        panel.loglog(ends, start * ends.iloc[0] / ends, color=palette().grey, lw=1, ls=":", label="1 / n")
        panel.set_title(f"{of} of {len(listed[0].table)} quantities", fontsize=10)
        panel.set_xlabel("gradients, all chains" if known else "draws, all chains")
    panels[0].set_ylabel("squared bias of means (posterior variances)")
    legend_below(panels[0], columns=min(4, len(listed) + 1))
    figure.suptitle(
        f"{short(listed[0].reference.name)}: {listed[0].verdict if len(listed) == 1 else 'grades'}", fontsize=11
    )
    return figure


def learning_coefficient_figure(found: Any) -> Figure:
    """lambda_hat against T with its errors, the two-temperature estimates, and the interval of the limit.

    Args:
        found: result of `bayesattn.learning_coefficient`.

    Raises:
        ValueError: `found` is not such a result.
    """
    if not hasattr(found, "two_temperature"):
        raise BayesattnError(f"found must be a result of bayesattn.learning_coefficient, got {shown(found)}")
    figure, axes = plt.subplots(figsize=(5.6, 4.2), layout="constrained")
    colors = palette()
    shown_as = [(found, "o-", colors.blue, "E[S - S*] / 2T")]
    if len(found.temperatures) > 1:
        shown_as.insert(0, (found.two_temperature, "s", colors.orange, "from two temperatures, without S*"))
    for each, form, color, label in shown_as:
        axes.errorbar(each.temperatures, each.value, each.error, fmt=form, ms=4, color=color, capsize=2, label=label)
    axes.set_xscale("log")
    axes.invert_xaxis()
    limit = found.limit
    if len(found.temperatures) > 1 and np.isfinite(limit.value):
        axes.axhspan(limit.low, limit.high, color=colors.green, alpha=0.2, lw=0, label="limit of small T, 95 %")
        axes.axhline(limit.value, color=colors.green, lw=1)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]) if np.nanmin(found.value) < 0 else 0.0)
    axes.set_xlabel("temperature T (1 / β of L_n = S / 2n)")
    axes.set_ylabel("learning coefficient")
    axes.set_title(short(found.model.name or "learning coefficient"), fontsize=11)
    legend_below(axes)
    return figure
