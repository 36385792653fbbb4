"""Checks of arguments that theory functions share: a model with Gaussian labels, and numbers that JAX does not trace."""

import jax

from bayesattn._util.checks import Checked, is_traced, positive
from bayesattn.architecture import Architecture
from bayesattn.errors import BayesattnError
from bayesattn.kernels.gaussian_process import GaussianProcess


def gaussian_density(model: Checked, temperature: Checked = None) -> GaussianProcess:
    """Gaussian density of a model's labels given U, at the model's temperature or at another.

    Raises ValueError if `model` is not a model, if its labels are classes, or if the temperature is not above 0.
    """
    require_gaussian_model(model)
    kernels = model.gaussian_process
    return kernels if temperature is None else kernels.at(positive("temperature", temperature))


def require_gaussian_model(model: Checked) -> None:
    """Raise ValueError unless `model` is a `bayesattn.Model` with Gaussian labels; the theory cannot import that class."""
    if not isinstance(getattr(model, "architecture", None), Architecture):
        raise BayesattnError(f"model must be a bayesattn.Model, got {type(model).__name__}")
    model.require_theory()


def refuse_traced(function: str, **arguments: object) -> None:
    """Raise ValueError if JAX traces an argument of a function whose search depends on its values."""
    for name, value in arguments.items():
        if any(map(is_traced, jax.tree.leaves(value))):
            raise BayesattnError(
                f"{name} must be numbers: {function} cannot be traced by JAX (jit, grad, vmap); action, kernel, predict"
                " and gp_evidence can"
            )
