"""Tables of influences: the examples that a prediction rests on."""

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from scipy import stats

from bayesattn._util.checks import one_of, positive_integer
from bayesattn.errors import BayesattnError

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.94
"""Probability of intervals, and of an order of two examples that counts as known."""
SHOWN = 10


@xr.register_dataset_accessor("influence")
class InfluenceTables:
    """Tables of a dataset of influences, as `found.influence`.

    Args:
        found: result of `bayesattn.influence`.
    """

    def __init__(self, found: xr.Dataset):
        self.found = found

    def strongest(self, of: str = "outputs") -> xr.DataArray:
        """Root mean square influence of each example, or group, over all entries of a variable, such as test examples.

        Less what Monte Carlo errors add to the squares, where these are known; 0 where they explain all of it.
        """
        values = self._values(of)
        squares = values**2 - self.found[f"{of}_error"].fillna(0.0) ** 2
        return squares.mean([axis for axis in values.dims if axis != values.dims[-1]]).clip(min=0.0) ** 0.5

    def table(self, *place: int | str, of: str = "outputs", most: int = SHOWN) -> "pd.DataFrame":
        """Examples of largest influence on one quantity, such as the prediction at a test example.

        Args:
            place: the quantity by its entry along each axis of the variable but the last: for outputs the test example, and
                the output if there are several; by default the first.
            of: name of the variable.
            most: number of rows.

        Returns:
            One row for each example, or group, largest influence first, with columns influence, error, lower and upper (the
            interval of probability 0.94 by the Monte Carlo error), known (whether the influence is larger than that of the
            next row with probability 0.94, errors taken for independent), and left_out with left_out_error, pareto_k and
            refitted if the dataset has them.

        Raises:
            ValueError: a variable or an entry that does not exist.
        """
        import pandas as pd

        values, errors = self._values(of), self.found[f"{of}_error"]
        axes, last = values.dims[:-1], values.dims[-1]
        if len(place) > len(axes):
            raise BayesattnError(
                f"place must have at most {len(axes)} entries, {', '.join(map(str, axes))}, got {len(place)}"
            )
        at = {axis: self._entry(str(axis), place[n] if n < len(place) else 0) for n, axis in enumerate(axes)}
        value, error = values.isel(at).values, errors.isel(at).values
        order = np.argsort(-np.abs(value), kind="stable")
        shown = order[: positive_integer("most", most)]
        half, size = stats.norm.ppf((1 + LEVEL) / 2) * error, np.abs(value)
        # How much larger than that of the next row, in errors of the difference.
        least = stats.norm.ppf(LEVEL) * np.hypot(error[order], np.roll(error[order], -1))
        known = size[order] - np.roll(size[order], -1) > least
        known[-1] = False
        columns = {
            "influence": value[shown],
            "error": error[shown],
            "lower": (value - half)[shown],
            "upper": (value + half)[shown],
            "known": known[: len(shown)],
        }
        if of == "outputs" and last == "example" and "outputs_left_out" in self.found:
            columns |= {
                "left_out": self.found["outputs_left_out"].isel(at).values[shown],
                "left_out_error": self.found["outputs_left_out_error"].isel(at).values[shown],
                "pareto_k": self.found["pareto_k"].values[shown],
                "refitted": self.found["refitted"].values[shown],
            }
        names = values[last].values if last in values.coords else np.arange(values.sizes[last])
        return pd.DataFrame(columns, index=pd.Index(names[shown], name=str(last)))

    def _values(self, of: str) -> xr.DataArray:
        known = [name for name in map(str, self.found.data_vars) if f"{name}_error" in self.found]
        return self.found[one_of("of", of, known)]

    def _entry(self, axis: str, entry: int | str) -> int:
        if isinstance(entry, str) and axis in self.found.coords:
            names = [*map(str, self.found[axis].values)]
            if names.count(entry) > 1:
                raise BayesattnError(f"{axis} must be a number where several have one name, got {entry!r}")
            return names.index(one_of(axis, entry, names))
        return positive_integer(axis, entry, 0, self.found.sizes[axis] - 1)
