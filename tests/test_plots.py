"""Figures: what they show is inside the picture, apart from each other and from the data, and what the draws say."""

import dataclasses
import io
import itertools
import json
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.legend import Legend

from bayesattn import models, runs
from bayesattn.checks.accuracy import Accuracy, Gain
from bayesattn.checks.alignment import Alignment
from bayesattn.checks.ranks import chain_band, chain_ecdfs
from bayesattn.jobs import cli, plots
from bayesattn.jobs.plots import style
from bayesattn.jobs.plots.diagnostics import scalars, thinning
from bayesattn.jobs.plots.run import draw, lacking
from bayesattn.models.stored_model import ATTRIBUTE
from tests.zoo import LIGHT

LONG = "attends_to_the_previous_token_of_the_same_state"


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def run(zoo):
    return runs.Run(zoo.run("one"))


def posterior(paths=2, tests=30, chains=4, count=200):
    """Independent draws of a U of some paths, with predictions for labels of -1 and +1."""
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(chains, count, paths, paths + 3)) * np.sqrt(np.arange(1, paths + 1))[:, None]
    names, along = [f"{LONG} -> {path}" for path in range(paths)], ("chain", "draw")
    labels = np.resize([-1.0, 1.0], tests)
    drawn = {
        "order_parameter": ((*along, "path", "other_path"), factors @ np.swapaxes(factors, 2, 3) / paths),
        "prediction": ((*along, "test_example"), labels + rng.normal(size=(chains, count, tests))),
    }
    groups = {
        "posterior": xr.Dataset(drawn, coords={"path": names, "other_path": names}),
        "sample_stats": xr.Dataset({name: (along, rng.normal(size=(chains, count))) for name in ("lp", "energy")}),
        "constant_data": xr.Dataset({"test_labels": ("test_example", labels)}),
    }
    return xr.DataTree.from_dict(groups)


def validation(width=10, paths=2, tested=True, aligned=20, verdict="holds"):
    """What figures ask of a validation, with the numbers of no posterior."""
    rng, saddle = np.random.default_rng(width), np.diag(np.linspace(1, 2, paths))
    gain = Gain(0.1, 20, 10, 100, 0.01)
    shares = Accuracy(0.9, 0.9, 0.9, 0.01, 0.8, {"good path": 0.85}, 100, {"all paths": gain}, {"all paths": gain})
    eigenvectors = [rng.uniform(size=aligned) for _ in range(3)]
    model = SimpleNamespace(name="model", temperature=0.1, labels=np.zeros(3), compressed=None)
    model.row_names = [f"{LONG} -> {path}" for path in range(paths)]
    model.replace = lambda **changes: SimpleNamespace(fingerprint=paths)
    found = SimpleNamespace(
        model=model, width=width, saddle=saddle, error=np.full((paths, paths), 0.01), verdict=verdict
    )
    found.corrected = found.order_parameter = saddle * (1 + 1 / width)
    found.accuracy = shares if tested else None
    found.alignment = Alignment(0.3, 0.01, 0.2, 0.2, *eigenvectors) if aligned else None
    return found


def test_one_model_is_drawn_and_accuracy_at_the_widths_that_have_test_labels():
    figure = plots.validation_figure([validation(10, tested=False), validation(100), validation(1000)])
    assert figure.get_suptitle() == "model: theory and draws of the posterior, T = 0.1; the theory holds"
    doubtful = [validation(10), validation(100, verdict="cannot tell")]
    assert plots.validation_figure(doubtful).get_suptitle().endswith("; the draws cannot tell")
    np.testing.assert_array_equal(labelled(figure.findobj(Axes)[0], "theory, saddle").get_xdata(), [100, 1000])
    with pytest.raises(ValueError, match="must be of one model at several widths and temperatures, got models that"):
        plots.validation_figure([validation(10), validation(100, paths=3)])


