"""Outputs as latents of the collapsed parameterisation, for non-Gaussian likelihoods.

Given U, the outputs f are Gaussian, but with a non-Gaussian likelihood they cannot be integrated out. They are sampled in
coordinates that are standard normal a priori for every U: f = A Z with A A^T = K(U), where Z is the projection of V_0 that
affects the outputs. For one output and far fewer labels than entries of Z, the latents are instead the coefficients of the
columns of the Cholesky factor of K (Murray and Adams 2010).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.kernels.path_inputs import Factor, outputs_of
from bayesattn.likelihoods import Likelihood, Outputs
from bayesattn.theory.minimise import Local, minimum
from bayesattn.theory.whitening import Whitening

ENTRIES_PER_LABEL = 4
"""Entries of Z per label up to which the latents are the entries of Z; above it, for one output, K is decomposed.

If K is nearly singular at some U, as in narrow networks with several outputs, its Cholesky factor changes fast with U: with
two neurons and three outputs a draw took 370 gradients by the factor, and 15 by Z. With one output, 100 labels and 924
entries at T = 0.05, a draw took 63 gradients both ways, and the gradients by the factor took half the time.
"""
JITTER = 1e-10
"""Variance added to each output if K is decomposed, in units of the mean of its diagonal: K may be singular."""
LEAST_JITTER = 1e-150
MOST_WHITENED_LATENTS = 2000
"""Largest number of latents that are whitened by their curvature; more have the scale of the prior."""
NEWTON_STEPS = 50

Latents = Float[Array, " latent"]


def are_projection(entries: int, labels: int, outputs: int) -> bool:
    """Whether the latents are the entries of Z, not coefficients of the columns of the Cholesky factor of K."""
    return outputs > 1 or entries <= ENTRIES_PER_LABEL * labels


def number_of_latents(entries: int, labels: int, outputs: int) -> int:
    """Number of entries of Z, or of columns of the Cholesky factor of K."""
    return entries if are_projection(entries, labels, outputs) else labels


def _sizes(kernels: GaussianProcess, factor: Factor) -> tuple[int, int, int]:
    """Numbers of entries of Z, of labels, and of outputs."""
    return factor.shape[1] * kernels.features.shape[1], kernels.labels.size, kernels.outputs


def outputs_given(kernels: GaussianProcess, factor: Factor, latents: Latents) -> Outputs:
    """Outputs f on the training examples."""
    if are_projection(*_sizes(kernels, factor)):
        outputs = outputs_of(kernels.features, factor @ _projection(latents, factor), kernels.outputs)
    else:
        outputs = _root(kernels, factor)[0] @ latents
    return kernels.by_example(outputs)


def projection_given(
    key: Key[Array, ""], kernels: GaussianProcess, factor: Factor, latents: Latents
) -> Float[Array, "column feature"]:
    """Projection Z, or an exact draw of Z given the outputs on the training examples (Matheron's rule)."""
    if are_projection(*_sizes(kernels, factor)):
        return _projection(latents, factor)
    cholesky, jitter = _root(kernels, factor)
    return kernels.at(jitter).with_labels(cholesky @ latents).sample_projection(key, factor)


def _projection(latents: Latents, factor: Factor) -> Float[Array, "column feature"]:
    return latents.reshape(-1, factor.shape[1]).T


def _root(kernels: GaussianProcess, factor: Factor) -> tuple[Float[Array, "label label"], Float[Array, ""]]:
    """Cholesky factor of K with a jitter on its diagonal, and the jitter."""
    kernel = kernels.kernel(factor)
    jitter = jitter_of(kernel)
    return jnp.linalg.cholesky(kernel + jitter * jnp.eye(len(kernel))), jitter


def jitter_of(kernel: Float[Array, "label label"]) -> Float[Array, ""]:
    """Variance added to each output, which keeps K regular."""
    # The smallest jitter is for inputs that are all zero.
    return JITTER * jnp.mean(jnp.diag(kernel)) + LEAST_JITTER


def whitening_at(kernels: GaussianProcess, likelihood: Likelihood, factor: Factor) -> Whitening:
    """Whitening by Laplace's method: latents that are nearly standard normal given the labels and the U of `factor`.

    If the log likelihood is concave in f, so is the log posterior of the latents, and Newton's method finds its only mode
    (Rasmussen and Williams 2006, section 3.4).
    """
    size = number_of_latents(*_sizes(kernels, factor))
    if size > MOST_WHITENED_LATENTS:
        return Whitening(jnp.zeros(size), jnp.ones(size))
    mode, hessian = _laplace(kernels, likelihood, factor)
    return Whitening(mode, jnp.linalg.inv(jnp.linalg.cholesky(hessian)).T)


@jax.jit
def _laplace(
    kernels: GaussianProcess, likelihood: Likelihood, factor: Factor
) -> tuple[Latents, Float[Array, "latent latent"]]:
    basis = kernels.mixed(factor) if are_projection(*_sizes(kernels, factor)) else _root(kernels, factor)[0]
    labels = kernels.by_example(kernels.labels)

    def of_example(outputs, label):
        """Negative log likelihood -log p(Y_i | f_i), for outputs of shape (m,)."""
        return -likelihood.log_prob(outputs.reshape(1, *label.shape), label[None])[0]

    def value(latents):
        return latents @ latents / 2 - jnp.sum(likelihood.log_prob(kernels.by_example(basis @ latents), labels))

    def local(latents):
        outputs = (basis @ latents).reshape(-1, kernels.outputs)
        curvatures = jax.vmap(jax.hessian(of_example))(outputs, labels)
        by_example = basis.reshape(*outputs.shape, -1)
        curved = jnp.einsum("ecd,edn->ecn", curvatures, by_example).reshape(basis.shape)
        return Local(value(latents), jax.grad(value)(latents), jnp.eye(len(latents)) + basis.T @ curved)

    mode = minimum(value, local, jnp.zeros(basis.shape[1]), NEWTON_STEPS)
    return mode.point, mode.local.hessian
