"""Draws put together, of other models, with other axes, written and read: the right numbers or one sentence."""

import json
import shutil
import subprocess
import sys

import arviz_base
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import bayesattn as ba
from bayesattn import models, runs
from bayesattn.checks import theory_predictions
from bayesattn.checks.diagnostics import summary
from bayesattn.checks.theory_predictions import Predicted
from bayesattn.classes import coded
from bayesattn.errors import BayesattnError
from bayesattn.jobs import plots
from bayesattn.jobs.plots.run import Names, names_of
from bayesattn.joining import concat
from bayesattn.models.arviz import axes, axis_names, data_groups
from bayesattn.models.draws import has_repeats, order_parameters_of
from bayesattn.models.stored_model import ATTRIBUTE, ModelRecord, described
from bayesattn.prediction import score, stored_prediction
from tests.zoo import LIGHT, QUICK
from tests.zoo import model as zoo_model

pytestmark = [
    pytest.mark.filterwarnings("ignore:In a future version of xarray:FutureWarning"),  # Of joins by its defaults.
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),  # Of names along axes.
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
]


@pytest.fixture(scope="module")
def model():
    return zoo_model("two")


@pytest.fixture(scope="module")
def several(zoo):
    return [zoo.draws("two", seed=seed) for seed in (3, 4)]


@pytest.fixture(scope="module")
def run(zoo):
    return runs.Run(zoo.run("two", seed=5))


@pytest.fixture(scope="module")
def latent():
    model = models.LatentModel(features=[[1.0], [2.0]], values=[[0.5], [1.5]], noise=0.5, prior=1.0)
    return [ba.sample(model, **LIGHT | {"parameterisation": "latent", "seed": seed}) for seed in (0, 1)]


@pytest.fixture(scope="module")
def said(model, several):
    """What is said of one tree, and of several put together."""
    return [json.dumps(numbers(draws, model)) for draws in (several[0], concat(several))]


def numbers(draws, model, everything=True):
    """What functions say of draws of a network, as plain numbers."""
    predicted = ba.predict(draws, model.test_path_inputs)
    found = {
        "diagnose": ba.diagnose(draws).to_dict(),
        "summary": summary(draws),
        "predict": [predicted.mean.tolist(), predicted.variance.tolist(), predicted.error.tolist()],
    }
    if not everything:
        return found
    sampled = np.eye(model.architecture.rows)
    held = ba.validate(draws, model=model, prediction=Predicted(sampled, 1.1 * sampled, 0.1, None))
    return found | {
        "validate": [held.order_parameter.tolist(), held.error.tolist(), held.rhat.tolist(), held.alignment.to_dict()],
        "weights": float(sum(ba.weights(draws, model=model, thin=20).sum().to_array())),
        "readouts": theory_predictions.readout_batches(model, draws).tolist(),
        "log_likelihood": ba.with_groups(draws, "log_likelihood")["log_likelihood"]["labels"].values.tolist(),
    }


def test_joins_along_chains_say_what_concat_says(model, several, said):
    assert json.dumps(numbers(xr.concat(several, dim="chain"), model)) == said[1]
    nameless = xr.concat(several, dim="chain", combine_attrs="drop")  # Held against the model that is handed over.
    mean = ba.predict(nameless, model.test_path_inputs, model=model).mean
    np.testing.assert_allclose(mean, json.loads(said[1])["predict"][0], rtol=1e-12)


def test_accuracy_of_joined_draws_is_that_of_all_their_predictions(model, several):
    labels = np.array([1.0, -1.0, 1.0])
    for joined in (xr.concat(several, dim="chain"), xr.concat(several, dim="draw"), concat(several)):
        row = summary(joined)[-1]
        mean = np.mean([tree["posterior"]["prediction"].values.mean((0, 1)) for tree in several], axis=0)
        share = np.mean(np.sign(mean) == labels)
        assert row["mean"] == share
        smoothed = (3 * share + 0.5) / 4
        assert row["test_error"] == pytest.approx(np.sqrt(smoothed * (1 - smoothed) / 4))
        found = ba.predict(joined, model.test_path_inputs).mean
        halves = [ba.predict(tree, model.test_path_inputs).mean for tree in several]
        np.testing.assert_allclose(found, np.mean(halves, axis=0), rtol=1e-12)