def test_a_figure_says_why_there_is_no_accuracy_and_no_alignment():
    for labels, compressed, why in (
        (np.zeros(3), None, "all labels are 0"),
        (np.ones(2001), None, "more than 2000 labels"),
        (np.ones(3), object(), "the dataset holds no single examples"),
    ):
        without = validation(tested=False, aligned=0)
        without.model.labels, without.model.compressed = labels, compressed
        title = plots.validation_figure([without]).get_suptitle()
        assert f"no alignment: {why}" in title
        assert "no accuracy: the model has no test labels" in title
    assert "accuracy" not in plots.validation_figure([validation()]).get_suptitle()


def calibrated(count):
    ranks = np.random.default_rng(0).integers(0, 20, (50, 3))
    one = SimpleNamespace(ranks=ranks, draws=19, names=["U 1", "f 1", "log likelihood"], holds=True)
    return {f"sampler {number}": one for number in range(count)}


OF_KINDS = {
    "trace": ["draw"],
    "ess": ["draw", "draws of all chains"],
    "energy": ["chain"],
    "prediction": ["test example"],
}
FIGURES = {
    "one width": (lambda: plots.validation_figure([validation()]), ["eigenvector"]),
    "three widths": (lambda: plots.validation_figure([validation(n) for n in (10, 100, 1000)]), ["eigenvector"]),
    "many paths": (lambda: plots.validation_figure([validation(paths=16)]), ["eigenvector"]),
    "no test labels": (lambda: plots.validation_figure([validation(tested=False)]), ["eigenvector"]),
    "labels of 0": (lambda: plots.validation_figure([validation(tested=False, aligned=0)]), []),
    "one example": (lambda: plots.validation_figure([validation(aligned=1)]), ["eigenvector"]),
    "one sampler": (lambda: plots.calibration_figure(calibrated(1)), ["rank among 19"]),
    "five samplers": (lambda: plots.calibration_figure(calibrated(5)), ["rank among 19"]),
    "U, by heads, 36 paths": (lambda: drawn("U", posterior(36), [[str(head) for head in range(1, 7)]] * 2), []),
} | {
    f"{kind}, {paths} paths": (lambda kind=kind, paths=paths: drawn(kind, posterior(paths)), OF_KINDS.get(kind, []))
    for kind, paths in itertools.product(plots.KINDS, (2, 16))
    if paths == 2 or kind not in ("energy", "prediction")  # Which know no paths.
}
"""Figures, and what their axes count."""
COUNTED = ("draw", "draws of all chains", "test example", "eigenvector", "rank among 19", "chain")


def drawn(kind, draws, heads=None):
    figure = plt.figure(figsize=(13, 4), layout="constrained")
    if heads is not None:
        layers = len(heads)
        model = f"heads = {[*map(len, heads)]}\nwidths = {[3] * (layers + 1)}\nvariances = {[1.0] * (layers + 2)}"
        draws.attrs[ATTRIBUTE] = json.dumps({"model": f"[architecture]\n{model}", "about_model": {"head_names": heads}})
    draw(figure, kind, draws)
    return figure


def test_of_many_paths_the_greatest_are_named_and_all_are_on_a_map_of_heads():
    draws = posterior(36)
    by_heads, greatest, *_ = drawn("U", draws, [[str(head) for head in range(1, 7)]] * 2).axes
    mean = np.einsum("cdpp->p", draws["posterior"]["order_parameter"].values) / 800
    np.testing.assert_allclose(by_heads.images[0].get_array(), mean.reshape(6, 6))
    assert [label.get_text() for label in by_heads.get_yticklabels()][:2] == ["head 1", "head 2"]
    assert greatest.get_title() == "Posterior of the 20 greatest of 36 diagonal entries of U"
    medians = greatest.lines[-1].get_xdata()
    assert len(medians) == 20
    assert medians.min() > np.sort(mean)[10]


