"""Model stored beside its draws: described in an attribute of their tree, restored from it, and compared with a model.

A tree identifies its model in its attribute and in constant_data["fingerprint"]. Joins and selections keep the fingerprint,
but may lose attributes or use the attributes of the first tree for all.
"""

import json
import tomllib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import tomli_w

from bayesattn import likelihoods
from bayesattn._util.checks import Checked, shown
from bayesattn._util.plain_values import PlainDict, PlainMapping
from bayesattn.architecture import Architecture
from bayesattn.compressed import Compressed
from bayesattn.errors import BayesattnError
from bayesattn.kernels.gaussian_process import ResidualExamples
from bayesattn.models import hyperpriors
from bayesattn.models.arviz import DATA_GROUPS, data_groups, dataset
from bayesattn.models.attention_model import AttentionModel
from bayesattn.models.latent import LatentModel
from bayesattn.models.model import Model, has_fixed_attention
from bayesattn.models.network_posterior import is_network
from bayesattn.models.posterior import Posterior
from bayesattn.models.tokens import Tokens

if TYPE_CHECKING:
    import xarray as xr

ATTRIBUTE = "bayesattn"
"""Attribute of the root of a tree of draws, which contains the result of `described`."""
POSTERIOR_VARIABLES = (
    *dict.fromkeys((*Model.posterior_names, *AttentionModel.posterior_names, "temperature")),
    *(*LatentModel.posterior_names, "noise", "prior"),
)
"""Variables in groups of data that determine a posterior."""
WHOLE_DATA = ({"labels", "path_inputs"}, {"labels", "inputs"}, {"values", "features"})
"""Variables that every posterior of each kind has."""
DEFAULT_SETTINGS = {"observation": "gaussian", "outputs": 1, "skips": "none", "statistics": "none"}
"""Defaults of settings that a table may omit."""


def described(model: Posterior, tokens: bool = False) -> PlainDict:
    """Kind, table (as TOML), names and fingerprint of a model; `tokens` says whether its groups contain tokens.

    Of a likelihood of one's own also a digest of its density, which its name and its fields do not tell.
    """
    about = {
        "kind": type(model).__name__,
        "model": tomli_w.dumps(plain_table(model.table())),
        "about_model": names_of(model, tokens),
        "fingerprint": model.fingerprint,
    }
    return about | ({} if (density := _own_density(model)) is None else {"density": density})


def _own_density(model: Posterior) -> str | None:
    """Digest of the density of a model's likelihood, if it is one's own."""
    if not is_network(model) or likelihoods.is_of_package(type(model.likelihood)):
        return None
    return likelihoods.density_of(model.reference.likelihood, model.labels)


def names_of(model: Posterior, tokens: bool = False) -> PlainDict:
    """Plain values that, with `table` and the arrays of the groups, determine the model."""
    names: PlainDict = {"name": model.name}
    if is_network(model):
        names |= {"head_names": model.head_names or model.architecture.numbered_heads(), "task": model.task}
        names |= {} if model.output_names is None else {"output_names": list(model.output_names)}
    if has_fixed_attention(model):
        names["path_groups"] = {name: list(paths) for name, paths in model.path_groups.items()}
        names["readout"] = model.tokens.readout if model.tokens and tokens else None
        names |= {} if model.compressed is None else {"unseen": model.compressed.residual._asdict()}
    return names


def restored(description: PlainMapping, arrays: PlainMapping) -> Posterior:
    """Model restored from a description and arrays; raises KeyError, TypeError or ValueError for an invalid one.

    Raises UnknownLikelihood if the class of its likelihood is not defined in this process, or has another density.
    """
    model = _restored(description, arrays)
    if "density" in description and description["density"] != _own_density(model):
        name = tomllib.loads(description["model"]).get("observation", "likelihood")
        raise likelihoods.UnknownLikelihood(
            f"{name} has another log_prob than when it was drawn from: draw again, or give the changed class a new name"
        )
    return model


