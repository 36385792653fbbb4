"""`bayesattn heads`: table, JSON, figure, a run that is resumed, and models that it cannot serve wholly."""

import json
import re

import numpy as np
import pytest

import bayesattn as ba
from bayesattn.questions.heads import predicted_losses

FEW = ("--chains", "2", "--warmup", "60", "--draws", "60")
ARCHITECTURE = "temperature = 0.3\n[architecture]\nheads = [2, 1]\nwidth = 4\n"
TASK = '[task]\nname = "arrays"\nfile = "mine.npz"\nhead_names = [["previous", "random"], ["uniform"]]\n'


@pytest.fixture
def model_file(command, tmp_path):
    """A model of two layers in the folder in which commands run."""
    rng = np.random.default_rng(0)
    (inputs, tests), (labels, test_labels) = rng.normal(size=(2, 20, 2, 3)), rng.choice([-1.0, 1.0], (2, 20))
    np.savez("mine.npz", path_inputs=inputs, labels=labels, test_path_inputs=tests, test_labels=test_labels)
    file = tmp_path / "mine.toml"
    file.write_text(ARCHITECTURE + TASK)
    return file


@pytest.fixture
def heads(command):
    """What `bayesattn heads` prints, or, if it must fail, its error."""

    def said(*arguments, fails=False):
        code, out, err = command("heads", *arguments)
        assert code == (2 if fails else 0), err
        return err if fails else out

    return said


def test_table_json_figure_and_exact_losses_of_a_run_that_is_resumed(heads, model_file, tmp_path):
    out = heads(model_file, *FEW, "--least", 2, "--remove", "--figure", "heads.png")
    assert re.search(r"^1: previous +[\d.]+ ± [\d.]+ +[\d.]+ to [\d.]+( +[\d.]+){3} *$", out, re.MULTILINE)
    run, lost = "out/heads-mine", "can go before more than 2 points of accuracy are lost"
    for text in ("P(2 least)", "Lost without each head", "Strongest 2 of 2 paths", lost, f"run in {run}"):
        assert text in out
    assert (tmp_path / "heads.png").stat().st_size > 10_000
    # The run is there, so nothing is drawn again; and the folder of a run serves in place of a model.
    before = ba.runs.Run(run).draws()
    content = json.loads(heads(model_file, *FEW, "--json"))
    losses = predicted_losses(ba.runs.Run(run).model)
    assert [row["score"] for row in content["heads"]] == pytest.approx(ba.heads(before).scores)
    assert [row["among_3_least"] for row in content["heads"]] == [1, 1, 1]
    assert [row["evidence"] for row in content["losses"]] == pytest.approx(losses.evidence)
    assert content["heads"][0]["name"] == [1, "previous"]
    assert json.loads(heads(run, "--json"))["heads"] == content["heads"]
    for option, value in (("--width", 7), ("--draws", 60), ("--sampler", "nuts")):
        assert f"{option} is only for models" in heads(run, option, value, fails=True)
    out = heads(run, "--exact")
    assert "sampled without it" in out
    assert re.search(r"^2: uniform +-?[\d.]+ ± [\d.]+", out, re.MULTILINE)


def test_what_cannot_be_is_refused_before_anything_is_drawn(heads, model_file, tmp_path):
    (tmp_path / "heads.png").write_bytes(b"mine")
    assert "--overwrite" in heads(model_file, *FEW, "--figure", "heads.png", fails=True)
    assert (tmp_path / "heads.png").read_bytes() == b"mine"
    assert "--least must be a whole number of at least 1, got 0" in heads(model_file, *FEW, "--least", 0, fails=True)
    assert not (tmp_path / "out").exists()


def test_other_likelihoods_have_scores_alone(heads, zoo):
    run = zoo.run("classes")
    assert "Lost without" not in heads(run)
    message = "--exact and --remove need a network with fixed attention, Gaussian labels and known numbers"
    assert message in heads(run, "--exact", fails=True)
