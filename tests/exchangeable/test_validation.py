"""Claims that are quick to check, all of them, and the command."""

import json

import pytest

from bayesattn import exchangeable as ex
from bayesattn.cli import main
from bayesattn.exchangeable import bridge, checks_bayes, checks_learning, validation
from bayesattn.exchangeable.claims import FAMILY_LEVEL, Claim, Findings, Mean

QUICK = {
    "posterior": checks_bayes.posterior,
    "attention": checks_bayes.attention,
    "sufficiency": checks_bayes.sufficiency,
    "pretrained": checks_learning.pretrained,
    "bridge": bridge.bridge,
}


@pytest.mark.parametrize("check", QUICK.values(), ids=QUICK)
def test_claims_are_as_expected(check):
    """Drawn with a fixed seed; all true claims of one check hold with a probability of at least 1 - FAMILY_LEVEL."""
    found = check(0)
    assert found.claims
    assert found.unexpected == []


@pytest.mark.heavy
def test_all_claims_are_as_expected():
    found = ex.validate(seed=0)
    assert {claim.section for claim in found.claims} == set(validation.SECTIONS)
    assert found.unexpected == []
    statistical = sum(claim.statistical for claim in found.claims)
    assert found.level == FAMILY_LEVEL / statistical
    assert statistical <= 80  # The level at which planted wrong laws are found.


@pytest.mark.parametrize("as_expected", [True, False])
def test_command(tmp_path, monkeypatch, capsys, as_expected):
    quick = checks_bayes.sufficiency(0)
    more = Claim(2, "made up [for a test]", "x^2", 1.0, Mean(1.0 if as_expected else 2.0, 0.1))
    curve = quick.panels["concentration"]
    panels = dict.fromkeys(("cme", "fixed", "shrinking", "concentration", "gap", "condition", "bridge"), curve)
    monkeypatch.setattr(validation, "CHECKS", {"quick": lambda seed: Findings([*quick.claims, more], panels)})

    def command(*arguments):
        monkeypatch.setattr("sys.argv", ["bayesattn", "validate", "exchangeable", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        return end.value.code, printed.out, printed.err

    code, printed, _ = command("--out", tmp_path / "out")
    assert code == (0 if as_expected else 1)
    assert "made up [for a test]" in printed
    assert ("FAILS" in printed) == (not as_expected)
    assert "fails, literally taken" in printed
    assert "of 2 with a standard error each fails below p = 0.0005" in " ".join(printed.split())
    assert (tmp_path / "out" / "figure.png").stat().st_size > 10_000
    code, printed, _ = command("--out", tmp_path / "more", "--json")
    assert json.loads(printed)["holds"] == as_expected
    code, _, error = command("--out", tmp_path / "out")
    assert (code, "--out must not exist yet" in error) == (2, True)
    code, _, error = command("--out", tmp_path / "new", "--draws", 5)
    assert (code, "got --draws too" in error) == (2, True)
