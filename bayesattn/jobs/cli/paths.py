"""Paths on the command line, where shells do not expand `~` in `--out=~/runs`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import get_type_hints

from typer.models import ArgumentInfo, OptionInfo

from bayesattn._util.files import user_path


def with_user_paths(command: Callable[..., None]) -> Callable[..., None]:
    """Command whose path arguments and options are expanded by `user_path`, with their command-line names in errors."""
    hints = get_type_hints(command, include_extras=True)
    names = {parameter: _shown(parameter, hints[parameter]) for parameter in inspect.signature(command).parameters}

    @wraps(command)
    def run(**arguments: object) -> None:
        command(**{parameter: _expanded(names[parameter], value) for parameter, value in arguments.items()})

    return run


def _expanded(name: str, value: object) -> object:
    if isinstance(value, list):
        return [_expanded(name, each) for each in value]
    return user_path(name, value) if isinstance(value, Path) else value


def _shown(parameter: str, hint: object) -> str:
    """Name of a parameter on the command line."""
    for info in getattr(hint, "__metadata__", ()):
        if isinstance(info, ArgumentInfo):
            return (info.metavar or parameter.upper()).removesuffix("...")
        if isinstance(info, OptionInfo) and info.param_decls:
            return info.param_decls[0]
    return f"--{parameter.replace('_', '-')}"
