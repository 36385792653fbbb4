"""Command `bayesattn validate`: does the theory hold?"""

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import bayesattn as ba
from bayesattn._util.checks import positive
from bayesattn._util.text import cell, rounded, with_error
from bayesattn.checks import verdict
from bayesattn.checks.accuracy import ALL_PATHS, Accuracy, Gain, binomial_error, percent, percent_with_error
from bayesattn.checks.comparison import Compared
from bayesattn.checks.validation import Validation
from bayesattn.checks.verdict import LEVEL, MARGIN
from bayesattn.jobs import study
from bayesattn.jobs.cli.options import (
    COLLAPSED,
    Chains,
    DataSeed,
    FigureFile,
    Json,
    ModelName,
    Overwrite,
    ParameterisationName,
    Sampler,
    Seed,
    ShowAll,
    Temperature,
    Widths,
    results_option,
)
from bayesattn.jobs.cli.screen import (
    CANNOT_TELL,
    FAILS,
    HOLDS,
    MOST_DIAGONAL_ENTRIES,
    bars,
    new_table,
    print_json,
    print_table,
    results_folder,
    save_results,
    say,
    say_paths,
    say_where,
)
from bayesattn.jobs.study import ValidationStudy
from bayesattn.models import Model
from bayesattn.questions.temperature import Candidate, by_evidence, by_gp_evidence, by_validation, rivals
from bayesattn.samplers import Job
from bayesattn.tasks.load import load_validate_table

EXIT_STATUSES = {verdict.HOLDS: HOLDS, verdict.DOES_NOT_HOLD: FAILS, verdict.CANNOT_TELL: CANNOT_TELL}
ANSWERS = {
    verdict.HOLDS: ("It holds", "green"),
    verdict.DOES_NOT_HOLD: ("It does NOT hold", "red"),
    verdict.CANNOT_TELL: ("The draws cannot tell", "yellow"),
}
MOST_DIFFERING_ENTRIES, FARTHEST_ENTRIES = 10, 3
"""Numbers of off-diagonal entries of U shown: entries that differ, and entries with the largest |z|, always shown."""
OUTCOMES = {"higher": "better", "lower": "worse", "cannot tell": "unclear"}


def validate(
    model: ModelName,
    width: Widths = None,
    temperature: Temperature = None,
    data_seed: DataSeed = None,
    theory_width: Annotated[
        list[int] | None, typer.Option(help="Width at which the theory alone is solved; may be given several times.")
    ] = None,
    sampler: Annotated[
        Sampler | None, typer.Option(help="By default the sampler of the model file, or auto if it names none.")
    ] = None,
    parameterisation: ParameterisationName = COLLAPSED,
    chains: Chains = 4,
    warmup: Annotated[
        int | None, typer.Option(help="Adaptation steps of each chain; by default the model's, or 200.")
    ] = None,
    draws: Annotated[int | None, typer.Option(help="Draws of each chain; by default the model's, or 1000.")] = None,
    seed: Seed = 0,
    margin: Annotated[
        float, typer.Option(help="Difference, relative to U and to the predictor, within which the theory is to hold.")
    ] = MARGIN,
    out: Annotated[Path | None, results_option("validate")] = None,
    figure: FigureFile = None,
    overwrite: Overwrite = False,
    show_all: ShowAll = False,
    as_json: Json = False,
) -> None:
    """Does the theory hold? Draw the posterior at several widths and compare.

    Exit status 0: it holds, to within --margin; 1: it does not; 2: the draws cannot tell, or the theory could not be solved.

    A model with validation examples gets at each width the temperature of greatest evidence,
    unless --temperature is given. Widths, sampler and numbers of draws are those of the model file's [validate].

    Example: bayesattn validate hidden_markov --width 10 --width 30
    """
    folder = results_folder("validate", model, out, figure, overwrite)
    positive("--margin", margin)
    usual = load_validate_table(model)
    sampler_name, warmup = sampler.value if sampler else usual.sampler, usual.warmup if warmup is None else warmup
    draws = usual.draws if draws is None else draws
    settings = {
        "sampler": sampler_name,
        "parameterisation": parameterisation.value,
        "chains": chains,
        "warmup": warmup,
        "draws": draws,
        "seed": seed,
    }
    Job(**settings)  # Invalid settings are found before the theory is solved.
    widths = width or usual.widths
    case = ba.load_model(model, width=widths[0], temperature=temperature, seed=data_seed)
    start = time.perf_counter()
    case.require_gaussian()
    choose = temperature is None and case.validation_labels is not None
    with bars(quiet=as_json) as shown:
        outcome = study.validate(
            case,
            widths,
            choose_temperature=choose,
            theory_widths=theory_width or usual.theory_widths,
            margin=margin,
            solving=lambda width: shown.add(f"theory, N = {width}"),
            sampling=lambda width: shown.sampling(f"sampling, N = {width}", chains * (warmup + draws)),
            **settings,
        )
    seconds = time.perf_counter() - start
    content = {"model": model, "seed": seed} | outcome.to_dict()
    save_results(folder, content, outcome.figure, figure, overwrite)
    if as_json:
        print_json(content)
    else:
        _print_curve(outcome.curve, choose, case, outcome.theory_seconds)
        _print_validation(outcome, model, seconds, folder, show_all)
    raise typer.Exit(EXIT_STATUSES[outcome.verdict])


