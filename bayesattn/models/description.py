"""A model as plain text and lists: with the arrays of its groups, all that it takes to have it again."""

import tomllib
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tomli_w

from bayesattn._util.random import fingerprint
from bayesattn.model import Model
from bayesattn.models.latent import LatentModel

if TYPE_CHECKING:
    import xarray as xr

ATTRIBUTE = "bayesattn"
"""Of the root of a tree of draws: under it stands what `described` gives."""
_KINDS = {kind.__name__: kind for kind in (Model, LatentModel)}


def described(model: Model | LatentModel, tokens: bool = False) -> dict[str, Any]:
    """Kind, table (as TOML), names and fingerprint of a model; `tokens` says whether its groups hold tokens too."""
    return {
        "kind": type(model).__name__,
        "model": tomli_w.dumps(plain_table(model.table())),
        "about_model": model.about(tokens),
        "fingerprint": fingerprint(model),
    }


def restored(description: Mapping[str, Any], arrays: Mapping[str, Any]) -> Model | LatentModel:
    """The model that was described, with the arrays of its groups; KeyError, TypeError or ValueError if none was."""
    kind = _KINDS[description["kind"]]
    return kind.restored(tomllib.loads(description["model"]), description["about_model"], arrays)


def plain_table(value: Any) -> Any:
    """Lists and dictionaries of plain values, without None, which TOML lacks."""
    if isinstance(value, dict):
        return {key: plain_table(part) for key, part in value.items() if part is not None}
    if isinstance(value, list | tuple):
        return [plain_table(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value


def tree_of(groups: Mapping[str, Any], coords: Mapping[str, Any], dims: Mapping[str, Any]) -> "xr.DataTree":
    """ArviZ's tree of arrays that begin with axes (chain, draw)."""
    import arviz_base  # which imports Matplotlib

    with warnings.catch_warnings():
        # It takes fewer draws than chains for a mistake, of each variable.
        warnings.filterwarnings("ignore", message="Found chain dimension to be longer than draw dimension")
        return arviz_base.from_dict(dict(groups), coords=dict(coords), dims=dict(dims))
