"""bayesattn validate: does the theory hold?"""

import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

import bayesattn as ba
from bayesattn import study, validation
from bayesattn._checks import positive
from bayesattn.accuracy import ALL_PATHS, Accuracy, Gain, binomial_error
from bayesattn.cli.options import (
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
    Temperature,
    Widths,
)
from bayesattn.cli.screen import (
    CANNOT_TELL,
    FAILS,
    HOLDS,
    free_folder,
    print_json,
    refuse_to_overwrite,
    require_free_figure,
    sampling_progress,
    save_results,
    screen,
    training_progress,
)
from bayesattn.models import Model
from bayesattn.models.load import load_validate_table
from bayesattn.samplers import Job
from bayesattn.study import ValidationStudy
from bayesattn.tasks.images import is_named
from bayesattn.temperature import Candidate, by_evidence, by_gp_evidence, by_validation, rivals
from bayesattn.validation import LEVEL, MARGIN

EXIT_STATUSES = {validation.HOLDS: HOLDS, validation.DOES_NOT_HOLD: FAILS, validation.CANNOT_TELL: CANNOT_TELL}
ANSWERS = {
    validation.HOLDS: ("It holds", "bold green"),
    validation.DOES_NOT_HOLD: ("It does NOT hold", "bold red"),
    validation.CANNOT_TELL: ("It cannot be told", "bold yellow"),
}
EXCHANGEABLE = "exchangeable"
FOR_CLAIMS = ("context", "model", "seed", "out", "figure", "overwrite", "as_json")
MOST_PATHS_SHOWN = 4
OUTCOMES = {"higher": "better", "lower": "worse", "cannot tell": "unclear"}


