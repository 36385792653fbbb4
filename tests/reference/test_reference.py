"""Reference posteriors: two routes to each truth agree; grades find what is wrong and pass what is right."""

import dataclasses
import json
import re
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from scipy import signal, stats

import bayesattn as ba
from bayesattn.jobs.plots import grade_figure
from bayesattn.questions.reference import grading, posteriors
from bayesattn.questions.reference.grading import BIASED, CANNOT_TELL, RIGHT, Grade
from bayesattn.questions.reference.posteriors import FOLDER
from bayesattn.questions.reference.truth import LEVELS, Estimates, Truth
from bayesattn.testing import assert_right
from benchmarks import reference_truths as make
from tests.posteriors import exact_scalar_posterior
from tests.statistics import likely, near

NAMES = ba.reference.names()
MOST_BYTES = 10**6
JOB = {"chains": 4, "warmup": 300, "seed": 1, "keep": ("order_parameter", "prediction"), "progress": False}
"""Shares its programs with chains that make truths."""


@pytest.fixture(scope="module", autouse=True)
def _one_hidden_markov_task():
    """Whoever looks at all references needs the data of the ready model, which take a second to make."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(posteriors, "load_model", cache(posteriors.load_model))
        yield


@pytest.fixture(scope="module")
def two_heads():
    return ba.reference.load("two_heads").model


@pytest.fixture(scope="module")
def draws(two_heads):
    return ba.sample(two_heads, draws=4000, **JOB)


def first(tree, count):
    return tree.map_over_datasets(lambda data: data.isel(draw=slice(count)) if "draw" in data.dims else data)


def changed(tree, change):
    """Draws with another f and U, each a function of those that were."""
    tree = tree.copy(deep=True)
    for name in ("prediction", "order_parameter"):
        values = tree["posterior"][name]
        tree["posterior"][name] = change(values).transpose(*values.dims)
    return tree


@pytest.mark.parametrize("name", NAMES)
def test_both_routes_agree_and_errors_are_small(name):
    truth = ba.reference.load(name).truth
    assert truth.agreement.count == 5 * len(truth.names)
    assert truth.agreement.holds, truth.agreement
    assert truth.largest_error <= make.LARGEST_ERROR
    assert (truth.combined.mean_error <= make.LARGEST_ERROR * truth.combined.sd).all()
    assert (truth.quantiles[:, 0] < truth.quantiles[:, 1]).all()


def test_the_set_covers_what_it_should():
    assert len(NAMES) == len(posteriors.POSTERIORS) == 18
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < MOST_BYTES
    models = [ba.reference.load(name).model for name in NAMES]
    assert {model.architecture.depth for model in models} == {1, 2, 3}
    assert max(model.architecture.paths for model in models) == 16
    assert any(model.architecture.skips[0] for model in models)
    assert {type(model.likelihood).__name__ for model in models} == {"Gaussian", "Categorical", "StudentT", "Poisson"}


def test_truth_is_that_of_quadrature():
    reference = ba.reference.load("one_head")
    mean, outputs, _ = exact_scalar_posterior(reference.model)
    names, truth = reference.truth.names, reference.truth.combined
    places = [names.index(name) for name in ("U 1,1", "f 1", "f 12")]
    near(truth.mean[places], [mean, outputs[0], outputs[11]], truth.mean_error[places], finds=0.01)


def test_right_draws_are_right_and_few_cannot_tell(draws):
    found = ba.grade(draws, "two_heads")
    assert found.verdict == RIGHT, found.statement()
    likely(found.table["p"])
    assert found.gradients == int(draws["sample_stats"]["n_steps"].sum())
    assert found.squared_bias().max() < 0.005
    path = found.trajectory()
    assert path["largest"].iloc[-1] < path["largest"].iloc[0] / 20
    assert path["gradients"].iloc[-1] == found.gradients
    assert ba.grade(first(draws, 50), "two_heads").verdict == CANNOT_TELL
    strict = ba.grade(draws, "two_heads", margin=0.01)
    assert strict.suspects[0] == strict.table.index[strict.bounds.argmax()]
    assert f"cannot tell: a mean of {strict.suspects[0]} off by" in strict.statement()
    assert "not excluded" in strict.statement()
    for panel, of in zip(grade_figure([found, found], ["nuts", "again"]).axes, ("largest", "mean"), strict=True):
        np.testing.assert_allclose(panel.lines[0].get_ydata(), path[of])
        assert panel.lines[-1].get_ydata()[0] == pytest.approx(path[of].iloc[0])


def test_a_check_of_nuts_is_right():
    found = assert_right("nuts", "two_heads", level=0.01, warmup=JOB["warmup"], draws=4000, seed=1)
    assert found.verdict == RIGHT
    assert [*found.grades] == [*found.table.index] == ["two_heads"]
    assert found.table.loc["two_heads", "verdict"] == RIGHT
    assert found.table.loc["two_heads", "p"] > 0.01 / found.grades["two_heads"].tests
    assert found.statement().startswith("two_heads: right: no mean is off by more than")
    assert "Sampler: right" in repr(found)


@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.heavy) for seed in (1, 2))])
def test_another_temperature_is_found(two_heads, seed):
    """T too high by 5 %, 6 to 7 errors: weights of its posterior, handed over as draws of the reference."""
    wrong = two_heads.replace(temperature=1.05 * two_heads.temperature)
    drawn = ba.sample(wrong, draws=1500, **JOB | {"seed": seed})
    weights = ba.weights(drawn, model=wrong, seed=seed)
    sites = {name: values.transpose("chain", "draw", ...).values for name, values in weights.items()}
    found = ba.grade(ba.from_numpyro(sites, two_heads, "path"), "two_heads")
    assert found.verdict == BIASED, found.statement()
    assert found.table.loc["energy", "p"] * found.tests < found.level


def test_the_bias_of_unadjusted_langevin_is_found(two_heads):
    """ULA with a step of half the posterior's scale, by a hand-written loop over the log density."""
    density = two_heads.log_density("collapsed")
    gradient, step = jax.grad(density.function), 0.25

    def transition(vector, key):
        noise = jax.random.normal(key, vector.shape)
        moved = vector + step * gradient(vector) + jnp.sqrt(2 * step) * noise
        return moved, moved

    @jax.jit
    @jax.vmap
    def chain(key):
        start = density.initial(key)
        return jax.lax.scan(transition, start, jax.random.split(key, 8000))[1][2000:]

    vectors = chain(jax.random.split(jax.random.key(0), 4))
    found = ba.grade(ba.from_vectors(vectors, two_heads), "two_heads", gradients=32000)
    assert found.verdict == BIASED, found.statement()
    assert found.gradients == 32000


