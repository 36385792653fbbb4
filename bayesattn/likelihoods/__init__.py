"""Likelihoods: the distribution of labels given the network's outputs."""

from bayesattn.likelihoods.categorical import Categorical
from bayesattn.likelihoods.gaussian import Gaussian
from bayesattn.likelihoods.likelihood import Labels, Likelihood, Outputs

BY_NAME: dict[str, type[Gaussian] | type[Categorical]] = {"gaussian": Gaussian, "categorical": Categorical}
"""Likelihoods that a model file can name."""


def name_of(likelihood: Likelihood) -> str:
    """Name of a likelihood in a model file, or the name of its class."""
    return next((name for name, kind in BY_NAME.items() if type(likelihood) is kind), type(likelihood).__name__)


__all__ = ["BY_NAME", "Categorical", "Gaussian", "Labels", "Likelihood", "Outputs", "name_of"]
