"""Command `bayesattn heads`: which heads matter, and how sure is that?"""

from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

import bayesattn as ba
from bayesattn._util.checks import positive_integer
from bayesattn._util.plain_values import PlainDict
from bayesattn._util.text import UNKNOWN, cell, with_error
from bayesattn.errors import BayesattnError
from bayesattn.jobs.cli import options, output, screen
from bayesattn.jobs.cli.drawn import DEFAULTS, opened, sampled, say_how_drawn
from bayesattn.jobs.plots import heads_figure
from bayesattn.jobs.tables import losses_table
from bayesattn.models.hyperpriors import shown_prior
from bayesattn.models.model import Model
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.questions.heads import Heads, Losses, Removal, predicted_losses

if TYPE_CHECKING:
    import xarray as xr

SHOWN_PATHS = 8
"""Number of paths shown, those of largest score."""


def heads(
    model: options.ModelName,
    width: options.Width = None,
    temperature: options.Temperature = None,
    data_seed: options.DataSeed = None,
    least: Annotated[int, typer.Option(help="k of P(k least), the probability of being among the k lowest.")] = 3,
    remove: Annotated[bool, typer.Option("--remove", help="Remove heads one by one, by evidence (theory).")] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="Sample the network without each head, in place of the theory's losses.")
    ] = False,
    sampler: options.SamplerName = options.HMC,
    out: options.RunFolder = None,
    chains: options.Chains = DEFAULTS["chains"],
    warmup: options.Warmup = DEFAULTS["warmup"],
    draws: options.Draws = DEFAULTS["draws"],
    seed: options.Seed = 0,
    figure: options.FigureFile = None,
    overwrite: options.OverwriteFigure = False,
    as_json: options.Json = False,
) -> None:
    """Which heads matter, and how sure is that? Scores from draws of U, and losses without each head.

    MODEL may also be the folder of a run. After an interruption, the same command resumes.

    Example: bayesattn heads hidden_markov --width 10 --remove
    """
    output.require_free_figure(figure, overwrite)
    positive_integer("--least", least)
    job: PlainDict = {"sampler": sampler.value, "chains": chains, "warmup": warmup, "draws": draws, "seed": seed}
    which = {"width": width, "temperature": temperature, "data_seed": data_seed, "out": out}
    case, folder, run = opened("heads", model, job, **which)
    if not case.has_theory and (exact or remove):
        priors = f", and priors of {' and '.join(case.hyperpriors.names)}" if case.has_priors else ""
        raise BayesattnError(
            "--exact and --remove need a network with fixed attention, Gaussian labels and known numbers, got"
            f" {type(case).__name__} with {type(case.likelihood).__name__} labels{priors}"
        )
    run = run or sampled(case, folder, job, as_json)
    drawn = run.draws()
    found, paths = ba.heads(drawn, model=case), ba.heads(drawn, of="paths", model=case)
    losses, removal = _lost(drawn, case, exact, remove, as_json, seed)
    if as_json:
        content = _content(case, found, paths, losses, removal, least)
        screen.print_json(content | {"diagnostics": run.diagnose().to_dict()})
    else:
        _print(case, found, paths, losses, removal, least, exact)
        say_how_drawn(run, folder)
    title = f"{case.name or model}, {case.size}"
    output.save_figure(lambda: heads_figure(found, paths, removal, title, losses), figure, overwrite, as_json)


def _lost(
    drawn: "xr.DataTree", case: NetworkPosterior, exact: bool, remove: bool, quiet: bool, seed: int
) -> tuple[Losses | None, Removal | None]:
    """Losses without each head, if theory or sampling can compute them, and the order of removal, if requested."""
    if not isinstance(case, Model) or not case.has_theory:
        return None, None
    with screen.working("networks without a head", quiet) as bar:
        if exact:
            losses = ba.head_losses(drawn, model=case, seed=seed, progress=lambda text: bar.update(note=text))
        else:
            losses = predicted_losses(case)
        return losses, ba.remove_heads(case) if remove else None


def _content(
    case: NetworkPosterior, found: Heads, paths: Heads, losses: Losses | None, removal: Removal | None, least: int
) -> PlainDict:
    """All numbers as plain values."""

    def rows(of: Heads | Losses, **more: np.ndarray) -> list[PlainDict]:
        records = of.summary().assign(**more).to_dict("records")
        return [{"name": name} | row for name, row in zip(of.names, records, strict=True)]

    def scores(of: Heads) -> list[PlainDict]:
        return rows(of, **{f"among_{least}_least": of.probability_among_least(min(least, len(of.names)))})

    content: PlainDict = {"model": case.name, "size": case.size, "temperature": case.table()["temperature"]}
    content |= {"heads": scores(found), "paths": scores(paths), "note": found.note}
    if losses is not None:
        content |= {"losses": rows(losses), "doubts": losses.doubts}
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
    names = [f"{layer}: {name}" for layer, name in found.names]
    least = min(least, len(names))
    among = found.probability_among_least(least)
    rows = [
        {"head": name}
        | _score(found, at)
        | {"prior": f"{found.prior[at]:.2f}", "P(least)": f"{found.probability_least[at]:.2f}"}
        | ({f"P({least} least)": f"{among[at]:.2f}"} if 1 < least < len(names) else {})
        for at, name in enumerate(names)
    ]
    temperature = UNKNOWN if case.temperature is None else shown_prior(case.temperature)
    screen.print_table(f"Heads of {case.name}, {case.size}, T = {temperature}", rows, ["head"])
    screen.say(
        "score: weight in U relative to the greatest, posterior mean ± sd; prior: its mean in networks of the prior;"
        " head: layer (from 1, as read) and name"
    )
    if found.note:
        screen.say(found.note, style="yellow")
    if losses is not None:
        rows = [{"head": name} | row for name, row in zip(names, losses_table(losses), strict=True)]
        screen.print_table("Lost without each head, all other values inferred again", rows, ["head"])
        screen.say(
            "sampled without it" if exact else "by the theory, to leading order at large width (--exact samples)"
        )
        for doubt in losses.doubts:
            screen.say(doubt, style="yellow")
    if len(paths.names) > 1:
        strongest = np.argsort(-paths.scores, kind="stable")[:SHOWN_PATHS]
        rows = [{"path": paths.names[at]} | _score(paths, at) for at in strongest]
        screen.print_table(f"Strongest {len(rows)} of {len(paths.names)} paths", rows, ["path"])
    if removal is not None:
        _print_removal(removal)


def _score(of: Heads, at: int) -> dict[str, str]:
    interval = f"{of.lower[at]:.2f} to {of.upper[at]:.2f}"
    return {"score": with_error(of.scores[at], of.sd[at]), "94 % interval": interval}


def _print_removal(removal: Removal) -> None:
    rows = [
        {
            "removed": str(number),
            "last": row["last"],
            "log evidence": f"{row['evidence']:+.1f}",
            "accuracy (%)": with_error(100 * row["accuracy"], 100 * row["accuracy_error"]),
            "log score": cell(row["log_score"], ".3f"),
        }
        for number, row in enumerate(removal.summary().to_dict("records"))
    ]
    screen.print_table("Heads removed one by one, all other values inferred again", rows, ["last"])
    if np.isfinite(removal.accuracy[0]):
        screen.say(removal.statement())