def _print_validation(outcome: ValidationStudy, model: str, seconds: float, folder: Path, show_all: bool) -> None:
    results, slopes = outcome.validations, outcome.scaling
    shares = [result.accuracy for result in results if result.accuracy is not None]
    if shares:
        title = "Accuracy of the mean predictor (% of test examples)"
        _print_accuracy(shares, [result.model for result in results], title)
    for result in results:
        gain = result.accuracy and result.accuracy.gains[ALL_PATHS].verdict("the GP limit")
        alignment = result.alignment and result.alignment.verdict()
        if sentence := "; ".join(verdict for verdict in (gain, alignment) if verdict):
            say(f"N = {result.width}: {sentence}")
    _print_entries(results, show_all)
    for of, name in (("relative_deviation", "saddle point"), ("relative_remaining", "1/N theory")):
        fit = slopes[of]
        text = "not seen at two widths" if fit is None else f"~ N^({with_error(fit.slope, fit.error)})"
        widths = "" if fit is None else f", from N = {', '.join(map(str, fit.widths))}"
        say(f"relative deviation of draws from the {name}: {text}{widths}")
    if remainder := outcome.remainder():
        say(remainder)
    for result in results:
        for warning in result.diagnostics.warnings():
            say(f"warning, N = {result.width}: {warning}", style="yellow")
        say(f"N = {result.width}: {result.statement()}", style=ANSWERS[result.verdict][1])
    answer, colour = ANSWERS[outcome.verdict]
    if outcome.verdict == verdict.HOLDS and outcome.bound is not None:
        answer += f" to within {100 * outcome.bound:.2g} % of U and predictor"
    elif outcome.verdict == verdict.CANNOT_TELL:
        answer += f" whether it does to within {100 * results[0].margin:.2g} %"
    say(
        f"Does the theory hold on {model}? {answer}. A correct theory is rejected, and a bound is wrong, with probability"
        f" {LEVEL:g} at most, all comparisons together.",
        style=f"bold {colour}",
    )
    say_where(f"{seconds:.0f} s; figure and results in {folder}")


def _print_entries(results: list[Validation], show_all: bool) -> None:
    headings = ("N", "entry", "saddle", "1/N theory", "draws", "z", "R-hat", "ESS", "tail ESS")
    table, left_out, numbered = new_table(*headings), 0, set[int]()
    for result in results:
        entries, pairs = result.entries, np.tril_indices(len(result.corrected))
        every = range(len(entries.names))
        chosen = every if show_all else _entries_shown(entries, pairs)
        width, left_out = str(result.width), left_out + len(every) - len(chosen)
        for entry in chosen:
            at, differs = (pairs[0][entry], pairs[1][entry]), _differs(entries)[entry]
            numbered |= {at[0] + 1, at[1] + 1}
            drawn, error = float(result.order_parameter[at]), float(result.error[at])
            table.add_row(
                width,
                f"{at[0] + 1},{at[1] + 1}",
                *(rounded(float(theory[at]), error) for theory in (result.saddle, result.corrected)),
                with_error(drawn, error),
                cell(float(entries.z[entry]), "+.1f") + ("!" if differs else " "),
                cell(float(result.rhat[at]), ".3f"),
                cell(float(result.ess[at]), ".0f"),
                cell(float(result.tail_ess[at]), ".0f"),
                style="red" if differs else None,
            )
            width = ""
    print_table("Order parameter U", table)
    say(
        "z: draws less 1/N theory, in Monte Carlo errors (±); !: more than what the theory leaves out and Monte Carlo"
        " error explain; R-hat, ESS, tail ESS: of the draws of that entry"
    )
    say_paths(results[0].model.row_names, numbered)
    if left_out:
        say(f"{left_out} entries are not shown: --all shows them, result.json has them")


