"""Gradients of the energy in float32, for proposals that a Metropolis test in float64 corrects.

Leapfrog steps are reversible and preserve volume whatever function of the position takes the place of the gradient, so a
trajectory with these gradients leaves the exact posterior invariant if it is accepted by energies in float64 (Neal 2011,
on approximate trajectories). With P = 1000, N_0 = 64, 169 paths and 10 columns of F, such a gradient takes 70 ms on one
core, and one in float64 183 ms.
"""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from bayesattn.kernels.energies import cholesky, gram
from bayesattn.kernels.feature_space import InFeatureSpace
from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.kernels.path_inputs import Factor, Number

MULTIPLE_OF_COLUMNS = 16
"""F is filled up to a multiple of this number of columns: X^T times 16 columns takes 11 ms, times 10 columns 29."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Float32Gradients(InFeatureSpace):
    """Exact energies of factors, with gradients computed in float32.

    Args:
        paths_first: X in float32, shape (Pi, N_0, P).
    """

    paths_first: Float32[Array, "path feature example"] = field(kw_only=True)

    @classmethod
    def of(cls, process: GaussianProcess) -> "Float32Gradients":
        """The same process with such gradients."""
        return cls(
            process.features,
            process.labels,
            process.temperature,
            residual=process.residual,
            products=process.products if isinstance(process, InFeatureSpace) else None,
            paths_first=process.features.T.astype(jnp.float32),
        )

    def _energy(self, factor: Factor) -> Float[Array, ""]:
        """Energy in float64, whose gradient with respect to F is `gradient`; it has no other derivatives."""
        leaves, structure = jax.tree.flatten(self)

        # The data are arguments, because a closure over traced arrays could not be differentiated outside of a jit.
        @jax.custom_vjp
        def energy(factor, leaves):
            return InFeatureSpace._energy(jax.tree.unflatten(structure, leaves), factor)

        def backward(arguments, weight):
            factor, leaves = arguments
            return weight * jax.tree.unflatten(structure, leaves).gradient(factor), None

        # The gradient is computed in the backward pass, so that it does not require the energy.
        energy.defvjp(lambda factor, leaves: (energy(factor, leaves), (factor, leaves)), backward)
        return energy(factor, leaves)

    def gradient(self, factor: Factor) -> Factor:
        """Gradient of the energy, 2 X^T (A^{-1} X F - alpha alpha^T X F) with A = K + T I and alpha = A^{-1} Y.

        It is 0 where A is singular or overflows in float32: a trajectory then goes straight on, where NaN would stop it for
        ever.
        """
        with jax.default_matmul_precision("float32"):  # Some GPUs would round products to 10 bits.
            return self._gradient(factor)

    def _gradient(self, factor: Factor) -> Factor:
        (paths, features, examples), outputs = self.paths_first.shape, self.outputs
        by_path, columns = self.paths_first.reshape(paths, -1), factor.shape[1]
        fill = (0, -columns % MULTIPLE_OF_COLUMNS)
        # Rows of F are (path, output) pairs; examples are last in all arrays of examples.
        narrow = factor.astype(jnp.float32).reshape(paths, outputs, columns)
        filled = jnp.pad(narrow, ((0, 0), (0, 0), fill)).reshape(paths, -1)
        products = (filled.T @ by_path).reshape(outputs, -1, features, examples)[:, :columns]
        mixed = jnp.moveaxis(products, 0, 2).reshape(columns * features, -1)
        slope = _slope(mixed, self.labels.T.reshape(-1).astype(jnp.float32), jnp.asarray(self.temperature, jnp.float32))
        slope = jnp.moveaxis(slope.reshape(columns, features, outputs, examples), 2, 0)
        slope = jnp.pad(slope, ((0, 0), fill, (0, 0), (0, 0))).reshape(-1, features * examples)
        pulled = (by_path @ slope.T).reshape(paths, outputs, -1)[:, :, :columns]
        # An infinite path input times 0 would be NaN, so that the slope alone may not be replaced.
        pulled = jnp.where(jnp.isfinite(pulled).all(), pulled, 0)
        return 2 * pulled.reshape(factor.shape).astype(factor.dtype)


def _slope(mixed: Float32[Array, "column label"], labels: Float32[Array, " label"], temperature: Number) -> Array:
    """B^T A^{-1} - (B^T alpha) alpha^T of B^T = `mixed` and A = B B^T + T I, from the smaller of A and B^T B + T I.

    It solves, where the derivatives in float64 multiply with the inverse: with 640 columns and 1000 labels, solving takes
    27 ms in float32, and the inverse and the product 49.
    """
    smaller = len(mixed) < len(labels)
    lower = cholesky(gram(mixed if smaller else mixed.T), temperature)
    if smaller:
        solved = jax.scipy.linalg.cho_solve((lower, True), jnp.column_stack([mixed, mixed @ labels]))
        solved, mean = solved[:, :-1], solved[:, -1]
        return solved - jnp.outer(mean, labels - mean @ mixed) / temperature
    solved = jax.scipy.linalg.cho_solve((lower, True), jnp.column_stack([mixed.T, labels]))
    solved, solution = solved[:, :-1].T, solved[:, -1]
    return solved - jnp.outer(mixed @ solution, solution)
