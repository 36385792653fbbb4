"""Influences are derivatives by weights of examples, by quadrature and by weighed prior draws; errors cover."""

import json
import sys
from functools import cache

import numpy as np
import pytest
import xarray as xr
from scipy import stats

import bayesattn as ba
from bayesattn.jobs.plots import influence_figure
from bayesattn.questions.heads.units import units_of
from bayesattn.questions.influence import covariances as of_draws
from bayesattn.questions.influence import left_out as left_out_module
from bayesattn.questions.influence import susceptibility
from tests import dense
from tests.influence.oracle import change_if_left_out, covariance, prior_draws, weighed
from tests.models.attention_networks import attention_model
from tests.statistics import likely, near
from tests.zoo import model as zoo_model

STEP = 1e-3
POINTS = 120
"""Points of the quadrature along each axis; 200 change no mean by 1e-7."""


@cache
def grid():
    """U of a network of one head, at points of a quadrature, and their prior probabilities (`exact_scalar_posterior`)."""
    arch = zoo_model("one").architecture
    laws = [stats.chi2(width) for width in arch.widths]
    grids = [np.linspace(*np.log(law.ppf([1e-10, 1 - 1e-12])), POINTS) for law in laws]
    prior = np.outer(*(law.pdf(np.exp(x)) * np.exp(x) for law, x in zip(laws, grids, strict=True))).ravel()
    scale = np.prod(arch.variances[1:]) / np.prod(arch.widths)
    return np.exp(np.add.outer(*grids)).ravel() * scale, prior / prior.sum()


def means(weights):
    """E[f], E[U], E[loss] and log score, the likelihood of each example to a power; probabilities of the grid's points."""
    model, (values, prior) = zoo_model("one"), grid()
    old, new = model.path_inputs, model.test_path_inputs
    pairs = ((old, old), (old, new), (new, new))
    one, cross, own = (dense.kernel(model.architecture, np.eye(1), *pair) for pair in pairs)
    kept, temperature = weights > 0, model.temperature
    noise, y = temperature / weights[kept], model.labels[kept]
    covariance = values[:, None, None] * one[np.ix_(kept, kept)] + np.diag(noise)
    inverse = np.linalg.inv(covariance)
    solved = inverse @ y
    logs = -(solved @ y + np.linalg.slogdet(covariance)[1] + len(y) * np.log(2 * np.pi)) / 2
    constant = np.sum(np.log(2 * np.pi * noise) - weights[kept] * np.log(2 * np.pi * temperature)) / 2
    weighed = prior * np.exp(logs + constant)
    weighed = weighed / weighed.sum()
    f, mean = values[:, None] * (solved @ cross[kept]), values[:, None] * (solved @ one[kept])

    def variances(known, kernel):
        explained = np.einsum("ki,ukl,li->ui", known[kept], inverse, known[kept], optimize=True)
        return values[:, None] * np.diag(kernel) - values[:, None] ** 2 * explained

    variance = variances(one, one)
    loss = ((model.labels - mean) ** 2 + variance) / (2 * temperature) + np.log(2 * np.pi * temperature) / 2
    densities = stats.norm.pdf(model.test_labels, f, np.sqrt(variances(cross, own) + temperature))
    found = {"outputs": weighed @ f, "order_parameter": weighed @ values[:, None], "losses": weighed @ loss}
    return found | {"log_score": np.mean(np.log(weighed @ densities))}, weighed


@cache
def truth():
    """Derivatives of the means by the weight of each example, and changes of E[f] and of the log score without it."""
    ones, found = np.ones(6), {}
    for name in ("outputs", "order_parameter", "losses"):
        columns = []
        for example in np.eye(6):
            up, down = (means(ones + sign * STEP * example)[0][name] for sign in (1, -1))
            columns.append((up - down) / (2 * STEP))
        found[name] = np.stack(columns, axis=-1)
    for name in ("outputs", "log_score"):
        changes = [means(1 - example)[0][name] - means(ones)[0][name] for example in np.eye(6)]
        found[f"{name}_left_out"] = np.stack(changes, axis=-1)
    return found