@pytest.mark.parametrize("name", FIGURES)
def test_what_is_drawn_is_inside_the_picture_and_apart_and_what_is_counted_has_whole_ticks(name):
    make, counted = FIGURES[name]
    figure = make()
    figure.draw_without_rendering()
    axes, picture = figure.findobj(Axes), figure.bbox.padded(1)
    boxes = [of.get_tightbbox() for of in axes]
    for legend in figure.findobj(Legend):
        box = legend.get_window_extent()
        assert picture.contains(*box.min)
        assert picture.contains(*box.max)
        assert not any(box.overlaps(of.bbox.padded(-1)) for of in axes), "legend over data"
    for of, box in zip(axes, boxes, strict=True):
        assert picture.contains(*box.min), of.get_title()
        assert picture.contains(*box.max), of.get_title()
        assert of.has_data(), "an empty panel"
    for (first, box), (second, other) in itertools.combinations(zip(axes, boxes, strict=True), 2):
        assert not box.padded(-1).overlaps(other), (first.get_title(), second.get_title())
    found = {axis.get_label_text(): axis for of in axes for axis in (of.xaxis, of.yaxis)}
    assert {start for start in COUNTED if any(label.startswith(start) for label in found)} == {*counted}
    for of in axes:
        for axis in (of.xaxis, of.yaxis):
            if axis.get_label_text().startswith(COUNTED):
                low, high = sorted(axis.get_view_interval())
                ticks = [tick for tick in axis.get_ticklocs() if low <= tick <= high]
                assert ticks
                assert all(tick == round(tick) for tick in ticks), axis.get_label_text()


def labelled(axes, start):
    [line] = [line for line in axes.lines if str(line.get_label()).startswith(start)]
    return line


def test_theory_is_seen_at_one_width():
    """All three are equal here: each has a marker, and none is under another."""
    accuracy, deviations, *_ = plots.validation_figure([validation()]).findobj(Axes)
    places = []
    for start in ("theory, saddle", "theory, to first"):
        line = labelled(accuracy, start)
        assert line.get_marker() in ("s", "x")
        places.append(line.get_xdata()[0])
    assert len({*places, 10}) == 3
    low, high = accuracy.get_xlim()
    assert low < min(places) < max(places) < high
    cross = labelled(deviations, "theory, to first")
    np.testing.assert_allclose(cross.get_ydata(), 10)
    dots = deviations.containers[0].lines[0]
    assert not set(dots.get_xdata()) & set(cross.get_xdata())


def test_quantities_and_limits_whose_short_names_agree_are_all_drawn():
    draws, names = posterior(paths=2), [f"attends_early_{path} -> uniform_over_all" for path in "ab"]
    draws["posterior"] = draws["posterior"].to_dataset().assign_coords(path=names, other_path=names)
    shortened = {style.short(name) for name in scalars(draws)}
    assert len(shortened) < len(scalars(draws)) == 3
    for kind in ("trace", "rank", "ess"):
        assert len(drawn(kind, draws).axes) == 3
    many = validation()
    groups = {names[0].replace("_a", f"_{path}"): 0.5 + path / 10 for path in range(4)}
    many.accuracy = dataclasses.replace(many.accuracy, gp_of_groups=groups)
    accuracy = plots.validation_figure([many]).findobj(Axes)[0]
    levels = [line.get_ydata()[0] for line in accuracy.lines if str(line.get_label()).startswith("GP limit")]
    np.testing.assert_allclose(levels, [80, 50, 60, 70, 80])


def test_rank_figures_show_the_curves_and_their_band():
    draws = posterior(chains=3, count=25)
    figure = drawn("rank", draws)
    for axes, values in zip(figure.axes, scalars(draws).values(), strict=True):
        every = thinning(values)
        ranked = values[:, ::every]
        assert (f"thinned by {every}" in axes.get_xlabel()) == (every > 1)
        for chain, curve in enumerate(chain_ecdfs(ranked)):
            np.testing.assert_array_equal(labelled(axes, f"chain {chain + 1}").get_ydata(), curve)
        low, high = axes.collections[0].get_paths()[0].get_extents().intervaly
        assert -low == high == chain_band(*ranked.shape).max()


