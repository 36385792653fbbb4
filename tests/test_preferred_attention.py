"""Evidence of queries and keys against other routes, its gradient against differences, its maximum, and comparisons."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats

import bayesattn as ba
from bayesattn.questions.preferred_attention import (
    ORDERS,
    compare_attention,
    conditional_evidence,
    evidence,
    most_probable_attention,
)
from bayesattn.theory.bartlett import layer_shapes
from bayesattn.theory.mode import find_mode
from bayesattn.theory.potential import potential
from tests.posteriors import exact_scalar_posterior
from tests.statistics import near
from tests.test_reprs import title_of

EXAMPLES, TOKENS, FEATURES, KEY_WIDTH = 10, 4, 3, 2
PADDING = np.arange(TOKENS) < np.random.default_rng(1).integers(2, TOKENS + 1, size=(EXAMPLES, 1))
NETWORKS = {
    "two layers": {"heads": (2, 2), "width": 8, "causal": True, "mask": PADDING, "readout": "mean"},
    "skips and two outputs": {"heads": (2, 1), "width": 12, "skips": (0.7, 0.0), "outputs": 2, "mask": PADDING},
    "narrow": {"heads": (2,), "width": 1},
}


def network(heads=(2,), width=8, temperature=0.2, outputs=1, examples=EXAMPLES, **others):
    rng = np.random.default_rng(0)
    shape = (examples, outputs) if outputs > 1 else examples
    return ba.AttentionModel(
        inputs=rng.normal(size=(examples, TOKENS, FEATURES)),
        labels=rng.normal(size=shape),
        key_width=KEY_WIDTH,
        heads=heads,
        widths=(width,) * (len(heads) + 1),
        variances=np.linspace(0.7, 1.4, len(heads) + 2),
        outputs=outputs,
        temperature=temperature,
        test_inputs=rng.normal(size=(2, TOKENS, FEATURES)),
        **others,
    )


def pairs(heads=(2,), seed=2, size=1.5):
    rng = np.random.default_rng(seed)
    return [tuple(size * rng.normal(size=(2, count, KEY_WIDTH, FEATURES))) for count in heads]


def case(name):
    """A network and heads of it."""
    model = network(**NETWORKS[name])
    return model, pairs(model.architecture.heads)


@partial(jax.jit, static_argnames="shapes")
def dense(point, problem, shapes):
    return [of(potential)(point, problem, shapes) for of in (lambda function: function, jax.grad, jax.hessian)]


@pytest.fixture
def by_dense_hessian(monkeypatch):
    """Laplace's method for the model with fixed attention, from the Hessian of V where the library's search ended."""
    found = []
    monkeypatch.setattr(evidence, "find_mode", lambda *arguments: found.append(find_mode(*arguments)) or found[-1])

    def by_model(model, queries_and_keys):
        given, (mode, problem) = model.given(queries_and_keys), found[0]
        problem = problem._replace(process=given.gaussian_process)
        value, slope, hessian = dense(mode.point, problem, layer_shapes(model.architecture))
        assert slope @ np.linalg.solve(hessian, slope) < 1e-8  # The mode of the model with fixed attention, too.
        return float(-value + (len(hessian) * np.log(2 * np.pi) - np.linalg.slogdet(hessian)[1]) / 2)

    return by_model


@pytest.mark.parametrize("name", NETWORKS)
def test_the_value_is_laplaces_and_the_gradient_that_of_differences(name, by_dense_hessian):
    model, heads = case(name)
    found = conditional_evidence(model, heads)
    images = 2 if name == "narrow" else 1  # of the mode, by the sign of a column of one width.
    assert found.log_evidence == pytest.approx(by_dense_hessian(model, heads) + np.log(images), abs=1e-8)
    flat, unflat = np.asarray(ravel_pytree(heads)[0]), ravel_pytree(heads)[1]
    step = 1e-4
    for order in ORDERS:
        slope = ravel_pytree(conditional_evidence(model, heads, order=order).gradient)[0]
        for seed in range(2):
            direction = np.random.default_rng(seed).normal(size=flat.shape)
            up, down = (
                conditional_evidence(model, unflat(flat + sign * step * direction), order=order).log_evidence
                for sign in (1, -1)
            )
            along = (up - down) / (2 * step)
            assert abs(slope @ direction - along) < 1e-5 * np.linalg.norm(slope) * np.linalg.norm(direction)
    assert np.linalg.norm(slope) > 0.01


@pytest.mark.parametrize("order", ORDERS)
def test_bilinear_heads_are_those_of_their_queries_and_keys(order):
    """W = K^T Q / sqrt(G), and the chain rule."""
    model, [(queries, keys)] = network(), pairs()
    bilinear = np.einsum("hgi,hgj->hij", keys, queries) / np.sqrt(KEY_WIDTH)
    found = conditional_evidence(model, [bilinear], order=order)
    of_pairs = conditional_evidence(model, [(queries, keys)], order=order)
    assert found.log_evidence == pytest.approx(of_pairs.log_evidence, abs=1e-8)
    [slope], [(of_queries, of_keys)] = found.gradient, of_pairs.gradient
    assert np.linalg.norm(slope) > 0.01
    expected = np.einsum("hij,hgi->hgj", slope, keys), np.einsum("hij,hgj->hgi", slope, queries)
    np.testing.assert_allclose(of_queries, expected[0] / np.sqrt(KEY_WIDTH), atol=1e-8)
    np.testing.assert_allclose(of_keys, expected[1] / np.sqrt(KEY_WIDTH), atol=1e-8)


def test_laplaces_error_falls_as_one_over_the_width():
    """One head, of which quadrature gives the exact evidence."""
    errors = {}
    for width in (160, 640):
        model, heads = network((1,), width), pairs((1,))
        exact = exact_scalar_posterior(model.given(heads))[2]
        errors[width] = conditional_evidence(model, heads).log_evidence - exact
        leading = conditional_evidence(model, heads, order="leading").log_evidence - exact
        assert abs(errors[width]) < 0.003
        assert abs(leading) < 0.003
    assert errors[160] / errors[640] == pytest.approx(4, rel=0.1)


def require_stated_error(model, queries_and_keys, order, most, finds, seeds=1):
    """The error of an order is at most as large as its documentation says, given that of sampling."""
    exact = [ba.theory.evidence(model.given(queries_and_keys), seed=seed) for seed in range(seeds)]
    assert all(each.reliable for each in exact)
    mean, error = np.mean([each.log_evidence for each in exact]), np.linalg.norm([each.error for each in exact]) / seeds
    found = conditional_evidence(model, queries_and_keys, order=order).log_evidence
    degrees = np.inf if exact[0].method == "importance sampling" else 14 * seeds  # Two bridges of 8 islands.
    near(found, mean, error, degrees, allowed=most, finds=finds)


def test_laplaces_error_with_two_layers_is_small():
    model, heads = case("two layers")
    require_stated_error(model.replace(width=20, temperature=0.1), heads, "laplace", 0.1, finds=0.35)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("heads", "width", "order", "most", "finds"),
    [
        ((2,), 1, "laplace", 1.4, 0.3),
        ((2, 2), 2, "laplace", 1.4, 1.0),
        ((2, 2), 8, "laplace", 0.2, 0.3),
        ((2, 2), 200, "laplace", 0.1, 0.2),
        ((2, 2), 20, "leading", 2.7, 0.3),
        ((2, 2), 200, "leading", 0.7, 0.2),
    ],
)
def test_errors_are_as_stated(heads, width, order, most, finds):
    model = network(heads, width, examples=20, temperature=0.1)
    require_stated_error(model, pairs(heads), order, most, finds, seeds=3 if width < 8 else 1)


@pytest.mark.parametrize("name", ["two layers", "skips and two outputs"])
def test_at_infinite_width_the_evidence_is_that_of_the_gaussian_process(name):
    model, heads = case(name)
    exact = ba.theory.gp_evidence(model.given(heads))
    for order in ORDERS:
        errors = [
            conditional_evidence(model.replace(width=width), heads, order=order).log_evidence - exact
            for width in (10**3, 10**4)
        ]
        assert errors[1] == pytest.approx(0, abs=0.01)
        assert errors[0] == pytest.approx(10 * errors[1], rel=0.1)


@pytest.mark.parametrize(
    ("order", "width", "most"), [("leading", 8, 1e-8), ("laplace", 10, 0.2), ("laplace", 1000, 0.002)]
)
def test_the_order_of_heads_changes_nothing(order, width, most):
    """Bartlett coordinates list paths in order, so that the evidence by Laplace's method changes within its error."""
    model, heads = case("two layers")

    def turned(layers):
        return [tuple(np.asarray(each)[::-1] for each in layer) for layer in layers]

    found, other = (
        conditional_evidence(model.replace(width=width), each, order=order) for each in (heads, turned(heads))
    )
    assert other.log_evidence == pytest.approx(found.log_evidence, abs=most)
    ours, theirs = (ravel_pytree(gradient)[0] for gradient in (other.gradient, turned(found.gradient)))
    np.testing.assert_allclose(ours, theirs, atol=most * np.max(np.abs(theirs)))


