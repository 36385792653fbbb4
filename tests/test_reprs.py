"""What results print: a few short lines that say what a stranger wants to know, and never an error."""

import shutil

import numpy as np
import pytest
from matplotlib.axes import Axes

import bayesattn as ba
from bayesattn import runs
from bayesattn._util.checks import shown
from bayesattn._util.text import COLUMNS, LINES, Described, rounded, with_error
from bayesattn.checks.accuracy import accuracy_of, percent
from bayesattn.checks.theory_predictions import Predicted
from bayesattn.checks.validation import Validation
from bayesattn.class_scores import class_accuracy, class_scores
from bayesattn.jobs import plots
from bayesattn.kernels.conditionals import Prediction
from bayesattn.models import LatentModel
from bayesattn.models.arviz import data_groups
from bayesattn.models.stored_model import described, restored
from bayesattn.prediction import PosteriorPrediction
from bayesattn.theory.finite_width import FiniteWidth
from tests.zoo import LIGHT, MODELS


@pytest.fixture(scope="module")
def model():
    return MODELS["layers"]().replace(name="<b>tiny</b>")


@pytest.fixture(scope="module")
def draws(zoo):
    return zoo.draws("layers", LIGHT)


@pytest.fixture
def run(zoo, tmp_path, monkeypatch):
    """A copy in the folder that the process is in."""
    monkeypatch.chdir(tmp_path)
    return runs.Run(shutil.copytree(zoo.run("layers", LIGHT), "<i>run</i>"))


@pytest.fixture(scope="module")
def validation(model, draws):
    solved = np.asarray(ba.theory.solve(model).order_parameter)
    return ba.validate(draws, model=model, prediction=Predicted(solved, 1.1 * solved, 0.1, None))


def title_of(thing):
    """The first line; what follows is short too."""
    lines = repr(thing).splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS
    return lines[0]


def said_of(thing):
    """All lines as one, with single spaces."""
    title_of(thing)
    return " ".join(repr(thing).split())


def test_a_model_tells_its_name_examples_paths_widths_and_temperature(model):
    assert title_of(model) == "Model '<b>tiny</b>'"
    said = said_of(model)
    examples, paths, features = model.path_inputs.shape
    assert f"examples {examples} of {features} features" in said
    assert f"heads 2 x 2 heads paths {paths}: head0 -> head0, head0 -> head1" in said
    assert "widths N = 4, 4, 4; prior variances 1, 0.8, 1.2, 1.1" in said
    assert f"temperature T = {model.temperature:g}" in said
    arch = ba.Architecture((8, 8), (5, 5, 5), (1.0,) * 4)
    many = ba.Model(path_inputs=np.ones((2, 64, 3)), labels=[1.0, 1.0], architecture=arch, temperature=1.0)
    assert " .." in said_of(many)
    assert "temperature" in repr(many).splitlines()[-1]
    latent = LatentModel(features=np.ones((3, 2)), values=np.ones((3, 4)), noise=0.5, prior=2.0)
    assert said_of(latent) == (
        "LatentModel 'latent' tokens 3, with values of 4 features latent z of shape (4, 2) noise sigma = 0.5 prior tau = 2"
    )


def test_names_are_escaped_in_notebooks_and_errors_show_the_title_alone(model, validation, run):
    for thing in (model, validation, run):
        page = thing._repr_html_()
        assert "&lt;" in page
        assert "<b>tiny" not in page
        assert "<i>run" not in page
    with pytest.raises(ValueError, match=r"^draws must be the result of bayesattn.sample, .*got Model '<b>tiny</b>'$"):
        ba.validate(model, model=model)
    assert "\n" not in shown([np.eye(2), (model, 1)])


def test_a_saddle_point_tells_energy_convergence_and_greatest_entries(model):
    solution = ba.theory.solve(model)
    assert title_of(solution) == "SaddlePoint: converged"
    assert f"energy {float(solution.energy):.6g}" in said_of(solution)
    own = np.diag(solution.order_parameter)
    assert f"{own.max():.4g} (path {own.argmax() + 1})" in said_of(solution)
    batch = ba.theory.solve(model, temperature=[0.5, 1.0])
    assert title_of(batch) == "SaddlePoint of 2 networks: 2 of 2 converged"
    assert title_of(solution._replace(converged=False)) == "SaddlePoint: NOT converged"
    for outputs, own, greatest in (
        (3, range(12), "11 (path 4, output 3), 10 (path 4, output 2), 9 (path 4, output 1), 8 (path 3, output 3)"),
        (2, [1, 4, 3, 2], "4 (path 1, output 2), 3 (path 2, output 1), 2 (path 2, output 2), 1 (path 1, output 1)"),
    ):
        several = solution._replace(order_parameter=1.0 * np.diag(own), scalar_order_parameter=np.eye(outputs))
        assert greatest in said_of(several)


