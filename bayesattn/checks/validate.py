"""Comparison of the theory of a model with draws of its posterior."""

import dataclasses

import numpy as np
import xarray as xr

from bayesattn._util.checks import positive, probability
from bayesattn._util.settings import with_own_settings
from bayesattn.checks.accuracy import accuracy_of
from bayesattn.checks.alignment import alignment_over_draws
from bayesattn.checks.comparison import along_directions, joint_p_of
from bayesattn.checks.diagnostics import diagnose
from bayesattn.checks.mixing import from_below_diagonal, moments, on_and_below_diagonal
from bayesattn.checks.theory_predictions import Predicted, outputs_of, predicted, readout_batches
from bayesattn.checks.thresholds import LEVEL, MARGIN
from bayesattn.checks.validation import MIXING, Validation
from bayesattn.models import Model
from bayesattn.models.draws import ORDER_PARAMETER_AXES, Draws, opened_with_fixed_attention, order_parameters_in
from bayesattn.models.earlier import draws_first
from bayesattn.theory.predictor import have_accuracy


@draws_first
@with_own_settings
def validate(
    draws: Draws,
    *,
    model: Model | None = None,
    margin: float = MARGIN,
    level: float = LEVEL,
    prediction: Predicted | None = None,
) -> Validation:
    """Compare the theory with draws of the posterior of a network with fixed attention and Gaussian likelihood.

    Args:
        draws: result of `bayesattn.sample`, a `bayesattn.runs.Run`, or a run's folder.
        model: model of the draws, if they do not record it, or to check them against it.
        margin: relative difference of U and of the mean predictor within which the theory is said to hold.
        level: probability of rejecting a correct theory, divided among entries of U, their joint test and the mean
            predictor; 1 - level is the confidence of the stated bound.
        prediction: result of `predicted` for the model, if already computed.

    Raises:
        ValueError: draws without order parameters, or of another model than `model` (the message states the difference); a
            model without theory; joined trees that mix models, have chains of different lengths, or contain the same draws
            twice; a margin not above 0, a level not between 0 and 1.
        NotConverged: the theory's solver failed.
    """
    margin, level = positive("margin", margin), probability("level", level)
    model, tree = opened_with_fixed_attention(draws, model)
    paths = model.architecture.rows
    sampled = xr.DataArray(order_parameters_in(tree, model), dims=ORDER_PARAMETER_AXES)
    saddle, corrected, relative_variance, mean_predictors = prediction or predicted(model)
    accuracy = directions = by_batch = None
    if mean_predictors is not None:
        by_batch = readout_batches(model, sampled.values)
        batches = outputs_of(model, by_batch)
        if np.any(mean_predictors["corrected"]):  # else labels or test inputs are 0: nothing to be relative to
            directions = along_directions(mean_predictors, batches, float(np.max(relative_variance)), level)
        if model.test_labels is not None and have_accuracy(model.test_labels):
            accuracy = accuracy_of(model, mean_predictors, batches)
    direction = corrected - saddle
    direction /= np.linalg.norm(direction) * np.linalg.norm(saddle)
    along = (sampled * direction).sum(("path", "other_path"))
    entries = on_and_below_diagonal(sampled)
    of_entries, of_direction = moments(entries, tails=True), moments(along)

    def matrix(name: str) -> np.ndarray:
        return from_below_diagonal(of_entries[name], paths)

    validation = Validation(
        model=model,
        relative_deviation=float(of_direction["mean"] - np.sum(direction * saddle)),
        relative_remaining=float(of_direction["mean"] - np.sum(direction * corrected)),
        relative_error=float(of_direction["error"]),
        order_parameter=matrix("mean"),
        error=matrix("error"),
        saddle=saddle,
        corrected=corrected,
        relative_variance=np.broadcast_to(relative_variance, corrected.shape),
        **{name: matrix(name) for name in MIXING},
        readouts=by_batch,
        diagnostics=diagnose(tree),
        accuracy=accuracy,
        alignment=alignment_over_draws(model, saddle, sampled.values),
        directions=directions,
        joint_p=np.nan,
        margin=margin,
        level=level,
    )
    by_entry = entries.stack(all=("chain", "draw")).transpose("all", "entry").values
    return dataclasses.replace(validation, joint_p=joint_p_of(validation.entries, by_entry))
