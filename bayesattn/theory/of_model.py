"""Theory functions take arrays, or a posterior in their place."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

Result = TypeVar("Result")
HELD = {"path_inputs": "path_inputs", "labels": "labels", "arch": "architecture", "temperature": "temperature"}


def of_model(function: Callable[..., Result]) -> Callable[..., Result]:
    """Let a `bayesattn.Model` stand for path_inputs, labels, arch, temperature and test_path_inputs of a function.

    It stands where path_inputs would; what is given by name besides, such as another temperature, goes before what it holds.
    """
    parameters = inspect.signature(function).parameters
    names = list(parameters)
    place = names.index("path_inputs")
    others = [
        name for name in names if name not in HELD and parameters[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]

    @wraps(function)
    def with_model(*arguments: Any, **named: Any) -> Result:
        if len(arguments) <= place or not hasattr(arguments[place], "architecture"):
            return function(*arguments, **named)
        model = arguments[place]
        given = (*arguments[:place], *arguments[place + 1 :])
        if len(given) > len(others):
            raise TypeError(
                f"{function.__name__}() takes a model and {len(others)} others at most by place, got {len(given)}"
            )
        held = {name: getattr(model, attribute) for name, attribute in HELD.items() if name in names}
        if "test_path_inputs" in names:
            held["test_path_inputs"] = model.test_path_inputs
        return function(**held | dict(zip(others, given, strict=False)) | named)

    return with_model