def test_joins_of_draws_of_a_latent_and_of_groups_of_arviz(model, several, latent):
    joined, own = xr.concat(latent, dim="chain"), concat(latent)
    assert ba.diagnose(joined).to_dict() == ba.diagnose(own).to_dict()
    with_more = [ba.with_groups(tree, prior_draws=20) for tree in several]
    own = concat(with_more)
    assert own["log_likelihood"]["labels"].shape == (4, 60, 6)
    assert own["prior"].to_dataset().sizes["draw"] == 20
    joined = ba.with_groups(xr.concat(with_more, dim="chain"), "log_likelihood")
    np.testing.assert_array_equal(joined["log_likelihood"]["labels"], own["log_likelihood"]["labels"])


def test_trees_runs_and_folders_are_put_together_and_again(model, several, run):
    whole = concat([several[0], run, several[1]])
    assert whole["posterior"]["chain"].values.tolist() == [0, 1, 2, 3, 4, 5]
    parts = [several[0], run.draws(), several[1]]
    for name in ("order_parameter", "prediction", "bartlett"):
        expected = np.concatenate([part["posterior"][name].values for part in parts])
        np.testing.assert_array_equal(whole["posterior"][name].values, expected)
    xr.testing.assert_identical(whole["observed_data"].to_dataset(), several[0]["observed_data"].to_dataset())
    in_two_steps = concat([concat([several[0], str(run.path)]), several[1]])
    assert json.loads(in_two_steps.attrs[ATTRIBUTE]) == json.loads(whole.attrs[ATTRIBUTE])
    halves = concat([several[0].isel(chain=[1]), several[0].isel(chain=[0])])
    assert ba.diagnose(halves).chains == 2
    with pytest.raises(ValueError, match=r"got draws\[0\] and draws\[1\] both of seed 5, chain 0"):
        concat([whole, run])


def changed(tree, group, **variables):
    tree = tree.copy()
    tree[group] = xr.DataTree(tree[group].to_dataset().assign(variables))
    return tree


OF_BOTH = {
    "validate": lambda model, draws: ba.validate(draws, model=model),
    "predict": lambda model, draws: ba.predict(draws, model.test_path_inputs, model=model),
    "with_groups": lambda model, draws: ba.with_groups(draws, "prior", model=model),
    "weights": lambda model, draws: ba.weights(draws, model=model),
    "readouts": theory_predictions.readout_batches,
}
"""Functions that take draws and the model that they should be of."""
TAKE_DRAWS = {
    "diagnose": lambda model, draws: ba.diagnose(draws),
    "summary": lambda model, draws: summary(draws),
    "heads": lambda model, draws: ba.heads(draws),
    "head_losses": lambda model, draws: ba.head_losses(draws),
    "correlations": lambda model, draws: ba.heads(draws).correlations(),
    "remove_heads": lambda model, draws: ba.remove_heads(draws),
    "predict alone": lambda model, draws: ba.predict(draws, model.test_path_inputs),
    "groups alone": lambda model, draws: ba.with_groups(draws, "log_prior"),
    "prior alone": lambda model, draws: ba.with_groups(draws, "prior"),
    "concat": lambda model, draws: concat([draws]),
    "grade": lambda model, draws: ba.grade(draws, "one_head"),
    "figure": lambda model, draws: plots.run_figure(draws),
    "theory figure": lambda model, draws: plots.validation_figure(draws),
} | OF_BOTH


def test_a_replica_that_comes_back_is_no_repetition():
    """Of 1000 draws 4 are as one before, as under tempering, and as many are rejected."""
    values = np.random.default_rng(0).normal(size=(2, 1000))
    values[0, 4:800:200] = values[0, 2:800:200]
    values[1, 7:800:200] = values[1, 6:800:200]
    assert not has_repeats(values)
    assert has_repeats(np.concatenate([values, values[:1]]))
    assert has_repeats(np.concatenate([values, values[:, :2]], axis=1))
    assert has_repeats(np.ones((2, 1)))


