"""Parameterisations of posteriors whose temperature or variances have priors: their values are sampled as well.

Given these values, each is a parameterisation of a posterior whose numbers are known. In collapsed coordinates the Bartlett
factors have the same prior whatever the variances, F and K(U) + T I move with them, and one affine map whitens all
coordinates together. Weights keep their own prior, whose width moves.
"""

import abc
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Int, Key

from bayesattn._util.plain_values import PlainDict, PlainMapping
from bayesattn.errors import BayesattnError
from bayesattn.models import collapsed
from bayesattn.models.attention_blocks import Blocks
from bayesattn.models.collapsed import Collapsed
from bayesattn.models.hyperpriors import HyperPrior, Hyperpriors, Values, in_units, scale_of
from bayesattn.models.model import Model
from bayesattn.models.parameterisation import Parameterisation, Sites
from bayesattn.models.path import Path
from bayesattn.models.sampled_attention import CollapsedAttention
from bayesattn.models.token import Token
from bayesattn.models.whitened_priors import draws_of
from bayesattn.theory import bartlett
from bayesattn.theory.mode import find_mode_with_numbers
from bayesattn.theory.potential import Whitening
from bayesattn.theory.saddle_point import MOST_COORDINATES_FOR_HESSIAN, NotConverged

HYPER = "hyperparameters"
"""Site of the position of what is not known, in parameterisations by weights."""


class WithHyperparameters(Parameterisation):
    """Posterior of a network and of its hyperparameters, the numbers that have priors, by a parameterisation given these.

    Args:
        known: parameterisation at some values, the medians of the priors.
        priors: priors of what is not known.
    """

    kind: ClassVar[Any]
    """Parameterisation of the network."""

    known: Any
    priors: Hyperpriors

    @abc.abstractmethod
    def given(self, sites: Sites) -> tuple[Any, Sites, Values]:
        """Parameterisation at the values of a draw, the sites that it takes, and the values by variable."""

    @classmethod
    def bytes_needed(cls, model: Model, chains: int) -> int:
        """Lower bound on the memory in bytes, that of a network whose numbers are known."""
        return cls.kind.bytes_needed(model.reference, chains)

    def with_float32_gradients(self) -> "WithHyperparameters":
        """Same posterior, with gradients of the log density in float32; raises ValueError where there are none."""
        known = self.known.with_float32_gradients()
        if "temperature" in self.priors.variables:  # Gradients in float32 are of U alone.
            raise BayesattnError("options.float32_gradients must be false where T has a prior, got true")
        return replace(self, known=known)

    @property
    def numbers(self) -> tuple[str, ...]:
        """Variables of draws that are numbers with a prior."""
        return self.priors.variables

    @property
    def options(self) -> PlainDict:
        """Defaults of sampler options."""
        return self.known.options

    def quantities(self, sites: Sites, key: Key[Array, ""]) -> Sites:
        """Quantities of the network, and the values of what is not known."""
        known, inner, values = self.given(sites)
        return self._in_units(known.quantities(inner, key), values) | values

    def central(self, sites: Sites) -> Sites:
        """Order parameter U, and the values of what is not known."""
        known, inner, values = self.given(sites)
        return self._in_units(known.central(inner), values) | values

    def weights_of(self, sites: Sites, key: Key[Array, ""]) -> Sites:
        """All weights of the network."""
        known, inner, values = self.given(sites)
        return self._in_units(known.weights_of(inner, key), values)

    def predictions_of(self, weights: Sites) -> Sites:
        """Readout of path inputs, if kept, and f on the test examples."""
        return self.known.predictions_of(weights)

    def draw_labels(self, key: Key[Array, ""], sites: Sites) -> Array:
        """Labels drawn given the sites."""
        known, inner, _ = self.given(sites)
        return known.draw_labels(key, inner)

    def with_labels(self, labels: Array) -> "WithHyperparameters":
        """Same posterior with other labels."""
        return replace(self, known=self.known.with_labels(labels))

    def _in_units(self, drawn: Sites, values: Values) -> Sites:
        """Quantities of a parameterisation `given` values, in the units of the network."""
        return drawn