def test_a_spread_too_small_is_found_though_every_mean_is_right(draws):
    """So small that no draw is below the lower quantiles, or all are below the upper ones."""
    axes = ("chain", "draw")
    found = ba.grade(changed(draws, lambda f: f.mean(axes) + 0.05 * (f - f.mean(axes))), "two_heads")
    assert set(found.table["below 10%"]) >= {0.0}
    linear = [name for name in found.table.index if name.startswith(("f ", "U "))]
    assert found.table.loc[linear, "bias"].abs().max() < 0.1
    assert (found.table.loc[linear, "p of shares"] < 1e-6).all()
    assert found.verdict == BIASED


def test_draws_that_are_no_independent_chains_cannot_tell(draws):
    """Points; chains of a log density that is NaN, with f drawn anew given U; chains apart; chains that are nearly one."""
    stuck, apart, u = draws.copy(deep=True), first(draws, 500).copy(deep=True), draws["posterior"]["order_parameter"]
    stuck["posterior"]["order_parameter"] = 0 * u + u[:, 0]
    apart["posterior"]["prediction"][0] += 1.0
    rng, point = np.random.default_rng(0), changed(first(draws, 100), lambda values: values * 0 + values[0, 0])

    def shared(values):
        noise = 0.1 * float(values.std()) * rng.normal(size=values.sizes["draw"])
        return values.where(values["chain"] != 1, values.isel(chain=0) + xr.DataArray(noise, dims="draw"))

    for tree, reason in (
        (point, r"\d+ quantities never vary: these are points, not draws"),
        (stuck, r"no chain ever moves: is the log density finite, and the step size small enough\?"),
        (apart, ".*chains differ.*"),
        (changed(draws, shared), r"chains move together, with a correlation of 0\..*"),
    ):
        assert re.fullmatch(f"cannot tell: {reason}", ba.grade(tree, "two_heads").statement())


def test_draws_that_occur_in_several_chains_cannot_tell(two_heads):
    vectors = np.random.default_rng(0).normal(size=(4, 200, two_heads.log_density("collapsed").size))
    repeated = (np.tile(vectors[:, :50], (1, 4, 1)), np.repeat(vectors[:1], 4, axis=0))
    within, between = (ba.grade(ba.from_vectors(each, two_heads), "two_heads").statement() for each in repeated)
    assert "several chains" not in within
    assert between.startswith("cannot tell: the same draws occur in several chains")


