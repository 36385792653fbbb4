"""Collapsed parameterisation: V_0 integrated out, order parameters from Bartlett factors (THEORY section 3).

The dimension, the cost and the compiled program do not depend on the widths, unless a layer is narrow or weights are
drawn. The sampled coordinates are whitened, by default around the mode with the Laplace covariance, which is a suitable
metric for samplers; whitening does not change the posterior. If the likelihood is not Gaussian, the coordinates of
order parameters have the scale of the prior, and outputs are sampled too.
"""

from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jaxtyping import Array, Float, Key

from bayesattn import kernels
from bayesattn._util.checks import one_of
from bayesattn._util.plain_values import PlainDict, PlainMapping
from bayesattn.errors import BayesattnError
from bayesattn.kernels import GaussianProcess, sample_labels
from bayesattn.kernels.float32 import Float32Gradients
from bayesattn.kernels.forms import cheapest_form, compressed_examples
from bayesattn.kernels.path_inputs import input_scale, outputs_of
from bayesattn.likelihoods import Likelihood, Outputs
from bayesattn.models import latent_outputs
from bayesattn.models.hyperpriors import Values, fields_of
from bayesattn.models.memory import bytes_of_energy
from bayesattn.models.model import Model
from bayesattn.models.parameterisation import LABELS, NO_FLOAT32, Parameterisation, Sites, arrays_of, observe
from bayesattn.models.weights import weights, weights_at
from bayesattn.models.whitened_priors import BartlettPrior, StandardNormal
from bayesattn.network import network, path_readouts
from bayesattn.theory import bartlett
from bayesattn.theory.mode import FlatMode, find_mode
from bayesattn.theory.potential import Problem, Whitening, problem_of
from bayesattn.theory.saddle_point import MOST_COORDINATES_FOR_HESSIAN, NotConverged

__all__ = ["Collapsed", "WithOutputs", "prepare", "structure", "weights"]
TREE_DEPTHS = (5, 10)
"""Largest tree depths in warm-up and after it, for many coordinates."""
Structure = tuple[bartlett.LayerShape, ...]


def structure(model: Model) -> Structure:
    """Shapes of the Bartlett factors; the compiled program depends on nothing else."""
    return bartlett.layer_shapes(model.architecture)


def prepare(model: Model, whitening: str = "laplace") -> dict[str, Array]:
    """Centre and scale of the whitened coordinates.

    Args:
        model: the posterior.
        whitening: "laplace", or "prior" (around the prior's mode). It affects the difficulty of sampling, not the posterior.
            Without a Laplace approximation, because modes form a ring, whitening is by the prior.
            If the likelihood is not Gaussian, whitening is by the prior for order parameters and by Laplace's method for
            the outputs, if these have at most `latent_outputs.MOST_WHITENED_LATENTS` coordinates.

    Raises:
        ValueError: another whitening.
    """
    one_of("whitening", whitening, ("laplace", "prior"))
    order = {}
    if model.likelihood.conjugate and whitening == "laplace":
        try:
            mode, problem = find_mode(model.gaussian_process, model.architecture)
        except FlatMode as flat:
            order = _order_of(flat.problem)
        else:
            arrays = {name: array for name, array in mode.whitening._asdict().items() if array is not None}
            return arrays | _order_of(problem)
    shapes, widths = structure(model), jnp.array(model.architecture.widths, float)
    centre, scale = bartlett.affine_from_whitened(shapes, widths)
    arrays = {"centre": centre, "scale": scale}
    if model.likelihood.conjugate:
        return arrays | order
    problem = problem_of(model.gaussian_process, model.architecture)
    if bartlett.narrow(shapes):
        # A Gaussian likelihood ranks the paths in nearly the same order; only this order is taken from it.
        with suppress(NotConverged):
            problem = find_mode(model.gaussian_process, model.architecture)[1]
        arrays |= _order_of(problem)
    outputs = latent_outputs.whitening_at(model.gaussian_process, model.likelihood, problem.factor(centre, shapes))
    arrays |= {f"latent_{name}": array for name, array in outputs._asdict().items() if array is not None}
    return arrays


def _order_of(problem: Problem) -> dict[str, Array]:
    """Order of rows of a posterior, if it has one."""
    return {} if problem.order is None else {"order": problem.order}


def compressed(model: Model) -> GaussianProcess:
    """Kernels that chains evaluate: for Gaussian labels, many examples become few with the same likelihood of U."""
    return (
        kernels.compressed(model.gaussian_process, model.architecture)
        if model.likelihood.conjugate
        else model.gaussian_process
    )


