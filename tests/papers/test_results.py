"""Rows, their verdicts, and results that are kept."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from bayesattn import papers
from bayesattn.exchangeable.claims import Claim, Curve, Mean
from bayesattn.papers import figures, page, results
from bayesattn.papers import stored as stored_results
from bayesattn.papers.experiment import Experiment, Findings, with_planted
from bayesattn.papers.registry import ROWS, Row
from bayesattn.verdict import CANNOT_TELL, DOES_NOT_HOLD, HOLDS

PAGE = Path(__file__).parents[2] / "docs" / "papers"
MEASURED = Mean(1.0, 0.1)
SURE = Claim(1, "sure", "1", 1.0, MEASURED, planted=2.0, wrong="2")
BLIND = Claim(1, "blind", "1", 1.0, MEASURED, planted=1.1, wrong="1.1")
WRONG = Claim(1, "wrong", "2", 2.0, MEASURED, planted=3.0, wrong="3")
LITERAL = Claim(1, "literal", "2", 2.0, MEASURED, literal=True)
ROW = Row("paths-x", "2405.15926", "figure 9", "It is so.", "x = 1", "none", ("first",), why="The coin was bent.")


@pytest.mark.parametrize(
    ("claims", "verdict"),
    [
        ([SURE], papers.REPRODUCED),
        ([SURE, LITERAL], papers.QUALIFIED),
        ([SURE, BLIND], papers.OPEN),
        ([SURE, BLIND, WRONG], papers.NOT_REPRODUCED),
        ([LITERAL], papers.MISSING),
        ([], papers.MISSING),
    ],
)
def test_verdict_of_a_row(claims, verdict):
    found = results._content("first", Findings({"paths-x": claims}), 0, True, 1.0)
    (outcome,) = papers.outcomes({"first": found}, [ROW])
    assert outcome.verdict == verdict
    text = page.markdown({"first": found}, {"first": "first.png"}, [ROW])
    assert f"| [paths-x](#paths-x) | figure 9 | {verdict} |" in text
    assert "| first | fast | 0 |" in text
    assert "\nbayesattn papers --fast\n" in text
    assert "![first](first.png)" in text
    assert all(claim.statement in text for claim in claims)


def test_a_row_with_an_experiment_that_was_not_run_has_no_verdict():
    row = ROW._replace(by=("first", "second"))
    found = {"first": results._content("first", Findings({"paths-x": [SURE]}), 0, True, 1.0)}
    (outcome,) = papers.outcomes(found, [row])
    assert (outcome.verdict, outcome.missing) == (papers.MISSING, ("second",))
    assert page.reason(outcome) == "needs second"


def test_verdict_of_a_comparison_needs_its_wrong_law_to_be_found():
    assert [results.verdict_of(claim) for claim in (SURE, BLIND, WRONG)] == [HOLDS, CANNOT_TELL, DOES_NOT_HOLD]
    gain = {"predicted": 0.0, "relation": ">=", "planted": 0.0, "wrong": "no gain", "wrong_relation": "<="}
    told = {0.5: HOLDS, 0.1: CANNOT_TELL, -0.1: CANNOT_TELL, -0.5: DOES_NOT_HOLD}
    for value, verdict in told.items():
        assert results.verdict_of(Claim(1, "", "", measured=Mean(value, 0.05), **gain)) == verdict


def test_a_wrong_law_that_four_digits_do_not_show_is_told_by_its_difference():
    claim = {"relation": "=", "allowance": 0.0, "wrong": "off", "predicted_error": 0.0, "measured_error": 0.0}
    told = page.numbers(claim | {"predicted": 0.5056, "measured": 0.5056, "planted": 0.5056 + 1e-11})
    assert told == ("0.5056", "0.5056", "off: +1e-11")
    assert page.numbers(claim | {"predicted": 1.0, "measured": 1.0, "planted": 2.0})[2] == "off: 2"


def test_planted_laws_are_off_by_the_size_that_is_asked_for():
    assert with_planted(Claim(1, "", "", 2.0, Mean(2.0, 0.1)), 0.5).planted.value == 3.0
    assert with_planted(Claim(1, "", "", 2.0, Mean(2.0, 0.1), "<="), 0.5).planted.value == 1.0
    assert with_planted(Claim(1, "", "", 0.0, Mean(0.0, 0.1)), 0.5).planted.value == 0.5
    exact = with_planted(Claim(1, "", "", 0.0, 1e-12, tolerance=1e-10), 0.5)
    assert exact.finds_planted(1e-4)
    assert exact.holds(1e-4)
    assert with_planted(SURE, 0.5) is SURE
    assert with_planted(LITERAL, 0.5).planted is None


def test_rows_are_data_that_fits_together():
    assert len({row.id for row in ROWS}) == len(ROWS)
    assert {row.paper for row in ROWS} == papers.PAPERS.keys()
    named = {name for row in ROWS for name in row.by}
    assert named == papers.experiments().keys()


def test_rows_are_chosen_by_paper_by_name_and_by_experiment():
    assert papers.chosen() == list(ROWS)
    assert {row.paper for row in papers.chosen(["2212.14852"])} == {"2212.14852"}
    assert [row.id for row in papers.chosen(["paths-1a"])] == ["paths-1a"]
    assert {row.id for row in papers.chosen(["paths-2c"])} == {"paths-2c-theory", "paths-2c-gain", "paths-2c-u"}
    assert all("network" in row.by for row in papers.chosen(["network"]))
    with pytest.raises(ValueError, match=r"must be a paper .* got 'paths-1z'; did you mean 'paths-1"):
        papers.chosen(["paths-1z"])


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
            rows = [row.id for row in ROWS if name in row.by]
            return Findings({row: [SURE] for row in rows})

        return Experiment(name, run)

    monkeypatch.setattr(results, "experiments", lambda: {name: experiment(name) for name in counts})
    return counts


def test_an_interrupted_check_goes_on_and_results_of_others_stay(runs, tmp_path):
    told = []
    asked = ("tokens-latent",)
    with pytest.raises(KeyboardInterrupt):
        papers.check(tmp_path, asked, fast=True, progress=told.append)
    assert told[1::2] == [(0, 2, {"urn": "half way"}), (1, 2, {"exact posterior": "half way"})]
    (outcome,) = papers.check(tmp_path, asked, fast=True)
    assert outcome.verdict == papers.REPRODUCED
    assert runs == {"urn": 1, "exact posterior": 2}
    papers.check(tmp_path, asked, fast=True)
    assert runs == {"urn": 1, "exact posterior": 2}
    papers.check(tmp_path, asked, fast=True, seed=1)
    papers.check(tmp_path, asked, fast=True, again=True)
    assert runs == {"urn": 3, "exact posterior": 4}
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [name.partition("-")[2] for name in names] == ["fast-seed0", "fast-seed1"]
    stored = json.loads((tmp_path / names[0] / "urn.json").read_text())
    assert (stored["seed"], stored["fast"], stored["level"]) == (0, True, results.LEVEL)


@pytest.fixture
def stored(runs, tmp_path):
    """The file of a result, and its content."""
    runs["exact posterior"] = 1
    papers.check(tmp_path, ["tokens-latent"], fast=True)
    file = papers.folder_of(tmp_path, 0, True) / "urn.json"
    return file, json.loads(file.read_text())


@pytest.mark.parametrize("content", ["{", "[]", "{}", "[" * 200_000, '{"format": 0, "experiment": "urn"}', b"\xff\xfe"])
def test_a_damaged_result_is_named(stored, tmp_path, content):
    file, _ = stored
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=r"urn.json must be a result of the experiment 'urn', .* remove it"):
        papers.load(tmp_path, fast=True)


def damaged(change, content):
    row = content["claims"]["tokens-latent"]
    changes = {
        "claims": lambda: content.update(claims=[]),
        "null row": lambda: content["claims"].update({"tokens-latent": None}),
        "verdict": lambda: row[0].update(verdict="great"),
        "no verdict without a p-value": lambda: row[0].update(p_value=None),
        "number": lambda: row[0].update(measured="x"),
        "panel": lambda: content.update(
            panels={"urn": [{"label": "", "x": [1.0], "y": [], "error": None, "law": None}]}
        ),
        "no curves": lambda: content.update(panels={"urn": []}),
        "experiment": lambda: content.update(experiment="sufficiency"),
        "version": lambda: content.update(version="9.9.9"),
        "seed": lambda: content.update(seed=7),
        "mode": lambda: content.update(fast=False),
    }
    assert change in changes
    changes[change]()


@pytest.mark.parametrize(
    "change",
    [
        *("claims", "null row", "verdict", "no verdict without a p-value", "number", "panel", "no curves"),
        *("experiment", "version", "seed", "mode"),
    ],
)
def test_a_result_that_is_not_what_its_file_says_is_refused(stored, tmp_path, change):
    file, content = stored
    damaged(change, content)
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"urn.json must be .* got .*: remove it"):
        papers.load(tmp_path, fast=True)


def test_what_is_no_result_is_left_alone(stored, tmp_path):
    file, content = stored
    content["claims"]["tokens-latent"][0]["verdict"] = DOES_NOT_HOLD
    file.with_name("urn.old.json").write_text(json.dumps(content))
    file.with_name("package.json").mkdir()
    assert (
        papers.outcomes(papers.load(tmp_path, fast=True), papers.chosen(["tokens-latent"]))[0].verdict
        == papers.REPRODUCED
    )


def test_a_row_without_claims_of_an_experiment_is_run_again(runs, stored, tmp_path):
    file, content = stored
    del content["claims"]["tokens-latent"]
    file.write_text(json.dumps(content))
    (outcome,) = papers.outcomes(papers.load(tmp_path, fast=True), papers.chosen(["tokens-latent"]))
    assert (outcome.verdict, outcome.missing) == (papers.MISSING, ("urn",))
    (outcome,) = papers.check(tmp_path, ["tokens-latent"], fast=True)
    assert outcome.verdict == papers.REPRODUCED
    assert runs["urn"] == 2


def test_a_folder_that_cannot_be_used_is_refused_before_anything_runs(runs, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"out must be a folder that can be written, got .*file"):
        papers.check(tmp_path / "file", ["urn"], fast=True)
    busy = pytest.raises(ValueError, match="no other process is at work on")
    with stored_results.alone(papers.folder_of(tmp_path, 0, True)), busy:
        papers.check(tmp_path, ["urn"], fast=True)
    assert runs["urn"] == 0


def test_results_of_other_code_and_figures_that_fail_are_told(runs, stored, command, tmp_path):
    file, content = stored
    content |= {"code": "other", "panels": {"urn": [Curve("a", np.ones(1), np.ones(1)).to_dict()]}}
    file.write_text(json.dumps(content))
    file.with_suffix(".png").mkdir()
    os.utime(file.with_suffix(".png"), (0, 0))
    status, out, err = command("papers", "--only", "tokens-latent", "--fast", "--out", str(tmp_path))
    assert status == 0, err
    assert "tokens-latent" in out
    assert "the figure of urn could not be written" in err
    assert "made by other code than today's, --again replaces them: urn" in err


def test_axes_of_every_panel_have_names():
    """Of the results that the page is made of, and of no panel that is gone."""
    titles = {title for result in papers.read(PAGE).values() for title in result["panels"]}
    firsts = {title: next((key for key in figures.AXES if title.startswith(key)), None) for title in titles}
    assert [title for title, first in firsts.items() if first is None] == []
    assert figures.AXES.keys() - firsts.values() == set()


def test_the_command_prints_every_row_and_ends_with_its_verdict(runs, command, tmp_path):
    runs["exact posterior"] = 1
    status, out, err = command("papers", "--only", "tokens-latent", "--fast", "--workers", "1")
    assert status == 0, err
    assert "tokens-latent" in out
    assert "reproduced" in out
    assert "bayesattn papers --only tokens-latent" in out
    status, out, _ = command("papers", "--show", "--fast", "--json")
    assert status == 2
    rows = {row["id"]: row for row in json.loads(out)["rows"]}
    assert rows.keys() == {row.id for row in ROWS}
    assert rows["tokens-latent"]["verdict"] == "reproduced"
    assert rows["paths-1a"]["missing"] == ["network"]
    status, _, err = command("papers", "--only", "figure 7")
    assert status == 2
    assert "--only must be a paper" in err
    status, _, err = command("papers", "--seed", "-1")
    assert (status, "seed" in err) == (2, True)


def test_results_do_not_depend_on_the_number_of_workers(tmp_path):
    stands = {1: [], 2: []}
    for workers, told in stands.items():
        (outcome,) = papers.check(
            tmp_path / str(workers), ["tokens-sufficient"], fast=True, workers=workers, progress=told.append
        )
        assert outcome.verdict == papers.QUALIFIED
        assert all(stand.total == 2 and 1 <= len(stand.running) <= workers for stand in told)
    assert {stand.done for stand in stands[1]} == {0, 1}
    first, second = (papers.load(tmp_path / str(workers), fast=True) for workers in stands)
    assert first.keys() == second.keys() == {"urn", "sufficiency"}
    for name in first:
        assert first[name] | {"seconds": 0} == second[name] | {"seconds": 0}
    with pytest.raises(ValueError, match="workers must be"):
        papers.check(tmp_path, ["urn"], workers=0)