def test_draws_that_do_not_belong_together_are_refused(model, several, latent):
    a, b = several
    with pytest.warns(UserWarning, match="60 draws of each chain are too few to show .*; draw 100 or more"):
        colder = ba.sample(model.replace(temperature=0.1), **QUICK)
    unknown, by_hmc = a.copy(), b.copy()
    by_hmc.attrs = {ATTRIBUTE: b.attrs[ATTRIBUTE].replace("nuts", "hmc")}
    unknown.attrs = {}
    for draws, message in (
        ([a, colder], r"draws\[1\] must be of the same model as draws\[0\], .* temperature = 0.1, not 0.5"),
        ([a, latent[0]], r"draws\[1\] must be of the same model .* kind = LatentModel, not Model"),
        ([a, a], "draws must be of other seeds, .* both of seed 3, chain 0"),
        ([unknown, a], "draws must be of other seeds, got the same draws twice"),
        ([a, b.isel(draw=slice(50))], "60 entries along draw, as draws.0. have, got 50: cut the longer ones first"),
        ([a, b.isel(test_example=slice(2))], "3 entries along test_example, as draws.0. have, got 2"),
        ([a, ba.with_groups(b, "log_likelihood")], "must have groups posterior, sample_stats, as draws.0. have, got"),
        ([a, by_hmc], "with sampler = nuts, got hmc"),
        ([a, changed(b, "constant_data", test_labels=("test_example", [1.0, 1, 1]))], "must have the test_labels of"),
        (a, "draws must be a list of results of bayesattn.sample"),
        ([], r"draws must be a list of .*, got \[\]"),
        ([a, 3], "draws must be the result of bayesattn.sample, a Run or a run's folder, got 3"),
    ):
        with pytest.raises(ValueError, match=message):
            concat(draws)
    for joined, message in (
        (xr.concat([a, a], dim="draw"), "must be of other seeds, got the same draws twice"),
        (xr.concat([a, colder], dim="chain"), "one model, .* constant_data.'fingerprint'. differ along chain"),
        (xr.concat([a, b.isel(draw=slice(50))], dim="chain"), "must be as many of each chain, got lp that are not fin"),
        (xr.concat([a, b], dim="seed"), "must have axes chain, draw, path, other_path, got .*seed"),
        (a.isel(chain=0), "must have axes chain, draw, path, other_path, got draw, path, other_path"),
        (a.isel(path=[0]), "the same paths along path and other_path, got"),
        (a["posterior"], "draws must have the group posterior, got groups none"),
    ):
        for name in ("diagnose", "summary", "figure", "validate"):
            with pytest.raises(ValueError, match=message):
                TAKE_DRAWS[name](model, joined)


OTHERS = {
    "temperature = 0.3, not 0.5": lambda model: {"temperature": 0.3},
    "other labels": lambda model: {"path_inputs": model.path_inputs[:4], "labels": model.labels[:4], "tokens": None},
    "other path_inputs": lambda model: {"path_inputs": model.path_inputs[:, ::-1], "tokens": None},
}
BY_ATTRIBUTE = {
    r"widths = \[3, 5\], not \[3, 4\]": lambda _: {"architecture": ba.Architecture((2,), (3, 5), (1.2, 0.9, 1.1))},
    "variances = ": lambda _: {"architecture": ba.Architecture((2,), (3, 4), (1.0, 1.0, 1.0))},
    "observation = categorical, not gaussian": lambda _: {"likelihood": ba.Categorical(0.5), "labels": [1.0, -1.0] * 3},
}


@pytest.mark.parametrize("what", [*OTHERS, *BY_ATTRIBUTE])
def test_draws_of_another_model_are_refused_by_all_that_take_both(model, several, what):
    other, tree = model.replace(**(OTHERS | BY_ATTRIBUTE)[what](model)), several[0]
    said = f"model must be the one that draws are of, got one with {what}"
    lost = tree.copy()
    lost.attrs = {}
    earlier = lost.copy()
    earlier["constant_data"] = xr.DataTree(lost["constant_data"].to_dataset().drop_vars("fingerprint"))
    cases = [(tree, said)]
    if what in OTHERS:
        cases += [(lost, said), (earlier, said)]
    else:  # Earlier draws do not say, nor hold, anything of them.
        labels = what.startswith("observation")
        cases += [(lost, f"got one with other {'labels' if labels else 'data, temperature or architecture'}")]
    for draws, message in cases:
        for function in OF_BOTH.values():
            with pytest.raises(ValueError, match=message):
                function(other, draws)