def tree_of(order_parameters):
    """Draws of U, shape (chain, draw), of the network of one head."""
    values = np.asarray(order_parameters)[..., None, None]
    posterior = xr.Dataset({"order_parameter": (("chain", "draw", "path", "other_path"), values)})
    return xr.DataTree.from_dict({"posterior": posterior})


def independent_draws(seed, weights=None, chains=4, count=250):
    """Independent draws of the posterior of one head."""
    rng, (values, _) = np.random.default_rng(seed), grid()
    probabilities = means(np.ones(6) if weights is None else weights)[1]
    return tree_of(rng.choice(values, size=(chains, count), p=probabilities))


@pytest.mark.parametrize("many", [of_draws.MANY, 0], ids=["of_all_draws", "of_every_other_draw"])
def test_influences_of_independent_draws_are_derivatives_and_errors_cover_over_fifty_seeds(monkeypatch, many):
    monkeypatch.setattr(of_draws, "MANY", many)
    model, seeds = zoo_model("one"), 50
    of = ("outputs", "losses", "order_parameter", "left_out")
    found = [ba.influence(independent_draws(seed), of, thin=1, model=model) for seed in range(seeds)]
    for name, exact in truth().items():
        values = np.stack([each[name].values for each in found])
        spread = values.std(0, ddof=1)
        near(values.mean(0), exact, spread / np.sqrt(seeds), seeds - 1, finds=1.3 * spread.max(), allowed=1e-6)
        if name == "log_score_left_out":
            continue  # Whose error is not told.
        errors = np.stack([each[f"{name}_error"].values for each in found])
        p = stats.chi2(seeds - 1).sf((seeds - 1) * spread**2 / (errors**2).mean(0))
        likely(2 * np.minimum(p, 1 - p))
        covered = np.sum(np.abs(values - exact) < stats.norm.ppf(0.97) * errors, axis=0)
        likely(stats.binom(seeds, 0.94).cdf(covered))
    # The sum over all examples is beta dE[q] / dbeta, beta = 1 / T: the derivative by a weight that all share.
    together = {
        name: (means(np.full(6, 1 + STEP))[0][name] - means(np.full(6, 1 - STEP))[0][name]) / (2 * STEP)
        for name in ("outputs", "losses")
    }
    for name, exact in together.items():
        np.testing.assert_allclose(truth()[name].sum(-1), exact, rtol=1e-5, atol=1e-6)
        sums = np.stack([each[name].sum(each[name].dims[-1]).values for each in found])
        near(
            sums.mean(0),
            exact,
            sums.std(0, ddof=1) / np.sqrt(seeds),
            seeds - 1,
            finds=1.3 * sums.std(0).max(),
            allowed=1e-5,
        )


def test_posteriors_of_large_pareto_k_are_sampled_without_the_example(monkeypatch):
    model, left_out = zoo_model("one"), iter(enumerate(np.eye(6), start=1))

    def sample(rest, **job):
        assert rest.examples == 5
        seed, example = next(left_out)
        return independent_draws(seed, 1 - example)

    monkeypatch.setattr(left_out_module, "sample", sample)
    monkeypatch.setattr(left_out_module, "MOST_PARETO_K", -np.inf)
    found = ba.influence(independent_draws(7), "left_out", thin=1, model=model)
    assert found["refitted"].values.all()
    near(found["outputs_left_out"], truth()["outputs_left_out"], found["outputs_left_out_error"].values, 60, finds=0.3)
    assert not ba.influence(independent_draws(7), "left_out", refit=False, thin=1, model=model)["refitted"].values.any()