def validate(
    context: typer.Context,
    model: ModelName,
    width: Widths = None,
    temperature: Temperature = None,
    data_seed: DataSeed = None,
    theory_width: Annotated[
        list[int] | None, typer.Option(help="Width at which the theory alone is solved; may be given several times.")
    ] = None,
    sampler: Annotated[
        Sampler | None, typer.Option(help="By default the model's, nuts unless it says otherwise.")
    ] = None,
    parameterisation: ParameterisationName = COLLAPSED,
    chains: Chains = 4,
    warmup: Annotated[
        int | None, typer.Option(help="Adaptation steps of each chain; by default the model's, or 200.")
    ] = None,
    draws: Annotated[int | None, typer.Option(help="Draws of each chain; by default the model's, or 1000.")] = None,
    seed: Seed = 0,
    also_on: Annotated[
        list[str] | None,
        typer.Option(help="Further test images of a one-shot model, such as digits; may be given several times."),
    ] = None,
    margin: Annotated[
        float, typer.Option(help="Difference, relative to U and to the predictor, within which the theory is to hold.")
    ] = MARGIN,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for figure and results; by default out/validate-MODEL, numbered if taken."),
    ] = None,
    figure: FigureFile = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Does the theory hold? Draw the posterior at several widths and compare.

    Exit status 0: it holds, to within --margin; 1: it does not; 2: the draws cannot tell, or the theory could not be solved.

    MODEL may be "exchangeable" too: every claim about attention as inference of a latent posterior, law by law.

    A model with validation examples, such as one-shot images, gets at each width the temperature of greatest evidence,
    unless --temperature is given. Widths, sampler and numbers of draws are those of the model file's [validate].
    """
    folder = out or free_folder(Path("out") / f"validate-{Path(model).stem}")
    refuse_to_overwrite(folder, overwrite)
    require_free_figure(figure, overwrite)
    if model == EXCHANGEABLE:
        sources = {name: context.get_parameter_source(name) for name in context.params if name not in FOR_CLAIMS}
        if given := [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]:
            option = given[0].replace("_", "-")
            raise ValueError(
                "validate exchangeable takes --seed, --out, --overwrite and for output --figure and --json, got"
                f" --{option} too"
            )
        from bayesattn.cli.exchangeable import validate_claims

        validate_claims(seed, folder, as_json, figure)
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
    Job(**settings)  # Bad ones are found before any training.
    # Before the model's own data, so that a wrong name is found before any training.
    elsewhere = {}
    with training_progress("training", as_json) as progress:
        for source in also_on or []:
            task = {"test_images": _found_from_here(source)}
            try:
                elsewhere[source] = ba.load_model(model, seed=data_seed, task=task, progress=progress)
            except ValueError as error:
                raise ValueError(f"--also-on {source}: {error}") from error
    widths = width or usual.widths
    with training_progress("training", as_json) as progress:
        case = ba.load_model(model, width=widths[0], temperature=temperature, seed=data_seed, progress=progress)
    start = time.perf_counter()
    choose = temperature is None and case.validation_labels is not None
    with sampling_progress(chains * (warmup + draws), quiet=as_json) as bar:
        outcome = study.validate(
            case,
            widths,
            choose_temperature=choose,
            theory_widths=theory_width or usual.theory_widths,
            also_on=elsewhere,
            margin=margin,
            solving=lambda width: bar(f"theory, N = {width}", None),
            sampling=lambda width: bar(f"N = {width}"),
            **settings,
        )
    seconds = time.perf_counter() - start
    content = {"model": model, "seed": seed} | outcome.to_dict()
    save_results(folder, content, outcome.figure(), figure)
    if as_json:
        print_json(content)
    else:
        _print_curve(outcome.curve, choose, case, outcome.theory_seconds)
        for name, shares in outcome.elsewhere.items():
            drawn = [result.model for result in outcome.validations]
            _print_accuracy(shares, drawn, f"Accuracy on {name} (% of test examples)")
        _print_validation(outcome, model, seconds, folder)
    raise typer.Exit(EXIT_STATUSES[outcome.verdict])


def _print_validation(outcome: ValidationStudy, model: str, seconds: float, folder: Path) -> None:
    results, slopes = outcome.validations, outcome.scaling
    shares = [result.accuracy for result in results if result.accuracy is not None]
    if shares:
        title = "Accuracy of the mean predictor (% of test examples)"
        _print_accuracy(shares, [result.model for result in results], title)
    for result in results:
        gain = result.accuracy and result.accuracy.gains[ALL_PATHS].verdict("the GP limit")
        alignment = result.alignment and result.alignment.verdict()
        if said := "; ".join(verdict for verdict in (gain, alignment) if verdict):
            screen.print(f"N = {result.width}: {said}")
    names = results[0].model.path_names
    table = Table(title="Order parameter U", box=None, padding=(0, 2, 0, 0))
    for heading in ("N", "entry", "saddle", "1/N theory", "draws", "MC error", "difference", "R-hat", "ESS"):
        table.add_column(heading, justify="right")
    for result in results:
        agrees = result.agrees
        for entry, (row, column) in enumerate(zip(*np.tril_indices(len(names)), strict=True)):
            if len(names) > MOST_PATHS_SHOWN and row != column and agrees[row, column]:
                continue
            numbers = (result.saddle, result.corrected, result.order_parameter, result.error)
            table.add_row(
                str(result.width) if entry == 0 else "",
                f"{row + 1},{column + 1}",
                *(f"{matrix[row, column]:.4f}" for matrix in numbers),
                f"{result.remaining[row, column]:+.4f}" + (" " if agrees[row, column] else "!"),
                f"{result.rhat[row, column]:.3f}",
                f"{result.ess[row, column]:.0f}",
                style=None if agrees[row, column] else "red",
            )
        table.add_section()
    screen.print(table)
    numbered = ", ".join(f"{number} {name}" for number, name in enumerate(names, 1))
    screen.print(f"difference: draws - 1/N theory; paths: {numbered}")
    if len(names) > MOST_PATHS_SHOWN:
        screen.print("entries between different paths are shown where they differ; all are in result.json")
    for of, name in (("relative_deviation", "saddle point"), ("relative_remaining", "1/N theory")):
        fit = slopes[of]
        text = "not seen at two widths" if fit is None else f"~ N^({fit.slope:.2f} ± {fit.error:.2f})"
        widths = "" if fit is None else f", from N = {', '.join(map(str, fit.widths))}"
        screen.print(f"relative deviation of draws from the {name}: {text}{widths}")
    for result in results:
        for warning in result.diagnostics.warnings():
            screen.print(f"warning, N = {result.width}: {warning}", style="yellow")
        screen.print(f"N = {result.width}: {result.statement()}", style=ANSWERS[result.verdict][1].split()[1])
    answer, style = ANSWERS[outcome.verdict]
    if outcome.verdict == validation.HOLDS:
        answer += f" to within {100 * max(result.bound for result in results):.2g} % of U and predictor"
    elif outcome.verdict == validation.CANNOT_TELL:
        answer += f" whether it does to within {100 * results[0].margin:.2g} %"
    screen.print(
        f"Does the theory hold on {model}? {answer}. A right theory is found wrong, and a bound is wrong, with probability"
        f" {LEVEL:g} at most, all comparisons together.",
        style=style,
    )
    screen.print(f"{seconds:.0f} s; figure and results in {folder}")


def _found_from_here(source: str) -> str:
    """A file's path from the folder of the command, not of the model file."""
    return source if is_named(source) else str(Path(source).absolute())


