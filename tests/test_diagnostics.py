"""Diagnostics: what they are of, and that what is not defined is said in words."""

import json

import arviz_base
import numpy as np
import pytest

from bayesattn.diagnostics import FEWEST_DRAWS, Diagnostics, diagnose, summary


def tree(chains=4, draws=500, seed=0, **posterior):
    """Independent draws, but for variables of the posterior that are given."""
    rng = np.random.default_rng(seed)
    diverging = np.zeros((chains, draws), bool)
    diverging[0, 0] = True
    shape = (chains, draws)
    return arviz_base.from_dict(
        {
            "posterior": {"order_parameter": rng.normal(size=(*shape, 1, 1))} | posterior,
            "sample_stats": {"energy": rng.normal(size=shape), "lp": rng.normal(size=shape), "diverging": diverging},
            "constant_data": {"temperature": np.array(1.0)},
        },
        dims={"order_parameter": ["path", "other_path"]},
        coords={"path": ["1"], "other_path": ["1"]},
    )


def test_independent_draws_carry_no_warning_but_that_of_their_divergence():
    found = diagnose(tree(draws=1000))
    assert 0.99 < found.rhat < 1.01
    assert found.undefined == {}
    assert len(found.warnings()) == 1
    assert found.worst["ess"] in ("order_parameter", "energy", "lp")
    assert Diagnostics.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False))).to_dict() == found.to_dict()


@pytest.mark.parametrize("by_chain", [0.0, 1.0])
def test_draws_that_do_not_vary_are_said_to_be_so(by_chain):
    """All the same, or a number for each chain."""
    values = 0.1 + by_chain * np.arange(4.0)[:, None, None, None] * np.ones((4, 500, 1, 1))
    draws = tree(order_parameter=values)
    found = diagnose(draws)
    assert "R-hat and ESS are not defined: the draws of U do not vary" in found.warnings()
    numbers = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (numbers["rhat"], numbers["ess"], numbers["tail_ess"]) == (None, None, None)
    assert numbers["undefined"]["rhat"] == "the draws of U do not vary"
    [row] = [row for row in summary(draws) if row["quantity"] == "order_parameter"]
    assert (row["rhat"], row["ess"], row["error"]) == (None, None, None)


def test_one_chain_that_stands_still_among_others_is_found():
    values = np.random.default_rng(1).normal(size=(4, 500, 1, 1))
    values[2] = 0.3
    found = diagnose(tree(order_parameter=values))
    assert found.rhat > 1.01
    assert found.worst["rhat"] == "order_parameter"
    assert any(warning.startswith("R-hat (of U) is ") for warning in found.warnings())


def test_draws_that_are_not_finite_are_said_to_be_so():
    values = np.random.default_rng(1).normal(size=(4, 500, 1, 1))
    values[0, 7] = np.nan
    assert (
        "R-hat and ESS are not defined: some draws are not finite" in diagnose(tree(order_parameter=values)).warnings()
    )


def test_r_hat_of_one_chain_is_not_defined():
    draws = tree(chains=1, draws=2000)
    found = diagnose(draws)
    assert np.isnan(found.rhat)
    assert found.ess > 1000
    assert found.to_dict()["undefined"] == {"rhat": "there is one chain alone: draw several to see whether they agree"}
    assert not any("above" in warning for warning in found.warnings())
    assert found.overall().startswith("R-hat is not defined, the effective sample size is at least ")
    assert all(row["rhat"] is None and row["ess"] > 1000 for row in summary(draws))


def test_too_few_draws_are_said_to_be_too_few():
    found = diagnose(tree(chains=2, draws=2))
    assert found.warnings()[0] == (
        f"R-hat and ESS are not defined: too few draws to tell: 2 of each chain, at least {FEWEST_DRAWS} are needed"
    )
    assert found.to_dict()["rhat"] is None


def test_no_advice_is_to_use_the_parameterisation_in_use():
    """Collapsed draws of U come with Bartlett coordinates; of draws without U nothing is known."""
    advice = {
        "weight space": diagnose(tree()),
        "collapsed": diagnose(tree(bartlett=np.zeros((4, 500, 1)))),
    }
    said = {name: [w for w in found.warnings() if "divergent" in w] for name, found in advice.items()}
    assert said["weight space"] == [
        "1 divergent transitions: raise target_accept_prob, or use the collapsed parameterisation"
    ]
    assert said["collapsed"] == ["1 divergent transitions: raise target_accept_prob"]