def _entries_shown(entries: Compared, pairs: tuple[np.ndarray, np.ndarray]) -> list[int]:
    """Indices of the largest diagonal entries, and of entries that differ or are farthest from the theory."""
    apart = [entry for entry in np.argsort(-entries.excess, kind="stable") if _differs(entries)[entry]][
        :MOST_DIFFERING_ENTRIES
    ]
    off, on = np.flatnonzero(pairs[0] != pairs[1]), np.flatnonzero(pairs[0] == pairs[1])
    own = on[np.argsort(-entries.size[on], kind="stable")][:MOST_DIAGONAL_ENTRIES]
    farthest = off[np.argsort(-np.abs(entries.z[off]), kind="stable")][:FARTHEST_ENTRIES]
    return sorted(map(int, {*own, *apart, *farthest}))


def _differs(entries: Compared) -> np.ndarray:
    """Whether each entry disagrees; False for an entry without a Monte Carlo error."""
    return ~entries.agrees & np.isfinite(entries.noise)


def _print_accuracy(shares: list[Accuracy], cases: list[Model], title: str) -> None:
    table = new_table("N", "T", "GP limit", "saddle", "1/N theory", "draws ± Monte Carlo", "± test set")
    against = new_table("N", "GP limit of", "draws", "McNemar p", "saddle", "draws are", text=("GP limit of",))
    for share, case in zip(shares, cases, strict=True):
        width = str(case.architecture.widths[0])
        gp, saddle, corrected = (
            percent(number, share.error, share.examples) for number in (share.gp, share.theory, share.corrected)
        )
        of_test_set = 100 * share.test_error
        cells = (gp, saddle, corrected, percent_with_error(share.draws, share.error, share.examples))
        table.add_row(width, f"{case.temperature:g}", *cells, f"± {rounded(of_test_set, of_test_set)}")
        for limit, gain in share.gains.items():
            cells = (_points(gain), f"{gain.p_value:.1g}", _points(share.theory_gains[limit]), OUTCOMES[gain.outcome])
            against.add_row(width, limit, *cells)
            width = ""
    print_table(title, table)
    print_table("Finite width less GP limit (points), on the same test examples", against)


def _points(gain: Gain) -> str:
    return with_error(100 * gain.difference, 100 * gain.error, "+")


def _print_curve(curve: dict[int, list[Candidate]], choose: bool, model: Model, seconds: float) -> None:
    if not curve:
        return
    how = "temperature by evidence, and by accuracy on validation examples" if choose else "saddle point, and GP limit"
    table = new_table("N", "by", "T", "log p(Y)", "validation %", "test %", text=("by",))
    for width, tried in curve.items():
        evident, accurate, gp = by_evidence(tried), by_validation(tried), by_gp_evidence(tried)
        rows = {"evidence" if choose else "theory": (evident, _evidence(evident), _shares(evident, model))}
        if choose and accurate is not None:
            rows["validation"] = (accurate, _evidence(accurate), _shares(accurate, model))
        if gp.gp_log_evidence is not None:
            rows["GP limit"] = (gp, f"{gp.gp_log_evidence:.2f}", ("", _percent(gp.gp_test_accuracy, model.test_labels)))
        for number, (name, (candidate, evidence, shares)) in enumerate(rows.items()):
            table.add_row("" if number else str(width), name, f"{candidate.temperature:g}", evidence, *shares)
    print_table(f"Theory: {how}", table)
    say("±: of log p(Y), its error; of accuracies, by the size of the validation or test set")
    if not all(by_evidence(tried).reliable for tried in curve.values()):
        say("?: not reliable, the stated error is too small", style="yellow")
    for width, tried in curve.items():
        if equal := rivals(tried):
            alike = ", ".join(f"{candidate.temperature:g}" for candidate in (by_evidence(tried), *equal))
            say(f"N = {width}: the evidence of T = {alike} cannot be distinguished", style="yellow")
    say(f"theory at {len(curve)} width{'s' if len(curve) > 1 else ''}: {seconds:.0f} s")


def _evidence(candidate: Candidate) -> str:
    if candidate.log_evidence is None or candidate.error is None:
        return ""
    return with_error(candidate.log_evidence, candidate.error) + ("" if candidate.reliable else " ?")


def _shares(candidate: Candidate, model: Model) -> tuple[str, str]:
    """Accuracies on validation and test examples as texts."""
    validated = _percent(candidate.validation_accuracy, model.validation_labels)
    return validated, _percent(candidate.test_accuracy, model.test_labels)


def _percent(share: float | None, labels: np.ndarray | None) -> str:
    return "" if share is None or labels is None else with_error(100 * share, 100 * binomial_error(share, len(labels)))
