"""Concatenation of draws of one posterior: chains with other seeds, from several calls, runs and machines."""

import json
import tomllib
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bayesattn._util.checks import require_memory, shown
from bayesattn._util.plain_values import PlainDict
from bayesattn.errors import BayesattnError
from bayesattn.models.arviz import dataset
from bayesattn.models.draws import (
    CHAIN_AXES,
    DATA_GROUPS,
    JOINED_KEY,
    Draws,
    has_repeats,
    identifying_numbers,
    joined_description,
    opened,
)
from bayesattn.models.stored_model import ATTRIBUTE, ModelRecord, close, described_in, padding

if TYPE_CHECKING:
    import xarray as xr

SETTINGS_THAT_MAY_DIFFER = ("chains", "draws", "warmup", "seed", "chain_method")
"""Settings in which concatenated draws may differ."""
RUN_ATTRIBUTES = ("format", "identity", "environment", "prepared", "sums", "sum")
"""Attributes of a single run, which concatenated draws do not have."""


def concat(draws: Sequence[Draws]) -> "xr.DataTree":
    """Concatenate draws of one model chain after chain, in memory, and renumber the chains.

    Data groups and prior groups are taken from the first element.

    Args:
        draws: at least one element, each the result of `bayesattn.sample` or of this function, a `bayesattn.runs.Run`,
            or a run's folder. All must have the same posterior, sampler, parameterisation and number of draws per
            chain, and different seeds.

    Raises:
        ValueError: no draws; draws that differ in model, test examples, settings (except seed, warm-up and number of
            chains), length or variables (the message names the difference); the same draws twice, or the same chain
            of one seed; more draws than memory can hold.
        RunError: a folder that is not a readable run.
    """
    import xarray

    if isinstance(draws, str) or not isinstance(draws, Sequence) or not draws:
        raise BayesattnError(
            f"draws must be a list of results of bayesattn.sample, runs or folders, got {shown(draws)}"
        )
    trees = [opened(each) for each in draws]
    first, *others = trees
    for number, other in enumerate(others, 1):
        _require_joinable(f"draws[{number}]", first, other)
    sources = [_sources(tree) for tree in trees]
    _require_other_seeds(trees, sources)
    require_memory("draws put together", sum(tree.nbytes for tree in trees), "put fewer together")
    groups: dict[str, xr.Dataset] = {}
    for name in first.children:
        data = dataset(first, name)
        if _is_of_draws(name):
            parts = [dataset(tree, name) for tree in trees]
            # Draws are numbered as in the first tree.
            data = xarray.concat(
                parts, dim="chain", data_vars="all", coords="minimal", compat="override", join="override"
            ).assign_coords(chain=np.arange(sum(part.sizes["chain"] for part in parts)))
        groups[name] = data
    result = xarray.DataTree.from_dict(groups)
    about = joined_description(described_in(first), chains=groups["posterior"].sizes["chain"])
    about = {key: value for key, value in about.items() if key not in RUN_ATTRIBUTES}
    if all(source is not None for source in sources):
        about[JOINED_KEY] = [pair for source in sources for pair in source or ()]
    result.attrs = dict(first.attrs) | ({ATTRIBUTE: json.dumps(about)} if about else {})
    return result


def _is_of_draws(group: str) -> bool:
    """Whether a group has one value per draw of the posterior."""
    return group not in DATA_GROUPS and not group.startswith("prior")