def _restored(description: PlainMapping, arrays: PlainMapping) -> Posterior:
    kinds: dict[str, type[Posterior]] = {each.__name__: each for each in (Model, AttentionModel, LatentModel)}
    kind, names = kinds[description["kind"]], description["about_model"]
    table = tomllib.loads(description["model"])
    data: PlainDict = {name: arrays[name] for name in (*kind.data_names, "test_labels") if name in arrays}
    if kind is LatentModel:
        return LatentModel(**data, **table, name=names["name"])
    arch = Architecture.of_table(table["architecture"])
    # Earlier versions stored no names if there were none, and numbered heads from 0.
    data |= {"head_names": names["head_names"] or arch.numbered_heads(first=0)}
    priors = hyperpriors.restored(table.get("priors", {}))
    data |= {"architecture": replace(arch, variances=priors.pop(hyperpriors.VARIANCES, arch.variances))}
    of_heads = {name: priors.pop(name) for name in hyperpriors.QUERIES_AND_KEYS if name in priors}
    data |= {"likelihood": _likelihood(table, arrays, priors), "output_names": names.get("output_names")}
    data |= {"name": names["name"], "task": names["task"]}
    if kind is AttentionModel:
        return AttentionModel(**data, **table["attention"], **of_heads)
    if "unseen" in names:
        inputs, labels = data.pop("path_inputs"), data.pop("labels")
        data["compressed"] = Compressed.restored(inputs, labels, ResidualExamples(**names["unseen"]))
    if names["readout"]:
        matrices = [arrays[f"token_matrices_{layer + 1}"] for layer in range(arch.depth)]
        data["tokens"] = Tokens(arrays["token_inputs"], matrices, names["readout"], arrays.get("token_mask"))
    return Model(**data, path_groups=names["path_groups"])


def _likelihood(table: PlainMapping, arrays: PlainMapping, priors: PlainMapping) -> likelihoods.Likelihood:
    """Likelihood of a table; `priors` are those in place of its numbers."""
    observation = table.get("observation", "gaussian")
    settings = table.get("likelihood", {})
    if observation in likelihoods.BY_NAME and "temperature" not in priors:
        settings = {"temperature": float(arrays["temperature"])}
    return likelihoods.restored(observation, {**settings, **priors})


def plain_table(table: PlainMapping) -> PlainDict:
    """Plain values in lists and dictionaries, without None, which TOML cannot represent."""
    return {key: _plain(part) for key, part in table.items() if part is not None}


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return plain_table(value)
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value


@dataclass(frozen=True, eq=False)
class ModelRecord:
    """Identity of the model behind draws: its description and data, as a tree records them or as the model has them."""

    about: PlainMapping
    data: PlainMapping

    @classmethod
    def of_tree(cls, tree: "xr.DataTree") -> "ModelRecord":
        """Record in a tree's attribute and groups of data; the data are read lazily."""
        data = {str(name): v for group in DATA_GROUPS for name, v in dataset(tree, group).data_vars.items()}
        return cls(described_in(tree), data)

    @classmethod
    def of_model(cls, model: Posterior) -> "ModelRecord":
        """Record that draws of a model have."""
        groups = data_groups(model)
        return cls(described(model), {name: array for group in groups.values() for name, array in group.items()})

    @cached_property
    def fingerprints(self) -> set[str]:
        """Recorded fingerprints: one, none, or several for trees that were changed."""
        recorded = [self.about.get("fingerprint"), self.data.get("fingerprint")]
        return {str(np.asarray(each).item()) for each in recorded if each is not None}

    @cached_property
    def table(self) -> PlainDict:
        """Settings of the model that determine the posterior; empty if they are not known."""
        try:
            about = tomllib.loads(self.about["model"])
        except (KeyError, TypeError, ValueError):
            return {}
        about.pop("task", None)
        priors = about.pop("priors", {})  # Each in place of a number.
        return about.pop("architecture", {}) | about | priors

    def difference(self, other: "ModelRecord") -> str | None:
        """Difference of another model in words, such as "temperature = 0.5, not 0.1"; None if no difference is known."""
        densities = {record.about["density"] for record in (self, other) if "density" in record.about}
        if len(densities) == 2:
            return "a likelihood of another log_prob"
        known = self.fingerprints and other.fingerprints
        if known and len(self.fingerprints | other.fingerprints) == 1:
            return None
        kinds = [record.about.get("kind") for record in (self, other)]
        if None not in kinds and kinds[0] != kinds[1]:
            return f"kind = {kinds[1]}, not {kinds[0]}"
        for name in {**self.table, **other.table} if self.table and other.table else ():
            ours, theirs = (record.table.get(name, DEFAULT_SETTINGS.get(name)) for record in (self, other))
            if ours != theirs:
                return f"{name} = {theirs}, not {ours}"
        both = [name for name in POSTERIOR_VARIABLES if name in self.data and name in other.data]
        for name in both:
            ours, theirs = (np.asarray(record.data[name]) for record in (self, other))
            if not close(ours, theirs):
                return f"{name} = {theirs:g}, not {ours:g}" if ours.ndim == theirs.ndim == 0 else f"other {name}"
        data_compared = any(each <= {*both} for each in WHOLE_DATA)
        ours, theirs = (padding(record.data.get("mask")) for record in (self, other))
        if data_compared and not close(ours, theirs):
            return "a mask, not none" if ours is None else "no mask, not one"
        # Other processors may compute path inputs that differ in the last bit, and fingerprints with them.
        settings_compared = len(self.fingerprints) == len(other.fingerprints) == 1 and self.table and other.table
        unexplained = known and not (settings_compared and data_compared)
        return "other data, temperature or architecture" if unexplained else None


