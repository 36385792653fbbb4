"""ArviZ groups: the data of a posterior as variables with named axes, and draws as a tree."""

import warnings
from functools import singledispatch
from typing import TYPE_CHECKING

import numpy as np

from bayesattn._util.plain import PlainMapping
from bayesattn._util.random import fingerprint
from bayesattn.models.attention_model import AttentionModel
from bayesattn.models.latent import LatentModel
from bayesattn.models.model import Model
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.models.posterior import Posterior

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


def _axes_of_network(model: NetworkPosterior) -> dict[str, list[str]]:
    """Axes of the variables that all networks have; with several outputs, "path" of U indexes paths and outputs."""
    output = ["output"] * len(model.architecture.output_axes)
    return {
        "order_parameter": ["path", "other_path"],
        "prediction": ["test_example", *output],
        "readout": ["path", "feature"],
        "labels": ["example", *output],
        "test_labels": ["test_example", *output],
        "bartlett": ["coordinate"],
        **model.architecture.weight_dims(),
    }


@axes.register
def _(model: Model) -> dict[str, list[str]]:
    # With several outputs, path inputs have an axis of paths of their own.
    path = "path_of_inputs" if model.architecture.output_axes else "path"
    return _axes_of_network(model) | {
        "path_inputs": ["example", path, "feature"],
        "test_path_inputs": ["test_example", path, "feature"],
        "token_inputs": ["example", "token", "feature"],
        "token_mask": ["example", "token"],
        **{
            f"token_matrices_{layer + 1}": ["example", f"head_{layer + 1}", "query", "key"]
            for layer in range(model.architecture.depth)
        },
    }


@axes.register
def _(model: AttentionModel) -> dict[str, list[str]]:
    layers = range(1, model.architecture.depth + 1)
    hidden = model.attention_on == "hidden"
    return _axes_of_network(model) | {
        "inputs": ["example", "token", "feature"],
        "mask": ["example", "token"],
        "test_inputs": ["test_example", "test_token", "feature"],
        "test_mask": ["test_example", "test_token"],
        "watched": ["sequence"],
        **{
            f"{kind}_{layer}": [f"head_{layer}", "key_feature", f"width_{layer}" if hidden else "feature"]
            for layer in layers
            for kind in ("queries", "keys")
        },
        **{f"attention_{layer}": ["sequence", f"head_{layer}", "query", "key"] for layer in layers},
    }


@axis_names.register
def _(model: NetworkPosterior) -> dict[str, list[str]]:
    names = getattr(model, "output_names", None) if model.architecture.output_axes else None
    return {"path": model.row_names, "other_path": model.row_names} | ({"output": [*names]} if names else {})


@data_groups.register
def _(model: NetworkPosterior, tokens: bool = False) -> Groups:
    names = [name for name in (*type(model).data_names, "temperature", "test_labels") if name != "labels"]
    constant = {"fingerprint": fingerprint(model)} | {name: getattr(model, name) for name in names}
    own_tokens = getattr(model, "tokens", None)
    if tokens and own_tokens is not None:
        constant |= {"token_inputs": own_tokens.inputs, "token_mask": own_tokens.mask}
        constant |= {f"token_matrices_{layer + 1}": matrix for layer, matrix in enumerate(own_tokens.matrices)}
    return {
        "observed_data": {"labels": np.asarray(model.labels)},
        "constant_data": {name: np.asarray(value) for name, value in constant.items() if value is not None},
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
