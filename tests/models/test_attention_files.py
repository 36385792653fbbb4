"""Model files with a table [attention], and the commands that serve such models."""

import json

import pytest

import bayesattn as ba
from bayesattn import runs
from bayesattn.errors import BayesattnError
from bayesattn.jobs import plots, report
from bayesattn.tasks.load import heads_of_task
from tests.zoo import QUICK

FILE = """
temperature = 0.1
[architecture]
width = 3
heads = [2, 2]
[attention]
key_width = 2
query_variance = 0.1
key_variance = [0.1, 0.2]
watched = [0, 1]
[task]
name = "hidden_markov"
examples = 6
test_examples = 10
dimension = 4
tokens = 3
"""


@pytest.fixture
def file(tmp_path):
    (path := tmp_path / "mine.toml").write_text(FILE)
    return path


def test_a_table_makes_a_model_that_samples_queries_and_keys(file):
    model = ba.load_model(file, width=5)
    assert type(model) is ba.AttentionModel
    assert (model.architecture.widths, model.key_width) == ((5, 5, 5), 2)
    assert (model.query_variance, model.key_variance) == ((0.1, 0.1), (0.1, 0.2))
    assert model.test_inputs.shape == (10, 4, 8)
    assert model.watched.tolist() == [0, 1]
    assert [heads.shape for heads in heads_of_task(model)] == [(2, 8, 8), (2, 8, 8)]
    assert heads_of_task(model.replace(heads=(1, 2))) is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("key_width = 2", "key_width = 0", "attention.key_width: .*greater than or equal to 1, got 0"),
        ("watched = [0, 1]", 'values = "tanh"', "attention.values: .*'relu' or 'gelu', got 'tanh'"),
        ("watched = [0, 1]", "keywidth = 1", "attention.keywidth is unknown.*did you mean 'key_width'"),
        ("heads = [2, 2]", "heads = [2, 2]\noutputs = 3", "architecture.outputs must be 1 of task 'hidden_markov'"),
        (FILE[FILE.index("[task]") :], '[task]\nname = "arrays"\nfile = "a"\n', "attention needs a task with tokens"),
    ],
)
def test_a_wrong_table_is_told_in_one_sentence(file, old, new, message):
    file.write_text(FILE.replace(old, new))
    with pytest.raises(BayesattnError, match=message):
        ba.load_model(file)


def test_a_run_its_report_and_figures(zoo, tmp_path):
    run = runs.Run(zoo.run("attention"))
    assert run.model.key_width == 2
    with pytest.raises(runs.RunError, match="its watched differ"):
        runs.sample(run.model.replace(watched=(1,)), run.path, **QUICK)
    page = report.report([run.path], tmp_path / "page.html").read_text()
    assert "the theory needs fixed attention; this model samples queries and keys" in page
    assert plots.run_figure(run, "trace").axes


def test_a_file_is_checked_and_theory_says_which_attention_is_preferred(file, command):
    status, _, err = command("init", "--check", str(file))
    assert (status, err) == (0, "")
    file.write_text(FILE.replace("width = 3", "width = 20"))  # Its evidence needs no annealing.
    status, out, err = command("theory", str(file), "--json")
    assert (status, err) == (0, "")
    rows = json.loads(out)
    assert [row["candidate"] for row in rows] == ["the task's", "most probable", "uniform"]
    assert max(rows, key=lambda row: row["log_evidence"])["candidate"] != "uniform"
    assert [row["difference"] == 0 for row in rows].count(True) == 1
