"""Interface of every posterior that this package can sample."""

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from bayesattn._util.checks import OwnsArrays, one_of
from bayesattn._util.plain import PlainDict
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import Described
from bayesattn.models.density import LogDensity


class Posterior(OwnsArrays, Described, abc.ABC):
    """Posterior with its data: `Model` for a network, `LatentModel` for exchangeable tokens.

    `bayesattn.models.arviz` and `bayesattn.models.stored_model` register, for each class, how its posterior is stored
    beside the draws.
    """

    kinds: ClassVar[Mapping[str, Any]] = {}
    """Classes of the parameterisations by name, which `bayesattn.models.registry` sets."""
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
            A `bayesattn.models.density.LogDensity`: `.function`, `.size`, `.initial(key)`, `.sites(vector)`.
        """
        name = parameterisation or self.parameterisations[-1]
        return LogDensity(parameterisation_of(self, name).ready(self), name)

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
    return model.kinds[one_of(f"parameterisation of {'an' if kind[0] in 'AEIOU' else 'a'} {kind}", name, model.kinds)]