def test_networks_trained_to_one_optimum_are_biased_though_some_are_equal(draws):
    rng = np.random.default_rng(0)

    def trained(values):
        steps = xr.DataArray(rng.integers(50, size=values.shape[:2]), dims=("chain", "draw"))
        return (values * 0 + values.values[0, 0]) * (1 + 1e-9 * steps)

    assert ba.grade(changed(draws, trained), "two_heads").verdict == BIASED


@pytest.mark.filterwarnings("ignore:chains have not mixed")
def test_gradients_of_thinned_draws_are_those_of_all(draws, two_heads):
    thinned = ba.sample(two_heads, draws=400, thin=10, **JOB)
    tenth = ba.grade(thinned, "two_heads").gradients
    assert tenth == pytest.approx(ba.grade(first(draws, 400), "two_heads").gradients, rel=0.2)
    half = draws.isel(draw=slice(1, None, 2))
    assert ba.grade(half, "two_heads").gradients == 2 * int(half["sample_stats"]["n_steps"].sum())
    numbers = np.arange(40)
    joined = thinned.map_over_datasets(lambda node: node.assign_coords(draw=numbers) if "draw" in node.dims else node)
    for uneven in (joined, thinned.isel(draw=np.delete(numbers, 7)), thinned.isel(draw=numbers[::-1])):
        assert ba.grade(uneven, "two_heads").gradients is None


@pytest.mark.parametrize("memory", [-0.97, -0.7, 0.0, 0.9])
def test_chains_that_move_together_are_told_from_antithetic_ones(memory):
    """Twenty sets of four chains of five autoregressive quantities; noise of which half is shared is always found."""
    rng, count, found = np.random.default_rng(0), 4000, []
    for shared in (0.0, 0.5):
        noise, common = rng.normal(size=(20, 4, count, 5)), rng.normal(size=(20, 1, count, 5))
        noise = np.sqrt(1 - shared) * noise + np.sqrt(shared) * common
        found.append([grading._moving_together(each) for each in signal.lfilter([1], [1, -memory], noise, axis=2)])
    independent, together = np.array(found)
    assert not independent.any()
    assert (together > 0.3).all()


