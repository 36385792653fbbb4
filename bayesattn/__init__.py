"""Exact Bayesian posteriors of attention networks, and the theory compared with the draws.

Importing the package turns on JAX's 64-bit mode, because the theory and the collapsed likelihood need float64.
Submodules, and JAX itself, are imported on first use (PEP 562).
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if "jax" in sys.modules:
    sys.modules["jax"].config.update("jax_enable_x64", True)
else:
    os.environ["JAX_ENABLE_X64"] = "1"  # JAX reads the variable when it is imported.

if TYPE_CHECKING:
    from bayesattn import attention, exchangeable, models, reference, runs, samplers, singular, tasks, theory
    from bayesattn._util.errors import BayesattnError
    from bayesattn.architecture import Architecture
    from bayesattn.attention_model import AttentionModel
    from bayesattn.checks import calibration, diagnostics
    from bayesattn.checks.grading import grade
    from bayesattn.checks.validation import Validation, validate
    from bayesattn.classes import one_hot
    from bayesattn.dataset import Dataset
    from bayesattn.head_posterior import combining_width, head_losses, heads, path_correlations, remove_heads
    from bayesattn.joining import concat
    from bayesattn.likelihoods import Categorical, Gaussian, Likelihood, Poisson, StudentT
    from bayesattn.model import Model
    from bayesattn.models import collapsed, load_model
    from bayesattn.models.interface import from_numpyro, from_vectors
    from bayesattn.prediction import score
    from bayesattn.predictive import predict, with_groups
    from bayesattn.samplers import sample
    from bayesattn.singular import learning_coefficient, learning_coefficient_of

    __version__: str

__all__ = [
    "Architecture",
    "AttentionModel",
    "BayesattnError",
    "Categorical",
    "Dataset",
    "Gaussian",
    "Likelihood",
    "Model",
    "Poisson",
    "StudentT",
    "Validation",
    "attention",
    "calibration",
    "collapsed",
    "combining_width",
    "concat",
    "diagnostics",
    "exchangeable",
    "from_numpyro",
    "from_vectors",
    "grade",
    "head_losses",
    "heads",
    "learning_coefficient",
    "learning_coefficient_of",
    "load_model",
    "models",
    "one_hot",
    "path_correlations",
    "predict",
    "reference",
    "remove_heads",
    "runs",
    "sample",
    "samplers",
    "score",
    "singular",
    "tasks",
    "theory",
    "validate",
    "with_groups",
]
_HOMES = {
    "Architecture": "architecture",
    "AttentionModel": "attention_model",
    "BayesattnError": "_util.errors",
    "Categorical": "likelihoods",
    "Dataset": "dataset",
    "Gaussian": "likelihoods",
    "Likelihood": "likelihoods",
    "Model": "model",
    "Poisson": "likelihoods",
    "StudentT": "likelihoods",
    "Validation": "checks.validation",
    "collapsed": "models",
    "combining_width": "head_posterior",
    "from_numpyro": "models.interface",
    "from_vectors": "models.interface",
    "grade": "checks.grading",
    "head_losses": "head_posterior",
    "heads": "head_posterior",
    "concat": "joining",
    "learning_coefficient": "singular",
    "learning_coefficient_of": "singular",
    "load_model": "models",
    "one_hot": "classes",
    "path_correlations": "head_posterior",
    "predict": "predictive",
    "remove_heads": "head_posterior",
    "sample": "samplers",
    "score": "prediction",
    "validate": "checks.validation",
    "with_groups": "predictive",
}
"""Module that defines each public name, for names that are not modules themselves."""


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("importlib.metadata").version("bayesattn")
    if name in _HOMES:
        return getattr(import_module(f"bayesattn.{_HOMES[name]}"), name)
    if name.isidentifier() and not name.startswith("_"):
        for module in (f"bayesattn.{name}", f"bayesattn.checks.{name}"):
            try:
                return import_module(module)
            except ModuleNotFoundError as error:
                if error.name != module:
                    raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
