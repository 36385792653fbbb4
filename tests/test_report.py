"""The report: self-contained, complete, readable by a browser and by a screen reader."""

import html
import itertools
import re
import shutil
import subprocess
from html.parser import HTMLParser
from types import SimpleNamespace
from unittest.mock import Mock

import matplotlib.pyplot as plt
import numpy as np
import pandas
import pytest
import xarray as xr
from matplotlib.colors import to_rgb

import bayesattn as ba
from bayesattn import runs
from bayesattn.checks.theory_predictions import predicted
from bayesattn.errors import BayesattnError
from bayesattn.jobs import report, tables
from bayesattn.jobs.plots.style import ON_DARK, ON_LIGHT, palette
from bayesattn.jobs.report import figures, sections, stored_theory, verdicts
from bayesattn.joining import concat
from bayesattn.models import LatentModel
from bayesattn.questions import exchangeable
from bayesattn.questions.heads import Losses
from bayesattn.theory import potential
from tests.posteriors import tiny_model
from tests.test_runs import StopAfter
from tests.zoo import LIGHT, QUICK

LATENT = LatentModel(features=[[1.0], [2.0]], values=[[0.5], [1.5]], noise=0.5, prior=1.0)
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")


class Elements(HTMLParser):
    """Start tags with their attributes, and what was never closed."""

    VOID = ("meta", "source", "img", "link", "br")

    def __init__(self, page):
        super().__init__()
        self.found, self.open = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(zoo, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    shutil.copytree(zoo.run("two"), folder / "N3<")
    runs.sample(LATENT, folder / "latent", **QUICK | {"parameterisation": "latent"})
    return report.report([folder / "N3<", folder / "latent"], folder / "report.html")


@pytest.fixture
def unpainted(monkeypatch):
    """Figures are made in one colour scheme and never painted, most of the work: for pages of which the text is read."""

    def sketched(make, caption, alternative):
        plt.close(make())
        return figures.EmbeddedFigure("", "", caption, alternative)

    for module in (report, sections):
        monkeypatch.setattr(module, "embedded", sketched)


@pytest.fixture
def run(zoo, tmp_path):
    """A copy of the run of two heads."""
    return runs.Run(shutil.copytree(zoo.run("two"), tmp_path / "run"))


def test_without_a_head_that_tells_examples_apart_there_are_no_losses(unpainted, run, tmp_path, monkeypatch):
    """Equal inputs would have different labels, which T cannot explain; other errors are not passed over."""
    model = tiny_model(heads=(2,))
    inputs, labels = model.path_inputs.copy(), np.tile([1.0, -1.0], 3)
    inputs[1, 1] = inputs[0, 1]
    model = model.replace(path_inputs=inputs, labels=labels, temperature=1e-15)
    runs.sample(model, tmp_path / "apart", **QUICK)
    text = report.report([tmp_path / "apart"], tmp_path / "report.html").read_text()
    assert "Head scores: how much each head matters" in text
    assert "evidence lost (nats)" not in text
    monkeypatch.setattr(stored_theory, "predicted_losses", Mock(side_effect=BayesattnError("must fit into memory")))
    with pytest.raises(BayesattnError, match="must fit into memory"):
        stored_theory.losses_without_each_head(run, run.draws())


def test_labels_that_are_all_0_have_a_report(tmp_path):
    model = tiny_model(heads=(2,))
    zero = runs.sample(model.replace(labels=np.zeros(6), test_labels=np.zeros(3)), tmp_path / "run", **QUICK)
    text = report.report([zero.path], tmp_path / "report.html").read_text()
    assert not re.search(r"\bnan\b", re.sub(r"data:image[^\"]*", "", text), re.IGNORECASE)
    found = ba.validate(zero.draws(), model=zero.model)
    assert (found.directions, found.accuracy) == (None, None)


def test_page_is_self_contained_and_well_formed(page):
    text = page.read_text()
    elements = Elements(text)
    assert elements.open == []
    addresses = [attributes.get(name, "") for _, attributes in elements.found for name in ("src", "srcset", "href")]
    assert all(re.match(r"(data:image/png;base64,|#|$)", address) for address in addresses)
    assert "http" not in re.sub(r"data:image[^\"]*", "", text)
    # Names of folders are text, not markup.
    assert "N3&lt;" in text
    # A heading names the model and its width, and then the run.
    assert re.search(r'<h2 id="run-1">model, N = 3, T = \S+ <span class="run">N3&lt;</span></h2>', text)
    assert re.search(r'<h2 id="run-2">\w+ <span class="run">latent</span></h2>', text)
    assert "<details open" not in text


def test_page_says_what_was_run_and_found(page):
    text = page.read_text()
    for expected in (
        # 120 draws are few, and the page warns.
        "Does the theory hold at N = 3? cannot tell: ",
        "the effective sample size of U is",
        "the effective sample size of z is",
        "The draws cannot tell whether they agree with the exact posterior: ",
        "draw more",
        "sampler = &#34;nuts&#34;",
        "jaxlib = ",
        "Traces",
        "Energy",
        "effective sample size of bulk and tails",
        "predictions on the test examples",
        "Head scores: how much each head matters",
        "evidence lost (nats)",
        "Strongest correlations of paths in U",
        "Training examples of greatest influence on the predictions",
        "no two paths are correlated by more than 0.1 at the saddle point.",
        "theory against draws at N = 3",
        "exact posterior",
    ):
        assert expected in text, expected


def test_screen_readers_and_keyboards_find_their_way(page):
    elements = Elements(page.read_text()).found
    assert dict(elements)["html"]["lang"] == "en"
    pictures = [attributes for tag, attributes in elements if tag == "img"]
    assert len(pictures) == 1 + 6 + 5
    assert all(len(attributes["alt"]) > 20 for attributes in pictures)
    identifiers = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(set(identifiers)) == len(identifiers)
    links = [attributes["href"][1:] for tag, attributes in elements if tag == "a"]
    assert set(links) <= set(identifiers)
    assert all(attributes.get("scope") for tag, attributes in elements if tag == "th")
    levels = [int(tag[1]) for tag, _ in elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_browser_shows_every_figure_without_errors(page, tmp_path):
    probe = """<script>addEventListener("load", () => {
      const shown = [...document.images].filter(i => i.complete && i.naturalWidth > 100).length;
      document.body.dataset.shown = shown + " of " + document.images.length;
      document.body.dataset.overflow = document.documentElement.scrollWidth > innerWidth;
    })</script></body>"""
    (tmp_path / "probe.html").write_text(page.read_text().replace("</body>", probe))
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    options += ["--window-size=400,800", "--enable-logging=stderr", "--dump-dom", "--virtual-time-budget=10000"]
    command = [CHROMIUM, *options, (tmp_path / "probe.html").as_uri()]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert 'data-shown="12 of 12"' in ended.stdout
    assert 'data-overflow="false"' in ended.stdout
    assert "CONSOLE" not in ended.stderr


def latent_table(sampled):
    """Of draws of z, at a level of 1 %."""
    dims = ("chain", "draw", "value_feature", "feature")
    draws = xr.DataTree.from_dict({"posterior": xr.Dataset({"latent": (dims, np.asarray(sampled))})})
    return tables.latent_table(LATENT, draws, 0.01)


def theory_table(verdict, **undefined):
    """Of one path whose every number is 1, but for those that are undefined."""
    names = ("saddle", "corrected", "draws", "error", "z", "rhat", "ess", "tail_ess", "pareto_k", "agrees")
    table = pandas.DataFrame([dict.fromkeys(names, 1.0) | {"agrees": True} | undefined])
    said = {"statement": lambda: f"{verdict}: said", "summary": lambda: table}
    model = SimpleNamespace(row_names=["0"])
    return tables.theory_table(SimpleNamespace(model=model, width=3, verdict=verdict, **said))


def test_latent_draws_agree_or_not_or_cannot_tell():
    """Independent draws of the exact posterior of z, or moved by one of its standard deviations."""
    exact = exchangeable.latent_posterior(LATENT.features, LATENT.values, LATENT.noise, LATENT.prior)
    deviation = np.sqrt(exact.covariance[0, 0])
    for chains, shift, holds, said in (
        (4, 0, True, "agree with the exact posterior to within 0."),
        (4, 1, False, "do not agree"),
        (1, 1, None, "one chain"),
    ):
        sampled = exact.mean + deviation * (shift + np.random.default_rng(0).normal(size=(chains, 300, 1, 1)))
        verdict, found, [row] = latent_table(sampled)
        assert found is holds
        assert said in verdict
        assert row["agrees"] == ("no" if shift else "yes")


def test_what_few_draws_leave_undefined_is_neither_a_number_nor_a_no():
    verdict, holds, [row] = latent_table(np.random.default_rng(0).normal(size=(2, 3, 1, 1)))
    assert holds is None
    assert "R-hat of z is not defined: draw more" in verdict
    assert row["draws"].endswith("± n/a")
    assert row["agrees"] == "n/a"
    unknown = dict.fromkeys(("error", "z", "rhat", "ess", "tail_ess", "pareto_k"), np.nan)
    [row] = theory_table("cannot tell", agrees=False, **unknown)[2]
    assert {row[name] for name in ("z", "R-hat", "ESS", "tail ESS", "Pareto k", "agrees")} == {"n/a"}


def test_a_loss_that_is_not_finite_is_unknown_and_moves_no_other():
    """All rows of a table have its columns."""
    nan, known, unknown = np.full(2, np.nan), np.array([0.5, 0.25]), np.array([-np.inf, 0.5])
    found = Losses(["a", "b"], unknown, nan, known, 0.1 * known, unknown, 0.1 * known, nan, ["head"])
    first, second = tables.losses_table(found)
    assert [*first] == [*second]
    assert (first["evidence lost (nats)"], first["log score lost (nats)"]) == ("n/a", "n/a")
    assert second["log score lost (nats)"].startswith("0.500 ±")


def test_three_outcomes_of_the_theory():
    """Only what fails is said to fail: draws that cannot tell leave the page undecided."""
    for verdict, holds in (("holds", True), ("does not hold", False), ("cannot tell", None)):
        text, shown, [row] = theory_table(verdict)
        assert (row["R-hat"], row["ESS"], row["agrees"]) == ("1.000", "1", "yes")
        assert shown is holds
        assert text == f"Does the theory hold at N = 3? {verdict}: said."


def contrast(*colors):
    """Contrast of two colours by their relative luminances, as WCAG defines it."""
    rgb = np.array([to_rgb(color) for color in colors])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    darker, lighter = sorted(linear @ [0.2126, 0.7152, 0.0722])
    return (lighter + 0.05) / (darker + 0.05)


def test_each_colour_scheme_has_its_own_colours_in_the_same_places():
    """Lines must be seen on dark paper: their contrast with it is 3 to 1 at least, as WCAG asks of graphics."""
    drawn = []

    def make():
        drawn.append(plt.figure(figsize=(2, 2), layout="constrained"))
        drawn[-1].subplots().plot([0, 1], [0, 1], color=palette().grey)
        drawn[-1].suptitle("above")
        return drawn[-1]

    shown = figures.embedded(make, "a figure", "a line")
    assert shown.light != shown.dark
    light, dark = drawn
    np.testing.assert_array_equal(light.axes[0].get_position(), dark.axes[0].get_position())
    assert light.texts[0].get_position() == dark.texts[0].get_position()
    for figure, colors, paper in ((light, ON_LIGHT, "white"), (dark, ON_DARK, figures.PAPER)):
        assert contrast(figure.axes[0].get_facecolor(), figure.axes[0].lines[0].get_color()) > 3
        for color in (colors.blue, colors.orange, colors.grey):
            assert contrast(color, paper) > 3, color


def test_alternatives_name_what_is_shown():
    diagnosis = SimpleNamespace(overall=lambda: "R-hat is 1", bfmi=1.0)
    words = figures.captions("log posterior, U[$x$]", diagnosis, latent=False)
    assert words["trace"][1] == "Traces of log posterior, U[$x$]. R-hat is 1."
    assert "log posterior" not in words["U"][1]
    assert "interval of its diagonal entries" in words["U"][1]
    assert "the latent z as a heat map" in figures.captions("", diagnosis, latent=True)["U"][1]


def test_theory_is_kept_with_a_run_until_posterior_or_code_change(run, monkeypatch):
    solve = Mock(side_effect=predicted)
    monkeypatch.setattr(stored_theory, "predicted", solve)
    same = stored_theory.posterior_of(run.model)
    first, second = stored_theory.theory_of(run, same), stored_theory.theory_of(runs.Run(run.path), same)
    assert solve.call_count == 1
    for one, other in zip(first[:3], second[:3], strict=True):
        np.testing.assert_array_equal(one, other)
    assert first.mean_predictors.keys() == second.mean_predictors.keys()
    for name, mean in predicted(run.model).mean_predictors.items():
        np.testing.assert_array_equal(second.mean_predictors[name], mean)
    others = [tiny_model(0.6, heads=(2,)), run.model.replace(test_path_inputs=2 * run.model.test_path_inputs)]
    assert len({same, *map(stored_theory.posterior_of, others)}) == 3
    monkeypatch.setattr(stored_theory, "THEORY_VERSION", stored_theory.THEORY_VERSION + 1)
    stored_theory.theory_of(run, same)
    assert solve.call_count == 2
    kept = run.path / runs.FOLDER / "theory.json"
    kept.write_text(kept.read_text().replace("0.", "1.", 1))
    np.testing.assert_array_equal(stored_theory.theory_of(run, same).saddle, first.saddle)
    assert solve.call_count == 3


def test_more_paths_than_theory_expands_for_are_shown_without_a_verdict(run, unpainted, tmp_path, monkeypatch):
    monkeypatch.setattr(potential, "MOST_COORDINATES", 1)
    text = report.report([run.path], tmp_path / "report.html").read_text()
    assert "The draws were not compared with the theory" in text
    assert text.count("entry of U</th>") == 1
    assert "saddle</th>" not in text
    with pytest.raises(ValueError, match="at most 1 coordinates of its order parameters for an expansion"):
        ba.validate(run.draws(), model=run.model)


def test_runs_of_other_data_have_figures_of_their_own():
    """Labels of tasks may agree where inputs do not; and accuracies on other test examples are no curve."""
    model = tiny_model(heads=(2,))
    other = model.replace(path_inputs=2 * model.path_inputs)
    models = [model, model.replace(width=5), other.replace(width=7), model.replace(temperature=1.0)]
    models += [model.replace(width=8, test_labels=None), model.replace(width=9, test_path_inputs=other.path_inputs[:3])]
    found = [SimpleNamespace(model=each, width=each.architecture.widths[0]) for each in models]
    assert [[each.width for each in group] for group in figures.by_model(found)] == [[3, 5], [7], [3], [8], [9]]


def test_runs_that_differ_in_seeds_alone_are_put_together(page, zoo, unpainted, tmp_path, monkeypatch):
    """The theory is solved for the other width alone: the page of the fixture has left the rest with its run."""
    model, solve, judge = tiny_model(heads=(2,)), Mock(side_effect=predicted), Mock(side_effect=ba.validate)
    shutil.copytree(page.parent / "N3<", tmp_path / "a")
    for folder, seed in (("b", 4), ("d", 5)):
        shutil.copytree(zoo.run("two", seed=seed), tmp_path / folder)
    runs.sample(model.replace(width=5), tmp_path / "c", **LIGHT)
    monkeypatch.setattr(stored_theory, "predicted", solve)
    monkeypatch.setattr(verdicts, "validate", judge)
    text = report.report([tmp_path / folder for folder in "abcd"], tmp_path / "page.html").read_text()
    assert [call.args[0].architecture.widths[0] for call in solve.call_args_list] == [5]
    assert text.count("1/N theory</th>") == text.count("<h2") == 4
    titles = re.findall(r'<h2 id="run-.">(.*?) <span', text)
    assert titles == [
        f"{model.name}, N = {width}, T = {model.temperature:g}{seed}"
        for width, seed in ((3, ", seed 3"), (3, ", seed 4"), (5, ""), (3, ", seed 5"))
    ]
    [together] = re.findall(rf"{model.name}, N = 3, .*, seeds 3, 4, 5 together: (.*)</p>", text)
    assert "Does the theory hold at N = 3?" in together
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", text)
    assert len({*captions}) == len(captions)
    assert f"{model.name}: theory against draws at N = 3 (seeds together), 5, T = {model.temperature:g}" in captions
    # Four runs and one pool share the level.
    assert [call.kwargs["level"] for call in judge.call_args_list] == [0.01 / 5] * 5
    pooled = ba.validate(concat([tmp_path / folder for folder in "abd"]), model=model, level=0.01 / 5)
    assert pooled.statement() in html.unescape(together)
    # A run given twice counts once; runs of one seed with other numbers of draws are not joined.
    shutil.copytree(tmp_path / "a", tmp_path / "e")
    runs.sample(model, tmp_path / "e", **QUICK | {"draws": 100})
    text = report.report([tmp_path / "a", tmp_path / "e", tmp_path / "." / "a"], tmp_path / "two.html").read_text()
    assert text.count("<h2") == 2
    assert "together" not in text


def test_runs_that_keep_neither_u_nor_z_are_reported_without_a_comparison(page, unpainted, tmp_path, monkeypatch):
    whole = runs.Run.draws

    def draws(run):
        return whole(run).map_over_datasets(lambda node: node.drop_vars(["order_parameter", "latent"], errors="ignore"))

    monkeypatch.setattr(runs.Run, "draws", draws)
    copies = [shutil.copytree(page.parent / name, tmp_path / name) for name in ("N3<", "latent")]
    text = report.report(copies, tmp_path / "page.html").read_text()
    assert "The draws were not compared with the theory: the run keeps no draws of U." in text
    assert "The draws were not compared with the exact posterior: the run keeps no draws of z." in text


def test_a_run_that_is_still_sampled_is_reported_by_the_same_draws_throughout(run, unpainted, tmp_path, monkeypatch):
    monkeypatch.setattr(runs.Run, "done", property(lambda each: [each.job.warmup + next(grows)] * each.job.chains))
    grows, seen = iter(range(50, 10_000)), []
    monkeypatch.setattr(report, "section", lambda *given: seen.append(given[2]) or sections.section(*given))
    report.report([run.path], tmp_path / "page.html")
    assert {seen[0].draws()["posterior"].sizes["draw"], seen[0].drawn} == {seen[0].first}


def test_runs_that_cannot_be_joined_are_not_pooled(zoo):
    """Other test labels, other names, another number of draws."""
    opened = [runs.Run(zoo.run("two", seed=seed)) for seed in (3, 4)]
    trees = {run.path: run.draws() for run in opened}
    assert verdicts.pools_of(opened, trees) == [opened]
    first, other = opened
    model = other.model
    for changed in (model.replace(test_labels=-model.test_labels), model.replace(head_names=[["a", "b"]])):
        other.model = changed
        assert verdicts.pools_of(opened, trees) == []
    other.model = model
    assert verdicts.pools_of(opened, trees | {first.path: first.draws().isel(draw=slice(50))}) == []


def test_runs_are_told_apart_by_the_ends_of_their_paths_and_those_together_by_their_samplers():
    assert report._names(["a/run", "b/run"]) == ["a/run", "b/run"]
    assert report._names(["a/first", "a/second"]) == ["first", "second"]
    groups = []
    for title, sampler in (("a, N = 3", "nuts"), ("a, N = 3", "hmc"), ("b, N = 3", "hmc")):
        jobs = [SimpleNamespace(sampler=sampler, parameterisation="path", seed=seed) for seed in (4, 3)]
        groups.append([SimpleNamespace(title=title, job=job) for job in jobs])
    assert verdicts._titles(groups) == [
        "a, N = 3, nuts (path), seeds 3, 4 together",
        "a, N = 3, hmc (path), seeds 3, 4 together",
        "b, N = 3, seeds 3, 4 together",
    ]


def test_a_theory_that_is_not_found_costs_no_page(zoo, unpainted, tmp_path, monkeypatch):
    lost = ba.theory.NotConverged("no saddle point was found", None)
    monkeypatch.setattr(stored_theory, "predicted", Mock(side_effect=lost))
    copies = [shutil.copytree(zoo.run("two", seed=seed), tmp_path / str(seed)) for seed in (3, 4)]
    text = report.report(copies, tmp_path / "page.html").read_text()
    # At the top, and in its section.
    assert text.count("The draws were not compared with the theory: no saddle point was found.") == 2 * 2
    assert "together" not in text


def test_nothing_is_overwritten_and_bad_input_is_named(page, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        runs.sample(tiny_model(heads=(2,)), tmp_path / "begun", **QUICK | {"progress": StopAfter(0)})
    new = tmp_path / "new.html"
    for made_of, out, error, message in (
        ([page.parent / "latent"], page, FileExistsError, "out must not exist yet"),
        ([], new, ValueError, "runs must hold at least one run, got none"),
        (page.parent / "latent", new, ValueError, "runs must be a list of folders, got "),
        ("out/run", new, ValueError, "runs must be a list of folders, got 'out/run'"),
        ([tmp_path / "none"], new, runs.RunError, "which does not exist"),
        ([tmp_path / "begun"], new, ValueError, "runs must have draws to report on"),
    ):
        with pytest.raises(error, match=message):
            report.report(made_of, out)
    assert not new.exists()
