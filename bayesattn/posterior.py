"""Interface of every posterior that this package can sample."""

import abc
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bayesattn._util.checks import OwnsArrays
from bayesattn._util.plain import PlainDict
from bayesattn._util.text import Described

if TYPE_CHECKING:
    from bayesattn.models.interface import LogDensity


class Posterior(OwnsArrays, Described, abc.ABC):
    """Posterior with its data: `Model` for a network, `LatentModel` for exchangeable tokens.

    `bayesattn.models.arviz` and `bayesattn.models.description` register, for each class, how its posterior is stored
    beside the draws.
    """

    parameterisations: ClassVar[tuple[str, ...]]
    """Parameterisations in which the posterior can be sampled."""
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

    def numpyro(self, parameterisation: str | None = None) -> Callable[[], None]:
        """NumPyro model function without arguments, which holds the data (`bayesattn.models.interface.numpyro_model`).

        Args:
            parameterisation: one of `parameterisations`; by default `weight_space`.

        Raises:
            ValueError: another parameterisation, or one that cannot serve the model.
        """
        return _interface().numpyro_model(self, parameterisation or self.weight_space)

    def log_density(self, parameterisation: str | None = None) -> "LogDensity":
        """Log posterior density as a function of one flat vector, by default in the last of `parameterisations`.

        Errors as for `numpyro`.


        Returns:
            A `bayesattn.models.interface.LogDensity`: `.function`, `.size`, `.initial(key)`, `.sites(vector)`.
        """
        return _interface().log_density(self, parameterisation or self.parameterisations[-1])

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


def _interface() -> ModuleType:
    """Module of the methods that need NumPyro; it is imported when needed, because it imports this module."""
    return import_module("bayesattn.models.interface")
