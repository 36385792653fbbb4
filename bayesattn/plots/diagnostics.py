"""Did the chains mix? Traces, ranks, effective sample size and energy of a few scalar quantities."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import arviz_stats
import numpy as np
import xarray as xr
from jaxtyping import Float
from matplotlib.axes import Axes
from scipy import stats

from bayesattn.diagnostics import ENOUGH_ESS, FEWEST_DRAWS, GOOD_BFMI
from bayesattn.plots.style import palette, short, whole_numbers

SHOWN_ENTRIES = 4
"""Quantities that are drawn: the log posterior and the largest diagonal entries of U, or of z."""
MOST_TRACED = 1000
FEWEST_RANKED, MOST_RANKED = 10, 400
"""Draws of each chain."""
RANK_LEVEL = 0.01
RANK_PLACES = 40
SIMULATIONS = 1000
STEPS = 10
"""Numbers of draws at which the effective sample size is estimated."""

Values = Float[np.ndarray, "chain draw"]


def scalars(draws: xr.DataTree) -> dict[str, Values]:
    """Log posterior and the largest entries of U, or of z, by the names that figures show."""
    posterior, chosen = draws["posterior"].to_dataset(), {}
    if "sample_stats" in draws.children and "lp" in draws["sample_stats"]:
        chosen["log posterior"] = draws["sample_stats"].to_dataset()["lp"].values
    if "order_parameter" in posterior:
        sampled = posterior["order_parameter"].values
        means = np.diag(sampled.mean((0, 1)))
        for path in np.argsort(-means, kind="stable")[: SHOWN_ENTRIES - 1]:
            chosen[short(f"U[{posterior['path'].values[path]}]")] = sampled[:, :, path, path]
    elif "latent" in posterior:
        sampled = posterior["latent"].values
        means = np.abs(sampled.mean((0, 1)))
        for flat in np.argsort(-means, axis=None, kind="stable")[: SHOWN_ENTRIES - 1]:
            value, feature = np.unravel_index(flat, means.shape)
            chosen[f"z[{value + 1}, {feature + 1}]"] = sampled[:, :, value, feature]
    return chosen


def trace(figure: Any, quantities: Mapping[str, Values]) -> None:
    """Each quantity against the draw, a colour a chain."""
    panels = _row(figure, quantities)
    for axes, (name, values) in zip(panels, quantities.items(), strict=True):
        every = -(-values.shape[1] // MOST_TRACED)
        for chain, color in enumerate(_chain_colors(len(values))):
            shown = values[chain, ::every]
            style: dict[str, Any] = {"color": color, "linewidth": 0.5, "alpha": 0.85, "rasterized": True}
            axes.plot(every * np.arange(len(shown)) + 1, shown, label=f"chain {chain + 1}", **style)
        axes.set(title=name, xlabel="draw" if every == 1 else f"draw, thinned by {every}")
        whole_numbers(axes.xaxis)
    panels[0].set_ylabel("value")
    _legend(figure, panels[0], linewidth=2)


def rank(figure: Any, quantities: Mapping[str, Values]) -> None:
    """ECDF of each chain's ranks among all chains, minus that of chains that mixed, and the band in which those stay.

    The band is for independent draws: of those that depend on each other, every so many are taken, one for each effective
    draw. Of draws that are one law, each chain's ranks are a sample without replacement (Sailynoja, Burkner & Vehtari 2022).
    """
    panels = _row(figure, quantities, sharey=True)
    for axes, (name, values) in zip(panels, quantities.items(), strict=True):
        every = _independent_every(values)
        shown = values[:, ::every]
        chains, draws = shown.shape
        ranks = stats.rankdata(shown, axis=None).reshape(shown.shape) / shown.size
        places = np.arange(RANK_PLACES + 1) / RANK_PLACES
        band = rank_band(chains, draws) * np.sqrt(places * (1 - places))
        label = f"{100 * (1 - RANK_LEVEL):g} % of mixed chains"
        axes.fill_between(places, -band, band, color=palette().grey, alpha=0.25, linewidth=0, label=label)
        for chain, color in enumerate(_chain_colors(chains)):
            below = np.searchsorted(np.sort(ranks[chain]), places, side="right") / draws
            axes.plot(places, below - places, color=color, linewidth=1.2, label=f"chain {chain + 1}")
        thinned = f",\nthinned by {every}" if every > 1 else ""
        axes.set(title=name, xlabel=f"rank among {shown.size} draws{thinned}")
        axes.set_xticks([0, 0.5, 1], ["lowest", "half", "highest"])
    panels[0].set_ylabel("ECDF of ranks - uniform")
    _legend(figure, panels[0])


@lru_cache(maxsize=32)
def rank_band(chains: int, draws: int, seed: int = 0) -> float:
    """Greatest ECDF difference of any of the chains that is usual, in units of sqrt(x (1 - x)), by simulation.

    With probability 1 - `RANK_LEVEL`, chains of independent draws of one law stay within it everywhere.
    """
    rng = np.random.default_rng(seed)
    places = np.arange(1, RANK_PLACES) / RANK_PLACES
    reached = np.round(places * chains * draws).astype(int)
    owners = np.repeat(np.arange(chains, dtype=np.int16), draws)
    greatest = np.empty(SIMULATIONS)
    for simulation in range(SIMULATIONS):
        mixed = rng.permutation(owners)
        counts = np.array([np.concatenate([[0], np.cumsum(mixed == chain)])[reached] for chain in range(chains)])
        greatest[simulation] = np.max(np.abs(counts / draws - places) / np.sqrt(places * (1 - places)))
    return float(np.quantile(greatest, 1 - RANK_LEVEL))


def ess(figure: Any, quantities: Mapping[str, Values]) -> None:
    """Effective sample size as draws accumulate: of what mixes it grows along a line."""
    panels, colors = _row(figure, quantities), palette()
    for axes, (name, values) in zip(panels, quantities.items(), strict=True):
        counts = np.unique(np.linspace(FEWEST_DRAWS, values.shape[1], STEPS).astype(int))
        for method, color, marker in (("bulk", colors.blue, "o"), ("tail", colors.orange, "s")):
            sizes = [_ess(values[:, :count], method) for count in counts]
            axes.plot(len(values) * counts, sizes, color=color, marker=marker, markersize=4, label=method)
        axes.axhline(ENOUGH_ESS, color=colors.grey, linestyle="--", linewidth=1, label=f"{ENOUGH_ESS}, enough")
        axes.set(title=name, xlabel="draws of all chains")
        axes.set_ylim(bottom=0)
        whole_numbers(axes.xaxis)
    panels[0].set_ylabel("effective sample size")
    _legend(figure, panels[0])


def energy(figure: Any, values: Values) -> None:
    """Energy and its changes from draw to draw, and BFMI: where changes are much smaller, chains explore slowly."""
    colors = palette()
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    centred, changes = (values - values.mean()).ravel(), np.diff(values, axis=1).ravel()
    edges = np.histogram_bin_edges(np.concatenate([centred, changes]), 40)
    style: dict[str, Any] = {"bins": edges.tolist(), "density": True, "alpha": 0.45}
    left.hist(centred, color=colors.blue, label="energy - mean", **style)
    left.hist(changes, color=colors.orange, label="change from draw to draw", **style)
    left.set(title="Energy", xlabel="energy", ylabel="density")
    left.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8, frameon=False)
    bfmi = np.atleast_1d(arviz_stats.bfmi(values))
    right.plot(bfmi, np.arange(len(bfmi)) + 1, "o", color=colors.blue)
    right.axvline(GOOD_BFMI, color=colors.grey, linestyle="--", linewidth=1, label=f"{GOOD_BFMI}, least that is good")
    right.set_yticks(np.arange(len(bfmi)) + 1 if len(bfmi) <= 10 else np.arange(0, len(bfmi), 5) + 1)
    right.set(title="BFMI", xlabel="BFMI", ylabel="chain", ylim=(0.5, len(bfmi) + 0.5))
    right.set_xlim(0, 1.1 * max(1.0, float(np.nanmax(bfmi, initial=0))))
    right.invert_yaxis()
    right.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8, frameon=False)


def _row(figure: Any, quantities: Mapping[str, Values], **settings: Any) -> list[Axes]:
    return list(figure.subplots(1, len(quantities), squeeze=False, **settings).flat)


def _legend(figure: Any, axes: Axes, **lines: Any) -> None:
    """One legend for a row of panels, beside it."""
    handles, labels = axes.get_legend_handles_labels()
    legend = figure.legend(handles[:10], labels[:10], loc="outside right center", fontsize=8, frameon=False)
    for line in legend.get_lines():
        line.set(**lines)


def _chain_colors(chains: int) -> list[str]:
    return [palette()[chain % len(palette())] for chain in range(chains)]


def _ess(values: Values, method: str) -> float:
    if not np.isfinite(values).all() or np.ptp(values) == 0:
        return np.nan
    return float(arviz_stats.ess(xr.DataArray(values, dims=("chain", "draw")), method=method))


def _independent_every(values: Values) -> int:
    """How many draws stand for an effective one; more of a long run, fewer where too few would be left."""
    size = _ess(values, "bulk") if values.shape[1] >= FEWEST_DRAWS else np.nan
    wanted = max(values.size / size if np.isfinite(size) else 1, values.shape[1] / MOST_RANKED)
    return max(1, min(int(np.ceil(wanted)), values.shape[1] // FEWEST_RANKED))