def gaussian(layers, deviations=(0.8, 1.2)):
    """Log density of queries and keys that are normal with these deviations."""
    return sum(
        stats.norm(0, deviation).logpdf(each).sum()
        for layer in layers
        for each, deviation in zip(layer, deviations, strict=True)
    )


@pytest.mark.parametrize("order", ORDERS)
def test_the_ascent_rises_to_where_the_gradient_vanishes(order):
    model = network(query_variance=0.8**2, key_variance=1.2**2)
    starts = [pairs(seed=seed, size=1.0) for seed in range(2)]
    found = most_probable_attention(model, starts, order=order, tolerance=1e-4)
    assert all(end.converged for end in found.ends)
    for start, end in zip(starts, found.ends, strict=True):
        total = end.log_evidences + end.log_priors
        assert np.all(np.diff(total) > 0)
        assert total[-1] > total[0] + 1
        at_start, at_end = (conditional_evidence(model, each, order=order) for each in (start, end.queries_and_keys))
        assert [end.log_evidences[0], end.log_evidence] == pytest.approx([at_start[0], at_end[0]], abs=1e-8)
        assert [end.log_priors[0], end.log_prior] == pytest.approx(
            [gaussian(start), gaussian(end.queries_and_keys)], rel=1e-10
        )
        slopes = [
            deviation * slope - each / deviation
            for layer, slopes in zip(end.queries_and_keys, at_end.gradient, strict=True)
            for each, slope, deviation in zip(layer, slopes, (0.8, 1.2), strict=True)
        ]
        norm = np.linalg.norm(ravel_pytree(slopes)[0])
        assert norm == pytest.approx(end.gradient_norm, rel=1e-3)
        assert norm < 1e-4
    best = max(found.ends, key=lambda end: end.log_evidence + end.log_prior)
    assert found.log_evidence == best.log_evidence
    assert found.queries_and_keys is best.queries_and_keys


