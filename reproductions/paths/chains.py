"""Hidden Markov chains: draws against theory at several widths, gains over GP limits, single paths, and the task itself."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bayesattn.checks.accuracy import ALL_PATHS, Accuracy, accuracy_of, binomial_error, gain, share_right
from bayesattn.checks.theory_predictions import gp_mean, mean_predictor, outputs_of
from bayesattn.checks.thresholds import LEVEL
from bayesattn.checks.validate import validate
from bayesattn.checks.validation import Validation
from bayesattn.models import Model
from bayesattn.samplers import sample
from bayesattn.tasks import HiddenMarkov
from bayesattn.tasks.load import load_model, load_validate_table
from reproductions.claims import Claim, Curve, Findings, Mean, Panel, above_zero, combined, exponent, mean_of, pooled
from reproductions.experiment import Settings
from reproductions.paths import comparisons, maps
from reproductions.paths.comparisons import COMPONENT, ENTRY, OVERLAP, SHARE, WIDTH

FAST_WIDTHS = (10, 100)
NOISE_DRAWS, DEEP_DRAWS, FAST_DRAWS = 500, 8000, 250
DEEP_WIDTHS, FAST_DEEP_WIDTHS = (10, 30, 100), (30,)
MORE = 5000
"""Number of test examples that is large enough to see the gains."""
GROUPS = ("good path", "good + denoising paths")
NARROW = 30
"""Widths up to which a gain over the GP limit of the good path is claimed; beyond, U tends to the GP limit of all."""
SETS, SET_DRAWS = 8, 500
"""Data sets over which gains of draws at N = 10 are averaged: that over good + denoising paths is below a point."""
CHANCE, SIGNAL = 0.5, 0.6
INFORMED = "same_token"
"""The head of the first layer that sees whether a state was left."""
STAY = HiddenMarkov.stay_probability


def hidden_markov(settings: Settings) -> Findings:
    """Rows of figures 1c and 2a to 2d, and what they say of predictor, saddle point and GP limit."""
    findings = Findings()
    usual = load_validate_table("hidden_markov")
    widths = FAST_WIDTHS if settings.fast else tuple(usual.widths)
    findings.add("paths-2a", *staying(settings.seed))
    model, more = _models("hidden_markov", settings)
    results, further = _drawn(model, more, widths, FAST_DRAWS if settings.fast else usual.draws, settings)
    settings.progress("single paths")
    findings.add("paths-2b", *single_paths(more or model))
    for result, accuracy in zip(results, further, strict=True):
        settings.progress(f"claims at N = {result.width}")
        direction, effect, right_ones = comparisons.of_predictor(result)
        findings.add("paths-predictor", effect)
        findings.add("paths-2c-theory", comparisons.disagreements(result), direction, right_ones)
        findings.add("paths-2c-u", *comparisons.of_order_parameter(result))
        limits = (ALL_PATHS, *(GROUPS[:1] if result.width <= NARROW else ()))
        findings.add("paths-2c-gain", *comparisons.of_gains(result.width, accuracy, limits))
    findings.add("paths-2c-u", *growth(results[0], results[-1]))
    if not settings.fast:
        wide = (comparisons.literal_gain(results[-1].width, further[-1], group) for group in GROUPS)
        findings.add("paths-2c-gain", *gains_over_sets(settings), *maps.gains_over_groups(settings), *wide)
    findings.add("paths-1c", *comparisons.of_alignment(results[0]))
    findings.add("paths-action", comparisons.at_the_saddle_point(results[0]))
    findings.add("paths-gp", *towards_gp(results[-2], results[-1]))
    name, components = "hidden Markov chains", comparisons.alignment_curves(results[0])
    findings.panels += [
        *_panels(name, results, further if more else ()),
        Panel("Overlap of principal components with the labels", COMPONENT, OVERLAP, components),
        Panel(f"Kernel-target alignment, {name}", WIDTH, "alignment", _target_curves(results)),
    ]
    return findings


def noise(settings: Settings) -> Findings:
    """Draws of figure 2e, row paths-2e: the noisy task with the good and the denoising path alone."""
    findings = Findings()
    widths = FAST_WIDTHS[:1] if settings.fast else tuple(load_validate_table("hidden_markov_noisy").widths)
    model, more = _models("hidden_markov_noisy", settings)
    results, further = _drawn(model, more, widths, FAST_DRAWS if settings.fast else NOISE_DRAWS, settings)
    for result, accuracy in zip(results, further, strict=True):
        settings.progress(f"claims at N = {result.width}")
        findings.add("paths-2e", *against_theory(result))
        findings.add("paths-2e", *comparisons.of_gains(result.width, accuracy, [ALL_PATHS]))
    accuracies = comparisons.accuracy_curves(results, further if more else ())
    entries = [
        curve for place in (True, False) for curve in comparisons.order_parameter_curves(results, diagonal=place)
    ]
    findings.panels += [
        Panel("Accuracy, noisy chains", WIDTH, SHARE, accuracies),
        Panel("U, noisy chains", WIDTH, ENTRY, entries),
    ]
    return findings


def deep(settings: Settings) -> Findings:
    """Row paths-deep: three layers of 2, 3 and 1 heads."""
    findings, model = Findings(), load_model("hidden_markov_deep", seed=settings.seed)
    draws = FAST_DRAWS if settings.fast else DEEP_DRAWS
    results, _ = _drawn(model, None, FAST_DEEP_WIDTHS if settings.fast else DEEP_WIDTHS, draws, settings)
    for result in results:
        settings.progress(f"claims at N = {result.width}")
        findings.add("paths-deep", *against_theory(result))
    findings.panels += _panels("three layers", results)
    return findings


def _panels(name: str, results: list[Validation], further: Sequence[Accuracy] = ()) -> list[Panel]:
    """Accuracy and entries of U against width."""
    return [
        Panel(f"Accuracy, {name}", WIDTH, SHARE, comparisons.accuracy_curves(results, further)),
        *(
            Panel(
                f"U {place} the diagonal, {name}",
                WIDTH,
                ENTRY,
                comparisons.order_parameter_curves(results, diagonal=place == "on"),
            )
            for place in ("on", "off")
        ),
    ]


def against_theory(result: Validation) -> list[Claim]:
    """U, mean predictor and accuracy of draws against theory to first order in 1/N."""
    return [
        comparisons.disagreements(result),
        *comparisons.of_order_parameter(result),
        *comparisons.of_predictor(result),
    ]


def staying(seed: int) -> list[Claim]:
    """Steps in the states of the task's chains: those of the same seed without noise, whose states can be read off."""
    silent: dict[str, Any] = {f"noise_{name}": 0.0 for name in ("difference", "sum", "orthogonal")}
    data = HiddenMarkov(layers=(("uniform",),), seed=seed, **silent).dataset()
    inputs, labels = np.concatenate([data.inputs, data.test_inputs]), np.append(data.labels, data.test_labels)
    in_plus = inputs[:, 1:, 0] > 0
    stays = in_plus[:, 1:] == in_plus[:, :-1]
    claims, nearer = [], 0.05
    for label, probability, sign in ((1.0, STAY, -1), (-1.0, 1 - STAY, 1)):
        own = stays[labels == label]
        claims.append(
            Claim(
                f"class {label:+.0f}: share of steps that stay in a state, {len(own)} chains",
                "the task's probability",
                probability,
                mean_of(own.mean(1)),
                planted=probability + sign * nearer,
                wrong=f"{nearer:g} nearer to one half",
            )
        )
    expected = np.where(labels > 0, STAY, 1 - STAY)[:, None]
    products = ((stays - expected)[:, 1:] * (stays - expected)[:, :-1]).mean(1)
    claims += [
        Claim(
            f"share of {len(labels)} chains that begin in the state +",
            "1/2",
            0.5,
            mean_of(in_plus[:, 0]),
            planted=STAY,
            wrong="the first state is + as often as a chain of class +1 stays",
        ),
        Claim(
            "covariance of staying at a step and at the next",
            "0: steps are independent",
            0.0,
            mean_of(products),
            planted=0.02,
            wrong="a covariance of 0.02, a tenth of the variance",
        ),
    ]
    return claims


