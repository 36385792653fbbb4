"""The report: self-contained, complete, readable by a browser and by a screen reader."""

import itertools
import re
import shutil
import subprocess
from html.parser import HTMLParser
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from matplotlib.colors import to_rgb

from bayesattn import exchangeable, report, runs, validation
from bayesattn.models import LatentModel
from bayesattn.plots.style import ON_DARK, ON_LIGHT, palette
from tests.posteriors import tiny_model

JOB = {"chains": 2, "warmup": 30, "draws": 60, "seed": 3}
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
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    runs.sample(tiny_model(), folder / "N3<", **JOB)
    latent = LatentModel(features=[[1.0], [2.0]], values=[[0.5], [1.5]], noise=0.5, prior=1.0)
    runs.sample(latent, folder / "latent", parameterisation="latent", **JOB)
    return report.report([folder / "N3<", folder / "latent"], folder / "report.html")


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
    assert re.search(r'<h2 id="run-1">model, N = 3, T = \S+ <span class="run">run N3&lt;</span></h2>', text)
    assert re.search(r'<h2 id="run-2">\w+ <span class="run">run latent</span></h2>', text)
    assert "<details open" not in text


def test_page_says_what_was_run_and_found(page):
    text = page.read_text()
    for expected in (
        # 120 draws are few, and the page warns.
        "Does the theory hold at N = 3? cannot tell: the effective sample size of U is",
        "Whether the draws agree with the exact posterior cannot be told: the effective sample size of z is",
        "draw more",
        "sampler = &#34;nuts&#34;",
        "jaxlib = ",
        "Traces",
        "Energy",
        "Effective sample size of bulk and tails",
        "Predictions on the test examples",
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


@pytest.mark.parametrize(
    ("chains", "shift", "holds", "said"),
    [
        (4, 0, True, "agree with the exact posterior to within 0."),
        (4, 1, False, "do not agree"),
        (1, 1, None, "one chain"),
    ],
)
def test_latent_draws_agree_or_not_or_cannot_tell(chains, shift, holds, said):
    """Independent draws of the exact posterior of z, or moved by one of its standard deviations."""
    model = LatentModel(features=[[1.0], [2.0]], values=[[0.5], [1.5]], noise=0.5, prior=1.0)
    exact = exchangeable.latent_posterior(model.features, model.values, model.noise, model.prior)
    deviation = np.sqrt(exact.covariance[0, 0])
    sampled = exact.mean + deviation * (shift + np.random.default_rng(0).normal(size=(chains, 300, 1, 1)))
    dims = ("chain", "draw", "value_feature", "feature")
    draws = xr.DataTree.from_dict({"posterior": xr.Dataset({"latent": (dims, np.asarray(sampled))})})
    verdict, found, [row] = report._held_latent(model, draws, 0.01)
    assert found is holds
    assert said in verdict
    assert row["agrees"] == ("no" if shift else "yes")


@pytest.mark.parametrize(("verdict", "holds"), [("holds", True), ("does not hold", False), ("cannot tell", None)])
def test_three_outcomes_of_the_theory(verdict, holds):
    """Only what fails is said to fail: draws that cannot tell leave the page undecided."""
    matrix = np.eye(1)
    names = ("saddle", "corrected", "order_parameter", "error", "rhat", "ess", "agrees")
    found = SimpleNamespace(
        model=SimpleNamespace(path_names=["0"]),
        width=3,
        verdict=verdict,
        statement=lambda: verdict + ": said",
        diagnostics=SimpleNamespace(chains=4),
        **dict.fromkeys(names, matrix),
    )
    text, shown, _ = report._held(found)
    assert shown is holds
    assert text == f"Does the theory hold at N = 3? {verdict}: said."


def test_each_colour_scheme_has_its_own_colours_in_the_same_places():
    """Lines must be seen on dark paper: their contrast with it is 3 to 1 at least, as WCAG asks of graphics."""
    drawn = []

    def make():
        figure = plt.figure(figsize=(2, 2), layout="constrained")
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color=palette().grey)
        figure.suptitle("above")
        drawn.append(figure)
        return figure

    shown = report.picture(make, "a figure", "a line")
    assert shown.light != shown.dark
    light, dark = drawn
    np.testing.assert_array_equal(light.axes[0].get_position(), dark.axes[0].get_position())
    assert light.texts[0].get_position() == dark.texts[0].get_position()
    for figure in drawn:
        paper, line = (
            luminance(color) for color in (figure.axes[0].get_facecolor(), figure.axes[0].lines[0].get_color())
        )
        assert (max(paper, line) + 0.05) / (min(paper, line) + 0.05) > 3
    for colors, paper in ((ON_LIGHT, "white"), (ON_DARK, report.PAPER)):
        for color in (colors.blue, colors.orange, colors.grey):
            shades = sorted((luminance(color), luminance(paper)))
            assert (shades[1] + 0.05) / (shades[0] + 0.05) > 3, color


def luminance(color):
    """Relative luminance, as WCAG defines it."""
    channels = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return np.dot([0.2126, 0.7152, 0.0722], channels)


def test_runs_are_named_by_the_end_of_their_path_that_tells_them_apart():
    assert report._names(["a/run", "b/run"]) == ["a/run", "b/run"]
    assert report._names(["a/first", "a/second"]) == ["first", "second"]


def test_theory_is_solved_once_for_runs_of_one_posterior(page, tmp_path, monkeypatch):
    folder, solved = page.parent / "N3<", []
    monkeypatch.setattr(report, "predicted", lambda model: solved.append(model) or validation.predicted(model))
    runs.sample(tiny_model(), tmp_path / "again", **JOB | {"seed": 4})
    text = report.report([folder, tmp_path / "again"], tmp_path / "both.html").read_text()
    assert len(solved) == 1
    assert text.count("<h2") == 2


def test_runs_of_other_data_have_figures_of_their_own():
    """Labels of tasks may agree where inputs do not."""
    model = tiny_model()
    other = model.replace(path_inputs=2 * model.path_inputs)
    models = [model, model.replace(width=5), other.replace(width=7), model.replace(temperature=1.0)]
    found = [SimpleNamespace(model=each, width=each.architecture.widths[0]) for each in models]
    assert [[each.width for each in group] for group in report._alike(found)] == [[3, 5], [7], [3]]


def test_nothing_is_overwritten_and_bad_input_is_named(page, tmp_path):
    folder = page.parent
    with pytest.raises(FileExistsError, match="out must not exist yet"):
        report.report([folder / "latent"], page)
    with pytest.raises(ValueError, match="runs must hold at least one run, got none"):
        report.report([], tmp_path / "new.html")
    with pytest.raises(runs.RunError, match="which does not exist"):
        report.report([tmp_path / "none"], tmp_path / "new.html")

    def stop(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runs.sample(tiny_model(), tmp_path / "begun", progress=stop, **JOB)
    with pytest.raises(ValueError, match="runs must have draws to report on"):
        report.report([tmp_path / "begun"], tmp_path / "new.html")
    assert not (tmp_path / "new.html").exists()