def test_a_draw_that_determines_the_outputs_has_plain_covariances_and_groups_add_up(zoo, monkeypatch):
    monkeypatch.setattr(of_draws, "TIMES_OF_BATCH", 0.0)
    model, draws = zoo_model("classes"), zoo.draws("classes")
    readouts = draws["posterior"]["readout"].values.reshape(-1, model.architecture.paths, 3, model.features)
    f, new = (np.einsum("dpcf,epf->dec", readouts, x) for x in (model.path_inputs, model.test_path_inputs))
    np.testing.assert_allclose(new.reshape(draws["posterior"]["prediction"].shape), draws["posterior"]["prediction"])
    log_likelihoods = dense.log_likelihoods(model, f)
    own = {"margins": lambda outputs: outputs.max(-1), "trace": lambda order_parameter: np.trace(order_parameter)}
    classes = model.labels.argmax(1)
    found, of_groups = (
        ba.influence(draws, ("outputs", "losses", "left_out"), quantities=own, refit=False, groups=groups)
        for groups in (None, [f"class {each}" for each in classes])
    )
    trace = np.trace(draws["posterior"]["order_parameter"].values, axis1=2, axis2=3)
    values = {"outputs": new, "losses": -log_likelihoods, "margins": new.max(-1), "trace": trace}
    used = np.concatenate([chain * 60 + 60 - 56 + np.arange(56) for chain in range(2)])  # Seven batches of eight draws.
    for name, value in values.items():
        flat = value.reshape(120, -1)
        exact = np.cov(flat[used].T, log_likelihoods[used].T, bias=True)[: flat.shape[1], flat.shape[1] :]
        each = found[name].values
        np.testing.assert_allclose(each.reshape(exact.shape), exact, atol=1e-12)
        sums = np.stack([each[..., classes == group].sum(-1) for group in np.unique(classes)], axis=-1)
        np.testing.assert_allclose(of_groups[name], sums, atol=1e-12)
        assert of_groups[name].dims[-1] == "group"
        assert (found[f"{name}_error"] > 0).all()
    assert of_groups["group"].values.tolist() == [f"class {each}" for each in np.unique(classes)]
    assert found["outputs"].dims == ("test_example", "output", "example")
    assert found["losses"].dims == ("example", "other_example")
    weights = np.exp(-log_likelihoods)
    plain = np.einsum("de,dtc->tce", weights / weights.sum(0), new) - new.mean(0)[..., None]
    known = found["pareto_k"].values < 0.3  # Whose weights are hardly smoothed.
    np.testing.assert_allclose(found["outputs_left_out"].values[..., known], plain[..., known], atol=0.1)
    assert {"accuracy_left_out", "log_score_left_out"} <= {*found}


def test_examples_of_a_compressed_dataset_and_new_inputs(zoo):
    """Of examples that were gathered, and of others, as if the posterior held them one by one."""
    model, draws = zoo_model("two"), zoo.draws("two")
    examples = (model.path_inputs, model.labels)
    data = ba.Dataset.gather([examples], model.architecture, test_path_inputs=model.test_path_inputs)
    gathered = model.replace(tokens=None, dataset=data)
    tree = xr.DataTree.from_dict({"posterior": draws["posterior"].to_dataset()})
    plain, other = (ba.influence(tree, model=each, examples=examples) for each in (model, gathered))
    xr.testing.assert_allclose(ba.influence(draws), plain)
    xr.testing.assert_allclose(plain.drop_attrs(), other.drop_attrs())
    new = ba.influence(draws, "outputs", new_path_inputs=model.path_inputs[:2])
    assert new["outputs"].sizes == {"test_example": 2, "example": 6}
    messages = {"losses": "examples must be path inputs and labels for", "left_out": "of='left_out' leaves out"}
    for of, message in messages.items():
        with pytest.raises(ValueError, match=f"{message}.* a compressed dataset"):
            ba.influence(tree, of, model=gathered)
    without_tests = model.replace(test_path_inputs=None, test_labels=None, tokens=None)
    assert {*ba.influence(tree, model=without_tests)} == {"losses", "losses_error"}


def test_draws_that_are_few_or_do_not_move(zoo):
    few = zoo.draws("two").isel(draw=slice(3), chain=slice(1))
    stuck = tree_of(np.repeat(independent_draws(0)["posterior"]["order_parameter"].values[:, :1, 0, 0], 50, axis=1))
    for draws, model in ((few, zoo_model("two")), (stuck.isel(chain=slice(1)), zoo_model("one"))):
        found = ba.influence(draws, ("outputs", "left_out"), refit=False, model=model)
        assert np.isnan(found["outputs_error"]).all()
        assert np.isfinite(found["outputs"]).all()
    assert np.isinf(ba.influence(few, "left_out", refit=False)["pareto_k"]).all()
    assert np.isnan(ba.influence(few, "left_out", refit=False)["outputs_left_out"]).all()
    # Chains that do not move and differ: one batch each.
    apart = ba.influence(stuck, "outputs", model=zoo_model("one"))
    assert (apart["outputs_error"] > 0).all()


