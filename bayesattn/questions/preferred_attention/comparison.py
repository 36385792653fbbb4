"""Comparison of several attentions by their evidence, at several widths."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bayesattn._util.checks import Checked, entries, names, positive_integer, shown
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described, with_error
from bayesattn.errors import BayesattnError
from bayesattn.models.attention_model import AttentionModel
from bayesattn.questions.preferred_attention.evidence import checked_layers
from bayesattn.questions.preferred_attention.most_probable import log_prior_of
from bayesattn.theory.evidence import MOST_COMBINED_ERRORS, evidence

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class AttentionComparison(Described):
    """Log evidence of several attentions at one or more widths.

    Args:
        table: a row for each candidate at each width N_1. Columns: log_evidence, log p(Y | candidate), with error, method
            and reliable, as in `bayesattn.theory.Evidence`; difference, the log evidence minus the largest one at this
            width, and difference_error, the combined standard error, 0 for the best candidate; log_prior, log p(Q, K), a
            density, NaN for bilinear heads, for queries and keys of another width than the model's key_width, and for
            prior variances of 0.
    """

    table: "pd.DataFrame"

    @property
    def widths(self) -> list[int]:
        """The widths compared."""
        return self.table["width"].unique().tolist()

    def best(self, width: int | None = None) -> str:
        """Candidate with the largest log evidence at a width, by default the only one; ValueError for another width."""
        if width is None and len(self.widths) == 1:
            width = self.widths[0]
        if width not in self.widths:
            raise BayesattnError(f"width must be one of {', '.join(map(str, self.widths))}, got {shown(width)}")
        return self._ranked(width)[0]["candidate"]

    def summary(self) -> str:
        """A line for each width: the candidate with the largest log evidence, and how far it is above the next."""
        return "\n".join(f"N = {width}: {self._said(width)}" for width in self.widths)

    def _ranked(self, width: int) -> list[dict[Any, Any]]:
        """Rows of a width, the largest log evidence first."""
        rows = [row for row in self.table.to_dict("records") if row["width"] == width]
        return sorted(rows, key=lambda row: -row["log_evidence"])

    def _said(self, width: int) -> str:
        ranked = self._ranked(width)
        first, *others = ranked
        text = f"{first['candidate']!r}, log p(Y) = {with_error(first['log_evidence'], first['error'])}"
        if others:
            lead, error = -others[0]["difference"], others[0]["difference_error"]
            text += f", {with_error(lead, error)} above {others[0]['candidate']!r}"
            text += "" if lead > MOST_COMBINED_ERRORS * error else ", a difference within the errors"
        unreliable = ", ".join(repr(row["candidate"]) for row in ranked if not row["reliable"])
        return text + (f"; NOT reliable: {unreliable}" if unreliable else "")

    def _described(self) -> tuple[str, dict[str, str]]:
        count = self.table["candidate"].nunique()
        return f"AttentionComparison of {count} candidates", {f"N = {each}": self._said(each) for each in self.widths}


@with_own_settings
def compare_attention(
    model: AttentionModel, candidates: Checked, widths: Checked = None, *, seed: int = 0
) -> AttentionComparison:
    """Log evidence of each of several attentions, by `bayesattn.theory.evidence`, at each of several widths.

    Differences are log posterior odds of candidates that are equally probable a priori. To include the prior of queries
    and keys, add `log_prior`. This is a density, so it compares only candidates of the same shapes.

    Args:
        model: the posterior, with Gaussian labels.
        candidates: queries and keys, or bilinear heads, as for `conditional_evidence`, by name.
        widths: widths N, each of which replaces all widths of the model; by default the model's own widths.
        seed: seed of the draws.

    Raises:
        ValueError: as for `conditional_evidence`; no candidates, a width below 1.
        NotConverged: K + T I is singular in float64.
    """
    import pandas as pd

    if not isinstance(candidates, Mapping) or not candidates:
        raise BayesattnError(f"candidates must be a dict of queries and keys by name, got {shown(candidates)}")
    checked = {
        name: checked_layers(model, heads)
        for name, heads in zip(names("candidates", list(candidates)), candidates.values(), strict=True)
    }
    networks = [model.architecture]
    if widths is not None:
        listed = entries("widths", widths, "a list of widths")
        if not listed:
            raise BayesattnError("widths must hold at least one width, got none")
        checked_widths = (positive_integer(f"widths[{place}]", width) for place, width in enumerate(listed))
        networks = [networks[0].with_width(width) for width in dict.fromkeys(checked_widths)]
    given = {name: model.given(layers) for name, layers in checked.items()}
    log_priors = {name: log_prior_of(model, layers) for name, layers in checked.items()}
    rows = []
    for network in networks:
        found = {name: evidence(each.replace(architecture=network), seed=seed) for name, each in given.items()}
        best = max(found, key=lambda name: found[name].log_evidence)
        rows += [
            {
                "candidate": name,
                "width": network.widths[0],
                **own._asdict(),
                "difference": own.log_evidence - found[best].log_evidence,
                "difference_error": 0.0 if name == best else float(np.hypot(own.error, found[best].error)),
                "log_prior": log_priors[name],
            }
            for name, own in found.items()
        ]
    return AttentionComparison(pd.DataFrame(rows))
