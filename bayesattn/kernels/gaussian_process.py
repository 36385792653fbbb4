"""Gaussian density of labels given the order parameter U = F F^T: Y ~ Normal(0, K(U) + T I).

Given U, the network is a Gaussian process. One object gives theory and samplers everything they need from the training
data. It has three exact forms, which differ only in cost: `ByPairs`, `ByFeatures` and `InFeatureSpace`
(`bayesattn.kernels.forms` picks the cheapest). With m outputs, F has one row per (path, output) pair. Y is stored in
shape (P, m); in formulas it is one vector of P m rows, one per (example, output) pair. The density is that of one output
on P m examples with Pi m path inputs (THEORY section 8).

Methods whose names end in "of" take U itself, a symmetric matrix. All but `kernel_of` also require that K(U) + T I is
positive definite. Gradients with respect to U are symmetric matrices, because U may change only symmetrically.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from bayesattn.kernels.energies import cholesky, gram
from bayesattn.kernels.path_inputs import (
    Factor,
    Features,
    Number,
    OrderParameter,
    by_label,
    mixed,
    outputs_of,
    without_single_output,
)


class ResidualExamples(NamedTuple):
    """Examples whose outputs are 0 whatever the weights: their number, and the sum of squares of their labels.

    They result from compression: any dataset has the same posterior as Pi N_0 examples plus residual examples.
    """

    examples: int | Int[Array, ""]
    square: Number


class Whitened(NamedTuple):
    """Columns and labels whitened by the Cholesky factor L of K(U) + T I = L L^T.

    Args:
        cholesky: L.
        columns: L^{-1} times the columns.
        labels: L^{-1} Y.
    """

    cholesky: Float[Array, "label label"]
    columns: Float[Array, "label column"]
    labels: Float[Array, " label"]


class Solved(NamedTuple):
    """Scaled path inputs X and labels Y, whitened by the Cholesky factor L of K(U) + T I = L L^T.

    Args:
        cholesky: L.
        features: L^{-1} X, where X has one row per label.
        labels: L^{-1} Y.
        weighted: X^T (K(U) + T I)^{-1} Y.
    """

    cholesky: Float[Array, "label label"]
    features: Float[Array, "label feature row"]
    labels: Float[Array, " label"]
    weighted: Float[Array, "feature row"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class GaussianProcess(ABC):
    """Y ~ Normal(0, K(U) + T I) of a training set; base class of its three forms.

    Args:
        features: X, path inputs times s_0 / sqrt(N_0 Pi), shape (P, N_0, Pi).
        labels: Y, shape (P, m).
        temperature: T.
        residual: further examples whose outputs are 0 for every U, if there are any.
    """

    features: Features
    labels: Float[Array, "example output"]
    temperature: Number
    residual: ResidualExamples | None = field(default=None, kw_only=True)

    @abstractmethod
    def kernel(self, factor: Factor) -> Float[Array, "label label"]:
        """K(F F^T)."""

    @abstractmethod
    def kernel_of(self, order_parameter: OrderParameter) -> Float[Array, "label label"]:
        """K(U) at a symmetric U; if U is nearly singular, `kernel` of a factor keeps more digits."""

    @abstractmethod
    def _energy(self, factor: Factor) -> Float[Array, ""]:
        """Energy without residual examples."""

    @abstractmethod
    def _energy_of(self, order_parameter: OrderParameter) -> Float[Array, ""]:
        """Energy at a symmetric U with K(U) + T I positive definite, without residual examples."""

    @jax.jit
    def energy(self, factor: Factor) -> Float[Array, ""]:
        """log det(K + T I) + Y^T (K + T I)^{-1} Y (THEORY section 4)."""
        return self._energy(factor) + self.residual_energy

    @jax.jit
    def energy_of(self, order_parameter: OrderParameter) -> Float[Array, ""]:
        """Energy at a symmetric U with K(U) + T I positive definite."""
        return self._energy_of(order_parameter) + self.residual_energy

    @jax.jit
    def log_density(self, factor: Factor) -> Float[Array, ""]:
        """log Normal(Y; 0, K + T I)."""
        return -(self.energy(factor) + self.constant) / 2

    @jax.jit
    def log_density_of(self, order_parameter: OrderParameter) -> Float[Array, ""]:
        """Log density at a symmetric U with K(U) + T I positive definite."""
        return -(self.energy_of(order_parameter) + self.constant) / 2

    @property
    def outputs(self) -> int:
        """m, the number of outputs."""
        return self.labels.shape[1]

    @property
    def flat(self) -> Float[Array, "example column"]:
        """`features` with one row per example."""
        return self.features.reshape(len(self.features), -1)

    @property
    def flat_labels(self) -> Float[Array, " label"]:
        """`labels` as one vector, the outputs of the first example first."""
        return self.labels.reshape(-1)

    @property
    def constant(self) -> Number:
        """P m log(2 pi); minus twice the log density is this constant plus the energy."""
        return (self.labels.size + self._residual_labels) * np.log(2 * np.pi)

    @property
    def residual_energy(self) -> Number:
        """Contribution of the residual examples to the energy."""
        if self.residual is None:
            return 0.0
        return self._residual_labels * jnp.log(self.temperature) + self.residual.square / self.temperature

    @property
    def _residual_labels(self) -> int | Int[Array, ""]:
        """Number of labels of the residual examples."""
        return 0 if self.residual is None else self.residual.examples * self.outputs

    def at(self, temperature: Number) -> "GaussianProcess":
        """The same process at another temperature."""
        return replace(self, temperature=jnp.asarray(temperature, float))

    def with_labels(self, labels: Float[Array | np.ndarray, " *labels"]) -> "GaussianProcess":
        """The same process with other labels, of shape (P,), (P, m) or (P m,)."""
        return replace(self, labels=jnp.asarray(labels.reshape(self.labels.shape)))

    def by_example(self, values: Float[Array, " *labels"]) -> Float[Array, " *example_and_output"]:
        """Values of P' examples, any number, in user-facing shape: (P',), or (P', m) for several outputs.

        The values given have shape (P', m) or (P' m,).
        """
        return without_single_output(values.reshape(-1, self.outputs))

    def mixed(self, factor: Factor) -> Float[Array, "label mixed_column"]:
        """X F, for which (X F)(X F)^T = K(U); the outputs are f = (X F) vec(Z), where vec flattens Z feature by feature."""
        return mixed(self.features, factor, self.outputs)

    def pulled(self, coefficients: Float[Array, " label"]) -> Float[Array, "row feature"]:
        """X^T c for a vector c with one entry per label."""
        by_output = jnp.tensordot(coefficients.reshape(self.labels.shape).T, self.features, 1)
        return jnp.moveaxis(by_output, 2, 0).reshape(-1, self.features.shape[1])

    def whitened(self, kernel: Float[Array, "label label"], columns: Float[Array, "label column"]) -> Whitened:
        """Columns and labels whitened by the Cholesky factor of a kernel + T I."""
        lower = cholesky(kernel, self.temperature)
        both = jnp.column_stack([columns, self.flat_labels])
        both = jax.scipy.linalg.solve_triangular(lower, both, lower=True)
        return Whitened(lower, both[:, :-1], both[:, -1])

    @jax.jit
    def solve(self, factor: Factor) -> Solved:
        """Path inputs and labels whitened by K + T I, from which expansions and predictors at U are computed."""
        features = by_label(self.features, self.outputs)
        lower, columns, labels = self.whitened(self.kernel(factor), features.reshape(len(features), -1))
        return Solved(lower, columns.reshape(features.shape), labels, (columns.T @ labels).reshape(features.shape[1:]))

    @jax.jit
    def readout_of(self, order_parameter: OrderParameter) -> Float[Array, "row feature"]:
        """Readout of the posterior mean, U X^T (K + T I)^{-1} Y (THEORY section 5).

        Its product with scaled path inputs gives the mean of f there.
        """
        lower = cholesky(self.kernel_of(order_parameter), self.temperature)
        return order_parameter @ self.pulled(jax.scipy.linalg.cho_solve((lower, True), self.flat_labels))

    @jax.jit
    def projection(self, factor: Factor, labels: Float[Array, " label"]) -> Float[Array, "column feature"]:
        """Posterior mean of Z, standard normal a priori, given labels = X . (F Z) + noise.

        It solves with the smaller of two matrices: (X F)^T (X F) + T I or K(U) + T I.
        """
        if smaller_by_features(factor.shape[1], self.features.shape[1], self.labels.size):
            pulled = self.pulled_to_latents(factor, labels)
            latents = jax.scipy.linalg.cho_solve((self.latent_cholesky(factor), True), pulled)
            return latents.reshape(-1, factor.shape[1]).T
        lower = cholesky(self.kernel(factor), self.temperature)
        return factor.T @ self.pulled(jax.scipy.linalg.cho_solve((lower, True), labels))

    def latent_cholesky(self, factor: Factor) -> Float[Array, "latent latent"]:
        """Cholesky factor of (X F)^T (X F) + T I."""
        return cholesky(self._latent_gram(factor), self.temperature)

    def pulled_to_latents(self, factor: Factor, labels: Float[Array, " label"]) -> Float[Array, " latent"]:
        """(X F)^T c for a vector c with one entry per label."""
        return (factor.T @ self.pulled(labels)).T.reshape(-1)

    def _latent_gram(self, factor: Factor) -> Float[Array, "latent latent"]:
        """(X F)^T (X F), the Gram matrix of the columns of X F."""
        return gram(self.mixed(factor).T)

    def sample_projection(
        self, key: Key[Array, ""], factor: Factor, prior: Float[Array, "column feature"] | None = None
    ) -> Float[Array, "column feature"]:
        """Exact draw of Z given Y = X . (F Z) + noise; `prior` is a prior draw of Z, if there is one.

        Z = Q_1^T V_0 / s_0 is the part of V_0 that affects the network; Q_1 is the frame of the path vectors (THEORY
        section 3, Weights).
        Matheron's rule: a prior draw, moved by its covariance with the labels times (K + T I)^{-1} (labels - drawn labels).
        """
        prior_key, noise_key = jax.random.split(key)
        if prior is None:
            prior = self.sample_prior_projection(prior_key, factor)
        return prior + self.projection(factor, (self.labels - self.noisy(noise_key, factor, prior)).reshape(-1))

    def sample_prior_projection(self, key: Key[Array, ""], factor: Factor) -> Float[Array, "column feature"]:
        """Draw of Z from its prior, standard normal."""
        return jax.random.normal(key, (factor.shape[1], self.features.shape[1]))

    def noisy(
        self, key: Key[Array, ""], factor: Factor, projection: Float[Array, "column feature"]
    ) -> Float[Array, "example output"]:
        """Simulated labels: the outputs f on the training examples for a given Z, plus noise of variance T."""
        output = outputs_of(self.features, factor @ projection, self.outputs)
        noise = jax.random.normal(key, (self.labels.size,)).reshape(self.labels.shape)
        return output + jnp.sqrt(self.temperature) * noise


def smaller_by_features(columns: int, features: int, labels: int) -> bool:
    """Whether the system with one row per (feature, column of F) is smaller than the one with one row per label."""
    return columns * features < labels
