"""Results as rows of text, for screen and page: theory against draws, head scores and correlations of paths."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import xarray as xr

from bayesattn._util.text import UNKNOWN, cell, cells, rounded, with_error
from bayesattn.checks.comparison import Compared
from bayesattn.checks.mixing import COLUMNS, moments
from bayesattn.checks.thresholds import CANNOT_TELL, DOES_NOT_HOLD, DRAWS_PER_FREEDOM, HOLDS, doubts_about
from bayesattn.checks.validation import Validation
from bayesattn.models import LatentModel
from bayesattn.models.arviz import has_order_parameter
from bayesattn.models.draws import fewest_round_trips
from bayesattn.models.model import has_fixed_attention
from bayesattn.models.network_posterior import NetworkPosterior, is_network
from bayesattn.models.posterior import Posterior
from bayesattn.questions import exchangeable
from bayesattn.questions.heads import Heads, Losses, PathCorrelations, heads
from bayesattn.questions.influence import influence
from bayesattn.theory.potential import MOST_COORDINATES
from bayesattn.theory.predictor import are_classes

MOST_PATHS_WITH_ALL_ENTRIES = 4
"""Largest number of paths for which all entries of U are in the table of a page."""
MOST_PATHS = 20
"""Largest number of paths shown, those with the largest diagonal entries of U."""
SHOWN_CORRELATIONS = 6
"""Number of pairs of paths in the table of correlations, the strongest ones."""
SHOWN_EXAMPLES, MOST_EXAMPLES = 5, 1000
"""Number of training examples in the table of influences, and most examples of a run that has one."""
ANSWERS = {HOLDS: True, DOES_NOT_HOLD: False, CANNOT_TELL: None}
Row = dict[str, str]


class Verdict(NamedTuple):
    """Sentence, whether the theory holds (None: cannot tell), and rows of the table."""

    sentence: str
    holds: bool | None
    rows: list[Row]


def entry_row(entry: Mapping[Any, Any]) -> Row:
    """Entry of U by theory and by draws, from a row of `Validation.summary`."""
    error = entry["error"]
    return {
        "saddle": rounded(entry["saddle"], error),
        "1/N theory": rounded(entry["corrected"], error),
        "draws": with_error(entry["draws"], error),
        "z": cell(entry["z"], "+.1f"),
    } | cells(entry, COLUMNS)


def theory_table(validation: Validation) -> Verdict:
    """Verdict and table of U, theory against draws."""
    names, rows = validation.model.row_names, []
    pairs = zip(*np.tril_indices(len(names)), strict=True)
    for (row, column), entry in zip(pairs, validation.summary().to_dict("records"), strict=True):
        agrees = _agrees(entry["agrees"], entry["error"])
        if len(names) <= MOST_PATHS_WITH_ALL_ENTRIES or row == column or agrees == "no":
            name = names[row] if row == column else f"{names[row]}, {names[column]}"
            pareto_k = cell(entry["pareto_k"], ".2f")
            rows.append({"entry of U": name} | entry_row(entry) | {"Pareto k": pareto_k, "agrees": agrees})
    sentence = f"Does the theory hold at N = {validation.width}? {validation.statement()}."
    return Verdict(sentence, ANSWERS[validation.verdict], rows)


def draws_table(model: Posterior, draws: xr.DataTree, level: float) -> Verdict:
    """Verdict and table of draws of a model for which the theory to first order in 1/N is not available."""
    if isinstance(model, LatentModel):
        return latent_table(model, draws, level)
    assert is_network(model)
    return network_table(model, draws)


def network_table(model: NetworkPosterior, draws: xr.DataTree) -> Verdict:
    """Verdict and table of the largest diagonal entries of U, without the theory to first order in 1/N."""
    if not has_order_parameter(draws):
        return Verdict("The draws were not compared with the theory: the run keeps no draws of U.", None, [])
    if not has_fixed_attention(model):
        reason = "the theory needs fixed attention; this model samples queries and keys"
    elif model.has_priors:
        reason = f"the theory is that of known numbers, and {' and '.join(model.hyperpriors.names)} have priors"
    elif model.likelihood.conjugate:
        coordinates = f"at most {MOST_COORDINATES:,} coordinates of the order parameters"
        reason = f"its expansion to first order in 1/N is for {coordinates}"
    else:
        reason = "it is for the Gaussian likelihood, and this model has another"
    sentence = f"The draws were not compared with the theory: {reason}."
    sampled = draws["posterior"].to_dataset()["order_parameter"].values
    of = moments(xr.DataArray(np.einsum("cdpp->cdp", sampled), dims=("chain", "draw", "path")))
    greatest = np.argsort(-of["mean"], kind="stable")[:MOST_PATHS]
    rows = [
        {"entry of U": model.row_names[path], "draws": with_error(float(of["mean"][path]), float(of["error"][path]))}
        for path in greatest
    ]
    return Verdict(sentence, None, rows)


def label_text(labels: np.ndarray, example: int) -> str:
    """Label of an example as text; of several outputs its class, if labels are classes."""
    label = np.atleast_1d(labels[example])
    if len(label) > 1 and are_classes(labels):
        return f"class {int(label.argmax())}"
    return ", ".join(f"{each:.3g}" for each in label)


def influence_table(model: Posterior, draws: xr.DataTree) -> list[Row]:
    """Training examples of greatest influence on the predictions; empty where a run does not hold what this takes."""
    if not (has_fixed_attention(model) and has_order_parameter(draws)) or model.compressed is not None:
        return []
    if model.test_path_inputs is None or model.examples > MOST_EXAMPLES or not model.likelihood.conjugate:
        return []
    try:
        strongest = influence(draws, "outputs", model=model).influence.strongest().values
    except FloatingPointError:  # As of T so small that K + T I is singular.
        return []
    if not strongest.any():
        return []
    labels = np.asarray(model.labels)
    return [
        {
            "example": str(example),
            "label": label_text(labels, example),
            "influence": f"{strongest[example]:.3g}",
            "of the mean over examples": f"{strongest[example] / strongest.mean():.1f} times",
        }
        for example in np.argsort(-strongest, kind="stable")[:SHOWN_EXAMPLES]
    ]


def latent_table(model: LatentModel, draws: xr.DataTree, level: float) -> Verdict:
    """Verdict and table of z, closed form against draws."""
    if "latent" not in draws["posterior"]:
        return Verdict("The draws were not compared with the exact posterior: the run keeps no draws of z.", None, [])
    exact = exchangeable.latent_posterior(model.features, model.values, model.noise, model.prior)
    mean, deviation = np.asarray(exact.mean), np.sqrt(np.diag(exact.covariance))
    sampled = draws["posterior"].to_dataset()["latent"]
    drawn = moments(sampled)
    of = {name: values.ravel() for name, values in drawn.items()}
    compared = Compared(
        names=[f"{value + 1}, {feature + 1}" for value, feature in np.ndindex(*mean.shape)],
        difference=of["mean"] - mean.ravel(),
        error=of["error"],
        freedom=of["ess"] / DRAWS_PER_FREEDOM,
        allowance=np.zeros(mean.size),
        size=np.broadcast_to(deviation, mean.shape).ravel(),
        level=level,
        confidence_level=level,
    )
    rows = [
        {
            "entry of z": name,
            "exact mean": f"{exact_mean:.4g}",
            "exact deviation": f"{size:.4g}",
            "draws": with_error(drawn_mean, error),
            "agrees": _agrees(agrees, error),
        }
        for name, exact_mean, size, drawn_mean, error, agrees in zip(
            compared.names, mean.ravel(), compared.size, of["mean"], of["error"], compared.agrees, strict=True
        )
    ]
    if doubts := doubts_about("z", sampled.sizes["chain"], drawn["rhat"], drawn["ess"], fewest_round_trips(draws)):
        sentence = f"The draws cannot tell whether they agree with the exact posterior: {'; '.join(doubts)}."
        return Verdict(sentence, None, rows)
    if not compared.agrees.all():
        return Verdict("The draws do not agree with the exact posterior.", False, rows)
    bound = float(np.max(compared.bound))
    sentence = f"The draws agree with the exact posterior to within {bound:.2g} of its standard deviations."
    return Verdict(sentence, True, rows)


def _agrees(agrees: bool, error: float) -> str:
    """Text "yes" or "no", or the text for unknown without a Monte Carlo error."""
    return ("yes" if agrees else "no") if np.isfinite(error) else UNKNOWN


def has_heads_table(model: Posterior, draws: xr.DataTree) -> TypeGuard[NetworkPosterior]:
    """Whether draws hold U, of a network of more than one head."""
    return is_network(model) and has_order_parameter(draws) and sum(model.architecture.heads) > 1


def heads_table(model: Posterior, draws: xr.DataTree, lost: Sequence[Row] = ()) -> list[Row]:
    """Posterior of each head's score, and what is lost without it, if known; no rows without draws of U, or of one head."""
    if not has_heads_table(model, draws):
        return []
    posterior = heads(draws, model=model)
    return [
        {
            "head": f"{name} (layer {layer})",
            "score": with_error(posterior.scores[head], posterior.error[head]),
            **_spread(posterior, head),
            "P(least)": f"{posterior.probability_least[head]:.2f}",
            **(lost[head] if lost else {}),
        }
        for head, (layer, name) in enumerate(posterior.names)
    ]


