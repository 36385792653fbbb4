"""Units that are scored or removed: heads, paths, or groups of heads, each a set of paths."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from bayesattn._util.checks import Checked, entries, shown
from bayesattn.architecture import Architecture
from bayesattn.errors import BayesattnError
from bayesattn.models.model import has_fixed_attention
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.theory.statistics import relative_scores

EXCHANGEABILITY_NOTE = (
    "heads of a layer are exchangeable when queries and keys are sampled: their exact scores are equal, so any difference"
    " between them is Monte Carlo error, or chains that kept their start; compare layers or groups instead"
)
Head = tuple[int, str]
"""Layer, from 1, and name of a head."""


class Units(NamedTuple):
    """Names of heads, paths or groups, the paths that each of them uses, and names of the index levels.

    Skips are not heads. But scores are relative to the largest score of a draw, which may be that of a skip, so `skips`
    holds the paths of each skip.
    """

    names: list[Any]
    paths: Bool[np.ndarray, "unit path"]
    levels: list[str]
    skips: Bool[np.ndarray, "skip path"]

    def rows(self, arch: Architecture) -> Bool[np.ndarray, "unit row"]:
        """Which rows of U belong to each unit."""
        return np.repeat(self.paths, arch.outputs, axis=1)

    def scores(self, order_parameters: Float[np.ndarray, "*draws row row"], arch: Architecture) -> np.ndarray:
        """Score of each unit in each draw, shape (.., unit); raises ValueError if a U is 0."""
        rows = np.repeat(np.concatenate([self.paths, self.skips]), arch.outputs, axis=1)
        return relative_scores(order_parameters, rows)[..., : len(self.names)]


def heads_of(arch: Architecture) -> list[tuple[int, int]]:
    """Pairs (layer, head) of all heads, both from 0, first layer first."""
    return [(layer, head) for layer, count in enumerate(arch.heads) for head in range(count)]


def names_of_heads(model: NetworkPosterior) -> list[Head]:
    """Layer, from 1, and name of each head, first layer first."""
    return [
        (layer, name)
        for layer, of_layer in enumerate(model.head_names or model.architecture.numbered_heads(), start=1)
        for name in of_layer
    ]


def units_of(model: NetworkPosterior, of: Checked = "heads") -> Units:
    """Heads of a model ("heads"), its paths ("paths"), or groups of heads by name.

    A group is a list of heads, each a pair (layer, name), or the number of a layer, which stands for all of its heads.

    Raises ValueError for anything else.
    """
    arch, heads, uses = model.architecture, names_of_heads(model), _uses(model.architecture)
    none = np.zeros((0, arch.paths), bool)
    if isinstance(of, Mapping) and of and all(isinstance(name, str) for name in of):
        return Units([*of], np.array([_members(name, of[name], heads, uses) for name in of]), ["group"], none)
    if isinstance(of, str) and of == "heads":
        layers = [layer for layer, skip in enumerate(arch.skips) if skip]
        skips = [[ways[layer] == 0 for ways in arch.path_heads()] for layer in layers]
        return Units(heads, uses, ["layer", "head"], np.array(skips, bool).reshape(-1, arch.paths))
    if isinstance(of, str) and of == "paths":
        return Units(model.path_names, np.eye(arch.paths, dtype=bool), ["path"], none)
    raise BayesattnError(f"of must be 'heads', 'paths', or a dictionary of lists of heads, got {shown(of)}")


def exchangeability_note(model: NetworkPosterior, units: Units) -> str:
    """Caution about units that tell heads of a layer apart although queries and keys are sampled; else empty."""
    if has_fixed_attention(model):
        return ""
    ways = model.architecture.path_heads()
    places = {path: place for place, path in enumerate(ways)}
    for layer, head in heads_of(model.architecture):
        first = int(model.architecture.skips[layer] > 0)
        swap = {first: head + first, head + first: first}
        swapped = [places[(*path[:layer], swap.get(path[layer], path[layer]), *path[layer + 1 :])] for path in ways]
        if np.any(units.paths[:, swapped] != units.paths):
            return EXCHANGEABILITY_NOTE
    return ""


def _uses(arch: Architecture) -> Bool[np.ndarray, "head path"]:
    """Which paths use each head; a skip is not a head."""
    ways = np.array(arch.path_heads())
    return np.array([ways[:, layer] == head + (arch.skips[layer] > 0) for layer, head in heads_of(arch)])


def _members(name: Checked, members: Checked, heads: Sequence[Head], uses: np.ndarray) -> np.ndarray:
    """Paths that use a head of a group."""
    listed = entries(f"of[{name!r}]", members, "a list of heads, each a pair (layer, name), or of layers", most_axes=2)
    chosen = []
    for each in listed:
        pair = tuple(map(str, each)) if isinstance(each, tuple | list | np.ndarray) else None
        is_layer = pair is None and not isinstance(each, bool)
        found = [
            at for at, (layer, head) in enumerate(heads) if pair == (str(layer), head) or (is_layer and each == layer)
        ]
        if not found:
            raise BayesattnError(
                f"of[{name!r}] must hold heads as pairs (layer, name), or layers, of {shown([*heads])}, where layer 1 is the"
                f" first of the network, got {shown(each)}"
            )
        if pair is not None and len(found) > 1:
            raise BayesattnError(
                f"of[{name!r}] must hold heads with names of their own, got {shown(each)}, which {len(found)} heads have:"
                " give the model other head_names"
            )
        chosen += found
    if not chosen:
        raise BayesattnError(f"of[{name!r}] must hold at least one head, got none")
    return np.any(uses[chosen], axis=0)
