"""Rows, their verdicts, and results that are kept."""

import json
import os
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from bayesattn.checks.criteria import CANNOT_TELL, DOES_NOT_HOLD, HOLDS
from reproductions import page, processes, registry, results
from reproductions import stored as stored_results
from reproductions.__main__ import main
from reproductions.claims import LEVEL, Claim, Curve, Findings, Mean, Panel
from reproductions.experiment import Experiment
from reproductions.registry import ROWS, Row
from tests.reproductions.test_processes import forked

PAGE = Path(__file__).parents[2] / "docs" / "papers"
MEASURED = Mean(1.0, 0.1)
SURE = Claim("sure", "1", 1.0, MEASURED, planted=2.0, wrong="2")
BLIND = Claim("blind", "1", 1.0, MEASURED, planted=1.1, wrong="1.1")
WRONG = Claim("wrong", "2", 2.0, MEASURED, planted=3.0, wrong="3")
LITERAL = Claim("literal", "2", 2.0, MEASURED, literal=True)
ROW = Row("paths-x", "2405.15926", "figure 9", "It is so.", "x = 1", "none", ("first",), why="The coin was bent.")


@pytest.mark.parametrize(
    ("claims", "verdict"),
    [
        ([SURE], results.REPRODUCED),
        ([SURE, LITERAL], results.QUALIFIED),
        ([SURE, BLIND], results.OPEN),
        ([SURE, BLIND, WRONG], results.NOT_REPRODUCED),
        ([LITERAL], results.MISSING),
        ([], results.MISSING),
    ],
)
def test_verdict_of_a_row(claims, verdict):
    found = results._content("first", Findings.of_row("paths-x", claims), 0, True, 1.0)
    (outcome,) = results.outcomes({"first": found}, [ROW])
    assert outcome.verdict == verdict
    text = page.markdown({"first": found}, {"first": "first.png"}, [ROW])
    assert f"| [paths-x](#paths-x) | figure 9 | {verdict} |" in text
    assert "| first | fast | 0 |" in text
    assert "\npython -m reproductions --fast\n" in text
    assert "![first](first.png)" in text
    assert all(claim.statement in text for claim in claims)


def test_a_row_with_an_experiment_that_was_not_run_has_no_verdict():
    row = ROW._replace(by=("first", "second"))
    found = {"first": results._content("first", Findings.of_row("paths-x", [SURE]), 0, True, 1.0)}
    (outcome,) = results.outcomes(found, [row])
    assert (outcome.verdict, outcome.missing) == (results.MISSING, ("second",))
    assert page.reason(outcome) == "needs second"


def test_verdict_of_a_comparison_needs_its_wrong_law_to_be_found():
    assert [claim.verdict for claim in (SURE, BLIND, WRONG)] == [HOLDS, CANNOT_TELL, DOES_NOT_HOLD]
    gain = {"predicted": 0.0, "relation": ">=", "planted": 0.0, "wrong": "no gain", "wrong_relation": "<="}
    verdicts = {0.5: HOLDS, 0.1: CANNOT_TELL, -0.1: CANNOT_TELL, -0.5: DOES_NOT_HOLD}
    for value, verdict in verdicts.items():
        assert Claim("", "", measured=Mean(value, 0.05), **gain).verdict == verdict


def test_a_wrong_law_that_four_digits_do_not_show_is_shown_by_its_difference():
    claim = {"relation": "=", "allowance": 0.0, "wrong": "off", "predicted_error": 0.0, "measured_error": 0.0}
    shown = page.numbers(claim | {"predicted": 0.5056, "measured": 0.5056, "planted": 0.5056 + 1e-11})
    assert shown == ("0.5056", "0.5056", "off: +1e-11")
    assert page.numbers(claim | {"predicted": 1.0, "measured": 1.0, "planted": 2.0})[2] == "off: 2"


def test_planted_laws_are_off_by_the_size_that_is_asked_for():
    assert Claim("", "", 2.0, Mean(2.0, 0.1)).with_planted(0.5).planted.value == 3.0
    assert Claim("", "", 2.0, Mean(2.0, 0.1), "<=").with_planted(0.5).planted.value == 1.0
    assert Claim("", "", 0.0, Mean(0.0, 0.1)).with_planted(0.5).planted.value == 0.5
    exact = Claim("", "", 0.0, 1e-12, tolerance=1e-10).with_planted(0.5)
    assert exact.finds_planted(1e-4)
    assert exact.holds(1e-4)
    assert SURE.with_planted(0.5) is SURE
    assert LITERAL.with_planted(0.5).planted is None


