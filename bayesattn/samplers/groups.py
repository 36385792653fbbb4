"""ArviZ groups of a posterior's draws: names of axes, coordinates, observed and constant data."""

from typing import Any

import numpy as np

from bayesattn.models import Model
from bayesattn.models.collapsed import weight_dims


def dims(model: Model) -> dict[str, list[str]]:
    """Names of each variable's axes, without chain and draw."""
    return {
        "order_parameter": ["path", "other_path"],
        "prediction": ["test_example"],
        "labels": ["example"],
        "path_inputs": ["example", "path", "feature"],
        "test_path_inputs": ["test_example", "path", "feature"],
        "test_labels": ["test_example"],
        "bartlett": ["coordinate"],
        "token_inputs": ["example", "token", "feature"],
        **{
            f"token_matrices_{layer + 1}": ["example", f"head_{layer + 1}", "query", "key"]
            for layer in range(model.architecture.depth)
        },
        **weight_dims(model.architecture),
    }


def coords(model: Model) -> dict[str, list[str]]:
    """Names of the paths."""
    return {"path": model.path_names, "other_path": model.path_names}


def data(model: Model, tokens: bool = False) -> dict[str, dict[str, Any]]:
    """Groups observed_data and constant_data, the latter with the tokens and their attention if asked for."""
    constant = {"temperature": model.temperature, "path_inputs": model.path_inputs}
    for name in ("test_path_inputs", "test_labels"):
        if getattr(model, name) is not None:
            constant[name] = getattr(model, name)
    if tokens and model.tokens is not None:
        constant["token_inputs"] = model.tokens.inputs
        constant |= {f"token_matrices_{layer + 1}": matrix for layer, matrix in enumerate(model.tokens.matrices)}
    return {
        "observed_data": {"labels": np.asarray(model.labels)},
        "constant_data": {name: np.asarray(value) for name, value in constant.items()},
    }
