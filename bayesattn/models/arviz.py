"""ArviZ groups: the data of a posterior as variables with named axes, and draws as a tree."""

import warnings
from functools import singledispatch
from typing import TYPE_CHECKING

import numpy as np

from bayesattn._util.plain import PlainDict, PlainMapping
from bayesattn._util.random import fingerprint
from bayesattn.attention_model import AttentionModel
from bayesattn.model import Model
from bayesattn.models.latent import LatentModel
from bayesattn.posterior import Posterior

if TYPE_CHECKING:
    import xarray as xr

DATA_GROUPS = ("observed_data", "constant_data")
"""Groups that contain the data of a posterior."""
Groups = dict[str, dict[str, np.ndarray]]
"""Group -> variable -> array."""


@singledispatch
def axes(model: Posterior) -> dict[str, list[str]]:
    """Names of the axes of each variable, except chain and draw."""
    raise TypeError(f"no axes are registered for a {type(model).__name__}")


@singledispatch
def data_groups(model: Posterior, tokens: bool = False) -> Groups:
    """Groups observed_data and constant_data; the latter includes tokens and their attention if `tokens`."""
    raise TypeError(f"no groups are registered for a {type(model).__name__}")


@singledispatch
def axis_names(model: Posterior) -> dict[str, list[str]]:
    """Coordinate names along axes, by axis; none by default."""
    return {}


@axes.register
def _(model: Model) -> dict[str, list[str]]:
    # With several outputs the axes "path" and "other_path" of U index paths and outputs; path inputs have an axis of paths.
    arch = model.architecture
    output = ["output"] * len(arch.output_axes)
    path = "path_of_inputs" if output else "path"
    return {
        "order_parameter": ["path", "other_path"],
        "prediction": ["test_example", *output],
        "readout": ["path", "feature"],
        "labels": ["example", *output],
        "path_inputs": ["example", path, "feature"],
        "test_path_inputs": ["test_example", path, "feature"],
        "test_labels": ["test_example", *output],
        "bartlett": ["coordinate"],
        "token_inputs": ["example", "token", "feature"],
        "token_mask": ["example", "token"],
        **{
            f"token_matrices_{layer + 1}": ["example", f"head_{layer + 1}", "query", "key"]
            for layer in range(arch.depth)
        },
        **arch.weight_dims(),
    }


@axis_names.register
def _(model: Model) -> dict[str, list[str]]:
    return {"path": model.row_names, "other_path": model.row_names}


@data_groups.register
def _(model: Model, tokens: bool = False) -> Groups:
    constant: PlainDict = {"fingerprint": fingerprint(model), "path_inputs": model.path_inputs}
    constant |= {} if model.temperature is None else {"temperature": model.temperature}
    for name in ("test_path_inputs", "test_labels"):
        if getattr(model, name) is not None:
            constant[name] = getattr(model, name)
    if tokens and model.tokens is not None:
        constant["token_inputs"] = model.tokens.inputs
        constant |= {f"token_matrices_{layer + 1}": matrix for layer, matrix in enumerate(model.tokens.matrices)}
        constant |= {} if model.tokens.mask is None else {"token_mask": model.tokens.mask}
    return {
        "observed_data": {"labels": np.asarray(model.labels)},
        "constant_data": {name: np.asarray(value) for name, value in constant.items()},
    }


@axes.register
def _(model: AttentionModel) -> dict[str, list[str]]:
    arch = model.architecture
    output = ["output"] * len(arch.output_axes)
    layers = range(1, arch.depth + 1)
    hidden = model.attention_on == "hidden"
    return {
        "order_parameter": ["path", "other_path"],
        "prediction": ["test_example", *output],
        "readout": ["path", "feature"],
        "labels": ["example", *output],
        "inputs": ["example", "token", "feature"],
        "mask": ["example", "token"],
        "test_inputs": ["test_example", "test_token", "feature"],
        "test_mask": ["test_example", "test_token"],
        "test_labels": ["test_example", *output],
        "watched": ["sequence"],
        "bartlett": ["coordinate"],
        **{
            f"{kind}_{layer}": [f"head_{layer}", "key_feature", f"width_{layer}" if hidden else "feature"]
            for layer in layers
            for kind in ("queries", "keys")
        },
        **{f"attention_{layer}": ["sequence", f"head_{layer}", "query", "key"] for layer in layers},
        **arch.weight_dims(),
    }


@axis_names.register
def _(model: AttentionModel) -> dict[str, list[str]]:
    return {"path": model.row_names, "other_path": model.row_names}


@data_groups.register
def _(model: AttentionModel, tokens: bool = False) -> Groups:
    constant: PlainDict = {"fingerprint": fingerprint(model), "inputs": model.inputs}
    constant |= {} if model.temperature is None else {"temperature": model.temperature}
    for name in ("mask", "test_inputs", "test_mask", "test_labels"):
        if getattr(model, name) is not None:
            constant[name] = getattr(model, name)
    constant |= {"watched": model.watched} if model.watched else {}
    return {
        "observed_data": {"labels": np.asarray(model.labels)},
        "constant_data": {name: np.asarray(value) for name, value in constant.items()},
    }


@axes.register
def _(model: LatentModel) -> dict[str, list[str]]:
    return {
        "latent": ["value_feature", "feature"],
        "prediction": ["query", "value_feature"],
        "values": ["token", "value_feature"],
        "features": ["token", "feature"],
        "query_features": ["query", "feature"],
    }


@data_groups.register
def _(model: LatentModel, tokens: bool = False) -> Groups:
    names = ("features", "query_features", "noise", "prior")
    constant = {"fingerprint": fingerprint(model)} | {name: getattr(model, name) for name in names}
    return {
        "observed_data": {"values": model.values},
        "constant_data": {name: np.asarray(value) for name, value in constant.items() if value is not None},
    }


def tree_of(groups: PlainMapping, coords: PlainMapping, dims: PlainMapping) -> "xr.DataTree":
    """ArviZ tree of arrays whose leading axes are (chain, draw)."""
    import arviz_base  # imports Matplotlib

    with warnings.catch_warnings():
        # ArviZ warns of fewer draws than chains, for each variable.
        warnings.filterwarnings("ignore", message="Found chain dimension to be longer than draw dimension")
        return arviz_base.from_dict(dict(groups), coords=dict(coords), dims=dict(dims))


def dataset(tree: "xr.DataTree", group: str) -> "xr.Dataset":
    """Group of a tree as a dataset, empty if the tree does not have the group."""
    import xarray

    return tree[group].to_dataset() if group in tree.children else xarray.Dataset()
