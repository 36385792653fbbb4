"""Draws in trees, runs and folders, opened: axes are put in order by name, and draws are checked against their model."""

import json
import sys
import tomllib
from collections.abc import Mapping
from functools import singledispatch
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Union

import numpy as np
import tomli_w
from jaxtyping import Float

from bayesattn._util.checks import Checked, finite_array, positive_integer, shown, warn_of_swapped_axes
from bayesattn._util.files import OPENERS
from bayesattn._util.plain_values import PlainDict
from bayesattn.errors import BayesattnError
from bayesattn.models.arviz import DATA_GROUPS, dataset
from bayesattn.models.model import Model, has_fixed_attention
from bayesattn.models.network_posterior import NO_FIXED_ATTENTION, NetworkPosterior, is_network
from bayesattn.models.stored_model import ATTRIBUTE, described_in, model_in, own_row_names, require_model

if TYPE_CHECKING:
    import xarray as xr


class StoredDraws(Protocol):
    """Draws that a store keeps with their model, such as a `bayesattn.runs.Run`."""

    @property
    def model(self) -> Any:
        """Posterior of the draws."""
        ...

    def draws(self) -> "xr.DataTree":
        """Tree of the draws."""
        ...


Draws = Union["xr.DataTree", StoredDraws, str, Path]
CHAIN_AXES = ("chain", "draw")
ORDER_PARAMETER_AXES = (*CHAIN_AXES, "path", "other_path")
DRAW_VARIABLES = ("order_parameter", "latent", "prediction", "bartlett", "readout", "lp", "energy", "diverging")
"""Variables of draws that functions of this package read."""
JOINED_KEY = "joined"
"""Key in the description of joined trees: original seed and chain of each chain."""
BLOCK_ENTRIES = 2**22
"""Most entries of a variable that are checked at a time: 32 MiB."""
AXIS_ORDER = (
    *(*CHAIN_AXES, "example", "test_example", "sequence", "output", "token", "test_token", "head", "query", "key"),
    *("path", "path_of_inputs", "other_path", "value_feature", "readout_width", "key_feature", "width", "feature"),
)
"""Order of the axes of all variables; axes of several layers are numbered, widths from the last layer down."""


def opened(draws: Draws) -> "xr.DataTree":
    """Draws as a tree whose variables have their axes in order, and whose data have no axes of chains or draws.

    Args:
        draws: result of `bayesattn.sample`, also after operations of xarray or ArviZ, a `bayesattn.runs.Run`, or a run's
            folder.

    Raises:
        ValueError: an argument of another kind; draws without axes of chains and draws, with U that is not square, or
            that are not finite, as those of an unfinished run are if it is opened by xarray; joined trees of several
            models, with chains of several lengths, or with the same draws twice.
        RunError: a folder that is not a readable run.
    """
    return _opened(draws)[0]


def opened_of(draws: Draws, model: object) -> "xr.DataTree":
    """Draws of a model, by `opened`; raises ValueError, which names the difference, if they are of another model."""
    tree = opened(draws)
    require_model(tree, model)
    return tree


def opened_with_network(draws: Draws, model: NetworkPosterior | None = None) -> tuple[NetworkPosterior, "xr.DataTree"]:
    """Draws of a network, by `opened`, with their model: `model` if given, else the model that the draws identify.

    Raises:
        ValueError: draws that do not identify their model, without `model`; draws not of a network, or not of `model`.
    """
    tree, run = _opened(draws)
    if model is not None:
        require_model(tree, model)
    own = model if model is not None else model_in(tree) if run is None else run.model
    if not is_network(own):
        raise BayesattnError(f"draws must be of a network, a bayesattn.Model, got those of a {type(own).__name__}")
    return own, tree


def opened_with_fixed_attention(draws: Draws, model: Model | None = None) -> tuple[Model, "xr.DataTree"]:
    """Draws and their model by `opened_with_network`; raises ValueError if queries and keys are sampled too."""
    found, tree = opened_with_network(draws, model)
    if not has_fixed_attention(found):
        raise BayesattnError(NO_FIXED_ATTENTION)
    return found, tree


