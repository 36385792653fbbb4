"""Draws against theory, from `bayesattn.validate`, turned into claims: U, mean predictor, accuracy, alignment."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from bayesattn import theory
from bayesattn.checks.accuracy import Accuracy
from bayesattn.checks.alignment import gp_kernel
from bayesattn.checks.comparison import Compared, level_of_each
from bayesattn.checks.theory_predictions import gp_mean, mean_predictor
from bayesattn.checks.thresholds import DRAWS_PER_FREEDOM
from bayesattn.checks.validation import Validation
from reproductions.claims import LEVEL, Claim, Curve, Mean, above_zero

TOLD_APART = 6.0
"""Monte Carlo errors, beyond what theory leaves out, by which a wrong law must be off to be planted."""
COMPONENTS, LEADING = 30, 10
"""Principal components of the kernel that are shown, and those whose overlap with the labels is summed."""
STEP = 1e-4
"""Relative change of an entry of U by which a derivative is taken."""
FIRST_ORDER = "theory to first order in 1/N"
WIDTH, SHARE, ENTRY = "width N", "share right", "entry of U"
COMPONENT, OVERLAP = "principal components, largest first", "overlap with the labels"
"""Labels of axes."""
SADDLE, GP = "the saddle point, without the correction of order 1/N", "the GP limit"


def of_order_parameter(result: Validation) -> list[Claim]:
    """U: its worst entry on the diagonal and off it, and all of it along the direction of the correction of order 1/N."""
    rows, columns = np.tril_indices(len(result.corrected))
    claims = [along_correction(result)]
    for place, chosen in (("on the diagonal", rows == columns), ("off the diagonal", rows != columns)):
        if chosen.any():
            claims.append(_worst_entry(result, np.flatnonzero(chosen), place))
    return claims


def _worst_entry(result: Validation, chosen: np.ndarray, place: str) -> Claim:
    """The entry furthest from theory; the wrong law is off by the margin within which theory is said to hold."""
    entries = result.entries
    worst = chosen[np.argmax(entries.excess[chosen])]
    corrected = result.corrected[np.tril_indices(len(result.corrected))][worst]
    shift = np.copysign(result.margin * entries.size[worst], entries.difference[worst])
    return Claim(
        f"N = {result.width}: {entries.names[worst]}, of {len(chosen)} entries {place} the one furthest from theory",
        FIRST_ORDER,
        float(corrected),
        Mean(float(corrected + entries.difference[worst]), float(entries.error[worst]), float(entries.freedom[worst])),
        entries=len(chosen),
        planted=float(corrected + shift),
        wrong=f"off by the margin of {100 * result.margin:g} % of (U_ii U_jj)^(1/2), on the draws' side",
        allowance=float(entries.allowance[worst]),
    )


def along_correction(result: Validation) -> Claim:
    """U less the saddle point, in units of its size, along what finite width makes one expect, of order 1/N.

    The wrong law is the saddle point, or, where the two are too close, the GP limit.
    """
    size = np.linalg.norm(result.saddle)
    direction = result.expected / np.linalg.norm(result.expected)
    allowance = float(np.sum(np.abs(direction) * result.allowance) / size)
    expected = float(np.linalg.norm(result.expected) / size)
    planted, wrong = 0.0, SADDLE
    if expected < allowance + TOLD_APART * result.relative_error:
        gp = np.asarray(theory.gp_order_parameter(result.model.architecture))
        planted, wrong = float(np.sum(direction * (gp - result.saddle)) / size), GP
    return Claim(
        f"N = {result.width}: deviation of U from the saddle point along the expected one, over the size of U",
        FIRST_ORDER,
        expected,
        Mean(result.relative_deviation, result.relative_error, float(np.min(result.ess)) / DRAWS_PER_FREEDOM),
        planted=planted,
        wrong=wrong,
        allowance=allowance,
    )


def at_the_saddle_point(result: Validation) -> Claim:
    """The literal reading: draws and saddle point agree at this width, up to Monte Carlo error."""
    place = int(np.argmax(np.diag(result.saddle)))
    return Claim(
        f"N = {result.width}: U of {result.model.path_names[place]} at the saddle point, within Monte Carlo error of draws",
        "minimum of the action",
        float(result.saddle[place, place]),
        Mean(
            float(result.order_parameter[place, place]),
            float(result.error[place, place]),
            float(result.ess[place, place]) / DRAWS_PER_FREEDOM,
        ),
        literal=True,
    )


def disagreements(result: Validation) -> Claim:
    """How many of all quantities disagree with theory, their joint test included, at a level that they share."""
    directions = result.directions
    if directions is not None:
        directions = replace(directions, level=level_of_each(LEVEL, with_predictor=True))
    strict = replace(result, level=LEVEL, directions=directions)
    gp = np.asarray(theory.gp_order_parameter(result.model.architecture))
    in_its_place = replace(strict, corrected=gp, saddle=gp - result.expected)
    return Claim(
        f"N = {result.width}: entries of U, their joint test and directions of the predictor that disagree"
        f" (verdict of `bayesattn validate`: {result.verdict}; joint p = {result.joint_p:.2g})",
        FIRST_ORDER,
        0.0,
        float(len(strict.failures())),
        planted=float(len(in_its_place.failures())),
        wrong="the GP limit's U in the place of theory's: how many disagree",
    )


def of_predictor(result: Validation) -> list[Claim]:
    """Mean predictor on the test inputs: its worst direction, its finite-width effect, and its accuracy.

    The wrong law of the accuracy is the GP limit where the two differ enough, else one off by the margin.
    """
    directions, accuracy, model = result.directions, result.accuracy, result.model
    assert directions is not None
    assert accuracy is not None
    prediction = theory.finite_width(model, variances=False).prediction
    assert prediction is not None
    corrected, limit = np.asarray(prediction.mean), gp_mean(model)
    effect = mean_predictor(model, result.saddle) - limit
    unit, place = effect / np.linalg.norm(effect), directions.names.index("the finite-width effect")
    scale = 1 / np.sqrt(len(unit))
    expected = float((corrected - limit) @ unit * scale)
    allowance = float(directions.allowance[place])
    # Examples whose output theory leaves so near to 0 that its sign is open.
    open_signs = float(np.mean(np.abs(corrected) <= allowance))
    planted, wrong = accuracy.gp, GP
    if abs(accuracy.corrected - accuracy.gp) < open_signs + TOLD_APART * max(accuracy.error, 1 / accuracy.examples):
        planted, wrong = accuracy.corrected - result.margin, f"{100 * result.margin:g} points less"
    return [
        _worst_direction(result, directions),
        Claim(
            f"N = {result.width}: mean predictor less that of the GP limit, root mean square along the expected difference",
            FIRST_ORDER,
            expected,
            Mean(
                expected + float(directions.difference[place]),
                float(directions.error[place]),
                float(directions.freedom[place]),
            ),
            planted=0.0,
            wrong=GP,
            allowance=allowance,
        ),
        Claim(
            f"N = {result.width}: accuracy of the mean predictor on {accuracy.examples} test examples",
            FIRST_ORDER,
            accuracy.corrected,
            # One example more or less is no disagreement, and batches that all agree have no error of their own.
            Mean(accuracy.draws, max(accuracy.error, 1 / accuracy.examples), float(directions.freedom[place])),
            planted=planted,
            wrong=wrong,
            allowance=open_signs,
        ),
    ]


def _worst_direction(result: Validation, directions: Compared) -> Claim:
    worst = int(np.argmax(directions.excess))
    size = directions.size[worst]
    return Claim(
        f"N = {result.width}: mean predictor less theory along {directions.names[worst]}, over its size; of"
        f" {len(directions.names)} directions the one furthest from theory",
        FIRST_ORDER,
        0.0,
        Mean(
            float(directions.difference[worst] / size),
            float(directions.error[worst] / size),
            float(directions.freedom[worst]),
        ),
        entries=len(directions.names),
        planted=float(np.copysign(result.margin, directions.difference[worst])),
        wrong=f"off by the margin of {100 * result.margin:g} % of the predictor, on the draws' side",
        allowance=float(directions.allowance[worst] / size),
    )


def of_gains(width: int, accuracy: Accuracy, limits: Sequence[str]) -> list[Claim]:
    """What draws gain in accuracy over GP limits, with the error of a paired difference on the same test examples."""
    return [
        above_zero(
            f"N = {width}: accuracy of draws less that of the GP limit of {limit}, {accuracy.examples} test examples"
            f" (McNemar's test: p = {accuracy.gains[limit].p_value:.1g})",
            Mean(accuracy.gains[limit].difference, accuracy.gains[limit].error),
        )
        for limit in limits
    ]


def literal_gain(width: int, accuracy: Accuracy, limit: str) -> Claim:
    """The literal reading that this width, too, beats a GP limit."""
    gain = accuracy.gains[limit]
    return Claim(
        f"N = {width}: accuracy at least that of the GP limit of {limit}, {accuracy.examples} test examples",
        "at every width",
        0.0,
        Mean(gain.difference, gain.error),
        relation=">=",
        literal=True,
    )


def of_alignment(result: Validation) -> list[Claim]:
    """Alignment of the posterior's mean kernel, K at the mean of U, with the labels, against that of the GP limit."""
    labels, model = np.asarray(result.model.labels), result.model

    def leading(kernel: np.ndarray) -> float:
        """Share of |Y|^2 that the leading principal components hold."""
        return float(np.sum(np.asarray(theory.alignment(kernel, labels))[:LEADING] ** 2))

    def target(kernel: np.ndarray) -> float:
        return theory.kernel_target_alignment(kernel, labels)

    claims = []
    for said, of_kernel in (
        ("kernel-target alignment", target),
        (f"share of |Y|^2 in the first {LEADING} principal components", leading),
    ):

        def of_order_parameter(u: np.ndarray, of_kernel: Callable[[np.ndarray], float] = of_kernel) -> float:
            return of_kernel(np.asarray(theory.kernel(u, model.path_inputs, model.path_inputs, model.architecture)))

        slopes = _slopes(of_order_parameter, result.corrected)
        error, allowance = (float(np.sum(slopes * each)) for each in (result.error, result.allowance))
        limit = of_kernel(gp_kernel(model))
        drawn = Mean(of_order_parameter(result.order_parameter), error, float(np.min(result.ess)) / DRAWS_PER_FREEDOM)
        statement = f"N = {result.width}: {said} of the mean kernel"
        claims += [
            Claim(
                statement,
                f"{FIRST_ORDER}; errors of entries of U added",
                of_order_parameter(result.corrected),
                drawn,
                planted=limit,
                wrong=GP,
                allowance=allowance,
            ),
            above_zero(f"{statement}, less that of {GP}", drawn._replace(value=drawn.value - limit)),
        ]
    return claims


