"""Posterior of head scores and of path correlations, and the width above which paths no longer combine.

Head scores and path correlations are functions of U (THEORY section 5), so each draw of U gives a draw of both. For one
U, use `theory.head_scores` and `theory.path_correlations`.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import arviz_stats
import numpy as np
from jaxtyping import Float

from bayesattn._util.checks import Checked, number, positive_integer, require_kind, shown
from bayesattn._util.errors import BayesattnError
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described, with_error
from bayesattn._util.watched import watched
from bayesattn.checks.mixing import FEWEST_DRAWS
from bayesattn.models import Model
from bayesattn.models.draws import Draws, opened_with_network, order_parameters_in
from bayesattn.models.model import has_fixed_attention
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.questions.heads.losses import Losses, head_losses, indexed
from bayesattn.questions.heads.units import units_of
from bayesattn.theory.heads import path_correlations as correlations
from bayesattn.theory.saddle_point import solve

if TYPE_CHECKING:
    import pandas as pd

EXCHANGEABLE = (
    "heads of a layer are exchangeable when queries and keys are sampled: their exact scores are equal, and what differs is"
    " Monte Carlo error or the start of a chain; compare layers or groups instead"
)
INTERVAL_PROBABILITY = 0.94
"""Posterior probability of the intervals, as in the package's figures."""
NEGLIGIBLE_CORRELATION = 0.1
"""Largest correlation of two paths that do not combine."""
SEARCHED_WIDTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**3, 10**4, 10**5, 10**6, 10**7)
"""Widths at which `combining_width` begins its search."""
TOLERANCE = 0.01
"""Relative distance of the last two widths of the bisection in `combining_width`."""


