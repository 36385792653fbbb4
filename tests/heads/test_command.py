"""`bayesattn heads`: table, JSON, figure, a run that is resumed, and models that it cannot serve wholly."""

import json
import re

import numpy as np
import pytest

import bayesattn as ba
from bayesattn.head_posterior import predicted_losses
from bayesattn.plots import heads_figure

FEW = ("--chains", "2", "--warmup", "60", "--draws", "60")
MODEL = """temperature = 0.3
[architecture]
heads = [2, 1]
width = 4
[task]
name = "arrays"
file = "mine.npz"
head_names = [["previous", "random"], ["uniform"]]
"""


@pytest.fixture
def model_file(command, tmp_path):
    """A model of two layers in the folder in which commands run."""
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(40, 2, 3)), rng.choice([-1.0, 1.0], 40)
    np.savez(
        "mine.npz",
        path_inputs=inputs[:20],
        labels=labels[:20],
        test_path_inputs=inputs[20:],
        test_labels=labels[20:],
    )
    file = tmp_path / "mine.toml"
    file.write_text(MODEL)
    return file


def test_table_json_figure_and_exact_losses_of_a_run_that_is_resumed(command, model_file, tmp_path):
    code, out, err = command("heads", model_file, *FEW, "--least", 2, "--remove", "--figure", "heads.png")
    assert code == 0, err
    assert re.search(r"^1: previous +[\d.]+ ± [\d.]+ +[\d.]+ to [\d.]+ +[\d.]+ +[\d.]+ *$", out, re.MULTILINE)
    assert "P(2 least)" in out
    assert "Lost without each head" in out
    assert "Strongest 2 of 2 paths" in out
    assert "can go before more than 2 points of accuracy are lost" in out
    assert (tmp_path / "heads.png").stat().st_size > 10_000
    run = "out/heads-mine"
    assert f"run in {run}" in out
    # The run is there, so nothing is drawn again; and the folder of a run serves in place of a model.
    before = ba.runs.Run(run).draws()
    code, out, err = command("heads", model_file, *FEW, "--json")
    assert code == 0, err
    content = json.loads(out)
    heads, losses = ba.heads(before), predicted_losses(ba.runs.Run(run).model)
    assert [row["score"] for row in content["heads"]] == pytest.approx(heads.scores)
    assert [row["among_3_least"] for row in content["heads"]] == [1, 1, 1]
    assert [row["evidence"] for row in content["losses"]] == pytest.approx(losses.evidence)
    assert content["heads"][0]["name"] == [1, "previous"]
    code, again, err = command("heads", run, "--json")
    assert code == 0, err
    assert json.loads(again)["heads"] == content["heads"]
    code, _, err = command("heads", run, "--width", 7)
    assert code == 2
    assert "--width is only for models" in err
    code, out, err = command("heads", run, "--exact")
    assert code == 0, err
    assert "sampled without it" in out
    assert re.search(r"^2: uniform +-?[\d.]+ ± [\d.]+", out, re.MULTILINE)


def test_what_cannot_be_is_refused_before_anything_is_drawn(command, model_file, tmp_path):
    code, _, err = command("heads", model_file, *FEW, "--least", 0)
    assert code == 2
    assert "--least must be a whole number of at least 1, got 0" in err
    assert not (tmp_path / "out").exists()


def test_other_likelihoods_have_scores_alone(command, zoo):
    run = zoo.run("classes")
    code, out, err = command("heads", run)
    assert code == 0, err
    assert "Lost without" not in out
    code, out, err = command("heads", run, "--exact")
    assert code == 2
    assert "--exact and --remove need a network with fixed attention and Gaussian labels" in err


def test_a_figure_is_not_overwritten_unasked(command, model_file, tmp_path):
    (tmp_path / "heads.png").write_bytes(b"mine")
    code, _, err = command("heads", model_file, *FEW, "--figure", "heads.png")
    assert code == 2
    assert "--overwrite" in err
    assert (tmp_path / "heads.png").read_bytes() == b"mine"


def test_a_figure_takes_heads_alone():
    with pytest.raises(ba.BayesattnError, match="heads must be a"):
        heads_figure("heads")
