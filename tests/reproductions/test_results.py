"""Rows, their verdicts, and results that are kept."""

import json
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from reproductions import page, results
from reproductions import stored as stored_results
from reproductions.__main__ import main
from reproductions.claims import LEVEL, Claim, Findings, Mean
from reproductions.experiment import Experiment
from reproductions.registry import ROWS, Row

PAGE = Path(__file__).parents[2] / "docs" / "papers"
MEASURED = Mean(1.0, 0.1)
SURE = Claim("sure", "1", 1.0, MEASURED, planted=2.0, wrong="2")
BLIND = Claim("blind", "1", 1.0, MEASURED, planted=1.1, wrong="1.1")
WRONG = Claim("wrong", "2", 2.0, MEASURED, planted=3.0, wrong="3")
LITERAL = Claim("literal", "2", 2.0, MEASURED, literal=True)
LITERAL_HOLDS = Claim("literal", "1", 1.0, MEASURED, literal=True)
ROW = Row("paths-x", "2405.15926", "figure 9", "It is so.", "x = 1", "none", ("first",), why="The coin was bent.")


def test_the_page_shows_rows_claims_and_figures():
    found = results._content("first", Findings.of_row("paths-x", [SURE, LITERAL]), 0, True, 1.0)
    text = page.markdown({"first": found}, {"first": "first.png"}, [ROW])
    for part in (
        f"| [paths-x](#paths-x) | figure 9 | {results.QUALIFIED} |",
        "| sure | 1 | 1.00 ± 0.10 | 2: 2 | holds |",
        "| literal | 2 | 1.00 ± 0.10 |  | literal reading, does not hold |",
        "| first | fast | 0 |",
        "\npython -m reproductions --fast\n",
        "![first](first.png)",
    ):
        assert part in text


def test_rows_are_chosen_by_paper_by_name_and_by_experiment():
    assert results.chosen() == list(ROWS)
    assert len({row.id for row in ROWS}) == len(ROWS)
    assert {row.paper for row in results.chosen(["2212.14852"])} == {"2212.14852"}
    assert {row.id for row in results.chosen(["paths-2c"])} == {"paths-2c-theory", "paths-2c-gain", "paths-2c-u"}
    assert all("network" in row.by for row in results.chosen(["network"]))


@pytest.fixture
def runs(monkeypatch):
    """The experiments of the row tokens-latent, which count how often they run; one is interrupted the first time."""
    counts = {"urn": 0, "exact posterior": 0}

    def experiment(name):
        def run(settings):
            counts[name] += 1
            settings.progress("half way")
            if name == "exact posterior" and counts[name] == 1:
                raise KeyboardInterrupt
            return Findings.of_row("tokens-latent", [SURE])

        return Experiment(name, run)

    monkeypatch.setattr(results, "experiments", lambda: {name: experiment(name) for name in counts})
    return counts


def test_an_interrupted_check_goes_on_and_results_of_others_stay(runs, tmp_path):
    messages = []
    asked = ("tokens-latent",)
    with pytest.raises(KeyboardInterrupt):
        results.check(tmp_path, asked, fast=True, progress=messages.append)
    assert messages[1::2] == [(0, 2, {"urn": "half way"}), (1, 2, {"exact posterior": "half way"})]
    (outcome,) = results.check(tmp_path, asked, fast=True)
    assert outcome.verdict == results.REPRODUCED
    assert runs == {"urn": 1, "exact posterior": 2}
    results.check(tmp_path, asked, fast=True)
    assert runs == {"urn": 1, "exact posterior": 2}
    results.check(tmp_path, asked, fast=True, seed=1)
    results.check(tmp_path, asked, fast=True, again=True)
    assert runs == {"urn": 3, "exact posterior": 4}
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [name.partition("-")[2] for name in names] == ["fast-seed0", "fast-seed1"]
    stored = json.loads((tmp_path / names[0] / "urn.json").read_text())
    assert (stored["seed"], stored["fast"], stored["level"]) == (0, True, LEVEL)


@pytest.fixture
def stored(runs, tmp_path):
    """The file of a result, and its content."""
    runs["exact posterior"] = 1
    results.check(tmp_path, ["tokens-latent"], fast=True)
    file = stored_results.folder_of(tmp_path, 0, True) / "urn.json"
    return file, json.loads(file.read_text())


PANEL = {"title": "", "x": "n", "y": "bits", "curves": [{"label": "", "x": [1], "y": [], "error": None, "law": None}]}
DAMAGE = {
    "no JSON": lambda content, claim: "{",
    "verdict": lambda content, claim: claim.update(verdict="great"),
    "no verdict without a p-value": lambda content, claim: claim.update(p_value=None),
    "lengths": lambda content, claim: content.update(panels=[PANEL]),
    "experiment": lambda content, claim: content.update(experiment="sufficiency"),
    "version": lambda content, claim: content.update(version="9.9.9"),
    "seed": lambda content, claim: content.update(seed=7),
    "mode": lambda content, claim: content.update(fast=False),
}


@pytest.mark.parametrize("change", DAMAGE)
def test_a_file_that_is_not_the_result_that_it_should_be_is_named(stored, tmp_path, change):
    file, content = stored
    file.write_text(DAMAGE[change](content, content["claims"][0]) or json.dumps(content))
    with pytest.raises(ValueError, match=r"urn.json must be a result .* got .*: remove it"):
        stored_results.load(tmp_path, fast=True)


def test_a_row_without_claims_of_an_experiment_is_run_again(runs, stored, tmp_path):
    file, content = stored
    file.write_text(json.dumps(content | {"claims": []}))
    (outcome,) = results.outcomes(stored_results.load(tmp_path, fast=True), results.chosen(["tokens-latent"]))
    assert (outcome.verdict, page.reason(outcome)) == (results.MISSING, "needs urn")
    (outcome,) = results.check(tmp_path, ["tokens-latent"], fast=True)
    assert outcome.verdict == results.REPRODUCED
    assert runs["urn"] == 2