@singledispatch
def stored(draws: object) -> StoredDraws:
    """Draws that are not in memory; `bayesattn.runs` registers itself and folders of runs, which only it can read."""
    if isinstance(draws, str | Path) and not {*OPENERS} <= sys.modules.keys():
        for module in OPENERS:
            import_module(module)
        return stored(draws)
    foreign = hasattr(draws, "get_samples") or hasattr(draws, "shape")
    advice = ": make draws of it by bayesattn.from_numpyro or bayesattn.from_vectors" if foreign else ""
    raise BayesattnError(
        f"draws must be the result of bayesattn.sample, a Run or a run's folder, got {shown(draws)}{advice}"
    )


def _opened(draws: Checked) -> tuple["xr.DataTree", StoredDraws | None]:
    """Draws by `opened`, and their run; a run itself vouches that its draws are there, so they are not read here."""
    import xarray

    run = None if isinstance(draws, xarray.DataTree) else stored(draws)
    tree = draws if run is None else run.draws()
    tree = _in_order(tree)
    if run is None:
        _require_finite(tree)
    return tree, run


def _require_finite(tree: "xr.DataTree") -> None:
    """Raise ValueError if data, or variables that functions of this package read, are not finite."""
    for name, node in tree.children.items():
        for variable, values in node.data_vars.items():
            if name in DATA_GROUPS or (name in ("posterior", "sample_stats") and variable in DRAW_VARIABLES):
                require_finite(f"{name}[{str(variable)!r}]", values)


def _in_order(tree: "xr.DataTree") -> "xr.DataTree":
    """Tree with axes in order by name; the same object if nothing changes."""
    import xarray

    if "posterior" not in tree.children:
        raise BayesattnError(f"draws must have the group posterior, got groups {', '.join(tree.children) or 'none'}")
    groups = {str(name): node.to_dataset() for name, node in tree.children.items()}
    ordered, joined = {}, False
    for name, data in groups.items():
        if name in DATA_GROUPS:
            ordered[name] = _without_axes_of_chains(name, data)
            joined |= ordered[name] is not data
        else:
            ordered[name] = _renumbered(data)
            joined |= name == "posterior" and ordered[name] is not data
        ordered[name] = _in_order_of_axes(ordered[name])
        _require_axes(ordered[name])
    ordered["posterior"] = _square(ordered["posterior"])
    if joined:
        _require_joinable(ordered)
    changed = {name: data for name, data in ordered.items() if data is not groups[name]}
    if not changed:
        return tree
    result = tree.copy()
    for name, data in changed.items():
        result[name] = xarray.DataTree(data)
    if joined:
        about = joined_description(described_in(tree))
        result.attrs = {**tree.attrs, **({ATTRIBUTE: json.dumps(about)} if about else {})}
    return result


