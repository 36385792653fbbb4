"""Theory of the models of runs, the most expensive part of a report, which is stored with the runs for later reports."""

from collections.abc import Sequence
from typing import TypeGuard

import jax
import numpy as np
import xarray as xr

from bayesattn._util.plain_values import PlainDict
from bayesattn._util.random import digest
from bayesattn.checks.theory_predictions import Predicted, predicted
from bayesattn.errors import ContradictoryLabels
from bayesattn.jobs import tables
from bayesattn.jobs.runs import Run
from bayesattn.jobs.tables import Row
from bayesattn.models.arviz import has_order_parameter
from bayesattn.models.model import Model
from bayesattn.models.network_posterior import is_network
from bayesattn.models.posterior import Posterior
from bayesattn.questions.heads import predicted_losses
from bayesattn.questions.heads.path_combination import combining_width
from bayesattn.theory.bartlett import layer_shapes
from bayesattn.theory.potential import too_many
from bayesattn.theory.saddle_point import NotConverged

MATRICES = ("saddle", "corrected", "relative_variance")
"""Fields of `Predicted` that are stored with a run, besides mean predictors."""
THEORY_VERSION = 4
"""Increase this when theories, losses or sentences that are stored with runs change beyond rounding: they are renewed."""


def has_theory(model: Posterior) -> TypeGuard[Model]:
    """Whether the theory to first order in 1/N, with which draws are compared, is available for a model."""
    return is_network(model) and model.has_theory and not too_many(layer_shapes(model.architecture, full=True))


def is_compared(run: Run, draws: xr.DataTree) -> bool:
    """Whether the draws of a run hold U, and the theory with which they are compared is available."""
    return has_theory(run.model) and has_order_parameter(draws)


def posterior_of(model: Model) -> str:
    """Digest of posterior and test inputs, which determine the theory of a model."""
    return digest(model.fingerprint, *([] if model.test_path_inputs is None else [model.test_path_inputs]))


def theory_of(run: Run, posterior: str) -> Predicted:
    """Theory of a run's model, the most expensive part of a report, which is stored with the run for later reports."""

    def compute() -> PlainDict:
        of = predicted(run.model)
        means = of.mean_predictors and {name: mean.tolist() for name, mean in of.mean_predictors.items()}
        return {name: getattr(of, name).tolist() for name in MATRICES} | {"mean_predictors": means}

    def restore(stored: PlainDict) -> Predicted:
        means = stored["mean_predictors"]
        return Predicted(
            **{name: np.array(stored[name]) for name in MATRICES},
            mean_predictors=means and {name: np.array(mean) for name, mean in means.items()},
        )

    return run.remembered("theory", compute, restore, _cache_key(posterior))


def combining_widths(runs: Sequence[Run]) -> list[str]:
    """For each run a sentence on the width at which paths stop combining, stored with it; empty without such a theory.

    Runs that differ only in width share it.
    """
    known: dict[str, str] = {}
    return [_combining_width(run, known) for run in runs]


def _combining_width(run: Run, known: dict[str, str]) -> str:
    model: Posterior = run.model
    if not has_theory(model) or model.architecture.paths < 2:
        return ""
    of_all_widths = model.replace(width=1).fingerprint

    def compute() -> str:
        try:
            return combining_width(model).statement
        except NotConverged as error:
            return f"The width above which paths no longer combine is not known: {error}."

    if of_all_widths not in known:
        known[of_all_widths] = run.remembered("combining_paths", compute, str, _cache_key(of_all_widths))
    return known[of_all_widths]


def losses_without_each_head(run: Run, draws: xr.DataTree) -> list[Row]:
    """What is lost without each head by the theory, stored with the run; no rows without a theory."""
    model: Posterior = run.model
    if not (tables.has_heads_table(model, draws) and has_theory(model)):
        return []

    def compute() -> list[Row]:
        try:
            return tables.losses_table(predicted_losses(model))
        except (NotConverged, ContradictoryLabels):  # The latter if labels contradict each other without a head.
            return []

    return run.remembered("losses", compute, list, _cache_key(posterior_of(model)))


def _cache_key(posterior: str) -> PlainDict:
    """Conditions under which a result of the theory that is stored with a run stays valid."""
    return {"of": posterior, "by": f"{THEORY_VERSION}, jax {jax.__version__}"}