def test_a_validation_tells_verdict_and_statement_and_plots_itself(validation):
    title = f"Validation of '<b>tiny</b>', N = 4, T = {validation.model.temperature:g}: {validation.verdict}"
    assert title_of(validation) == title
    assert validation.statement().split(": ", 1)[1][:40] in said_of(validation)
    assert "U at N = 4: draws" in {axes.get_title() for axes in plots.validation_figure(validation).findobj(Axes)}


def test_predictions_and_evidence_print_no_arrays(model, draws):
    predicted = ba.predict(draws, model.path_inputs, keep_draws=True)
    assert title_of(predicted) == f"PosteriorPrediction of {len(model.labels)} examples"
    few = PosteriorPrediction(np.zeros(2), np.ones(2), *np.full((2, 2), np.nan), None, None)
    assert "Monte Carlo error at most n/a" in repr(few)
    evidence = ba.theory.Evidence(-12.3456, 0.0271, "annealing", False)
    assert title_of(evidence) == "Evidence: log p(Y) = -12.346 ± 0.027"
    assert "NOT reliable" in repr(evidence)


def test_a_finite_width_expansion_tells_its_centre_and_entries():
    expansion = FiniteWidth(np.diag([1.0, 12.34567, 3.0]), np.full((3, 3), 0.25), None, np.array(0.0), "saddle")
    assert said_of(expansion).startswith(
        "FiniteWidth: to first order in 1/N, about the saddle point"
        " U 3 x 3; all entries on its diagonal: 12.35 (row 2, deviation 0.5), 3 (row 3, deviation 0.5)"
    )
    large = FiniteWidth(np.eye(100), np.eye(100), Prediction(np.array([-1.0, 2.0]), np.ones(2)), np.array(0.0), "mode")
    assert "of 2 examples, means -1 to 2" in said_of(large)
    assert "greatest entries" in repr(large)


def test_classes_and_their_scores_tell_names_counts_and_errors():
    few = ba.one_hot(["b", "a", "b"])
    assert title_of(few) == "OneHot: labels of 3 examples in 2 classes"
    assert few._repr_html_().startswith("<div>")
    assert "a (1), b (2)" in repr(few)
    assert "7 (1), .." in said_of(ba.one_hot(range(1000)))
    labels = np.eye(3)[np.arange(1000) % 3]
    chances = 0.1 + 0.7 * labels
    chances[:40] = [0.1, 0.1, 0.8]
    scores = class_scores(chances, labels)
    assert said_of(scores).startswith(
        "ClassScores of 1000 examples accuracy 97.30 ± 0.52 %, ± by the number of examples"
    )
    assert "by class class 1 96 % of 334," in said_of(scores)
    assert "nats" in said_of(scores)
    shares = class_accuracy(chances, labels, ["ant", "cat", "dog"])
    assert "by class ant 96 % of 334, cat 96 % of 333, dog 100 % of 333" in said_of(shares)
    assert (shares.accuracy, shares.accuracy_error) == (scores.accuracy, scores.accuracy_error)
    assert "likelihood=bayesattn.Categorical(T)" in said_of(shares)


def test_diagnostics_and_accuracies_print_no_floods(model, draws):
    diagnosis = ba.diagnose(draws)
    assert title_of(diagnosis) == "Diagnostics of 2 chains of 60 draws"
    assert "R-hat is" in repr(diagnosis).splitlines()[1]
    right, wrong = model.test_labels, -model.test_labels
    of_theory = {"theory": right, "corrected": right, "gp": wrong}
    accuracy = accuracy_of(model, of_theory, np.stack([right, right, right]))
    assert title_of(accuracy) == "Accuracy on 3 test examples"
    said = said_of(accuracy)
    assert "draws (100 ± 0) % by the number of draws, ± 17 by that of examples" in said
    assert "GP limit 0 % of all paths" in said
    assert accuracy.gains["all paths"].verdict() in said


