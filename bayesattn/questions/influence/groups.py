"""Groups of examples, whose influences are added up."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from bayesattn._util.checks import Checked, entries, shown
from bayesattn.errors import BayesattnError


def members_of(groups: Checked, count: int) -> tuple[list[str] | None, Float[np.ndarray, "group example"] | None]:
    """Names of groups, and 1 for each example of a group, 0 for others; None without groups.

    Args:
        groups: a class or source for each example, or lists of examples by name.
        count: number of examples.

    Raises:
        ValueError: another number of classes; a group without examples, or with ones that do not exist.
    """
    if groups is None:
        return None, None
    if isinstance(groups, Mapping):
        if not groups:
            raise BayesattnError("groups must name at least one group, got none")
        return [*map(str, groups)], np.stack([_members(name, groups[name], count) for name in groups])
    classes = np.asarray(entries("groups", groups, f"{count} classes, or lists of examples by name"))
    if classes.shape != (count,):
        raise BayesattnError(f"groups must hold one class for each of {count} examples, got shape {classes.shape}")
    names = np.unique(classes)
    return [*map(str, names)], (classes == names[:, None]).astype(float)


def _members(name: object, listed: Checked, count: int) -> Float[np.ndarray, " example"]:
    chosen = np.asarray(entries(f"groups[{name!r}]", listed, "a list of examples, by index"))
    if chosen.dtype == bool and chosen.shape == (count,):
        chosen = np.flatnonzero(chosen)
    whole = chosen.ndim == 1 and chosen.size and np.issubdtype(chosen.dtype, np.integer)
    if not whole or chosen.min() < 0 or chosen.max() >= count:
        raise BayesattnError(f"groups[{name!r}] must hold examples from 0 to {count - 1}, got {shown(listed)}")
    return np.bincount(np.unique(chosen), minlength=count).astype(float)
