"""Mixing of chains: R-hat, effective sample size, and tails of scalar quantities."""

import contextlib

import arviz_stats
import numpy as np
import xarray as xr
from arviz_stats.base import array_stats
from jaxtyping import Float

FEWEST_DRAWS_FOR_TAILS = 400
"""Smallest number of draws, of all chains together, from which the shape of a tail is estimated."""
TAILS_LOOKED_AT = 20
"""Number of labels with the greatest terms whose tails are fitted."""
COLUMNS = {"R-hat": ("rhat", ".3f"), "ESS": ("ess", ".0f"), "tail ESS": ("tail_ess", ".0f")}
"""Columns of tables: the number of `moments` under each heading, and its format."""
FEWEST_DRAWS = 4
"""Smallest number of draws per chain at which R-hat and effective sample size are defined."""
MOST_REPEATS = 0.1
"""Largest share of a chain's draws that also occur in another one. Within a chain, samplers may return to earlier states."""
REPEATED = "the same draws occur in several chains: give each chain a random key of its own, and pass none twice"
FEWEST_CHAINS = 2
"""Smallest number of chains for R-hat. R-hat from the halves of one chain does not show whether chains agree."""


def is_constant(values: xr.DataArray) -> np.ndarray:
    """Whether each entry is constant within every chain."""
    return (values.max("draw") == values.min("draw")).all("chain").values


def is_stuck(values: xr.DataArray) -> np.ndarray:
    """Whether each entry is constant within every chain, but differs between chains."""
    return is_constant(values) & (values.max(("chain", "draw")) > values.min(("chain", "draw"))).values


def repeated_share(values: Float[np.ndarray, "chain draw"]) -> float:
    """Share of the different numbers of a chain that another chain has too, of the chain with the greatest share."""
    different = [np.unique(chain) for chain in values]
    known, chains = np.unique(np.concatenate(different), return_counts=True)
    return max(float(np.isin(each, known[chains > 1]).mean()) for each in different)


def pareto_k(values: xr.DataArray) -> np.ndarray:
    """Pareto shape of the tail of each entry's square; NaN for draws that are few, do not vary or are not finite."""
    return tail_shapes(values.compute().transpose(..., "chain", "draw").values ** 2)


def heaviest_tail(terms: Float[np.ndarray, "chain draw *label"]) -> float:
    """Largest Pareto shape of the right tails of terms that are averaged over draws, NaN as in `tail_shapes`.

    Fits only the labels whose largest term has the largest share of their average, because each fit takes milliseconds.
    """
    flat = np.moveaxis(terms.reshape(*terms.shape[:2], -1), 2, 0)
    shares = flat.max((1, 2)) / np.maximum(flat.mean((1, 2)), np.finfo(float).tiny)
    return float(np.fmax.reduce(tail_shapes(flat[np.argsort(shares)[-TAILS_LOOKED_AT:]])))


def tail_shapes(values: Float[np.ndarray, "*entry chain draw"]) -> Float[np.ndarray, "*entry"]:
    """Pareto shape of each entry's right tail; NaN for draws that are few, do not vary or are not finite."""
    shapes = np.full(values.shape[:-2], np.nan)
    for entry in np.ndindex(shapes.shape):
        drawn = values[entry]
        if drawn.size >= FEWEST_DRAWS_FOR_TAILS and np.isfinite(drawn).all():
            with contextlib.suppress(
                ValueError
            ):  # Raised if the tail is a single number, as for chains that do not move.
                shapes[entry] = array_stats.pareto_khat(drawn, tail="right")
    return shapes


def mixing_of(values: xr.DataArray) -> dict[str, np.ndarray]:
    """R-hat and effective sample sizes of each entry; NaN if not defined."""
    unknown = is_constant(values) | ~np.isfinite(values.values).all((0, 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        rhat = arviz_stats.rhat(values).values if values.sizes["chain"] >= FEWEST_CHAINS else np.nan
        ess, tail = arviz_stats.ess(values).values, arviz_stats.ess(values, method="tail").values
    numbers = {name: np.where(unknown, np.nan, of) for name, of in (("rhat", rhat), ("ess", ess), ("tail_ess", tail))}
    return numbers | {"rhat": np.where(is_stuck(values), np.inf, numbers["rhat"])}


def on_and_below_diagonal(order_parameters: xr.DataArray) -> xr.DataArray:
    """Distinct entries of draws of U, which is symmetric: dimensions chain, draw, entry (row by row)."""
    rows, columns = (xr.DataArray(indices, dims="entry") for indices in np.tril_indices(order_parameters.sizes["path"]))
    # Read at once: reading stored draws entry by entry is slow.
    return order_parameters.compute().isel(path=rows, other_path=columns)


def from_below_diagonal(entries: np.ndarray, size: int) -> np.ndarray:
    """Symmetric matrix with these entries on and below its diagonal, row by row."""
    matrix = np.zeros((size, size))
    matrix[np.tril_indices(size)] = entries
    return matrix + np.tril(matrix, -1).T


def moments(values: xr.DataArray, tails: bool = False) -> dict[str, np.ndarray]:
    """Mean, standard deviation, Monte Carlo error, R-hat and effective sample size of each entry; NaN if not defined.

    With `tails`, also the effective sample size of the tails and the shape of the tail of the square (`pareto_k`).
    """
    values = values.compute()
    mean = values.mean(("chain", "draw")).values
    if values.sizes["draw"] < FEWEST_DRAWS:
        names = ("sd", "error", "rhat", "ess", *(("tail_ess", "pareto_k") if tails else ()))
        return {"mean": mean} | dict.fromkeys(names, np.full(mean.shape, np.nan))
    mixing = mixing_of(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.where(np.isnan(mixing["ess"]), np.nan, arviz_stats.mcse(values).values)
    deviation = values.std(("chain", "draw"), ddof=1).values
    numbers = {"mean": mean, "sd": deviation, "error": error, "rhat": mixing["rhat"], "ess": mixing["ess"]}
    return numbers | ({"tail_ess": mixing["tail_ess"], "pareto_k": pareto_k(values)} if tails else {})