def test_figures_show_what_the_draws_say():
    draws = posterior()
    sampled, predictions = (draws["posterior"][name].values for name in ("order_parameter", "prediction"))
    matrix, intervals, _ = drawn("U", draws).axes
    np.testing.assert_allclose(matrix.images[0].get_array(), sampled.mean((0, 1)))
    medians = np.median(sampled.reshape(-1, 2, 2), axis=0)
    np.testing.assert_allclose(labelled(intervals, "median").get_xdata(), np.diag(medians))
    curve = labelled(drawn("prediction", draws).axes[0], "mean predictor").get_ydata()
    np.testing.assert_allclose(curve, np.sort(predictions.mean((0, 1))))
    assert "100.0 % are right" in drawn("prediction", draws).axes[1].get_title()
    lines = drawn("trace", draws).axes[0].lines
    np.testing.assert_array_equal(lines[1].get_ydata(), draws["sample_stats"]["lp"].values[1])


def test_figures_show_outputs_and_an_unknown_temperature():
    draws, rng = posterior(paths=2), np.random.default_rng(0)
    along, of_test = ("chain", "draw"), ("test_example", "output")
    sampled, labels = rng.normal(size=(4, 200, 30, 3)), np.eye(3)[np.arange(30) % 3]
    several = {"prediction": ((*along, *of_test), sampled), "temperature": (along, rng.gamma(1, size=(4, 200)))}
    draws["posterior"] = draws["posterior"].to_dataset().drop_vars("prediction").assign(several)
    draws["constant_data"] = xr.Dataset({"test_labels": (of_test, labels)})
    axes, mean, classes = drawn("prediction", draws).axes[0], sampled.mean((0, 1)), np.arange(30) % 3
    # By the class of the label, and the surest of each class first.
    order = sorted(range(30), key=lambda example: (classes[example], -mean[example, classes[example]]))
    for output in range(3):
        curve = labelled(axes, f"output {output + 1}").get_ydata()
        np.testing.assert_allclose(curve, mean[order, output])
    assert [*scalars(draws)][:2] == ["log posterior", "T"]


def test_a_page_of_a_run_holds_all_kinds_and_says_what_it_is(run):
    figure = plots.run_figure(run)
    for said in ("model, N = 3, T = 0.5", "nuts (collapsed)", "2 chains of 60 draws"):
        assert said in figure.get_suptitle()
    titles = {axes.get_title() for axes in figure.axes}
    assert {"log posterior", "Energy", "BFMI", "Posterior of the diagonal entries of U", "Predictions"} <= titles
    assert {axes.get_title() for axes in plots.run_figure(run, ["energy"]).axes} == {"Energy", "BFMI"}
    with pytest.raises(ValueError, match=r"kinds must be one of 'trace', .*'prediction', got 'u'"):
        plots.run_figure(run, ["u"])


def test_kinds_without_anything_to_show_are_left_out_and_named(tmp_path):
    """One chain of a latent, which predicts nothing, by a sampler without energy."""
    model = models.LatentModel(features=[[1.0], [2.0]], values=[[0.5], [1.5]], noise=0.5, prior=1.0)
    run = runs.sample(model, tmp_path / "one", **LIGHT | {"parameterisation": "latent", "chains": 1})
    missing = {
        "energy": "the sampler has no energy",
        "prediction": "the model has no test inputs",
        "rank": "one chain has no others to be ranked among",
    }
    assert lacking(run.draws()) == missing
    titles = [axes.get_title() for axes in plots.run_figure(run).axes]
    assert "Posterior of the entries of z" in titles
    assert "Energy" not in titles
    for kind, why in missing.items():
        with pytest.raises(ValueError, match=f"'{kind}' only if .* {why}"):
            plots.run_figure(run, [kind])


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".PDF", b"%PDF"), (".svg", b"<?xml")])
def test_files_by_suffix_same_bytes_and_none_lost(suffix, start, tmp_path):
    file = tmp_path / "new" / f"figure{suffix}"
    assert plots.save(drawn("energy", posterior()), file) == file
    content = file.read_bytes()
    assert content.startswith(start)
    with pytest.raises(FileExistsError, match="file must not exist yet"):
        plots.save(plt.figure(), file)
    plots.save(drawn("energy", posterior()), file, overwrite=True)
    assert file.read_bytes() == content
    with pytest.raises(ValueError, match=r"file must end in .png, .pdf or .svg, got .*figure.jpg"):
        plots.save(plt.figure(), tmp_path / "figure.jpg")


