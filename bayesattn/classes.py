"""Classes as labels of a network with an output for each of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from bayesattn._checks import names as checked_names
from bayesattn._checks import shown


class OneHot(NamedTuple):
    """Labels (P, m), 1 at the class of each example and 0 elsewhere, and the names of the m classes."""

    labels: Float[np.ndarray, "example output"]
    names: tuple[str, ...]


def one_hot(classes: Any, names: Sequence[Any] | None = None) -> OneHot:
    """Labels of a network that has an output for each class, of which the greatest decides.

    >>> one_hot(["cat", "dog", "cat"])
    OneHot(labels=array([[1., 0.],
           [0., 1.],
           [1., 0.]]), names=('cat', 'dog'))

    Args:
        classes: of each example, whole numbers or strings, shape (P,).
        names: all classes there are, in the order of the outputs; by default those that occur, sorted. Give it where some do
            not occur among the examples at hand, as for test examples.

    Returns:
        Labels for `bayesattn.Model(labels=..)`, and names for its `output_names`.

    Raises:
        ValueError: fewer than two classes, another shape or type, an example of none of the classes named.
    """
    given = np.asarray(classes)
    if given.ndim != 1 or given.dtype.kind not in "iuU":
        raise ValueError(
            f"classes must be whole numbers or strings, one for each example, got {given.dtype} of shape {given.shape}"
        )
    known = np.unique(given) if names is None else np.asarray(names)
    if known.ndim != 1 or len(np.unique(known)) != len(known) or len(known) < 2:
        raise ValueError(f"names must be of two or more classes, all different, got {shown(known.tolist())}")
    same = given[:, None] == known
    if not np.all(same.any(1)):
        example = int(np.argmin(same.any(1)))
        raise ValueError(
            f"classes[{example}] must be one of {shown(known.tolist())}, got {shown(given[example].item())}"
        )
    return OneHot(same.astype(float), checked_names("names", [str(name) for name in known.tolist()]))
