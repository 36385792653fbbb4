"""Parameterisation: a posterior in terms of the NumPyro sites that a chain samples."""

import abc
import math
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Key
from numpyro.infer.util import log_density as log_density_of

from bayesattn._util.plain_values import PlainDict, PlainMapping
from bayesattn._util.random import first_key
from bayesattn.errors import BayesattnError
from bayesattn.likelihoods import Likelihood, Outputs
from bayesattn.models.posterior import Posterior, Sites, require_float64

VECTORS_PER_CHAIN = 8
"""Vectors of the size of a point in the memory of a chain: points, momenta, gradients of both ends, scale, .."""
NO_FLOAT32 = (
    "options.float32_gradients must be false, got true: only the collapsed parameterisation of fixed attention, with"
    " Gaussian labels, has gradients in float32"
)
LABELS = "labels"
"""Name of the site of the labels, by which samplers distinguish the likelihood from the prior."""


class Parameterisation(eqx.Module):
    """Posterior in terms of the sites that a chain samples: prior, likelihood, and quantities computed from a draw.

    A parameterisation is a pytree: arrays are traced, and programs are recompiled only if shapes or static fields change.
    """

    minibatches: ClassVar[bool] = False
    """Whether labels are independent given the sites, so that examples can be drawn in minibatches."""
    needs_tokens: ClassVar[bool] = False
    """Whether the draws depend on the tokens themselves and their attention."""
    memory_advice: ClassVar[str] = (
        "use fewer paths or, for many examples, a compressed dataset (bayesattn.Dataset.gather)"
    )
    """Advice if the memory does not suffice."""

    @classmethod
    @abc.abstractmethod
    def of(
        cls, model: Posterior, *, weights: bool = False, all_examples: bool = False, **prepared: Any
    ) -> "Parameterisation":
        """Posterior of a model.

        Args:
            model: `bayesattn.Model`, or another model that the parameterisation supports.
            weights: whether `weights_of` will be called.
            all_examples: True if labels will be replaced or drawn; kernels are then not compressed.
            prepared: arrays computed by `prepare`.
        """

    @classmethod
    def prepare(cls, model: Posterior) -> dict[str, Array]:
        """Arrays computed once before sampling; none by default."""
        return {}

    @classmethod
    def ready(cls, model: Posterior, *, weights: bool = False) -> "Parameterisation":
        """Posterior of a model, prepared; arguments as for `of`."""
        return cls.of(model, weights=weights, all_examples=False, **cls.prepare(model))

    @classmethod
    @abc.abstractmethod
    def bytes_needed(cls, model: Posterior, chains: int) -> int:
        """Lower bound on the memory in bytes of `chains` chains at a time, without the kept draws."""

    def with_prepared(self, prepared: PlainMapping) -> "Parameterisation":
        """Same posterior with other arrays of `prepare`."""
        return self

    def with_float32_gradients(self) -> "Parameterisation":
        """Same posterior, with gradients of the log density computed in float32; raises ValueError where there are none."""
        raise BayesattnError(NO_FLOAT32)

    @property
    def numbers(self) -> tuple[str, ...]:
        """Variables of draws that are numbers with a prior of their own, such as "temperature"; they are always kept."""
        return ()

    @property
    def options(self) -> PlainDict:
        """Defaults of sampler options, which override the samplers' own defaults."""
        return {}

    @abc.abstractmethod
    def program(self) -> None:
        """NumPyro program: sites under their prior, labels given the sites."""

    def numpyro_model(self) -> Callable[[], None]:
        """NumPyro model function without arguments: what `bayesattn.Model.numpyro` returns."""
        names = [*jax.eval_shape(self.initial, first_key(0))]

        def posterior_of_network() -> None:
            require_float64()
            with numpyro.handlers.trace() as trace:
                self.program()
            sites = {name: trace[name]["value"] for name in names}
            for name, value in self.central(sites).items():
                numpyro.deterministic(name, value)

        return posterior_of_network

    @jax.jit
    def log_density(self, sites: Sites) -> Array:
        """Log density of sites, up to a constant; compiled, because NumPyro's program takes seconds step by step."""
        return jnp.asarray(log_density_of(self.program, (), {}, sites)[0])

    @abc.abstractmethod
    def initial(self, key: Key[Array, ""]) -> Sites:
        """Sites at which a chain starts."""

    @abc.abstractmethod
    def quantities(self, sites: Sites, key: Key[Array, ""]) -> Sites:
        """Quantities of a draw to keep: the order parameter or the latent, and predictions."""

    def central(self, sites: Sites) -> Sites:
        """Primary variable of a draw, if it is not a site itself: the order parameter."""
        return {}

    def weights_of(self, sites: Sites, key: Key[Array, ""]) -> Sites:
        """All weights of the network for a draw; empty for latent models, which have no weights."""
        return {}

    def predictions_of(self, weights: Sites) -> Sites:
        """Quantities determined by the weights of a draw, if the weights are kept."""
        return {}

    def draw_prior(self, key: Key[Array, ""]) -> Sites:
        """Sites drawn from the prior."""
        raise NotImplementedError(f"{type(self).__name__} draws no priors")

    def draw_labels(self, key: Key[Array, ""], sites: Sites) -> Array:
        """Labels drawn given the sites."""
        raise NotImplementedError(f"{type(self).__name__} draws no labels")

    def with_labels(self, labels: Array) -> "Parameterisation":
        """Same posterior with other labels."""
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


def observe(likelihood: Likelihood, outputs: Outputs, labels: Array, scale: float | Array = 1.0) -> None:
    """Add the NumPyro site of the labels; `scale` scales the log likelihood of a minibatch up to all examples."""
    with numpyro.handlers.scale(scale=scale):
        numpyro.sample(LABELS, LabelDistribution(likelihood, outputs), obs=labels)


def arrays_of(likelihood: Likelihood) -> Likelihood:
    """Likelihood with its numbers as arrays, for compiled programs."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, float), likelihood)