def single_paths(model: Model) -> list[Claim]:
    """Accuracy of the GP limit of single paths, those that start with same_token against it on other test examples.

    The path of same_token and a random head is not free of signal: from the last token the random head looks at one token
    or two, and same_token says of these whether the state was left, by the position of what it looks at.
    """
    labels, claims = np.asarray(model.test_labels), []

    def informed(outputs: np.ndarray, said: str) -> Claim:
        share = _accuracy(outputs, labels)
        statement = f"GP limit of {said}: accuracy on {len(labels)} test examples less 1/2"
        return above_zero(statement, share._replace(value=share.value - CHANCE))

    for path, name in enumerate(model.path_names):
        outputs = gp_mean(model, [path])
        if name.startswith(INFORMED):
            claims.append(informed(outputs, f"{name} alone"))
        else:
            statement = f"GP limit of {name} alone: accuracy on {len(labels)} test examples"
            found, wrong = _accuracy(outputs, labels), "10 points above chance"
            claims.append(Claim(statement, "chance", CHANCE, found, planted=SIGNAL, wrong=wrong))
        if name == f"{INFORMED} -> random":
            positions = _positions_alone(model)
            claims.append(informed(gp_mean(positions, [path]), f"{name} alone, of positions alone"))
            if len(labels) >= MORE:
                found = _accuracy(outputs, labels)
                claims.append(
                    Claim(f"{name} carries no signal: accuracy of its GP limit", "chance", CHANCE, found, literal=True)
                )
    good, both = (gp_mean(model, model.path_groups[name]) for name in GROUPS)
    denoised = gain(both, good, labels)
    said = f"accuracy of the GP limit of {GROUPS[1]} less that of the {GROUPS[0]} alone, {len(labels)} test examples"
    claims.append(above_zero(said, Mean(denoised.difference, denoised.error)))
    return claims


