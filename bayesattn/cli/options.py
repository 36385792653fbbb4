"""Options that several commands share, and models by name."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import bayesattn as ba
from bayesattn.cli.screen import training_progress
from bayesattn.models import Model, ready_models
from bayesattn.samplers import SAMPLERS

Sampler = StrEnum("Sampler", sorted(SAMPLERS))
Parameterisation = StrEnum("Parameterisation", sorted(Model.parameterisations))
NUTS, HMC, COLLAPSED = Sampler("nuts"), Sampler("hmc"), Parameterisation("collapsed")

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
Overwrite = Annotated[bool, typer.Option(help="Replace what stands at --out, or at --figure.")]
FigureFile = Annotated[
    Path | None,
    typer.Option("--figure", help="Write the figure to this file too: PNG, PDF or SVG by its ending."),
]
SamplerName = Annotated[Sampler, typer.Option("--sampler", help="Sampler.")]
ParameterisationName = Annotated[Parameterisation, typer.Option("--parameterisation", help="Form of the posterior.")]


def models(
    name: str, widths: list[int] | None, temperature: float | None, data_seed: int | None, quiet: bool = False
) -> list[Model]:
    """The model at each width, its data made once; training of its heads, where they need it, shows a progress bar."""
    width = widths[0] if widths else None
    with training_progress("training", quiet) as progress:
        first = ba.load_model(name, width=width, temperature=temperature, seed=data_seed, progress=progress)
    return [first, *(first.replace(width=width) for width in (widths or [])[1:])]
