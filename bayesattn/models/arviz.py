"""ArviZ groups: the data of a posterior as variables with named axes, and draws as a tree.

`bayesattn.arviz_groups` adds further groups.
"""

import warnings
from typing import TYPE_CHECKING

import numpy as np

from bayesattn._util.checks import is_prior
from bayesattn._util.plain_values import PlainMapping
from bayesattn.models.attention_model import AttentionModel
from bayesattn.models.hyperpriors import QUERIES_AND_KEYS
from bayesattn.models.network_posterior import is_network
from bayesattn.models.posterior import Posterior

if TYPE_CHECKING:
    import xarray as xr

DATA_GROUPS = ("observed_data", "constant_data")
"""Groups that contain the data of a posterior."""
TEMPERING_AXES = {name: ["power"] for name in ("powers", "log_likelihoods", "replica_at")}
"""Axes of the statistics of tempered draws."""
Groups = dict[str, dict[str, np.ndarray]]
"""Group -> variable -> array."""


def axes(model: Posterior) -> dict[str, list[str]]:
    """Names of the axes of each variable, except chain and draw; with several outputs, "path" of U is (path, output)."""
    if not is_network(model):
        return TEMPERING_AXES | {
            "latent": ["value_feature", "feature"],
            "prediction": ["query", "value_feature"],
            "values": ["token", "value_feature"],
            "features": ["token", "feature"],
            "query_features": ["query", "feature"],
        }
    output = ["output"] * len(model.architecture.output_axes)
    common = TEMPERING_AXES | {
        "order_parameter": ["path", "other_path"],
        "prediction": ["test_example", *output],
        "readout": ["path", "feature"],
        "labels": ["example", *output],
        "test_labels": ["test_example", *output],
        "bartlett": ["coordinate"],
        "variances": ["variance"],
        **{name: ["layer"] for name in QUERIES_AND_KEYS},
        **model.architecture.weight_dims(),
    }
    layers = range(1, model.architecture.depth + 1)
    if isinstance(model, AttentionModel):
        key_axis = "width_{}" if model.attention_on == "hidden" else "feature"
        return common | {
            "inputs": ["example", "token", "feature"],
            "mask": ["example", "token"],
            "test_inputs": ["test_example", "test_token", "feature"],
            "test_mask": ["test_example", "test_token"],
            "watched": ["sequence"],
            **{
                f"{kind}_{layer}": [f"head_{layer}", "key_feature", key_axis.format(layer)]
                for layer in layers
                for kind in ("queries", "keys")
            },
            **{f"attention_{layer}": ["sequence", f"head_{layer}", "query", "key"] for layer in layers},
        }
    # With several outputs, path inputs have an axis of paths of their own.
    path = "path_of_inputs" if output else "path"
    return common | {
        "path_inputs": ["example", path, "feature"],
        "test_path_inputs": ["test_example", path, "feature"],
        "token_inputs": ["example", "token", "feature"],
        "token_mask": ["example", "token"],
        **{f"token_matrices_{layer}": ["example", f"head_{layer}", "query", "key"] for layer in layers},
    }


def axis_names(model: Posterior) -> dict[str, list[str]]:
    """Coordinate names along axes, by axis: those of the rows of U and of several outputs."""
    if not is_network(model):
        return {}
    names = model.output_names if model.architecture.output_axes else None
    variances = ["s_0^2", *(f"s_{layer + 1}^2" for layer in range(model.architecture.depth)), "s_a^2"]
    own: dict[str, list] = {"variance": variances} if "variances" in model.hyperpriors.variables else {}
    if set(QUERIES_AND_KEYS) & {*model.hyperpriors.variables}:
        own["layer"] = [*range(1, model.architecture.depth + 1)]
    return {"path": model.row_names, "other_path": model.row_names} | ({"output": [*names]} if names else {}) | own


def data_groups(model: Posterior, tokens: bool = False) -> Groups:
    """Groups observed_data and constant_data; the latter includes tokens and their attention if `tokens`."""
    observed, *names = type(model).data_names
    names += ["temperature", "test_labels", "noise", "prior"]
    constant = {"fingerprint": model.fingerprint} | {name: getattr(model, name, None) for name in names}
    if tokens and (own := getattr(model, "tokens", None)) is not None:
        constant |= {"token_inputs": own.inputs, "token_mask": own.mask}
        constant |= {f"token_matrices_{layer + 1}": matrix for layer, matrix in enumerate(own.matrices)}
    return {
        "observed_data": {observed: np.asarray(getattr(model, observed))},
        "constant_data": {
            name: np.asarray(value) for name, value in constant.items() if value is not None and not is_prior(value)
        },
    }


def tree_of(groups: PlainMapping, coords: PlainMapping, dims: PlainMapping) -> "xr.DataTree":
    """ArviZ tree of arrays whose leading axes are (chain, draw)."""
    import arviz_base  # imports Matplotlib

    with warnings.catch_warnings():
        # ArviZ warns of fewer draws than chains, for each variable.
        warnings.filterwarnings("ignore", message="Found chain dimension to be longer than draw dimension")
        return arviz_base.from_dict(dict(groups), coords=dict(coords), dims=dict(dims))


def has_order_parameter(tree: "xr.DataTree") -> bool:
    """Whether draws hold U."""
    return "order_parameter" in dataset(tree, "posterior")


def dataset(tree: "xr.DataTree", group: str) -> "xr.Dataset":
    """Group of a tree as a dataset, empty if the tree does not have the group."""
    import xarray

    return tree[group].to_dataset() if group in tree.children else xarray.Dataset()