def _require_joinable(name: str, first: "xr.DataTree", other: "xr.DataTree") -> None:
    """Raise ValueError unless draws have the model, settings, groups, variables and data of the first ones."""
    if difference := ModelRecord.of_tree(first).difference(ModelRecord.of_tree(other)):
        raise BayesattnError(f"{name} must be of the same model as draws[0], got draws of a model with {difference}")
    classes = [described_in(tree).get("about_model", {}).get("output_names") for tree in (first, other)]
    if all(classes):
        _require_equal(f"{name} must have the classes", classes[0], classes[1], ordered=True)
    ours, theirs = _settings(first), _settings(other)
    for setting in ours if theirs else ():
        if ours[setting] != theirs.get(setting):
            raise BayesattnError(
                f"{name} must be drawn as draws[0] were, with {setting} = {ours[setting]}, got {theirs.get(setting)}"
            )
    groups = [[group for group in tree.children if _is_of_draws(group)] for tree in (first, other)]
    _require_equal(f"{name} must have groups", groups[0], groups[1])
    for group in groups[0]:
        one, two = dataset(first, group), dataset(other, group)
        _require_equal(f"{name} must have in {group} the variables", [*one.data_vars], [*two.data_vars])
        for variable in one.data_vars:
            _require_equal(f"{name} must have {variable} along", one[variable].dims, two[variable].dims)
        for axis in one.sizes:
            if axis != "chain" and one.sizes[axis] != two.sizes.get(axis):
                advice = ": cut the longer ones first, with isel(draw=slice(..))" if axis == "draw" else ""
                raise BayesattnError(
                    f"{name} must have {one.sizes[axis]} entries along {axis}, as draws[0] have, got"
                    f" {two.sizes.get(axis, 'none')}{advice}"
                )
            if axis not in CHAIN_AXES and axis in one.coords and axis in two.coords:
                ours_along, theirs_along = ([*map(str, each[axis].values)] for each in (one, two))
                _require_equal(f"{name} must have along {axis}", ours_along, theirs_along, ordered=True)
    for group in DATA_GROUPS:
        one, two = dataset(first, group), dataset(other, group)
        both = [variable for variable in one.data_vars if variable in two and variable != "fingerprint"]
        same = {variable: close(one[variable].values, two[variable].values) for variable in both}
        if "test_inputs" in both:
            same["test_mask"] = close(*(padding(data.get("test_mask")) for data in (one, two)))
        for variable in [variable for variable, is_same in same.items() if not is_same]:
            raise BayesattnError(f"{name} must have the {variable} of draws[0], got others")


def _require_equal(what: str, wanted: Sequence[Hashable], got: Sequence[Hashable], ordered: bool = False) -> None:
    if (wanted != got) if ordered else ({*wanted} != {*got}):
        raise BayesattnError(f"{what} {', '.join(map(str, wanted))}, as draws[0] have, got {', '.join(map(str, got))}")


def _settings(tree: "xr.DataTree") -> PlainDict:
    """Settings of the draws, except those that may differ; empty if they are unknown."""
    settings = tomllib.loads(described_in(tree).get("sampler", ""))
    return {name: value for name, value in settings.items() if name not in SETTINGS_THAT_MAY_DIFFER}


def _sources(tree: "xr.DataTree") -> list[list[int]] | None:
    """Original seed and chain number of each chain; None if unknown."""
    about, chains = described_in(tree), dataset(tree, "posterior")["chain"].values.tolist()
    known = about.get(JOINED_KEY)
    if known is not None:
        return [known[chain] for chain in chains] if {*chains} <= {*range(len(known))} else None
    settings = tomllib.loads(about.get("sampler", ""))
    return [[settings["seed"], chain] for chain in chains] if "seed" in settings else None


def _require_other_seeds(trees: "list[xr.DataTree]", sources: list[list[list[int]] | None]) -> None:
    met: dict[tuple[int, ...], int] = {}
    for number, source in enumerate(sources):
        for seed, chain in source or ():
            if (place := met.setdefault((seed, chain), number)) != number:
                both = f"draws[{place}] and draws[{number}]"
                raise BayesattnError(f"draws must be of other seeds, got {both} both of seed {seed}, chain {chain}")
    counts = {tree["posterior"].sizes["draw"] for tree in trees}
    values = [
        identifying_numbers({name: dataset(tree, name) for name in ("posterior", "sample_stats")})[1] for tree in trees
    ]
    if len(counts) == 1 and has_repeats(np.concatenate(values)) and not any(map(has_repeats, values)):
        raise BayesattnError("draws must be of other seeds, got the same draws twice")
