"""Posterior covariances given U: of outputs with each other, and with the log likelihood of each example.

Given U and Gaussian labels, the outputs f of examples have mean m and covariance C = T K A^{-1}, A = K + T I, and the log
likelihood of example i is l_i = -sum_c (y_ic - f_ic)^2 / 2T - m log(2 pi T) / 2. With the residual e = y - m,

    E[l_i] = -(|e_i|^2 + tr C_ii) / 2T - m log(2 pi T) / 2
    Cov(l_i, l_j) = sum_cd (C_ic,jd^2 / 2 + e_ic e_jd C_ic,jd) / T^2
    Cov(f_t, l_i) = sum_c e_ic Cov(f_ic, f_t) / T

by the moments of a normal law. Without example i, f_t has mean m_t - c_ti (I - H_i)^{-1} e_i and variance
C_tt + T c_ti (I - H_i)^{-1} c_it, where T c_ti = Cov(f_t, f_i) and H_i = C_ii / T.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bayesattn.kernels.conditionals import in_feature_space
from bayesattn.kernels.energies import cholesky, log_det, lower_inverse
from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.kernels.path_inputs import Factor, Number, mixed

Rows = Float[Array, "example output column"]
LEAST_REST = 1e-9
"""Smallest squared pivot of I - H_i = I - W W^T at which an example can be left out: below it digits cancel."""


class WithoutEach(NamedTuple):
    """Outputs at new inputs, and the density of an example's label, without the example.

    Args:
        log_densities: log p(Y_i | Y of all other examples, U); NaN where digits cancel.
        mean: mean of f.
        variance: variance of f.
    """

    log_densities: Float[Array, " example"]
    mean: Float[Array, "test_example output example"]
    variance: Float[Array, "test_example output example"]


class OutputCovariances(NamedTuple):
    """Posterior of the outputs of examples and at new inputs given U, as products: the covariance of rows is T l . r.

    Args:
        temperature: T.
        residual: e of the examples.
        left: l of each label of the examples.
        right: r of each label of the examples; None if it is l.
        rest: Cholesky factor of I - H_i; NaN where digits cancel.
        new: r of each output at the new inputs.
        mean: mean of f at the new inputs.
        variance: variance of f at the new inputs.
    """

    temperature: Number
    residual: Float[Array, "example output"]
    left: Rows
    right: Rows | None
    rest: Float[Array, "example output other_output"]
    new: Float[Array, "test_example output column"]
    mean: Float[Array, "test_example output"]
    variance: Float[Array, "test_example output"]

    @property
    def log_likelihoods(self) -> Float[Array, " example"]:
        """E[l_i]."""
        right = self.left if self.right is None else self.right
        squares = jnp.sum(self.residual**2, axis=1) / self.temperature + jnp.sum(self.left * right, axis=(1, 2))
        return -(squares + self.residual.shape[1] * jnp.log(2 * jnp.pi * self.temperature)) / 2

    def of_log_likelihoods(self) -> Float[Array, "example other_example"]:
        """Cov(l_i, l_j); one output of the first example at a time, so that the largest array has P^2 m entries."""
        examples, outputs, _ = self.left.shape
        right = self.left if self.right is None else self.right
        if outputs == 1:
            products = self.left[:, 0] @ right[:, 0].T
            return products * (products / 2 + self.residual @ self.residual.T / self.temperature)
        flat = right.reshape(examples * outputs, -1)

        def of_output(total, left):
            products = left @ flat.T
            return total + jnp.sum((products**2).reshape(examples, examples, outputs), axis=2), None

        squares, _ = jax.lax.scan(of_output, jnp.zeros((examples, examples)), jnp.swapaxes(self.left, 0, 1))
        pulled, others = (jnp.einsum("ec,eck->ek", self.residual, each) for each in (self.left, right))
        return squares / 2 + pulled @ others.T / self.temperature

    def of_outputs(self) -> Float[Array, "test_example output example"]:
        """Cov(f_t, l_i)."""
        return self.new @ jnp.einsum("ec,eck->ke", self.residual, self.left)

    def without_each(self) -> WithoutEach:
        """Outputs at new inputs without each example."""
        both = jnp.concatenate([self.residual[..., None], self.left], axis=2)
        whitened = jax.scipy.linalg.solve_triangular(self.rest, both, lower=True)
        residual, left = whitened[..., 0], whitened[..., 1:]
        squares = jnp.sum(residual**2, axis=1) / self.temperature
        constant = self.residual.shape[1] * jnp.log(2 * jnp.pi * self.temperature)
        densities = (jax.vmap(log_det)(self.rest) - squares - constant) / 2
        moved = self.new @ jnp.einsum("ec,eck->ke", residual, left)
        spread = sum(jnp.square(self.new @ left[:, output].T) for output in range(left.shape[1]))
        return WithoutEach(
            densities, self.mean[..., None] - moved, self.variance[..., None] + self.temperature * spread
        )


def output_covariances(
    process: GaussianProcess,
    factor: Factor,
    new: Float[Array, "test_example feature path"],
    examples: tuple[Float[Array, "other_example feature path"], Float[Array, "other_example output"]] | None = None,
) -> OutputCovariances:
    """Posterior of outputs given U = F F^T.

    Args:
        process: kernels with the training data.
        factor: F.
        new: scaled path inputs at which f is wanted.
        examples: scaled path inputs and labels of the examples whose log likelihoods are wanted; by default those of the
            training data.
    """
    outputs, temperature = process.outputs, process.temperature

    def rows(columns):
        return columns.reshape(-1, outputs, columns.shape[1])

    of_new = mixed(new, factor, outputs)
    if examples is not None or in_feature_space(process, factor):
        root = lower_inverse(process.latent_cholesky(factor))
        centre = root @ process.pulled_to_latents(factor, process.flat_labels)
        of_examples = process.mixed(factor) if examples is None else mixed(examples[0], factor, outputs)
        labels = process.labels if examples is None else examples[1]
        left = of_examples @ root.T
        right, ahead = None, of_new @ root.T
        of_example = rows(left)
        rest = jnp.linalg.cholesky(jnp.eye(outputs) - jnp.einsum("eck,edk->ecd", of_example, of_example))
        pivots = jnp.diagonal(rest, axis1=1, axis2=2) ** 2
        rest = jnp.where(jnp.all(pivots > LEAST_REST, axis=1)[:, None, None], rest, jnp.nan)
        residual = labels - (left @ centre).reshape(labels.shape)
        variance = temperature * jnp.sum(ahead**2, axis=1)
        mean = ahead @ centre
    else:
        # Columns are labels: C = T A^{-1} K and I - H = T A^{-1}, with A^{-1} = R^T R, in which nothing cancels.
        kernel = process.kernel(factor)
        root = lower_inverse(cholesky(kernel, temperature))
        left, right, ahead = root.T, (root @ kernel).T, of_new @ (root @ process.mixed(factor)).T
        of_example = rows(left)
        rest = jnp.linalg.cholesky(temperature * jnp.einsum("eck,edk->ecd", of_example, of_example))
        centre = root @ process.flat_labels
        residual = temperature * (root.T @ centre).reshape(process.labels.shape)
        variance = jnp.sum(of_new**2, axis=1) - jnp.sum(ahead**2, axis=1)
        mean = ahead @ centre
    return OutputCovariances(
        temperature,
        residual,
        rows(left),
        None if right is None else rows(right),
        rest,
        rows(ahead),
        mean.reshape(-1, outputs),
        variance.reshape(-1, outputs),
    )
