"""Labels that are classes: the categorical likelihood, and outputs as latents of the collapsed parameterisation.

Given U the outputs f are Gaussian, but with classes as labels they cannot be integrated out. They are sampled in coordinates
that are standard normal a priori whatever U is: f = A Z with A A^T = K(U), where Z is the part of V_0 that the network sees,
or of one output the columns of K's Cholesky factor, where labels are far fewer (Murray and Adams 2010).
"""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.kernels.path_inputs import Factor, OrderParameter, outputs_of
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
Outputs = Float[Array, "*labels"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Categorical:
    """Class c with probability softmax(f / T)_c; of one output +1 with probability 1 / (1 + exp(-f / T)), else -1.

    Outputs f have shape (P, m), of one output (P,), and so do labels: 1 at the class of each example and 0 elsewhere, of one
    output +1 or -1.
    """

    temperature: Any
    outputs: int = field(metadata={"static": True})

    def log_likelihood(self, outputs: Outputs, labels: Outputs) -> Float[Array, "*examples"]:
        """log p(label | f) of each example."""
        logits = outputs / self.temperature
        if self.outputs == 1:
            return jax.nn.log_sigmoid(labels * logits)
        return jnp.sum(labels * jax.nn.log_softmax(logits), axis=-1)

    def probabilities(self, outputs: Outputs) -> Outputs:
        """Of the classes; of one output of +1."""
        logits = outputs / self.temperature
        return jax.nn.sigmoid(logits) if self.outputs == 1 else jax.nn.softmax(logits)

    def sample(self, key: Key[Array, ""], outputs: Outputs) -> Outputs:
        """Labels drawn given f."""
        logits = outputs / self.temperature
        if self.outputs == 1:
            return jnp.where(jax.random.bernoulli(key, jax.nn.sigmoid(logits)), 1.0, -1.0)
        return jax.nn.one_hot(jax.random.categorical(key, logits), self.outputs, dtype=logits.dtype)


def are_projection(entries: int, labels: int, outputs: int) -> bool:
    """Whether latents are the entries of Z, so many, not coefficients of the columns of the Cholesky factor of K."""
    return outputs > 1 or entries <= FEW_LABELS * labels


def number_of_latents(entries: int, labels: int, outputs: int) -> int:
    """Of the entries of Z, or of the columns of the Cholesky factor of K."""
    return entries if are_projection(entries, labels, outputs) else labels


def _sizes(likelihood: GaussianProcess, factor: Factor) -> tuple[int, int, int]:
    """Entries of Z, labels, outputs."""
    return factor.shape[1] * likelihood.features.shape[1], likelihood.labels.size, likelihood.outputs


def outputs_given(likelihood: GaussianProcess, factor: Factor, latents: Latents) -> Outputs:
    """f on the training examples."""
    if are_projection(*_sizes(likelihood, factor)):
        found = outputs_of(likelihood.features, factor @ _projection(latents, factor), likelihood.outputs)
    else:
        found = _root(likelihood, factor)[0] @ latents
    return likelihood.by_example(found)


def projection_given(
    key: Key[Array, ""], likelihood: GaussianProcess, factor: Factor, latents: Latents
) -> Float[Array, "column feature"]:
    """Z, or an exact draw of it given the outputs on the training examples (Matheron's rule)."""
    if are_projection(*_sizes(likelihood, factor)):
        return _projection(latents, factor)
    cholesky, jitter = _root(likelihood, factor)
    return likelihood.at(jitter).with_labels(cholesky @ latents).sample_projection(key, factor)


def _projection(latents: Latents, factor: Factor) -> Float[Array, "column feature"]:
    return latents.reshape(-1, factor.shape[1]).T


def _root(likelihood: GaussianProcess, factor: Factor) -> tuple[Float[Array, "label label"], Float[Array, ""]]:
    """Cholesky factor of K, with a little on its diagonal, and how much that is."""
    kernel = likelihood.kernel(factor)
    jitter = _jitter(kernel)
    return jnp.linalg.cholesky(kernel + jitter * jnp.eye(len(kernel))), jitter


def _jitter(kernel: Float[Array, "label label"]) -> Float[Array, ""]:
    # The least of it is for inputs that are all zero.
    return JITTER * jnp.mean(jnp.diag(kernel)) + LEAST_JITTER


def leave_one_out(
    likelihood: GaussianProcess,
    law: Categorical,
    order_parameter: OrderParameter,
    outputs: Outputs,
    labels: Outputs,
    nodes: Float[Array, "node output"],
) -> Float[Array, " example"]:
    """log p(Y_i | f of all other examples, U) of each example: its own outputs are integrated over.

    Given those of the others f_i is Gaussian, of precision B = (K^{-1})_ii and mean f_i - B^{-1} (K^{-1} f)_i; of several
    outputs these are a block. With f_i = mean + L z, L L^T = B^{-1}, and d the point where p(Y_i | z) p(z) is greatest,

        p(Y_i | ..) = exp(-|d|^2 / 2) E[p(Y_i | d + z) exp(-d . z)],  z standard normal,

    an average over nodes. As log p(Y_i | z) is concave with gradient d at d, no term exceeds p(Y_i | d).

    Args:
        likelihood: of the kernels.
        law: of the labels given f.
        order_parameter: U.
        outputs: f on the training examples, shape (P,) or (P, m).
        labels: of the same shape.
        nodes: standard normal points that stand for the law, shape (S, m).
    """
    kernel = likelihood.kernel_of(order_parameter)
    jittered = kernel + _jitter(kernel) * jnp.eye(len(kernel))
    root = jnp.linalg.cholesky(jittered)
    inverse = jax.scipy.linalg.solve_triangular(root, jnp.eye(len(root)), lower=True)
    columns = inverse.reshape(len(root), -1, law.outputs)
    blocks = jnp.einsum("xec,xed->ecd", columns, columns)
    pulled = jax.scipy.linalg.cho_solve((root, True), outputs.reshape(-1)).reshape(-1, law.outputs)

    def one(block, pull, at, label):
        lower = jnp.linalg.cholesky(block)
        spread = jax.scipy.linalg.solve_triangular(lower, jnp.eye(len(lower)), lower=True).T
        mean = at.reshape(-1) - spread @ (spread.T @ pull)

        def log_likelihood(point):
            return law.log_likelihood((mean + spread @ point).reshape(at.shape), label)

        def value(point):
            return point @ point / 2 - log_likelihood(point)

        def local(point):
            return Local(value(point), jax.grad(value)(point), jax.hessian(value)(point))

        shift = minimum(value, local, jnp.zeros(len(lower)), LEAVE_ONE_OUT_STEPS, 1e-3).point
        terms = jax.vmap(lambda node: log_likelihood(shift + node) - shift @ node)(nodes)
        return jax.scipy.special.logsumexp(terms) - jnp.log(len(nodes)) - shift @ shift / 2

    return jax.vmap(one)(blocks, pulled, outputs, labels)


def whitening_at(likelihood: GaussianProcess, law: Categorical, factor: Factor) -> Whitening:
    """Coordinates of the latents that are nearly standard normal given the labels and some U: Laplace's at their mode.

    The log posterior of latents is concave, so that Newton's method finds its only mode (Rasmussen and Williams 2006,
    section 3.4).
    """
    size = number_of_latents(*_sizes(likelihood, factor))
    if size > MOST_LATENTS:
        return Whitening(jnp.zeros(size), jnp.ones(size))
    mode, hessian = _laplace(likelihood, law, factor)
    return Whitening(mode, jnp.linalg.inv(jnp.linalg.cholesky(hessian)).T)


@jax.jit
def _laplace(
    likelihood: GaussianProcess, law: Categorical, factor: Factor
) -> tuple[Latents, Float[Array, "latent latent"]]:
    basis = likelihood.mixed(factor) if are_projection(*_sizes(likelihood, factor)) else _root(likelihood, factor)[0]
    labels = likelihood.by_example(likelihood.labels)

    def value(latents):
        return latents @ latents / 2 - jnp.sum(law.log_likelihood(likelihood.by_example(basis @ latents), labels))

    def local(latents):
        # (examples, m), also of one output
        chances = law.probabilities(likelihood.by_example(basis @ latents)).reshape(len(likelihood.features), -1)
        if law.outputs == 1:
            weights = (chances * (1 - chances))[..., None]
        else:
            weights = jax.vmap(jnp.diag)(chances) - chances[:, :, None] * chances[:, None, :]
        grouped = basis.reshape(len(chances), law.outputs, -1)
        curved = jnp.einsum("ecd,edn->ecn", weights / law.temperature**2, grouped).reshape(basis.shape)
        return Local(value(latents), jax.grad(value)(latents), jnp.eye(len(latents)) + basis.T @ curved)

    found = minimum(value, local, jnp.zeros(basis.shape[1]), NEWTON_STEPS)
    return found.point, found.local.hessian