def gains_over_sets(settings: Settings) -> list[Claim]:
    """What draws at N = 10 gain over each GP limit, mean over data sets, with the errors of their test examples."""
    gains: dict[str, list[Mean]] = {name: [] for name in (ALL_PATHS, *GROUPS)}
    for number in range(SETS):
        settings.progress(f"draws of data set {number + 1} of {SETS}")
        seed = maps.seed_of(settings.seed, number)
        model, more = _models("hidden_markov", settings._replace(seed=seed))
        _, (accuracy,) = _drawn(model, more, (10,), SET_DRAWS, settings)
        for name, means in gains.items():
            means.append(Mean(accuracy.gains[name].difference, accuracy.gains[name].error))
    said = (
        f"N = 10: accuracy of draws less that of the GP limit of {{}}, mean of {SETS} data sets of {MORE} test examples"
    )
    return [above_zero(said.format(name), pooled(means)) for name, means in gains.items()]


def growth(narrowest: Validation, widest: Validation) -> list[Claim]:
    """U's greatest entries at the least width, on the diagonal and off it, against those at the greatest width."""
    names, rows = narrowest.model.path_names, np.arange(len(narrowest.saddle))
    path = int(np.argmax(np.diag(narrowest.saddle)))
    cross = np.abs(narrowest.saddle) * (rows[:, None] != rows)
    first, second = (int(place) for place in np.unravel_index(np.argmax(cross), cross.shape))
    claims = []
    for said, entry in (
        (f"U of {names[path]}", (path, path)),
        (f"|U| of {names[first]} and {names[second]}", (first, second)),
    ):
        at_least, at_most = (
            Mean(
                float(abs(result.order_parameter[entry])),
                float(result.error[entry]),
                float(result.ess[entry]) / comparisons.DRAWS_PER_FREEDOM,
            )
            for result in (narrowest, widest)
        )
        statement = f"{said}, greatest at N = {narrowest.width}: there, less that at N = {widest.width}"
        claims.append(above_zero(statement, combined(at_least, at_most, -1.0)))
    return claims


