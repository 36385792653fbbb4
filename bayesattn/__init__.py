"""Exact Bayesian posteriors of attention networks, and the theory compared with the draws.

Importing the package turns on JAX's 64-bit mode, because the theory and the collapsed likelihood need float64.
Submodules, and JAX itself, are imported on first use (PEP 562).
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from bayesattn._util.openers import OPENERS

if "jax" in sys.modules:
    sys.modules["jax"].config.update("jax_enable_x64", True)
else:
    os.environ["JAX_ENABLE_X64"] = "1"  # JAX reads the variable when it is imported.

OPENERS.append("bayesattn.jobs.runs")  # Whoever takes draws takes folders of runs too.

if TYPE_CHECKING:
    from bayesattn import attention, models, samplers, tasks, theory
    from bayesattn._util.errors import BayesattnError
    from bayesattn.architecture import Architecture
    from bayesattn.checks import diagnostics
    from bayesattn.checks.validate import validate
    from bayesattn.checks.validation import Validation
    from bayesattn.classes import one_hot
    from bayesattn.dataset import Dataset
    from bayesattn.jobs import runs
    from bayesattn.joining import concat
    from bayesattn.likelihoods import Categorical, Gaussian, Likelihood, Poisson, StudentT
    from bayesattn.models import AttentionModel, Model, collapsed
    from bayesattn.models.interface import from_numpyro, from_vectors
    from bayesattn.prediction import score
    from bayesattn.predictive import predict, with_groups
    from bayesattn.questions import calibration, exchangeable, reference, singular
    from bayesattn.questions.grading import grade
    from bayesattn.questions.heads import head_losses, heads, remove_heads
    from bayesattn.questions.singular import learning_coefficient
    from bayesattn.samplers import sample
    from bayesattn.tasks.load import load_model

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
    "concat",
    "diagnostics",
    "exchangeable",
    "from_numpyro",
    "from_vectors",
    "grade",
    "head_losses",
    "heads",
    "learning_coefficient",
    "load_model",
    "models",
    "one_hot",
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
    "AttentionModel": "models",
    "BayesattnError": "_util.errors",
    "Categorical": "likelihoods",
    "Dataset": "dataset",
    "Gaussian": "likelihoods",
    "Likelihood": "likelihoods",
    "Model": "models",
    "Poisson": "likelihoods",
    "StudentT": "likelihoods",
    "Validation": "checks.validation",
    "calibration": "questions",
    "cli": "jobs",
    "collapsed": "models",
    "concat": "joining",
    "diagnostics": "checks",
    "exchangeable": "questions",
    "from_numpyro": "models.interface",
    "from_vectors": "models.interface",
    "grade": "questions.grading",
    "head_losses": "questions.heads",
    "heads": "questions.heads",
    "learning_coefficient": "questions.singular",
    "load_model": "tasks.load",
    "one_hot": "classes",
    "plots": "jobs",
    "predict": "predictive",
    "preferred_attention": "questions",
    "reference": "questions",
    "remove_heads": "questions.heads",
    "report": "jobs",
    "runs": "jobs",
    "sample": "samplers",
    "score": "prediction",
    "singular": "questions",
    "study": "jobs",
    "sweep": "jobs",
    "validate": "checks.validate",
    "with_groups": "predictive",
}
"""Module or package that defines each public name, for names that are not beside this file."""


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("importlib.metadata").version("bayesattn")
    if name not in _HOMES:
        if name in __all__:
            return import_module(f"bayesattn.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = f"bayesattn.{_HOMES[name]}"
    module = import_module(home)
    try:
        return getattr(module, name)
    except AttributeError:
        return import_module(f"{home}.{name}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
