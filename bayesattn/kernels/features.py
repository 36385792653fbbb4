"""K(U) = A A^T as the Gram matrix of A = X F, path inputs times a factor of U."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bayesattn.kernels.energies import energy_and_slope, gram, kernel_energy
from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.kernels.path_inputs import Factor, Number, OrderParameter


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class ByFeatures(GaussianProcess):
    """K(U) formed from features at each U, for any number of paths and outputs."""

    def kernel(self, factor: Factor) -> Float[Array, "label label"]:
        """K(F F^T)."""
        return gram(self.mixed(factor))

    def kernel_of(self, order_parameter: OrderParameter) -> Float[Array, "label label"]:
        """K(U) for any symmetric U; if U is nearly singular, a factor keeps more digits."""
        moved, examples = self.mixed(order_parameter), len(self.labels)
        # Columns are (feature, path, output) triples; those of each output multiply the features of all examples.
        by_output = jnp.swapaxes(moved.reshape(len(moved), -1, self.outputs), 1, 2).reshape(-1, self.flat.shape[1])
        across = (by_output @ self.flat.T).reshape(len(moved), self.outputs, examples)
        return jnp.swapaxes(across, 1, 2).reshape(len(moved), -1)

    def _energy(self, factor: Factor) -> Float[Array, ""]:
        return gram_energy(self.mixed(factor), self.flat_labels, self.temperature)

    def _energy_of(self, order_parameter: OrderParameter) -> Float[Array, ""]:
        return kernel_energy(self.kernel_of(order_parameter), self.flat_labels, self.temperature)


@jax.custom_jvp
def gram_energy(mixed: Float[Array, "label column"], labels: Float[Array, " label"], temperature: Number):
    """Energy if K is the Gram matrix of `mixed`."""
    return energy_and_slope(gram(mixed), labels, temperature)[0]


@gram_energy.defjvp
def _gram_energy_jvp(primals, tangents):
    mixed, labels, temperature = primals
    mixed_dot, labels_dot, temperature_dot = tangents
    energy, slope, solution = energy_and_slope(gram(mixed), labels, temperature)
    change = 2 * jnp.vdot(slope @ mixed, mixed_dot)
    return energy, change + 2 * solution @ labels_dot + jnp.trace(slope) * temperature_dot
