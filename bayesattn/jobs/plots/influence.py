"""Figure of influences of training examples."""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from scipy.cluster import hierarchy

from bayesattn._util.checks import shown
from bayesattn.errors import BayesattnError
from bayesattn.jobs.plots.style import heat_map, literal, palette
from bayesattn.questions.influence import InfluenceTables

MOST_ROWS, MOST_COLUMNS = 40, 60
"""Most test examples and training examples in the map, those of largest influence."""
BARS = 10


def influence_figure(found: xr.Dataset, title: str | None = None) -> Figure:
    """Map of influences on predictions, similar rows and columns beside each other, and the strongest and weakest examples.

    Args:
        found: result of `bayesattn.influence`, with outputs; without them, losses are drawn.
        title: title of the figure.

    Raises:
        ValueError: another object.
    """
    name = next((name for name in ("outputs", "losses") if name in getattr(found, "data_vars", ())), None)
    if name is None:
        raise BayesattnError(f"found must be a result of bayesattn.influence, of outputs or losses, got {shown(found)}")
    values = found[name]
    last = str(values.dims[-1])
    matrix = values.values.reshape(-1, values.sizes[last])
    strength = InfluenceTables(found).strongest(name).values
    columns = np.sort(np.argsort(-strength, kind="stable")[:MOST_COLUMNS])
    rows = np.sort(np.argsort(-np.abs(matrix).max(1), kind="stable")[:MOST_ROWS])
    rows, columns = rows[_order(matrix[np.ix_(rows, columns)])], columns[_order(matrix[np.ix_(rows, columns)].T)]
    names = [str(each) for each in values[last].values] if last in values.coords else [*map(str, range(len(strength)))]
    figure, (of_map, bars) = plt.subplots(1, 2, figsize=(11, 4.6), width_ratios=(2.4, 1), layout="constrained")
    part = matrix[np.ix_(rows, columns)]
    limit = float(np.abs(part).max()) or 1.0
    outputs = [f" {name}" for name in values["output"].values] if "output" in values.dims else [""]
    places = [f"{row // len(outputs)}{outputs[row % len(outputs)]}" for row in rows]
    image = heat_map(of_map, part, places, [names[at] for at in columns], limit)
    of = "f at test example" if name == "outputs" else "loss of example"
    of_map.set(
        xlabel=f"training {last}", ylabel=of, title=f"change of {of.split(' at')[0].split(' of')[0]} per unit of weight"
    )
    figure.colorbar(image, ax=of_map, shrink=0.8)
    order = np.argsort(-strength, kind="stable")
    chosen = order if len(order) <= 2 * BARS else np.concatenate([order[:BARS], order[-BARS:]])
    heights = np.arange(len(chosen))
    bars.barh(heights, strength[chosen], color=[palette().blue if at < BARS else palette().grey for at in heights])
    bars.set_yticks(heights, [names[at] for at in chosen], fontsize=8)
    bars.invert_yaxis()
    bars.set(xlabel="root mean square influence, less noise", ylabel=f"training {last}", title="strongest and weakest")
    if title:
        figure.suptitle(literal(title), fontsize=12)
    return figure


def _order(matrix: np.ndarray) -> np.ndarray:
    """Order of rows in which similar ones are neighbours."""
    if len(matrix) < 3:
        return np.arange(len(matrix))
    return hierarchy.leaves_list(hierarchy.linkage(matrix, "average", optimal_ordering=True))