@dataclass(frozen=True, eq=False, repr=False)
class Heads(Described):
    """Posterior of scores: weight of each head in U, relative to the largest score of the same draw, skips included.

    All arrays have one entry per head, first layer first; `names` are (layer, name), with layers counted from 1. The
    scores can also be those of paths or of groups of heads, by name. A skip connection is not a head.

    The losses without each head (`losses`) are sampled on first access, which takes about as long as a few jobs of
    `bayesattn.sample` for each head.

    Args:
        names: layer and name of each head; or names of paths or groups.
        scores: posterior mean of the score, shape (head,).
        sd: posterior standard deviation.
        error: Monte Carlo standard error of the mean; NaN with fewer than four draws per chain.
        lower: lower end of the central interval of probability 0.94.
        upper: upper end of this interval.
        probability_least: posterior probability that the head has the least score of all heads.
        drawn: scores of each draw, shape (chain, draw, head).
    """

    names: list[Any]
    scores: Float[np.ndarray, " head"]
    sd: Float[np.ndarray, " head"]
    error: Float[np.ndarray, " head"]
    lower: Float[np.ndarray, " head"]
    upper: Float[np.ndarray, " head"]
    probability_least: Float[np.ndarray, " head"]
    drawn: Float[np.ndarray, "chain draw head"]
    _source: tuple[Draws, NetworkPosterior, Checked, list[str]]

    @property
    def note(self) -> str:
        """Caution about the scores of single heads and paths whose queries and keys are sampled; else empty."""
        _, model, of, _ = self._source
        return EXCHANGEABLE if isinstance(of, str) and not has_fixed_attention(model) else ""

    @cached_property
    def losses(self) -> Losses:
        """Losses without each head, from `bayesattn.head_losses` with its defaults."""
        draws, model, of, _ = self._source
        require_kind("model of the draws", model, Model)
        return head_losses(draws, model, of=of)  # pyright: ignore[reportArgumentType]

    @property
    def evidence_lost(self) -> Float[np.ndarray, " head"]:
        """Log evidence lost without each head, in nats; its error is `losses.evidence_error`."""
        return self.losses.evidence

    @property
    def accuracy_lost(self) -> Float[np.ndarray, " head"]:
        """Test accuracy lost without each head, with the values of all other heads inferred again."""
        return self.losses.accuracy

    @property
    def log_score_lost(self) -> Float[np.ndarray, " head"]:
        """Mean log predictive density of the test labels lost without each head, in nats."""
        return self.losses.log_score

    def probability_among_least(self, count: int) -> Float[np.ndarray, " head"]:
        """Posterior probability that the head is among the `count` heads of least score; tied heads share places."""
        positive_integer("count", count, 1, len(self.names))
        below = np.sum(self.drawn[..., None, :] < self.drawn[..., :, None], axis=-1)
        level = np.sum(self.drawn[..., None, :] == self.drawn[..., :, None], axis=-1)
        return np.clip((count - below) / level, 0, 1).mean((0, 1))

    def probability_below(self, threshold: float) -> Float[np.ndarray, " head"]:
        """Posterior probability that the head's score is below a threshold, between 0 and 1."""
        limit = number("threshold", threshold)
        if not 0 <= limit <= 1:
            raise BayesattnError(f"threshold must be between 0 and 1, got {limit:g}")
        return (self.drawn < limit).mean((0, 1))

    def summary(self) -> "pd.DataFrame":
        """One row per head: score, sd, error, lower, upper and least, the probability of the least score.

        Once `losses` have been sampled, the table also has their columns.
        """
        import pandas as pd

        columns = ("scores", "sd", "error", "lower", "upper", "probability_least")
        named = {"scores": "score", "probability_least": "least"}
        index = indexed(self.names, self._source[3])
        table = pd.DataFrame({named.get(name, name): getattr(self, name) for name in columns}, index=index)
        if "losses" in vars(self):
            lost = self.losses.summary().drop(columns="rhat")
            table = table.join(lost.rename(columns=lambda name: re.sub("(_error)?$", r"_lost\1", name, count=1)))
        return table

    def _described(self) -> tuple[str, dict[str, str]]:
        def said(head: int) -> str:
            name = self.names[head]
            name = f"{name[1]!r} of layer {name[0]}" if isinstance(name, tuple) else repr(name)
            return f"{name}, score {with_error(self.scores[head], self.sd[head])} (posterior sd)"

        most, least = int(np.argmax(self.scores)), int(np.argmax(self.probability_least))
        return f"Heads: posterior of {len(self.names)} scores", {
            "most": said(most),
            "least": f"{said(least)}, the least of all with probability {self.probability_least[least]:.2f}",
        } | ({"note": self.note} if self.note else {})


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
        start = f"Beyond N = {self.widths[-1]:,}"
        if self.width:
            start = (
                f"From N = {self.width:,}" + (f" (to {TOLERANCE:.0%})" if self.width * TOLERANCE > 1 else "") + " on"
            )
        return f"{start} no two paths are correlated by more than {self.correlation:g} at the saddle point."

    def _described(self) -> tuple[str, dict[str, str]]:
        text = f"N = {self.width:,}" if self.width else f"beyond N = {self.widths[-1]:,}"
        return f"CombiningWidth: {text}", {"meaning": self.statement}


def heads(draws: Draws, model: NetworkPosterior | None = None, *, of: Checked = "heads") -> Heads:
    """Posterior of the score of each head: mean, spread, interval, and probability of the least score.

    The score is that of `theory.head_scores`: the sum of |U^{pi pi'}| over pairs in which at least one path uses the
    head, divided by the largest score of the draw (THEORY section 5).

    Args:
        draws: result of `bayesattn.sample`, a `bayesattn.runs.Run`, or a run's folder.
        model: model of the draws, if they do not record it.
        of: "heads"; "paths", each by itself; or groups, a dictionary of lists of heads, such as
            {"layer 1": [1], "both": [(1, "a"), (2, "b")]}: a number stands for all heads of a layer. A group's score
            sums over pairs in which a path uses a head of the group, relative to the largest group's score.

    Raises:
        ValueError: draws that are not of a network, are of another model than `model`, or have no order_parameter; heads
            that do not exist.
        RunError: a folder that is not a readable run.
    """
    model, order_parameters = _drawn(draws, model)
    units = units_of(model, of)
    scores = units.scores(order_parameters, model.architecture)
    least = scores == scores.min(-1, keepdims=True)
    moments = _posterior(scores)
    return Heads(
        units.names,
        moments.pop("mean"),
        **moments,
        probability_least=(least / least.sum(-1, keepdims=True)).mean((0, 1)),
        drawn=scores,
        _source=(draws, model, of, units.levels),
    )


