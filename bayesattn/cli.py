"""The command line: theory, sample, validate. It parses and prints; all mathematics is elsewhere."""

import json
import sys
import time
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

import bayesattn as ba
from bayesattn.models import PARAMETERISATIONS, Model, ready_models
from bayesattn.models.ready import describe
from bayesattn.samplers import SAMPLERS
from bayesattn.validation import MOST_ERRORS, Slope, Validation, scaling, summary, validate

HOLDS, FAILS, BAD_INPUT = 0, 1, 2
MOST_PATHS_SHOWN = 4
SAMPLE_COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("{task.fields[rate]}"),
    TimeElapsedColumn(),
    TextColumn("left"),
    TimeRemainingColumn(),
)

app = typer.Typer(
    name="bayesattn",
    help="Draw the exact posterior of attention networks and hold the theory against it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
screen, errors = Console(), Console(stderr=True)

Sampler = StrEnum("Sampler", sorted(SAMPLERS))
Parameterisation = StrEnum("Parameterisation", sorted(PARAMETERISATIONS))
NUTS, COLLAPSED = Sampler("nuts"), Parameterisation("collapsed")

ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help=f"{', '.join(ready_models())}, or a path to a .toml file.")
]
Widths = Annotated[list[int] | None, typer.Option("--width", help="Width of all layers; may be given several times.")]
Temperature = Annotated[float | None, typer.Option(help="Temperature T, instead of the model's.")]
Temperatures = Annotated[list[float] | None, typer.Option("--temperature", help="Temperature T; several may be given.")]
DataSeed = Annotated[int | None, typer.Option(help="Seed of the task's data, instead of the model's.")]
Seed = Annotated[int, typer.Option(help="Seed of the sampler.")]
Chains = Annotated[int, typer.Option(help="Number of chains.")]
Warmup = Annotated[int, typer.Option(help="Adaptation steps of each chain, discarded.")]
Draws = Annotated[int, typer.Option(help="Draws kept of each chain.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, to standard output.")]
Overwrite = Annotated[bool, typer.Option(help="Replace what stands at --out.")]
SamplerName = Annotated[Sampler, typer.Option("--sampler", help="Sampler.")]
ParameterisationName = Annotated[Parameterisation, typer.Option("--parameterisation", help="Form of the posterior.")]