def test_a_folder_that_cannot_be_used_is_refused_before_anything_runs(runs, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"out must be a folder that can be written, got .*file"):
        results.check(tmp_path / "file", ["urn"], fast=True)
    busy = pytest.raises(ValueError, match="no other process is at work on")
    with stored_results.alone(stored_results.folder_of(tmp_path, 0, True)), busy:
        results.check(tmp_path, ["urn"], fast=True)
    assert runs["urn"] == 0


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Exit status, output and errors of the command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    # What the command tells JAX and linear algebra is for a process of its own.
    for name in ("JAX_COMPILATION_CACHE_DIR", "OPENBLAS_NUM_THREADS", "XLA_FLAGS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))

    def run(*arguments):
        return main([*map(str, arguments)]), *capsys.readouterr()

    return run


def test_the_page_is_made_of_results_that_can_be_read():
    found = stored_results.read(PAGE)
    assert found.keys() == results.experiments().keys()
    assert all(panel["x"] and panel["y"] for result in found.values() for panel in result["panels"])
    assert {outcome.verdict for outcome in results.outcomes(found)} <= {*results.VERDICTS} - {results.MISSING}


def test_the_command_prints_every_row_and_ends_with_its_verdict(runs, command, tmp_path):
    runs["exact posterior"] = 1
    status, out, err = command("tokens-latent", "--fast", "--workers", 1)
    assert status == 0, err
    assert "reproduced" in out
    assert "python -m reproductions tokens-latent" in out
    status, out, _ = command("--show", "--fast", "--json")
    assert status == 2
    rows = {row["id"]: row for row in json.loads(out)["rows"]}
    assert rows.keys() == {row.id for row in ROWS}
    assert rows["tokens-latent"]["verdict"] == "reproduced"
    assert rows["paths-1a"]["missing"] == ["network"]
    file = stored_results.folder_of(tmp_path / "out/reproductions", 0, True) / "urn.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"results_version": 0}))
    _, _, err = command("tokens-latent", "--fast", "--show")
    assert "results of another version, --again replaces them: urn" in err


def test_bad_arguments_of_the_command_are_named(command):
    for typed, message in (
        ("paths-1z", "got 'paths-1z'; did you mean 'paths-1"),
        ("--seed -1", "seed must be a whole number"),
        ("--workers -1", "workers must be a whole number of at least 1"),
        ("--out s3://bucket/a", "--out must be a path on this machine"),
    ):
        status, _, err = command(*typed.split())
        assert (status, message in err) == (2, True), typed


@pytest.fixture
def command_of(monkeypatch, command):
    """The command on a single row, whose experiment finds some claims, or raises an error."""

    def run(found, name, *options):
        act = Mock(side_effect=found if isinstance(found, BaseException) else [Findings.of_row(name, found)])
        rows = [row for row in ROWS if row.id == name]
        monkeypatch.setattr(results, "experiments", lambda: {"urn": Experiment("urn", act)})
        monkeypatch.setattr(results, "ROWS", [row._replace(by=("urn",), qualification="") for row in rows])
        return command("urn", *options)

    return run


@pytest.mark.parametrize(
    ("claims", "row", "verdict", "status"),
    [
        ([SURE], "tokens-latent", results.REPRODUCED, 0),
        ([SURE, LITERAL], "tokens-latent", results.QUALIFIED, 0),
        ([SURE, BLIND], "tokens-latent", results.OPEN, 2),
        ([SURE, BLIND, WRONG], "tokens-latent", results.NOT_REPRODUCED, 1),
        ([LITERAL], "tokens-latent", results.MISSING, 2),
        ([], "tokens-latent", results.MISSING, 2),
        # A literal reading that holds: of a theorem, which it may not, and of a figure.
        ([SURE, LITERAL_HOLDS], "tokens-latent", results.REPRODUCED, 1),
        ([SURE, LITERAL_HOLDS], "paths-1a", results.REPRODUCED, 0),
    ],
)
def test_the_verdict_of_a_row_and_the_exit_status_are_those_of_its_claims(command_of, claims, row, verdict, status):
    found, out, _ = command_of(claims, row, "--json")
    assert (json.loads(out)["rows"][0]["verdict"], found) == (verdict, status)


def test_all_comparisons_are_printed_if_asked(command_of):
    _, out, _ = command_of([SURE, LITERAL_HOLDS], "paths-1a", "--all")
    assert "literally taken, holds" in out
    assert "0 of 1 literal readings fail" in " ".join(out.split())


@pytest.mark.parametrize(
    ("error", "expected"), [(ValueError("bad"), 2), (KeyError("unforeseen"), 70), (KeyboardInterrupt(), 130)]
)
def test_errors_end_the_command_with_their_status(command_of, error, expected):
    status, out, err = command_of(error, "tokens-latent")
    assert (status, out) == (expected, "")
    assert ("Traceback" in err) == (expected == 70)


def test_a_wrong_law_that_four_digits_do_not_show_is_shown_by_its_difference():
    claim = {"relation": "=", "allowance": 0.0, "wrong": "off", "predicted_error": 0.0, "measured_error": 0.0}
    shown = page.numbers(claim | {"predicted": 0.5056, "measured": 0.5056, "planted": 0.5056 + 1e-11})
    assert shown == ("0.5056", "0.5056", "off: +1e-11")
    assert page.numbers(claim | {"predicted": 1.0, "measured": 1.0, "planted": 2.0})[2] == "off: 2"
