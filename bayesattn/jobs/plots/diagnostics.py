"""Diagnostic figures: traces, ranks, effective sample size and energy of a few scalar quantities."""

import arviz_stats
import numpy as np
import xarray as xr
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase

from bayesattn._util.plain_values import PlainDict
from bayesattn.checks.diagnostics import GOOD_BFMI, GOOD_ESS
from bayesattn.checks.mixing import FEWEST_DRAWS
from bayesattn.checks.ranks import BAND_LEVEL, ECDF_SHARES, chain_band, chain_ecdfs
from bayesattn.jobs.plots.style import palette, short, whole_numbers
from bayesattn.models.arviz import dataset, has_order_parameter
from bayesattn.models.draws import Draws, opened

QUANTITIES_DRAWN = 4
"""Number of quantities drawn: the log posterior and the largest diagonal entries of U, or entries of z."""
MOST_TRACED_DRAWS = 1000
"""Largest number of draws of each chain in a trace; longer chains are thinned."""
FEWEST_RANKED_DRAWS, MOST_RANKED_DRAWS = 10, 400
"""Smallest and largest number of draws per chain whose ranks are compared."""
ESS_ESTIMATES = 10
"""Number of lengths of the chains at which the effective sample size is estimated."""
Quantities = dict[str, Float[np.ndarray, "chain draw"]]
"""Draws of scalar quantities by name."""


def scalars(draws: Draws) -> Quantities:
    """Scalars in the draws, by full name: log posterior, T if it has a prior, the largest diagonal entries of U or of z."""
    draws = opened(draws)
    posterior, statistics = dataset(draws, "posterior"), dataset(draws, "sample_stats")
    chosen = {"log posterior": statistics["lp"].values} if "lp" in statistics else {}
    if "temperature" in posterior:
        chosen["T"] = posterior["temperature"].values
    if has_order_parameter(draws):
        sampled = posterior["order_parameter"].values
        means = np.diag(sampled.mean((0, 1)))
        for path in np.argsort(-means, kind="stable")[: QUANTITIES_DRAWN - max(1, len(chosen))]:
            chosen[f"U[{posterior['path'].values[path]}]"] = sampled[:, :, path, path]
    elif "latent" in posterior:
        sampled = posterior["latent"].values
        means = np.abs(sampled.mean((0, 1)))
        for flat in np.argsort(-means, axis=None, kind="stable")[: QUANTITIES_DRAWN - 1]:
            value, feature = np.unravel_index(flat, means.shape)
            chosen[f"z[{value + 1}, {feature + 1}]"] = sampled[:, :, value, feature]
    return chosen


