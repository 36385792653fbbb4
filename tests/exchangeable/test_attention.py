"""Both attentions: batches, traces, and what they refuse."""

import jax
import numpy as np
import pytest

from bayesattn.questions import exchangeable as ex

RNG = np.random.default_rng(0)
KEYS, QUERIES, VALUES = ex.uniform(RNG, 6, 3), ex.uniform(RNG, 2, 3), RNG.normal(size=(6, 4))
IN_A_PLANE = KEYS - KEYS.mean(1, keepdims=True)
TWO_LATENTS = ex.FiniteLatent([0.4, 0.6], [[0.5, 0.2], [0.5, 0.8]])
ONE_LATENT = ex.FiniteLatent([1.0], [[0.5], [0.5]])


@pytest.mark.parametrize("kernel", ["linear", "exponential", "gaussian"])
def test_batches_and_heads_are_attended_one_by_one(kernel):
    keys, queries = ex.uniform(RNG, 2, 3, 6, 3), ex.uniform(RNG, 2, 3, 5, 3)
    values = RNG.normal(size=(2, 1, 6, 4))  # shared by heads
    found = ex.cme_attention(queries, keys, values, ridge=0.3, kernel=kernel, bandwidth=0.7)
    smooth = ex.softmax_attention(queries, keys, values, bandwidth=0.7)
    assert found.shape == smooth.shape == (2, 3, 5, 4)
    for batch, head in np.ndindex(2, 3):
        gram = np.asarray(ex.gram(kernel, keys[batch, head], keys[batch, head], 0.7))
        cross = np.asarray(ex.gram(kernel, keys[batch, head], queries[batch, head], 0.7))
        expected = cross.T @ np.linalg.solve(gram + 0.3 * np.eye(6), values[batch, 0])
        np.testing.assert_allclose(found[batch, head], expected, rtol=1e-9, atol=1e-11)
        weights = np.exp(queries[batch, head] @ keys[batch, head].T / 0.7)
        expected = weights / weights.sum(1, keepdims=True) @ values[batch, 0]
        np.testing.assert_allclose(smooth[batch, head], expected, rtol=1e-12)


def test_ridge_zero_is_least_squares_where_there_are_tokens_enough():
    found = ex.cme_attention(QUERIES, KEYS, VALUES, ridge=0.0, kernel="linear")
    np.testing.assert_allclose(found, QUERIES @ np.linalg.lstsq(KEYS, VALUES)[0], rtol=1e-10)


def test_attention_can_be_traced():
    slope = jax.grad(lambda ridge: ex.cme_attention(QUERIES, KEYS, VALUES, ridge=ridge).sum())(0.3)
    ahead, behind = (float(ex.cme_attention(QUERIES, KEYS, VALUES, ridge=0.3 + s).sum()) for s in (1e-5, -1e-5))
    assert slope == pytest.approx((ahead - behind) / 2e-5, rel=1e-6)
    together = jax.jit(jax.vmap(ex.softmax_attention))(QUERIES[None], KEYS[None], VALUES[None])[0]
    np.testing.assert_allclose(together, ex.softmax_attention(QUERIES, KEYS, VALUES), rtol=1e-12)


def test_small_bandwidths_do_not_overflow():
    found = ex.cme_attention(KEYS, KEYS, VALUES, ridge=1e-3, kernel="gaussian", bandwidth=1e-3)
    np.testing.assert_allclose(found, VALUES / 1.001, rtol=1e-6)
    smooth = ex.cme_attention(30 * QUERIES, 30 * KEYS, VALUES, ridge=1.0, bandwidth=100.0)
    assert np.isfinite(smooth).all()


def test_a_long_sequence_of_keys_does_not_disturb_its_neighbours():
    keys = np.stack([KEYS, 30 * KEYS])
    together = ex.cme_attention(QUERIES, keys, VALUES, ridge=0.3)
    for found, own in zip(together, keys, strict=True):
        np.testing.assert_allclose(found, ex.cme_attention(QUERIES, own, VALUES, ridge=0.3), rtol=1e-9)
    assert np.abs(together[0]).max() > 1e-3