def require_finite(what: str, values: "xr.DataArray") -> None:
    """Raise ValueError unless a variable of draws is finite. xarray reads what is missing in a store of a run as NaN."""
    if values.dtype.kind != "f":
        return
    # A part at a time, because all predictions may not fit into memory.
    draws = values.sizes.get("draw", 1)
    step = max(1, BLOCK_ENTRIES * draws // max(1, values.size))
    parts = [values.isel(draw=slice(at, at + step)) for at in range(0, draws, step)] if step < draws else [values]
    if not all(np.isfinite(part.values).all() for part in parts):
        raise BayesattnError(
            f"draws must be finite, got {what} with NaN or infinity: a run that is opened by xarray has NaN where draws or"
            " files are missing, run.draws() of a bayesattn.runs.Run has the draws that all chains have"
        )


def joined_description(about: PlainDict, **settings: object) -> PlainDict:
    """Description of joined draws, from that of the first: without its seed, which does not apply to all chains."""
    about = {key: value for key, value in about.items() if key != JOINED_KEY}
    if isinstance(about.get("sampler"), str):
        sampler = tomllib.loads(about["sampler"]) | settings
        about["sampler"] = tomli_w.dumps({name: value for name, value in sampler.items() if name != "seed"})
    return about


def _without_axes_of_chains(name: str, data: "xr.Dataset") -> "xr.Dataset":
    """Data without the axes that joining adds; raises ValueError if values differ along them."""
    for axis in [axis for axis in CHAIN_AXES if axis in data.dims]:
        for variable, values in data.data_vars.items():
            if axis in values.dims:
                entries = values.transpose(axis, ...).values
                if not (entries == entries[:1]).all():
                    what = f"{name}[{str(variable)!r}]"
                    raise BayesattnError(
                        f"draws must be of one model, got joined trees whose {what} differ along {axis}:"
                        " bayesattn.joining.concat names further differences"
                    )
        data = data.isel({axis: 0}, drop=True)
    return data


def _in_order_of_axes(data: "xr.Dataset") -> "xr.Dataset":
    def place(axis: Checked) -> tuple[int, int]:
        name, _, number = str(axis).rpartition("_")
        if number.isdecimal() and name in AXIS_ORDER:
            return AXIS_ORDER.index(name), -int(number)
        return AXIS_ORDER.index(axis) if axis in AXIS_ORDER else len(AXIS_ORDER), 0

    turned = {
        name: values.transpose(*order)
        for name, values in data.data_vars.items()
        if [*values.dims] != (order := sorted(values.dims, key=place))
    }
    return data.assign(turned) if turned else data


def _renumbered(data: "xr.Dataset") -> "xr.Dataset":
    """Dataset with chains and draws renumbered if joining left duplicate numbers."""
    twice = [axis for axis in CHAIN_AXES if axis in data.indexes and not data.indexes[axis].is_unique]
    return data.assign_coords({axis: np.arange(data.sizes[axis]) for axis in twice}) if twice else data


def _require_axes(data: "xr.Dataset") -> None:
    """Raise ValueError unless variables have axes of chains and draws; U and scalars must have no further axes."""
    for name in [name for name in DRAW_VARIABLES if name in data]:
        axes = {*data[name].dims}
        wanted = ORDER_PARAMETER_AXES if name == "order_parameter" else CHAIN_AXES
        if not {*wanted} <= axes or (name in ("order_parameter", "lp", "energy") and axes > {*wanted}):
            got = ", ".join(map(str, data[name].dims)) or "none"
            raise BayesattnError(
                f"{name} of draws must have axes {', '.join(wanted)}, got {got}; isel(chain=[0]) keeps the axis"
            )


def _square(posterior: "xr.Dataset") -> "xr.Dataset":
    """Draws of U with the same paths along both axes."""
    if "order_parameter" not in posterior:
        return posterior
    paths, others = (posterior["order_parameter"][axis].values.tolist() for axis in ORDER_PARAMETER_AXES[2:])
    if paths == others:
        return posterior
    if sorted(paths) != sorted(others) or len({*paths}) < len(paths):
        raise BayesattnError(
            f"order_parameter of draws must have the same paths along path and other_path, got"
            f" {', '.join(map(str, paths))} and {', '.join(map(str, others))}"
        )
    return posterior.sel(other_path=paths)


def _require_joinable(groups: Mapping[str, "xr.Dataset"]) -> None:
    """Raise ValueError if joined trees have chains of several lengths, or the same draws twice."""
    name, values = identifying_numbers(groups)
    if not np.isfinite(values).all():
        raise BayesattnError(
            f"draws that were put together must be as many of each chain, got {name} that are not finite: cut the longer"
            " ones first, with isel(draw=slice(..))"
        )
    if has_repeats(values):
        raise BayesattnError("draws that were put together must be of other seeds, got the same draws twice")


def identifying_numbers(groups: Mapping[str, "xr.Dataset"]) -> tuple[str, Float[np.ndarray, "chain draw"]]:
    """Name and values of a number that distinguishes draws: the log density, or else an entry of a variable."""
    statistics = groups.get("sample_stats")
    if statistics is not None and "lp" in statistics:
        return "lp", statistics["lp"].values
    name, values = next(iter(groups["posterior"].data_vars.items()))
    last = {axis: -1 for axis in values.dims if axis not in CHAIN_AXES}
    return str(name), values.isel(last).values


def fewest_round_trips(tree: "xr.DataTree") -> float:
    """Least number of round trips of a chain of tempered draws; NaN of other draws."""
    statistics = dataset(tree, "sample_stats")
    if "round_trips" not in statistics:
        return float("nan")
    trips = statistics["round_trips"]  # Counted from warm-up on, also where the first draws were cut off.
    return float((trips.max("draw") - trips.min("draw")).min())


def has_repeats(values: Float[np.ndarray, "chain draw"]) -> bool:
    """Whether two numbers follow each other twice, or one of chains that never move.

    Equal consecutive ones are one, as when a sampler rejects. A single one may come back: an exchanged replica that did not
    move meanwhile.
    """
    moved = np.ones(values.shape, bool)
    moved[:, 1:] = values[:, 1:] != values[:, :-1]
    chains = [chain[kept] for chain, kept in zip(values, moved, strict=True)]
    pairs = np.concatenate([each[:-1] + 1j * each[1:] if len(each) > 1 else each for each in chains])
    return len(np.unique(pairs)) < len(pairs)


def order_parameters_of(
    draws: Checked, model: NetworkPosterior, thin: int = 1
) -> Float[np.ndarray, "chain draw row row"]:
    """Every thin-th U of draws of a model, with rows in the model's order.

    Args:
        draws: draws as for `opened`, or an array of shape (chain, draw, row, row).
        model: the posterior.
        thin: the last of every `thin` draws is used.

    Raises:
        ValueError: draws of another model, or without U; an array of another shape; fewer draws than `thin`.
    """
    positive_integer("thin", thin)
    rows = model.architecture.rows
    if _is_named(draws):
        import xarray

        draws = xarray.DataTree.from_dict({"posterior": draws.to_dataset(name="order_parameter")})
    elif not is_tree_or_run(draws):
        array = finite_array("order_parameters", draws, ("chains", "draws", rows, rows))
        warn_of_swapped_axes("order_parameters", array)
        return array[:, thin - 1 :: thin]
    return order_parameters_in(opened_of(draws, model), model, thin)


def _is_named(draws: Checked) -> bool:
    return {*getattr(draws, "dims", ())} == {*ORDER_PARAMETER_AXES}


def is_tree_or_run(draws: Checked) -> bool:
    """Whether draws are a valid argument of `opened`, or a variable U with named axes."""
    return (
        _is_named(draws)
        or isinstance(draws, str | Path)
        or hasattr(draws, "children")
        or callable(getattr(draws, "draws", None))
    )


def order_parameters_in(
    tree: "xr.DataTree", model: NetworkPosterior, thin: int = 1
) -> Float[np.ndarray, "chain draw row row"]:
    """Every thin-th U of an opened tree, with rows in the model's order."""
    positive_integer("thin", thin)
    posterior = tree["posterior"].to_dataset()
    if "order_parameter" not in posterior:
        raise BayesattnError("draws must have posterior['order_parameter'], got none: keep it when you sample")
    drawn = in_order_of_rows(posterior["order_parameter"], tree, model).isel(draw=slice(thin - 1, None, thin))
    if not drawn.size:
        raise BayesattnError(f"draws must hold at least {thin} of each chain, got {posterior.sizes['draw']}")
    return drawn.values  # Read here, if the draws are on disk.


def in_order_of_rows(drawn: "xr.DataArray", tree: "xr.DataTree", model: NetworkPosterior) -> "xr.DataArray":
    """Variable with its paths in the order of a model's rows of U, by their names."""
    rows = own_row_names(tree) or model.row_names
    for axis in [axis for axis in ORDER_PARAMETER_AXES[2:] if axis in drawn.dims]:
        names = [*map(str, drawn[axis].values)]  # Numbers, if the axis has no names.
        named = axis in drawn.coords
        if drawn.sizes[axis] != model.architecture.rows or (named and sorted(names) != sorted(rows)):
            raise BayesattnError(
                f"draws must be of a network of paths {', '.join(model.row_names)}, got {', '.join(names)}"
            )
        if named and names != [*rows]:
            drawn = drawn.sel({axis: [*rows]})
    return drawn


def numbers_of(tree: "xr.DataTree", model: NetworkPosterior) -> dict[str, "xr.DataArray"]:
    """Draws of the numbers that have priors, by variable, chain and draw first; raises ValueError if one is missing."""
    posterior, names = dataset(tree, "posterior"), model.hyperpriors.variables
    if missing := [name for name in names if name not in posterior]:
        raise BayesattnError(f"draws must have posterior[{missing[0]!r}], a number that has a prior, got none")
    return {name: posterior[name].transpose("chain", "draw", ...) for name in names}