def _positions_alone(model: Model) -> Model:
    """The model with all features of tokens but their positions set to 0."""
    kept = np.arange(model.path_inputs.shape[2]) >= model.task["dimension"]
    return model.replace(
        path_inputs=model.path_inputs * kept, test_path_inputs=model.test_path_inputs * kept, tokens=None
    )


def _accuracy(outputs: np.ndarray, labels: np.ndarray) -> Mean:
    share = share_right(outputs, labels)
    return Mean(share, binomial_error(share, len(labels)))


def towards_gp(narrower: Validation, wider: Validation) -> list[Claim]:
    """How U's greatest entries fall towards the GP limit between two widths: 1 on the diagonal, 0 off it."""
    widths = (narrower.width, wider.width)
    path = int(np.argmax(np.diag(narrower.saddle)))
    cross = np.abs(narrower.saddle[path])
    cross[path] = 0.0
    other, names = int(np.argmax(cross)), narrower.model.path_names
    claims = []
    for said, entry, limit in (
        (f"U of {names[path]}, less 1", (path, path), 1.0),
        (f"|U| of {names[path]} and {names[other]}", (path, other), 0.0),
    ):
        drawn, law, relative = [], [], 0.0
        for result in (narrower, wider):
            sign = np.sign(result.corrected[entry] - limit)
            law.append(Mean(float(sign * (result.corrected[entry] - limit))))
            freedom = float(result.ess[entry]) / comparisons.DRAWS_PER_FREEDOM
            drawn.append(
                Mean(float(sign * (result.order_parameter[entry] - limit)), float(result.error[entry]), freedom)
            )
            relative += float(result.allowance[entry]) / law[-1].value
        claims.append(
            Claim(
                f"exponent in N of {said}, from N = {widths[0]} to {widths[1]}",
                f"{comparisons.FIRST_ORDER}; -1 far above P",
                exponent(widths, law),
                exponent(widths, drawn),
                planted=0.0,
                wrong="no change with N",
                allowance=relative / float(np.log(widths[1] / widths[0])),
            )
        )
    return claims


def _models(name: str, settings: Settings) -> tuple[Model, Model | None]:
    """A ready model with data of the seed, and in full the same with more test examples."""
    settings.progress(f"data of {name}")
    model = load_model(name, seed=settings.seed)
    return model, None if settings.fast else load_model(name, seed=settings.seed, task={"test_examples": MORE})


def _drawn(
    model: Model, more: Model | None, widths: tuple[int, ...], draws: int, settings: Settings
) -> tuple[list[Validation], list[Accuracy]]:
    """Draws at each width compared with theory, and accuracies on the larger test set where there is one."""
    warmup, results = load_validate_table(model.name).warmup, []
    for width in widths:
        settings.progress(f"{model.name}: draws at N = {width}")
        network = model.replace(width=width)
        drawn = sample(network, warmup=warmup, draws=draws, seed=settings.seed, progress=False)
        results.append(validate(drawn, model=network, level=LEVEL / len(widths)))
    own = [result.accuracy for result in results if result.accuracy is not None]
    if more is None:
        return results, own
    return results, [_accuracy_on(more.replace(width=result.width), result) for result in results]


def _accuracy_on(model: Model, validation: Validation) -> Accuracy:
    """Accuracy of a validation's saddle point, corrected theory and draws on the test examples of `model`."""
    by_theory = {
        "theory": mean_predictor(model, validation.saddle),
        "corrected": mean_predictor(model, validation.corrected),
        "gp": gp_mean(model),
    }
    assert validation.readouts is not None
    return accuracy_of(model, by_theory, outputs_of(model, validation.readouts))


def _target_curves(results: list[Validation]) -> list[Curve]:
    widths = np.array([result.width for result in results], float)
    aligned = [result.alignment for result in results if result.alignment is not None]
    drawn, error, law, limit = (
        np.array([getattr(each, name) for each in aligned]) for name in ("draws", "error", "theory", "gp")
    )
    return [Curve("draws, saddle point as the law", widths, drawn, error, law), Curve("GP limit", widths, limit)]
