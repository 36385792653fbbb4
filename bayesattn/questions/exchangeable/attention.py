"""Two attentions over tokens: conditional mean embedding and softmax (EXCHANGEABILITY section 2)."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Float

from bayesattn._util.checks import Checked, not_negative, positive
from bayesattn._util.settings import with_own_settings
from bayesattn.errors import BayesattnError
from bayesattn.questions.exchangeable.kernels import checked_batch, checked_kernel, gram, similarity


@with_own_settings
def cme_attention(
    queries: Checked,
    keys: Checked,
    values: Checked,
    *,
    ridge: float,
    kernel: str = "exponential",
    bandwidth: float = 1.0,
) -> Float[Array, "... query value"]:
    """Conditional mean embedding V^T (G + lambda I)^{-1} k(q): with lambda = sigma^2 / tau^2 the posterior mean of z phi(q).

    >>> keys, values = np.eye(2), np.array([[1.0], [3.0]])
    >>> jnp.round(cme_attention(keys, keys, values, ridge=1.0, kernel="linear"), 6).tolist()
    [[0.5], [1.5]]

    Args:
        queries: q of shape (.., m, d); any leading axes, such as batch and head, that fit those of the keys.
        keys: k of shape (.., n, d).
        values: v of shape (.., n, d_v).
        ridge: lambda, at least 0; it may be 0 only for the linear kernel, with no fewer tokens than features.
        kernel: "linear", "exponential" or "gaussian" (on the unit sphere).
        bandwidth: gamma of the kernel; the linear kernel has none.

    Raises:
        ValueError: shapes that do not fit, no tokens, entries that are not finite, an unknown kernel, a ridge below 0 or
            too small for these keys, a bandwidth that is not above 0, vectors off the sphere if the kernel requires it.
    """
    queries, keys, values = _checked(queries=queries, keys=keys, values=values)
    checked_kernel(kernel, bandwidth, queries=queries, keys=keys)
    if not isinstance(ridge, Tracer):
        not_negative("ridge", ridge)
        tokens, features = keys.shape[-2], keys.shape[-1] if kernel == "linear" else np.inf
        if ridge == 0 and tokens < features:
            raise BayesattnError(
                f"ridge must be above 0 where there are fewer tokens than features, got 0 with {tokens} tokens and"
                f" {features:g} features of the {kernel} kernel"
            )
        if ridge == 0 and not isinstance(keys, Tracer) and np.any(np.linalg.matrix_rank(np.asarray(keys)) < features):
            raise BayesattnError("ridge must be above 0 where keys do not span all features, got 0")
    outputs = _cme(queries, keys, values, ridge, bandwidth, kernel)
    if not isinstance(outputs, Tracer) and not np.isfinite(outputs).all():
        raise BayesattnError(
            f"ridge must make the kernel matrix positive definite, got {ridge:g}, which is too small in float64 for"
            " keys this similar; raise the ridge or the bandwidth"
        )
    return outputs


@with_own_settings
def softmax_attention(
    queries: Checked, keys: Checked, values: Checked, *, bandwidth: float = 1.0
) -> Float[Array, "... query value"]:
    """Softmax attention V^T softmax(K q / gamma), a Nadaraya-Watson estimate.

    On the unit sphere, the exponential and the Gaussian kernel of bandwidth gamma give the same weights. Arguments and
    errors as for `cme_attention`.
    """
    queries, keys, values = _checked(queries=queries, keys=keys, values=values)
    checked_kernel("exponential", bandwidth)
    return _softmax(queries, keys, values, bandwidth)


@with_own_settings
def cme_covariance(
    queries: Checked, keys: Checked, *, noise: float, prior: float, kernel: str = "exponential", bandwidth: float = 1.0
) -> Float[Array, "query query"]:
    """Posterior covariance of z phi(q) and z phi(q') per value coordinate, from CME attention whose values are kernels.

    With values K(k_i, q'), attention at lambda = sigma^2 / tau^2 gives k(q')^T (G + lambda I)^{-1} k(q), and tau^2
    (K(q, q') - k(q')^T (G + lambda I)^{-1} k(q)) = sigma^2 phi(q)^T M phi(q') (derived here).

    >>> jnp.round(cme_covariance(np.eye(2), np.eye(2), noise=1.0, prior=1.0, kernel="linear"), 6).tolist()
    [[0.5, 0.0], [0.0, 0.5]]

    Args:
        queries: q of shape (m, d).
        keys: k of shape (n, d).
        noise: sigma.
        prior: tau.
        kernel: as for `cme_attention`.
        bandwidth: gamma.
    """
    noise, prior = positive("noise", noise), positive("prior", prior)
    settings = {"kernel": kernel, "bandwidth": bandwidth}
    values = gram(kernel, keys, queries, bandwidth)
    attended = cme_attention(queries, keys, values, ridge=(noise / prior) ** 2, **settings)
    return prior**2 * (gram(kernel, queries, queries, bandwidth) - attended)


@with_own_settings
def same_ridge(ridge: float, bandwidth: float) -> float:
    """lambda e^(1/gamma), the ridge of the exponential kernel that matches lambda of the Gaussian one on the unit sphere."""
    return not_negative("ridge", ridge) * float(np.exp(1 / positive("bandwidth", bandwidth)))


def _checked(**batches: Checked) -> tuple[Array, Array, Array]:
    """Queries, keys and values; only the shapes of arrays that JAX traces are checked."""
    arrays = [checked_batch(name, value) for name, value in batches.items()]
    queries, keys, values = arrays
    if values.shape[-2] != keys.shape[-2]:
        raise BayesattnError(f"values must hold one value for each of {keys.shape[-2]} keys, got {values.shape[-2]}")
    if queries.shape[-1] != keys.shape[-1]:
        raise BayesattnError(f"queries must have {keys.shape[-1]} features, as keys have, got {queries.shape[-1]}")
    try:
        np.broadcast_shapes(*(array.shape[:-2] for array in arrays))
    except ValueError:
        leading = ", ".join(f"{name} {array.shape[:-2]}" for name, array in zip(batches, arrays, strict=True))
        raise BayesattnError(
            f"queries, keys and values must have leading axes that fit each other, got {leading}"
        ) from None
    return queries, keys, values


@partial(jax.jit, static_argnames="kernel")
def _cme(queries, keys, values, ridge, bandwidth, kernel: str):
    batch = np.broadcast_shapes(queries.shape[:-2], keys.shape[:-2], values.shape[:-2])
    queries, keys, values = (jnp.broadcast_to(array, (*batch, *array.shape[-2:])) for array in (queries, keys, values))
    if kernel == "linear":
        # In feature space, whose size does not depend on the number of tokens, and which allows a ridge of zero.
        precision = jnp.einsum("...nd,...ne->...de", keys, keys) + ridge * jnp.eye(keys.shape[-1])
        return queries @ _solve(precision, jnp.einsum("...nd,...nv->...dv", keys, values))
    # Divide kernel and ridge of each sequence by the kernel's largest entry, which may overflow.
    among, across = similarity(kernel, keys, keys, bandwidth), similarity(kernel, queries, keys, bandwidth)
    largest = jnp.max(among, axis=(-2, -1), keepdims=True)
    regularised = jnp.exp(among - largest) + ridge * jnp.exp(-largest) * jnp.eye(keys.shape[-2])
    return jnp.exp(across - largest) @ _solve(regularised, values)


def _solve(matrix, right):
    return cho_solve(cho_factor(matrix, lower=True), right)


@jax.jit
def _softmax(queries, keys, values, bandwidth):
    weights = jax.nn.softmax(jnp.einsum("...md,...nd->...mn", queries, keys) / bandwidth, axis=-1)
    return weights @ values