class Collapsed(Parameterisation):
    """Whitened Bartlett coordinates under their prior; labels under the Gaussian evidence given U.

    Args:
        problem: kernels, widths, variances, order of rows and skips.
        whitening: whitening of the Bartlett coordinates.
        input_variance: s_0^2.
        test_path_inputs: xi of the test examples, or None.
        shapes: shapes of the Bartlett factors.
        widths: widths of the network, if `weights_of` will be called; else None, so that programs do not depend on them.
    """

    problem: Problem
    whitening: Whitening
    input_variance: Float[Array, ""]
    test_path_inputs: Float[Array, "test_example path feature"] | None
    shapes: Structure = eqx.field(static=True)
    widths: tuple[int, ...] | None = eqx.field(static=True)

    @classmethod
    def of(
        cls,
        model: Model,
        *,
        weights: bool = False,
        all_examples: bool = False,
        order: Array | np.ndarray | None = None,
        **prepared: Array | np.ndarray,
    ) -> "Collapsed":
        """Posterior of a model; a `WithOutputs` if the likelihood is not Gaussian.

        Args:
            model: the posterior.
            weights: whether `weights_of` will be called.
            all_examples: True if labels will be replaced or drawn; kernels are then not compressed.
            order: order of rows, from `prepare`.
            prepared: whitening, from `prepare`.
        """
        arch = model.architecture
        problem = problem_of(model.gaussian_process if all_examples else compressed(model), arch)
        fields = {
            "problem": problem._replace(order=None if order is None else jnp.asarray(order)),
            "input_variance": jnp.asarray(arch.input_variance),
            "test_path_inputs": None if model.test_path_inputs is None else jnp.asarray(model.test_path_inputs),
            "shapes": structure(model),
            "widths": arch.widths if weights else None,
        }
        if model.likelihood.conjugate:
            return cls(**fields, whitening=_whitening(prepared))
        return WithOutputs(
            **fields, whitening=_whitening(prepared), likelihood=arrays_of(model.likelihood), latents=_latents(prepared)
        )

    prepare = staticmethod(prepare)  # pyright: ignore[reportAssignmentType]

    @classmethod
    def bytes_needed(cls, model: Model, chains: int) -> int:
        """Lower bound on the memory in bytes: kernels, gradients of each chain, and the Hessian of sampled outputs."""
        arch, (examples, paths, features) = model.architecture, model.path_inputs.shape
        conjugate = model.likelihood.conjugate
        evaluated = compressed_examples(examples, paths * features, arch.outputs) if conjugate else examples
        form, shapes = cheapest_form(evaluated, features, arch), structure(model)
        # Each chain has its own gradient; the gradient of the search for the mode is included as one of them.
        rows = shapes[0].columns * features if form == "feature_space" else evaluated * arch.outputs
        needed = bytes_of_energy(evaluated * arch.outputs, arch.rows, features, form, shapes, arch.outputs)
        needed += 8 * 2 * (examples - evaluated) * paths * features
        if not conjugate:
            # Scale of the latents of the outputs, its inverse, and the Hessian from which it is computed.
            sizes = (shapes[0].columns * features, examples * arch.outputs, arch.outputs)
            latents = latent_outputs.number_of_latents(*sizes)
            needed += 8 * (3 * latents**2 if latents <= latent_outputs.MOST_WHITENED_LATENTS else 0)
        return needed + 8 * (model.dataset.path_entries - model.path_inputs.size + (chains - 1) * 2 * rows**2)

    def with_prepared(self, prepared: PlainMapping) -> "Collapsed":
        """Same posterior in other coordinates."""
        problem = self.problem._replace(order=prepared.get("order"))
        return replace(self, problem=problem, whitening=_whitening(prepared))

    def at_values(self, values: Values) -> "Collapsed":
        """Same posterior at values of the temperature and of the prior variances, U in units of the features."""
        return replace(self, problem=self.problem.at_values(values))

    def with_float32_gradients(self) -> "Collapsed":
        """Same posterior, whose log density has gradients computed in float32."""
        if not isinstance(self.kernels, Float32Gradients):
            return replace(self, problem=self.problem._replace(process=Float32Gradients.of(self.kernels)))
        return self

    @property
    def options(self) -> PlainDict:
        """Defaults of sampler options: whether to adapt a metric, and for many coordinates also tree depths.

        Whitened coordinates need no metric, unless a layer is narrow and the posterior far from Gaussian. Posteriors of
        other likelihoods are non-Gaussian too, but the shapes do not reveal this.

        With many coordinates a metric would be estimated from fewer draws than coordinates, and the first trees of
        warm-up, whose steps are small, would take a minute each (1,231 coordinates, 144 paths).
        """
        many = sum(shape.size for shape in self.shapes) > MOST_COORDINATES_FOR_HESSIAN
        depths = {"max_tree_depth": TREE_DEPTHS} if many else {}
        return {"adapt_mass_matrix": bartlett.narrow(self.shapes) and not many} | depths

    @property
    def kernels(self) -> GaussianProcess:
        """Kernels K(U) with the training data."""
        return self.problem.process

    def point(self, sites: Sites) -> Array:
        """Bartlett coordinates of a draw."""
        return self.whitening.point(sites["whitened"])

    def factor(self, sites: Sites) -> Array:
        """Factor F of a draw, with U = F F^T."""
        return self.problem.factor(self.point(sites), self.shapes)

    def _sample_factor(self) -> Array:
        """Factor F from a NumPyro site of whitened coordinates."""
        prior = BartlettPrior(self.shapes, self.problem.widths, self.whitening)
        return self.factor({"whitened": jnp.asarray(numpyro.sample("whitened", prior))})

    def program(self) -> None:
        """NumPyro program: whitened coordinates, and the Gaussian evidence of the labels given U."""
        self.observe(self._sample_factor())

    def observe(self, factor: Array) -> None:
        """Add the labels given U, whose factor is F, to a NumPyro program."""
        numpyro.factor(LABELS, self.kernels.log_density(factor))

    def initial(self, key: Key[Array, ""]) -> Sites:
        """Draw from the Gaussian approximation of the posterior by the whitening."""
        return {"whitened": jax.random.normal(key, self.whitening.centre.shape)}

    def quantities(self, sites: Sites, key: Key[Array, ""]) -> Sites:
        """Bartlett coordinates, order parameter U and, if there are test examples, a draw of f on them given U."""
        point, factor = self.point(sites), self.factor(sites)
        if self.problem.order is not None:
            factors = bartlett.bartlett_factors(point, self.shapes, self.problem.order)
            point = bartlett.in_order(factors, self.shapes)
        result = {"bartlett": point, "order_parameter": factor @ factor.T}
        if not self.keeps_readout and self.test_path_inputs is None:
            return result
        readout = self.readout(sites, factor, key)
        if self.keeps_readout:
            result["readout"] = readout
        if self.test_path_inputs is not None:
            drawn = outputs_of(jnp.swapaxes(self.test_path_inputs, 1, 2), readout, self.kernels.outputs)
            result["prediction"] = self.kernels.by_example(drawn)
        return result

    def central(self, sites: Sites) -> Sites:
        """Order parameter U."""
        factor = self.factor(sites)
        return {"order_parameter": factor @ factor.T}

    keeps_readout: ClassVar[bool] = False
    """Whether draws contain the readout, which gives outputs at other inputs; else U determines their moments."""

    def readout(self, sites: Sites, factor: Array, key: Key[Array, ""]) -> Float[Array, "row feature"]:
        """Readout of path inputs, drawn given the sites and the labels."""
        return self._readout_scale * factor @ self._projection(sites, factor, key)

    @property
    def _readout_scale(self) -> Array:
        """Scale by which F Z becomes the readout of path inputs."""
        _, features, paths = self.kernels.features.shape
        return input_scale(self.input_variance, paths, features)

    def _projection(self, sites: Sites, factor: Array, key: Key[Array, ""]) -> Float[Array, "column feature"]:
        """Projection Z of V_0, the part that affects the outputs, drawn given the labels."""
        return self.kernels.sample_projection(key, factor)

    def weights_of(self, sites: Sites, key: Key[Array, ""]) -> Sites:
        """Exact draw of all weights given the coordinates, as by `weights`."""
        return self._weights(sites, None, key)

    def _weights(self, sites: Sites, mixed: Array | None, key: Key[Array, ""]) -> Sites:
        """All weights of a draw, given F Z if `mixed` is not None."""
        assert self.widths is not None
        return weights_at(self.point(sites), mixed, key, self.problem, self.shapes, self.widths)

    def predictions_of(self, weights: Sites) -> Sites:
        """Readout of path inputs, if kept, and f on the test examples."""
        skips = self.problem.skips
        result = {"readout": path_readouts(weights, skips)} if self.keeps_readout else {}
        if self.test_path_inputs is not None:
            result["prediction"] = network(weights, self.test_path_inputs, skips)
        return result

    @jax.jit
    def draw_prior(self, key: Key[Array, ""]) -> Sites:
        """Whitened coordinates drawn from the prior."""
        return {"whitened": self.whitening.whitened(bartlett.sample_prior(key, self.shapes, self.problem.widths))}

    def draw_latents(self, key: Key[Array, ""], sites: Sites) -> Sites:
        """Sites besides the whitened coordinates, drawn from their prior given these: none."""
        return {}

    def draw_labels(self, key: Key[Array, ""], sites: Sites) -> Array:
        """Labels drawn given U, from Normal(0, K + T I)."""
        return self.kernels.by_example(sample_labels(self.kernels, key, self.factor(sites)))

    def with_labels(self, labels: Array) -> "Collapsed":
        """Same posterior with other labels."""
        return replace(self, problem=self.problem._replace(process=self.kernels.with_labels(labels)))


