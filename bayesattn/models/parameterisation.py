"""What a parameterisation of a posterior is: a module with these functions.

Sites are the values of a chain's NumPyro sites; the structure is what a compiled program depends on, and hashable.
"""

from collections.abc import Callable
from typing import Any, Protocol

Sites = Any


class Parameterisation(Protocol):
    """The functions that sampling asks for; arguments go by place."""

    def structure(self, model: Any, /) -> Any:
        """What the compiled program depends on: shapes, but no values."""
        ...

    def options(self, structure: Any, /) -> dict[str, Any]:
        """Options of samplers that have them, over NumPyro's and the Langevin kernels' own."""
        ...

    def prepare(self, model: Any, /) -> dict[str, Any]:
        """Arrays to compute before sampling begins."""
        ...

    @property
    def data(self) -> Callable[..., dict[str, Any]]:
        """data(model, **prepared): the arrays that the program conditions on."""
        ...

    def program(self, structure: Any, /) -> Callable[..., Any]:
        """The NumPyro program of the data."""
        ...

    def initial(self, key: Any, data: dict[str, Any], structure: Any, /) -> Sites:
        """Where a chain starts."""
        ...

    def quantities(self, sites: Sites, data: dict[str, Any], structure: Any, key: Any, /) -> dict[str, Any]:
        """What is kept of a draw: U or the latent, predictions."""
        ...

    def network_weights(
        self, sites: Sites, data: dict[str, Any], structure: Any, widths: Any, key: Any, /
    ) -> dict[str, Any]:
        """All weights of the network of a draw."""
        ...


class Joint(Parameterisation, Protocol):
    """Those that know the joint law of sites and labels too, which calibration asks for."""

    def draw_prior(self, key: Any, data: dict[str, Any], structure: Any, /) -> Sites:
        """Sites drawn from the prior."""
        ...

    def draw_labels(self, key: Any, sites: Sites, data: dict[str, Any], structure: Any, /) -> Any:
        """Labels drawn given the sites."""
        ...

    def with_labels(self, data: dict[str, Any], labels: Any, /) -> dict[str, Any]:
        """The data with other labels."""
        ...


class WeightSpace(Joint, Protocol):
    """Those in which labels are independent given the sites, so that examples can be drawn in minibatches."""

    def minibatch(self, data: dict[str, Any], chosen: Any, /) -> dict[str, Any]:
        """The data of some examples."""
        ...
