"""Command `bayesattn train`: queries and keys by gradient descent."""

from pathlib import Path
from typing import Annotated

import typer

from bayesattn.jobs.cli.options import DataSeed, TrainedName
from bayesattn.jobs.cli.screen import say_where, screen, training_progress
from bayesattn.tasks import training
from bayesattn.tasks.load import load_task


def train(
    model: TrainedName,
    out: Annotated[Path, typer.Option(help="New .safetensors file for all weights of the network.")],
    data_seed: DataSeed = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Gradient steps, instead of the model's.")] = None,
    compact: Annotated[
        bool,
        typer.Option("--compact", help="Keep queries and keys in half precision, plus only what prune needs."),
    ] = False,
) -> None:
    """Train the network of a one-shot task; [task] attention = FILE then uses its queries and keys.

    The same command resumes interrupted training.

    Example: bayesattn train one_shot_digits --out heads.safetensors
    """
    task, settings = load_task(model, seed=data_seed, steps=steps)
    with training_progress() as progress:
        weights = training.train(task, settings, out, progress, small=compact)
    for part in ("validation", "test"):
        screen.print(f"accuracy on {part} classes: {100 * training.accuracy(task, weights, part):.1f} %")
    say_where(f"weights in {out}")