@pytest.mark.parametrize(
    ("share", "error", "examples", "expected"),
    [
        (0.834, 3e-5, 1000, "83.4"),
        (0.834, np.nan, 1000, "83.4"),
        (0.834, 0.12, 1000, "83"),
        (5 / 6, 0.0, 6, "83"),
        (0.98765, 0.0001, 100_000, "98.765"),
    ],
)
def test_an_accuracy_has_no_digits_beyond_its_error_and_its_examples(share, error, examples, expected):
    assert percent(share, error, examples) == expected


def test_a_run_tells_state_and_settings_and_reads_no_draws(run, monkeypatch):
    for name in ("root", "draws", "require_sound", "diagnose"):
        monkeypatch.setattr(runs.Run, name, lambda *_, **__: pytest.fail("draws were read"))
    assert title_of(run) == "Run <i>run</i>: complete"
    assert run.title == "model, N = 4, T = 0.5"
    assert run.drawn == 60
    for part in ("mala, path parameterisation, seed 3", "60 of each of 2 chains, after 20 of warm-up", "100 % of all"):
        assert part in said_of(run)


def test_nothing_damaged_or_half_made_raises(run):
    for file in (run.path / ".run").glob("chain-*.npz"):
        file.write_bytes(b"no checkpoint")
    assert title_of(run) == "Run <i>run</i>: unreadable"
    assert "is damaged" in repr(run)
    assert "mala" in repr(run)
    shutil.rmtree(run.path)
    for thing in (run, runs.Run.__new__(runs.Run), ba.Model.__new__(ba.Model), Validation.__new__(Validation)):
        assert title_of(thing)
        assert thing._repr_html_().startswith("<div>")
    assert "cannot be shown" in repr(ba.Model.__new__(ba.Model))


def test_text_that_no_terminal_can_take_is_written_out():
    class Odd(Described):
        def _described(self):
            return "odd\n\x1b[31m\udcff", {"row": "a\tb" + "x" * 500}

    assert title_of(Odd()) == "odd \\x1b[31m\\udcff"
    repr(Odd()).encode()
    Odd()._repr_html_().encode()


@pytest.mark.parametrize(
    ("value", "error", "expected"),
    [
        (12.6, 0.0996, "12.60 ± 0.10"),
        (0.99996, 0.00099, "0.99996 ± 0.00099"),
        (-0.3, 41.7, "0 ± 42"),
        (123456, 1234, "123500 ± 1200"),
        (1e9, 3e7, "(1.000 ± 0.030)e+09"),
        (5, 0, "5 ± 0"),
        (-5.00000000000001, 7.1e-15, "-5 ± 0"),
        (3.14159, np.nan, "3.142 ± n/a"),
        (np.nan, 1, "n/a"),
    ],
)
def test_digits_of_a_value_match_those_of_its_error(value, error, expected):
    assert with_error(value, error) == expected
    assert (rounded(12.34567, 0.072), rounded(1.5, np.nan, "+"), rounded(np.inf, 1)) == ("12.346", "+1.5", "n/a")


def test_summary_is_a_frame_of_the_entries_of_u(validation):
    frame = validation.summary()
    theory = ["saddle", "corrected", "draws", "error", "difference", "z"]
    assert list(frame.columns) == [*theory, "rhat", "ess", "tail_ess", "pareto_k", "agrees"]
    assert len(frame) == 10
    row = frame.loc["U[head0 -> head1, head0 -> head0]"]
    assert row["draws"] == validation.order_parameter[1, 0]
    assert row["z"] == validation.remaining[1, 0] / validation.error[1, 0]
    assert row["ess"] == validation.ess[1, 0]
    assert frame["agrees"].tolist() == validation.entries.agrees.tolist()


def test_heads_without_names_are_numbered_from_1_and_from_0_in_what_earlier_versions_stored(model):
    unnamed = model.replace(head_names=None)
    assert unnamed.path_names == ["1 -> 1", "1 -> 2", "2 -> 1", "2 -> 2"]
    arrays = {name: array for group in data_groups(unnamed).values() for name, array in group.items()}
    description = described(unnamed)
    assert restored(description, arrays).path_names == unnamed.path_names
    names = description["about_model"] | {"head_names": None}
    earlier = restored(description | {"about_model": names}, arrays)
    assert earlier.path_names == ["0 -> 0", "0 -> 1", "1 -> 0", "1 -> 1"]
