"""Which heads and paths matter over draws: against scores counted by hand, and the saddle point solved again."""

import dataclasses
import re
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

import bayesattn as ba
from bayesattn.errors import BayesattnError
from bayesattn.jobs.plots import heads_figure
from bayesattn.jobs.plots.questions import layer_map
from bayesattn.jobs.tables import correlations_table
from bayesattn.questions.heads.losses import Losses
from bayesattn.questions.heads.path_combination import combining_width
from bayesattn.questions.heads.scores import PRIOR_NETWORKS
from bayesattn.questions.heads.units import exchangeability_note, units_of
from tests.conftest import model_of
from tests.heads.networks import drawn
from tests.posteriors import tiny_model
from tests.statistics import near
from tests.zoo import model as zoo_model

ARCH = ba.Architecture((2, 1), (8, 8, 8), (1.0,) * 4, skips=(0.0, 0.5))
"""Paths: 1 -> skip, 1 -> 1, 2 -> skip, 2 -> 1."""


@pytest.fixture(scope="module")
def model():
    rng, names = np.random.default_rng(2), [["previous", "random"], ["uniform"]]
    return model_of(rng.normal(size=(12, 4, 3)), np.sign(rng.normal(size=12)), ARCH, 0.1, head_names=names)


@pytest.fixture(scope="module")
def draws():
    factors = np.random.default_rng(3).normal(size=(2, 50, 4, 5)) * np.array([3, 2, 1, 0.5])[:, None]
    return factors @ np.swapaxes(factors, -1, -2)


def test_scores_of_every_draw_are_counted_by_hand(model, draws):
    uses = {(1, "previous"): [0, 1], (1, "random"): [2, 3], (2, "uniform"): [1, 3]}  # The skip is no head.
    scores = np.empty((2, 50, 3))
    for chain, draw in np.ndindex(2, 50):
        size = np.abs(draws[chain, draw])
        counted = {
            name: sum(size[p, q] for p in range(4) for q in range(4) if p in of_head or q in of_head)
            for name, of_head in (uses | {"skip": [0, 2]}).items()
        }
        scores[chain, draw] = [counted[name] / max(counted.values()) for name in uses]
    found = ba.heads(drawn(draws), model=model)
    assert found.names == [*uses]
    flat = scores.reshape(-1, 3)
    ends = np.quantile(flat, [0.03, 0.97], axis=0)
    expected = [flat.mean(0), flat.std(0, ddof=1), *ends]
    np.testing.assert_allclose([found.scores, found.sd, found.lower, found.upper], expected, rtol=1e-12)
    least = np.bincount(flat.argmin(-1), minlength=3) / 100
    np.testing.assert_allclose(found.probability_least, least, atol=1e-12)
    table = found.summary()
    assert table.loc[(2, "uniform"), "least"] == least[2]
    np.testing.assert_allclose(table["greatest"], np.bincount(flat.argmax(-1), minlength=3) / 100)
    assert 0 < found.error[0] < found.sd[0]
    assert "the least of all" in repr(found)


def test_the_figure_has_the_priors_scores_and_the_evidence_lost(model, draws):
    heads = ba.heads(drawn(draws), model=model)
    lost, errors = np.array([0.5, 3.0, -1.0]), np.array([0.1, np.nan, 0.2])
    losses = Losses(heads.names, lost, errors, *np.zeros((4, 3)), np.ones(3), heads.units.levels)
    figure = heads_figure(heads, losses=losses)
    by_score = np.argsort(-heads.scores)
    (prior,) = (line for line in figure.axes[0].lines if line.get_label() == "prior mean")
    np.testing.assert_array_equal(prior.get_xdata(), heads.prior[by_score])
    panel = next(axes for axes in figure.axes if axes.get_title() == "Without the head")
    np.testing.assert_array_equal(panel.lines[0].get_xdata(), lost[by_score])
    names = [f"{layer}: {name}" for layer, name in (heads.names[at] for at in by_score)]
    assert [tick.get_text() for tick in panel.get_yticklabels()] == names
    assert [*panel.lines[-1].get_xdata()] == [5, 5]
    repeated = [(1, "a"), (1, "a"), (2, "b")]
    alike = dataclasses.replace(heads, units=heads.units._replace(names=repeated))
    vars(alike)["losses"] = dataclasses.replace(losses, names=repeated)
    np.testing.assert_array_equal(alike.summary()["evidence_lost"], lost)
    assert figure.get_suptitle() == f"{model.name}, N = 8, T = 0.1"
    by_layer = next(axes for axes in figure.axes if axes.get_title().startswith("Score"))
    assert by_layer.get_xlabel() == "head of the layer, in order"
    rows = ["layer 1: previous .. random", "layer 2: uniform"]
    assert [tick.get_text() for tick in by_layer.get_yticklabels()] == rows
    named = SimpleNamespace(names=[*product((5, 7), ("a", "b"))], scores=np.ones(4), sd=np.ones(4))
    layer_map(by_layer, named)
    assert by_layer.get_xlabel() == "head of the layer"
    assert [tick.get_text() for tick in by_layer.get_xticklabels()] == ["a", "b"]