class HyperWeights(WithHyperparameters):
    """All weights, and the position of what is not known, each under its prior."""

    @classmethod
    def of(
        cls, model: Model, *, weights: bool = False, all_examples: bool = False, **prepared: Array | np.ndarray
    ) -> "HyperWeights":
        """Posterior of a model."""
        known = cls.kind.of(model.reference, weights=weights, all_examples=all_examples)
        return cls(known, model.hyperpriors)

    def given(self, sites: Sites) -> tuple[Any, Sites, Values]:
        """Parameterisation at the values of a draw, the weights, and the values."""
        values = self.priors.values(sites[HYPER])
        return self.known.at_values(values), {name: value for name, value in sites.items() if name != HYPER}, values

    def program(self) -> None:
        """NumPyro program: what is not known, then the weights and labels given it."""
        position = jnp.asarray(numpyro.sample(HYPER, HyperPrior(self.priors)))
        self.given({HYPER: position})[0].program()

    def initial(self, key: Key[Array, ""]) -> Sites:
        """Draw from the prior."""
        return self.draw_prior(key)

    @jax.jit
    def draw_prior(self, key: Key[Array, ""]) -> Sites:
        """Position and weights drawn from the prior."""
        hyper_key, key = jax.random.split(key)
        sites = {HYPER: self.priors.draw(hyper_key)}
        return sites | self.given(sites)[0].draw_prior(key)

    @property
    def labels(self) -> Array:
        """Labels of all examples, or of those of a minibatch."""
        return self.known.labels

    def minibatch(self, chosen: Int[Array, " chosen"]) -> "HyperWeights":
        """Posterior of a minibatch of examples, with the log likelihood scaled to all examples."""
        return replace(self, known=self.known.minibatch(chosen))


class HyperPath(HyperWeights):
    """`Path` with hyperparameters."""

    kind: ClassVar[type[Path]] = Path
    minibatches: ClassVar[bool] = Path.minibatches
    memory_advice: ClassVar[str] = Path.memory_advice


class HyperToken(HyperWeights):
    """`Token` with hyperparameters."""

    kind: ClassVar[type[Path]] = Token
    minibatches: ClassVar[bool] = Token.minibatches
    needs_tokens: ClassVar[bool] = Token.needs_tokens
    memory_advice: ClassVar[str] = Token.memory_advice


class HyperBlocks(HyperWeights):
    """`Blocks`, queries and keys among the weights, with hyperparameters."""

    kind: ClassVar[type[Blocks]] = Blocks
    minibatches: ClassVar[bool] = Blocks.minibatches
    memory_advice: ClassVar[str] = Blocks.memory_advice


class HyperAttention(HyperWeights):
    """`CollapsedAttention` with hyperparameters."""

    kind: ClassVar[type[CollapsedAttention]] = CollapsedAttention
    memory_advice: ClassVar[str] = CollapsedAttention.memory_advice

    def _in_units(self, drawn: Sites, values: Values) -> Sites:
        """U and weights; those given have the s_0 of the features, and an s_a that makes up for it."""
        return in_units(drawn, scale_of(self.known.given_uniform.problem.variances[0], values))


class JointPrior(dist.Distribution):
    """Prior of whitened Bartlett coordinates and positions of what is not known."""

    support = dist.constraints.real_vector  # pyright: ignore[reportAssignmentType]
    pytree_data_fields = ("posterior",)

    def __init__(self, posterior: "HyperCollapsed", *, validate_args=None):
        self.posterior = posterior
        super().__init__((), (posterior.whitening.centre.shape[-1],), validate_args=validate_args)

    def sample(self, key, sample_shape=()):
        """Draws from the prior."""
        return draws_of(self.posterior.draw_joint, key, sample_shape)

    def log_prob(self, value):
        """Log density of whitened coordinates."""
        posterior = self.posterior
        point, position = posterior.split(value)
        prior = bartlett.log_prior(point, posterior.known.shapes, posterior.known.problem.widths)
        return prior + posterior.priors.log_density(position) + posterior.whitening.log_volume()


