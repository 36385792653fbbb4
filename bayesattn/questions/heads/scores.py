"""Posterior of head scores. A score is a function of U (THEORY section 5), so each draw of U gives a draw of it.

For one U, use `theory.head_scores`.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Float

from bayesattn._util.checks import Checked, number, positive_integer, shown
from bayesattn._util.random import stream
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described, with_error
from bayesattn.errors import BayesattnError
from bayesattn.models.draws import Draws, opened_with_network, order_parameters_in
from bayesattn.models.earlier import draws_first
from bayesattn.models.model import has_fixed_attention
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.models.prior_draws import from_prior
from bayesattn.questions.heads.losses import COLUMNS, Losses, head_losses, indexed
from bayesattn.questions.heads.path_combination import (
    NEGLIGIBLE_CORRELATION,
    CombiningWidth,
    PathCorrelations,
    combining_width,
    moments_and_interval,
)
from bayesattn.questions.heads.units import Units, exchangeability_note, units_of

if TYPE_CHECKING:
    import pandas as pd

PRIOR_NETWORKS, FEWEST_PRIOR_NETWORKS, ENTRIES_OF_PRIOR = 2000, 100, 2**24
"""Most and fewest networks whose scores have the mean that the prior gives, and entries of all their U, about."""


@dataclass(frozen=True, eq=False, repr=False)
class Heads(Described):
    """Posterior of scores: weight of each head in U, relative to the largest score of the same draw, skips included.

    All arrays have one entry per head, first layer first; `names` are (layer, name), with layers counted from 1. The
    scores can also be those of paths or of groups of heads, by name. A skip connection is not a head.

    The losses without each head (`losses`) are sampled on first access, which takes about as long as a few jobs of
    `bayesattn.sample` for each head.

    Args:
        model: posterior of the draws.
        units: the heads, paths or groups, and the paths that each uses.
        scores: posterior mean of the score, shape (head,).
        sd: posterior standard deviation.
        error: Monte Carlo standard error of the mean; NaN with fewer than four draws per chain, and of draws that do not
            vary.
        lower: lower end of the central interval of probability 0.94.
        upper: upper end of this interval.
        probability_least: posterior probability that the head has the least score of all heads.
        drawn: scores of each draw, shape (chain, draw, head).
    """

    model: NetworkPosterior
    units: Units
    scores: Float[np.ndarray, " head"]
    sd: Float[np.ndarray, " head"]
    error: Float[np.ndarray, " head"]
    lower: Float[np.ndarray, " head"]
    upper: Float[np.ndarray, " head"]
    probability_least: Float[np.ndarray, " head"]
    drawn: Float[np.ndarray, "chain draw head"]
    _draws: Draws
    _of: Checked

    @property
    def names(self) -> list[Any]:
        """Layer and name of each head; or names of paths or groups."""
        return self.units.names

    @property
    def note(self) -> str:
        """Caution about the score of one alone, or of heads and paths whose queries and keys are sampled; else empty."""
        if len(self.names) == 1 and not len(self.units.skips):
            return "one alone is the greatest of its draws by definition: its score says nothing"
        return exchangeability_note(self.model, self.units)

    @cached_property
    def losses(self) -> Losses:
        """Log evidence, accuracy and log score lost without each head, from `bayesattn.head_losses` with its defaults."""
        return head_losses(self._draws, of=self._of, model=self.model)

    @cached_property
    @with_own_settings
    def prior(self) -> Float[np.ndarray, " head"]:
        """Mean score of each head in networks drawn from the prior: that of a head of which the data say nothing.

        The converse does not hold: heads that carry a task equally may have the scores of the prior.
        """
        entries = self.units.rows(self.model.architecture).shape[-1] ** 2
        count = int(np.clip(ENTRIES_OF_PRIOR // entries, FEWEST_PRIOR_NETWORKS, PRIOR_NETWORKS))
        keys = jax.random.split(stream(0, "prior scores", self.model.fingerprint), count)
        of_test = [*(name for name in self.model.data_names if name.startswith("test_")), "test_labels"]
        of_test += ["watched"] if hasattr(self.model, "watched") else []
        untested = self.model.replace(**dict.fromkeys(of_test))
        drawn = np.asarray(from_prior(untested, keys)["order_parameter"])
        return self.units.scores(drawn, self.model.architecture).mean(0)

    @property
    def _note_of_prior(self) -> str:
        """That no score is farther from the prior's mean than its standard deviation, if so; attention is fixed."""
        if not has_fixed_attention(self.model) or not np.all(np.abs(self.scores - self.prior) <= self.sd):
            return ""
        return "all scores are near those of the prior and tell no head from another; bayesattn.head_losses does"

    def correlations(self) -> PathCorrelations:
        """Posterior of the correlations of different paths in U, which are 0 where paths do not combine.

        With several outputs each path has a row of U for each output; rows of one path are no pair.
        """
        model, tree = opened_with_network(self._draws, self.model)
        return PathCorrelations.of(model, order_parameters_in(tree, model))

    def combining_width(self, correlation: float = NEGLIGIBLE_CORRELATION, most: int = 10**7) -> CombiningWidth:
        """Width above which no two paths combine, by the theory: the saddle point of the model at other widths.

        No correlation of paths at the saddle point exceeds `correlation`. Paths combine only at finite width, because the
        off-diagonal entries of U vanish as N grows (THEORY section 4). All layers have the same width N. With several
        outputs, rows of one path are not compared. The saddle point is solved at about ten widths from 1 to `most`, then by
        bisection between the last width that exceeds `correlation` and the first that does not, until these differ by 1 %,
        or by 1 below N = 200.

        Args:
            correlation: correlation above which paths count as combining, between 0 and 1.
            most: the largest width searched.

        Raises:
            ValueError: a correlation that is not between 0 and 1; draws of a network with sampled attention, labels of
                classes, or one path.
            NotConverged: a saddle point was not found.
        """
        if not has_fixed_attention(self.model):
            raise BayesattnError(f"model of the draws must be a bayesattn.Model, got {shown(self.model)}")
        return combining_width(self.model, correlation, most)

    @property
    def probability_greatest(self) -> Float[np.ndarray, " head"]:
        """Posterior probability that the head has the greatest score of all heads; tied heads share it."""
        greatest = self.drawn == self.drawn.max(-1, keepdims=True)
        return (greatest / greatest.sum(-1, keepdims=True)).mean((0, 1))

    def probability_among_least(self, count: int) -> Float[np.ndarray, " head"]:
        """Posterior probability that the head is among the `count` heads of least score; tied heads share places."""
        positive_integer("count", count, 1, len(self.names))
        below = np.sum(self.drawn[..., None, :] < self.drawn[..., :, None], axis=-1)
        ties = np.sum(self.drawn[..., None, :] == self.drawn[..., :, None], axis=-1)
        return np.clip((count - below) / ties, 0, 1).mean((0, 1))

    def probability_below(self, threshold: float) -> Float[np.ndarray, " head"]:
        """Posterior probability that the head's score is below a threshold, between 0 and 1."""
        limit = number("threshold", threshold)
        if not 0 <= limit <= 1:
            raise BayesattnError(f"threshold must be between 0 and 1, got {limit:g}")
        return (self.drawn < limit).mean((0, 1))

    def summary(self) -> "pd.DataFrame":
        """One row per head: score, sd, error, lower, upper, the prior's mean score, probabilities of the least and greatest.

        Once `losses` have been sampled, the table also has their columns.
        """
        import pandas as pd

        columns = ("scores", "sd", "error", "lower", "upper", "prior", "probability_least", "probability_greatest")
        named = {"scores": "score", "probability_least": "least", "probability_greatest": "greatest"}
        index = indexed(self.names, self.units.levels)
        table = pd.DataFrame({named.get(name, name): getattr(self, name) for name in columns}, index=index)
        if "losses" in vars(self):
            lost = self.losses.summary().drop(columns="rhat")
            columns = {f"{name}{end}": f"{name}_lost{end}" for name in COLUMNS for end in ("", "_error")}
            table = table.assign(**{column: lost[name].to_numpy() for name, column in columns.items()})
        return table

    def _described(self) -> tuple[str, dict[str, str]]:
        def sentence(head: int) -> str:
            name = self.names[head]
            name = f"{name[1]!r} of layer {name[0]}" if isinstance(name, tuple) else repr(name)
            return f"{name}, score {with_error(self.scores[head], self.sd[head])} (posterior sd)"

        most, least = int(np.argmax(self.scores)), int(np.argmax(self.probability_least))
        note = self.note or self._note_of_prior
        if np.isnan(self.error).all():
            note = "draws do not vary, or are too few, so the scores have no error: warm up and draw longer"
        return f"Heads: posterior of {len(self.names)} scores, weights in U relative to the greatest of each draw", {
            "most": f"{sentence(most)}, the greatest of all with probability {self.probability_greatest[most]:.2f}",
            "least": f"{sentence(least)}, the least of all with probability {self.probability_least[least]:.2f}",
        } | ({"note": note} if note else {})


