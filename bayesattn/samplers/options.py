"""Options of samplers: which ones a sampler has, and the check of each."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bayesattn._util.checks import positive, positive_integer, probability, shown, suggestion, truth
from bayesattn._util.plain_values import PlainDict
from bayesattn.errors import BayesattnError
from bayesattn.samplers.tempered import checked_replicas

NO_OPTIONS = ("model", "potential_fn", "init_strategy")
"""Arguments of NumPyro's kernels that are not options of a sampler."""
LARGEST_TREE_DEPTH = 30
"""Largest tree depth: a deeper tree has more leaves than a 32-bit integer can count."""


def checked_options(sampler: str, kernel: Any, options: object) -> PlainDict:
    """Options with lists as tuples; raises ValueError for an option that the kernel does not have, or an invalid value."""
    if not isinstance(options, Mapping):
        raise BayesattnError(f"options must be a dictionary of options of the sampler, got {shown(options)}")
    known = option_names(kernel)
    for name, value in options.items():
        if name not in known:
            raise BayesattnError(
                f"options of sampler {sampler!r} must be some of {', '.join(known)}, got {shown(name)}"
                + suggestion(name, known)
            )
        if name in CHECKS:
            CHECKS[name](f"options.{name}", value)
        elif not isinstance(value, str | int | float | np.generic):
            raise BayesattnError(
                f"options.{name} must be a number, a text or a truth value, got {shown(value)}: pass an instance of the"
                " kernel, made with this option"
            )
    numbers = {name: value.item() for name, value in options.items() if hasattr(value, "item") and np.ndim(value) == 0}
    plain = {**options, **numbers}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}


def option_names(kernel: Any) -> list[str]:
    """Options of a sampler.

    For our kernels, options of a parent class count if the constructor accepts `**options`.
    """
    if not isinstance(kernel, type):
        return []
    if not kernel.__module__.startswith("bayesattn."):
        return sorted(name for name in inspect.signature(kernel).parameters if name not in NO_OPTIONS)
    names: list[str] = []
    for base in kernel.__mro__:
        if "__init__" in vars(base):
            parameters = inspect.signature(base.__init__).parameters
            names += [name for name in parameters if name in CHECKS]
            if not any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values()):
                break
    return sorted(set(names))


def _tree_depth(name: str, value: object) -> None:
    depths = value if isinstance(value, list | tuple) else [value]
    if isinstance(value, list | tuple) and len(value) != 2:
        raise BayesattnError(f"{name} must be a depth, or a pair of depths (in warm-up, after it), got {shown(value)}")
    for depth in depths:
        positive_integer(name, depth, 1, LARGEST_TREE_DEPTH)


CHECKS: dict[str, Callable[[str, object], object]] = {
    "adapt_mass_matrix": truth,
    "adapt_step_size": truth,
    "damping_length": positive,
    "dense_mass": truth,
    "desired_energy_var": positive,
    "find_heuristic_step_size": truth,
    "float32_gradients": truth,
    "forward_mode_differentiation": truth,
    "length": positive,
    "max_tree_depth": _tree_depth,
    "minibatch": positive_integer,
    "num_steps": positive_integer,
    "regularize_mass_matrix": truth,
    "replicas": checked_replicas,
    "step_size": positive,
    "steps": positive_integer,
    "target_accept_prob": probability,
    "trajectory_length": positive,
}
"""Check of each option, for all samplers that have it."""
