"""Verdict and tables of one run: theory against draws, head scores and correlations of paths."""

from functools import singledispatch
from typing import TypeGuard

import numpy as np
import xarray as xr

from bayesattn._util.text import UNKNOWN, cell, rounded, with_error
from bayesattn.checks.mixing import moments
from bayesattn.checks.validation import Validation
from bayesattn.checks.verdict import CANNOT_TELL, DOES_NOT_HOLD, HOLDS, latent_verdict
from bayesattn.jobs.plots.run import MOST_PATHS_DRAWN
from bayesattn.models import LatentModel
from bayesattn.models.model import has_fixed_attention
from bayesattn.models.network_posterior import NetworkPosterior, is_network
from bayesattn.models.posterior import Posterior
from bayesattn.questions import exchangeable
from bayesattn.questions.heads import Heads, Losses, PathCorrelations, heads, path_correlations
from bayesattn.theory.potential import MOST_COORDINATES

MOST_PATHS_WITH_ALL_ENTRIES = 4
"""Largest number of paths for which all entries of U are in the table."""
SHOWN_CORRELATIONS = 6
"""Number of pairs of paths in the table of correlations, the strongest ones."""
ANSWERS = {HOLDS: True, DOES_NOT_HOLD: False, CANNOT_TELL: None}
Row = dict[str, str]
Verdict = tuple[str, bool | None, list[Row]]
"""Sentence, whether the theory holds (None: cannot tell), and rows of the table."""


def theory_table(validation: Validation) -> Verdict:
    """Verdict and table of U, theory against draws."""
    names, agrees_with_theory = validation.model.row_names, validation.agrees
    rows = []
    for row, column in zip(*np.tril_indices(len(names)), strict=True):
        error = float(validation.error[row, column])
        agrees = _agrees(bool(agrees_with_theory[row, column]), error)
        if len(names) > MOST_PATHS_WITH_ALL_ENTRIES and row != column and agrees != "no":
            continue
        rows.append(
            {
                "entry of U": names[row] if row == column else f"{names[row]}, {names[column]}",
                "saddle point": rounded(float(validation.saddle[row, column]), error),
                "first order in 1/N": rounded(float(validation.corrected[row, column]), error),
                "draws": with_error(float(validation.order_parameter[row, column]), error),
                "R-hat": cell(validation.rhat[row, column], ".3f"),
                "ESS": cell(validation.ess[row, column], ".0f"),
                "tail ESS": cell(validation.tail_ess[row, column], ".0f"),
                "Pareto k": cell(validation.pareto_k[row, column], ".2f"),
                "agrees": agrees,
            }
        )
    sentence = f"Does the theory hold at N = {validation.width}? {validation.statement()}."
    return sentence, ANSWERS[validation.verdict], rows


@singledispatch
def draws_table(model: object, draws: xr.DataTree, level: float) -> Verdict:
    """Verdict and table of draws of a model for which the theory to first order in 1/N is not available."""
    raise TypeError(f"a report has no table for a {type(model).__name__}")


@draws_table.register
def network_table(model: NetworkPosterior, draws: xr.DataTree, level: float) -> Verdict:
    """Verdict and table of the largest diagonal entries of U, without the theory to first order in 1/N."""
    reason = (
        "the theory needs fixed attention; this model samples queries and keys"
        if not has_fixed_attention(model)
        else f"its expansion to first order in 1/N is for at most {MOST_COORDINATES:,} coordinates of the order parameters"
        if model.likelihood.conjugate
        else "it is for the Gaussian likelihood, and this model has another"
    )
    sentence = f"The draws were not compared with the theory: {reason}."
    if "order_parameter" not in draws["posterior"]:
        return sentence, None, []
    own = xr.DataArray(
        np.einsum("cdpp->cdp", draws["posterior"].to_dataset()["order_parameter"].values),
        dims=("chain", "draw", "path"),
    )
    of = moments(own)
    greatest = np.argsort(-of["mean"], kind="stable")[:MOST_PATHS_DRAWN]
    return (
        sentence,
        None,
        [
            {
                "entry of U": model.row_names[path],
                "draws": with_error(float(of["mean"][path]), float(of["error"][path])),
            }
            for path in greatest
        ],
    )


