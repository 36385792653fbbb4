"""bayesattn: exact Bayesian posteriors of attention networks, and the theory held against the draws.

Importing it turns on JAX's 64-bit mode: the theory and the collapsed likelihood need float64.
"""

import jax

jax.config.update("jax_enable_x64", True)

from bayesattn import attention, calibration, diagnostics, exchangeable, models, runs, samplers, tasks, theory  # noqa: E402
from bayesattn.architecture import Architecture  # noqa: E402
from bayesattn.models import Model, collapsed, load_model  # noqa: E402
from bayesattn.samplers import sample  # noqa: E402
from bayesattn.validation import Validation, validate  # noqa: E402

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