def test_the_command_draws_and_refuses(run, command, tmp_path):
    asked = command("plot", run.path, "--kind", "U", "--kind", "trace", "--out", "figure.pdf")
    assert asked == (0, "figure in figure.pdf\n", "")
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")
    for arguments, said in {
        ("--out", "figure.pdf"): "--out must not exist yet, got figure.pdf",
        ("--out", "figure.jpg"): "--out must end in .png, .pdf or .svg, got figure.jpg",
        ("--kind", "traces"): "Invalid value for '--kind'",
    }.items():
        status, _, err = command("plot", run.path, *arguments)
        assert status == 2
        assert said in err
    assert command("plot", run.path, "--kind", "energy")[1] == f"figure in {run.path.name}.png\n"
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["figure.pdf", f"{run.path.name}.png"]


def test_a_commands_figure_goes_where_it_is_asked_for(command, tmp_path):
    (tmp_path / "taken.svg").write_text("mine")
    for file, said in (
        ("figure.jpg", "must end in .png, .pdf or .svg, got figure.jpg\n"),
        ("taken.svg", "must not exist yet, got taken.svg"),
    ):
        status, _, err = command("validate", "hidden_markov", "--figure", file)
        assert status == 2
        assert err.startswith(f"bayesattn: --figure {said}")
    cli.output.save_results(tmp_path / "out", {}, plt.figure, tmp_path / "figure.svg")
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["figure.png", "result.json"]
    assert (tmp_path / "figure.svg").read_bytes().startswith(b"<?xml")
    # One made meanwhile is kept.
    with pytest.raises(FileExistsError, match="must not exist yet"):
        cli.output.save_results(tmp_path / "second", {}, plt.figure, tmp_path / "taken.svg")
    assert (tmp_path / "taken.svg").read_text() == "mine"
    assert (tmp_path / "second" / "result.json").exists()


def test_entries_of_a_heat_map_say_what_is_known():
    for value, error, shown in ((2.5e-6, 3e-8, "(2.500\n±0.030)e-06"), (1.5, np.nan, "1.500")):
        axes = plt.figure().subplots()
        style.heat_map(axes, np.array([[value]]), ["a"], ["a"], 1.0, np.array([[error]]))
        assert axes.texts[0].get_text() == shown


def test_long_names_keep_both_ends():
    shown = style.short("attends_to_the_previous_token -> uniform_over_all")
    assert len(shown) <= style.LONGEST_NAME
    assert shown.startswith("attends_")
    assert shown.endswith("over_all")
    assert style.short("$x$") == r"\$x\$"


def test_a_picture_is_what_matplotlib_saves_and_leaves_the_figure_as_it_was():
    saved, figure = io.BytesIO(), drawn("U", posterior())
    canvas, resolution = figure.canvas, figure.dpi
    picture = plt.imread(io.BytesIO(style.png(figure, 150)))
    assert figure.canvas is canvas
    assert figure.dpi == resolution
    drawn("U", posterior()).savefig(saved, format="png", dpi=150)
    saved.seek(0)
    np.testing.assert_array_equal(picture, plt.imread(saved))
