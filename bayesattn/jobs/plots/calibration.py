"""Calibration figures: ranks of true quantities among draws of the posterior given data simulated with them."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bayesattn._util.checks import shown
from bayesattn._util.errors import BayesattnError
from bayesattn.checks.ranks import ecdf_band, ecdf_difference
from bayesattn.jobs.plots.style import literal, palette, whole_numbers
from bayesattn.questions.calibration import VERDICTS, Calibration

MOST_COLUMNS = 4


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
    }
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
            _, color = kinds.get(quantity.split()[0], kinds["log"])
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
    handles: list[Artist] = [Line2D([], [], color=color, label=label) for label, color in kinds.values()]
    handles.append(Patch(color=colors.grey, alpha=0.25, label="95 % of uniform curves"))
    columns = 3 if size[0] < 9 else len(handles)
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
    return figure
