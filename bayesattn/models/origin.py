"""Origin of draws: the attribute and data of a tree of draws, compared with a model."""

import json
import tomllib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from bayesattn._util.checks import shown
from bayesattn._util.errors import BayesattnError
from bayesattn._util.plain import PlainDict, PlainMapping
from bayesattn._util.random import fingerprint
from bayesattn.architecture import Architecture
from bayesattn.likelihoods import UnknownLikelihood
from bayesattn.models.attention_model import AttentionModel
from bayesattn.models.description import ATTRIBUTE, plain_table, restored
from bayesattn.models.latent import LatentModel
from bayesattn.models.model import Model
from bayesattn.models.posterior import Posterior

if TYPE_CHECKING:
    import xarray as xr

from bayesattn.models.arviz import DATA_GROUPS, dataset

POSTERIOR_VARIABLES = (
    *dict.fromkeys((*Model.posterior_names, *AttentionModel.posterior_names, "temperature")),
    *(*LatentModel.posterior_names, "noise", "prior"),
)
"""Variables in groups of data that determine a posterior."""
WHOLE_DATA = ({"labels", "path_inputs"}, {"labels", "inputs"}, {"values", "features"})
"""Variables that every posterior of each kind has."""
DEFAULT_SETTINGS = {"observation": "gaussian", "outputs": 1, "skips": "none", "statistics": "none"}
"""Defaults of settings that a table may omit."""


@dataclass(frozen=True, eq=False)
class Origin:
    """Known properties of the model of draws: from the attribute and the data of a tree, or from the model itself."""

    about: PlainMapping
    data: PlainMapping
    model: Posterior | None = None

    @classmethod
    def of_tree(cls, tree: "xr.DataTree") -> "Origin":
        """Origin from a tree's attribute and groups of data; the data are read lazily."""
        data = {str(name): v for group in DATA_GROUPS for name, v in dataset(tree, group).data_vars.items()}
        return cls(described_in(tree), data)

    @classmethod
    def of_model(cls, model: Posterior) -> "Origin":
        """Origin from the model."""
        names = (*type(model).posterior_names, "temperature", "noise", "prior")
        data = {name: np.asarray(getattr(model, name)) for name in names if getattr(model, name, None) is not None}
        return cls({"kind": type(model).__name__}, data, model)

    @cached_property
    def fingerprints(self) -> set[str]:
        """Recorded fingerprints: one, none, or several for trees that were changed."""
        if self.model is not None:
            return {fingerprint(self.model)}
        recorded = [
            self.about.get("fingerprint"),
            self.data["fingerprint"].item() if "fingerprint" in self.data else None,
        ]
        return {str(each) for each in recorded if each is not None}

    @cached_property
    def table(self) -> PlainDict:
        """Settings of the model that determine the posterior; empty if they are not known."""
        try:
            about = tomllib.loads(self.about["model"]) if self.model is None else plain_table(self.model.table())
        except (KeyError, TypeError, ValueError):
            return {}
        about.pop("task", None)
        return about.pop("architecture", {}) | about

    def difference(self, other: "Origin") -> str | None:
        """Difference of another model in words, such as "temperature = 0.5, not 0.1"; None if no difference is known."""
        known = self.fingerprints and other.fingerprints
        if known and len(self.fingerprints | other.fingerprints) == 1:
            return None
        kinds = [origin.about.get("kind") for origin in (self, other)]
        if None not in kinds and kinds[0] != kinds[1]:
            return f"kind = {kinds[1]}, not {kinds[0]}"
        for name in {**self.table, **other.table} if self.table and other.table else ():
            ours, theirs = (origin.table.get(name, DEFAULT_SETTINGS.get(name)) for origin in (self, other))
            if ours != theirs:
                return f"{name} = {theirs}, not {ours}"
        both = [name for name in POSTERIOR_VARIABLES if name in self.data and name in other.data]
        for name in both:
            ours, theirs = (np.asarray(origin.data[name]) for origin in (self, other))
            if not close(ours, theirs):
                return f"{name} = {theirs:g}, not {ours:g}" if ours.ndim == theirs.ndim == 0 else f"other {name}"
        # Other processors may compute path inputs that differ in the last bit.
        alike = len(self.fingerprints) == len(other.fingerprints) == 1 and self.table and other.table
        decided = any(each <= {*both} for each in WHOLE_DATA)
        return "other data, temperature or architecture" if known and not (alike and decided) else None


def close(ours: np.ndarray | None, theirs: np.ndarray | None) -> bool:
    """Whether arrays are equal up to the last bits, in which other processors may differ."""
    if ours is None or theirs is None:
        return ours is theirs
    return ours.shape == theirs.shape and np.allclose(ours, theirs, rtol=1e-9, atol=1e-9 * float(np.std(ours)))


def require_model(tree: "xr.DataTree", model: object) -> None:
    """Raise ValueError, which names the difference, if a tree is known to be of another model."""
    if not isinstance(model, Posterior):
        raise BayesattnError(f"model must be a bayesattn.Model, got {shown(model)}")
    if difference := Origin.of_tree(tree).difference(Origin.of_model(model)):
        raise BayesattnError(f"model must be the one that draws are of, got one with {difference}")


def described_in(tree: "xr.DataTree") -> PlainDict:
    """Description of the model in a tree's attribute; empty without a readable attribute."""
    try:
        about = tree.attrs[ATTRIBUTE]
        return dict(json.loads(about) if isinstance(about, str) else about)
    except (KeyError, TypeError, ValueError):
        return {}


def model_in(tree: "xr.DataTree") -> Posterior:
    """Model restored from a tree's attribute and groups of data; raises ValueError if that is not possible."""
    about = described_in(tree)
    try:
        arrays = {
            str(name): array.values for group in DATA_GROUPS for name, array in dataset(tree, group).data_vars.items()
        }
        model = restored(about, arrays)
        # Runs of earlier versions have no fingerprint.
        recorded = Origin(about, arrays).fingerprints
        if recorded and recorded != {fingerprint(model)}:
            raise BayesattnError("other data")
        return model
    except UnknownLikelihood:
        raise
    except (AttributeError, KeyError, TypeError, ValueError):
        raise BayesattnError(
            f"draws must say what model they are of, in their attribute {ATTRIBUTE!r} and in complete groups observed_data"
            " and constant_data; got a tree that does not: use the tree as it was sampled, or remove that attribute and"
            " hand over the model"
        ) from None


def architecture_in(tree: "xr.DataTree") -> Architecture | None:
    """Architecture from a tree's description of its model; None without a description of a network."""
    try:
        return Architecture.of_table(tomllib.loads(described_in(tree)["model"])["architecture"])
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def own_row_names(tree: "xr.DataTree") -> list[str] | None:
    """Names of the rows of U from a tree's description of its model; None without a description."""
    arch = architecture_in(tree)
    if arch is None:
        return None
    try:
        names = described_in(tree)["about_model"]
        return arch.row_names(names["head_names"] or arch.numbered_heads(first=0), names.get("output_names"))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