def test_rows_are_data_that_fits_together():
    assert len({row.id for row in ROWS}) == len(ROWS)
    assert {row.paper for row in ROWS} == registry.PAPERS.keys()
    named = {name for row in ROWS for name in row.by}
    assert named == results.experiments().keys()


def test_rows_are_chosen_by_paper_by_name_and_by_experiment():
    assert results.chosen() == list(ROWS)
    assert {row.paper for row in results.chosen(["2212.14852"])} == {"2212.14852"}
    assert [row.id for row in results.chosen(["paths-1a"])] == ["paths-1a"]
    assert {row.id for row in results.chosen(["paths-2c"])} == {"paths-2c-theory", "paths-2c-gain", "paths-2c-u"}
    assert all("network" in row.by for row in results.chosen(["network"]))
    with pytest.raises(ValueError, match=r"must be a paper .* got 'paths-1z'; did you mean 'paths-1"):
        results.chosen(["paths-1z"])


@pytest.fixture
def runs(monkeypatch):
    """Two experiments that count how often they run, for the rows that the registry has for them."""
    counts = {"urn": 0, "exact posterior": 0}

    def experiment(name):
        def run(settings):
            counts[name] += 1
            settings.progress("half way")
            if name == "exact posterior" and counts[name] == 1:
                raise KeyboardInterrupt
            found = Findings()
            for row in ROWS:
                if name in row.by:
                    found.add(row.id, SURE)
            return found

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


@pytest.mark.parametrize("content", ["{", "[]", "{}", "[" * 200_000, '{"format": 1, "experiment": "urn"}', b"\xff\xfe"])
def test_a_damaged_result_is_named(stored, tmp_path, content):
    file, _ = stored
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=r"urn.json must be a result of the experiment 'urn', .* remove it"):
        stored_results.load(tmp_path, fast=True)


PANEL = {"title": "urn", "x": "n", "y": "bits"}
CURVE = {"label": "", "x": [1.0], "y": [], "error": None, "law": None}
DAMAGE = {
    "claims": lambda content, claim: content.update(claims={}),
    "null row": lambda content, claim: claim.update(row=None),
    "verdict": lambda content, claim: claim.update(verdict="great"),
    "no verdict without a p-value": lambda content, claim: claim.update(p_value=None),
    "number": lambda content, claim: claim.update(measured="x"),
    "panel": lambda content, claim: content.update(panels=[PANEL | {"curves": [CURVE]}]),
    "no curves": lambda content, claim: content.update(panels=[PANEL | {"curves": []}]),
    "experiment": lambda content, claim: content.update(experiment="sufficiency"),
    "version": lambda content, claim: content.update(version="9.9.9"),
    "seed": lambda content, claim: content.update(seed=7),
    "mode": lambda content, claim: content.update(fast=False),
}


@pytest.mark.parametrize("change", DAMAGE)
def test_a_result_that_is_not_what_its_file_says_is_refused(stored, tmp_path, change):
    file, content = stored
    DAMAGE[change](content, next(claim for claim in content["claims"] if claim["row"] == "tokens-latent"))
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"urn.json must be .* got .*: remove it"):
        stored_results.load(tmp_path, fast=True)


def test_what_is_no_result_is_left_alone(stored, tmp_path):
    file, content = stored
    for claim in content["claims"]:
        claim["verdict"] = DOES_NOT_HOLD
    file.with_name("urn.old.json").write_text(json.dumps(content))
    file.with_name("package.json").mkdir()
    (outcome,) = results.outcomes(stored_results.load(tmp_path, fast=True), results.chosen(["tokens-latent"]))
    assert outcome.verdict == results.REPRODUCED


def test_a_row_without_claims_of_an_experiment_is_run_again(runs, stored, tmp_path):
    file, content = stored
    content["claims"] = [claim for claim in content["claims"] if claim["row"] != "tokens-latent"]
    file.write_text(json.dumps(content))
    (outcome,) = results.outcomes(stored_results.load(tmp_path, fast=True), results.chosen(["tokens-latent"]))
    assert (outcome.verdict, outcome.missing) == (results.MISSING, ("urn",))
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


def test_results_of_another_version_and_figures_that_fail_are_named(runs, stored, command, tmp_path):
    file, content = stored
    panel = Panel("a", "x", "y", [Curve("a", np.ones(1), np.ones(1))])
    content |= {"results_version": stored_results.RESULTS_VERSION - 1, "panels": [panel.to_dict()]}
    file.write_text(json.dumps(content))
    file.with_suffix(".png").mkdir()
    os.utime(file.with_suffix(".png"), (0, 0))
    status, out, err = command("tokens-latent", "--fast", "--out", tmp_path)
    assert status == 0, err
    assert "tokens-latent" in out
    assert "the figure of urn could not be written" in err
    assert "results of another version, --again replaces them: urn" in err


