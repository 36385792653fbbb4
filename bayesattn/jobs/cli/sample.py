"""Command `bayesattn sample`: start, resume or inspect a run on disk."""

import tomllib
from pathlib import Path
from typing import Annotated

import typer

import bayesattn as ba
from bayesattn._util.checks import shown
from bayesattn._util.plain_values import PlainDict
from bayesattn._util.text import cell, cells, with_error
from bayesattn.checks.mixing import COLUMNS
from bayesattn.errors import BayesattnError
from bayesattn.jobs import runs
from bayesattn.jobs.cli import options, screen
from bayesattn.jobs.tables import MOST_PATHS
from bayesattn.models.hyperpriors import QUERIES_AND_KEYS
from bayesattn.models.network_posterior import NetworkPosterior

ENTRIES_OF_LEAST_ESS = 3
"""Number of off-diagonal entries of U shown, those with the smallest effective sample size."""


def sample(
    model: options.ModelName,
    out: Annotated[Path, typer.Option(help="Folder of the run, a Zarr store; an existing run is resumed.")],
    width: options.Width = None,
    temperature: options.Temperature = None,
    data_seed: options.DataSeed = None,
    sampler: options.SamplerName = options.AUTO_SAMPLER,
    parameterisation: options.ParameterisationName = options.COLLAPSED,
    chains: options.Chains = 4,
    warmup: options.Warmup = 500,
    draws: options.Draws = 1000,
    seed: options.Seed = 0,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            help="order_parameter, prediction, queries_keys, weights; may be given several times. By default the first"
            " two; the others can be large."
        ),
    ] = None,
    thin: Annotated[int, typer.Option(help="Keep only every THIN-th draw; must divide --draws.")] = 1,
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Option of the sampler, such as max_tree_depth=8.")
    ] = None,
    target_ess: Annotated[
        float | None, typer.Option(help="Stop when every entry of U has this effective sample size, of bulk and tails.")
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option(help="Begin no further block of draws after this time; the same command resumes.")
    ] = None,
    threads: Annotated[int, typer.Option(min=0, help="Largest number of chains at a time; 0 for one per core.")] = 0,
    overwrite: Annotated[
        bool, typer.Option(help="Replace the run at --out; the old run is kept until the new one is complete.")
    ] = False,
    show_all: options.ShowAll = False,
    as_json: options.Json = False,
) -> None:
    """Draw from the posterior into a run on disk. The same command starts it, resumes it, or finds it complete.

    A complete run continues if --draws is larger; if it is smaller, its first draws are shown.
    Exit status 2: bad input, or draws that are not finite.

    Example: bayesattn sample hidden_markov --draws 2000 --out out/run
    """
    case = ba.load_model(model, width=width, temperature=temperature, seed=data_seed)
    settings: PlainDict = {
        "sampler": sampler.value,
        "parameterisation": parameterisation.value,
        "chains": chains,
        "warmup": warmup,
        "draws": draws,
        "seed": seed,
        "thin": thin,
        "options": dict(map(_parsed_option, option or [])),
    }
    if keep:
        settings["keep"] = keep
    before = _done(out)
    with screen.bars(quiet=as_json) as bar:
        try:
            run = runs.sample(
                case,
                out,
                progress=bar.sampling(f"sampling, N = {case.architecture.widths[0]}", chains * (warmup + draws)),
                threads=threads,
                overwrite=overwrite,
                target_ess=target_ess,
                max_seconds=max_seconds,
                **settings,
            )
        except KeyboardInterrupt as interrupt:
            status = interrupt.args[0] if interrupt.args else 130
            text = f"{_done(runs.under_way(out))} of {chains * (warmup + draws)} steps are recorded in {out}"
            screen.errors.print(f"bayesattn: interrupted; {text}; the same command resumes", soft_wrap=True)
            raise typer.Exit(status) from None
    if not run.drawn:
        say = screen.errors.print if as_json else screen.say_where
        say(f"{out} has no draws of all chains yet: run the same command to continue")
        raise typer.Exit(screen.CANNOT_TELL)
    summary = run.summary()
    rows = [row for row in summary if row["quantity"] == "order_parameter"]
    numbers = [row for row in summary if row["quantity"] in case.hyperpriors.variables]
    diagnostics = run.diagnose()
    if as_json:
        screen.print_json(
            {"out": str(out), "identity": run.identity, "order_parameter": rows, "diagnostics": diagnostics.to_dict()}
            | ({"numbers": numbers} if numbers else {})
        )
        return
    if numbers:
        named = [
            {"number": _named(row), "mean": with_error(row["mean"], row["error"])} | cells(row, COLUMNS)
            for row in numbers
        ]
        screen.print_table(f"Numbers that have priors, {case.size}", named, ["number"])
    if rows:
        _print_entries(case, rows, show_all)
    screen.say(diagnostics.overall())
    for warning in diagnostics.warnings():
        screen.say(f"warning: {warning}", style="yellow")
    if not run.complete and run.drawn == draws // thin:
        screen.say_where(
            f"{out} has the first {run.drawn} draws of {chains} chains, of a run that is not complete: --draws"
            f" {run.job.draws} continues it"
        )
        return
    if not run.complete:
        screen.say_where(
            f"{out} is stopped: {run.drawn} draws of {chains} chains; without target and limit, the same command continues"
        )
        return
    complete = before == chains * (warmup + draws) and not overwrite
    screen.say_where(
        f"{out} {'was already complete' if complete else 'is complete'}: {run.drawn} draws of {chains} chains"
    )