@draws_first
@with_own_settings
def heads(draws: Draws, *, of: Checked = "heads", model: NetworkPosterior | None = None) -> Heads:
    """Posterior of the score of each head: mean, spread, interval, and probability of the least score.

    The score is that of `theory.head_scores`: the sum of |U^{pi pi'}| over pairs in which at least one path uses the
    head, divided by the largest score of the draw (THEORY section 5).

    Args:
        draws: result of `bayesattn.sample`, a `bayesattn.runs.Run`, or a run's folder.
        of: "heads"; "paths", each by itself; or groups, a dictionary of lists of heads, such as
            {"layer 1": [1], "both": [(1, "a"), (2, "b")]}: a number stands for all heads of a layer. A group's score
            sums over pairs in which a path uses a head of the group, relative to the largest group's score.
        model: model of the draws, if they do not record it.

    Raises:
        ValueError: draws that are not of a network, are of another model than `model`, or have no order_parameter; heads
            that do not exist.
        RunError: a folder that is not a readable run.
    """
    model, tree = opened_with_network(draws, model)
    units = units_of(model, of)
    u = order_parameters_in(tree, model)
    scores = units.scores(u, model.architecture)
    least = scores == scores.min(-1, keepdims=True)
    moments = moments_and_interval(scores, u)
    return Heads(
        model=model,
        units=units,
        scores=moments["mean"],
        sd=moments["sd"],
        error=moments["error"],
        lower=moments["lower"],
        upper=moments["upper"],
        probability_least=(least / least.sum(-1, keepdims=True)).mean((0, 1)),
        drawn=scores,
        _draws=draws,
        _of=of,
    )