def _slopes(function: Callable[[np.ndarray], float], at: np.ndarray) -> np.ndarray:
    """|d function / d U_ij| on and below the diagonal, 0 above it; their sum times errors bounds the function's error."""
    base, slopes, size = function(at), np.zeros_like(at), np.sqrt(np.outer(np.diag(at), np.diag(at)))
    for row, column in zip(*np.tril_indices(len(at)), strict=True):
        moved = at.copy()
        moved[row, column] += STEP * size[row, column]
        moved[column, row] = moved[row, column]
        slopes[row, column] = abs(function(moved) - base) / (STEP * size[row, column])
    return slopes


def accuracy_curves(results: Sequence[Validation], elsewhere: Sequence[Accuracy] = ()) -> list[Curve]:
    """Accuracy of draws against width with the error by the size of the test set, theory to first order as the law."""
    widths = np.array([result.width for result in results], float)
    accuracies = [result.accuracy for result in results if result.accuracy is not None]
    curves = [_accuracy_curve("draws", widths, accuracies)]
    if elsewhere:
        curves.append(_accuracy_curve("draws, more test examples", widths, elsewhere))
    shown = elsewhere or accuracies
    limits = {"all paths": [accuracy.gp for accuracy in shown]}
    for name in shown[0].gp_of_groups:
        limits[name] = [accuracy.gp_of_groups[name] for accuracy in shown]
    return curves + [Curve(f"GP limit, {name}", widths, np.array(values)) for name, values in limits.items()]


