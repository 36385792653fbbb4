"""Calls in the order of arguments of the version before, which hold for one more release."""

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from bayesattn.models.posterior import Posterior

Function = TypeVar("Function", bound=Callable[..., Any])


def draws_first(function: Function) -> Function:
    """Decorator of a function whose model is found in its draws: a model by position becomes `model=`, with a warning."""

    @wraps(function)
    def with_model_by_name(*arguments: Any, **named: Any) -> Any:
        models = [each for each in arguments if isinstance(each, Posterior)]
        if models and (len(arguments) > 1 or "draws" in named):
            warnings.warn(
                f"{function.__name__} takes draws first and reads the model from them: write {function.__name__}(draws); the"
                " next release accepts a model as model= only, for draws that do not record theirs",
                FutureWarning,
                stacklevel=2,
            )
            named["model"] = models[0]
            arguments = tuple(each for each in arguments if each is not models[0])
        return function(*arguments, **named)

    return cast(Function, with_model_by_name)