def test_what_decides_no_posterior_may_differ(model, several):
    """Test examples, names, and the last bit of inputs that another processor computed."""
    other = model.replace(test_path_inputs=None, test_labels=None, name="x", head_names=[["a", "b"]], tokens=None)
    near = model.replace(path_inputs=model.path_inputs * (1 + 1e-15), tokens=None)
    assert near.fingerprint != model.fingerprint
    theory = Predicted(np.eye(2), 1.1 * np.eye(2), 0.1, None)
    expected = several[0]["posterior"]["order_parameter"].values.mean((0, 1))
    for same in (other, near):
        found = ba.validate(several[0], model=same, prediction=theory)
        np.testing.assert_allclose(found.order_parameter, expected, rtol=1e-12)


def test_padding_is_part_of_a_model_and_a_mask_of_tokens_alone_is_not(zoo):
    model = zoo_model("attention")
    tokens = np.ones(model.inputs.shape[:2], bool)
    padded = tokens & (np.arange(tokens.shape[1]) < 2)
    plain = model.replace(inputs=np.where(padded[..., None], model.inputs, 0.0))
    unmasked, masked, complete = (ModelRecord.of_model(plain.replace(mask=mask)) for mask in (None, padded, tokens))
    assert (unmasked.difference(masked), masked.difference(unmasked)) == ("a mask, not none", "no mask, not one")
    assert (complete.difference(masked), masked.difference(complete)) == ("other mask", "other mask")
    assert unmasked.difference(complete) is None
    first, second = (zoo.draws("attention").isel(chain=[chain]) for chain in (0, 1))
    dims, tests = ("test_example", "test_token"), np.ones(model.test_inputs.shape[:2], bool)
    shorter = tests.copy()
    shorter[:, -1] = False
    whole, part = (changed(second, "constant_data", test_mask=(dims, each)) for each in (tests, shorter))
    assert concat([first, whole])["posterior"].sizes["chain"] == 2
    for trees in ([first, part], [part, first], [whole, part]):
        with pytest.raises(ValueError, match=r"draws\[1\] must have the test_mask of draws\[0\], got others"):
            concat(trees)


def test_axes_are_put_right_by_name(model, several, said):
    tree, expected = several[0], said[0]
    turned = tree.map_over_datasets(lambda node: node.transpose(*reversed([*node.dims])))
    assert json.dumps(numbers(turned, model)) == expected
    swapped = tree.copy()
    swapped["posterior"] = xr.DataTree(tree["posterior"].to_dataset().isel(path=[1, 0]))
    found, wanted = numbers(swapped, model), json.loads(expected)
    # Tables name the paths in the order of the tree.
    assert len(found.pop("summary")) == len(wanted.pop("summary"))
    assert json.dumps(found) == json.dumps(wanted)
    both, readouts = tree.isel(path=[1, 0], other_path=[1, 0]), theory_predictions.readout_batches
    np.testing.assert_array_equal(readouts(model, both), readouts(model, tree))
    array = tree["posterior"]["order_parameter"].transpose("draw", "other_path", "chain", "path")
    np.testing.assert_array_equal(order_parameters_of(array, model), order_parameters_of(tree, model))


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ("[ps]*/*/c.1.1*", "posterior"),
        ("posterior/prediction/c.0.0*", r"posterior\['prediction'\]"),
        ("sample_stats/lp/c.0.0*", r"sample_stats\['lp'\]"),
        ("constant_data/test_labels/c*", r"constant_data\['test_labels'\]"),
        ("observed_data/labels/c*", r"observed_data\['labels'\]"),
    ],
)
def test_all_that_take_draws_refuse_what_xarray_reads_as_nan(model, run, tmp_path, monkeypatch, files, name):
    """Chunks that a run has not written yet, or has lost: the accuracy of predictions that are NaN would be 0."""
    shutil.copytree(run.path, tmp_path / "run")
    monkeypatch.setattr("bayesattn.models.draws.BLOCK_ENTRIES", 100)
    assert summary(xr.open_datatree(tmp_path / "run", engine="zarr")) == run.summary()
    chunks = [*(tmp_path / "run").glob(files)] or [*(tmp_path / "run").glob(files.replace("c.1.1", "c.1.0"))]
    assert chunks
    for chunk in chunks:
        chunk.unlink()
    draws = xr.open_datatree(tmp_path / "run", engine="zarr")
    for function in TAKE_DRAWS.values():
        with pytest.raises(BayesattnError, match=rf"draws must be finite, got {name}.* run\.draws\(\) of a"):
            function(model, draws)


