"""Likelihoods: the distribution of labels given the network's outputs."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from bayesattn._util.errors import BayesattnError
from bayesattn._util.plain import PlainDict, PlainMapping
from bayesattn.likelihoods.categorical import Categorical
from bayesattn.likelihoods.gaussian import Gaussian
from bayesattn.likelihoods.likelihood import Labels, Likelihood, Outputs, positive_field
from bayesattn.likelihoods.poisson import Poisson
from bayesattn.likelihoods.student_t import StudentT

BY_NAME: dict[str, type[Gaussian] | type[Categorical]] = {"gaussian": Gaussian, "categorical": Categorical}
"""Likelihoods that a model file can name."""


class UnknownLikelihood(BayesattnError):
    """Likelihood of a class that is not defined in this process."""


def name_of(likelihood: Likelihood) -> str:
    """Name of a likelihood in a model file, or the name of its class."""
    return next((name for name, kind in BY_NAME.items() if type(likelihood) is kind), type(likelihood).__name__)


def settings_of(likelihood: Likelihood) -> PlainDict:
    """Fields of a likelihood as plain values; raises ValueError for a field that is neither a number nor an array."""
    settings = {}
    for each in dataclasses.fields(likelihood):
        value = np.asarray(getattr(likelihood, each.name))
        if value.dtype.kind not in "biufU":
            raise BayesattnError(
                f"field {each.name} of likelihood {type(likelihood).__name__} must be a number, a text or an array of them,"
                f" got {type(getattr(likelihood, each.name)).__name__}"
            )
        settings[each.name] = value.tolist()
    return settings


def restored(name: str, settings: PlainMapping) -> Likelihood:
    """Likelihood of a name and the fields that `settings_of` gave; raises UnknownLikelihood for a class that is unknown."""
    kind = BY_NAME.get(name) or next((kind for kind in _subclasses(Likelihood) if kind.__name__ == name), None)
    if kind is None:
        raise UnknownLikelihood(
            f"likelihood must be of a class that is defined here, got {name}: import the class, or hand over the model"
        )
    arrays = {field: np.asarray(value) if isinstance(value, list) else value for field, value in settings.items()}
    return kind(**arrays)


def _subclasses(kind: type[Likelihood]) -> Iterator[type[Likelihood]]:
    """Subclasses of a class and theirs, the latest definition first."""
    for subclass in reversed(kind.__subclasses__()):
        yield subclass
        yield from _subclasses(subclass)


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
    "name_of",
    "positive_field",
    "restored",
    "settings_of",
]
