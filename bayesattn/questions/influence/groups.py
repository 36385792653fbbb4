"""Groups of examples, whose influences are added up."""

from collections.abc import Iterable, Mapping
from contextlib import suppress

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
        members = [_members(name, groups[name], count) for name in groups]
        return _names(groups), np.stack(members)
    classes = entries("groups", groups, f"{count} classes, or lists of examples by name")
    if len(classes) != count:
        raise BayesattnError(f"groups must hold one class for each of {count} examples, got {len(classes)}")
    for example, each in enumerate(classes):
        if each is None or each != each:
            raise BayesattnError(f"groups must hold one class for each example, got {each!r} of example {example}")
    known = [*dict.fromkeys(classes)]
    with suppress(TypeError):  # Names and numbers have no order.
        known.sort()
    return _names(known), np.array([[float(each == name) for each in classes] for name in known])


def _names(names: Iterable[object]) -> list[str]:
    texts = [*map(str, names)]
    if len({*texts}) < len(texts):
        raise BayesattnError(f"groups must have different names, got {', '.join(texts)}")
    return texts


def _members(name: object, listed: Checked, count: int) -> Float[np.ndarray, " example"]:
    chosen = np.asarray(entries(f"groups[{name!r}]", listed, "a list of examples, by index"))
    if chosen.dtype == bool and chosen.shape == (count,):
        chosen = np.flatnonzero(chosen)
    whole = chosen.ndim == 1 and chosen.size and np.issubdtype(chosen.dtype, np.integer)
    if not whole or chosen.min() < 0 or chosen.max() >= count:
        raise BayesattnError(f"groups[{name!r}] must hold examples from 0 to {count - 1}, got {shown(listed)}")
    return np.bincount(np.unique(chosen), minlength=count).astype(float)