@app.command("theory")
def theory_command(
    model: ModelName,
    width: Widths = None,
    temperature: Temperatures = None,
    data_seed: DataSeed = None,
    evidence: Annotated[
        bool, typer.Option("--evidence", help="Also log p(Y), to choose width and temperature by.")
    ] = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Solve the theory: saddle point, its finite-width correction, head scores; with --evidence, log p(Y)."""
    cases = [case for hot in temperature or [None] for case in _models(model, width, hot, data_seed)]
    rows = [_theory_row(case, evidence, seed) for case in cases]
    if as_json:
        _print_json(rows)
        return
    table = Table(
        title=f"{model}: own entry of U for each path (saddle point | first order in 1/N)",
        box=None,
        padding=(0, 2, 0, 0),
    )
    for heading in ("N", "T", *rows[0]["paths"]):
        table.add_column(heading, justify="right")
    for row in rows:
        pairs = zip(np.diag(row["order_parameter"]), np.diag(row["corrected_order_parameter"]), strict=True)
        entries = (f"{saddle:.3f} | {corrected:.3f}" for saddle, corrected in pairs)
        table.add_row(str(row["width"]), f"{row['temperature']:g}", *entries)
    screen.print(table)
    if evidence:
        _print_evidence(rows)


def _theory_row(case: Model, evidence: bool, seed: int) -> dict[str, Any]:
    problem = (case.path_inputs, case.labels, case.architecture, case.temperature)
    saddle = ba.theory.solve(*problem)
    corrected = ba.theory.finite_width(*problem)
    row = {
        "width": case.architecture.widths[0],
        "temperature": case.temperature,
        "paths": case.path_names,
        "order_parameter": saddle.order_parameter.tolist(),
        "corrected_order_parameter": corrected.order_parameter.tolist(),
        "order_parameter_std": corrected.order_parameter_std.tolist(),
        "energy": float(saddle.energy),
        "entropy": float(saddle.entropy),
        "gradient_norm": float(saddle.gradient_norm),
        "head_scores": [layer.tolist() for layer in ba.theory.head_scores(saddle.order_parameter, case.architecture)],
    }
    if evidence:
        row["evidence"] = {
            "expansion": ba.theory.laplace_evidence(*problem)._asdict(),
            "sampled": ba.theory.sampled_evidence(*problem, seed=seed)._asdict(),
            "gp": ba.theory.gp_evidence(*problem),
        }
    return row


def _print_evidence(rows: list[dict[str, Any]]) -> None:
    best = max(rows, key=lambda row: row["evidence"]["sampled"]["log_evidence"])
    table = Table(title="\nlog evidence, log p(Y | N, T)", box=None, padding=(0, 2, 0, 0))
    for heading in ("N", "T", "expansion ± last order", "sampled ± MC error", "GP limit", ""):
        table.add_column(heading, justify="right")
    for row in rows:
        found = row["evidence"]
        columns = (f"{found[key]['log_evidence']:.3f} ± {found[key]['error']:.3f}" for key in ("expansion", "sampled"))
        mark = "best" if row is best else ""
        table.add_row(str(row["width"]), f"{row['temperature']:g}", *columns, f"{found['gp']:.3f}", mark)
    screen.print(table)


@app.command("sample")
def sample_command(
    model: ModelName,
    out: Annotated[Path, typer.Option(help="Folder (Zarr) that the draws are written to.")],
    width: Annotated[int | None, typer.Option(help="Width of all layers.")] = None,
    temperature: Temperature = None,
    data_seed: DataSeed = None,
    sampler: SamplerName = NUTS,
    parameterisation: ParameterisationName = COLLAPSED,
    chains: Chains = 4,
    warmup: Warmup = 500,
    draws: Draws = 1000,
    seed: Seed = 0,
    keep_weights: Annotated[
        bool, typer.Option(help="Also keep the weights of every draw, which can be large.")
    ] = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Draw from the posterior and write the draws, with their diagnostics, as a Zarr store that ArviZ opens."""
    _refuse_to_overwrite(out, overwrite)
    [case] = _models(model, None if width is None else [width], temperature, data_seed)
    with _sampling_progress(chains * (warmup + draws), quiet=as_json) as progress:
        tree = ba.sample(
            case,
            sampler=sampler.value,
            parameterisation=parameterisation.value,
            chains=chains,
            warmup=warmup,
            draws=draws,
            seed=seed,
            keep_weights=keep_weights,
            progress=progress(f"N = {case.architecture.widths[0]}"),
        )
    # Zarr 3 has no stable form for the strings of path names yet.
    tree.to_zarr(out, mode="w" if overwrite else "w-", zarr_format=2)
    rows = summary(tree)
    if as_json:
        _print_json({"out": str(out), "order_parameter": rows})
        return
    table = Table(
        title=f"{case.name}, N = {case.architecture.widths[0]}: order parameter", box=None, padding=(0, 2, 0, 0)
    )
    for heading in ("entry", "mean", "sd", "MC error", "R-hat", "ESS"):
        table.add_column(heading, justify="left" if heading == "entry" else "right")
    for row in rows:
        entry = row["path"] if row["path"] == row["other_path"] else f"{row['path']} x {row['other_path']}"
        table.add_row(entry, *(f"{row[name]:.4g}" for name in ("mean", "sd", "error", "rhat", "ess")))
    screen.print(table)
    screen.print(f"draws written to {out}")


@app.command("validate")
def validate_command(
    model: ModelName,
    width: Widths = None,
    temperature: Temperature = None,
    data_seed: DataSeed = None,
    sampler: SamplerName = NUTS,
    parameterisation: ParameterisationName = COLLAPSED,
    chains: Chains = 4,
    warmup: Warmup = 200,
    draws: Draws = 1000,
    seed: Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for figure and results; by default out/validate-MODEL, numbered if taken."),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Does the theory hold? Draw the posterior at several widths and compare; exit status 0 if it holds, 1 if not."""
    folder = out or _free_folder(Path("out") / f"validate-{Path(model).stem}")
    _refuse_to_overwrite(folder, overwrite)
    cases = _models(model, width or [10, 30, 100, 300, 1000], temperature, data_seed)
    results = []
    start = time.perf_counter()
    with _sampling_progress(chains * (warmup + draws), quiet=as_json) as progress:
        for case in cases:
            tree = ba.sample(
                case,
                sampler=sampler.value,
                parameterisation=parameterisation.value,
                chains=chains,
                warmup=warmup,
                draws=draws,
                seed=seed,
                progress=progress(f"N = {case.architecture.widths[0]}"),
            )
            results.append(validate(case, tree))
    holds = all(result.holds for result in results)
    slopes = {of: scaling(results, of) for of in ("relative_deviation", "relative_remaining")}
    content = {
        "model": model,
        "holds": holds,
        "seed": seed,
        "scaling": {of: slope and slope._asdict() for of, slope in slopes.items()},
        "results": [result.to_dict() for result in results],
    }
    from bayesattn import plots

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(content, indent=1))
    plots.validation_figure(results).savefig(folder / "figure.png", dpi=150)
    if as_json:
        _print_json(content)
    else:
        _print_validation(results, slopes, model, holds, time.perf_counter() - start, folder)
    raise typer.Exit(HOLDS if holds else FAILS)


def _print_validation(
    results: list[Validation], slopes: dict[str, Slope | None], model: str, holds: bool, seconds: float, folder: Path
) -> None:
    if results[0].accuracy is not None:
        table = Table(title="Accuracy of the mean predictor (% of test examples)")
        for column in ("N", "saddle point", "1/N theory", "draws ± MC error", "GP limit"):
            table.add_column(column, justify="right")
        for result in results:
            share = result.accuracy
            assert share is not None
            draws = f"{100 * share.draws:.2f} ± {100 * share.error:.2f}"
            columns = (share.theory, share.corrected, share.gp)
            by_theory, corrected, gp = (f"{100 * value:.2f}" for value in columns)
            table.add_row(str(result.width), by_theory, corrected, draws, gp)
        screen.print(table)
    names = results[0].model.path_names
    table = Table(title="Order parameter U", box=None, padding=(0, 2, 0, 0))
    for heading in ("N", "entry", "saddle", "1/N theory", "draws", "MC error", "difference", "R-hat", "ESS"):
        table.add_column(heading, justify="right")
    for result in results:
        tolerance = MOST_ERRORS * result.error + result.allowance
        agrees = np.abs(result.remaining) <= tolerance
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
        for warning in result.warnings():
            screen.print(f"warning, N = {result.width}: {warning}", style="yellow")
        if not result.usable:
            screen.print(f"N = {result.width}: the draws are too poor to decide", style="red")
        for failure in result.failures():
            screen.print(f"N = {result.width}: {failure}", style="red")
    verdict = "holds" if holds else "does NOT hold"
    screen.print(
        f"Does the theory hold on {model}? It {verdict}: each entry of U must agree with the theory to first order in 1/N"
        " within 4 Monte Carlo errors plus the size of the next order.",
        style="bold green" if holds else "bold red",
    )
    screen.print(f"{seconds:.0f} s; figure and results in {folder}")


def _models(name: str, widths: list[int] | None, temperature: float | None, data_seed: int | None) -> list[Model]:
    """The model at each width, its data made once."""
    first = ba.load_model(name, width=widths[0] if widths else None, temperature=temperature, seed=data_seed)
    return [first, *(first.replace(width=width) for width in (widths or [])[1:])]


def _free_folder(folder: Path) -> Path:
    candidates = (folder.with_name(f"{folder.name}-{number}") for number in range(2, 10**6))
    return folder if not folder.exists() else next(c for c in candidates if not c.exists())


def _refuse_to_overwrite(path: Path, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise ValueError(f"--out must not exist yet, got {path}, which does; choose another or give --overwrite")


@contextmanager
def _sampling_progress(total: int, quiet: bool):
    """A progress bar for each sampling; yields a function from a description to a callback for `sample`."""
    with Progress(*SAMPLE_COLUMNS, console=errors, disable=quiet or not errors.is_terminal) as bars:

        def add(description: str):
            task = bars.add_task(description, total=total, rate="compiling")
            done: dict[int, int] = {}

            def tell(event: Any) -> None:
                done[event.chain] = event.done
                speed = bars.tasks[task].speed
                rate = f"{speed:.0f} draws/s" if speed else ""
                bars.update(task, completed=sum(done.values()), rate=rate)

            return tell

        yield add


def _print_json(content: Any) -> None:
    print(json.dumps(content, indent=1))


def main() -> None:
    """Entry point: bad input ends with one line and exit status 2."""
    try:
        code = app(standalone_mode=False, prog_name="bayesattn")
    except typer.Abort:
        errors.print("bayesattn: interrupted")
        sys.exit(130)
    except typer.TyperException as error:
        _end(error.format_message() if hasattr(error, "format_message") else str(error))
    except ValidationError as error:
        _end(describe(error))
    except (ValueError, OSError) as error:
        _end(str(error))
    except (ba.theory.NotConverged, FloatingPointError) as error:
        _end(str(error), FAILS)
    else:
        sys.exit(code or 0)


def _end(message: str, status: int = BAD_INPUT) -> None:
    print("bayesattn: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(status)