def test_groups_and_paths_are_scored_like_heads(model, draws):
    size = np.abs(draws)
    paths = ba.heads(drawn(draws), model=model, of="paths")
    sums = np.stack([size[..., p, :].sum(-1) + size[..., p].sum(-1) - size[..., p, p] for p in range(4)], -1)
    np.testing.assert_allclose(paths.drawn, sums / sums.max(-1, keepdims=True), rtol=1e-12)
    assert paths.names == model.path_names
    heads = ba.heads(drawn(draws), model=model)
    of = {"first": [(1, "previous")], "second": [["1", "random"]], "top": [2]}
    groups = ba.heads(drawn(draws), model=model, of=of)
    assert groups.names == ["first", "second", "top"]
    # Relative to the largest group: the skip, which may be larger, is in none.
    np.testing.assert_allclose(groups.drawn, heads.drawn / heads.drawn.max(-1, keepdims=True), rtol=1e-12)
    both = ba.heads(drawn(draws), model=model, of={"layer 1": [1], "top": [(2, "uniform")]})
    assert np.all(both.drawn[..., 0] == 1)  # All paths use a head of layer 1.


def test_probabilities_are_shares_of_draws(model, draws):
    found = ba.heads(drawn(draws), model=model)
    flat = found.drawn.reshape(-1, 3)
    expected = [np.mean([head in np.argsort(draw)[:2] for draw in flat]) for head in range(3)]
    np.testing.assert_allclose(found.probability_among_least(2), expected, atol=1e-12)
    np.testing.assert_allclose(found.probability_among_least(1), found.probability_least, atol=1e-12)
    np.testing.assert_allclose(found.probability_among_least(3), 1)
    np.testing.assert_allclose(found.probability_below(0.5), (flat < 0.5).mean(0))
    tied = ba.heads(drawn(np.tile(np.ones((4, 4)), (1, 5, 1, 1))), model=model)
    np.testing.assert_allclose(tied.probability_among_least(2).sum(), 2)


@pytest.fixture(scope="module")
def two_outputs():
    """Two heads and a skip; labels that are nearly the same correlate the rows of one path more than those of two."""
    rng, arch = np.random.default_rng(0), ba.Architecture((2,), (4, 4), (1.0,) * 3, skips=(0.5,), outputs=2)
    labels = rng.normal(size=(10, 1)) + 0.1 * rng.normal(size=(10, 2))
    return model_of(rng.normal(size=(10, 3, 3)), labels, arch, 0.1)


