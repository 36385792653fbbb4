"""A model file to start from: complete, right about its defaults, and what --check says of it."""

import dataclasses
import json
import re
import tomllib

import numpy as np
import pytest

import bayesattn as ba
from bayesattn.jobs.cli.init import template
from bayesattn.samplers import SAMPLERS
from bayesattn.tasks import TASKS, tables
from bayesattn.tasks.load import load_validate_table, ready_models


def save_arrays(file, labels=(-1.0, 1.0), **more):
    rng = np.random.default_rng(0)
    arrays = {"path_inputs": rng.normal(size=(20, 4, 5)), "labels": rng.choice(labels, 20)}
    np.savez(file, **arrays, **more)


def test_the_file_that_is_written_passes_its_own_check_and_its_model_is_that_of_the_arrays(command, tmp_path):
    status, out, err = command("init", "mine.toml")
    assert (status, err) == (0, "")
    assert "mine.npz" in out
    status, _, err = command("init", "--check", "mine.toml")
    assert status == 2
    assert re.fullmatch(r"bayesattn: task.file must be an .npz of path inputs and labels, got 'mine.npz', .*\n", err)
    save_arrays("mine.npz")
    status, out, err = command("init", "mine.toml", "--check")
    assert (status, err) == (0, "")
    for said in ("20 of 5 features", "memory of one chain, at the least: ", "MiB collapsed"):
        assert said in out
    model = ba.load_model("mine.toml")
    assert out.startswith(f"{model!r}\n")
    assert model.architecture == ba.Architecture((2, 2), (50, 50, 50), (1.0,) * 4)
    assert load_validate_table("mine.toml") == tables.ValidateTable()


def tokens_and_matrices(part, examples, rng):
    """Tokens, a mask, and attention of two layers that leaves out padding."""
    mask = np.arange(5) < rng.integers(2, 6, (examples, 1))
    found = {"inputs": rng.normal(size=(examples, 5, 3)), "mask": mask, "labels": rng.choice([-1.0, 1.0], examples)}
    for layer in (1, 2):
        weights = rng.random((examples, 2, 5, 5)) * mask[:, None, None, :]
        found[f"matrices_{layer}"] = weights / weights.sum(-1, keepdims=True)
    return {part + name: array for name, array in found.items()}


def test_a_file_may_hold_tokens_and_attention_matrices(command, tmp_path):
    rng = np.random.default_rng(0)
    arrays = tokens_and_matrices("", 6, rng) | tokens_and_matrices("test_", 4, rng)
    command("init", "mine.toml")
    file = tmp_path / "mine.toml"
    text = file.read_text().replace("# skips = [1.0,", "skips = [0.0,")
    file.write_text(text.replace('# readout = "last"', 'readout = "first"'))
    np.savez("mine.npz", **arrays)
    model = ba.load_model("mine.toml")
    for part, found in (("", model.path_inputs), ("test_", model.test_path_inputs)):
        inputs, mask, *matrices = (arrays[part + name] for name in ("inputs", "mask", "matrices_1", "matrices_2"))
        made = ba.attention.paths_from_matrices(inputs, matrices, "first", mask, [False, True])
        np.testing.assert_array_equal(found, made)
    np.testing.assert_array_equal(model.test_labels, arrays["test_labels"])
    assert "token" in model.parameterisations
    one, two = arrays["matrices_1"], arrays["matrices_2"]
    either = "task.file must hold either path_inputs or all of inputs, matrices_1, matrices_2, got "
    for changed, message in (
        ({"matrices_2": None}, either),
        ({"path_inputs": np.ones((6, 6, 3))}, either),
        ({"matrices_2": 2 * two}, "task.file, with matrices[0] for matrices_1 and so on: matrices[1] must have"),
        ({"matrices_3": two}, "task.file may hold path_inputs, labels, inputs, "),
        ({"matrices_1": one[:, :1]}, "matrices_1 in task.file must have 2 heads, as architecture.heads"),
        ({"labels": None}, "task.file must hold labels, got only ['inputs', 'mask', "),
    ):
        np.savez("mine.npz", **{name: array for name, array in (arrays | changed).items() if array is not None})
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            ba.load_model("mine.toml")
    np.savez("mine.npz", path_inputs=model.path_inputs, labels=arrays["labels"])
    for setting in ('readout = "first"', "renormalise = 0.1"):
        file.write_text(text.replace('# readout = "last"', setting))
        message = (
            f"^task.{setting.split()[0]} is for tokens with their attention matrices, got it with .*mine.npz, which"
        )
        with pytest.raises(ValueError, match=message):
            ba.load_model("mine.toml")


@pytest.mark.filterwarnings("always::UserWarning")
def test_check_says_what_is_wrong_in_a_sentence_and_what_is_doubtful(command, tmp_path):
    command("init", "mine.toml")
    save_arrays("mine.npz", labels=(0.0, 1.0))
    status, _, err = command("init", "--check", "mine.toml")
    assert status == 0
    assert err.startswith("bayesattn: warning: labels are 0 and 1: ")
    (tmp_path / "mine.toml").write_text((tmp_path / "mine.toml").read_text().replace("width = 50", "widht = 50", 1))
    status, out, err = command("init", "--check", "mine.toml")
    assert (status, out) == (2, "")
    assert "architecture.widht is unknown" in err
    assert err.count("\n") == 1


def test_nothing_is_overwritten(command, tmp_path):
    (tmp_path / "mine.toml").write_text("mine")
    status, _, err = command("init", "mine.toml")
    assert status == 2
    assert "FILE must not exist yet, got mine.toml" in err
    assert (tmp_path / "mine.toml").read_text() == "mine"
    assert "FILE must end in .toml" in command("init", "model")[2]


def test_ready_models_can_be_looked_at(command):
    assert "template" not in ready_models()
    status, out, _ = command("init", "--check", "hidden_markov")
    assert status == 0
    assert "100 of 231 features, 1000 to test" in out


def test_every_key_of_a_task_stands_with_its_default():
    text = template()
    table = text[text.index('# [task]\n# name = "hidden_markov"') :]
    table = table.partition("\n\n")[0]
    task = tomllib.loads(re.sub("(?m)^# ", "", table))["task"]
    defaults = {each.name: each.default for each in dataclasses.fields(TASKS["hidden_markov"])}
    assert task.keys() == {"name", *defaults}
    task.pop("name")
    assert json.loads(json.dumps({key: defaults[key] for key in task})) == task


def test_every_other_key_stands_with_its_default():
    text = template()
    own = text[: text.index("# Instead of your own data")]
    # What is commented out reads like what is not, but for sentences.
    shown = tomllib.loads(re.sub(r"(?m)^# (\w+ = .*)$", r"\1", own))
    assert shown.keys() == {"temperature", "observation", "architecture", "task", "validate"}
    assert shown["observation"] == tables.ModelTable.model_fields["observation"].default
    assert shown["architecture"].keys() == tables.ArchitectureTable.model_fields.keys()
    assert shown["task"].keys() == tables.ArraysTable.model_fields.keys()
    assert tables.ValidateTable(**shown["validate"]) == tables.ValidateTable()
    assert shown["validate"].keys() == tables.ValidateTable.model_fields.keys()
    assert shown["architecture"]["variances"] == [1.0] * 4
    assert f"# Sampler: {', '.join(sorted(['auto', *SAMPLERS]))}.\n" in own
