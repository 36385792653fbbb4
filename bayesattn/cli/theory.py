"""bayesattn theory: what the theory says of a model."""

from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

import bayesattn as ba
from bayesattn._checks import seed_number
from bayesattn.cli.options import DataSeed, Json, ModelName, Seed, Temperatures, Widths, models
from bayesattn.cli.screen import print_json, screen
from bayesattn.models import Model


def theory(
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
    seed_number("--seed", seed)
    cases = [case for hot in temperature or [None] for case in models(model, width, hot, data_seed)]
    rows = [_theory_row(case) for case in cases]
    if evidence:
        _add_evidence(rows, cases, seed)
    if as_json:
        print_json(rows)
        return
    table = Table(
        title=f"{model}: diagonal entry of U for each path (saddle point | first order in 1/N)",
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


def _theory_row(case: Model) -> dict[str, Any]:
    saddle = ba.theory.solve(case)
    corrected = ba.theory.finite_width(case, None)
    return {
        "width": case.architecture.widths[0],
        "temperature": case.temperature,
        "paths": case.path_names,
        "order_parameter": saddle.order_parameter.tolist(),
        "corrected_order_parameter": corrected.order_parameter.tolist(),
        "corrected_about": corrected.about,
        "order_parameter_variance": corrected.order_parameter_variance.tolist(),
        "energy": float(saddle.energy),
        "entropy": float(saddle.entropy),
        "gradient_norm": float(saddle.gradient_norm),
        "head_scores": [layer.tolist() for layer in ba.theory.head_scores(saddle.order_parameter, case.architecture)],
    }


def _add_evidence(rows: list[dict[str, Any]], cases: list[Model], seed: int) -> None:
    """To each row, its case's; all temperatures of a width in one run."""
    for width in {case.architecture for case in cases}:
        same = [(row, case) for row, case in zip(rows, cases, strict=True) if case.architecture == width]
        evidences = ba.theory.evidences(same[0][1], [case.temperature for _, case in same], seed=seed)
        for (row, case), evidence in zip(same, evidences, strict=True):
            row["evidence"] = evidence._asdict() | {"gp": ba.theory.gp_evidence(case)}


def _print_evidence(rows: list[dict[str, Any]]) -> None:
    best = max(rows, key=lambda row: row["evidence"]["log_evidence"])
    table = Table(title="\nlog evidence, log p(Y | N, T)", box=None, padding=(0, 2, 0, 0))
    for heading in ("N", "T", "log p(Y) ± error", "method", "GP limit", ""):
        table.add_column(heading, justify="right")
    for row in rows:
        evidence = row["evidence"]
        value = f"{evidence['log_evidence']:.3f} ± {evidence['error']:.3f}{'' if evidence['reliable'] else ' ?'}"
        mark = "best" if row is best else ""
        table.add_row(
            str(row["width"]), f"{row['temperature']:g}", value, evidence["method"], f"{evidence['gp']:.3f}", mark
        )
    screen.print(table)
    if not all(row["evidence"]["reliable"] for row in rows):
        screen.print("?: not reliable, the error understates itself", style="yellow")
