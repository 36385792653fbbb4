"""Command `bayesattn influence`: which training examples carry the predictions?"""

from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

import bayesattn as ba
from bayesattn._util.checks import positive_integer
from bayesattn._util.plain_values import PlainDict
from bayesattn._util.text import cell, with_error
from bayesattn.errors import BayesattnError
from bayesattn.jobs.cli import options, output, screen
from bayesattn.jobs.cli.drawn import DEFAULTS, opened, sampled, say_how_drawn
from bayesattn.jobs.plots import influence_figure
from bayesattn.jobs.tables import label_text
from bayesattn.models.network_posterior import NetworkPosterior

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


def influence(
    model: options.ModelName,
    width: options.Width = None,
    temperature: options.Temperature = None,
    data_seed: options.DataSeed = None,
    test_example: Annotated[int, typer.Option(help="Test example whose prediction is looked at, from 0.")] = 0,
    left_out: Annotated[
        bool,
        typer.Option("--left-out", help="Also what changes if an example is left out, sampled again where needed."),
    ] = False,
    most: Annotated[int, typer.Option(help="Most rows of a table.")] = 10,
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
    """Which training examples carry the predictions? Derivatives by the weight of each example, with errors.

    MODEL may also be the folder of a run. After an interruption, the same command resumes.

    Example: bayesattn influence hidden_markov --width 10 --test-example 3
    """
    output.require_free_figure(figure, overwrite)
    positive_integer("--most", most)
    job: PlainDict = {"sampler": sampler.value, "chains": chains, "warmup": warmup, "draws": draws, "seed": seed}
    which = {"width": width, "temperature": temperature, "data_seed": data_seed, "out": out}
    case, folder, run = opened("influence", model, job, **which)
    if not case.test_examples:
        raise BayesattnError(f"MODEL must have test examples, got {model}, which has none")
    positive_integer("--test-example", test_example, 0, case.test_examples - 1)
    run = run or sampled(case, folder, job, as_json)
    of = ("outputs", "losses", "head_scores", *(("left_out",) if left_out else ()))
    with screen.working("influences", as_json):
        found = ba.influence(run.draws(), of, model=case, seed=seed)
    names = [*found["output"].values] if "output" in found["outputs"].dims else []  # Numbers, if they have no names.
    tables = {str(name): found.influence.table(test_example, at, most=most) for at, name in enumerate(names)}
    tables = tables or {"": found.influence.table(test_example, most=most)}
    if as_json:
        screen.print_json(_content(case, found, tables, test_example) | {"diagnostics": run.diagnose().to_dict()})
    else:
        labels = np.asarray(case.labels)
        for name, table in tables.items():
            title = f"{case.name}, {case.size}: what f at test example {test_example} rests on"
            screen.print_table(title + (f", output {name}" if name else ""), _rests_on(table, labels))
        screen.say(
            "influence: change of the mean of f per unit of an example's weight, which is 1, and 0 if it is left out"
        )
        title = "Greatest influence on the predictions, root mean square of all test examples"
        screen.print_table(title, _strongest(found, labels, most))
        screen.print_table("Scores of heads, by example", _by_head(found), ["head"])
        if "note" in found.attrs:
            screen.say(found.attrs["note"], style="yellow")
        say_how_drawn(run, folder)
    output.save_figure(
        lambda: influence_figure(found, f"{case.name or model}, {case.size}"), figure, overwrite, as_json
    )


def _content(
    case: NetworkPosterior, found: "xr.Dataset", tables: "dict[str, pd.DataFrame]", test_example: int
) -> PlainDict:
    """Tables, and all influences, as plain values."""
    rows = {name or "output": table.reset_index().to_dict("records") for name, table in tables.items()}
    return {
        "model": case.name,
        "size": case.size,
        "test_example": test_example,
        "note": found.attrs.get("note", ""),
        "rests_on": rows,
        "influence": {str(name): values.values.tolist() for name, values in found.data_vars.items()},
    }


def _rests_on(table: "pd.DataFrame", labels: np.ndarray) -> list[dict[str, str]]:
    """Rows of the training examples on which one prediction rests."""
    rows = []
    for row in table.reset_index().to_dict("records"):
        shown = {
            "example": str(row["example"]),
            "label": label_text(labels, row["example"]),
            "influence": with_error(row["influence"], row["error"]),
            "more than the next": "yes" if row["known"] else "cannot tell",
        }
        if "left_out" in row:
            shown["if left out"] = with_error(row["left_out"], row["left_out_error"])
            shown["Pareto k"] = cell(row["pareto_k"], ".2f") + (", sampled again" if row["refitted"] else "")
        rows.append(shown)
    return rows


def _strongest(found: "xr.Dataset", labels: np.ndarray, most: int) -> list[dict[str, str]]:
    """Rows of the training examples with the greatest influence on all predictions."""
    strength, own = found.influence.strongest().values, np.diagonal(found["losses"].values)
    rows = []
    for at in np.argsort(-strength, kind="stable")[:most]:
        row = {"example": str(at), "label": label_text(labels, at)}
        row |= {"on predictions": f"{strength[at]:.3g}", "on its own loss": f"{own[at]:.3g}"}
        if "accuracy_left_out" in found:
            row["accuracy left out"] = f"{100 * found['accuracy_left_out'].values[at]:+.1f} points"
        rows.append(row)
    return rows


def _by_head(found: "xr.Dataset") -> list[dict[str, str]]:
    """Rows of the heads, with the examples that raise and lower their scores most."""
    scores, errors = found["head_scores"], found["head_scores_error"].values
    rows = []
    for head, values, error in zip(scores["layer_head"].values, scores.values, errors, strict=True):
        up, down = int(np.argmax(values)), int(np.argmin(values))
        row = {"head": str(head), "raised most by": f"{up} ({with_error(values[up], error[up])})"}
        rows.append(row | {"lowered most by": f"{down} ({with_error(values[down], error[down])})"})
    return rows
