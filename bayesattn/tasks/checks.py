"""Checks that the settings of all tasks share."""

from typing import Any

from bayesattn._util.checks import one_of, positive, positive_integer, seed_number
from bayesattn.errors import BayesattnError


def checked_settings(task: Any, known_heads: tuple[str, ...]) -> None:
    """Raise ValueError for invalid numbers of examples, inverse temperature or seed, or layers of unknown heads."""
    for name in ("examples", "test_examples"):
        positive_integer(name, getattr(task, name))
    seed_number("seed", task.seed)
    positive("inverse_temperature", task.inverse_temperature)
    layers = task.layers
    listed = isinstance(layers, list | tuple) and all(isinstance(heads, list | tuple) for heads in layers)
    if not listed or not layers or not all(layers):
        raise BayesattnError(f"layers must hold at least one layer of at least one head, got {layers}")
    for layer, heads in enumerate(layers):
        for head in heads:
            one_of(f"layers[{layer}]", head, known_heads)
