"""Pruning with inference: heads are removed one by one, and the posterior of the remaining heads is computed again.

No network is trained: for each reduced network the theory's saddle point is solved, and log evidence and predictions
follow from it. Each step removes the head whose removal leaves the largest log evidence.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from bayesattn._util.checks import Checked, positive_integer
from bayesattn._util.settings import with_own_settings
from bayesattn._util.slow_loops import watched
from bayesattn._util.text import Described
from bayesattn.checks.accuracy import binomial_error, paired_error
from bayesattn.errors import BayesattnError
from bayesattn.models.draws import Draws, opened_with_network
from bayesattn.models.model import Model
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.questions.heads.fit import Fit, at_saddle_point, mean_and_error, without_paths
from bayesattn.questions.heads.losses import gaussian_model
from bayesattn.questions.heads.units import units_of

if TYPE_CHECKING:
    import pandas as pd

MOST_TRIED = 16
"""With at most this many heads, every step tries every remaining head."""
MOST_ACCURACY_LOST = 0.02
"""Largest loss of accuracy at which the removed heads count as dispensable."""


@dataclass(frozen=True, eq=False, repr=False)
class Removal(Described):
    """Heads in the order of their removal, with results for the network before the first removal and after each.

    Args:
        names: heads, paths or groups in the order in which they were removed.
        evidence: log p(Y) to leading order minus that of the whole network, so that a loss is negative, unlike in
            `Losses`; the first entry is 0.
        accuracy: accuracy of the mean predictor on the test examples; NaN without test labels.
        accuracy_error: its standard error over test examples.
        log_score: mean log predictive density of the test labels.
        levels: names of the index levels: ["layer", "head"] for heads, whose names are tuples; else ["path"] or ["group"].
        lost_error: standard error over test examples of the accuracy lost, which both networks predict.
        total: number of heads, paths or groups before the first removal.
    """

    names: list[Any]
    evidence: Float[np.ndarray, " removed"]
    accuracy: Float[np.ndarray, " removed"]
    accuracy_error: Float[np.ndarray, " removed"]
    log_score: Float[np.ndarray, " removed"]
    levels: list[str]
    lost_error: Float[np.ndarray, " removed"]
    total: int

    @property
    def dispensable(self) -> int:
        """Number of heads that can go before accuracy falls by more than two points; raises ValueError without accuracy."""
        if not np.isfinite(self.accuracy[0]):
            raise BayesattnError("dispensable needs test labels that are classes, got a removal without accuracy")
        return dispensable(self.accuracy, float(self.accuracy[0]))

    @property
    def dispensable_interval(self) -> tuple[int, int]:
        """`dispensable` if each accuracy lost were two of its errors more, and two less; its error without accuracy."""
        least, most = (replace(self, accuracy=self.accuracy + errors * self.lost_error) for errors in (-2, 2))
        return least.dispensable, most.dispensable

    def statement(self) -> str:
        """How many heads can go, with the ends within two errors; raises ValueError without accuracy."""
        several, low, high = (
            f"{count} or more" if count == len(self.names) < self.total else str(count)
            for count in (self.dispensable, *self.dispensable_interval)
        )
        return (
            f"{several} of {self.total} can go before more than {100 * MOST_ACCURACY_LOST:g} points of accuracy are lost"
            f" ({low if low == high else f'{low} to {high}'} within two errors)"
        )

    def summary(self) -> "pd.DataFrame":
        """One row for each removal, after one for the whole network."""
        import pandas as pd

        columns = ("evidence", "accuracy", "accuracy_error", "log_score", "lost_error")
        index = pd.Index(range(len(self.evidence)), name="removed")
        table = pd.DataFrame({name: getattr(self, name) for name in columns}, index=index)
        shown = [
            " of layer ".join(map(str, reversed(each))) if isinstance(each, tuple) else each for each in self.names
        ]
        table.insert(0, "last", ["", *shown])
        return table

    def _described(self) -> tuple[str, dict[str, str]]:
        rows = {"order": ", ".join(map(str, self.names[:4])) + (", .." if len(self.names) > 4 else "")}
        if np.isfinite(self.accuracy[0]):
            rows["accuracy"] = f"{self.accuracy[0]:.3f} ± {self.accuracy_error[0]:.2g} with all; {self.statement()}"
        kind = "head" if len(self.levels) > 1 else self.levels[0]
        return f"Removal of {len(self.names)} {kind}s, by evidence", rows


@with_own_settings
def remove_heads(
    draws: Draws | Model, *, of: Checked = "heads", most: int | None = None, model: NetworkPosterior | None = None
) -> Removal:
    """Remove heads greedily by evidence; after each removal, the posterior of the remaining heads is computed again.

    With up to 16 heads, each step tries every remaining head. With more, losses from earlier steps serve as lower bounds
    (lazy greedy, Minoux 1978). The order can then differ from that of the full search, because a head's loss sometimes
    falls when others are removed.

    Args:
        draws: draws of the whole network, as for `bayesattn.heads`; or the model alone, as the theory needs no draws. Its
            labels must be Gaussian; accuracies need test examples with labels.
        of: "heads"; "paths"; or a dictionary of lists of heads, as for `bayesattn.heads`.
        most: number of heads to remove, by default all.
        model: model of the draws, if they do not record it.

    Raises:
        ValueError: draws of a network whose attention is sampled too, or without a Gaussian likelihood; an `of` that
            `bayesattn.heads` would refuse, a `most` that is not a number from 1 to the number of heads.
        NotConverged: a saddle point was not found.
    """
    whole = gaussian_model(draws if isinstance(draws, Model) else opened_with_network(draws, model)[0])
    units = units_of(whole, of)
    count = len(units.names) if most is None else positive_integer("most", most, 1, len(units.names))
    fits, order = [at_saddle_point(whole)], []
    gone = np.zeros(whole.architecture.paths, bool)
    least_losses = np.full(len(units.names), -np.inf)
    for _ in watched(range(count), "removing heads", "heads"):
        if len(units.names) <= MOST_TRIED:
            least_losses[:] = -np.inf
        least_losses[order] = np.inf
        tried: dict[int, Fit] = {}
        # Losses of other steps are lower bounds, so a head whose loss at this step is least of all has the least loss.
        while (head := int(np.argmin(least_losses))) not in tried:
            tried[head] = at_saddle_point(without_paths(whole, gone | units.paths[head]))
            least_losses[head] = fits[-1].log_evidence - tried[head].log_evidence
        order.append(head)
        fits.append(tried[head])
        gone |= units.paths[head]
    right = [fit.accuracy(whole) for fit in fits]
    accuracy = np.array([mean_and_error(each)[0] for each in right])
    error = np.array([binomial_error(share, each.size) for share, each in zip(accuracy, right, strict=True)])
    log_score, _ = np.array([mean_and_error(fit.log_score(whole)) for fit in fits]).T
    evidence = np.array([fit.log_evidence for fit in fits])
    names = [units.names[at] for at in order]
    lost = [right[0] - each for each in right[1:]]
    errors = [paired_error(float(each @ each), float(each.sum()), each.size) for each in lost if each.size]
    lost_error = np.array([0.0, *errors]) if errors else np.full(len(fits), np.nan)
    return Removal(
        names, evidence - evidence[0], accuracy, error, log_score, units.levels, lost_error, len(units.names)
    )


def dispensable(accuracies: Float[np.ndarray, " removed"], whole: float) -> int:
    """Number of heads that can go before more than `MOST_ACCURACY_LOST` of the whole network's accuracy is lost."""
    lost = whole - accuracies > MOST_ACCURACY_LOST + 1e-9  # Exactly two points are no more than two points.
    return int(np.argmax(np.append(lost, True))) - 1
