"""Likelihoods: the distribution of labels given the network's outputs."""

from bayesattn.likelihoods.categorical import Categorical
from bayesattn.likelihoods.gaussian import Gaussian
from bayesattn.likelihoods.likelihood import Labels, Likelihood, Outputs, positive_field
from bayesattn.likelihoods.poisson import Poisson
from bayesattn.likelihoods.storage import (
    BY_NAME,
    UnknownLikelihood,
    density_of,
    is_built_in,
    is_of_classes,
    is_of_package,
    name_of,
    require_by_example,
    require_gaussian,
    require_usable,
    restored,
    settings_of,
)
from bayesattn.likelihoods.student_t import StudentT

__all__ = [
    "BY_NAME",
    "Categorical",
    "Gaussian",
    "Labels",
    "Likelihood",
    "Outputs",
    "Poisson",
    "StudentT",
    "UnknownLikelihood",
    "density_of",
    "is_built_in",
    "is_of_classes",
    "is_of_package",
    "name_of",
    "positive_field",
    "require_by_example",
    "require_gaussian",
    "require_usable",
    "restored",
    "settings_of",
]
