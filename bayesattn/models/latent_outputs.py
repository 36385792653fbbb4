"""Outputs as latents of the collapsed parameterisation, where the likelihood is not Gaussian.

Given U the outputs f are Gaussian, but with another likelihood they cannot be integrated out. They are sampled in
coordinates that are standard normal a priori whatever U is: f = A Z with A A^T = K(U), where Z is the part of V_0 that the
network sees, or for one output the columns of K's Cholesky factor, where labels are far fewer (Murray and Adams 2010).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.kernels.path_inputs import Factor, OrderParameter, outputs_of
from bayesattn.likelihoods import Labels, Likelihood, Outputs
from bayesattn.theory.minimise import Local, minimum
from bayesattn.theory.whitening import Whitening

FEW_LABELS = 4
"""Times that Z has as many entries as there are labels before K is decomposed; with several outputs it never is.

Where K is nearly singular at some U, as in narrow networks of several outputs, its Cholesky factor turns fast with U: of two
neurons and three outputs a draw took 370 gradients, and 15 by Z. One output, 100 labels and 924 entries took 63 at T = 0.05
both ways, those of the factor half of the time.
"""
JITTER = 1e-10
"""Variance added to each output where K is decomposed, in units of the mean of its diagonal: K may be singular."""
LEAST_JITTER = 1e-150
MOST_LATENTS = 2000
"""For whitening by their curvature: beyond it they have the prior's scale."""
NEWTON_STEPS = 50
LEAVE_ONE_OUT_STEPS = 20
"""Of Newton's method to where an example's outputs are likeliest; an average over points near it is right as well."""

Latents = Float[Array, " latent"]


def are_projection(entries: int, labels: int, outputs: int) -> bool:
    """Whether latents are the entries of Z, so many, not coefficients of the columns of the Cholesky factor of K."""
    return outputs > 1 or entries <= FEW_LABELS * labels


def number_of_latents(entries: int, labels: int, outputs: int) -> int:
    """Of the entries of Z, or of the columns of the Cholesky factor of K."""
    return entries if are_projection(entries, labels, outputs) else labels


def _sizes(kernels: GaussianProcess, factor: Factor) -> tuple[int, int, int]:
    """Entries of Z, labels, outputs."""
    return factor.shape[1] * kernels.features.shape[1], kernels.labels.size, kernels.outputs


def outputs_given(kernels: GaussianProcess, factor: Factor, latents: Latents) -> Outputs:
    """f on the training examples."""
    if are_projection(*_sizes(kernels, factor)):
        found = outputs_of(kernels.features, factor @ _projection(latents, factor), kernels.outputs)
    else:
        found = _root(kernels, factor)[0] @ latents
    return kernels.by_example(found)


def projection_given(
    key: Key[Array, ""], kernels: GaussianProcess, factor: Factor, latents: Latents
) -> Float[Array, "column feature"]:
    """Z, or an exact draw of it given the outputs on the training examples (Matheron's rule)."""
    if are_projection(*_sizes(kernels, factor)):
        return _projection(latents, factor)
    cholesky, jitter = _root(kernels, factor)
    return kernels.at(jitter).with_labels(cholesky @ latents).sample_projection(key, factor)


def _projection(latents: Latents, factor: Factor) -> Float[Array, "column feature"]:
    return latents.reshape(-1, factor.shape[1]).T


def _root(kernels: GaussianProcess, factor: Factor) -> tuple[Float[Array, "label label"], Float[Array, ""]]:
    """Cholesky factor of K, with a little on its diagonal, and how much that is."""
    kernel = kernels.kernel(factor)
    jitter = _jitter(kernel)
    return jnp.linalg.cholesky(kernel + jitter * jnp.eye(len(kernel))), jitter


def _jitter(kernel: Float[Array, "label label"]) -> Float[Array, ""]:
    # The least of it is for inputs that are all zero.
    return JITTER * jnp.mean(jnp.diag(kernel)) + LEAST_JITTER


