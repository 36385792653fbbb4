"""Claims: those that are quick to check, and that a wrong law or a wrong posterior would be found."""

import json

import numpy as np
import pytest

from bayesattn import exchangeable as ex
from bayesattn.cli import main
from bayesattn.exchangeable import bridge, checks_bayes, checks_learning, checks_rates, rates, validation
from bayesattn.exchangeable.claims import Claim, Findings, law_slope, slope

QUICK = {
    "posterior": checks_bayes.posterior,
    "attention": checks_bayes.attention,
    "sufficiency": checks_bayes.sufficiency,
    "pretrained": checks_learning.pretrained,
    "bridge": bridge.bridge,
}


@pytest.mark.parametrize("check", QUICK.values(), ids=QUICK)
def test_claims_are_as_expected(check):
    """Drawn with a fixed seed; within 3 standard errors or the stated tolerance."""
    found = check(0).claims
    assert found
    assert [claim for claim in found if not claim.as_expected] == []


@pytest.mark.heavy
def test_all_claims_are_as_expected():
    found = ex.validate(seed=0).claims
    assert {claim.section for claim in found} == set(validation.SECTIONS)
    assert sum(claim.literal for claim in found) == 7
    assert [claim for claim in found if not claim.as_expected] == []


def test_a_wrong_law_is_found(monkeypatch):
    right = rates.mean_cme_error
    monkeypatch.setattr(rates, "mean_cme_error", lambda keys, *rest: right(keys, *rest) * len(keys) ** 0.02)
    monkeypatch.setattr(rates, "cme_error", lambda *arguments: 1.05 * 0.115866)
    found = checks_rates.conditional_mean_embedding(0).claims
    wrong = [claim.statement for claim in found if not claim.as_expected]
    assert any("one z and one set" in statement for statement in wrong)
    assert any("published proof" in statement for statement in wrong)


def test_a_wrong_posterior_is_found(monkeypatch):
    right = checks_bayes.sample
    monkeypatch.setattr(
        checks_bayes,
        "sample",
        lambda model, **settings: right(
            type(model)(features=model.features, values=model.values, noise=1.1 * model.noise, prior=model.prior),
            **settings,
        ),
    )
    wrong = [claim.statement for claim in checks_bayes.posterior(0).claims if not claim.as_expected]
    assert any("NUTS" in statement for statement in wrong)


def test_what_it_takes_to_hold():
    claim = {"section": 1, "statement": "", "law": "", "predicted": 1.0}
    assert Claim(**claim, measured=1.29, error=0.1).holds
    assert not Claim(**claim, measured=1.31, error=0.1).holds
    assert not Claim(**claim, measured=1.31, error=0.1, literal=True).holds
    assert Claim(**claim, measured=1.31, error=0.1, literal=True).as_expected
    assert not Claim(**claim, measured=1.2, error=0.2, within=0.1).holds
    assert Claim(**claim, measured=0.0, relation="<=").holds
    assert not Claim(**claim, measured=0.0, relation=">=").holds
    assert not Claim(**claim, measured=np.nan, error=1.0).holds
    assert not Claim(**claim, measured=np.nan, literal=True).as_expected
    assert not Claim(**claim, measured=1.0, error=np.inf).holds
    assert not Claim(**claim, measured=np.nan, error=1.0, relation="<=").holds


def test_slopes_of_known_powers():
    rng, x = np.random.default_rng(0), np.array([10, 100, 1000])
    squares = (x**-0.8)[:, None] * rng.chisquare(4, size=(3, 2000)) / 4
    found = slope(x, squares)
    assert abs(found.value + 0.4) < 4 * found.error < 0.03
    assert law_slope(x, x**-0.8) == pytest.approx(-0.4)


@pytest.mark.parametrize("as_expected", [True, False])
def test_command(tmp_path, monkeypatch, capsys, as_expected):
    quick = checks_bayes.sufficiency(0)
    more = Claim(2, "made up [for a test]", "x^2", 1.0, 1.0 if as_expected else 2.0, error=0.1)
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
    assert (tmp_path / "out" / "figure.png").stat().st_size > 10_000
    code, printed, _ = command("--out", tmp_path / "more", "--json")
    assert json.loads(printed)["holds"] == as_expected
    code, _, error = command("--out", tmp_path / "out")
    assert (code, "--out must not exist yet" in error) == (2, True)
    code, _, error = command("--out", tmp_path / "new", "--draws", 5)
    assert (code, "got --draws too" in error) == (2, True)