def trace(figure: FigureBase, quantities: Quantities) -> None:
    """Draw each quantity against the draw number, in a colour for each chain."""
    panels = _row(figure, quantities)
    for axes, values in zip(panels, quantities.values(), strict=True):
        every = -(-values.shape[1] // MOST_TRACED_DRAWS)
        for chain, color in enumerate(_chain_colors(len(values))):
            shown = values[chain, ::every]
            style: PlainDict = {"color": color, "linewidth": 0.5, "alpha": 0.85, "rasterized": True}
            axes.plot(every * np.arange(len(shown)) + 1, shown, label=f"chain {chain + 1}", **style)
        axes.set(xlabel="draw" if every == 1 else f"draw, thinned by {every}")
        whole_numbers(axes.xaxis)
    panels[0].set_ylabel("value")
    _legend(figure, panels[0], linewidth=2)


def rank(figure: FigureBase, quantities: Quantities) -> None:
    """Draw the ECDF of each chain's ranks among all chains, minus the uniform CDF, with the band of mixed chains.

    The band is for independent draws, so dependent draws are thinned to about one for each effective draw.
    """
    panels = _row(figure, quantities, sharey=True)
    for axes, values in zip(panels, quantities.values(), strict=True):
        every = thinning(values)
        ranked = values[:, ::every]
        band, label = chain_band(*ranked.shape), f"{100 * (1 - BAND_LEVEL):g} % band, if mixed"
        axes.fill_between(ECDF_SHARES, -band, band, color=palette().grey, alpha=0.25, linewidth=0, label=label)
        for chain, (color, curve) in enumerate(zip(_chain_colors(len(ranked)), chain_ecdfs(ranked), strict=True)):
            axes.plot(ECDF_SHARES, curve, color=color, linewidth=1.2, label=f"chain {chain + 1}")
        note = f",\nthinned by {every}" if every > 1 else ""
        axes.set(xlabel=f"rank among {ranked.size} draws{note}")
        axes.set_xticks([0, 0.5, 1], ["lowest", "half", "highest"])
    panels[0].set_ylabel("ECDF of ranks - uniform")
    _legend(figure, panels[0])


def ess(figure: FigureBase, quantities: Quantities) -> None:
    """Draw the effective sample size against the number of draws: if chains mix, it grows linearly."""
    panels, colors = _row(figure, quantities), palette()
    for axes, values in zip(panels, quantities.values(), strict=True):
        counts = np.unique(np.linspace(FEWEST_DRAWS, values.shape[1], ESS_ESTIMATES).astype(int))
        for method, color, marker in (("bulk", colors.blue, "o"), ("tail", colors.orange, "s")):
            sizes = [_ess(values[:, :count], method) for count in counts]
            axes.plot(len(values) * counts, sizes, color=color, marker=marker, markersize=4, label=method)
        axes.axhline(GOOD_ESS, color=colors.grey, linestyle="--", linewidth=1, label=f"{GOOD_ESS}, enough")
        axes.set(xlabel="draws of all chains")
        axes.set_ylim(bottom=0)
        whole_numbers(axes.xaxis)
    panels[0].set_ylabel("effective sample size")
    _legend(figure, panels[0])


def energy(figure: FigureBase, draws: xr.DataTree) -> None:
    """Draw the energy, its changes between draws, and BFMI; changes much smaller than its spread mean slow chains."""
    colors, values = palette(), draws["sample_stats"].to_dataset()["energy"].values
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    centred, changes = (values - values.mean()).ravel(), np.diff(values, axis=1).ravel()
    edges = np.histogram_bin_edges(np.concatenate([centred, changes]), 40)
    style: PlainDict = {"bins": edges.tolist(), "density": True, "alpha": 0.45}
    left.hist(centred, color=colors.blue, label="energy - mean", **style)
    left.hist(changes, color=colors.orange, label="change from draw to draw", **style)
    left.set(title="Energy", xlabel="energy", ylabel="density")
    left.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8, frameon=False)
    bfmi = np.atleast_1d(arviz_stats.bfmi(values))
    right.plot(bfmi, np.arange(len(bfmi)) + 1, "o", color=colors.blue)
    right.axvline(GOOD_BFMI, color=colors.grey, linestyle="--", linewidth=1, label=f"{GOOD_BFMI}, smallest good value")
    right.set_yticks(np.arange(len(bfmi)) + 1 if len(bfmi) <= 10 else np.arange(0, len(bfmi), 5) + 1)
    right.set(title="BFMI", xlabel="BFMI", ylabel="chain", ylim=(0.5, len(bfmi) + 0.5))
    right.set_xlim(0, 1.1 * max(1.0, float(np.nanmax(bfmi, initial=0))))
    right.invert_yaxis()
    right.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8, frameon=False)


def thinning(values: Float[np.ndarray, "chain draw"]) -> int:
    """Thinning of ranked draws: draws per effective draw; more in a long run, fewer if too few draws would remain."""
    draws = values.shape[1]
    size = _ess(values, "bulk") if draws >= FEWEST_DRAWS else np.nan
    wanted = max(values.size / size if np.isfinite(size) else 1, draws / MOST_RANKED_DRAWS)
    return max(1, min(int(np.ceil(wanted)), draws // FEWEST_RANKED_DRAWS))


def _ess(values: Float[np.ndarray, "chain draw"], method: str) -> float:
    """Effective sample size; NaN for draws that do not vary or are not finite."""
    if not np.isfinite(values).all() or np.ptp(values) == 0:
        return np.nan
    return float(arviz_stats.ess(xr.DataArray(values, dims=("chain", "draw")), method=method))


def _row(figure: FigureBase, quantities: Quantities, sharey: bool = False) -> list[Axes]:
    """Panels, one for each quantity, with its name."""
    panels = list(figure.subplots(1, len(quantities), squeeze=False, sharey=sharey).flat)
    for axes, name in zip(panels, quantities, strict=True):
        axes.set_title(short(name))
    return panels


def _legend(figure: FigureBase, axes: Axes, linewidth: float | None = None) -> None:
    """Draw one legend for a row of panels, beside the row."""
    handles, labels = axes.get_legend_handles_labels()
    legend = figure.legend(handles[:10], labels[:10], loc="outside right center", fontsize=8, frameon=False)
    if linewidth is not None:
        for line in legend.get_lines():
            line.set_linewidth(linewidth)


def _chain_colors(chains: int) -> list[str]:
    return [palette()[chain % len(palette())] for chain in range(chains)]
