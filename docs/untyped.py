"""Leaves out of API pages what annotations say of arguments that take anything array-like: "Any", "Checked"."""

from typing import Any

import griffe

NO_TYPES = {"Any", "Checked"}
SEQUENCES = {"Sequence[Any]", "Sequence[Checked]"}


class Untyped(griffe.Extension):
    """Drops such annotations, so that only docstrings tell shapes."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Of arguments and results."""
        for parameter in func.parameters:
            parameter.annotation = _without(parameter.annotation)
        func.returns = _without(func.returns)

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Of fields."""
        attr.annotation = _without(attr.annotation)


def _without(annotation: Any) -> Any:
    if str(annotation) in NO_TYPES:
        return None
    return (
        str(annotation).replace("[Any]", "").replace("Checked", "float") if str(annotation) in SEQUENCES else annotation
    )