class WithOutputs(Collapsed):
    """Collapsed parameterisation that also samples the outputs on the training examples, for non-Gaussian likelihoods.

    Args:
        likelihood: likelihood of the labels given the outputs.
        latents: whitening of the coordinates of the outputs, or the pseudo-labels by which it is made at every U.
    """

    keeps_readout: ClassVar[bool] = True

    likelihood: Likelihood
    latents: Whitening | latent_outputs.PseudoLabels

    def with_prepared(self, prepared: PlainMapping) -> "Collapsed":
        """Same posterior in other coordinates."""
        return replace(super().with_prepared(prepared), latents=_latents(prepared))

    def at_values(self, values: Values) -> "WithOutputs":
        """Same posterior at values of numbers of the likelihood, and of the prior variances."""
        likelihood = replace(self.likelihood, **fields_of(values))
        return replace(self, problem=self.problem.at_values(values), likelihood=likelihood)

    def with_float32_gradients(self) -> "Collapsed":
        """Raise ValueError: only Gaussian labels have such gradients."""
        raise BayesattnError(NO_FLOAT32)

    def _latents_at(self, factor: Array) -> Whitening | latent_outputs.LocalWhitening:
        """Whitening of the latents at the U of a factor."""
        return self.latents if isinstance(self.latents, Whitening) else self.latents.at(self.kernels, factor)

    def outputs(self, sites: Sites, factor: Array) -> Outputs:
        """Outputs f on the training examples."""
        return latent_outputs.outputs_given(self.kernels, factor, self._latents_at(factor).point(sites["latents"]))

    def program(self) -> None:
        """NumPyro program: whitened coordinates, latents of the outputs, labels given the outputs."""
        self.observe(self._sample_factor())

    def observe(self, factor: Array) -> None:
        """Add latents of the outputs, and the labels given the outputs, to a NumPyro program."""
        whitening = self._latents_at(factor)
        latents = whitening.point(jnp.asarray(numpyro.sample("latents", StandardNormal(whitening))))
        labels = self.kernels.by_example(self.kernels.labels)
        observe(self.likelihood, latent_outputs.outputs_given(self.kernels, factor, latents), labels)

    def initial(self, key: Key[Array, ""]) -> Sites:
        """Draw from the Gaussian approximation of the posterior by the whitening."""
        point_key, latents_key = jax.random.split(key)
        kernels = self.kernels
        entries = self.shapes[0].columns * kernels.features.shape[1]
        size = latent_outputs.number_of_latents(entries, kernels.labels.size, kernels.outputs)
        return super().initial(point_key) | {"latents": jax.random.normal(latents_key, (size,))}

    def _projection(self, sites: Sites, factor: Array, key: Key[Array, ""]) -> Float[Array, "column feature"]:
        """Projection Z of V_0, the part that affects the outputs, drawn given the outputs."""
        return latent_outputs.projection_given(
            key, self.kernels, factor, self._latents_at(factor).point(sites["latents"])
        )

    def weights_of(self, sites: Sites, key: Key[Array, ""]) -> Sites:
        """Exact draw of all weights given the coordinates and the outputs."""
        readout_key, key = jax.random.split(key)
        factor = self.factor(sites)
        return self._weights(sites, factor @ self._projection(sites, factor, readout_key), key)

    @jax.jit
    def draw_prior(self, key: Key[Array, ""]) -> Sites:
        """Coordinates drawn from the prior."""
        point_key, latents_key = jax.random.split(key)
        sites = super().draw_prior(point_key)
        return sites | self.draw_latents(latents_key, sites)

    def draw_latents(self, key: Key[Array, ""], sites: Sites) -> Sites:
        """Latents of the outputs drawn from their prior given the other sites."""
        return {"latents": StandardNormal(self._latents_at(self.factor(sites))).sample(key)}

    def draw_labels(self, key: Key[Array, ""], sites: Sites) -> Array:
        """Labels drawn given the outputs."""
        return self.likelihood.sample(key, self.outputs(sites, self.factor(sites)))


def _whitening(prepared: PlainMapping, prefix: str = "") -> Whitening:
    """Whitening with the arrays of `prepare` whose names begin with `prefix`."""
    return Whitening(
        **{name: jnp.asarray(prepared[prefix + name]) for name in Whitening._fields if prefix + name in prepared}
    )


def _latents(prepared: PlainMapping) -> Whitening | latent_outputs.PseudoLabels:
    """Whitening of latents, or pseudo-labels, with the arrays of `prepare`."""
    if "latent_pull" in prepared:
        arrays = (jnp.asarray(prepared[f"latent_{name}"]) for name in latent_outputs.PseudoLabels._fields)
        return latent_outputs.PseudoLabels(*arrays)
    return _whitening(prepared, "latent_")
