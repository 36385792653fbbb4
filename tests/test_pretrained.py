"""Attention read from pretrained transformers: a cache of arrays here, PyTorch models where it is installed."""

import numpy as np
import pytest

import bayesattn as ba
from bayesattn import attention
from bayesattn.errors import BayesattnError


def cache_of(seed=0, examples=5, heads=3, tokens=4, features=6, layers=3):
    """Patterns and residual streams as a TransformerLens cache has them, and the mask of the sequences."""
    rng = np.random.default_rng(seed)
    mask = np.arange(tokens) < rng.integers(2, tokens + 1, size=(examples, 1))
    cache, stream = {}, rng.normal(size=(examples, tokens, features))
    for layer in range(layers):
        weights = rng.uniform(size=(examples, heads, tokens, tokens)) * mask[:, None, None]
        cache["pattern", layer] = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
        cache["resid_pre", layer] = stream
        stream = 0.7 * stream + 0.1 * rng.normal(size=stream.shape)
        cache["resid_post", layer] = stream
    return cache, mask


def test_a_cache_gives_path_inputs_of_each_sequence_by_itself():
    cache, mask = cache_of()
    found = attention.from_cache(cache, layers=(1, 2), heads=[[0, 2], [1]], mask=mask)
    inputs, matrices, real = found
    np.testing.assert_allclose(inputs[mask], cache["resid_pre", 1][mask], rtol=1e-6)
    assert [matrix.shape for matrix in matrices] == [(5, 2, 4, 4), (5, 1, 4, 4)]
    assert np.array_equal(real, mask)
    assert found.head_names == (("1.0", "1.2"), ("2.1",))
    xi = found.path_inputs("mean", skips=True)
    assert xi.shape[1] == ba.Architecture((2, 1), (5, 5, 5), (1.0,) * 4, skips=found.skips).paths
    for example, length in enumerate(mask.sum(1)):
        tokens = cache["resid_pre", 1][example, :length]
        own = [cache["pattern", layer][example, :, :length, :length].astype(float) for layer in (1, 2)]
        first, second = [np.eye(length), *own[0][[0, 2]]], [np.eye(length), own[1][1]]
        expected = [(above @ below @ tokens).mean(0) for below in first for above in second]
        np.testing.assert_allclose(xi[example], expected, atol=1e-6)
    for layer, rho in zip((1, 2), found.skips, strict=True):
        before, after = (cache[name, layer][mask] for name in ("resid_pre", "resid_post"))
        assert rho == pytest.approx(np.sum(before * after) / np.sum(before**2))
    assert "2 of layer 1, 1 of layer 2" in repr(found)
    with pytest.warns(UserWarning, match="skips were not given"):
        without = found.path_inputs()
    np.testing.assert_array_equal(without, found.path_inputs(skips=False))
    # Only skips need what comes after a layer.
    before = {key: each for key, each in cache.items() if key[0] != "resid_post"}
    unknown = attention.from_cache(before, layers=(1, 2), heads=[[0, 2], [1]], mask=mask)
    np.testing.assert_array_equal(unknown.path_inputs("mean", skips=True), xi)
    with pytest.raises(
        BayesattnError, match="skips need the hidden states after each layer, got a cache without resid"
    ):
        _ = unknown.skips
    assert "not known" in repr(unknown)
    hooks = {
        (f"blocks.{layer}.{'attn.' * (name == 'pattern')}hook_{name}"): each for (name, layer), each in cache.items()
    }
    plain = attention.from_cache(hooks, layers=(1, 2), heads=[[0, 2], [1]], mask=mask)
    np.testing.assert_array_equal(plain.path_inputs("mean", skips=True), xi)


def test_padding_without_a_mask_is_said():
    cache, mask = cache_of()
    padded = (~mask.all(1)).sum()
    with pytest.warns(UserWarning, match=f"mask is not given, though {padded} of 5 sequences look padded"):
        attention.from_cache(cache, layers=(1,))  # No token attends to padding.
    patterns = {("pattern", layer): np.full((5, 3, 4, 4), 0.25) for layer in range(3)}
    attention.from_cache(cache | patterns, layers=(1,))
    embedded = np.random.default_rng(1).normal(size=(5, 4, 6))
    embedded[:3, 2:] = 1.0
    for key in ("embed", ("resid_pre", 0)):
        with pytest.warns(UserWarning, match="mask is not given, though 3 of 5 sequences look padded"):
            attention.from_cache(cache | patterns | {key: embedded}, layers=(1,))
    attention.from_cache(cache | patterns | {"embed": embedded}, layers=(1,), mask=np.ones((5, 4), bool))