def test_arrays_and_queries_that_are_not_finite_are_refused(model, several):
    sampled = several[0]["posterior"]["order_parameter"].values.copy()
    sampled[0, 3, 0, 1] = np.nan
    with pytest.raises(BayesattnError, match="order_parameters must be finite, got nan"):
        theory_predictions.readout_batches(model, sampled)
    dims = ("head_1", "key_feature", "feature")
    values = {"queries_1": (dims, np.zeros((2, 2, 2))), "keys_1": (dims, np.full((2, 2, 2), np.nan))}
    drawn = xr.Dataset(values | {"order_parameter": (("path", "other_path"), np.eye(2))}).expand_dims(chain=2, draw=5)
    attention = zoo_model("attention")
    with pytest.raises(BayesattnError, match=r"draws must be finite, got posterior\['keys_1'\] with NaN"):
        ba.predict(xr.DataTree.from_dict({"posterior": drawn}), attention.test_inputs, model=attention)


TREES = {
    "with groups": lambda several, run: ba.with_groups(several[0], prior_draws=5),
    "put together": lambda several, run: concat([several[0], run]),
    "put together by xarray": lambda several, run: xr.concat([several[0], run.draws()], dim="chain"),
    "some draws": lambda several, run: xr.open_datatree(run.path, engine="zarr").isel(chain=[1], draw=slice(20, None)),
}


@pytest.mark.parametrize("name", TREES)
def test_trees_are_written_and_read_again_to_the_same_numbers(model, several, run, tmp_path, name):
    tree, everything = TREES[name](several, run), name.startswith("some")
    expected = json.dumps(numbers(tree, model, everything))
    tree.to_zarr(tmp_path / "tree.zarr")
    tree.to_netcdf(tmp_path / "tree.nc", engine="h5netcdf")
    for file, engine in (("tree.zarr", "zarr"), ("tree.nc", "h5netcdf")):
        with xr.open_datatree(tmp_path / file, engine=engine) as again:
            assert again.attrs == tree.attrs
            assert json.dumps(numbers(again, model, everything)) == expected


def test_runs_of_earlier_versions_whose_attribute_is_a_dictionary_open(model, run, tmp_path):
    copy = shutil.copytree(run.path, tmp_path / "run")
    root = json.loads((copy / "zarr.json").read_text())
    assert isinstance(root["attributes"][ATTRIBUTE], str)
    root["attributes"][ATTRIBUTE] = json.loads(root["attributes"][ATTRIBUTE])
    (copy / "zarr.json").write_text(json.dumps(root))
    earlier = runs.Run(copy)
    earlier.draws().to_netcdf(tmp_path / "tree.nc", engine="h5netcdf")
    found = ba.predict(xr.open_datatree(copy, engine="zarr"), model.test_path_inputs)
    np.testing.assert_array_equal(found.mean, ba.predict(earlier, model.test_path_inputs).mean)