def test_what_looks_as_if_chains_moved_together():
    """Heavy tails, and a start in common, do not; a mirrored chain among three, and one pair of many chains, do."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(40, 4, 1000, 20))
    start = 20 * 0.9 ** np.arange(1000)[:, None]
    for values in (rng.standard_t(1, size=noise.shape), np.exp(3 * noise), noise + start):
        assert not any(map(grading._moving_together, values))
    signs = np.array([1, 1, 1, -1])[:, None, None]
    assert all(grading._moving_together(signs * each[:1] + 0.03 * each) for each in noise)
    pair = rng.normal(size=(16, 1000, 3))
    pair[7] = pair[2] + pair[7]
    assert grading._moving_together(pair) > 0.5


def test_right_draws_that_miss_a_long_tail_are_not_called_biased():
    """Their spread is too small, and with it the error that they state; right draws have that of the truth."""
    values = 0.3 * np.random.default_rng(0).normal(size=(4, 120, 1))
    quantiles = np.quantile(values, LEVELS)[None]
    tiny = np.full(1, 1e-6)
    spread = {"sd": np.ones(1), "sd_error": tiny, "below": np.array([LEVELS]), "below_error": np.full((1, 3), 1e-6)}

    def verdict(off):
        estimates = Estimates(mean=values.mean((0, 1)) + off, mean_error=tiny, **spread)
        truth = Truth(["x"], estimates, quantiles, 0 * quantiles, estimates, "", np.full(1, 480.0), "")
        return Grade(dataclasses.replace(ba.reference.load("one_head"), truth=truth), values, None, 0.5, 1e-4).verdict

    assert verdict(0.18) == RIGHT
    assert verdict(0.3) == BIASED


def test_bad_draws_are_named(draws):
    without, turned, broken = draws.copy(), draws.copy(deep=True), first(draws, 100).copy(deep=True)
    without["posterior"] = without["posterior"].to_dataset().drop_vars("prediction")
    turned["constant_data"] = turned["constant_data"].to_dataset().isel(test_example=slice(None, None, -1))
    broken["posterior"]["prediction"][0, 0, 0] = np.nan
    for tree, settings, message in (
        (draws, {"name": "two_hands"}, "name of a reference posterior must be one of .*, got 'two_hands'"),
        (draws, {"name": "one_head"}, "draws must be of reference posterior 'one_head', which has"),
        (without, {}, "draws must hold order_parameter and prediction to be graded, got"),
        (broken, {}, r"draws must be finite, got posterior\['prediction'\]"),
        (turned, {}, "draws must be on the test examples of the reference posterior"),
        (draws, {"margin": 0}, "margin must be a finite number above 0, got 0"),
        (draws, {"level": 2}, "level must be a probability below 1, got 2"),
    ):
        with pytest.raises(ValueError, match=message):
            ba.grade(tree, **{"name": "two_heads"} | settings)
    with pytest.raises(ValueError, match=r"grades must be results of bayesattn\.grade"):
        grade_figure(draws)


def test_commands_list_export_and_grade(two_heads, command, tmp_path):
    def said(*words, status=0):
        ended, out, err = command(*words)
        assert (ended or 0) == status, err
        return err if status else out

    ba.runs.sample(two_heads, "run", draws=1000, **JOB)
    assert "two_heads" in said("reference", "list")
    assert [each["name"] for each in json.loads(said("reference", "list", "--json"))] == NAMES
    assert "energy" in said("reference", "show", "two_heads")
    assert "NAME must be given to show" in said("reference", "show", status=2)
    export = ("reference", "export", "two_heads", "--out", "files")
    said(*export)
    assert (tmp_path / "files" / "two_heads.npz").exists()
    assert "must not exist yet" in said(*export, status=2)
    assert "right: no mean is off" in " ".join(said("grade", "run", "two_heads", "--figure", "b.png").split())
    assert json.loads(said("grade", "run", "two_heads", "--json"))["verdict"] == RIGHT
    assert (tmp_path / "b.png").exists()
    assert "which has heads = [1], not [2]" in said("grade", "run", "one_head", status=2)


@pytest.mark.parametrize(("seeds", "batches"), [(1, 16), pytest.param(60, 8, marks=pytest.mark.heavy)])
def test_weighted_prior_draws_have_the_moments_of_quadrature(seeds, batches):
    """Also their errors, which are those of weighted means: over many seeds, squares of z are about 1."""
    reference = ba.reference.load("one_head")
    mean, outputs, _ = exact_scalar_posterior(reference.model)
    truth, z = reference.truth.combined, []
    exact_means = np.array([mean, outputs[0], *truth.mean[2:]])
    exact = dataclasses.replace(truth, mean=exact_means, mean_error=0 * truth.mean_error)
    for seed in range(seeds):
        found, size = make.by_prior_draws(reference.model, reference.truth, seed=seed, draws=batches * make.BATCH)
        assert size > 1000
        scores = found.z_scores(exact)
        z.append([scores[1, 0], *scores[0]])
    squares, law = np.sum(np.square(z), axis=0), stats.chi2(seeds)
    likely([law.cdf(squares), law.sf(squares)])


@pytest.mark.heavy
def test_level_of_grades():
    """NUTS on each reference, three seeds: none is called biased at a level of 1 % of all, and few at 1 % each."""
    levels = []
    for name in NAMES:
        model = ba.reference.load(name).model
        for seed in (1, 2, 3):
            found = ba.grade(ba.sample(model, chains=4, warmup=500, draws=2000, seed=seed, progress=False), name)
            assert "chains move together" not in found.statement()
            levels.append(found.smallest_p.min() * found.tests)
    assert min(levels) > 0.01 / len(levels)
    assert stats.binom(len(levels), 0.01).sf(np.sum(np.array(levels) < 0.01) - 1) > 0.01


def test_differing_routes_are_not_written(tmp_path, monkeypatch):
    """One mean of the second route that is off by 10 of its errors is enough."""
    settings = {"DRAWS": 500, "MOST_DRAWS": 500, "WARMUP": JOB["warmup"], "ENOUGH_EFFECTIVE_DRAWS": 4000}
    for name, value in settings.items():
        monkeypatch.setattr(make, name, value)
    made = partial(make.make, "two_heads", tmp_path, progress=lambda text: None)
    with pytest.raises(ValueError, match="errors must be at most 1 % of a standard deviation, got"):
        made()
    monkeypatch.setattr(make, "LARGEST_ERROR", 1.0)
    right, found = make.by_prior_draws, []

    def moved(*arguments, **settings):
        found.append(right(*arguments, **settings))
        (second, size), truth = found[0], arguments[1]
        off = 10 * np.hypot(second.mean_error, truth.first.mean_error) * (np.arange(len(second.mean)) == 2)
        return dataclasses.replace(second, mean=second.mean + off), size

    monkeypatch.setattr(make, "by_prior_draws", moved)
    with pytest.raises(ValueError, match=r"routes must agree within .* for U 2,2 of two_heads"):
        made()
    assert not [*tmp_path.iterdir()]
    monkeypatch.setattr(make, "by_prior_draws", lambda *arguments, **settings: found[0])
    assert made().agreement.holds
    assert [file.name for file in tmp_path.iterdir()] == ["two_heads.npz"]
