"""How well chains mixed: R-hat, effective sample size, and the tails of scalar quantities."""

import contextlib
from dataclasses import dataclass
from functools import cached_property

import arviz_stats
import numpy as np
import xarray as xr
from arviz_stats.base import array_stats
from jaxtyping import Float

from bayesattn.checks.ranks import chain_band, chain_ecdfs

FEWEST_FOR_TAILS = 400
"""Draws of all chains below which the shape of a tail is not looked at."""
FEWEST_DRAWS = 4
"""Of each chain, below which neither R-hat nor effective sample size is defined."""
FEWEST_CHAINS = 2
"""R-hat of one chain, from its halves, says nothing of whether chains agree."""
FEWEST_RANKED, MOST_RANKED = 10, 400
"""Draws of each chain whose ranks are looked at."""
STEPS = 10
"""Numbers of draws at which the effective sample size is estimated."""


@dataclass(frozen=True, eq=False)
class Scalar:
    """A scalar quantity's draws, and what says whether its chains mixed: each is computed once, when it is asked for."""

    values: Float[np.ndarray, "chain draw"]

    @cached_property
    def every(self) -> int:
        """How many draws stand for an effective one; more of a long run, fewer where too few would be left."""
        draws = self.values.shape[1]
        size = self._ess(draws, "bulk") if draws >= FEWEST_DRAWS else np.nan
        wanted = max(self.values.size / size if np.isfinite(size) else 1, draws / MOST_RANKED)
        return max(1, min(int(np.ceil(wanted)), draws // FEWEST_RANKED))

    @property
    def ranked(self) -> Float[np.ndarray, "chain ranked_draw"]:
        """One draw for each effective one."""
        return self.values[:, :: self.every]

    @cached_property
    def ecdfs(self) -> Float[np.ndarray, "chain place"]:
        """`bayesattn.checks.ranks.chain_ecdfs` of those."""
        return chain_ecdfs(self.ranked)

    @cached_property
    def band(self) -> Float[np.ndarray, " place"]:
        """`bayesattn.checks.ranks.chain_band` of as many."""
        return chain_band(*self.ranked.shape)

    @cached_property
    def sizes(self) -> dict[str, tuple[np.ndarray, list[float]]]:
        """Numbers of draws of all chains and the effective sample sizes of those first draws, of "bulk" and "tail"."""
        chains, draws = self.values.shape
        counts = np.unique(np.linspace(FEWEST_DRAWS, draws, STEPS).astype(int))
        return {
            method: (chains * counts, [self._ess(count, method) for count in counts]) for method in ("bulk", "tail")
        }

    def _ess(self, count: int, method: str) -> float:
        values = self.values[:, :count]
        if not np.isfinite(values).all() or np.ptp(values) == 0:
            return np.nan
        return float(arviz_stats.ess(xr.DataArray(values, dims=("chain", "draw")), method=method))


def _constant(values: xr.DataArray) -> np.ndarray:
    """Which entries do not vary in any chain."""
    return (values.max("draw") == values.min("draw")).all("chain").values


def _stuck(values: xr.DataArray) -> np.ndarray:
    """Which entries do not vary in any chain, but between chains."""
    return _constant(values) & (values.max(("chain", "draw")) > values.min(("chain", "draw"))).values


def pareto_k(values: xr.DataArray) -> np.ndarray:
    """Shape of the tail of each entry's square; NaN of draws that are few, do not vary or are not finite."""
    squares = values.compute().transpose(..., "chain", "draw").values ** 2
    shapes = np.full(squares.shape[:-2], np.nan)
    for entry in np.ndindex(shapes.shape):
        drawn = squares[entry]
        if drawn.size >= FEWEST_FOR_TAILS and np.isfinite(drawn).all():
            with contextlib.suppress(ValueError):  # Of a tail that is one number, as of chains that stand still.
                shapes[entry] = array_stats.pareto_khat(drawn, tail="right")
    return shapes


def _mixing(values: xr.DataArray) -> dict[str, np.ndarray]:
    """R-hat and effective sample size of each entry, NaN where they are not defined."""
    unknown = _constant(values) | ~np.isfinite(values.values).all((0, 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        rhat = arviz_stats.rhat(values).values if values.sizes["chain"] >= FEWEST_CHAINS else np.nan
        ess, tail = arviz_stats.ess(values).values, arviz_stats.ess(values, method="tail").values
    found = {name: np.where(unknown, np.nan, of) for name, of in (("rhat", rhat), ("ess", ess), ("tail_ess", tail))}
    return found | {"rhat": np.where(_stuck(values), np.inf, found["rhat"])}


def on_and_below_diagonal(order_parameters: xr.DataArray) -> xr.DataArray:
    """Of draws of U, which is symmetric, what differs: dimensions chain, draw, entry (row by row)."""
    rows, columns = (xr.DataArray(indices, dims="entry") for indices in np.tril_indices(order_parameters.sizes["path"]))
    # Read whole: entry by entry, stored draws are slow to read.
    return order_parameters.compute().isel(path=rows, other_path=columns)


def from_below_diagonal(entries: np.ndarray, size: int) -> np.ndarray:
    """The symmetric matrix with these entries on and below its diagonal, row by row."""
    matrix = np.zeros((size, size))
    matrix[np.tril_indices(size)] = entries
    return matrix + np.tril(matrix, -1).T


def moments(values: xr.DataArray, tails: bool = False) -> dict[str, np.ndarray]:
    """Mean, standard deviation, Monte Carlo error, R-hat and effective sample size of each entry; NaN where not defined.

    With `tails` also the effective sample size of the tails, and the shape of the tail of the square (`pareto_k`).
    """
    values = values.compute()
    mean = values.mean(("chain", "draw")).values
    if values.sizes["draw"] < FEWEST_DRAWS:
        names = ("sd", "error", "rhat", "ess", *(("tail_ess", "pareto_k") if tails else ()))
        return {"mean": mean} | dict.fromkeys(names, np.full(mean.shape, np.nan))
    mixing = _mixing(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.where(np.isnan(mixing["ess"]), np.nan, arviz_stats.mcse(values).values)
    deviation = values.std(("chain", "draw"), ddof=1).values
    numbers = {"mean": mean, "sd": deviation, "error": error, "rhat": mixing["rhat"], "ess": mixing["ess"]}
    return numbers | ({"tail_ess": mixing["tail_ess"], "pareto_k": pareto_k(values)} if tails else {})
