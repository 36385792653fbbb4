"""Likelihoods as names and plain values, the form in which they are stored beside draws and restored."""

import dataclasses
from collections.abc import Iterator
from contextlib import suppress

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayesattn._util.checks import shown
from bayesattn._util.plain_values import PlainDict, PlainMapping
from bayesattn._util.random import digest, rounded
from bayesattn._util.settings import with_own_settings
from bayesattn.errors import BayesattnError
from bayesattn.likelihoods.categorical import Categorical
from bayesattn.likelihoods.gaussian import Gaussian
from bayesattn.likelihoods.likelihood import Labels, Likelihood, Outputs

BY_NAME: dict[str, type[Gaussian] | type[Categorical]] = {"gaussian": Gaussian, "categorical": Categorical}
"""Likelihoods that a model file can name."""
NAMES: dict[type, str] = {kind: name for name, kind in BY_NAME.items()}


class UnknownLikelihood(BayesattnError):
    """Likelihood of a class that is not defined in this process."""


def is_built_in(likelihood: Likelihood) -> bool:
    """Whether a model file can name the likelihood."""
    return type(likelihood) in NAMES


def name_of(likelihood: Likelihood) -> str:
    """Name of a likelihood in model files; without one, its class name, with the module if it is from elsewhere."""
    kind = type(likelihood)
    return NAMES.get(kind) or _class_name(kind)


def is_of_package(kind: type) -> bool:
    """Whether a class of likelihoods is one of this package."""
    return kind.__module__.startswith("bayesattn.likelihoods.")


def is_of_classes(likelihood: Likelihood) -> bool:
    """Whether labels are classes, of which the likelihood has probabilities."""
    return type(likelihood).probabilities is not Likelihood.probabilities


def _class_name(kind: type) -> str:
    return kind.__name__ if is_of_package(kind) else f"{kind.__module__}.{kind.__qualname__}"


def settings_of(likelihood: Likelihood) -> PlainDict:
    """Fields of a likelihood as plain values, without those that are None.

    Raises ValueError for a field that is neither a number nor an array of numbers.
    """
    settings = {}
    for each in dataclasses.fields(likelihood):
        if (value := getattr(likelihood, each.name)) is None:
            continue
        try:
            array = np.asarray(value)
        except ValueError:  # Entries of different lengths.
            array = np.asarray(None)
        if array.dtype.kind not in "iuf":
            raise BayesattnError(
                f"field {each.name} of likelihood {type(likelihood).__name__} must be a number or an array of them, got"
                f" {shown(value)}"
            )
        settings[each.name] = array.tolist()
    return settings


@with_own_settings
def density_of(likelihood: Likelihood, labels: np.ndarray) -> str:
    """Digest of log p(Y | f) at three random f: name and fields of a class of one's own do not say what it computes."""
    rng, found = np.random.default_rng(0), []
    for scale in (0.1, 1.0, 3.0):
        outputs = jnp.asarray(scale * rng.normal(size=labels.shape))
        values = np.asarray(_log_prob(likelihood, outputs, jnp.asarray(labels)))
        found += [np.isfinite(values), rounded(np.where(np.isfinite(values), values, 0.0))]
    return digest("density", *found)[:16]


@jax.jit
def _log_prob(likelihood: Likelihood, outputs: Outputs, labels: Labels) -> Float[Array, "*examples"]:
    return likelihood.log_prob(outputs, labels)


def require_gaussian(likelihood: Likelihood) -> None:
    """Raise ValueError unless a likelihood is Gaussian; other likelihoods have no theory in closed form."""
    if not likelihood.conjugate:
        raise BayesattnError(
            "likelihood must be bayesattn.Gaussian for the theory, the evidence and what is compared with them, got a model"
            f" with {likelihood!r}: draw from it (sample, predict, samplers.anneal for its evidence), or use"
            " replace(likelihood=bayesattn.Gaussian(T))"
        )


def require_usable(likelihood: Likelihood, labels: np.ndarray) -> None:
    """Raise ValueError unless fields can be stored and `log_prob` returns one number per example."""
    settings_of(likelihood)
    outputs = jax.ShapeDtypeStruct(labels.shape, float)
    shape = jax.eval_shape(likelihood.log_prob, outputs, outputs).shape
    if shape != labels.shape[:1]:
        raise BayesattnError(
            f"log_prob of likelihood {type(likelihood).__name__} must have a number for each example, shape"
            f" {labels.shape[:1]}, got {shape}: sum over outputs, not over examples"
        )


def require_by_example(likelihood: Likelihood, labels: np.ndarray, use: str) -> None:
    """Raise ValueError if a likelihood has a field with a number for each example, where examples are taken one by one."""
    one = jax.ShapeDtypeStruct((1, *labels.shape[1:]), float)
    with suppress(TypeError, ValueError):  # Shapes that do not broadcast.
        if jax.eval_shape(likelihood.log_prob, one, one).shape == (1,):
            return
    raise BayesattnError(
        f"likelihood must not hold a number for each example for {use}, which takes examples one by one, got {likelihood!r}"
    )


def restored(name: str, settings: PlainMapping) -> Likelihood:
    """Likelihood restored from its name and the fields of `settings_of`.

    Raises:
        UnknownLikelihood: no class of this name is defined in this process.
        TypeError: the class has other fields.
        ValueError: the class refuses a field.
    """
    kind = BY_NAME.get(name) or next((kind for kind in _subclasses(Likelihood) if _class_name(kind) == name), None)
    if kind is None:
        raise UnknownLikelihood(
            f"likelihood must be of a class that is defined here, got {name}: import the class, or hand over the model"
        )
    arrays: PlainDict = {
        field: np.asarray(value) if isinstance(value, list) else value for field, value in settings.items()
    }
    return kind(**arrays)


def _subclasses(kind: type[Likelihood]) -> Iterator[type[Likelihood]]:
    """All subclasses of a class, direct and indirect, the latest definition first."""
    for subclass in reversed(kind.__subclasses__()):
        yield subclass
        yield from _subclasses(subclass)