def test_without_the_prior_the_evidence_alone_rises():
    model, start = network(), pairs(size=0.5)
    few = most_probable_attention(model, start, prior=False, steps=3)
    assert not few.converged
    assert len(few.log_evidences) == 4
    assert np.all(np.diff(few.log_evidences) > 0)
    assert len(few.ends) == 1
    moved = [
        ravel_pytree(most_probable_attention(model, start, steps=1, learning_rate=rate).queries_and_keys)[0]
        - ravel_pytree(start)[0]
        for rate in (0.1, 0.2)
    ]
    np.testing.assert_allclose(2 * moved[0], moved[1], atol=1e-12)
    assert most_probable_attention(model, start, steps=3).log_evidence < few.log_evidence


@pytest.fixture(scope="module")
def rivals():
    rng = np.random.default_rng(4)
    return {name: [2 * rng.normal(size=(1, FEATURES, FEATURES))] for name in ("teacher", "other")}


@pytest.fixture(scope="module")
def taught(rivals):
    """Network of one head whose labels are a linear function of the teacher's path input, plus noise."""
    model, rng = network((1,), 8, examples=30, temperature=0.01), np.random.default_rng(7)
    signal = np.asarray(model.given(rivals["teacher"]).path_inputs)[:, 0] @ rng.normal(size=FEATURES)
    return model.replace(labels=signal + 0.1 * rng.normal(size=30))


