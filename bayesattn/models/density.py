"""Log posterior density as a function of one flat vector."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import jax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key

from bayesattn._util.errors import BayesattnError
from bayesattn._util.random import first_key
from bayesattn._util.text import Described

Sites = dict[str, Array]
"""Values of the NumPyro sites of a chain, by name."""


class HasDensity(Protocol):
    """What a log density needs of a `bayesattn.models.parameterisation.Parameterisation`."""

    def initial(self, key: Key[Array, ""]) -> Sites:
        """Sites at which a chain starts."""
        ...

    def log_density(self, sites: Sites) -> Array:
        """Log density of sites, up to a constant."""
        ...


@dataclass(frozen=True, eq=False, repr=False)
class LogDensity(Described):
    """Log posterior density of a model, up to a constant, as a function of one flat vector.

    The constant is the log evidence; for weights given a compressed dataset it also depends on T.

    Args:
        posterior: the posterior in the coordinates of a parameterisation.
        name: name of the parameterisation.
    """

    posterior: HasDensity
    name: str

    def function(self, vector: Float[Array, " coordinate"]) -> Float[Array, ""]:
        """Log density at a vector; JAX can trace, differentiate and vectorise it.

        Raises ValueError where jax_enable_x64 is off.
        """
        require_float64()
        return self.posterior.log_density(self.sites(vector))

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self._flat.vector.size

    def initial(self, key: Key[Array, ""]) -> Float[Array, " coordinate"]:
        """Vector from which a chain can start."""
        return ravel_pytree(self.posterior.initial(key))[0]

    def sites(self, vector: Float[Array, " coordinate"]) -> Sites:
        """Values of the NumPyro sites at a vector."""
        return self._flat.unravel(vector)

    @cached_property
    def _flat(self) -> "_Flat":
        return _Flat(*ravel_pytree(self.posterior.initial(first_key(0))))

    def _described(self) -> tuple[str, dict[str, str]]:
        shapes = ", ".join(f"{name} {value.shape}" for name, value in self.sites(self._flat.vector).items())
        return f"LogDensity of {self.size} coordinates", {"sites": shapes, "coordinates": self.name}


class _Flat(NamedTuple):
    """A flat vector, and the function that turns such a vector into sites."""

    vector: Array
    unravel: Callable[[Array], Sites]


def require_float64() -> None:
    """Raise ValueError where JAX computes in single precision: densities are evaluated under the caller's settings."""
    if not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise BayesattnError(
            "jax_enable_x64 must be on where a density of bayesattn is evaluated, got single precision: importing bayesattn"
            " turns it on, something else has turned it off"
        )