def padding(mask: Checked) -> np.ndarray | None:
    """Mask of sequences, False at padding; None without a mask, and if no token is padding."""
    return None if mask is None or np.all(np.asarray(mask)) else np.asarray(mask)


def close(ours: np.ndarray | None, theirs: np.ndarray | None) -> bool:
    """Whether arrays are equal up to the last bits, in which other processors may differ."""
    if ours is None or theirs is None:
        return ours is theirs
    return ours.shape == theirs.shape and np.allclose(ours, theirs, rtol=1e-9, atol=1e-9 * float(np.std(ours)))


def require_model(tree: "xr.DataTree", model: object) -> None:
    """Raise ValueError, which names the difference, if a tree is known to be of another model."""
    if not isinstance(model, Posterior):
        raise BayesattnError(f"model must be a bayesattn.Model, got {shown(model)}")
    if difference := ModelRecord.of_tree(tree).difference(ModelRecord.of_model(model)):
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
        model, recorded = restored(about, arrays), ModelRecord(about, arrays).fingerprints
    except likelihoods.UnknownLikelihood:
        raise
    except (AttributeError, KeyError, TypeError, ValueError):
        raise BayesattnError(
            f"draws must say what model they are of, in their attribute {ATTRIBUTE!r} and in complete groups observed_data"
            " and constant_data; got a tree that does not: use the tree as it was sampled, or pass model="
            + (" and remove that attribute" if about else "")
        ) from None
    if recorded and recorded != {model.fingerprint}:  # Runs of earlier versions have no fingerprint.
        raise BayesattnError(
            f"draws must be of the model that their attribute {ATTRIBUTE!r} describes, got data of another, or some of its"
            " examples: use the tree as it was sampled, or remove that attribute and pass model="
        )
    return model


def shown_temperature(table: PlainMapping) -> str | None:
    """T of a table of a model as text, or its prior; None if it has neither."""
    temperature = table.get("temperature", table.get("priors", {}).get("temperature"))
    return None if temperature is None else hyperpriors.shown_prior(temperature)


def architecture_in(tree: "xr.DataTree") -> Architecture | None:
    """Architecture from a tree's description of its model; None without a description of a network."""
    try:
        return Architecture.of_table(tomllib.loads(described_in(tree)["model"])["architecture"])
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def numbers_with_priors(tree: "xr.DataTree") -> dict[str, "xr.DataArray"]:
    """Draws of the numbers that have priors, by variable; of vectors those entries alone that have one."""
    try:
        priors = tomllib.loads(described_in(tree)["model"])["priors"]
        drawn = {name: dataset(tree, "posterior")[name] for name in priors}
    except (KeyError, TypeError, ValueError):
        return {}
    for name in [name for name in drawn if name in hyperpriors.VECTORS]:
        places = [place for place, each in enumerate(priors[name]) if isinstance(each, dict)]
        drawn[name] = drawn[name][..., places]
    return drawn


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