def leave_one_out(
    kernels: GaussianProcess,
    likelihood: Likelihood,
    order_parameter: OrderParameter,
    outputs: Outputs,
    labels: Labels,
    nodes: Float[Array, "node output"],
) -> Float[Array, " example"]:
    """log p(Y_i | f of all other examples, U) of each example: its own outputs are integrated over.

    Given those of the others f_i is Gaussian, of precision B = (K^{-1})_ii and mean f_i - B^{-1} (K^{-1} f)_i; with several
    outputs these are a block. With f_i = mean + L z, L L^T = B^{-1}, and d the point where p(Y_i | z) p(z) is greatest,

        p(Y_i | ..) = exp(-|d|^2 / 2) E[p(Y_i | d + z) exp(-d . z)],  z standard normal,

    an average over nodes. Where log p(Y_i | z) is concave, with gradient d at d, no term exceeds p(Y_i | d).

    Args:
        kernels: K(U).
        likelihood: of the labels given f.
        order_parameter: U.
        outputs: f on the training examples, shape (P,) or (P, m).
        labels: of the same shape.
        nodes: standard normal points over which the expectation is taken, shape (S, m).
    """
    kernel = kernels.kernel_of(order_parameter)
    jittered = kernel + _jitter(kernel) * jnp.eye(len(kernel))
    root = jnp.linalg.cholesky(jittered)
    inverse = jax.scipy.linalg.solve_triangular(root, jnp.eye(len(root)), lower=True)
    columns = inverse.reshape(len(root), -1, kernels.outputs)
    blocks = jnp.einsum("xec,xed->ecd", columns, columns)
    pulled = jax.scipy.linalg.cho_solve((root, True), outputs.reshape(-1)).reshape(-1, kernels.outputs)

    def one(block, pull, at, label):
        lower = jnp.linalg.cholesky(block)
        spread = jax.scipy.linalg.solve_triangular(lower, jnp.eye(len(lower)), lower=True).T
        mean = at.reshape(-1) - spread @ (spread.T @ pull)

        def log_likelihood(point):
            moved = (mean + spread @ point).reshape(1, *at.shape)
            return likelihood.log_prob(moved, label[None])[0]

        def value(point):
            return point @ point / 2 - log_likelihood(point)

        def local(point):
            return Local(value(point), jax.grad(value)(point), jax.hessian(value)(point))

        shift = minimum(value, local, jnp.zeros(len(lower)), LEAVE_ONE_OUT_STEPS, 1e-3).point
        terms = jax.vmap(lambda node: log_likelihood(shift + node) - shift @ node)(nodes)
        return jax.scipy.special.logsumexp(terms) - jnp.log(len(nodes)) - shift @ shift / 2

    return jax.vmap(one)(blocks, pulled, outputs, labels)


def whitening_at(kernels: GaussianProcess, likelihood: Likelihood, factor: Factor) -> Whitening:
    """Coordinates of the latents that are nearly standard normal given the labels and some U: Laplace's at their mode.

    Where the log likelihood is concave in f, so is the log posterior of latents, and Newton's method finds its only mode
    (Rasmussen and Williams 2006, section 3.4).
    """
    size = number_of_latents(*_sizes(kernels, factor))
    if size > MOST_LATENTS:
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
        """-log p(Y_i | f_i), of outputs of shape (m,)."""
        return -likelihood.log_prob(outputs.reshape(1, *label.shape), label[None])[0]

    def value(latents):
        return latents @ latents / 2 - jnp.sum(likelihood.log_prob(kernels.by_example(basis @ latents), labels))

    def local(latents):
        outputs = (basis @ latents).reshape(-1, kernels.outputs)
        curvatures = jax.vmap(jax.hessian(of_example))(outputs, labels)
        by_example = basis.reshape(*outputs.shape, -1)
        curved = jnp.einsum("ecd,edn->ecn", curvatures, by_example).reshape(basis.shape)
        return Local(value(latents), jax.grad(value)(latents), jnp.eye(len(latents)) + basis.T @ curved)

    found = minimum(value, local, jnp.zeros(basis.shape[1]), NEWTON_STEPS)
    return found.point, found.local.hessian