class HyperCollapsed(WithHyperparameters):
    """`Collapsed` with hyperparameters.

    Args:
        whitening: whitening of the Bartlett coordinates, followed by the position of what is not known.
    """

    kind: ClassVar[type[Collapsed]] = Collapsed

    whitening: Whitening

    @classmethod
    def prepare(cls, model: Model, whitening: str = "laplace") -> dict[str, Array]:
        """Centre and scale of all whitened coordinates, and those of the latents and the order of rows.

        "laplace" is around the mode of all coordinates together, with the curvature there; "prior" is by the prior.
        """
        network, priors = model.reference, model.hyperpriors
        try:
            arrays = collapsed.prepare(network, whitening)
        except NotConverged:  # At the medians of the priors, which may be far from the posterior.
            arrays = collapsed.prepare(network, "prior")
        problem = priors.posed(Collapsed.of(network, **_without_whitening(arrays, 0)).problem)
        inner = _whitening(arrays)
        found, many = inner.extended(problem.centre, problem.spread), len(inner.centre) > MOST_COORDINATES_FOR_HESSIAN
        if network.likelihood.conjugate and whitening == "laplace" and not many:
            with suppress(NotConverged):
                found = find_mode_with_numbers(problem, network.architecture, inner.centre).whitening
        others = {name: array for name, array in arrays.items() if name not in Whitening._fields}
        return others | {name: array for name, array in found._asdict().items() if array is not None}

    @classmethod
    def of(
        cls, model: Model, *, weights: bool = False, all_examples: bool = False, **prepared: Array | np.ndarray
    ) -> "HyperCollapsed":
        """Posterior of a model, with the arrays of `prepare`."""
        inner = _without_whitening(prepared, len(model.hyperpriors))
        known = Collapsed.of(model.reference, weights=weights, all_examples=all_examples, **inner)
        return cls(known, model.hyperpriors, _whitening(prepared))

    def with_prepared(self, prepared: PlainMapping) -> "HyperCollapsed":
        """Same posterior in other coordinates."""
        known = self.known.with_prepared(_without_whitening(prepared, len(self.priors)))
        return replace(self, known=known, whitening=_whitening(prepared))

    def split(self, whitened: Array) -> tuple[Array, Array]:
        """Bartlett coordinates and position of what is not known, from whitened coordinates."""
        joint = self.whitening.point(whitened)
        return joint[: -len(self.priors)], joint[-len(self.priors) :]

    def given(self, sites: Sites) -> tuple[Collapsed, Sites, Values]:
        """Parameterisation at the values of a draw, its sites, and the values."""
        point, position = self.split(sites["whitened"])
        values = self.priors.values(position)
        return self.known.at_values(values), sites | {"whitened": point}, values

    def program(self) -> None:
        """NumPyro program: whitened coordinates of all that is sampled, labels given them."""
        whitened = jnp.asarray(numpyro.sample("whitened", JointPrior(self)))
        known, inner, _ = self.given({"whitened": whitened})
        known.observe(known.factor(inner))

    def initial(self, key: Key[Array, ""]) -> Sites:
        """Draw from the Gaussian approximation of the posterior by the whitening."""
        point_key, hyper_key = jax.random.split(key)
        sites = self.known.initial(point_key)
        return sites | {"whitened": jnp.append(sites["whitened"], jax.random.normal(hyper_key, (len(self.priors),)))}

    def draw_joint(self, key: Key[Array, ""]) -> Array:
        """Whitened coordinates drawn from the prior."""
        point_key, hyper_key = jax.random.split(key)
        point = bartlett.sample_prior(point_key, self.known.shapes, self.known.problem.widths)
        return self.whitening.whitened(jnp.append(point, self.priors.draw(hyper_key)))

    @jax.jit
    def draw_prior(self, key: Key[Array, ""]) -> Sites:
        """Whitened coordinates, and latents of the outputs if there are any, drawn from the prior."""
        joint_key, key = jax.random.split(key)
        sites = {"whitened": self.draw_joint(joint_key)}
        known, inner, _ = self.given(sites)
        return sites | known.draw_latents(key, inner)

    def _in_units(self, drawn: Sites, values: Values) -> Sites:
        """U and weights; those given have the s_0 of the features, and an s_a that makes up for it."""
        return in_units(drawn, scale_of(self.known.problem.variances[0], values))


def _whitening(prepared: PlainMapping) -> Whitening:
    return Whitening(**{name: jnp.asarray(prepared[name]) for name in Whitening._fields if name in prepared})


def _without_whitening(prepared: PlainMapping, hyperparameters: int) -> PlainDict:
    """Arrays of `prepare` for a parameterisation whose whitened coordinates are the Bartlett coordinates themselves."""
    size = len(prepared["centre"]) - hyperparameters
    others = {name: array for name, array in prepared.items() if name not in Whitening._fields}
    return others | {"centre": jnp.zeros(size), "scale": jnp.ones(size)}