def _accuracy_curve(label: str, widths: np.ndarray, accuracies: Sequence[Accuracy]) -> Curve:
    return Curve(
        label,
        widths,
        np.array([accuracy.draws for accuracy in accuracies]),
        np.array([np.hypot(accuracy.error, accuracy.test_error) for accuracy in accuracies]),
        np.array([accuracy.corrected for accuracy in accuracies]),
    )


def order_parameter_curves(results: Sequence[Validation], diagonal: bool) -> list[Curve]:
    """Entries of U against width, draws with theory to first order as the law."""
    widths, names = np.array([result.width for result in results], float), results[0].model.path_names
    curves = []
    for row, column in zip(*np.tril_indices(len(names)), strict=True):
        if (row == column) == diagonal:
            drawn, error, law = (
                np.array([getattr(result, name)[row, column] for result in results])
                for name in ("order_parameter", "error", "corrected")
            )
            label = names[row] if diagonal else f"{names[row]}, {names[column]}"
            curves.append(Curve(label, widths, drawn, error, law))
    return curves


def alignment_curves(result: Validation) -> list[Curve]:
    """|u_k . Y| / |Y| of the leading principal components: draws with the saddle point as the law, and the GP limit."""
    aligned, model = result.alignment, result.model
    assert aligned is not None
    count = min(COMPONENTS, len(aligned.eigenvectors))
    number = np.arange(1.0, count + 1)
    kernel = theory.kernel(result.saddle, model.path_inputs, model.path_inputs, model.architecture)
    law = np.asarray(theory.alignment(kernel, model.labels))
    return [
        Curve(
            f"draws, N = {result.width}",
            number,
            aligned.eigenvectors[:count],
            aligned.eigenvectors_error[:count],
            law[:count],
        ),
        Curve("GP limit", number, aligned.gp_eigenvectors[:count]),
    ]
