"""Functions of draws, draw by draw: the variables that they need, blocks of one shape, keys, and errors of means."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import arviz_stats
import jax
import numpy as np
from jaxtyping import Float

from bayesattn._util.random import digest_of_draws, stream
from bayesattn._util.slow_loops import watched
from bayesattn.checks.mixing import FEWEST_DRAWS
from bayesattn.errors import BayesattnError
from bayesattn.models.draws import DRAW_VARIABLES, in_order_of_rows, order_parameters_in, require_finite
from bayesattn.models.network_posterior import NetworkPosterior

if TYPE_CHECKING:
    import xarray as xr


DRAWS_PER_BLOCK = 64
"""Number of draws between two updates of the progress bar."""
RANK_TOLERANCE = 1e-5
"""Share of the largest eigenvalue of U up to which others are rounding, also of draws that were stored in float32."""
Part = TypeVar("Part")


def variables_of(
    tree: "xr.DataTree", model: NetworkPosterior, names: Sequence[str], thin: int = 1
) -> dict[str, Float[np.ndarray, "chain draw *axes"]]:
    """Every thin-th draw of some variables."""
    variables = {"order_parameter": order_parameters_in(tree, model, thin)}
    _require_rank(variables["order_parameter"], model.architecture.factor_columns)
    for name in {*names} - variables.keys():
        if name not in tree["posterior"]:
            of, kept = repr(model.reference.likelihood), "queries_keys"
            if "V_0" in names:
                of, kept = "hidden attention or nonlinear values", "weights"
            advice = "" if name in DRAW_VARIABLES or name in model.hyperpriors.variables else f": keep {kept!r}"
            raise BayesattnError(f"draws of a model with {of} must have posterior[{name!r}], got draws without{advice}")
        values = in_order_of_rows(tree["posterior"].to_dataset()[name], tree, model)
        require_finite(f"posterior[{name!r}]", values)
        variables[name] = values.isel(draw=slice(thin - 1, None, thin)).values
    return variables


def _require_rank(order_parameters: Float[np.ndarray, "chain draw row row"], columns: int) -> None:
    """Raise ValueError if one of some evenly spaced draws of U has a higher rank than U of this network can have."""
    flat = order_parameters.reshape(-1, *order_parameters.shape[2:])
    some = flat[:: -(-len(flat) // DRAWS_PER_BLOCK)]
    values = np.linalg.eigvalsh(some)
    rank = np.sum(values > RANK_TOLERANCE * values[:, -1:], axis=1).max()
    if rank > columns:
        raise BayesattnError(
            f"order_parameter of draws must have rank {columns} or less at these widths, got rank {rank}"
        )


def by_draw(function: Callable[[Part], object], drawn: Part, description: str) -> Any:
    """Values of a function of draws, in parts of one shape, so that it is compiled once; with a bar if it is slow."""
    count = len(jax.tree.leaves(drawn)[0])
    size = min(DRAWS_PER_BLOCK, count)
    parts = [np.arange(first, first + size) % count for first in range(0, count, size)]
    values = [
        jax.device_get(function(jax.tree.map(lambda leaf, part=part: _at(leaf, part), drawn)))
        for part in watched(parts, description, f"blocks of {size} draws")
    ]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count], *values)


def _at(values: Any, numbers: np.ndarray) -> Any:
    """Entries along the first axis; of JAX's arrays, such as keys, by one program."""
    return values[numbers] if isinstance(values, np.ndarray) else _gathered(values, numbers)


@jax.jit
def _gathered(values, numbers):
    return values[numbers]


def keys_of(seed: int, purpose: str, model: NetworkPosterior, drawn: dict[str, np.ndarray]) -> Any:
    """A key for each draw, which depends on all draws."""
    own = digest_of_draws(*(drawn[name] for name in sorted(drawn)))
    chains, count = drawn["order_parameter"].shape[:2]
    return jax.random.split(stream(seed, purpose, model.fingerprint, own), chains * count)


def flat_draws(drawn: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Draws of all chains along one axis."""
    return {name: values.reshape(-1, *values.shape[2:]) for name, values in drawn.items()}


def by_chain(values: np.ndarray, chains: int) -> np.ndarray:
    """Values of each draw, with a first axis of chains."""
    return values.reshape(chains, -1, *values.shape[1:])


def error_of_mean(values: Float[np.ndarray, "chain draw *label"]) -> Float[np.ndarray, "*label"]:
    """Standard error of the mean; NaN with fewer than four draws, or if draws do not vary in any chain."""
    unknown = (values.max(1) == values.min(1)).all(0)
    if values.shape[1] < FEWEST_DRAWS:
        return np.full(values.shape[2:], np.nan)
    import xarray

    dims = ("chain", "draw", "example", "output")[: values.ndim]
    with np.errstate(divide="ignore", invalid="ignore"):
        error = arviz_stats.mcse(xarray.DataArray(values, dims=dims)).values
    return np.where(unknown, np.nan, error)


def require_finite_values(what: str, *values: np.ndarray) -> None:
    """Raise FloatingPointError if what draws gave is not finite."""
    if not all(np.isfinite(value).all() for value in values):
        raise FloatingPointError(
            f"a {what} is not finite: K + T I of a draw is likely singular in float64; raise the temperature"
        )
