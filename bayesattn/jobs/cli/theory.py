"""Command `bayesattn theory`: predictions of the theory for a model."""

from contextlib import suppress
from typing import Annotated, Any, cast

import jax.numpy as jnp
import numpy as np
import typer

import bayesattn as ba
from bayesattn._util.checks import seed_number
from bayesattn._util.plain_values import PlainDict
from bayesattn._util.text import UNKNOWN, rounded, with_error
from bayesattn.architecture import SKIP
from bayesattn.jobs.cli import options, screen
from bayesattn.jobs.cli.screen import Bars, console
from bayesattn.models import Model
from bayesattn.models.attention_model import AttentionModel
from bayesattn.models.model import has_fixed_attention
from bayesattn.models.queries_keys import QueriesAndKeys, heads_of
from bayesattn.questions.preferred_attention import compare_attention, most_probable_attention
from bayesattn.tasks.load import heads_of_task
from bayesattn.theory.bartlett import layer_shapes
from bayesattn.theory.potential import MOST_COORDINATES, refuse_many, too_many

MOST_PATHS_SHOWN = 8
MAP_CELL = 9
"""Width in characters of a cell: a number of two digits, possibly with an exponent, and a margin."""


def theory(
    model: options.ModelName,
    width: options.Widths = None,
    temperature: options.Temperatures = None,
    data_seed: options.DataSeed = None,
    evidence: Annotated[
        bool, typer.Option("--evidence", help="Also compute log p(Y), to choose width and temperature.")
    ] = False,
    seed: options.Seed = 0,
    as_json: options.Json = False,
) -> None:
    """Solve the theory: saddle point, its finite-width correction, head scores; with --evidence, log p(Y).

    For a model that samples queries and keys, it shows which of several attentions the posterior prefers at each width.

    Example: bayesattn theory hidden_markov --width 10 --width 100 --evidence
    """
    seed_number("--seed", seed)
    wanted = [{"temperature": hot, "width": n} for hot in temperature or [None] for n in width or [None]]
    first = ba.load_model(model, **wanted[0], seed=data_seed)
    others = ({name: value for name, value in each.items() if value is not None} for each in wanted[1:])
    cases = [first, *(first.replace(**changes) for changes in others)]
    if not has_fixed_attention(first):
        _print_attentions(cast(list[AttentionModel], cases), seed, as_json)
        return
    for case in cases:
        case.require_numbers()
    for case in cases if evidence else ():
        refuse_many("the evidence", layer_shapes(case.architecture), "use fewer heads or narrower layers")
    with screen.bars(quiet=as_json) as shown:
        rows = [_theory_row(case, shown) for case in cases]
        if evidence:
            _add_evidence(rows, cases, seed, shown)
    if as_json:
        screen.print_json(rows)
        return
    _print_diagonals(model, rows)
    if evidence:
        _print_evidence(rows)


def _print_diagonals(model: str, rows: list[PlainDict]) -> None:
    table, paths = [], rows[0]["paths"]
    for row in rows:
        own, corrected = np.diag(row["order_parameter"]), row["corrected_order_parameter"]
        corrected = None if corrected is None else np.diag(corrected)
        for path in np.sort(np.argsort(-own, kind="stable")[:MOST_PATHS_SHOWN]):
            texts = {"path": f"{path + 1}: {paths[path]}", "saddle point": f"{own[path]:#.4g}"}
            texts["to first order in 1/N"] = UNKNOWN if corrected is None else f"{corrected[path]:#.4g}"
            table.append(_settings(row) | texts)
    screen.print_table(f"{model}: diagonal entry of U for each path", table, ["path"], once=["N", "T"])
    if len(paths) > MOST_PATHS_SHOWN:
        screen.say(f"the {MOST_PATHS_SHOWN} greatest of {len(paths)}; all of U is in --json")
    if any(row["corrected_order_parameter"] is None for row in rows):
        many = f"more than {MOST_COORDINATES:,} coordinates, too many for an expansion to first order in 1/N"
        screen.say(f"{UNKNOWN}: {many}")
    if len(paths) > MOST_PATHS_SHOWN:
        for row in rows:
            _print_heads(row)
        return
    scores = []
    for row in rows:
        heads: dict[str, str] = {}
        for layer, (names, numbers, of) in enumerate(
            zip(row["way_names"], row["ways"], row["head_scores"], strict=True), 1
        ):
            for name, number, score in zip(names, numbers, of, strict=True):
                heads[f"{layer}: {name}" + (f" ({number})" if names.count(name) > 1 else "")] = f"{score:.3f}"
        scores.append(_settings(row) | heads)
    console.print()
    screen.print_table("score of each head, by its layer and name", scores)


