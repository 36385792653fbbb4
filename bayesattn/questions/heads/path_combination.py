"""Do paths combine? Posterior of their correlations in U (THEORY section 5), and the width above which they vanish.

For the correlations of one U, use `theory.path_correlations`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import arviz_stats
import numpy as np
import xarray as xr
from jaxtyping import Float

from bayesattn._util.checks import number, positive_integer, shown
from bayesattn._util.settings import with_own_settings
from bayesattn._util.slow_loops import watched
from bayesattn._util.text import Described, with_error
from bayesattn.checks.mixing import FEWEST_DRAWS
from bayesattn.errors import BayesattnError
from bayesattn.models import Model
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.theory.saddle_point import solve
from bayesattn.theory.statistics import path_correlations

if TYPE_CHECKING:
    import pandas as pd

INTERVAL_PROBABILITY = 0.94
"""Posterior probability of the intervals, as in the package's figures."""
NEGLIGIBLE_CORRELATION = 0.1
"""Largest correlation of two paths that do not combine."""
SEARCHED_WIDTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**3, 10**4, 10**5, 10**6, 10**7)
"""Widths at which `combining_width` begins its search."""
TOLERANCE = 0.01
"""Relative distance of the last two widths of the bisection in `combining_width`."""


@dataclass(frozen=True, eq=False, repr=False)
class PathCorrelations(Described):
    """Posterior of the correlations U_pq / (U_pp U_qq)^(1/2) of paths: 0 in the GP limit, where paths do not combine.

    Args:
        names: names of the rows of U: paths, with the output if there are several.
        mean: posterior mean, shape (row, row); 1 on the diagonal.
        sd: posterior standard deviation.
        error: Monte Carlo standard error of the mean; NaN with fewer than four draws per chain, 0 on the diagonal.
        lower: lower end of the central interval of probability 0.94.
        upper: upper end of this interval.
        outputs: number of outputs, each a row of its path; these rows of one path are not paths that combine.
    """

    names: list[str]
    mean: Float[np.ndarray, "row row"]
    sd: Float[np.ndarray, "row row"]
    error: Float[np.ndarray, "row row"]
    lower: Float[np.ndarray, "row row"]
    upper: Float[np.ndarray, "row row"]
    outputs: int = 1

    @classmethod
    def of(
        cls, model: NetworkPosterior, order_parameters: Float[np.ndarray, "chain draw row row"]
    ) -> "PathCorrelations":
        """Correlations of paths in draws of U."""
        moments = moments_and_interval(path_correlations(order_parameters), order_parameters)
        return cls(model.row_names, **moments, outputs=model.architecture.outputs)

    @property
    def strongest(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of U of each pair of different paths, the strongest correlation first."""
        rows, others = _pairs(len(self.names), self.outputs)
        order = np.argsort(-np.abs(self.mean[rows, others]), kind="stable")
        return rows[order], others[order]

    def summary(self) -> "pd.DataFrame":
        """One row per pair of rows of U of different paths, the strongest correlation first."""
        import pandas as pd

        rows, others = self.strongest
        pairs = [(self.names[row], self.names[other]) for row, other in zip(rows, others, strict=True)]
        index = pd.MultiIndex.from_tuples(pairs, names=["path", "other_path"])
        return pd.DataFrame(
            {name: getattr(self, name)[rows, others] for name in ("mean", "sd", "error", "lower", "upper")}, index=index
        )

    def _described(self) -> tuple[str, dict[str, str]]:
        rows, table = {}, self.summary()
        if len(table):
            first, (path, other) = table.iloc[0], table.index[0]
            rows["strongest"] = f"{with_error(first['mean'], first['sd'])} (posterior sd), of {path} and {other}"
        return f"PathCorrelations of {len(self.names)} rows of U", rows


@dataclass(frozen=True, eq=False, repr=False)
class CombiningWidth(Described):
    """Width above which no two paths combine, according to the theory.

    Args:
        width: least common width N at and above which no correlation of two paths exceeds `correlation`, among the
            widths searched, by bisection to 1 %; None if the widest network searched still exceeds it.
        correlation: correlation above which paths count as combining.
        widths: the widths at which the saddle point was solved, ascending.
        greatest: largest absolute correlation of two paths at each of these widths.
    """

    width: int | None
    correlation: float
    widths: list[int]
    greatest: Float[np.ndarray, " width"]

    @property
    def statement(self) -> str:
        """The width in one sentence, with the accuracy of the search."""
        above = f"correlated by more than {self.correlation:g} at the saddle point"
        if self.width is None:
            return f"At N = {self.widths[-1]:,}, the widest network searched, some paths are still {above}."
        accuracy = f" (to {TOLERANCE:.0%})" if self.width * TOLERANCE > 1 else ""
        return f"From N = {self.width:,}{accuracy} on no two paths are {above}."

    def _described(self) -> tuple[str, dict[str, str]]:
        return f"CombiningWidth: {self.width or 'not found'}", {"meaning": self.statement}


@with_own_settings
def combining_width(model: Model, correlation: float = NEGLIGIBLE_CORRELATION, most: int = 10**7) -> CombiningWidth:
    """Width above which no two paths of a model combine; see `Heads.combining_width`."""
    correlation = number("correlation", correlation)
    if not 0 < correlation < 1:
        raise BayesattnError(f"correlation must be between 0 and 1, got {shown(correlation)}")
    arch = model.architecture
    if arch.paths < 2:
        raise BayesattnError("model must have two paths or more, got one with a single path, which cannot combine")
    positive_integer("most", most)
    pairs = _pairs(arch.rows, arch.outputs)

    def strongest(width: int) -> float:
        order_parameter = np.asarray(solve(model.replace(width=width)).order_parameter)
        return float(np.max(np.abs(path_correlations(order_parameter)[pairs])))

    grid = [*(width for width in SEARCHED_WIDTHS if width < most), most]
    greatest = {width: strongest(width) for width in watched(grid, "solving the theory", "widths")}
    last = max((at for at, width in enumerate(grid) if greatest[width] > correlation), default=-1)
    narrow, wide = (0, *grid)[last + 1], (*grid, None)[last + 1]
    while wide is not None and wide - narrow > max(1, int(narrow * TOLERANCE)):
        middle = round(np.sqrt(narrow * wide)) if wide > 2 * narrow else (narrow + wide) // 2
        greatest[middle] = strongest(middle)
        narrow, wide = (middle, wide) if greatest[middle] > correlation else (narrow, middle)
    widths = sorted(greatest)
    return CombiningWidth(wide, correlation, widths, np.array([greatest[width] for width in widths]))


def _pairs(rows: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of rows of U of different paths, each once; outputs are fastest."""
    paths = np.arange(rows) // outputs
    first, second = np.nonzero(paths[:, None] > paths)
    return first, second


def moments_and_interval(
    values: Float[np.ndarray, "chain draw *quantity"], order_parameters: Float[np.ndarray, "chain draw row row"]
) -> dict[str, np.ndarray]:
    """Mean, sd, Monte Carlo error of the mean, and ends of the interval, of functions of U over chains and draws.

    The error of what is the same for every U is 0; it is NaN where draws are few, or U does not vary.
    """
    error = np.full(values.shape[2:], np.nan)
    if values.shape[1] >= FEWEST_DRAWS:
        dims = ("chain", "draw", *(f"axis_{axis}" for axis in range(values.ndim - 2)))
        with np.errstate(divide="ignore", invalid="ignore"):
            error = arviz_stats.mcse(xr.DataArray(values, dims=dims)).values
        known = 0.0 if np.ptp(order_parameters, axis=(0, 1)).any() else np.nan
        error = np.where(np.ptp(values, axis=(0, 1)) == 0, known, error)
    lower, upper = np.quantile(values, [(1 - INTERVAL_PROBABILITY) / 2, (1 + INTERVAL_PROBABILITY) / 2], axis=(0, 1))
    sd = values.std((0, 1), ddof=1) if values[..., 0].size > 1 else np.full(values.shape[2:], np.nan)
    return {"mean": values.mean((0, 1)), "sd": sd, "error": error, "lower": lower, "upper": upper}
