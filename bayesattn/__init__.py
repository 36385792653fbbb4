"""Exact Bayesian posteriors of attention networks, and the theory compared with the draws.

Importing the package turns on JAX's 64-bit mode, because the theory and the collapsed likelihood need float64.
Submodules, and JAX itself, are imported on first use (PEP 562).
"""

import os
import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING

from bayesattn._util.files import OPENERS

if "jax" in sys.modules:
    sys.modules["jax"].config.update("jax_enable_x64", True)
else:
    os.environ["JAX_ENABLE_X64"] = "1"  # JAX reads the variable when it is imported.

OPENERS.append("bayesattn.jobs.runs")  # Whoever takes draws takes folders of runs too.

if TYPE_CHECKING:
    from bayesattn import attention, samplers, theory
    from bayesattn._util.compiled import keep_compiled
    from bayesattn.architecture import Architecture
    from bayesattn.arviz_groups import with_groups
    from bayesattn.checks.diagnostics import diagnose
    from bayesattn.checks.tempering import tempering
    from bayesattn.checks.validate import validate
    from bayesattn.classes import one_hot
    from bayesattn.dataset import Dataset
    from bayesattn.jobs import runs
    from bayesattn.likelihoods import Categorical, Gaussian, Likelihood, Poisson, StudentT
    from bayesattn.models import AttentionModel, Model
    from bayesattn.models.interface import from_numpyro, from_vectors
    from bayesattn.models.weights import weights
    from bayesattn.prediction import predict
    from bayesattn.questions import reference
    from bayesattn.questions.heads import head_losses, heads, remove_heads
    from bayesattn.questions.influence import influence
    from bayesattn.questions.reference.grading import grade
    from bayesattn.questions.singular import learning_coefficient
    from bayesattn.samplers import sample
    from bayesattn.tasks.load import load_model

    __version__: str

__all__ = [
    "Architecture",
    "AttentionModel",
    "Categorical",
    "Dataset",
    "Gaussian",
    "Likelihood",
    "Model",
    "Poisson",
    "StudentT",
    "attention",
    "diagnose",
    "from_numpyro",
    "from_vectors",
    "grade",
    "head_losses",
    "heads",
    "influence",
    "keep_compiled",
    "learning_coefficient",
    "load_model",
    "one_hot",
    "predict",
    "reference",
    "remove_heads",
    "runs",
    "sample",
    "samplers",
    "tempering",
    "theory",
    "validate",
    "weights",
    "with_groups",
]
_HOMES = {
    "Architecture": "architecture",
    "AttentionModel": "models",
    "Categorical": "likelihoods",
    "Dataset": "dataset",
    "Gaussian": "likelihoods",
    "Likelihood": "likelihoods",
    "Model": "models",
    "Poisson": "likelihoods",
    "StudentT": "likelihoods",
    "diagnose": "checks.diagnostics",
    "from_numpyro": "models.interface",
    "from_vectors": "models.interface",
    "grade": "questions.reference.grading",
    "head_losses": "questions.heads",
    "heads": "questions.heads",
    "influence": "questions.influence",
    "keep_compiled": "_util.compiled",
    "learning_coefficient": "questions.singular",
    "load_model": "tasks.load",
    "one_hot": "classes",
    "predict": "prediction",
    "reference": "questions",
    "remove_heads": "questions.heads",
    "runs": "jobs",
    "sample": "samplers",
    "tempering": "checks.tempering",
    "validate": "checks.validate",
    "weights": "models.weights",
    "with_groups": "arviz_groups",
}
"""Module that defines each public name, for names that are not modules beside this file."""
_MOVED = {
    "BayesattnError": "errors",
    "Validation": "checks.validation",
    "calibration": "questions",
    "cli": "jobs",
    "collapsed": "models",
    "concat": "joining",
    "diagnostics": "checks",
    "exchangeable": "questions",
    "plots": "jobs",
    "preferred_attention": "questions",
    "report": "jobs",
    "score": "prediction",
    "singular": "questions",
    "sweep": "jobs",
}
"""Names that the version before had here, until the next release, and where they are now."""
_REPLACED = {
    "combining_width": "ba.heads(draws).combining_width()",
    "learning_coefficient_of": "ba.learning_coefficient(model, losses=losses)",
    "path_correlations": "ba.heads(draws).correlations()",
}
"""Names that the version before had here, and what to write instead."""
_MODULES = ("attention", "models", "samplers", "tasks", "theory")
"""Modules beside this file that are imported when they are looked for."""


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("importlib.metadata").version("bayesattn")
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in _HOMES:
        return _imported(_HOMES[name], name)
    if name in _MOVED:
        place = f"{__name__}.{_MOVED[name]}"
        warnings.warn(
            f"bayesattn.{name} is {place}.{name} and will be removed here in the next release: from {place} import {name}",
            FutureWarning,
            stacklevel=2,
        )
        return _imported(_MOVED[name], name)
    advice = f": write {_REPLACED[name]}" if name in _REPLACED else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{advice}")


def _imported(home: str, name: str) -> object:
    """Object or module of this name in a module of the package."""
    module = import_module(f"{__name__}.{home}")
    return getattr(module, name) if hasattr(module, name) else import_module(f"{module.__name__}.{name}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
