"""Which heads and paths matter, over the draws: head scores, correlations of paths, and the width at which those end.

A head score and a correlation are functions of U (THEORY section 5), so every draw of U has its own, and they have a
posterior. Functions of one U are `theory.head_scores` and `theory.path_correlations`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import arviz_stats
import numpy as np
from jaxtyping import Float

from bayesattn._util.checks import number, positive_integer, shown
from bayesattn._util.errors import BayesattnError
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described, with_error
from bayesattn.checks.mixing import FEWEST_DRAWS
from bayesattn.models import Model
from bayesattn.models.trees import Draws, opened_with_network, order_parameters_in
from bayesattn.theory.heads import head_scores
from bayesattn.theory.heads import path_correlations as correlations
from bayesattn.theory.saddle_point import solve

if TYPE_CHECKING:
    import pandas as pd

INTERVAL = 0.94
"""Posterior probability of the intervals, as in the package's figures."""
CORRELATION = 0.1
"""Greatest correlation of two paths that no longer combine."""
WIDTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**3, 10**4, 10**5, 10**6, 10**7)


@dataclass(frozen=True, eq=False, repr=False)
class Heads(Described):
    """Posterior of the head scores: how much each head matters, relative to the one that matters most in the same draw.

    All arrays have a row for each head, first layer first; `names` are (layer, head), layers counted from 1. A skip
    connection is no head.

    Args:
        names: layer and name of each head.
        scores: posterior mean of the score, shape (head,).
        sd: posterior standard deviation.
        error: Monte Carlo standard error of the mean; NaN of fewer than four draws a chain.
        lower: lower end of the central interval of probability 0.94.
        upper: its upper end.
        probability_least: posterior probability that the head has the least score of all heads.
    """

    names: list[tuple[int, str]]
    scores: Float[np.ndarray, " head"]
    sd: Float[np.ndarray, " head"]
    error: Float[np.ndarray, " head"]
    lower: Float[np.ndarray, " head"]
    upper: Float[np.ndarray, " head"]
    probability_least: Float[np.ndarray, " head"]

    def summary(self) -> "pd.DataFrame":
        """A row for each head: columns score, sd, error, lower, upper, and least, the probability that it is that."""
        import pandas as pd

        columns = ("scores", "sd", "error", "lower", "upper", "probability_least")
        index = pd.MultiIndex.from_tuples(self.names, names=["layer", "head"])
        named = {"scores": "score", "probability_least": "least"}
        return pd.DataFrame({named.get(name, name): getattr(self, name) for name in columns}, index=index)

    def _described(self) -> tuple[str, dict[str, str]]:
        def said(head: int) -> str:
            layer, name = self.names[head]
            return f"{name!r} of layer {layer}, score {with_error(self.scores[head], self.sd[head])} (posterior sd)"

        most, least = int(np.argmax(self.scores)), int(np.argmax(self.probability_least))
        return f"Heads: posterior of {len(self.names)} head scores", {
            "most": said(most),
            "least": f"{said(least)}, the least of all with probability {self.probability_least[least]:.2f}",
        }


@dataclass(frozen=True, eq=False, repr=False)
class PathCorrelations(Described):
    """Posterior of the correlations U_pq / (U_pp U_qq)^(1/2) of paths: 0 in the GP limit, where paths do not combine.

    Args:
        names: of the rows of U: paths, with the output where there are several.
        mean: posterior mean, shape (row, row); 1 on the diagonal.
        sd: posterior standard deviation.
        error: Monte Carlo standard error of the mean; NaN of fewer than four draws a chain, 0 on the diagonal.
        lower: lower end of the central interval of probability 0.94.
        upper: its upper end.
    """

    names: list[str]
    mean: Float[np.ndarray, "row row"]
    sd: Float[np.ndarray, "row row"]
    error: Float[np.ndarray, "row row"]
    lower: Float[np.ndarray, "row row"]
    upper: Float[np.ndarray, "row row"]

    def summary(self) -> "pd.DataFrame":
        """A row for each pair of different rows of U, the strongest correlation first."""
        import pandas as pd

        rows, others = np.tril_indices(len(self.names), -1)
        order = np.argsort(-np.abs(self.mean[rows, others]), kind="stable")
        rows, others = rows[order], others[order]
        pairs = [(self.names[row], self.names[other]) for row, other in zip(rows, others, strict=True)]
        index = pd.MultiIndex.from_tuples(pairs, names=["path", "other_path"])
        return pd.DataFrame(
            {name: getattr(self, name)[rows, others] for name in ("mean", "sd", "error", "lower", "upper")}, index=index
        )

    def _described(self) -> tuple[str, dict[str, str]]:
        rows = {}
        if len(self.names) > 1:
            first = self.summary().iloc[0]
            path, other = self.summary().index[0]
            rows["strongest"] = f"{with_error(first['mean'], first['sd'])} (posterior sd), of {path} and {other}"
        return f"PathCorrelations of {len(self.names)} rows of U", rows