def path_correlations(draws: Draws, model: NetworkPosterior | None = None) -> PathCorrelations:
    """Posterior of the correlations of different paths in U; arguments and errors as for `heads`.

    With several outputs each path has a row of U for each output; rows of one path are no pair.
    """
    model, order_parameters = _drawn(draws, model)
    moments = _posterior(correlations(order_parameters))
    return PathCorrelations(model.row_names, **moments, outputs=model.architecture.outputs)


@with_own_settings
def combining_width(model: Model, correlation: float = NEGLIGIBLE_CORRELATION, most: int = 10**7) -> CombiningWidth:
    """Width above which no two paths combine: no correlation of paths at the saddle point exceeds `correlation`.

    Paths combine only at finite width, because the off-diagonal entries of U vanish as N grows (THEORY section 4). All
    layers have the same width N. With several outputs, rows of one path are not compared. The saddle point is solved at
    about ten widths from 1 to `most`, then by bisection between the last width that exceeds `correlation` and the first
    that does not, until these differ by 1 %, or by 1 below N = 200.

    Args:
        model: the posterior; its widths do not matter.
        correlation: correlation above which paths count as combining, between 0 and 1.
        most: the largest width searched.

    Raises:
        ValueError: a correlation that is not between 0 and 1, a model whose labels are classes, or a model with one path.
        NotConverged: a saddle point was not found.
    """
    correlation = number("correlation", correlation)
    if not 0 < correlation < 1:
        raise BayesattnError(f"correlation must be between 0 and 1, got {shown(correlation)}")
    arch = model.architecture
    if arch.paths < 2:
        raise BayesattnError("model must have two paths or more, got one with a single path, which cannot combine")
    positive_integer("most", most)
    correlation_at: dict[int, float] = {}

    def greatest(width: int) -> float:
        if width not in correlation_at:
            of_paths = correlations(np.asarray(solve(model.replace(width=width)).order_parameter))
            correlation_at[width] = float(np.max(np.abs(of_paths[_pairs(arch.rows, arch.outputs)])))
        return correlation_at[width]

    grid = [*(width for width in SEARCHED_WIDTHS if width < most), most]
    for width in watched(grid, "solving the theory", "widths"):
        greatest(width)
    below = [width for width in grid if greatest(width) <= correlation]
    above = [width for width in grid if greatest(width) > correlation]
    least: int | None = None
    if not above:
        least = grid[0]
    elif above[-1] != grid[-1]:
        narrow, wide = above[-1], min(each for each in below if each > above[-1])
        while wide - narrow > max(1, int(narrow * TOLERANCE)):
            middle = round(np.sqrt(narrow * wide)) if wide > 2 * narrow else (narrow + wide) // 2
            narrow, wide = (middle, wide) if greatest(middle) > correlation else (narrow, middle)
        least = wide
    widths = sorted(correlation_at)
    return CombiningWidth(least, correlation, widths, np.array([correlation_at[each] for each in widths]))


def _pairs(rows: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of rows of U of different paths, each once; outputs are fastest."""
    paths = np.arange(rows) // outputs
    first, second = np.nonzero(paths[:, None] > paths)
    return first, second


def _drawn(draws: Draws, model: NetworkPosterior | None) -> tuple[NetworkPosterior, np.ndarray]:
    model, tree = opened_with_network(draws, model)
    return model, order_parameters_in(tree, model)


def _posterior(values: Float[np.ndarray, "chain draw *quantity"]) -> dict[str, np.ndarray]:
    """Moments and interval of each quantity over chains and draws."""
    import xarray

    error = np.full(values.shape[2:], np.nan)
    if values.shape[1] >= FEWEST_DRAWS:
        dims = ("chain", "draw", *(f"axis_{axis}" for axis in range(values.ndim - 2)))
        with np.errstate(divide="ignore", invalid="ignore"):
            error = arviz_stats.mcse(xarray.DataArray(values, dims=dims)).values
        error = np.where(np.ptp(values, axis=(0, 1)) == 0, 0.0, error)
    lower, upper = np.quantile(values, [(1 - INTERVAL_PROBABILITY) / 2, (1 + INTERVAL_PROBABILITY) / 2], axis=(0, 1))
    sd = values.std((0, 1), ddof=1) if values[..., 0].size > 1 else np.full(values.shape[2:], np.nan)
    return {"mean": values.mean((0, 1)), "sd": sd, "error": error, "lower": lower, "upper": upper}