def test_an_example_that_the_network_does_not_see_changes_nothing_but_its_own_loss():
    model = zoo_model("one")
    x = np.array(model.path_inputs)
    x[3] = 0
    unseen = model.replace(path_inputs=x, tokens=None)
    found = ba.influence(independent_draws(1), ("outputs", "left_out"), thin=1, model=unseen)
    assert found["pareto_k"][3] == 0
    assert not found["refitted"][3]
    np.testing.assert_allclose(found["outputs"][:, 3], 0, atol=1e-12)
    np.testing.assert_allclose(found["outputs_left_out"][:, 3], 0, atol=1e-12)


def test_a_quantity_may_change_its_argument(zoo):
    draws = zoo.draws("two")

    def spoiled(order_parameter):
        order_parameter[:] = 1.0
        return order_parameter.sum()

    found = ba.influence(draws, "order_parameter", quantities={"spoiled": spoiled})
    xr.testing.assert_identical(draws["posterior"].to_dataset(), zoo.draws("two")["posterior"].to_dataset())
    assert (found["spoiled"] == 0).all()
    assert (found["order_parameter"] != 0).all()


INPUTS = np.ones((2, 2, 4))
REFUSED = {
    "of must be one of 'outputs', 'losses'": {"of": "output"},
    "of must name at least one of outputs": {"of": ()},
    "groups must hold one class for each of 6 examples, got 5": {"groups": ["a"] * 5},
    "groups must hold one class for each example, got nan of example 1": {"groups": [1.0, np.nan, 1, 1, 1, 1]},
    "groups must have different names, got 1, 1": {"groups": {1: [0], "1": [1]}},
    "groups must name at least one group": {"groups": {}},
    r"groups\['a'\] must hold examples from 0 to 5": {"groups": {"a": [6]}},
    "quantities must be a dictionary of functions by name": {"quantities": [np.trace]},
    "must return finite real numbers of one shape": {"quantities": {"mine": lambda order_parameter: "a"}},
    "have names of their own, got 'outputs_error'": {"quantities": {"outputs_error": lambda outputs: 0}},
    "have names of their own, got 'losses'": {"quantities": {"losses": lambda outputs: outputs}},
    "function of one argument called order_parameter or outputs, got one of f": {"quantities": {"mine": lambda f: f}},
    "examples must be inputs and labels": {"examples": INPUTS},
    "inputs of examples must have 2 paths": {"examples": (np.ones((2, 3, 4)), np.ones(2))},
    r"labels of examples must have shape \(2,\)": {"examples": (INPUTS, np.ones(3))},
    "leaves out single examples of training, got examples=": {"of": "left_out", "examples": (INPUTS, np.ones(2))},
    "mask must be None without new_path_inputs": {"mask": np.ones((3, 4))},
    "draws must hold at least 100": {"thin": 100},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_refused(zoo, message):
    with pytest.raises(ValueError, match=message):
        ba.influence(zoo.draws("two"), **REFUSED[message])


def test_tables_of_what_a_prediction_rests_on():
    value, error = np.array([[0.1, -3.0, 2.0, 1.9], [0.0, 0.0, 0.0, 5.0]]), np.full((2, 4), 0.1)
    arrays = {"outputs": value, "outputs_error": error, "outputs_left_out": -value, "outputs_left_out_error": error}
    variables = {name: (("test_example", "example"), each) for name, each in arrays.items()}
    found = xr.Dataset(variables | dict.fromkeys(("pareto_k", "refitted"), ("example", np.zeros(4))))
    table = found.influence.table(most=3)
    assert table.index.tolist() == [1, 2, 3]
    assert table["known"].tolist() == [True, False, True]
    assert table["lower"].iloc[0] == pytest.approx(-3 - 0.1 * stats.norm.ppf(0.97))
    assert table["left_out"].tolist() == [3.0, -2.0, -1.9]
    assert found.influence.table(1).index[0] == 3
    without_noise = np.sqrt(np.maximum(np.mean(value**2, 0) - 0.1**2, 0))
    assert without_noise[0] == 0
    np.testing.assert_allclose(found.influence.strongest(), without_noise)
    for message, place in (
        ("test_example must be a whole number of at most 1, got 2", [2]),
        ("at most 1 entries", [0, 0]),
    ):
        with pytest.raises(ValueError, match=message):
            found.influence.table(*place)
    with pytest.raises(ValueError, match="of must be one of 'outputs', 'outputs_left_out', got 'pareto_k'"):
        found.influence.table(of="pareto_k")
    assert len(influence_figure(found, "mine").axes) == 3
    with pytest.raises(ValueError, match="found must be a result of"):
        influence_figure(xr.Dataset())


def test_susceptibility_of_heads(zoo, monkeypatch):
    groups = {"first": [0, 1], "rest": [2, 3, 4, 5]}
    few = susceptibility(zoo.draws("two"), groups)
    assert np.isnan([*few.error.ravel(), *few.modes[0].value_interval]).all()
    monkeypatch.setattr(of_draws, "TIMES_OF_BATCH", 0.0)
    found = susceptibility(zoo.draws("two"), groups)
    plain = ba.influence(zoo.draws("two"), "scores", groups=groups)
    np.testing.assert_allclose(found.scores, plain["head_scores"], rtol=1e-12)
    np.testing.assert_allclose(found.error, plain["head_scores_error"], rtol=1e-6)
    rebuilt = sum(mode.value * np.outer(mode.heads, mode.groups) for mode in found.modes)
    np.testing.assert_allclose(rebuilt, found.scores, atol=1e-12)
    first = found.modes[0]
    assert first.value_interval[0] < first.value < first.value_interval[1]
    assert (first.heads_interval[0] <= first.heads_interval[1]).all()
    # A network without its only head has f = 0: E[l_i] is known.
    one = zoo_model("one")
    monkeypatch.setattr(sys.modules[susceptibility.__module__], "sample", lambda rest, **job: independent_draws(3))
    lost = susceptibility(independent_draws(2), [0, 0, 0, 1, 1, 1], thin=1, model=one).evidence
    nothing = stats.norm.logpdf(one.labels, 0, np.sqrt(one.temperature))
    expected = (-means(np.ones(6))[0]["losses"] - nothing).reshape(2, 3).sum(1)
    near(lost.value[0], expected, lost.error[0], 60, finds=0.5)
    with pytest.raises(ValueError, match=r"groups must be a class for each example, or .*, got None"):
        susceptibility(zoo.draws("two"), None)
    assert "evidence" not in found.summary()
    assert "strongest" in repr(found)


def test_command(command, zoo):
    def said(*arguments, status=0):
        code, out, err = command("influence", *arguments)
        assert code == status, err
        return err if status else " ".join(out.split())

    run = zoo.run("two")
    out = said(run, "--left-out", "--test-example", "1", "--figure", "map.png")
    tables = ("what f at test example 1 rests on", "if left out", "Greatest influence", "Scores of heads, by example")
    assert all(text in out for text in tables)
    content = json.loads(said(run, "--json", "--most", "2"))
    assert len(content["rests_on"]["output"]) == 2
    assert np.shape(content["influence"]["outputs"]) == (3, 6)
    of_classes = said(zoo.run("classes"))
    assert all(f"rests on, output {name}" in of_classes for name in range(3))
    message = "--test-example must be a whole number of at most 2, got 3"
    assert message in said(run, "--test-example", "3", status=2)


def model_of(outputs=1, skip=0.0, widths=(3, 3), likelihood=None):
    """Seven examples, two heads."""
    rng = np.random.default_rng(5)
    arch = ba.Architecture((2,), widths, (1.0, 1.2, 0.9), (skip,), outputs)
    x, y = rng.normal(size=(10, arch.paths, 3)), rng.normal(size=(10, outputs) if outputs > 1 else 10)
    if likelihood is not None:
        y = np.eye(outputs)[np.argmax(x[:, 0], axis=1)]
    data = {"path_inputs": x[:7], "labels": y[:7], "test_path_inputs": x[7:], "test_labels": y[7:]}
    return ba.Model(**data, architecture=arch, likelihood=likelihood or ba.Gaussian(0.5))


NETWORKS = {
    "two outputs and a skip": lambda: model_of(2, 0.7),
    "three classes": lambda: model_of(3, widths=(3, 4), likelihood=ba.Categorical(1.0)),
    "sampled attention": attention_model,
    "N = 1": lambda: model_of(widths=(1, 1)),
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", NETWORKS)
def test_influences_in_four_networks_are_covariances_of_weighed_prior_draws(name):
    """Squares are of drawn f, whose error is larger."""
    model = NETWORKS[name]()
    keep = ("order_parameter", "prediction", *(("queries_keys",) if name == "sampled attention" else ()))
    draws = ba.sample(model, warmup=500, draws=4000, keep=keep, seed=1, progress=False)
    own = {"squares": lambda outputs: outputs**2, "trace": lambda order_parameter: np.trace(order_parameter)}
    of = ("outputs", "losses", "order_parameter", "scores", "left_out")
    found = ba.influence(draws, of, quantities=own, thin=1)
    u, f, log_likelihoods = prior_draws(model, 400_000)
    weights, worth = weighed(log_likelihoods.sum(1))
    assert worth > 4000
    values = {
        "outputs": f,
        "losses": -log_likelihoods,
        "order_parameter": np.diagonal(u, axis1=1, axis2=2),
        "head_scores": units_of(model).scores(u, model.architecture),
        "squares": f**2,
        "trace": np.trace(u, axis1=1, axis2=2),
    }
    each = {key: (*covariance(weights, value, log_likelihoods),) for key, value in values.items()}
    each["outputs_left_out"] = (*change_if_left_out(weights, f, log_likelihoods),)
    for key, (exact, error) in each.items():
        finds = 1.0 if key == "squares" else 0.35
        near(found[key], exact, np.hypot(error, found[f"{key}_error"].values), 30, finds=finds)
    # Posteriors of which one example weighs 1 + 0.1, 1 - 0.1, and twice as much more and less, against the same draws.
    for example in range(2):
        more, less, most, least = (
            weighed(log_likelihoods.sum(1) + change * log_likelihoods[:, example])[0] @ f.reshape(len(f), -1)
            for change in (0.1, -0.1, 0.2, -0.2)
        )
        slope = (8 * (more - less) - (most - least)) / 1.2
        by_covariance, error = (values[..., example].ravel() for values in each["outputs"])
        allowed = 0.02 * np.abs(slope).max()
        np.testing.assert_allclose(slope, by_covariance, atol=allowed)
        ours, own = (found[key].values[..., example].ravel() for key in ("outputs", "outputs_error"))
        near(ours, slope, np.hypot(error, own), 30, finds=0.35, allowed=allowed)


@pytest.mark.heavy
def test_first_order_is_the_change_of_many_examples_and_not_of_an_outlier():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(420, 2, 3))
    y = x[:, 0] @ rng.normal(size=3) + 0.7 * rng.normal(size=420)
    x[7], y[7] = 10 * x[7], 30.0  # Which the fit bends to.
    data = {"path_inputs": x[:400], "labels": y[:400], "test_path_inputs": x[400:], "test_labels": y[400:]}
    model = ba.Model(**data, heads=(2,), widths=(5, 5), temperature=0.5)
    draws = ba.sample(model, warmup=300, draws=1000, seed=0, progress=False)
    found = ba.influence(draws, ("outputs", "left_out"), thin=1)
    first, exact = -found["outputs"].values, found["outputs_left_out"].values
    others = np.delete(np.arange(400), 7)
    assert np.linalg.norm((first - exact)[:, others]) < 0.05 * np.linalg.norm(exact[:, others])
    assert np.linalg.norm((first - exact)[:, 7]) > 0.1 * np.linalg.norm(exact[:, 7])
    assert found["pareto_k"][7] > found["pareto_k"][others].max()
