"""Command `bayesattn heads`: which heads matter, and how sure is that?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

import bayesattn as ba
from bayesattn._util.checks import positive_integer
from bayesattn._util.errors import BayesattnError
from bayesattn._util.plain import PlainDict
from bayesattn._util.text import cell, with_error
from bayesattn.jobs import runs
from bayesattn.jobs.cli.options import (
    HMC,
    Chains,
    DataSeed,
    Draws,
    FigureFile,
    Json,
    ModelName,
    SamplerName,
    Seed,
    Temperature,
    Warmup,
    Width,
    models,
)
from bayesattn.jobs.cli.screen import (
    new_table,
    print_json,
    print_table,
    require_free_figure,
    say,
    say_where,
    working,
)
from bayesattn.models.model import has_fixed_attention
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.questions.heads import Heads, Losses, Removal, predicted_losses
from bayesattn.questions.heads.removal import MOST_ACCURACY_LOST

if TYPE_CHECKING:
    import xarray as xr

LOST = f"{100 * MOST_ACCURACY_LOST:g}"
SHOWN_PATHS = 8
"""Number of paths shown, those of largest score."""


def heads(
    model: ModelName,
    width: Width = None,
    temperature: Temperature = None,
    data_seed: DataSeed = None,
    least: Annotated[int, typer.Option(help="k of P(k least), the probability of being among the k lowest.")] = 3,
    remove: Annotated[bool, typer.Option("--remove", help="Remove heads one by one, by evidence (theory).")] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="Sample the network without each head, in place of the theory's losses.")
    ] = False,
    sampler: SamplerName = HMC,
    out: Annotated[Path | None, typer.Option(help="Folder of the run, which is resumed; by default in out.")] = None,
    chains: Chains = 4,
    warmup: Warmup = 300,
    draws: Draws = 1000,
    seed: Seed = 0,
    figure: FigureFile = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing file at --figure.")] = False,
    as_json: Json = False,
) -> None:
    """Which heads matter, and how sure is that? Scores from draws of U, and losses without each head.

    MODEL may also be the folder of a run. After an interruption, the same command resumes.

    Example: bayesattn heads hidden_markov --width 10 --remove
    """
    require_free_figure(figure, overwrite)
    positive_integer("--least", least)
    given = {"--width": width, "--temperature": temperature, "--data-seed": data_seed, "--out": out}
    case, folder, run = _opened(model, given)
    possible = has_fixed_attention(case) and case.likelihood.conjugate
    if not possible and (exact or remove):
        raise BayesattnError(
            "--exact and --remove need a network with fixed attention and Gaussian labels, got"
            f" {type(case).__name__} with {case.likelihood!r}"
        )
    if run is None:
        job: PlainDict = {"sampler": sampler.value, "chains": chains, "warmup": warmup, "draws": draws, "seed": seed}
        kept = ("order_parameter", "prediction")
        run = runs.sample(case, folder, keep=kept, progress=False if as_json else None, **job)
    drawn = run.draws()
    found, paths = ba.heads(drawn, model=case), ba.heads(drawn, of="paths", model=case)
    losses, removal = _lost(drawn, case, exact, remove, as_json, seed)
    if as_json:
        print_json(_content(case, found, paths, losses, removal, least))
    else:
        _print(case, found, paths, losses, removal, least, exact)
        for warning in run.diagnose().warnings():
            say(f"warning: {warning}", style="yellow")
        say_where(f"run in {folder}")
    if figure is not None:
        from bayesattn.jobs.plots import heads_figure, save

        shown = f"{case.name or model}, {case.size}"
        save(heads_figure(found, paths, removal, shown), figure, overwrite=overwrite)
        if not as_json:
            say_where(f"figure in {figure}")


def _opened(model: str, given: PlainDict) -> tuple[NetworkPosterior, Path, runs.Run | None]:
    """Model, folder of its run, and the run itself if `model` is the folder of a run."""
    if Path(model).is_dir() and runs.is_run(model):
        run = runs.Run(model)
        if not isinstance(run.model, NetworkPosterior):
            raise BayesattnError(f"{model} must be a run of a network, got one of a {type(run.model).__name__}")
        if refused := [option for option, value in given.items() if value is not None]:
            raise BayesattnError(f"{refused[0]} is only for models, got it with the run {model}, which has its own")
        return run.model, Path(model), run
    width, temperature, data_seed, out = given.values()
    [case] = models(model, None if width is None else [width], temperature, data_seed)
    parts = {"N": width, "T": temperature, "data": data_seed}
    name = "-".join(
        ["heads", Path(model).stem, *(f"{key}={value}" for key, value in parts.items() if value is not None)]
    )
    return case, out or Path("out") / name, None


def _lost(
    drawn: "xr.DataTree", case: NetworkPosterior, exact: bool, remove: bool, quiet: bool, seed: int
) -> tuple[Losses | None, Removal | None]:
    """Losses without each head, if theory or sampling can compute them, and the order of removal, if requested."""
    if not has_fixed_attention(case) or not case.likelihood.conjugate:
        return None, None
    with working("networks without a head", quiet) as bar:
        if exact:
            losses = ba.head_losses(drawn, model=case, seed=seed, progress=lambda text: bar.update(note=text))
        else:
            losses = predicted_losses(case)
        return losses, ba.remove_heads(case) if remove else None


def _content(
    case: NetworkPosterior, found: Heads, paths: Heads, losses: Losses | None, removal: Removal | None, least: int
) -> PlainDict:
    """All numbers as plain values."""

    def rows(heads: Heads) -> list[PlainDict]:
        among = heads.probability_among_least(min(least, len(heads.names)))
        table = heads.summary().assign(**{f"among_{least}_least": among})
        return [{"name": name} | row for name, row in zip(heads.names, table.to_dict("records"), strict=True)]

    content: PlainDict = {
        "model": case.name,
        "size": case.size,
        "temperature": case.temperature,
        "heads": rows(found),
        "paths": rows(paths),
    }
    if losses is not None:
        content["losses"] = [
            {"name": name} | row for name, row in zip(losses.names, losses.summary().to_dict("records"), strict=True)
        ]
    if removal is not None:
        content["removal"] = removal.summary().to_dict("records")
    return content


def _print(
    case: NetworkPosterior,
    found: Heads,
    paths: Heads,
    losses: Losses | None,
    removal: Removal | None,
    least: int,
    exact: bool,
) -> None:
    least = min(least, len(found.names))
    among = found.probability_among_least(least)
    table = new_table("head", "score", "94 % interval", "P(least)", f"P({least} least)", text=("head",))
    for at, name in enumerate(found.names):
        interval = f"{found.lower[at]:.2f} to {found.upper[at]:.2f}"
        shares = (f"{found.probability_least[at]:.2f}", f"{among[at]:.2f}")
        table.add_row(_head(name), with_error(found.scores[at], found.sd[at]), interval, *shares)
    print_table(f"Heads of {case.name}, {case.size}, T = {cell(case.temperature, 'g')}", table)
    say("score: weight in U relative to the greatest, posterior mean ± sd; head: layer (from 1, as read) and name")
    if found.note:
        say(found.note, style="yellow")
    if losses is not None:
        _print_losses(losses, exact)
    _print_paths(paths)
    if removal is not None:
        _print_removal(removal)


def _head(name: tuple[int, str]) -> str:
    return f"{name[0]}: {name[1]}"


def _print_losses(losses: Losses, exact: bool) -> None:
    tested = bool(np.isfinite(losses.accuracy).any())
    table = new_table("head", "log evidence", *(("accuracy (%)", "log score") if tested else ()), text=("head",))
    for at, name in enumerate(losses.names):
        evidence = with_error(losses.evidence[at], losses.evidence_error[at]) if exact else f"{losses.evidence[at]:.1f}"
        cells = [_head(name), evidence]
        if tested:
            cells.append(with_error(100 * losses.accuracy[at], 100 * losses.accuracy_error[at], "+"))
            cells.append(with_error(losses.log_score[at], losses.log_score_error[at], "+"))
        table.add_row(*cells)
    print_table("Lost without each head, all other values inferred again", table)
    say("sampled without it" if exact else "by the theory, to leading order at large width (--exact samples)")


def _print_paths(paths: Heads) -> None:
    if len(paths.names) < 2:
        return
    table = new_table("path", "score", "94 % interval", text=("path",))
    for at in np.argsort(-paths.scores, kind="stable")[:SHOWN_PATHS]:
        interval = f"{paths.lower[at]:.2f} to {paths.upper[at]:.2f}"
        table.add_row(paths.names[at], with_error(float(paths.scores[at]), float(paths.sd[at])), interval)
    shown = min(SHOWN_PATHS, len(paths.names))
    print_table(f"Strongest {shown} of {len(paths.names)} paths", table)


def _print_removal(removal: Removal) -> None:
    table = new_table("removed", "last", "log evidence", "accuracy (%)", "log score", text=("last",))
    for number, last in enumerate(removal.summary()["last"]):
        right = with_error(100 * removal.accuracy[number], 100 * removal.accuracy_error[number])
        score = cell(removal.log_score[number], ".3f")
        table.add_row(str(number), last, f"{removal.evidence[number]:+.1f}", right, score)
    print_table("Heads removed one by one, all other values inferred again", table)
    if np.isfinite(removal.accuracy[0]):
        say(f"{removal.dispensable} of {len(removal.names)} can go before more than {LOST} points of accuracy are lost")