def test_figures_take_draws_runs_and_folders_alike(model, several, run, latent):
    expected = [axes.get_title() for axes in plots.run_figure(run).axes]
    assert len(expected) > 8
    for draws in (str(run.path), xr.concat(several, dim="chain"), concat([*several, run])):
        figure = plots.run_figure(draws)
        assert {axes.get_title() for axes in figure.axes} == {*expected}
        assert "model, N = 3, T = 0.5, nuts (collapsed), " in figure.get_suptitle()
    assert "6 chains of 60 draws" in figure.get_suptitle()
    assert "latent, mala (latent), 2 chains of 60 draws" in plots.run_figure(latent[0]).get_suptitle()
    bare = xr.DataTree.from_dict({"posterior": several[0]["posterior"].to_dataset()})
    assert plots.validation_figure(several[0]).get_suptitle() == plots.validation_figure([run]).get_suptitle()
    assert "draws of a model that they do not name" in plots.run_figure(bare).get_suptitle()
    assert plots.run_figure(bare, "U").axes
    for call, message in (
        (lambda: plots.run_figure(several[0].isel(draw=slice(0))), "run must have draws to show, got one that has"),
        (lambda: plots.run_figure(3), "draws must be the result of bayesattn.sample, a Run or a run's folder, got 3"),
        (lambda: plots.validation_figure([]), "validations must hold at least one, got none"),
        (lambda: plots.validation_figure(latent[0]), "draws must be of a network, .* got those of a LatentModel"),
        (lambda: plots.calibration_figure(several[0]), "calibrations must be results of bayesattn.calibration by name"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_names_of_classes_and_heads_are_those_that_draws_know():
    made = zoo_model("classes").replace(output_names=("ant", "cat", "dog"))
    assert axis_names(made)["output"] == ["ant", "cat", "dog"]
    assert "output" not in axis_names(made.replace(output_names=None))
    drawn = {"posterior": {"prediction": np.random.default_rng(0).normal(size=(2, 60, 5, 3))}}
    tree = arviz_base.from_dict(drawn | data_groups(made), dims=axes(made))
    tree.attrs[ATTRIBUTE] = json.dumps(described(made))
    each, by_class = plots.run_figure(tree, ["prediction"]).axes[:2]
    assert [tick.get_text() for tick in by_class.get_xticklabels()] == ["ant", "cat", "dog"]
    counts = made.test_labels.sum(0).astype(int)
    assert [tick.get_text() for tick in by_class.get_yticklabels()] == [
        f"{name} ({count})" for name, count in zip(["ant", "cat", "dog"], counts, strict=True)
    ]
    # Examples stand by the class of their label, those with the greatest prediction for it first.
    held = [name for name, count in zip(["ant", "cat", "dog"], counts, strict=True) if count]
    assert [tick.get_text() for tick in each.get_xticklabels()] == held
    mean, first = tree["posterior"]["prediction"].values.mean((0, 1)), counts.argmax()
    own = np.sort(mean[made.test_labels.argmax(1) == first, first])[::-1]
    np.testing.assert_allclose(each.lines[-3 + first].get_ydata()[counts[:first].sum() :][: len(own)], own)
    # Numbers of several outputs are no classes.
    tree["constant_data"]["test_labels"] = tree["constant_data"]["test_labels"] + np.array([0.5, 0.0, 0.0])
    assert [axes.get_title() for axes in plots.run_figure(tree, ["prediction"]).axes][1] == "By label"
    # The same draws of Gaussian labels have an error.
    gaussian = described(made.replace(likelihood=ba.Gaussian(0.5), labels=np.array(made.labels)))
    tree.attrs[ATTRIBUTE] = json.dumps(gaussian)
    title = [axes.get_title() for axes in plots.run_figure(tree, ["prediction"]).axes][1]
    expected = np.sqrt(np.mean((mean - tree["constant_data"]["test_labels"].values) ** 2))
    assert title == f"By label: root mean square error {expected:.3g}"
    assert not [row for row in summary(tree) if row["quantity"] == "accuracy"]
    one = zoo_model("two").replace(head_names=[["copies", "induction"]])
    tree.attrs[ATTRIBUTE] = json.dumps(described(one))
    assert names_of(tree) == Names([["copies", "induction"]])


def test_two_classes_keep_their_names_and_figures_count_as_scores_do():
    one = zoo_model("one")
    labels, test_labels = (np.resize([1.0, -1.0, 1.0], len(each)) for each in (one.labels, one.test_path_inputs))
    made = one.replace(labels=labels, test_labels=test_labels, output_names=("ant", "cat"))
    assert f"ant (-1, {np.sum(labels < 0)}), cat (+1, {np.sum(labels > 0)})" in repr(made)
    assert (made.row_names, "output" in axis_names(made)) == (one.row_names, False)
    # A tenth of the draws is so far on the other side that the means are there, but the labels are not likely there.
    outputs = np.where(np.arange(60) % 10 == 0, -20.0, 1.0)[None, :, None] * np.tile(test_labels, (2, 1, 1))
    tree = arviz_base.from_dict({"posterior": {"prediction": outputs}} | data_groups(made), dims=axes(made))
    tree.attrs[ATTRIBUTE] = json.dumps(described(made))
    found = score(tree)
    assert (found.accuracy, found.names) == (1.0, ("ant", "cat"))
    as_names = np.where(test_labels > 0, "cat", "ant")
    for labels_by_name in (as_names, list(as_names), ba.one_hot(as_names, names=("cat", "ant"))):
        assert repr(stored_prediction(made, tree).scores(labels_by_name)) == repr(found)
    with pytest.raises(ValueError, match=r"labels\[0\] must be one of \('ant', 'cat'\), got 'cow'"):
        stored_prediction(made, tree).scores(["cow", "ant", "cat"])
    by_label = plots.run_figure(tree, ["prediction"]).axes[1]
    assert by_label.get_title() == "By label: 100.0 % are right"
    held = [f"{name} ({np.sum(test_labels == sign)} examples)" for name, sign in (("ant", -1), ("cat", 1))]
    assert [text.get_text() for text in by_label.get_legend().get_texts()] == held
    others = tree.copy()
    others.attrs[ATTRIBUTE] = json.dumps(described(made.replace(output_names=("ant", "cow"))))
    with pytest.raises(ValueError, match=r"must have the classes ant, cat, as draws\[0\] have, got ant, cow"):
        concat([tree, others])
    with pytest.raises(ValueError, match=r"output_names must name one output, or its classes -1 and \+1, got 3"):
        one.replace(output_names=("a", "b", "c"))
    # Names that labels have no use for stay silent: calibration, say, draws labels that are numbers.
    assert "(-1, " not in repr(made.replace(labels=labels / 2))
    tree["constant_data"]["test_labels"] = tree["constant_data"]["test_labels"] / 2
    texts = plots.run_figure(tree, ["prediction"]).axes[1].get_legend().get_texts()
    assert texts[0].get_text().startswith("label -0.5 (")


def test_labels_are_read_by_the_names_of_their_classes():
    numbers = ("1", "2")
    for labels, names, outputs, expected in (
        ([1, 1], numbers, 1, [-1, -1]),
        (np.array([1.0, 2.0]), numbers, 1, [-1, 1]),
        ([1, -1], numbers, 1, [1, -1]),
        (np.array([1.0, -1.0]), numbers, 1, [1, -1]),
        (np.ones(2), ("0", "1"), 1, [1, 1]),
        ([1.0, -1.0], ("1", "-1"), 1, [1, -1]),
        ([True, False], ("False", "True"), 1, [1, -1]),
        ([[1], [2]], numbers, 1, [-1, 1]),
        ([1], ("0", "1", "2"), 3, [[0, 1, 0]]),
        (np.eye(3)[[1, 1]], ("0", "1", "2"), 3, np.eye(3)[[1, 1]]),
        (pd.Series(["b", "a"], dtype="category"), ("a", "b"), 1, [1, -1]),
        ([0.3, -0.2], ("a", "b"), 1, [0.3, -0.2]),
        (["x"], None, 1, ["x"]),
    ):
        np.testing.assert_array_equal(coded("labels", labels, names, outputs), expected)
    with pytest.raises(BayesattnError, match="got floats that are all 1, which may be either"):
        coded("labels", np.ones(2), numbers, 1)


def test_folders_are_opened_in_a_process_that_has_opened_none(run, tmp_path):
    """Whichever function or command asks first; all of them go through `stored`."""
    asked = "import sys; from bayesattn.checks.diagnostics import diagnose; print(diagnose(sys.argv[1]).chains)"
    plotted = "import sys; from bayesattn.jobs.cli import main; sys.argv[1:1] = ['plot']; main()"
    for program, *options in ((asked,), (plotted, "--out", str(tmp_path / "figure.png"))):
        subprocess.run([sys.executable, "-c", program, str(run.path), *options], check=True)
    assert (tmp_path / "figure.png").is_file()