def attend(**changes):
    return ex.cme_attention(**{"queries": QUERIES, "keys": KEYS, "values": VALUES, "ridge": 0.1} | changes)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attend(ridge=-0.1), "ridge must be a number of at least 0, got -0.1"),
        (
            lambda: attend(ridge=0.0),
            "ridge must be above 0 where there are fewer tokens than features, got 0 with 6 tokens",
        ),
        (lambda: attend(ridge=0.0, kernel="linear", keys=KEYS[:2], values=VALUES[:2]), "2 tokens and 3 features"),
        (
            lambda: attend(ridge=0.0, kernel="linear", keys=np.stack([KEYS, IN_A_PLANE])),
            "keys do not span all features",
        ),
        # Keys that are the same, which float64 cannot solve.
        (
            lambda: attend(ridge=1e-20, kernel="gaussian", keys=KEYS[[0] * 6]),
            "kernel matrix positive definite, got 1e-20",
        ),
        (lambda: attend(bandwidth=0.0), "bandwidth must be a finite number above 0, got 0"),
        (lambda: attend(kernel="cosine"), "kernel must be one of 'linear', 'exponential', 'gaussian', got 'cosine'"),
        (
            lambda: attend(kernel="gaussian", keys=2 * KEYS),
            "keys must lie on the unit sphere here, got a vector of norm 2",
        ),
        (lambda: attend(kernel="gaussian", queries=0 * QUERIES), "queries must lie on the unit sphere"),
        (lambda: attend(keys=KEYS[:0], values=VALUES[:0]), "keys must hold at least one token, got an empty sequence"),
        (lambda: attend(values=VALUES[:5]), "values must hold one value for each of 6 keys, got 5"),
        (lambda: attend(queries=QUERIES[:, :2]), "queries must have 3 features, as keys have, got 2"),
        (lambda: attend(queries=QUERIES[0]), r"queries must have shape \(.., tokens, features\), got \(3,\)"),
        (lambda: attend(queries=np.ones((2, 5, 3)), keys=np.ones((3, 6, 3))), "leading axes that fit each other"),
        (lambda: attend(keys=KEYS * np.nan), "keys must be finite"),
        (lambda: ex.softmax_attention(QUERIES, KEYS, VALUES, bandwidth=0), "bandwidth must be a finite number above 0"),
        (lambda: ex.latent_posterior(KEYS, VALUES, 0.0, 1.0), "noise must be a finite number above 0"),
        (lambda: ex.latent_posterior(KEYS, VALUES[:3], 0.5, 1.0), "values must have shape"),
        (lambda: ex.latent_posterior(KEYS[:0], VALUES[:0], 0.5, 1.0), "features must not be empty"),
        (lambda: ex.FiniteLatent([1.0], [[0.6], [0.5]]), "emission must hold probabilities that sum to 1"),
        (lambda: ex.FiniteLatent([1.5, -0.5], [[0.5, 0.5], [0.5, 0.5]]), "prior must hold probabilities"),
        (lambda: TWO_LATENTS.posterior([0, 1]), r"sequences must have shape \(sequences, tokens\), got \(2,\)"),
        (lambda: TWO_LATENTS.joint([[0, -1]]), "sequences must hold whole numbers from 0 to 1, got -1"),
        (lambda: TWO_LATENTS.log_odds([[2, 0, 0]], 0), r"counts must have shape \(sequences, 2\), got \(1, 3\)"),
        (lambda: TWO_LATENTS.log_odds([[2, -1]], 0), "counts must be whole numbers of at least 0"),
        (lambda: TWO_LATENTS.log_odds([[1, 1]], 5), "truth must be a whole number of at most 1"),
        (lambda: TWO_LATENTS.mean_error(2, -1), "truth must be a whole number of at least 0"),
        (lambda: ONE_LATENT.mean_log_odds(2, 0), "latent must have at least two values"),
        (lambda: ONE_LATENT.divergence(0), "latent must have at least two values"),
        (lambda: ONE_LATENT.chernoff(0), "latent must have at least two values"),
        (lambda: ex.least_loss(TWO_LATENTS.joint([[0], [1]]), [0, 0]), "partition must have at least two cells"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
