"""Theory functions take arrays, or a posterior in their place; some of them nothing that JAX traces."""

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import jax

from bayesattn._checks import is_traced

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

    needs_test = "test_path_inputs" in names and parameters["test_path_inputs"].default is inspect.Parameter.empty

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
        if "temperature" in names:
            model.require_gaussian()
        wanted = [name for name in (*DATA, "test_path_inputs") if name in names]
        held = {name: getattr(model, "architecture" if name == "arch" else name) for name in wanted}
        asked = dict(zip(others, given, strict=False)) | named
        if needs_test and held["test_path_inputs"] is None and "test_path_inputs" not in asked:
            raise ValueError(f"{function.__name__}() needs test_path_inputs, got a model that has none")
        statistics = getattr(model, "compressed", None)
        if statistics is not None and (other := {"path_inputs", "labels"} & named.keys()):
            raise ValueError(
                f"{min(other)} must not be given beside a model with a compressed dataset, which stands for all of its data"
            )
        if statistics is not None and "labels" not in names:
            raise ValueError(f"{function.__name__}() is of single examples, got a compressed dataset, which holds none")
        if "likelihood" in names and "path_inputs" not in named:
            arch = named.get("arch")
            if _kernels_are_those(model, arch):
                held["likelihood"] = model.kernels
            elif statistics is not None:
                first = arch[0] if isinstance(arch, Sequence) and arch else arch
                held["likelihood"] = model.replace(architecture=first).kernels
        return function(**held | asked)

    return with_model


def not_traced(function: Callable[..., Result]) -> Callable[..., Result]:
    """Let a function refuse what JAX traces: its search decides by the numbers when to end."""
    names = list(inspect.signature(function).parameters)

    @wraps(function)
    def with_numbers(*arguments: Any, **named: Any) -> Result:
        for name, value in (dict(zip(names, arguments, strict=False)) | named).items():
            if any(map(is_traced, jax.tree.leaves(value))):
                raise ValueError(
                    f"{name} must be numbers: {function.__name__} cannot be traced by JAX (jit, grad, vmap), as action,"
                    " kernel, predict and gp_evidence can"
                )
        return function(*arguments, **named)

    return with_numbers


def _kernels_are_those(model: Any, arch: Any) -> bool:
    """Whether a network has the kernels of a model's, which know nothing of labels, temperature and widths."""
    own = model.architecture
    return arch is None or (
        isinstance(arch, type(own))
        and (arch.heads, arch.ways, arch.outputs, arch.variances[0])
        == (own.heads, own.ways, own.outputs, own.variances[0])
    )