def test_the_page_is_made_of_results_that_can_be_read():
    found = stored_results.read(PAGE)
    assert found.keys() == results.experiments().keys()
    assert all(panel["x"] and panel["y"] for result in found.values() for panel in result["panels"])
    assert {outcome.verdict for outcome in results.outcomes(found)} <= {*results.VERDICTS} - {results.MISSING}


def test_the_command_prints_every_row_and_ends_with_its_verdict(runs, command):
    runs["exact posterior"] = 1
    status, out, err = command("tokens-latent", "--fast", "--workers", 1)
    assert status == 0, err
    assert "tokens-latent" in out
    assert "reproduced" in out
    assert "python -m reproductions tokens-latent" in out
    status, out, _ = command("--show", "--fast", "--json")
    assert status == 2
    rows = {row["id"]: row for row in json.loads(out)["rows"]}
    assert rows.keys() == {row.id for row in ROWS}
    assert rows["tokens-latent"]["verdict"] == "reproduced"
    assert rows["paths-1a"]["missing"] == ["network"]
    for typed, message in (
        ("figure_7", "ROW must be a paper"),
        ("--seed -1", "seed must be a whole number"),
        (f"--seed {2**63}", "seed must be a whole number"),
        ("--out s3://bucket/a", "--out must be a path on this machine"),
    ):
        status, _, err = command(*typed.split())
        assert (status, message in err) == (2, True), typed
    with pytest.raises(SystemExit, match="0"):
        command("--help")


@pytest.fixture
def command_of(monkeypatch, command):
    """The command on a single row, whose experiment finds some claims, or raises an error."""

    def run(name, found, *arguments):
        act = Mock(side_effect=found if isinstance(found, BaseException) else [Findings.of_row(name, found)])
        monkeypatch.setattr(results, "experiments", lambda: {"urn": Experiment("urn", act)})
        monkeypatch.setattr(results, "ROWS", [row._replace(by=("urn",)) for row in ROWS if row.id == name])
        return command("urn", *arguments)

    return run


@pytest.mark.parametrize(("claims", "expected"), [((SURE, LITERAL), 0), ((SURE, WRONG), 1), ((SURE, BLIND), 2)])
def test_exit_status_is_that_of_the_worst_row(command_of, claims, expected):
    assert command_of("tokens-sufficient", claims)[0] == expected


@pytest.mark.parametrize(("row", "expected"), [("tokens-sufficient", 1), ("paths-1a", 0)])
def test_a_literal_reading_of_a_theorem_must_fail(command_of, row, expected):
    holds = Claim("literal", "1", 1.0, MEASURED, literal=True)
    status, out, _ = command_of(row, [SURE, holds], "--all")
    assert status == expected
    assert "literally taken, holds" in out
    assert "0 of 1 literal readings fail" in " ".join(out.split())


def test_errors_end_the_command_with_their_status(command_of):
    for error, expected in ((ValueError("bad"), 2), (KeyError("unforeseen"), 70), (KeyboardInterrupt(), 130)):
        status, out, err = command_of("tokens-sufficient", error)
        assert (status, out) == (expected, "")
        assert ("Traceback" in err) == (expected == 70)


def without_last_digits(value):
    """The same with 12 digits of each number: NumPy's sums differ in the last with the place of arrays in memory."""
    return json.loads(json.dumps(value), parse_float=lambda text: f"{float(text):.12g}")


def test_results_do_not_depend_on_the_number_of_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "get_context", forked)
    progress = {1: [], 2: []}
    for workers, messages in progress.items():
        (outcome,) = results.check(
            tmp_path / str(workers), ["tokens-sufficient"], fast=True, workers=workers, progress=messages.append
        )
        assert outcome.verdict == results.QUALIFIED
        assert all(each.total == 2 and 1 <= len(each.running) <= workers for each in messages)
    assert {each.done for each in progress[1]} == {0, 1}
    first, second = (stored_results.load(tmp_path / str(workers), fast=True) for workers in progress)
    assert first.keys() == second.keys() == {"urn", "sufficiency"}
    for name in first:
        assert without_last_digits(first[name] | {"seconds": 0}) == without_last_digits(second[name] | {"seconds": 0})
    with pytest.raises(ValueError, match="workers must be"):
        results.check(tmp_path, ["urn"], workers=0)
