"""Command `bayesattn theory`: predictions of the theory for a model."""

from contextlib import suppress
from typing import Annotated, cast

import numpy as np
import typer

import bayesattn as ba
from bayesattn._util.checks import seed_number
from bayesattn._util.plain import PlainDict
from bayesattn._util.text import UNKNOWN, rounded, with_error
from bayesattn.architecture import SKIP
from bayesattn.jobs.cli.attention import print_attentions
from bayesattn.jobs.cli.options import DataSeed, Json, ModelName, Seed, Temperatures, Widths, models
from bayesattn.jobs.cli.screen import Bars, bars, new_table, print_json, print_table, say, screen
from bayesattn.models import Model
from bayesattn.models.attention_model import AttentionModel
from bayesattn.models.model import has_fixed_attention
from bayesattn.theory.bartlett import layer_shapes
from bayesattn.theory.potential import MOST_COORDINATES, refuse_many, too_many

MOST_PATHS_SHOWN = 8
MAP_CELL = 9
"""Width in characters of a cell: a number of two digits, possibly with an exponent, and a margin."""


def theory(
    model: ModelName,
    width: Widths = None,
    temperature: Temperatures = None,
    data_seed: DataSeed = None,
    evidence: Annotated[
        bool, typer.Option("--evidence", help="Also compute log p(Y), to choose width and temperature.")
    ] = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Solve the theory: saddle point, its finite-width correction, head scores; with --evidence, log p(Y).

    For a model that samples queries and keys, it shows which of several attentions the posterior prefers at each width.

    Example: bayesattn theory hidden_markov --width 10 --width 100 --evidence
    """
    seed_number("--seed", seed)
    cases = [case for hot in temperature or [None] for case in models(model, width, hot, data_seed)]
    if not has_fixed_attention(cases[0]):
        print_attentions(cast(list[AttentionModel], cases), seed, as_json)
        return
    for case in cases if evidence else ():
        refuse_many("the evidence", layer_shapes(case.architecture), "use fewer heads or narrower layers")
    with bars(quiet=as_json) as shown:
        rows = [_theory_row(case, shown) for case in cases]
        if evidence:
            _add_evidence(rows, cases, seed, shown)
    if as_json:
        print_json(rows)
        return
    _print_diagonals(model, rows)
    if evidence:
        _print_evidence(rows)


def _print_diagonals(model: str, rows: list[PlainDict]) -> None:
    headings = ("N", "T", "path", "saddle point", "to first order in 1/N")
    table, paths = new_table(*headings, text=("path",)), len(rows[0]["paths"])
    for row in rows:
        own, corrected = np.diag(row["order_parameter"]), row["corrected_order_parameter"]
        corrected = None if corrected is None else np.diag(corrected)
        greatest = np.sort(np.argsort(-own, kind="stable")[:MOST_PATHS_SHOWN])
        case = (str(row["width"]), f"{row['temperature']:g}")
        for path in greatest:
            numbers = (UNKNOWN if values is None else f"{values[path]:#.4g}" for values in (own, corrected))
            table.add_row(*case, f"{path + 1}: {row['paths'][path]}", *numbers)
            case = ("", "")
    print_table(f"{model}: diagonal entry of U for each path", table)
    if paths > MOST_PATHS_SHOWN:
        say(f"the {MOST_PATHS_SHOWN} greatest of {paths}; all of U is in --json")
    if any(row["corrected_order_parameter"] is None for row in rows):
        say(f"{UNKNOWN}: more than {MOST_COORDINATES:,} coordinates, too many for an expansion to first order in 1/N")
    if paths <= MOST_PATHS_SHOWN:
        _print_few_heads(rows)
        return
    for row in rows:
        _print_heads(row)


def _print_few_heads(rows: list[PlainDict]) -> None:
    """Print the score of each head, a line for each width and temperature."""
    names = [f"{layer}.{way}" for layer, ways in enumerate(rows[0]["ways"], 1) for way in ways]
    table = new_table("N", "T", *names)
    for row in rows:
        scores = (f"{score:.3f}" for layer in row["head_scores"] for score in layer)
        table.add_row(str(row["width"]), f"{row['temperature']:g}", *scores)
    screen.print()
    print_table("score of each head, by its layer and number", table)


def _print_heads(row: PlainDict) -> None:
    """Print the score of each head and, for two layers, the diagonal entries of U by their heads."""
    case, scores = f"N = {row['width']}, T = {row['temperature']:g}", row["head_scores"]
    ways = row["ways"]
    table = new_table("head", *(f"layer {layer}" for layer in range(1, len(scores) + 1)))
    for way in sorted({way for layer in ways for way in layer}, key=lambda way: int(way) if way != SKIP else 0):
        of_layers = (dict(zip(*layer, strict=True)).get(way) for layer in zip(ways, scores, strict=True))
        table.add_row(way, *("" if score is None else f"{score:.3f}" for score in of_layers))
    screen.print()
    print_table(f"score of each head, {case}", table)
    if len(scores) != 2:
        return
    own = np.diag(row["order_parameter"]).reshape(*map(len, scores), -1).mean(-1)  # over outputs
    across = max(1, (screen.width - MAP_CELL) // MAP_CELL)
    for first in range(0, own.shape[1], across):
        table = new_table("", *(f"2.{way}" for way in ways[1][first : first + across]))
        for way, entries in zip(ways[0], own[:, first : first + across], strict=True):
            table.add_row(f"1.{way}", *(f"{entry:.2g}" for entry in entries))
        screen.print()
        print_table(f"diagonal entry of U by heads of layers 1 (rows) and 2 (columns), {case}", table)


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
    best = max(rows, key=lambda row: row["evidence"]["log_evidence"])
    table = new_table("N", "T", "log p(Y)", "method", "GP limit", "", text=("method",))
    for row in rows:
        evidence = row["evidence"]
        value = with_error(evidence["log_evidence"], evidence["error"]) + ("" if evidence["reliable"] else " ?")
        gp = UNKNOWN if evidence["gp"] is None else rounded(evidence["gp"], evidence["error"])
        mark = "best" if row is best else ""
        table.add_row(str(row["width"]), f"{row['temperature']:g}", value, evidence["method"], gp, mark)
    screen.print()
    print_table("log evidence, log p(Y | N, T)", table)
    if not all(row["evidence"]["reliable"] for row in rows):
        say("?: not reliable, the stated error is too small", style="yellow")