@dataclass(frozen=True, eq=False, repr=False)
class CombiningWidth(Described):
    """The width above which no two paths combine, by the theory.

    Args:
        width: least common width N at and above which no correlation of two paths exceeds `correlation`, among the
            widths searched; None where the widest network that was looked at is still above it.
        correlation: what counts as combining.
        widths: the widths at which the saddle point was solved, ascending.
        greatest: greatest absolute correlation of two paths at each of them.
    """

    width: int | None
    correlation: float
    widths: list[int]
    greatest: Float[np.ndarray, " width"]

    def _described(self) -> tuple[str, dict[str, str]]:
        said = f"N = {self.width:,}" if self.width else f"beyond N = {self.widths[-1]:,}"
        return f"CombiningWidth: {said}", {
            "meaning": f"from there on no two paths are correlated by more than {self.correlation:g} at the saddle point"
        }


def heads(draws: Draws, model: Model | None = None) -> Heads:
    """Posterior of the score of each head: mean, spread, interval, and how likely the head is the least of all.

    The score of a draw is that of `theory.head_scores`: the sum of |U^{pi pi'}| over pairs of paths of which one uses the
    head, divided by the largest score (THEORY section 5).

    Args:
        draws: result of `bayesattn.sample`, a `bayesattn.runs.Run`, or a run's folder.
        model: whose draws they are, where they do not say so themselves.

    Raises:
        ValueError: draws that are not those of a network, or of another than `model`, or have no order_parameter.
        RunError: a folder that is not a run that can be read.
    """
    model, order_parameters = _drawn(draws, model)
    arch = model.architecture
    by_layer = head_scores(order_parameters, arch)
    skipped = [scores[..., int(skip > 0) :] for scores, skip in zip(by_layer, arch.skips, strict=True)]
    scores = np.concatenate(skipped, axis=-1)
    names = [
        (layer, name)
        for layer, of_layer in enumerate(model.head_names or arch.numbered_heads(), start=1)
        for name in of_layer
    ]
    least = scores == scores.min(-1, keepdims=True)
    moments = _posterior(scores)
    return Heads(
        names, moments.pop("mean"), **moments, probability_least=(least / least.sum(-1, keepdims=True)).mean((0, 1))
    )


def path_correlations(draws: Draws, model: Model | None = None) -> PathCorrelations:
    """Posterior of the correlations of paths in U; arguments and errors as for `heads`."""
    model, order_parameters = _drawn(draws, model)
    moments = _posterior(correlations(order_parameters))
    return PathCorrelations(model.row_names, **moments)


@with_own_settings
def combining_width(model: Model, correlation: float = CORRELATION, most: int = 10**7) -> CombiningWidth:
    """Width above which no two paths combine: no correlation of paths at the saddle point exceeds `correlation`.

    Paths combine at finite width alone: off the diagonal U vanishes as N grows (THEORY section 4). The theory is solved at
    about ten widths from 1 to `most`, then between the last one above and the first one below, all widths being equal.

    Args:
        model: the posterior; its widths do not matter.
        correlation: what counts as combining, between 0 and 1.
        most: the widest network that is looked at.

    Raises:
        ValueError: a correlation that is not between 0 and 1, a model whose labels are classes, or of one path.
        NotConverged: a saddle point was not found.
    """
    correlation = number("correlation", correlation)
    if not 0 < correlation < 1:
        raise BayesattnError(f"correlation must be between 0 and 1, got {shown(correlation)}")
    if model.architecture.rows < 2:
        raise BayesattnError("model must have two paths or more, got one of a single path, which combines with none")
    positive_integer("most", most)
    found: dict[int, float] = {}

    def greatest(width: int) -> float:
        if width not in found:
            of_paths = correlations(np.asarray(solve(model.replace(width=width)).order_parameter))
            found[width] = float(np.max(np.abs(of_paths[np.tril_indices(len(of_paths), -1)])))
        return found[width]

    grid = [*(width for width in WIDTHS if width < most), most]
    below = [width for width in grid if greatest(width) <= correlation]
    above = [width for width in grid if greatest(width) > correlation]
    width: int | None = None
    if not above:
        width = grid[0]
    elif above[-1] != grid[-1]:
        narrow, wide = above[-1], min(each for each in below if each > above[-1])
        while wide - narrow > max(1, narrow // 100):
            middle = round(np.sqrt(narrow * wide)) if wide > 2 * narrow else (narrow + wide) // 2
            narrow, wide = (middle, wide) if greatest(middle) > correlation else (narrow, middle)
        width = wide
    widths = sorted(found)
    return CombiningWidth(width, correlation, widths, np.array([found[each] for each in widths]))


def _drawn(draws: Draws, model: Model | None) -> tuple[Model, np.ndarray]:
    model, tree = opened_with_network(draws, model)
    return model, order_parameters_in(tree, model)


def _posterior(values: Float[np.ndarray, "chain draw *quantity"]) -> dict[str, np.ndarray]:
    """Moments and interval of quantities over chains and draws."""
    import xarray

    error = np.full(values.shape[2:], np.nan)
    if values.shape[1] >= FEWEST_DRAWS:
        dims = ("chain", "draw", *(f"axis_{axis}" for axis in range(values.ndim - 2)))
        with np.errstate(divide="ignore", invalid="ignore"):
            error = arviz_stats.mcse(xarray.DataArray(values, dims=dims)).values
        error = np.where(np.ptp(values, axis=(0, 1)) == 0, 0.0, error)
    lower, upper = np.quantile(values, [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2], axis=(0, 1))
    sd = values.std((0, 1), ddof=1) if values[..., 0].size > 1 else np.full(values.shape[2:], np.nan)
    return {"mean": values.mean((0, 1)), "sd": sd, "error": error, "lower": lower, "upper": upper}
