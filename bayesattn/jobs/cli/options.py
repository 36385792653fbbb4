"""Options shared by several commands."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from typer.models import OptionInfo

from bayesattn.models import Model
from bayesattn.samplers import AUTO, SAMPLERS
from bayesattn.tasks.load import ready_models

Sampler = StrEnum("Sampler", sorted([AUTO, *SAMPLERS]))
Parameterisation = StrEnum("Parameterisation", sorted(Model.parameterisations))
AUTO_SAMPLER, HMC, COLLAPSED = Sampler(AUTO), Sampler("hmc"), Parameterisation("collapsed")

ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help=f"{', '.join(ready_models())}, or a path to a .toml file.")
]
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
OverwriteFigure = Annotated[bool, typer.Option("--overwrite", help="Replace an existing file at --figure.")]
OverwriteOut = Annotated[bool, typer.Option(help="Replace an existing file at --out.")]
RunFolder = Annotated[
    Path | None, typer.Option("--out", help="Folder of the run, which is resumed; by default in out.")
]
FigureFile = Annotated[
    Path | None, typer.Option("--figure", help="Write the figure to this file too: PNG, PDF or SVG by its ending.")
]
SamplerName = Annotated[Sampler, typer.Option("--sampler", help="Sampler.")]
ParameterisationName = Annotated[Parameterisation, typer.Option("--parameterisation", help="Form of the posterior.")]


def results_option(command: str) -> OptionInfo:
    """Option --out of a command with a figure and results."""
    return typer.Option(help=f"Folder for figure and results; by default out/{command}-MODEL, numbered if taken.")
