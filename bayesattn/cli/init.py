"""bayesattn init: a model file to start from."""

import os
from pathlib import Path
from typing import Annotated

import typer

from bayesattn._files import replace_file
from bayesattn.cli.screen import errors, screen


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The model file.")] = Path("model.toml"),
    check: Annotated[
        bool, typer.Option("--check", help="Read the file instead, and say what model it describes.")
    ] = False,
) -> None:
    """Write a commented model file to edit, for data of your own; with --check, say what model a file describes.

    Nothing is overwritten. Exit status 2: bad input, such as a file that describes no model.
    """
    from bayesattn.models.template import described, template

    if check:
        lines, warnings = described(file if file.suffix == ".toml" else str(file))
        for line in lines:
            screen.print(line, soft_wrap=True)
        for warning in warnings:
            errors.print(f"bayesattn: warning: {warning}", style="yellow", soft_wrap=True)
        return
    if file.suffix != ".toml":
        raise ValueError(f"FILE must end in .toml, got {file}")
    if os.path.lexists(file):
        raise ValueError(f"FILE must not exist yet, got {file}, which does; choose another, or read it with --check")
    file.parent.mkdir(parents=True, exist_ok=True)
    arrays = file.with_suffix(".npz").name
    replace_file(file, template(arrays).encode())
    screen.print(f"model file in {file}; it expects your arrays in {arrays} beside it", soft_wrap=True)
    screen.print(f"then: bayesattn init --check {file}", soft_wrap=True)
