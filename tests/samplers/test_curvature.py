"""Whitening by short chains, as of a model of many coordinates, and dense coordinates of narrow layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayesattn as ba
from bayesattn.models import collapsed
from bayesattn.samplers import curvature
from bayesattn.theory.bartlett import bartlett_factors, cholesky_factors, in_order, layer_shapes, sample_prior
from tests.conftest import relative_error
from tests.posteriors import narrow_model, tiny_model, two_sample_z_score

SETTINGS = {"sampler": "hmc", "chains": 2, "warmup": 200, "draws": 1500}
NETWORKS = {
    "two layers": ba.Architecture((3, 2), (4, 3, 3), (1.0, 0.8, 1.2, 1.1)),
    "N = 1": ba.Architecture((2, 2), (1, 1, 1), (1.0, 0.8, 1.2, 1.1)),
    "skips": ba.Architecture((2, 2), (3, 3, 3), (1.0, 0.8, 1.2, 1.1), skips=(0.7, 1.3)),
    "outputs": ba.Architecture((3, 2), (5, 3, 2), (1.0, 0.8, 1.2, 1.1), outputs=3),
}


@pytest.fixture
def few(monkeypatch):
    """Any network counts as one of many coordinates."""
    monkeypatch.setattr(collapsed, "MOST_FOR_HESSIAN", 0)
    for name, value in {"STEPS": 24, "LEAPS": 4, "BETWEEN": 3}.items():
        monkeypatch.setattr(curvature, name, value)


@pytest.fixture
def narrow():
    return tiny_model(heads=(2, 2), widths=(4, 4, 4), variances=(1.0, 0.8, 1.2, 1.1), examples=8)


@pytest.mark.parametrize("width", [4, 12])
def test_it_changes_no_answer(few, narrow, monkeypatch, width):
    """Draws in dense coordinates where a layer is narrow, and by the mean curvature where none is."""
    model = narrow.replace(width=width)
    assert collapsed.dense(collapsed.structure(model)) == (width == 4)
    by_short_chains = ba.sample(model, **SETTINGS)["posterior"]
    monkeypatch.undo()
    assert not curvature.serves(collapsed.structure(model))
    by_mode = ba.sample(model, seed=1, **SETTINGS)["posterior"]
    for name in ("order_parameter", "prediction"):
        assert two_sample_z_score(by_short_chains[name], by_mode[name]) < 4


def test_it_is_that_of_the_draws_and_the_same_each_time(few, narrow):
    """Whitened draws of the posterior have a mean square of about 1. Rows are in their own order, as those of draws."""
    wide = narrow.replace(width=12)
    at_mode = collapsed.prepare(wide)
    assert "order" not in at_mode
    found = curvature.whitened_by_short_chains(wide, at_mode)
    again = curvature.whitened_by_short_chains(wide, at_mode)
    assert found.keys() == at_mode.keys()
    for name in found:
        np.testing.assert_array_equal(found[name], again[name])
    draws = ba.sample(wide, **SETTINGS)["posterior"]["bartlett"].values
    whitened = np.linalg.solve(found["scale"], (draws.reshape(-1, draws.shape[2]) - found["centre"]).T)
    assert 0.5 < np.mean(whitened**2) < 2


@pytest.mark.parametrize("whole", [True, False])
def test_dense_coordinates_are_whitened_by_the_outer_product_of_gradients(monkeypatch, whole):
    """Of heads, whatever the place; of a layer that is not dense one by one. Gradients of a known covariance."""
    shapes = layer_shapes(NETWORKS["two layers"], dense=True)
    assert [shape.dense for shape in shapes] == [True, False, False]
    size = sum(shape.size for shape in shapes)
    if not whole:
        monkeypatch.setattr(curvature, "MOST_COORDINATES", 1)
    rng, looks = np.random.default_rng(0), 40_000
    of_heads = np.array([[4.0, 1.0, 0.5], [1.0, 2.0, 0.3], [0.5, 0.3, 1.0]])
    slopes, others = np.empty((looks, size)), np.arange(1.0, size - shapes[0].size + 1)
    places = shapes[0].places.reshape(3, -1)
    slopes[:, places] = np.einsum("hg,lgj->lhj", np.linalg.cholesky(of_heads), rng.normal(size=(looks, *places.shape)))
    slopes[:, shapes[0].size :] = np.sqrt(others) * rng.normal(size=(looks, len(others)))
    stretch = rng.uniform(1, 2, size)
    scale = np.asarray(curvature._by_heads(slopes, stretch, shapes))
    covariance = (scale @ scale.T if whole else np.diag(scale**2)) / np.outer(stretch, stretch)
    expected = np.zeros((size, size))
    inverse = np.linalg.inv(of_heads) if whole else np.diag(1 / np.diag(of_heads))
    expected[places[:, None], places[None]] = inverse[:, :, None]
    expected[range(shapes[0].size, size), range(shapes[0].size, size)] = 1 / others
    # 40,000 looks and 8 places: a relative error of 0.0025 of each number of heads, 0.007 of one alone.
    np.testing.assert_allclose(covariance, expected, atol=0.035 * expected.max())


def test_few_gradients_leave_no_direction_without_a_scale():
    """Heads that are more than all numbers that tell of them."""
    shapes = layer_shapes(ba.Architecture((30,), (2, 2), (1.0,) * 3), dense=True)
    slopes = np.random.default_rng(0).normal(size=(4, sum(shape.size for shape in shapes)))
    scale = np.asarray(curvature._by_heads(slopes, np.ones(slopes.shape[1]), shapes))
    # Of gradients of variance 1 the scale is 1 in every direction, were they many.
    assert np.all(np.linalg.svd(scale, compute_uv=False) > 0.3)
    assert np.all(np.linalg.svd(scale, compute_uv=False) < 3)


@pytest.mark.parametrize("name", NETWORKS)
def test_dense_factors_in_order_are_triangular_ones_of_the_same_order_parameters(name):
    arch = NETWORKS[name]
    shapes, triangular = layer_shapes(arch, dense=True), layer_shapes(arch)
    assert any(shape.dense for shape in shapes)
    settings = (jnp.array(arch.widths, float), jnp.array(arch.variances))
    for seed in range(3):
        point = sample_prior(jax.random.key(seed), shapes, settings[0])
        ordered = in_order(bartlett_factors(point, shapes), shapes)
        assert len(ordered) == sum(shape.size for shape in triangular)
        found = cholesky_factors(ordered, triangular, *settings, skips=arch.optional_skips)
        for factor, other in zip(
            cholesky_factors(point, shapes, *settings, skips=arch.optional_skips), found, strict=True
        ):
            assert relative_error(other @ other.T, factor @ factor.T) < 1e-12


@pytest.mark.parametrize("name", NETWORKS)
def test_the_prior_is_the_same_in_dense_coordinates(name):
    """Mean and square of entries of U, by 20,000 draws each."""
    arch = NETWORKS[name]
    settings = (jnp.array(arch.widths, float), jnp.array(arch.variances))

    @jax.jit(static_argnames="shapes")
    def moments(keys, shapes):
        def one(key):
            point = sample_prior(key, shapes, settings[0])
            factor = cholesky_factors(point, shapes, *settings, skips=arch.optional_skips)[0]
            entries = (factor @ factor.T).reshape(-1)
            # Bounded, for the heavy tails of squares have no error to speak of.
            return jnp.concatenate([jnp.log1p(jnp.abs(entries)), jnp.tanh(entries)])

        drawn = jax.lax.map(one, keys)
        return drawn.mean(0), drawn.std(0) / jnp.sqrt(len(keys))

    keys = jax.random.split(jax.random.key(0), (2, 20_000))
    (mean, error), (other, other_error) = (
        moments(key, layer_shapes(arch, dense=dense)) for key, dense in zip(keys, (True, False), strict=True)
    )
    assert np.max(np.abs(mean - other) / np.hypot(error, other_error)) < 4.5


def test_what_is_kept_of_dense_draws(few, narrow):
    """Bartlett coordinates are triangular ones of the same U, and the weights that they make have it."""
    draws = ba.sample(narrow, "hmc", chains=1, warmup=20, draws=10, keep=("order_parameter", "weights"))["posterior"]
    u, shapes = draws["order_parameter"].values[0], layer_shapes(narrow.architecture)
    settings = (jnp.array(narrow.architecture.widths, float), jnp.array(narrow.architecture.variances))
    for point, expected in zip(jnp.asarray(draws["bartlett"].values[0]), u, strict=True):
        factor = cholesky_factors(point, shapes, *settings)[0]
        assert relative_error(factor @ factor.T, expected) < 1e-10
    made = ba.collapsed.weights(ba.sample(narrow, "hmc", chains=1, warmup=20, draws=10), narrow)
    for weights in (draws, made):
        sites = {name: jnp.asarray(weights[name].values[0]) for name in ("V_0", "V_1", "V_2", "a")}
        paths = jax.vmap(ba.models.path.effective_weights)(sites)
        by_weights = np.asarray(jnp.einsum("dpn,dqn->dpq", paths, paths)) / paths.shape[-1]
        assert relative_error(by_weights, u) < 1e-8


@pytest.mark.parametrize(
    ("heads", "widths", "strong"),
    [((3,), (2, 2), 2), *(pytest.param(*case, marks=pytest.mark.heavy) for case in [
        ((2,), (1, 1), 1), ((4,), (3, 3), 3), ((2, 2), (1, 1, 1), 3), ((2, 2), (2, 2, 2), 3), ((3, 2), (2, 1, 3), 4),
    ])],
)  # fmt: skip
@pytest.mark.parametrize("temperature", [0.01, 0.3])
def test_dense_draws_of_very_narrow_networks(monkeypatch, heads, widths, strong, temperature):
    """Against those in triangular coordinates, whose rows have an order."""
    from tests.models.test_narrow import bounded

    model = narrow_model(heads, widths, strong, temperature)
    triangular = bounded(ba.sample(model, warmup=400, draws=2000, seed=1))
    monkeypatch.setattr(collapsed, "MOST_FOR_HESSIAN", 0)
    assert collapsed.dense(collapsed.structure(model))
    found = bounded(ba.sample(model, warmup=400, draws=2000, seed=2))
    assert two_sample_z_score(found, triangular) < 4
