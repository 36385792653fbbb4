"""Claims that are quick to check, all of them, and the command."""

import json

import numpy as np
import pytest

from bayesattn import exchangeable as ex
from bayesattn.exchangeable import validation
from bayesattn.exchangeable.checks import bayes, bridge, supervised
from bayesattn.exchangeable.claims import FAMILY_LEVEL, Claim, Findings, Mean

QUICK = (
    "exact posterior",
    "two attentions",
    "sufficiency",
    "heads as posterior inference",
)


@pytest.mark.parametrize("name", QUICK)
def test_claims_are_as_expected(name, monkeypatch):
    """Drawn with a fixed seed; all true claims of one check hold with a probability of at least 1 - FAMILY_LEVEL."""
    monkeypatch.setattr(bridge, "SEQUENCES", 1)
    monkeypatch.setattr(bridge, "REPLICATES", 1000)
    found = validation.CHECKS[name](validation.stream(0, name))
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


def test_checks_share_no_random_numbers(monkeypatch):
    """Two checks alike, under other names: each draws its own numbers, the same whenever the seed is the same."""
    drawn = []

    def check(rng):
        drawn.append(rng.random())
        return Findings()

    monkeypatch.setattr(validation, "CHECKS", {"first": check, "second": check})
    for seed in (0, 0, 1):
        ex.validate(seed)
    assert drawn[:2] == drawn[2:4]
    assert len(set(drawn)) == 4


@pytest.mark.parametrize("as_expected", [True, False])
def test_command(command, tmp_path, monkeypatch, as_expected):
    quick = bayes.sufficiency(np.random.default_rng(0))
    more = Claim(2, "made up [for a test]", "x^2", 1.0, Mean(1.0 if as_expected else 2.0, 0.1))
    curve = quick.panels["concentration"]
    panels = dict.fromkeys(["cme", "fixed", "shrinking", "concentration", "gap", "condition", "bridge"], curve)
    monkeypatch.setattr(validation, "CHECKS", {"quick": lambda rng: Findings([*quick.claims, more], panels)})

    claims = ("validate", "exchangeable")
    code, printed, _ = command(*claims, "--out", tmp_path / "out")
    assert code == (0 if as_expected else 1)
    assert "made up [for a test]" in printed
    assert ("FAILS" in printed) == (not as_expected)
    assert "fails  literally taken: " in printed
    assert "of 2 with a standard error each fails below p = 0.0005" in " ".join(printed.split())
    assert (tmp_path / "out" / "figure.png").stat().st_size > 10_000
    code, printed, _ = command(*claims, "--out", tmp_path / "more", "--json")
    assert json.loads(printed)["holds"] == as_expected
    code, _, error = command(*claims, "--out", tmp_path / "out")
    assert (code, "--out must not exist yet" in error) == (2, True)
    code, _, error = command(*claims, "--out", tmp_path / "new", "--draws", 5)
    assert (code, "got --draws too" in error) == (2, True)


def test_a_share_of_the_supervised_check_is_drawn_at_every_number_of_tokens(monkeypatch):
    """Of the population, in batches, and of training and test sets of 2m sequences."""
    drawn, right = [], supervised.learning.draw_sequences

    def recorded(rng, count, tokens):
        drawn.append(count)
        return right(rng, count, tokens)

    monkeypatch.setattr(supervised.learning, "draw_sequences", recorded)
    monkeypatch.setattr(supervised, "TOKENS", (4, 4))  # Alike, so that both share programs.
    monkeypatch.setattr(supervised, "POPULATION", (16_000, 16_000))
    monkeypatch.setattr(supervised, "REPLICATES", (16, 16))
    assert supervised.supervised(np.random.default_rng(0), share=0.25).claims
    assert drawn == 2 * ([4000 // supervised.BATCHES] * supervised.BATCHES + [(4, 2 * supervised.SEQUENCES)] * 2)