def _settings(row: PlainDict) -> dict[str, str]:
    return {"N": str(row["width"]), "T": f"{row['temperature']:g}"}


def _print_heads(row: PlainDict) -> None:
    """Print the score of each head and, for two layers, the diagonal entries of U by their heads."""
    case, scores, ways = f"N = {row['width']}, T = {row['temperature']:g}", row["head_scores"], row["ways"]
    layers = [dict(zip(*layer, strict=True)) for layer in zip(ways, scores, strict=True)]
    names = sorted({way for layer in ways for way in layer}, key=lambda way: int(way) if way != SKIP else 0)
    of_layers = [
        {f"layer {number}": f"{layer[way]:.3f}" if way in layer else "" for number, layer in enumerate(layers, 1)}
        for way in names
    ]
    console.print()
    table = [{"head": way} | texts for way, texts in zip(names, of_layers, strict=True)]
    screen.print_table(f"score of each head, {case}", table)
    if len(scores) != 2:
        return
    own = np.diag(row["order_parameter"]).reshape(*map(len, scores), -1).mean(-1)  # over outputs
    across = max(1, (console.width - MAP_CELL) // MAP_CELL)
    for first in range(0, own.shape[1], across):
        columns = {f"2.{way}": first + place for place, way in enumerate(ways[1][first : first + across])}
        table = [
            {"": f"1.{way}"} | {name: f"{entries[column]:.2g}" for name, column in columns.items()}
            for way, entries in zip(ways[0], own, strict=True)
        ]
        console.print()
        screen.print_table(f"diagonal entry of U by heads of layers 1 (rows) and 2 (columns), {case}", table)


def _theory_row(case: Model, shown: Bars) -> PlainDict:
    shown.add(f"theory, N = {case.architecture.widths[0]}, T = {case.temperature:g}")
    saddle = ba.theory.solve(case)
    refused = too_many(layer_shapes(case.architecture, full=True))
    without_test = case.replace(test_path_inputs=None, test_labels=None)
    corrected = None if refused else ba.theory.finite_width(without_test)
    return {
        "width": case.architecture.widths[0],
        "temperature": case.temperature,
        "paths": case.row_names,
        "order_parameter": saddle.order_parameter.tolist(),
        "corrected_order_parameter": corrected and corrected.order_parameter.tolist(),
        "corrected_about": corrected and corrected.about,
        "order_parameter_variance": corrected and corrected.order_parameter_variance.tolist(),
        "energy": float(saddle.energy),
        "entropy": float(saddle.entropy),
        "gradient_norm": float(saddle.gradient_norm),
        "ways": case.architecture.way_names(),
        "way_names": case.architecture.way_names(case.head_names),
        "head_scores": [layer.tolist() for layer in ba.theory.head_scores(saddle.order_parameter, case.architecture)],
    }


def _add_evidence(rows: list[PlainDict], cases: list[Model], seed: int, shown: Bars) -> None:
    """Add the evidence of each case to its row, computed for all temperatures of a width in one run."""
    for width in {case.architecture for case in cases}:
        shown.add(f"evidence, N = {width.widths[0]}")
        same = [(row, case) for row, case in zip(rows, cases, strict=True) if case.architecture == width]
        evidences = ba.theory.evidences(same[0][1], [case.temperature for _, case in same], seed=seed)
        for (row, case), evidence in zip(same, evidences, strict=True):
            gp = None
            with suppress(ba.theory.NotConverged):
                gp = ba.theory.gp_evidence(case)
            row["evidence"] = evidence._asdict() | {"gp": gp}


def _print_evidence(rows: list[PlainDict]) -> None:
    best, table = max(rows, key=lambda row: row["evidence"]["log_evidence"]), []
    for row in rows:
        evidence = row["evidence"]
        value = with_error(evidence["log_evidence"], evidence["error"]) + ("" if evidence["reliable"] else " ?")
        gp = UNKNOWN if evidence["gp"] is None else rounded(evidence["gp"], evidence["error"])
        texts = {"log p(Y)": value, "method": evidence["method"], "GP limit": gp, "": "best" if row is best else ""}
        table.append(_settings(row) | texts)
    console.print()
    screen.print_table("log evidence, log p(Y | N, T)", table, ["method"])
    if not all(row["evidence"]["reliable"] for row in rows):
        screen.say("?: not reliable, the stated error is too small", style="yellow")
    for width in dict.fromkeys(row["width"] for row in rows):
        log_evidences = {row["temperature"]: row["evidence"]["log_evidence"] for row in rows if row["width"] == width}
        best_here = max(log_evidences, key=log_evidences.__getitem__)
        if len(log_evidences) > 1 and best_here in (least := min(log_evidences), max(log_evidences)):
            end, other = ("lowest", "lower") if best_here == least else ("highest", "higher")
            screen.say(f"N = {width}: the best T, {best_here:g}, is the {end} of those tried: try {other} ones")


def _print_attentions(cases: list[AttentionModel], seed: int, as_json: bool) -> None:
    """Print log evidences of the task's own, uniform and most probable heads, at each width and temperature."""
    with screen.working("searching for the most probable attention", as_json):
        compared = [compare_attention(case, _candidates(case, seed), seed=seed) for case in cases]
    rows: list[PlainDict] = [
        {"temperature": case.temperature} | row
        for case, comparison in zip(cases, compared, strict=True)
        for row in comparison.table.to_dict("records")
    ]
    if as_json:
        screen.print_json(rows)
        return
    table = [
        {
            "attention": row["candidate"],
            "N": str(row["width"]),
            "T": f"{row['temperature']:g}",
            "log p(Y | Q, K)": with_error(row["log_evidence"], row["error"]),
            "below the best": "" if row["difference"] == 0 else with_error(-row["difference"], row["difference_error"]),
        }
        for row in rows
    ]
    screen.print_table(f"{cases[0].name}: log evidence of several attentions", table, ["attention"])
    for comparison in compared:
        screen.say(comparison.summary())
    if "most probable" in compared[0].table["candidate"].tolist():
        screen.say("most probable: the maximum of log p(Y | Q, K) + log p(Q, K) found by ascent from a prior draw")


def _candidates(case: AttentionModel, seed: int) -> dict[str, Any]:
    """Candidates by name: the task's own heads, if it has any, the most probable heads, and uniform heads."""
    prior, found = QueriesAndKeys.of(case), {}
    if all((*case.query_variance, *case.key_variance)):  # With a variance of 0, all attention is uniform.
        rng = np.random.default_rng(seed)
        start = heads_of(prior.named({name: jnp.asarray(rng.normal(size=shape)) for name, shape in prior.sites()}))
        found["most probable"] = most_probable_attention(case, start).queries_and_keys
    found["uniform"] = [tuple(np.zeros(shape) for _ in range(2)) for shape in prior.shapes]
    own = heads_of_task(case)
    return found if own is None else {"the task's": own} | found