def between_paths(u, outputs):
    """Correlations of rows of U of different paths."""
    u, pairs = np.asarray(u), [(p, q) for p in range(len(u)) for q in range(p) if p // outputs != q // outputs]
    return np.array([u[p, q] / np.sqrt(u[p, p] * u[q, q]) for p, q in pairs])


def test_correlations_of_paths_are_those_of_each_draw(model, draws):
    found = ba.heads(drawn(draws), model=model).correlations()
    each = np.array([u / np.sqrt(np.outer(np.diag(u), np.diag(u))) for u in draws.reshape(-1, 4, 4)])
    np.testing.assert_allclose(found.mean, each.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.upper, np.quantile(each, 0.97, axis=0), rtol=1e-10)
    assert np.all(np.diag(found.mean) == 1)
    assert np.all(np.diag(found.error) == 0)
    table = found.summary()
    assert len(table) == 6
    assert np.all(np.diff(np.abs(table["mean"])) <= 0)
    path, other = table.index[0]
    assert found.mean[found.names.index(path), found.names.index(other)] == table["mean"].iloc[0]


def test_one_draw_has_no_error(model, draws):
    found = ba.heads(drawn(draws[:1, :1]), model=model)
    assert np.isnan(found.error).all()
    assert np.isnan(found.sd).all()
    assert "n/a" in repr(found)


def test_paths_combine_below_the_width_found_and_not_above(model, two_outputs, draws):
    for each, correlation in ((model, 0.2), (two_outputs, 0.05)):
        found, outputs = combining_width(each, correlation), each.architecture.outputs
        below, above = (
            np.max(np.abs(between_paths(ba.theory.solve(each.replace(width=width)).order_parameter, outputs)))
            for width in (int(found.width / 1.02) - 1, found.width)
        )
        assert above <= correlation < below
        assert found.width in found.widths
        assert np.all(np.diff(found.greatest) < 0)
        assert f"From N = {found.width} on" in found.statement.replace(" (to 1%)", "")
        assert ("(to 1%)" in found.statement) == (found.width > 100)
    assert "no two paths are correlated by more than 0.05 at the saddle point" in " ".join(repr(found).split())
    heads = ba.heads(drawn(draws), model=model)
    narrow = heads.combining_width(0.2, most=2)
    assert narrow.width is None
    assert narrow.statement.startswith("At N = 2, the widest network searched, some paths are still")
    assert heads.combining_width(0.999).width == 1


def test_rows_of_one_path_are_not_paths_that_combine(two_outputs):
    factors = np.random.default_rng(0).normal(size=(6, 8))
    u = factors @ factors.T
    table = ba.heads(drawn(np.tile(u, (1, 5, 1, 1))), model=two_outputs).correlations().summary()
    np.testing.assert_allclose(sorted(table["mean"]), sorted(between_paths(u, 2)), rtol=1e-10)
    arch = ba.Architecture((1,), (4, 4), (1.0,) * 3, outputs=2)
    one_path, tree = model_of(np.ones((10, 1, 3)), two_outputs.labels, arch, 0.1), drawn(np.ones((1, 5, 2, 2)))
    alone = ba.heads(tree, model=one_path).correlations()
    assert len(alone.summary()) == 0
    assert "strongest" not in repr(alone)
    assert correlations_table(one_path, tree) == []
    with pytest.raises(BayesattnError, match="model must have two paths or more, got one with a single path"):
        combining_width(one_path)


def test_what_makes_no_sense_is_refused_in_one_sentence(model, draws):
    for call, message in (
        (lambda: combining_width(model, 1.5), "correlation must be between 0 and 1, got 1.5"),
        (lambda: combining_width(model, most=0), "most must be a whole number of at least 1, got 0"),
        (lambda: ba.theory.path_correlations([1.0, 2.0]), "order_parameter must have shape (paths, paths), got"),
        (lambda: ba.theory.path_correlations([[-1.0]]), "order_parameter must have no diagonal entry below 0, got -1"),
        (lambda: ba.theory.head_scores(np.eye(3), ARCH), "order_parameter must have shape (4, 4), got (3, 3)"),
        (lambda: heads_figure("heads"), "heads must be a"),
        (lambda: heads_figure(ba.heads(drawn(draws), model=model), losses=1), "losses must be a"),
    ):
        with pytest.raises(ValueError, match="^" + re.escape(message)):
            call()
    heads = "heads as pairs (layer, name), or layers, of [(1, 'previous'), (1, 'random'), (2"
    for of, message in (
        ("layers", "of must be 'heads', 'paths', or a dictionary of lists of heads, got 'layers'"),
        ({("a", "b"): [1]}, "of must be 'heads', 'paths', or a dictionary of lists of heads, got"),
        ({"a": [3]}, f"of['a'] must hold {heads}"),
        ({"b": [True]}, f"of['b'] must hold {heads}"),
        ({"a": []}, "of['a'] must hold at least one head, got none"),
    ):
        with pytest.raises(BayesattnError, match=re.escape(message)):
            ba.heads(drawn(draws), model=model, of=of)
    alike = model.replace(head_names=(("same", "same"), ("uniform",)))
    with pytest.raises(BayesattnError, match=re.escape("got (1, 'same'), which 2 heads have: give the model other")):
        ba.heads(drawn(draws), model=alike, of={"a": [(1, "same")]})


def test_draws_that_do_not_vary_have_no_error(model, draws):
    found = ba.heads(drawn(np.broadcast_to(draws[:1, :1], draws.shape)), model=model)
    assert np.isnan(found.error).all()
    assert np.isnan(found.correlations().error).all()
    assert "draws do not vary, or are too few" in repr(found)


def test_the_prior_scores_are_those_of_its_networks():
    """One layer of two heads, weights drawn in NumPy; in wide networks no head is above another."""
    model = tiny_model(heads=(2,), widths=(3, 3), examples=4)
    rng, count = np.random.default_rng(0), 4000
    above, values = rng.normal(size=(count, 3)), rng.normal(size=(count, 2, 3, 3))
    rows = np.einsum("ci,chij->chj", above, values)
    size = np.abs(np.einsum("chj,ckj->chk", rows, rows))
    scores = 2 * size.sum(-1) - np.einsum("chh->ch", size)
    scores = scores / scores.max(-1, keepdims=True)
    found = ba.heads(drawn(np.ones((1, 1, 2, 2))), model=model)
    near(found.prior, scores.mean(0), scores.std(0) * np.sqrt(1 / count + 1 / PRIOR_NETWORKS), finds=0.06)
    assert [*found.summary()["prior"]] == [*found.prior]
    assert "bayesattn.head_losses" not in repr(found)  # One draw has no spread.
    wide = ba.heads(drawn(np.eye(2) * rng.gamma(9, size=(2, 50, 2, 1))), model=model.replace(width=10**6))
    np.testing.assert_allclose(wide.prior, 1, atol=0.01)
    assert "all scores are near those of the prior and tell no head from another" in repr(wide).replace("\n", " ")


def test_heads_are_exchangeable_where_their_attention_is_sampled():
    sampled, fixed = zoo_model("attention"), zoo_model("two")
    for of, told_apart in (("heads", True), ("paths", True), ({"all": [1]}, False), ({"one": [(1, "1")]}, True)):
        assert bool(exchangeability_note(sampled, units_of(sampled, of))) == told_apart
    assert exchangeability_note(fixed, units_of(fixed)) == ""