def _print_accuracy(shares: list[Accuracy], cases: list[Model], title: str) -> None:
    table = Table(title=title, box=None, padding=(0, 2, 0, 0))
    for column in ("N", "T", "saddle point", "1/N theory", "draws", "± Monte Carlo", "± test set", "GP limit"):
        table.add_column(column, justify="right")
    against = Table(
        title="Finite width less GP limit (points), on the same test examples", box=None, padding=(0, 2, 0, 0)
    )
    for column in ("N", "GP limit of", "draws", "McNemar p", "saddle point", "draws are"):
        against.add_column(column, justify="left" if column == "GP limit of" else "right")
    for share, case in zip(shares, cases, strict=True):
        width = str(case.architecture.widths[0])
        numbers = (share.theory, share.corrected, share.draws, share.error, share.test_error, share.gp)
        table.add_row(width, f"{case.temperature:g}", *(f"{100 * number:.2f}" for number in numbers))
        for limit, gain in share.gains.items():
            cells = (_points(gain), f"{gain.p_value:.1g}", _points(share.theory_gains[limit]), OUTCOMES[gain.outcome])
            against.add_row(width, limit, *cells)
            width = ""
    screen.print(table)
    screen.print(against)


def _points(gain: Gain) -> str:
    return f"{100 * gain.difference:+.1f} ± {100 * gain.error:.1f}"


def _print_curve(curve: dict[int, list[Candidate]], choose: bool, model: Model, seconds: float) -> None:
    if not curve:
        return
    how = "temperature by evidence, and by accuracy on validation (val.) examples" if choose else "saddle point"
    title = f"Theory: {how}; ± by the size of the test or validation set"
    table = Table(title=title, box=None, padding=(0, 2, 0, 0))
    columns = ["N", "T", "log p(Y) ± error", "test %"]
    columns += ["T by val.", "val. %", "test %", "T of GP", "GP test %"] if choose else ["GP test %"]
    for column in columns:
        table.add_column(column, justify="right", no_wrap=column.startswith("log p"))
    for width, tried in curve.items():
        evident, accurate, gp = by_evidence(tried), by_validation(tried), by_gp_evidence(tried)
        log_evidence = f"{evident.log_evidence:.2f} ± {evident.error:.2f}{'' if evident.reliable else ' ?'}"
        cells = [f"{evident.temperature:g}", log_evidence, _percent(evident.test_accuracy, model.test_labels)]
        if choose and accurate is not None:
            cells += [
                f"{accurate.temperature:g}",
                _percent(accurate.validation_accuracy, model.validation_labels),
                _percent(accurate.test_accuracy, model.test_labels),
                f"{gp.temperature:g}",
            ]
        table.add_row(str(width), *cells, _percent(gp.gp_test_accuracy, model.test_labels))
    screen.print(table)
    if not all(by_evidence(tried).reliable for tried in curve.values()):
        screen.print("?: not reliable, the error understates itself", style="yellow")
    for width, tried in curve.items():
        if equal := rivals(tried):
            alike = ", ".join(f"{candidate.temperature:g}" for candidate in (by_evidence(tried), *equal))
            screen.print(f"N = {width}: the evidence of T = {alike} cannot be told apart", style="yellow")
    screen.print(f"theory at {len(curve)} widths: {seconds:.0f} s")


def _percent(share: float | None, labels: Any) -> str:
    return "" if share is None else f"{100 * share:.1f} ± {100 * binomial_error(share, len(labels)):.1f}"
