"""What a parameterisation is: a posterior, written in the sites that a chain moves."""

import abc
import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Key

from bayesattn._util.plain import PlainDict, PlainMapping
from bayesattn.likelihoods import Likelihood, Outputs

COPIES = 8
"""Vectors as long as the sampled point that a chain holds: points, momenta, gradients of a trajectory's ends, scale, .."""
Sites = dict[str, Array]
"""Values of a chain's NumPyro sites."""
LABELS = "labels"
"""Site of the labels: samplers tell the likelihood from the prior by it."""


class Parameterisation(eqx.Module):
    """A posterior in the sites that a chain moves: its prior, its likelihood, and what is made of a draw.

    It is a pytree: arrays are traced, and programs are compiled anew only where shapes or static fields change.
    """

    minibatches: ClassVar[bool] = False
    """Whether labels are independent given the sites, so that examples can be drawn in minibatches."""
    needs_tokens: ClassVar[bool] = False
    """Whether the tokens themselves and their attention decide the draws."""
    memory_advice: ClassVar[str] = (
        "use fewer paths or, for many examples, a compressed dataset (bayesattn.Dataset.gather)"
    )
    """What to do where memory is short."""
    simulates: ClassVar[bool] = True
    """Whether prior and labels can be drawn, as calibration does."""

    @classmethod
    @abc.abstractmethod
    def of(
        cls, model: Any, *, weights: bool = False, all_examples: bool = False, **prepared: Any
    ) -> "Parameterisation":
        """The posterior of a model.

        Args:
            model: `bayesattn.Model`, or another that the parameterisation can serve.
            weights: whether `weights_of` will be asked for.
            all_examples: whether labels will be replaced or drawn, so that they have to be those of all examples.
            prepared: arrays that `prepare` found.
        """

    @classmethod
    def prepare(cls, model: Any) -> dict[str, Array]:
        """Arrays that are computed once before sampling begins; nothing by default."""
        return {}

    @classmethod
    @abc.abstractmethod
    def bytes_needed(cls, model: Any, chains: int) -> int:
        """Least memory, in bytes, that so many chains at a time take, without the draws that are kept."""

    def with_prepared(self, prepared: PlainMapping) -> "Parameterisation":
        """The same posterior with other arrays of `prepare`."""
        return self

    @property
    def options(self) -> PlainDict:
        """Defaults of sampler options, over those of the samplers themselves."""
        return {}

    @abc.abstractmethod
    def program(self) -> None:
        """NumPyro program: sites under their prior, labels given the sites."""

    @abc.abstractmethod
    def initial(self, key: Key[Array, ""]) -> Sites:
        """Where a chain starts."""

    @abc.abstractmethod
    def quantities(self, sites: Sites, key: Key[Array, ""]) -> Sites:
        """What is kept of a draw: the order parameter or the latent, and predictions."""

    def weights_of(self, sites: Sites, key: Key[Array, ""]) -> Sites:
        """All weights of the network of a draw; none of a model that is no network."""
        return {}

    def predictions_of(self, weights: Sites) -> Sites:
        """Quantities of a draw that its weights determine, where these are kept beside them."""
        return {}

    def draw_prior(self, key: Key[Array, ""]) -> Sites:
        """Sites drawn from the prior."""
        raise NotImplementedError(f"{type(self).__name__} draws no priors")

    def draw_labels(self, key: Key[Array, ""], sites: Sites) -> Array:
        """Labels drawn given the sites."""
        raise NotImplementedError(f"{type(self).__name__} draws no labels")

    def with_labels(self, labels: Array) -> "Parameterisation":
        """The same posterior with other labels."""
        raise NotImplementedError(f"{type(self).__name__} has no other labels")


class LabelDistribution(dist.Distribution):
    """Labels of all examples given the outputs, as a NumPyro distribution."""

    support = dist.constraints.real  # pyright: ignore[reportAssignmentType]
    pytree_data_fields = ("likelihood", "outputs")

    def __init__(self, likelihood: Likelihood, outputs: Outputs, *, validate_args=None):
        self.likelihood, self.outputs = likelihood, outputs
        super().__init__((), jnp.shape(outputs), validate_args=validate_args)

    def sample(self, key, sample_shape=()):
        """Labels drawn given the outputs."""
        assert key is not None
        if not sample_shape:
            return self.likelihood.sample(key, self.outputs)
        keys = jax.random.split(key, math.prod(sample_shape))
        drawn = jax.vmap(lambda each: self.likelihood.sample(each, self.outputs))(keys)
        return drawn.reshape(*sample_shape, *self.event_shape)

    def log_prob(self, value):
        """Log probability of the labels of all examples together."""
        return jnp.sum(self.likelihood.log_prob(self.outputs, value))


def observe(likelihood: Likelihood, outputs: Outputs, labels: Array, scale: Any = 1.0) -> None:
    """The NumPyro site of the labels; a minibatch's log likelihood is scaled up to that of all examples."""
    with numpyro.handlers.scale(scale=scale):
        numpyro.sample(LABELS, LabelDistribution(likelihood, outputs), obs=labels)


def arrays_of(likelihood: Likelihood) -> Any:
    """A likelihood whose numbers are arrays, as compiled programs take them."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, float), likelihood)
