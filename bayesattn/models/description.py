"""Description of a posterior as plain text and lists; together with its arrays it is enough to restore the posterior."""

import tomllib
from collections.abc import Callable
from functools import singledispatch

import numpy as np
import tomli_w

from bayesattn import likelihoods
from bayesattn._util.plain import PlainDict, PlainMapping
from bayesattn._util.random import fingerprint
from bayesattn.architecture import Architecture
from bayesattn.compressed import Compressed
from bayesattn.kernels.gaussian_process import ResidualExamples
from bayesattn.models.attention_model import AttentionModel
from bayesattn.models.latent import LatentModel
from bayesattn.models.model import Model
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.models.posterior import Posterior
from bayesattn.models.tokens import Tokens

ATTRIBUTE = "bayesattn"
"""Attribute of the root of a tree of draws, which contains the result of `described`."""


def described(model: Posterior, tokens: bool = False) -> PlainDict:
    """Kind, table (as TOML), names and fingerprint of a model; `tokens` says whether its groups contain tokens."""
    return {
        "kind": type(model).__name__,
        "model": tomli_w.dumps(plain_table(model.table())),
        "about_model": names_of(model, tokens),
        "fingerprint": fingerprint(model),
    }


def restored(description: PlainMapping, arrays: PlainMapping) -> Posterior:
    """Model restored from a description and arrays; raises KeyError, TypeError or ValueError for an invalid one."""
    return RESTORE[description["kind"]](tomllib.loads(description["model"]), description["about_model"], arrays)


@singledispatch
def names_of(model: Posterior, tokens: bool = False) -> PlainDict:
    """Plain values that, with `table` and the arrays of the groups, determine the model."""
    return {"name": model.name}


@names_of.register
def _(model: NetworkPosterior, tokens: bool = False) -> PlainDict:
    return {
        "head_names": model.head_names or model.architecture.numbered_heads(),
        "name": model.name,
        "task": model.task,
        **({} if model.output_names is None else {"output_names": list(model.output_names)}),
    }


@names_of.register
def _(model: Model, tokens: bool = False) -> PlainDict:
    return names_of.dispatch(NetworkPosterior)(model) | {
        "path_groups": {name: list(paths) for name, paths in model.path_groups.items()},
        "readout": model.tokens.readout if model.tokens and tokens else None,
        **({} if model.compressed is None else {"unseen": model.compressed.residual._asdict()}),
    }


def _network(table: PlainMapping, names: PlainMapping, arrays: PlainMapping) -> Model:
    arch, tokens = Architecture.of_table(table["architecture"]), None
    if names["readout"]:
        matrices = [arrays[f"token_matrices_{layer + 1}"] for layer in range(arch.depth)]
        mask = np.asarray(arrays["token_mask"], bool) if "token_mask" in arrays else None
        tokens = Tokens(arrays["token_inputs"], matrices, names["readout"], mask)
    wanted = ("path_inputs", "labels", "test_path_inputs", "test_labels")
    data = {name: arrays[name] for name in wanted if name in arrays}
    if "unseen" in names:
        inputs, labels = data.pop("path_inputs"), data.pop("labels")
        data["compressed"] = Compressed.restored(inputs, labels, ResidualExamples(**names["unseen"]))
    return Model(
        **data,
        likelihood=_likelihood(table, arrays),
        architecture=arch,
        tokens=tokens,
        # Earlier versions stored no names if there were none, and numbered heads from 0.
        head_names=names["head_names"] or arch.numbered_heads(first=0),
        output_names=names.get("output_names"),
        **{key: names[key] for key in ("path_groups", "name", "task")},
    )


def _likelihood(table: PlainMapping, arrays: PlainMapping) -> likelihoods.Likelihood:
    observation = table.get("observation", "gaussian")
    own = observation not in likelihoods.BY_NAME
    settings = table.get("likelihood", {}) if own else {"temperature": float(arrays["temperature"])}
    return likelihoods.restored(observation, settings)


def _with_attention(table: PlainMapping, names: PlainMapping, arrays: PlainMapping) -> AttentionModel:
    wanted = ("inputs", "labels", "test_inputs", "test_labels", "watched")
    data = {name: arrays[name] for name in wanted if name in arrays}
    data |= {name: np.asarray(arrays[name], bool) for name in ("mask", "test_mask") if name in arrays}
    return AttentionModel(
        **data,
        **table["attention"],
        likelihood=_likelihood(table, arrays),
        architecture=Architecture.of_table(table["architecture"]),
        head_names=names["head_names"],
        output_names=names.get("output_names"),
        **{key: names[key] for key in ("name", "task")},
    )


def _latent(table: PlainMapping, names: PlainMapping, arrays: PlainMapping) -> LatentModel:
    data = {name: arrays[name] for name in LatentModel.data_names if name in arrays}
    return LatentModel(**data, noise=table["noise"], prior=table["prior"], name=names["name"])


RESTORE: dict[str, Callable[[PlainMapping, PlainMapping, PlainMapping], Posterior]] = {
    "Model": _network,
    "AttentionModel": _with_attention,
    "LatentModel": _latent,
}
"""Function that restores a model, by the name of its class."""


def plain_table(table: PlainMapping) -> PlainDict:
    """Plain values in lists and dictionaries, without None, which TOML cannot represent."""
    return {key: _plain(part) for key, part in table.items() if part is not None}


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return plain_table(value)
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value