@draws_table.register
def latent_table(model: LatentModel, draws: xr.DataTree, level: float) -> Verdict:
    """Verdict and table of z, closed form against draws."""
    exact = exchangeable.latent_posterior(model.features, model.values, model.noise, model.prior)
    result = latent_verdict(np.asarray(exact.mean), np.asarray(exact.covariance), draws, level)
    rows = []
    for value, feature in np.ndindex(*result.mean.shape):
        error = float(result.error[value, feature])
        rows.append(
            {
                "entry of z": f"{value + 1}, {feature + 1}",
                "exact mean": f"{result.mean[value, feature]:.4g}",
                "exact deviation": f"{result.deviation[feature]:.4g}",
                "draws": with_error(float(result.draws[value, feature]), error),
                "agrees": _agrees(bool(result.agrees[value, feature]), error),
            }
        )
    sentences = {
        CANNOT_TELL: f"The draws cannot tell whether they agree with the exact posterior: {'; '.join(result.doubts)}.",
        DOES_NOT_HOLD: "The draws do not agree with the exact posterior.",
        HOLDS: f"The draws agree with the exact posterior to within {result.bound:.2g} of its standard deviations.",
    }
    return sentences[result.verdict], ANSWERS[result.verdict], rows


def _agrees(agrees: bool, error: float) -> str:
    """Text "yes" or "no", or the text for unknown without a Monte Carlo error."""
    return ("yes" if agrees else "no") if np.isfinite(error) else UNKNOWN


def has_heads_table(model: Posterior, draws: xr.DataTree) -> TypeGuard[NetworkPosterior]:
    """Whether draws hold U, of a network of more than one head."""
    return is_network(model) and "order_parameter" in draws["posterior"] and sum(model.architecture.heads) > 1


def heads_table(model: Posterior, draws: xr.DataTree, losses: Losses | None = None) -> list[Row]:
    """Posterior of each head's score, and what is lost without it, if known; no rows without draws of U, or of one head."""
    if not has_heads_table(model, draws):
        return []
    posterior = heads(draws, model)
    return [
        {
            "head": f"{name} (layer {layer})",
            "score": with_error(posterior.scores[head], posterior.error[head]),
            **_spread(posterior, head),
            "P(least)": f"{posterior.probability_least[head]:.2f}",
            **({} if losses is None else _lost(losses, head)),
        }
        for head, (layer, name) in enumerate(posterior.names)
    ]


def _lost(losses: Losses, head: int) -> Row:
    """Losses without a head by the theory; those on test examples only if there are test labels, or labels of classes."""
    row = {"evidence lost (nats)": f"{losses.evidence[head]:.1f}"}
    if np.isfinite(losses.accuracy[head]):
        row["accuracy lost (%)"] = with_error(100 * losses.accuracy[head], 100 * losses.accuracy_error[head])
    if np.isfinite(losses.log_score[head]):
        row["log score lost (nats)"] = with_error(losses.log_score[head], losses.log_score_error[head])
    return row


def correlations_table(model: Posterior, draws: xr.DataTree) -> list[Row]:
    """Strongest correlations of paths in U; no rows without draws of U, or for a single path."""
    if not is_network(model) or "order_parameter" not in draws["posterior"] or model.architecture.paths < 2:
        return []
    posterior = path_correlations(draws, model)
    rows, columns = (each[:SHOWN_CORRELATIONS].tolist() for each in posterior.strongest)
    return [
        {
            "paths": f"{posterior.names[row]}, {posterior.names[column]}",
            "correlation": with_error(float(posterior.mean[row, column]), float(posterior.error[row, column])),
            **_spread(posterior, (row, column)),
        }
        for row, column in zip(rows, columns, strict=True)
    ]


def _spread(posterior: Heads | PathCorrelations, entry: int | tuple[int, int]) -> Row:
    """Posterior standard deviation and interval of an entry."""
    return {
        "posterior sd": cell(posterior.sd[entry], ".2g"),
        "94 % interval": f"{posterior.lower[entry]:.3g} to {posterior.upper[entry]:.3g}",
    }
