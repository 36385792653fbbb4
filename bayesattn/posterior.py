"""What every posterior has that this package can sample, whichever data and network it is of."""

import abc
from typing import ClassVar

from bayesattn._util.checks import OwnsArrays
from bayesattn._util.plain import PlainDict
from bayesattn._util.text import Described


class Posterior(OwnsArrays, Described, abc.ABC):
    """A posterior with its data: `Model` of a network, `LatentModel` of exchangeable tokens.

    How it is stored beside its draws is registered by its class in `bayesattn.models.arviz` and
    `bayesattn.models.description`.
    """

    parameterisations: ClassVar[tuple[str, ...]]
    """Those in which it can be sampled."""
    posterior_names: ClassVar[tuple[str, ...]]
    """Arrays that decide the posterior."""
    data_names: ClassVar[tuple[str, ...]]
    """Arrays that decide the posterior, and the draws."""
    name: str

    @abc.abstractmethod
    def table(self) -> PlainDict:
        """Settings that, with the arrays, decide the posterior."""

    @property
    def has_theory(self) -> bool:
        """Whether there is a finite-width theory of it."""
        return False

    @property
    def size(self) -> str:
        """What tells it from others of its name, such as "N = 10"; empty where there is no such thing."""
        return ""

    @property
    def shown_names(self) -> PlainDict:
        """Names that results are shown under, besides that of the model."""
        return {}
