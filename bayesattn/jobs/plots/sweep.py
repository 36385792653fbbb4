"""Figure of a sweep over widths."""

from itertools import product
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from bayesattn._util.plain_values import PlainDict
from bayesattn.jobs.plots.style import MARKERS, legend_below, literal, palette, width_axis

if TYPE_CHECKING:
    import pandas as pd

MOST_SERIES = 10
"""Most combinations of settings besides width and seed that are drawn, the first ones of the sweep."""


def width_figure(each: "pd.DataFrame") -> Figure | None:
    """Accuracy, and the greatest diagonal entry of U, against width.

    Args:
        each: one row a run, as by `bayesattn.jobs.sweep.by_run`.

    Returns:
        The figure, or None unless runs of at least two widths are complete. Runs that differ in other settings than seed,
        width and what the width determines have colours and markers of their own; a line joins means over seeds; bars are
        standard errors.
    """
    if "width" not in each:
        return None
    done: Any = each[(each["state"] == "complete") & each["width"].astype(float).notna()].reset_index(drop=True)
    if done["width"].nunique() < 2 or done[["U", "accuracy"]].isna().all(axis=None):
        return None
    settings = [*each.columns[: list(each.columns).index("state")], "temperature"]
    settings = [name for name in dict.fromkeys(settings) if name not in ("run", "width", "seed")]
    settings = [name for name in settings if done[name].astype(str).groupby(done["width"]).nunique().max() > 1]
    names = [", ".join(f"{name} = {row[name]}" for name in settings) for row in done.to_dict("records")]
    of_settings = [*done.groupby(np.array(names), sort=False)]
    series = of_settings[:MOST_SERIES]
    error = np.hypot(done["accuracy_error"], done["accuracy_test_error"])
    panels = [("accuracy", "accuracy (%)", 100, error), ("U", "order parameter U, greatest entry", 1, done["U_error"])]
    panels = [panel for panel in panels if done[panel[0]].notna().any()]
    figure, axes = plt.subplots(1, len(panels), figsize=(4.6 * len(panels), 4.2), layout="constrained", squeeze=False)
    for ax, (column, label, scale, errors) in zip(axes[0], panels, strict=True):
        looks = product(MARKERS, palette())
        for number, ((name, rows), (marker, color)) in enumerate(zip(series, looks, strict=False)):
            style: PlainDict = {"fmt": marker, "markersize": 4, "capsize": 3, "color": color, "label": literal(name)}
            beside = 1 + 0.04 * (number - (len(series) - 1) / 2)  # so that error bars do not overlap
            ax.errorbar(beside * rows["width"], scale * rows[column], scale * errors[rows.index], **style)
            means = rows.groupby("width")[column].mean()
            ax.plot(means.index, scale * means, color=color, linewidth=0.8)
        width_axis(ax, sorted(set(done["width"].astype(float))))
        ax.set_ylabel(label)
    if settings:
        legend_below(axes[0, 0], columns=1)
    if len(of_settings) > MOST_SERIES:
        figure.suptitle(f"the first {MOST_SERIES} of {len(of_settings)} combinations of other settings", fontsize=9)
    plt.close(figure)
    return figure
