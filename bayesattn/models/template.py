"""A model file to start from, and what model a file describes, in a few lines."""

import json
import warnings
from pathlib import Path

from bayesattn.models.load import load_model, must_train
from bayesattn.models.memory import bytes_needed
from bayesattn.models.posterior import Model

TEMPLATE = Path(__file__).with_name("template.toml.txt")
MOST_NAMED = 6
"""Paths whose names are listed."""


def template(file: str = "model.npz") -> str:
    """A commented model file, in which every key stands with its default; `file` holds the arrays."""
    return TEMPLATE.read_text(encoding="utf-8").replace('"{{file}}"', json.dumps(file, ensure_ascii=False))


def described(name: str | Path) -> tuple[list[str], list[str]]:
    """What model a file, or a ready model's name, stands for, a line each, and the warnings that it gives.

    Heads that are to be trained are left as they are before training. Errors are those of `bayesattn.load_model`.
    """
    untrained = must_train(name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        model = load_model(name, trained=False)
    lines = _lines(model)
    if untrained:
        lines.append("heads: not trained yet; the first command that draws or solves trains them")
    return lines, [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]


def _lines(model: Model) -> list[str]:
    arch, (examples, paths, features) = model.architecture, model.path_inputs.shape
    tests = "no test examples" if model.test_path_inputs is None else f"{len(model.test_path_inputs)} test examples"
    if model.test_path_inputs is not None and model.test_labels is None:
        tests += " without labels"
    named = ", ".join(model.path_names[:MOST_NAMED]) + (", .." if paths > MOST_NAMED else "")
    heads = ", ".join(map(str, arch.heads))
    widths = ", ".join(map(str, arch.widths[:-1]))
    validation = model.validation_path_inputs
    lines = [
        f"model: {model.name}, task {model.task['name']}, T = {model.temperature:g}",
        f"data: {_counted(examples, 'example')} of {_counted(features, 'feature')}, {tests}"
        + ("" if validation is None else f", {len(validation)} validation examples"),
        f"network: {_counted(arch.depth, 'layer')} of {heads} heads, widths {widths}, readout width {arch.widths[-1]}",
        f"prior variances: {', '.join(f'{variance:g}' for variance in arch.variances)}",
        f"paths: {paths}: {named}",
    ]
    needed = {form: bytes_needed(model, form) / 2**20 for form in ("collapsed", "path")}
    sizes = ", ".join(f"{size:.3g} MiB {form}" for form, size in needed.items())
    return [*lines, f"memory of one chain, at the least: {sizes}"]


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