def test_a_missing_share_and_scores_are_told_from_rounding():
    cache, mask = cache_of()
    sinks = cache | {("pattern", 1): cache["pattern", 1] * np.float32(0.99)}
    with pytest.raises(BayesattnError, match=r"off by 0.01 \(a share is missing, as that of attention sinks\)"):
        attention.from_cache(sinks, layers=(1,), mask=mask)
    with pytest.warns(UserWarning, match="as small as 0.99 and never above 1: a share, as that of attention sinks"):
        attention.from_cache(sinks, layers=(1,), mask=mask, renormalise=0.02)
    rounded = cache["pattern", 1] * np.linspace(0.99, 1.01, 4, dtype=np.float32)[:, None]
    with pytest.raises(BayesattnError, match=r"off by 0.01 \(half precision explains this\)"):
        attention.from_cache(cache | {("pattern", 1): rounded}, layers=(1,), mask=mask)
    scores = cache["pattern", 1] - mask[:, None, None] * np.float32(0.5)
    with pytest.raises(BayesattnError, match=r"\(scores before the softmax are not attention\)"):
        attention.from_cache(cache | {("pattern", 1): scores}, layers=(1,), mask=mask)
    with pytest.raises(BayesattnError, match=r"a share is missing, as that of attention sinks; renormalise=0.02"):
        attention.paths_from_matrices(cache["resid_pre", 1], [sinks["pattern", 1]], "mean", mask)


def test_a_projection_keeps_principal_components_of_real_tokens():
    cache, mask = cache_of(examples=40)
    found = attention.from_cache(cache, layers=(1,), mask=mask)
    projection = attention.principal_components(found.inputs, 2, mask)
    tokens = found.inputs[mask].astype(float)
    values = np.linalg.eigvalsh(np.cov(tokens.T, bias=True))[::-1]
    assert projection.lost == pytest.approx(1 - values[:2].sum() / values.sum(), abs=1e-6)
    projected = found.projected(projection)
    assert projected.inputs.shape == (40, 4, 2)
    kept = projected.inputs[mask].astype(float)
    assert np.mean(kept**2) == pytest.approx(1, rel=1e-5)
    np.testing.assert_allclose(np.cov(kept.T, bias=True), np.diag(values[:2]) / projection.scale**2, atol=1e-5)
    whole = attention.principal_components(found.inputs, 6, mask)
    distances = np.linalg.norm(whole(found.inputs)[0, 0] - whole(found.inputs)[1, 0]) * whole.scale
    assert distances == pytest.approx(np.linalg.norm(found.inputs[0, 0] - found.inputs[1, 0]), rel=1e-5)
    # Attention sums to 1: projected path inputs are path inputs of projected tokens.
    np.testing.assert_allclose(
        projected.path_inputs(),
        (found.path_inputs() - projection.mean) @ projection.components.T / projection.scale,
        atol=1e-6,
    )


def with_nan(array):
    return np.where(np.arange(array.size).reshape(array.shape) == 0, np.nan, array)


BAD = {
    r"cache must hold \('pattern', 3\), or 'blocks.3.attn.hook_pattern', got .*\('pattern', 2\)": {"layers": (3,)},
    "layers must be ascending numbers of layers, from 0, got": {"layers": (2, 1)},
    r"heads of layer 1 must be different numbers below 3, at least one, got \[3\]": {"heads": [3]},
    "heads must be one list of heads, or a list for each of 1 layers": {"heads": [[0], [1]]},
    "mask must leave each sequence a token": {"mask": np.zeros((5, 4), bool)},
    "must not attend to padding": {"mask": np.arange(4) < np.ones((5, 1))},
    "attention of each token must sum to 1 within renormalise = 1e-07": {"renormalise": 1e-7, "pattern": np.float16},
    "renormalise must be a number of at least 0 and below 1, got -1": {"renormalise": -1},
    "the axes of queries and keys are swapped": {
        "mask": np.ones((5, 4), bool),
        "pattern": lambda array: np.swapaxes(array, 2, 3),
    },
    "hidden states must be finite, got nan at index": {"resid_pre": with_nan},
    "hidden states must be finite, got nan at index .*1 such": {"resid_post": with_nan},
    r"attention must have shape \(5, 3, 4, 4\), got \(1, 3, 4, 4\)": {"pattern": lambda array: array[:1]},
    r"hidden states must have shape \(5, 4, 6\), got \(1, 4, 6\)": {"resid_post": lambda array: array[:1]},
    r"cache\['pattern', 1\] must have shape \(examples, heads, tokens": {"pattern": lambda array: array[0]},
}
"""Arguments, and arrays of layer 1 as functions of what they were."""


def test_what_is_no_cache_is_refused():
    with pytest.raises(BayesattnError, match=r"cache must hold \('pattern', 1\), .* got None"):
        attention.from_cache(None, layers=(1,))


@pytest.mark.parametrize("message", BAD)
def test_what_cannot_be_read_is_refused_in_one_sentence(message):
    cache, mask = cache_of()
    given = {"layers": (1,), "mask": mask} | BAD[message]
    for name in given.keys() & {"pattern", "resid_pre", "resid_post"}:
        cache[name, 1] = given.pop(name)(cache[name, 1])
    with pytest.raises(BayesattnError, match=message):
        attention.from_cache(cache, **given)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: attention.principal_components(x, 7), "features must be a whole number of at most 6, got 7"),
        (
            lambda x: attention.principal_components(0 * x + 0.1, 2),
            "inputs must hold tokens that differ, got equal ones",
        ),
        (lambda x: attention.principal_components(x, 2)(x[..., :4]), r"inputs must have shape \(examples, tokens, 6\)"),
    ],
)
def test_components_must_be_there(call, message):
    with pytest.raises(BayesattnError, match=message):
        call(cache_of()[0]["resid_pre", 0])
