"""Path parameterisation: all weights are sampled, outputs are computed from path inputs (THEORY section 2)."""

import math
from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int, Key

from bayesattn._util.plain_values import PlainDict
from bayesattn.kernels.gaussian_process import ResidualExamples
from bayesattn.likelihoods import Likelihood, Outputs
from bayesattn.models.hyperpriors import VARIANCES, Values, fields_of
from bayesattn.models.model import Model
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.models.parameterisation import VECTORS_PER_CHAIN, Parameterisation, Sites, arrays_of, observe
from bayesattn.network import Skips, effective_weights, network, path_readouts


class Path(Parameterisation):
    """All weights V_0, V_1, .., V_L, a under their Gaussian priors; outputs from path inputs.

    Args:
        path_inputs: xi of shape (P, Pi, N_0).
        labels: Y of shape (P,) or (P, m).
        likelihood: likelihood of the labels given the outputs.
        variances: prior variances (s_0^2, .., s_L^2, s_a^2).
        skips: rho_l of each layer, None for a layer without a skip connection.
        test_path_inputs: xi of the test examples, or None.
        readout: whether draws keep the readout of path inputs, which gives outputs at other inputs.
        likelihood_scale: P divided by the size of a minibatch.
        residual: examples whose outputs are 0 whatever the weights, of a compressed dataset: their labels tell of T.
        heads, widths, output_axes: shapes of the weights.
    """

    minibatches: ClassVar[bool] = True
    memory_advice: ClassVar[str] = "use parameterisation 'collapsed', whose size does not grow with the width"

    path_inputs: Float[Array, "example path feature"]
    labels: Float[Array, "*labels"]
    likelihood: Likelihood
    variances: Float[Array, " layer_and_input"]
    skips: Skips
    test_path_inputs: Float[Array, "test_example path feature"] | None
    readout: bool = eqx.field(static=True)
    heads: tuple[int, ...] = eqx.field(static=True)
    widths: tuple[int, ...] = eqx.field(static=True)
    output_axes: tuple[int, ...] = eqx.field(static=True)
    likelihood_scale: float | Array = eqx.field(default=1.0, kw_only=True)
    residual: ResidualExamples | None = eqx.field(default=None, kw_only=True)

    @classmethod
    def of(
        cls, model: Model, *, weights: bool = False, all_examples: bool = False, **prepared: Array | np.ndarray
    ) -> "Path":
        """Posterior of a model, whose sites are the weights."""
        return cls(**cls._fields(model, model.path_inputs, model.test_path_inputs))

    @classmethod
    def bytes_needed(cls, model: Model, chains: int) -> int:
        """Lower bound on the memory in bytes: data, and the vectors of each chain, as long as the number of weights."""
        weights = model.architecture.number_of_weights(model.path_inputs.shape[2])
        return 8 * (model.dataset.path_entries + chains * VECTORS_PER_CHAIN * weights)

    @staticmethod
    def _fields(model: NetworkPosterior, path_inputs: np.ndarray, test_path_inputs: np.ndarray | None) -> PlainDict:
        arch = model.architecture
        return {
            "path_inputs": jnp.asarray(path_inputs),
            "labels": jnp.asarray(model.labels),
            "likelihood": arrays_of(model.likelihood),
            "variances": jnp.asarray(np.array(arch.known_variances)),
            "skips": arch.optional_skips,
            "test_path_inputs": None if test_path_inputs is None else jnp.asarray(test_path_inputs),
            "readout": not model.likelihood.conjugate,
            "heads": arch.heads,
            "widths": arch.widths,
            "output_axes": arch.output_axes,
            "residual": None if model.compressed is None else model.compressed.residual,
        }

    def at_values(self, values: Values) -> "Path":
        """Same posterior at values of numbers of the likelihood, and of the prior variances."""
        likelihood, variances = replace(self.likelihood, **fields_of(values)), values.get(VARIANCES, self.variances)
        return replace(self, likelihood=likelihood, variances=variances)

    def function(self, sites: Sites) -> Outputs:
        """Outputs f on the training examples."""
        return network(sites, self.path_inputs, self.skips)

    def program(self) -> None:
        """NumPyro program: V_0, V_1, .., V_L, a with Gaussian priors, labels given the outputs."""
        weights = self._sample_weights()
        observe(self.likelihood, self.function(weights), self.labels, self.likelihood_scale)
        if self.residual is not None:
            likelihood: Any = self.likelihood  # Gaussian, as of all compressed datasets.
            labels, temperature = self.residual.examples * math.prod(self.output_axes), likelihood.temperature
            energy = labels * jnp.log(2 * jnp.pi * temperature) + self.residual.square / temperature
            numpyro.factor("residual", -energy / 2)

    def _sample_weights(self) -> Sites:
        """Prior sites V_0 (N_1, N_0), V_l (H_l, N_{l+1}, N_l), a (N_a,) or (m, N_a); entries Normal(0, s^2) by layer."""
        shapes: dict[str, tuple[int, ...]] = {"V_0": (self.widths[0], self.path_inputs.shape[2])}
        for layer, count in enumerate(self.heads):
            # The readout width N_a is also the output width of the last layer's values: N_{L+1} = N_a.
            shapes[f"V_{layer + 1}"] = (count, self.widths[layer + 1], self.widths[layer])
        shapes["a"] = (*self.output_axes, self.widths[-1])
        return {
            name: jnp.asarray(
                numpyro.sample(name, dist.Normal(0.0, jnp.sqrt(variance)).expand(shape).to_event(len(shape)))
            )
            for (name, shape), variance in zip(shapes.items(), self.variances, strict=True)
        }

    def initial(self, key: Key[Array, ""]) -> Sites:
        """Draw from the prior."""
        return self.draw_prior(key)

    def quantities(self, sites: Sites, key: Key[Array, ""]) -> Sites:
        """Order parameter U and, if there are test examples, f on them."""
        return self.central(sites) | self.predictions_of(sites)

    def central(self, sites: Sites) -> Sites:
        """Order parameter U."""
        paths = effective_weights(sites, self.skips)
        return {"order_parameter": paths @ paths.T / paths.shape[1]}

    def weights_of(self, sites: Sites, key: Key[Array, ""]) -> Sites:
        """All weights: samples are already weights."""
        return sites

    def predictions_of(self, weights: Sites) -> Sites:
        """Readout of path inputs, if kept, and f on the test examples."""
        result = {"readout": path_readouts(weights, self.skips)} if self.readout else {}
        if self.test_path_inputs is not None:
            result["prediction"] = network(weights, self.test_path_inputs, self.skips)
        return result

    @jax.jit
    def draw_prior(self, key: Key[Array, ""]) -> Sites:
        """Weights drawn from the prior."""
        with numpyro.handlers.seed(rng_seed=key):
            return self._sample_weights()

    def draw_labels(self, key: Key[Array, ""], sites: Sites) -> Array:
        """Labels drawn given the weights."""
        return self.likelihood.sample(key, self.function(sites))

    def with_labels(self, labels: Array) -> "Path":
        """Same posterior with other labels."""
        return replace(self, labels=labels)

    def minibatch(self, chosen: Int[Array, " chosen"]) -> "Path":
        """Posterior of a minibatch of examples, with the log likelihood scaled to all examples."""
        changed = {name: jax.tree.map(lambda leaf: leaf[chosen], getattr(self, name)) for name in self._by_example()}
        return replace(self, **changed, likelihood_scale=len(self.labels) / len(chosen))

    def _by_example(self) -> list[str]:
        """Names of the fields whose first axis is the example axis."""
        return ["path_inputs", "labels"]
