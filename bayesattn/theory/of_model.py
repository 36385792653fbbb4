"""Theory functions take arrays, or a posterior in their place."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

Result = TypeVar("Result")
DATA = ("path_inputs", "labels", "arch", "temperature")


def of_model(function: Callable[..., Result]) -> Callable[..., Result]:
    """Let a `bayesattn.Model` stand for path_inputs, labels, arch, temperature and test_path_inputs of a function.

    It stands where path_inputs would; what is given by name besides, such as another temperature, goes before what it holds.
    The model's own likelihood saves making one from the data.
    """
    parameters = inspect.signature(function).parameters
    names = list(parameters)
    place = names.index("path_inputs")
    others = [
        name for name in names if name not in DATA and parameters[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
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
        wanted = [name for name in (*DATA, "test_path_inputs") if name in names]
        held = {name: getattr(model, "architecture" if name == "arch" else name) for name in wanted}
        if "likelihood" in names and not named.keys() & {"labels", "arch"}:
            held["likelihood"] = model.likelihood
        return function(**held | dict(zip(others, given, strict=False)) | named)

    return with_model
