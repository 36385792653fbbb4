"""bayesattn: exact Bayesian posteriors of attention networks, and the theory held against the draws.

Importing it turns on JAX's 64-bit mode: the theory and the collapsed likelihood need float64.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import jax

jax.config.update("jax_enable_x64", True)

from bayesattn import attention, models, samplers, tasks, theory  # noqa: E402
from bayesattn.architecture import Architecture  # noqa: E402
from bayesattn.models import Model, collapsed, load_model  # noqa: E402
from bayesattn.samplers import sample  # noqa: E402

if TYPE_CHECKING:
    from bayesattn import calibration, diagnostics, exchangeable, runs
    from bayesattn.validation import Validation, validate

__all__ = [
    "Architecture",
    "Model",
    "Validation",
    "attention",
    "calibration",
    "collapsed",
    "diagnostics",
    "exchangeable",
    "load_model",
    "models",
    "runs",
    "sample",
    "samplers",
    "tasks",
    "theory",
    "validate",
]


def __getattr__(name: str) -> Any:
    """Modules that take a while to import, and that sampling does not need, are imported when asked for (PEP 562)."""
    if name in ("Validation", "validate"):
        return getattr(import_module("bayesattn.validation"), name)
    if not name.startswith("_"):
        try:
            return import_module(f"bayesattn.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"bayesattn.{name}":
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
