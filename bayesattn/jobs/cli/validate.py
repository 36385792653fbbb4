"""Command `bayesattn validate`: does the theory hold?"""

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import bayesattn as ba
from bayesattn._util.checks import positive
from bayesattn._util.plain_values import PlainDict
from bayesattn._util.progress import Bars
from bayesattn._util.text import rounded, with_error
from bayesattn.checks import thresholds
from bayesattn.checks.accuracy import ALL_PATHS, Accuracy, Gain, binomial_error, percent, percent_with_error
from bayesattn.checks.comparison import Compared
from bayesattn.checks.diagnostics import watched_examples
from bayesattn.checks.scaling import Slope, remainder, scaling
from bayesattn.checks.theory_predictions import Predicted, predicted
from bayesattn.checks.thresholds import LEVEL, MARGIN
from bayesattn.checks.validation import Validation
from bayesattn.jobs.cli import options, output, screen
from bayesattn.jobs.plots import validation_figure
from bayesattn.jobs.tables import Row, entry_row
from bayesattn.models import Model
from bayesattn.questions import temperature as temperatures
from bayesattn.questions.temperature import Candidate
from bayesattn.samplers import Job
from bayesattn.tasks.load import load_validate_table
from bayesattn.tasks.tables import ValidateTable

EXIT_STATUSES = {
    thresholds.HOLDS: screen.HOLDS,
    thresholds.DOES_NOT_HOLD: screen.FAILS,
    thresholds.CANNOT_TELL: screen.CANNOT_TELL,
}
ANSWERS = {
    thresholds.HOLDS: ("It holds", "green"),
    thresholds.DOES_NOT_HOLD: ("It does NOT hold", "red"),
    thresholds.CANNOT_TELL: ("The draws cannot tell", "yellow"),
}
OUTCOMES = {"higher": "better", "lower": "worse", "cannot tell": "unclear"}
Curve = dict[int, list[Candidate]]
"""Candidates of the theory at several temperatures, by width."""
DEVIATIONS = {"relative_deviation": "saddle point", "relative_remaining": "1/N theory"}
"""Relative deviations of the draws, and what they deviate from."""
Slopes = dict[str, Slope | None]
"""Dependence of each of the deviations on the width."""