def losses_table(losses: Losses) -> list[Row]:
    """Losses without each head; those on test examples only if there are test labels, or labels of classes."""
    rows = []
    has_accuracy, has_log_score = np.isfinite(losses.accuracy).any(), np.isfinite(losses.log_score).any()
    for loss in losses.summary().to_dict("records"):
        evidence, error = loss["evidence"], loss["evidence_error"]
        row = {"evidence lost (nats)": with_error(evidence, error) if np.isfinite(error) else cell(evidence, ".1f")}
        if has_accuracy:
            row["accuracy lost (%)"] = with_error(100 * loss["accuracy"], 100 * loss["accuracy_error"])
        if has_log_score:
            row["log score lost (nats)"] = with_error(loss["log_score"], loss["log_score_error"])
        rows.append(row)
    return rows


def correlations_table(model: Posterior, draws: xr.DataTree) -> list[Row]:
    """Strongest correlations of paths in U; no rows without draws of U, or for a single path."""
    if not is_network(model) or not has_order_parameter(draws) or model.architecture.paths < 2:
        return []
    posterior = heads(draws, model=model).correlations()
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
    interval = f"{posterior.lower[entry]:.3g} to {posterior.upper[entry]:.3g}"
    return {"posterior sd": cell(posterior.sd[entry], ".2g"), "94 % interval": interval}
