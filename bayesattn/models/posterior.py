"""Interface of every posterior that this package can sample, and its log density as a function of one flat vector."""

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key

from bayesattn._util.checks import OwnsArrays, one_of
from bayesattn._util.plain_values import PlainDict
from bayesattn._util.random import digest, first_key
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described
from bayesattn.errors import BayesattnError

Sites = dict[str, Array]
"""Values of the NumPyro sites of a chain, by name."""


@dataclass(frozen=True, eq=False, repr=False)
class LogDensity(Described):
    """Log posterior density of a model, up to a constant, as a function of one flat vector.

    The constant is the log evidence.

    Args:
        posterior: the posterior as a `bayesattn.models.Parameterisation`.
        name: name of the parameterisation.
    """

    posterior: Any
    name: str

    def function(self, vector: Float[Array, " coordinate"]) -> Float[Array, ""]:
        """Log density at a vector; JAX can trace, differentiate and vectorise it.

        Raises ValueError for a vector of another shape, and where jax_enable_x64 is off.
        """
        require_float64()
        if (shape := np.shape(vector)) != (self.size,):
            raise BayesattnError(f"vector must have shape ({self.size},), got {shape}")
        return self.posterior.log_density(self.sites(vector))

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self._flat[0].size

    def initial(self, key: Key[Array, ""]) -> Float[Array, " coordinate"]:
        """Vector from which a chain can start."""
        return ravel_pytree(self.posterior.initial(key))[0]

    def sites(self, vector: Float[Array, " coordinate"]) -> Sites:
        """Values of the NumPyro sites at a vector."""
        return self._flat[1](vector)

    @cached_property
    def _flat(self) -> tuple[Array, Callable[[Array], Sites]]:
        """A flat vector, and the function that turns such a vector into sites."""
        return ravel_pytree(self.posterior.initial(first_key(0)))

    def _described(self) -> tuple[str, dict[str, str]]:
        shapes = ", ".join(f"{name} {value.shape}" for name, value in self.sites(self._flat[0]).items())
        return f"LogDensity of {self.size} coordinates", {"sites": shapes, "coordinates": self.name}


def require_float64() -> None:
    """Raise ValueError where JAX computes in single precision: densities are evaluated under the caller's settings."""
    if not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise BayesattnError(
            "jax_enable_x64 must be on where a density of bayesattn is evaluated, got single precision: importing bayesattn"
            " turns it on, something else has turned it off"
        )


class Posterior(OwnsArrays, Described, abc.ABC):
    """Posterior with its data: `Model` for a network, `LatentModel` for exchangeable tokens.

    `bayesattn.models.arviz` and `bayesattn.models.stored_model` register, for each class, how its posterior is stored
    beside the draws.
    """

    kinds: ClassVar[Mapping[str, Any]] = {}
    """Classes of the parameterisations by name, which `bayesattn.models.registry` sets."""
    kinds_with_priors: ClassVar[Mapping[str, Any]] = {}
    """The same where temperature or variances have priors."""
    parameterisations: ClassVar[tuple[str, ...]]
    """Names of `kinds`, the default of `log_density` last."""
    weight_space: ClassVar[str]
    """Cheapest parameterisation that samples all unknowns of the model."""
    posterior_names: ClassVar[tuple[str, ...]]
    """Names of the arrays that determine the posterior."""
    data_names: ClassVar[tuple[str, ...]]
    """Names of the arrays that determine the posterior and the draws."""
    name: str

    @abc.abstractmethod
    def table(self) -> PlainDict:
        """Settings that determine the posterior, together with the arrays."""

    @property
    def identifying_arrays(self) -> list[np.ndarray]:
        """Arrays that, together with the settings, distinguish the posterior from others."""
        return [getattr(self, name) for name in self.posterior_names]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the settings and data that determine the posterior, not of its name or its test examples."""
        return digest(self.table() | {"task": None}, *self.identifying_arrays)

    @with_own_settings
    def numpyro(self, parameterisation: str | None = None) -> Callable[[], None]:
        """NumPyro model function without arguments, which holds the data.

        It also records the order parameter U, as a deterministic site. If labels are an observed site,
        `numpyro.handlers.uncondition` replicates them; "collapsed" with Gaussian labels has a factor instead of this site.

        Args:
            parameterisation: one of `parameterisations`; by default `weight_space`.

        Raises:
            ValueError: another parameterisation, or one that cannot serve the model.
        """
        return parameterisation_of(self, parameterisation or self.weight_space).ready(self).numpyro_model()

    @with_own_settings
    def log_density(self, parameterisation: str | None = None) -> LogDensity:
        """Log posterior density as a function of one flat vector, by default in the last of `parameterisations`.

        Errors as for `numpyro`.

        Returns:
            A `bayesattn.models.posterior.LogDensity`: `.function`, `.size`, `.initial(key)`, `.sites(vector)`.
        """
        name = parameterisation or self.parameterisations[-1]
        return LogDensity(parameterisation_of(self, name).ready(self), name)

    @property
    def has_priors(self) -> bool:
        """Whether numbers of the posterior, such as the temperature, have priors of their own."""
        return False

    @property
    def has_theory(self) -> bool:
        """Whether there is a finite-width theory of the posterior."""
        return False

    @property
    def size(self) -> str:
        """Text that distinguishes posteriors of the same name, such as "N = 10"; empty if there is none."""
        return ""

    @property
    def shown_names(self) -> PlainDict:
        """Names used to show results, besides the name of the model."""
        return {}


def parameterisation_of(model: Posterior, name: str) -> Any:
    """Class of a posterior's parameterisation by name; for any other name, raises ValueError with the known names."""
    kind = type(model).__name__
    kinds = model.kinds_with_priors if model.has_priors else model.kinds
    return kinds[one_of(f"parameterisation of {'an' if kind[0] in 'AEIOU' else 'a'} {kind}", name, kinds)]