def _named(row: PlainDict) -> str:
    which = row.get("variance")
    if row["quantity"] in QUERIES_AND_KEYS:
        return f"{row['quantity']} of layer {which}"
    return row["quantity"] if which is None else "product of the variances" if which == "product" else which


def _print_entries(case: NetworkPosterior, entries: list[PlainDict], show_all: bool) -> None:
    numbers = {name: number for number, name in enumerate(case.row_names, 1)}
    own, off = ([each for each in entries if (each["path"] == each["other_path"]) == same] for same in (True, False))
    largest = sorted(own, key=lambda each: -each["mean"])[:MOST_PATHS]
    known = [each for each in off if each["ess"] is not None]
    fewest = sorted(known, key=lambda each: each["ess"])[:ENTRIES_OF_LEAST_ESS]
    chosen = [each for each in entries if show_all or each in largest or each in fewest]
    rows: list[dict[str, str]] = []
    for each in chosen:
        row = {
            "entry": f"{numbers[each['path']]},{numbers[each['other_path']]}",
            "mean": with_error(each["mean"], each["error"]),
            "sd": cell(each["sd"], ".3g"),
        } | cells(each, COLUMNS)
        rows.append(row | ({"step bias": with_error(each["bias"], each["bias_error"])} if "bias" in each else {}))
    screen.print_table(f"{case.name}, N = {case.architecture.widths[0]}: order parameter U", rows)
    screen.say("±: Monte Carlo error; R-hat, ESS, tail ESS: of the draws of that entry")
    screen.say_paths(case.row_names, [numbers[each[axis]] for each in chosen for axis in ("path", "other_path")])
    if len(chosen) < len(entries):
        screen.say(f"{len(entries) - len(chosen)} entries are not shown: --all shows them")


def _parsed_option(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except RecursionError:
        parsed = {}
    except tomllib.TOMLDecodeError:
        parsed = {"value": value} if equals and value else {}
    if parsed.keys() != {"value"}:
        raise BayesattnError(f"--option must be NAME=VALUE, such as max_tree_depth=8, got {shown(text)}")
    return name.strip(), parsed["value"]


def _done(out: Path) -> int:
    """Number of recorded steps of all chains of a run together, 0 without a run."""
    try:
        return sum(runs.Run(out).done)
    except (runs.RunError, OSError):
        return 0