def validate(
    model: options.ModelName,
    width: options.Widths = None,
    temperature: options.Temperature = None,
    data_seed: options.DataSeed = None,
    theory_width: Annotated[
        list[int] | None, typer.Option(help="Width at which the theory alone is solved; may be given several times.")
    ] = None,
    sampler: Annotated[
        options.Sampler | None, typer.Option(help="By default the sampler of the model file, or auto if it names none.")
    ] = None,
    parameterisation: options.ParameterisationName = options.COLLAPSED,
    chains: options.Chains = 4,
    warmup: Annotated[
        int | None, typer.Option(help="Adaptation steps of each chain; by default the model's, or 200.")
    ] = None,
    draws: Annotated[int | None, typer.Option(help="Draws of each chain; by default the model's, or 1000.")] = None,
    seed: options.Seed = 0,
    margin: Annotated[
        float, typer.Option(help="Difference, relative to U and to the predictor, within which the theory is to hold.")
    ] = MARGIN,
    out: Annotated[Path | None, options.results_option("validate")] = None,
    figure: options.FigureFile = None,
    overwrite: options.Overwrite = False,
    show_all: Annotated[
        bool, typer.Option("--all", help="Print all tables: accuracies, every entry of U, what each width shows.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Does the theory hold? Draw the posterior at several widths and compare.

    Exit status 0: it holds, to within --margin; 1: it does not; 2: the draws cannot tell, or the theory could not be solved.

    A model with validation examples gets at each width the temperature of greatest evidence,
    unless --temperature is given. Widths, sampler and numbers of draws are those of the model file's [validate].

    Example: bayesattn validate hidden_markov --width 10 --width 30
    """
    folder = output.results_folder("validate", model, out, figure, overwrite)
    positive("--margin", margin)
    usual = load_validate_table(model)
    settings = _settings(usual, sampler, parameterisation, chains, warmup, draws, seed)
    widths, theory_widths = width or usual.widths, theory_width or usual.theory_widths
    first = ba.load_model(model, width=widths[0], temperature=temperature, seed=data_seed)
    first.require_theory()
    cases = {n: first.replace(width=n) for n in (*widths, *theory_widths)}
    choose = temperature is None and first.validation_labels is not None
    tried = temperatures.TEMPERATURES if choose else [first.temperature]
    level = LEVEL / len({*widths})  # All widths share the level.
    curve: Curve = {}
    results: list[Validation] = []
    start = time.perf_counter()
    with screen.bars(quiet=as_json) as shown:
        for n in sorted(cases) if choose or theory_widths else ():
            shown.add(f"theory, N = {n}")
            curve[n] = temperatures.candidates(cases[n], tried, seed)
        theory_seconds = time.perf_counter() - start
        drawn = [
            cases[n].replace(temperature=temperatures.by_evidence(curve[n]).temperature) if choose else cases[n]
            for n in dict.fromkeys(widths)
        ]
        # All theory is solved first, so that a width at which it fails costs no draws of other widths.
        predictions = [_predicted(case, shown) for case in drawn]
        for case, prediction in zip(drawn, predictions, strict=True):
            results.append(_compared(case, prediction, settings, margin, level, shown))
    seconds = time.perf_counter() - start
    slopes = {of: scaling(results, of) for of in DEVIATIONS}
    content = {"model": model, "seed": seed} | _content(results, slopes, curve, theory_seconds)
    output.save_results(folder, content, lambda: validation_figure(results, curve), figure, overwrite)
    if as_json:
        screen.print_json(content)
    else:
        _print_verdict(content, model)
        _print_widths(results, first.temperature if not choose else None)
        _print_curve(curve, choose, first, theory_seconds)
        if show_all:
            _print_accuracy(results)
            _print_entries(results)
        if show_all or not content["holds"]:
            _print_deviations(results, slopes)
        _print_statements(results, show_all)
        screen.say_where(
            f"{seconds:.0f} s; {'' if show_all else '--all prints all tables; '}figure and results in {folder}"
        )
    raise typer.Exit(EXIT_STATUSES[content["verdict"]])


def _settings(
    usual: ValidateTable,
    sampler: options.Sampler | None,
    parameterisation: options.Parameterisation,
    chains: int,
    warmup: int | None,
    draws: int | None,
    seed: int,
) -> PlainDict:
    """Settings of `bayesattn.sample`, by the command or else the model file; raises ValueError for invalid ones."""
    settings = {
        "sampler": sampler.value if sampler else usual.sampler,
        "parameterisation": parameterisation.value,
        "chains": chains,
        "warmup": usual.warmup if warmup is None else warmup,
        "draws": usual.draws if draws is None else draws,
        "seed": seed,
    }
    Job(**settings)  # Invalid settings are found before the theory is solved.
    return settings


def _predicted(case: Model, shown: Bars) -> Predicted:
    """Predictions of the theory for a model."""
    shown.add(f"theory, {case.size}")
    return predicted(case)


def _compared(
    case: Model, prediction: Predicted, settings: PlainDict, margin: float, level: float, shown: Bars
) -> Validation:
    """Theory of a model compared with new draws."""
    steps = settings["chains"] * (settings["warmup"] + settings["draws"])
    bar = shown.sampling(f"sampling, {case.size}", steps)
    drawn = ba.sample(_with_watched_examples(case), progress=bar, **settings)
    shown.add(f"comparison, {case.size}")
    return ba.validate(drawn, model=case, margin=margin, level=level, prediction=prediction)


def _with_watched_examples(model: Model) -> Model:
    """Model of the same posterior that keeps only the test examples whose predictions are diagnosed.

    All comparisons use draws of U, so the other test examples are not needed.
    """
    if model.test_path_inputs is None:
        return model
    chosen = watched_examples(len(model.test_path_inputs))
    return model.replace(test_path_inputs=model.test_path_inputs[chosen], test_labels=None)


def _content(results: list[Validation], slopes: Slopes, curve: Curve, theory_seconds: float) -> PlainDict:
    """All numbers as plain values, for JSON."""
    answer = thresholds.overall([result.verdict for result in results])
    return {
        "verdict": answer,
        "holds": answer == thresholds.HOLDS,
        "bound": max(result.bound for result in results) if all(result.usable for result in results) else None,
        "margin": results[0].margin,
        "level": LEVEL,
        "scaling": {of: slope and slope._asdict() for of, slope in slopes.items()},
        "theory": [
            {"width": n, "temperatures": [candidate._asdict() for candidate in tried]} for n, tried in curve.items()
        ],
        "theory_seconds": round(theory_seconds, 1),
        "results": [result.to_dict() for result in results],
    }


def _print_verdict(content: PlainDict, model: str) -> None:
    answer, colour = ANSWERS[content["verdict"]]
    if content["holds"]:
        answer += f" to within {100 * content['bound']:.2g} % of U and predictor"
    elif content["verdict"] == thresholds.CANNOT_TELL:
        answer += f" whether it does to within {100 * content['margin']:.2g} %"
    screen.say(
        f"Does the theory hold on {model}? {answer}. The probability of rejecting a correct theory is at most {LEVEL:g}, and"
        " so is that of a wrong bound.",
        style=f"bold {colour}",
    )


def _print_widths(results: list[Validation], temperature: float | None) -> None:
    """Print one row for each width: the greatest entry of U by theory and draws, and the accuracy.

    Without a common temperature, a column has that of each width.
    """
    greatest = int(np.argmax(np.mean([np.diag(result.order_parameter) for result in results], axis=0)))
    name, rows = results[0].model.row_names[greatest], []
    for result in results:
        saddle, corrected, draws, error = (
            matrix[greatest, greatest]
            for matrix in (result.saddle, result.corrected, result.order_parameter, result.error)
        )
        row = {"N": str(result.width)} | ({} if temperature else {"T": f"{result.model.temperature:g}"})
        row |= {"saddle": rounded(saddle, error), "1/N theory": rounded(corrected, error)}
        row["draws"] = with_error(draws, error)
        if accuracy := result.accuracy:
            # Of both the Monte Carlo error and the size of the test set.
            row["accuracy (%)"] = with_error(100 * accuracy.draws, 100 * np.hypot(accuracy.error, accuracy.test_error))
            row["gain over GP limit"] = _points(accuracy.gains[ALL_PATHS])
        rows.append(row)
    screen.print_table(f"Order parameter of {name}, by theory and by draws", rows)
    if results[0].accuracy:
        screen.say("±: Monte Carlo error, of accuracy and gain (in points) also that of the test set")


def _print_statements(results: list[Validation], show_all: bool) -> None:
    """Print warnings, and what was found at each width; if the theory holds at all of them, only if all is shown."""
    show_all |= any(result.verdict != thresholds.HOLDS for result in results)
    for result in results:
        for warning in result.diagnostics.warnings():
            screen.say(f"warning, N = {result.width}: {warning}", style="yellow")
        if show_all:
            screen.say(f"N = {result.width}: {result.statement()}", style=ANSWERS[result.verdict][1])


def _print_deviations(results: list[Validation], slopes: Slopes) -> None:
    for of, name in DEVIATIONS.items():
        fit = slopes[of]
        text = "not seen at two widths" if fit is None else f"~ N^({with_error(fit.slope, fit.error)})"
        widths = "" if fit is None else f", from N = {', '.join(map(str, fit.widths))}"
        screen.say(f"relative deviation of draws from the {name}: {text}{widths}")
    if said := remainder(results):
        screen.say(said)


def _print_entries(results: list[Validation]) -> None:
    rows: list[Row] = []
    styles: list[str | None] = []
    for result in results:
        table, differs = result.summary().to_dict("records"), _differs(result.entries)
        pairs = zip(*np.tril_indices(len(result.corrected)), strict=True)
        for (row, column), entry, differing in zip(pairs, table, differs, strict=True):
            texts = entry_row(entry)
            texts["z"] += "!" if differing else " "
            rows.append({"N": str(result.width), "entry": f"{row + 1},{column + 1}"} | texts)
            styles.append("red" if differing else None)
    screen.print_table("Order parameter U", rows, once=["N"], styles=styles)
    screen.say(
        "z: draws minus 1/N theory, in Monte Carlo errors (±); !: more than what the theory leaves out and Monte Carlo"
        " error explain; R-hat, ESS, tail ESS: of the draws of that entry"
    )
    names = results[0].model.row_names
    screen.say_paths(names, range(1, len(names) + 1))


def _differs(entries: Compared) -> np.ndarray:
    """Whether each entry disagrees; False for an entry without a Monte Carlo error."""
    return ~entries.agrees & np.isfinite(entries.noise)


def _print_accuracy(results: list[Validation]) -> None:
    known = [(result, result.accuracy) for result in results if result.accuracy is not None]
    if known:
        rows = [_accuracy_row(result, accuracy) for result, accuracy in known]
        screen.print_table("Accuracy of the mean predictor (% of test examples)", rows)
        gains = [row for result, accuracy in known for row in _gain_rows(result.width, accuracy)]
        title = "Finite width less GP limit (points), on the same test examples"
        screen.print_table(title, gains, ["GP limit of"], once=["N"])
    _print_sentences(results)


def _accuracy_row(result: Validation, accuracy: Accuracy) -> Row:
    error, examples, test_error = accuracy.error, accuracy.examples, 100 * accuracy.test_error
    return {
        "N": str(result.width),
        "T": f"{result.model.temperature:g}",
        "GP limit": percent(accuracy.gp, error, examples),
        "saddle": percent(accuracy.theory, error, examples),
        "1/N theory": percent(accuracy.corrected, error, examples),
        "draws ± Monte Carlo": percent_with_error(accuracy.draws, error, examples),
        "± test set": f"± {rounded(test_error, test_error)}",
    }


def _gain_rows(width: int, accuracy: Accuracy) -> list[Row]:
    return [
        {
            "N": str(width),
            "GP limit of": limit,
            "draws": _points(gain),
            "McNemar p": f"{gain.p_value:.1g}",
            "saddle": _points(accuracy.theory_gains[limit]),
            "draws are": OUTCOMES[gain.outcome],
        }
        for limit, gain in accuracy.gains.items()
    ]


def _print_sentences(results: list[Validation]) -> None:
    """Print what accuracy and alignment say about each width."""
    for result in results:
        gain = result.accuracy and result.accuracy.gains[ALL_PATHS].verdict("the GP limit")
        alignment = result.alignment and result.alignment.verdict()
        if sentence := "; ".join(part for part in (gain, alignment) if part):
            screen.say(f"N = {result.width}: {sentence}")


def _points(gain: Gain) -> str:
    return with_error(100 * gain.difference, 100 * gain.error, "+")


def _print_curve(curve: Curve, choose: bool, model: Model, seconds: float) -> None:
    if not curve:
        return
    rows: list[Row] = []
    for width, tried in curve.items():
        by_evidence, gp = temperatures.by_evidence(tried), temperatures.by_gp_evidence(tried)
        accurate = temperatures.by_validation(tried)
        rows.append(_candidate_row(width, "evidence" if choose else "theory", by_evidence, model))
        if choose and accurate is not None:
            rows.append(_candidate_row(width, "validation", accurate, model))
        if gp.gp_log_evidence is not None:
            row = _candidate_row(width, "GP limit", gp, model) | {"log p(Y)": f"{gp.gp_log_evidence:.2f}"}
            rows.append(row | {"validation %": "", "test %": _percent(gp.gp_test_accuracy, model.test_labels)})
    how = "temperature by evidence, and by accuracy on validation examples" if choose else "saddle point, and GP limit"
    screen.print_table(f"Theory: {how}", rows, ["by"], once=["N"])
    screen.say("±: of log p(Y), its error; of accuracies, by the size of the validation or test set")
    chosen = {width: temperatures.by_evidence(tried) for width, tried in curve.items()}
    if not all(candidate.reliable for candidate in chosen.values()):
        screen.say("?: not reliable, the stated error is too small", style="yellow")
    for width, tried in curve.items():
        if equal := temperatures.rivals(tried):
            alike = ", ".join(f"{candidate.temperature:g}" for candidate in (chosen[width], *equal))
            screen.say(f"N = {width}: the evidence of T = {alike} cannot be distinguished", style="yellow")
    screen.say(f"theory at {len(curve)} width{'s' if len(curve) > 1 else ''}: {seconds:.0f} s")


def _candidate_row(width: int, by: str, candidate: Candidate, model: Model) -> Row:
    evidence = ""
    if candidate.log_evidence is not None:
        evidence = with_error(candidate.log_evidence, candidate.error) + ("" if candidate.reliable else " ?")
    return {
        "N": str(width),
        "by": by,
        "T": f"{candidate.temperature:g}",
        "log p(Y)": evidence,
        "validation %": _percent(candidate.validation_accuracy, model.validation_labels),
        "test %": _percent(candidate.test_accuracy, model.test_labels),
    }


def _percent(share: float | None, labels: np.ndarray | None) -> str:
    return "" if share is None or labels is None else with_error(100 * share, 100 * binomial_error(share, len(labels)))