def test_the_teachers_head_wins_at_every_width(rivals, taught):
    found = compare_attention(taught, rivals, widths=(8, 100))
    assert found.widths == [8, 100]
    assert {found.best(width) for width in found.widths} == {"teacher"}
    table = found.table.set_index(["candidate", "width"])
    assert table["reliable"].all()
    assert (table["difference"]["other"] < -10).all()
    log_evidences = table["log_evidence"]
    np.testing.assert_allclose(table["difference"]["other"], log_evidences["other"] - log_evidences["teacher"])
    np.testing.assert_array_equal(table["difference"]["teacher"], 0)
    assert found.summary().count("above 'other'") == 2
    assert "within the errors" not in found.summary()


def test_labels_of_noise_alone_prefer_no_head(rivals):
    model = network((1,), 8, examples=30, temperature=1.0)
    assert compare_attention(model, rivals).table["difference"].min() > -2


def test_a_comparison_is_that_of_the_evidence_of_each(rivals):
    model = network((1,), 8, examples=30, query_variance=0.8**2, key_variance=1.2**2)
    candidates = {"pairs": pairs((1,)), "same": pairs((1,)), **rivals}
    found = compare_attention(model, candidates, seed=3)
    rows = found.table.set_index("candidate")
    evidences = {name: tuple(rows.loc[name, list(ba.theory.Evidence._fields)]) for name in candidates}
    for name, heads in candidates.items():
        assert evidences[name] == tuple(ba.theory.evidence(model.given(heads), seed=3))
    assert rows["log_prior"]["pairs"] == pytest.approx(gaussian(pairs((1,))))
    assert np.isnan(rows["log_prior"]["teacher"])
    assert evidences["pairs"] == evidences["same"]


def test_results_say_what_they_are_in_a_few_lines(rivals):
    model = network((1,), 8)
    assert title_of(conditional_evidence(model, pairs((1,)))).startswith("ConditionalEvidence: log p(Y | Q, K) = ")
    ascents = most_probable_attention(model, [pairs((1,)), pairs((1,), 3)], steps=1)
    assert title_of(ascents) == "MostProbableAttention: NOT converged"
    assert title_of(compare_attention(model, rivals)) == "AttentionComparison of 2 candidates"


def test_bad_input_is_refused_in_one_sentence(rivals):
    model, heads = network(), pairs()
    bare = jnp.asarray(heads[0][0])
    counts = model.replace(likelihood=ba.Poisson(), labels=np.arange(EXAMPLES))
    for call, message in {
        lambda: conditional_evidence(model, pairs((2, 2))): r"must have \(2,\) heads per layer, got \(2, 2\)",
        lambda: conditional_evidence(model, heads, order="next"): "order must be one of 'laplace', 'leading'",
        lambda: conditional_evidence(model.given(heads), heads): "model must be a bayesattn.AttentionModel",
        lambda: conditional_evidence(counts, heads): "likelihood must be bayesattn.Gaussian",
        lambda: conditional_evidence(
            model.replace(values="relu"), heads
        ): "needs attention on the inputs and linear values",
        lambda: jax.grad(lambda keys: conditional_evidence(model, [(bare, keys)])[0])(bare): "cannot be traced by JAX",
        lambda: most_probable_attention(model, []): "start must hold queries and keys",
        lambda: most_probable_attention(model, heads, tolerance=0): "tolerance must be a finite number above 0",
        lambda: most_probable_attention(model, [np.ones((2, FEATURES, FEATURES))]): "start must hold pairs",
        lambda: most_probable_attention(model.replace(query_variance=0), heads): "no prior variance may be 0",
        lambda: most_probable_attention(model.replace(key_width=3), heads): "key_width = 3",
        lambda: compare_attention(model, {}): "candidates must be a dict",
        lambda: compare_attention(model, {"one": heads}, widths=[]): "widths must hold at least one",
        lambda: compare_attention(network((1,), 8), rivals).best(9): "width must be one of 8, got 9",
    }.items():
        with pytest.raises(ValueError, match=message) as raised:
            call()
        assert "\n" not in str(raised.value)
