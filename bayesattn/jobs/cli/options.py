"""Options shared by several commands, and models by name."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from typer.models import ArgumentInfo, OptionInfo

import bayesattn as ba
from bayesattn._util.input_files import read_toml
from bayesattn._util.plain import PlainDict
from bayesattn.jobs.cli.screen import training_progress
from bayesattn.models import Model
from bayesattn.samplers import AUTO, SAMPLERS
from bayesattn.tasks.load import FOLDER, ready_models

Sampler = StrEnum("Sampler", sorted([AUTO, *SAMPLERS]))
Parameterisation = StrEnum("Parameterisation", sorted(Model.parameterisations))
AUTO_SAMPLER, HMC, COLLAPSED = Sampler(AUTO), Sampler("hmc"), Parameterisation("collapsed")

SEVERAL_OUTPUTS = ("digits", "splice")
"""Tasks whose networks have several outputs."""


def _is_trained(table: PlainDict) -> bool:
    """Whether the heads of a ready model are trained."""
    return table["task"]["name"] == "one_shot"


def _can_be_pruned(table: PlainDict) -> bool:
    """Whether a ready model has one output and no skips."""
    return table["task"]["name"] not in SEVERAL_OUTPUTS and not table["architecture"].get("skips")


def _argument(serves: Callable[[PlainDict], bool], of: str = "") -> ArgumentInfo:
    """Argument MODEL, whose help lists the ready models that a command supports."""
    served = [name for name in ready_models() if serves(read_toml("model", FOLDER / f"{name}.toml"))]
    return typer.Argument(metavar="MODEL", help=f"{', '.join(served)}, or a path to a .toml file{of}.")


ModelName = Annotated[str, _argument(lambda _: True)]
TrainedName = Annotated[str, _argument(_is_trained, " of a one-shot task")]
PrunedName = Annotated[str, _argument(_can_be_pruned, " of one output and without skips")]
Width = Annotated[int | None, typer.Option(help="Width of all layers.")]
Widths = Annotated[list[int] | None, typer.Option("--width", help="Width of all layers; may be given several times.")]
Temperature = Annotated[float | None, typer.Option(help="Temperature T, instead of the model's.")]
Temperatures = Annotated[list[float] | None, typer.Option("--temperature", help="Temperature T; several may be given.")]
DataSeed = Annotated[int | None, typer.Option(help="Seed of the task's data, instead of the model's.")]
Seed = Annotated[int, typer.Option(help="Seed of the sampler.")]
Chains = Annotated[int, typer.Option(help="Number of chains.")]
Warmup = Annotated[int, typer.Option(help="Adaptation steps of each chain, discarded.")]
Draws = Annotated[int, typer.Option(help="Draws kept of each chain.")]
ShowAll = Annotated[bool, typer.Option("--all", help="Print every entry of U.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, to standard output.")]
Overwrite = Annotated[bool, typer.Option(help="Replace existing files at --out and --figure.")]
OverwriteOut = Annotated[bool, typer.Option(help="Replace an existing file at --out.")]
FigureFile = Annotated[
    Path | None,
    typer.Option("--figure", help="Write the figure to this file too: PNG, PDF or SVG by its ending."),
]
SamplerName = Annotated[Sampler, typer.Option("--sampler", help="Sampler.")]
ParameterisationName = Annotated[Parameterisation, typer.Option("--parameterisation", help="Form of the posterior.")]


def results_option(command: str) -> OptionInfo:
    """Option --out of a command with a figure and results."""
    return typer.Option(
        help=f"Folder for figure and results; by default out/{command}-MODEL, numbered if taken.",
    )


def models(name: str, widths: list[int] | None, temperature: float | None, data_seed: int | None) -> list[Model]:
    """Model at each width, with its data created once; a progress bar is shown if its heads must be trained."""
    width = widths[0] if widths else None
    with training_progress() as progress:
        first = ba.load_model(name, width=width, temperature=temperature, seed=data_seed, progress=progress)
    return [first, *(first.replace(width=width) for width in (widths or [])[1:])]
