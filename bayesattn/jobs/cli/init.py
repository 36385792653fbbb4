"""Command `bayesattn init`: a model file to start from."""

import json
from pathlib import Path
from typing import Annotated

import typer

from bayesattn._util.files import replace_file, require_new
from bayesattn.errors import BayesattnError
from bayesattn.jobs.cli import screen
from bayesattn.models.memory import bytes_needed
from bayesattn.samplers import AUTO, SAMPLERS
from bayesattn.tasks.load import load_model

TEMPLATE = Path(__file__).with_name("template.toml.txt")


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The model file.")] = Path("model.toml"),
    check: Annotated[
        bool, typer.Option("--check", help="Read the file instead, and say what model it describes.")
    ] = False,
) -> None:
    """Write a commented model file to edit, for data of your own; with --check, say what model a file describes.

    Nothing is overwritten. Exit status 2: bad input, such as a file that describes no model.

    Example: bayesattn init mine.toml
    """
    if check:
        _check(file if file.suffix == ".toml" else str(file))
        return
    if file.suffix != ".toml":
        raise BayesattnError(f"FILE must end in .toml, got {file}")
    require_new("FILE", file, "choose another, or read it with --check")
    file.parent.mkdir(parents=True, exist_ok=True)
    arrays = file.with_suffix(".npz").name
    replace_file(file, template(arrays).encode())
    screen.say_where(f"model file in {file}; it expects your arrays in {arrays} beside it")
    screen.say_where(f"then: bayesattn init --check {file}")


def template(file: str = "model.npz") -> str:
    """Commented model file with all keys, most of them with their defaults; `file` contains the arrays."""
    text = TEMPLATE.read_text(encoding="utf-8").replace("{{samplers}}", ", ".join(sorted([AUTO, *SAMPLERS])))
    return text.replace('"{{file}}"', json.dumps(file, ensure_ascii=False))


def _check(name: str | Path) -> None:
    """Print the model of a file, or the ready model of a name."""
    model = load_model(name)
    screen.say_where(repr(model))
    forms = [form for form in ("collapsed", "path", "token") if form in model.kinds][:2]
    sizes = ", ".join(f"{bytes_needed(model, form) / 2**20:.3g} MiB {form}" for form in forms)
    screen.say_where(f"memory of one chain, at the least: {sizes}")
