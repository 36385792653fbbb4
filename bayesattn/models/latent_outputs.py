"""Outputs as latents of the collapsed parameterisation, for non-Gaussian likelihoods.

Given U, the outputs f are Gaussian, but with a non-Gaussian likelihood they cannot be integrated out. They are sampled in
coordinates that are standard normal a priori for every U: f = A Z with A A^T = K(U), where Z is the projection of V_0 that
affects the outputs. For one output and far fewer labels than entries of Z, the latents are instead the coefficients of the
columns of the Cholesky factor of K (Murray and Adams 2010).

Likelihoods much narrower than the prior of the outputs tie the latents to U. They are then whitened at every U by
pseudo-labels, Gaussian labels as informative as the likelihood (the surrogate data of Murray and Adams).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.kernels.path_inputs import Factor, outputs_of
from bayesattn.likelihoods import Likelihood, Outputs
from bayesattn.theory.minimise import Local, minimum
from bayesattn.theory.potential import Whitening

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
BATCH = 256
"""Number of outputs whose pseudo-labels are found at a time."""
NARROW = 30.0
"""Median of the prior variance of an output times the precision of its pseudo-label above which these whiten latents."""

GRID_STEPS = np.geomspace(1e-7, 40.0, 64)
"""Distances of the ends of intervals from each known value of an output, in units of the spread of its prior."""

Integrand = Callable[[Float[Array, ""]], Array]
Known = Float[Array, " value"]
Latents = Float[Array, " latent"]


class LocalWhitening(NamedTuple):
    """Whitening of the latents at one U: point = centre + M^{-T} z.

    Args:
        centre: mean of the latents given the pseudo-labels.
        root: M, lower triangular; M M^T is the precision of the latents given the pseudo-labels.
    """

    centre: Latents
    root: Float[Array, "latent latent"]

    def point(self, whitened: Latents) -> Latents:
        """Latents at z."""
        return self.centre + jax.scipy.linalg.solve_triangular(self.root, whitened, trans=1, lower=True)

    def whitened(self, point: Latents) -> Latents:
        """z of latents."""
        return self.root.T @ (point - self.centre)

    def log_volume(self) -> Float[Array, ""]:
        """Log determinant of M^{-T}."""
        return -jnp.sum(jnp.log(jnp.diagonal(self.root)))


class PseudoLabels(NamedTuple):
    """Gaussian labels, one for each output, that whiten the latents at every U.

    Args:
        precision: 1 / variance of each label.
        pull: label times precision.
    """

    precision: Float[Array, " label"]
    pull: Float[Array, " label"]

    def at(self, kernels: GaussianProcess, factor: Factor) -> LocalWhitening:
        """Whitening at the U of `factor`."""
        basis = _basis(kernels, factor)
        precision = jnp.eye(basis.shape[1]) + basis.T @ (self.precision[:, None] * basis)
        root = jnp.linalg.cholesky(precision)
        return LocalWhitening(jax.scipy.linalg.cho_solve((root, True), basis.T @ self.pull), root)


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


def log_prob_of_example(likelihood: Likelihood, outputs: Float[Array, " output"], label: Array) -> Float[Array, ""]:
    """Log likelihood log p(Y_i | f_i) of one example, for outputs of shape (m,) and a label of shape () or (m,)."""
    return likelihood.log_prob(outputs.reshape(1, *label.shape), label[None])[0]


def _basis(kernels: GaussianProcess, factor: Factor) -> Float[Array, "label latent"]:
    """Outputs of each latent: f = basis @ latents."""
    return kernels.mixed(factor) if are_projection(*_sizes(kernels, factor)) else _root(kernels, factor)[0]


def whitening_at(kernels: GaussianProcess, likelihood: Likelihood, factor: Factor) -> Whitening | PseudoLabels:
    """Whitening by Laplace's method: latents that are nearly standard normal given the labels and the U of `factor`.

    If the log likelihood is concave in f, so is the log posterior of the latents, and Newton's method finds its only mode
    (Rasmussen and Williams 2006, section 3.4). Where the curvature is not positive, whitening is by the prior. For narrow
    likelihoods the result is pseudo-labels, which whiten at every U.
    """
    size = number_of_latents(*_sizes(kernels, factor))
    if size > MOST_WHITENED_LATENTS:
        return Whitening(jnp.zeros(size), jnp.ones(size))
    mode, hessian, basis = _laplace(kernels, likelihood, factor)
    pseudo, share = _pseudo_labels(kernels, likelihood, basis, mode)
    if np.median(share) > NARROW:
        return pseudo
    scale = _inverse_root(hessian)
    if not np.isfinite(scale).all():
        return Whitening(jnp.zeros(size), jnp.ones(size))
    return Whitening(mode, scale)


@jax.jit
def _inverse_root(hessian: Float[Array, "latent latent"]) -> Float[Array, "latent latent"]:
    """A with A A^T = H^{-1}; NaN if H is not positive definite."""
    return jnp.linalg.inv(jnp.linalg.cholesky(hessian)).T


@jax.jit
def _laplace(
    kernels: GaussianProcess, likelihood: Likelihood, factor: Factor
) -> tuple[Latents, Float[Array, "latent latent"], Float[Array, "label latent"]]:
    """Mode of the latents, Hessian there, and outputs of each latent."""
    basis = _basis(kernels, factor)
    labels = kernels.by_example(kernels.labels)

    def of_example(outputs, label):
        return -log_prob_of_example(likelihood, outputs, label)

    def value(latents):
        return latents @ latents / 2 - jnp.sum(likelihood.log_prob(kernels.by_example(basis @ latents), labels))

    def local(latents):
        outputs = (basis @ latents).reshape(-1, kernels.outputs)
        curvatures = jax.vmap(jax.hessian(of_example))(outputs, labels)
        by_example = basis.reshape(*outputs.shape, -1)
        curved = jnp.einsum("ecd,edn->ecn", curvatures, by_example).reshape(basis.shape)
        return Local(value(latents), jax.grad(value)(latents), jnp.eye(len(latents)) + basis.T @ curved)

    mode = minimum(value, local, jnp.zeros(basis.shape[1]), NEWTON_STEPS)
    return mode.point, mode.local.hessian, basis


@jax.jit
def _pseudo_labels(
    kernels: GaussianProcess, likelihood: Likelihood, basis: Float[Array, "label latent"], mode: Latents
) -> tuple[PseudoLabels, Float[Array, " label"]]:
    """Pseudo-labels at one U, and their precision times the prior variance of the output.

    With its pseudo-label, an output has the mean and the variance that it has with its own label, if it is independent
    of other examples, and other outputs of the example stay where they are at the mode. Unlike the curvature at the mode,
    these see kinks and further modes, among which chains shall move.
    """
    at, labels = (basis @ mode).reshape(-1, kernels.outputs), kernels.labels.reshape(-1, kernels.outputs)
    spread = jnp.sqrt(jnp.sum(basis**2, axis=1)).reshape(at.shape)

    def of_output(place):
        example, output = place
        outputs, label = at[example], kernels.by_example(kernels.labels)[example]

        def log_density(scaled):
            moved = outputs.at[output].set(spread[example, output] * scaled)
            return log_prob_of_example(likelihood, moved, label) - scaled**2 / 2

        known = jnp.stack([outputs[output], labels[example, output]]) / spread[example, output]
        mean, variance = mean_and_variance_on_grid(log_density, known)
        pseudo = jnp.stack([jnp.maximum(1 / variance - 1, 0), mean / variance])
        return jnp.where(jnp.isfinite(pseudo).all(), pseudo, 0.0)

    every = jnp.meshgrid(jnp.arange(at.shape[0]), jnp.arange(at.shape[1]), indexing="ij")
    # In batches, because each output has a grid of its own.
    share, pull = jax.lax.map(of_output, (every[0].ravel(), every[1].ravel()), batch_size=BATCH).T
    unit = jnp.where(spread > 0, spread, 1.0).ravel()  # Of outputs that are always zero, pseudo-labels say nothing.
    return PseudoLabels(share / unit**2, pull / unit), share


def log_integral_on_grid(log_integrand: Integrand, known: Known) -> Float[Array, ""]:
    """Log integral of a function by the midpoint rule on a grid that is geometric about 0 and each known value."""
    values, ends = _on_grid(log_integrand, known)
    return jax.scipy.special.logsumexp(values, b=jnp.diff(ends))


def mean_and_variance_on_grid(log_integrand: Integrand, known: Known) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Moments of the distribution with this unnormalised density, on the same grid."""
    values, ends = _on_grid(log_integrand, known)
    masses, middles = jax.nn.softmax(values + jnp.log(jnp.diff(ends))), (ends[1:] + ends[:-1]) / 2
    mean = masses @ middles
    return mean, masses @ (middles - mean) ** 2


def _on_grid(log_integrand: Integrand, known: Known) -> tuple[Float[Array, " interval"], Float[Array, " end"]]:
    """Values in the middle of intervals (-inf where NaN), and the ends of these."""
    around = np.concatenate([-GRID_STEPS[::-1], [0.0], GRID_STEPS])
    ends = jnp.sort((jnp.append(known, 0.0)[:, None] + around).ravel())
    values = jax.vmap(log_integrand)((ends[1:] + ends[:-1]) / 2)
    return jnp.where(jnp.isnan(values), -jnp.inf, values), ends
