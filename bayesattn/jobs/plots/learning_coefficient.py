"""Figure of the learning coefficient against the temperature."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from bayesattn._util.checks import shown
from bayesattn._util.errors import BayesattnError
from bayesattn.jobs.plots.style import legend_below, palette, short


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
