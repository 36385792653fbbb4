"""Diagnostics: what they are of, and that what is not defined is said in words."""

import json
import warnings

import arviz_base
import numpy as np
import pytest

from bayesattn._util.text import draw_more
from bayesattn.checks.diagnostics import Diagnostics, diagnose, summary
from bayesattn.checks.mixing import FEWEST_DRAWS, FEWEST_DRAWS_FOR_TAILS, moments, tail_shapes
from bayesattn.checks.thresholds import doubts_about, times_as_many


def tree(chains=4, draws=500, paths=("1",), **posterior):
    """Independent draws, but for variables of the posterior that are given."""
    rng = np.random.default_rng(0)
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
        coords={axis: [*paths] for axis in ("path", "other_path")},
    )


def plain(found):
    """As JSON has it."""
    return json.loads(json.dumps(found.to_dict(), allow_nan=False))


def test_independent_draws_carry_no_warning_but_that_of_their_divergence():
    found = diagnose(tree(draws=1000))
    assert 0.99 < found.rhat < 1.01
    assert found.undefined == {}
    assert len(found.warnings()) == 1
    assert found.worst["ess"] in ("order_parameter", "energy", "lp")
    assert Diagnostics.from_dict(plain(found)).to_dict() == found.to_dict()


def test_draws_that_do_not_vary_are_said_to_be_so():
    draws = tree(order_parameter=np.full((4, 500, 1, 1), 0.1))
    found = diagnose(draws)
    assert "R-hat and ESS are not defined: the draws of U do not vary" in found.warnings()
    assert plain(found)["undefined"]["rhat"] == "the draws of U do not vary"
    [row] = [row for row in summary(draws) if row["quantity"] == "order_parameter"]
    for numbers, names in ((plain(found), ("rhat", "ess", "tail_ess")), (row, ("rhat", "ess", "error"))):
        assert [numbers[name] for name in names] == [None] * 3


def test_chains_stuck_in_different_places_have_an_infinite_r_hat():
    draws = tree(order_parameter=np.broadcast_to(np.reshape([0.5, 0.5, 0.5, 0.6], (4, 1, 1, 1)), (4, 500, 1, 1)))
    found = diagnose(draws)
    assert found.rhat == np.inf
    [said] = [warning for warning in found.warnings() if "R-hat" in warning]
    assert said.startswith("R-hat is infinite: chains are stuck in different places: the draws of U do not vary within")
    assert "infinite" in found.overall()
    assert plain(found)["undefined"]["rhat"].startswith("chains are stuck in different places")
    assert Diagnostics.from_dict(plain(found)).rhat == np.inf
    of = moments(draws["posterior"]["order_parameter"])
    said, *_ = doubts_about("U", 4, of["rhat"], of["ess"])
    assert said == "R-hat of U is infinite: chains are stuck in different places"


def test_one_entry_stuck_among_others_is_found():
    values = np.random.default_rng(1).normal(size=(4, 500, 2, 2))
    values[..., 1, 1] = np.arange(4.0)[:, None]
    draws = tree(order_parameter=values, paths=["1", "2"])
    assert diagnose(draws).stuck == ["order_parameter"]
    assert [row["pareto_k"] is None for row in summary(draws) if "path" in row] == [False, False, True]


@pytest.mark.parametrize(("chains", "count"), [(4, 1), (4, 3), (2, 2)])
def test_too_few_draws_have_one_sentence(chains, count):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draws = tree(chains, count)  # ArviZ warns of fewer draws than chains.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = diagnose(draws)
        assert all(row["error"] is None for row in summary(draws))
    of = moments(draws["posterior"]["order_parameter"])
    assert doubts_about("U", 4, of["rhat"], of["ess"]) == ["R-hat of U is not defined: draw more"]
    assert found.to_dict()["rhat"] is None
    assert found.warnings() == [
        f"R-hat and ESS are not defined: too few draws to tell: {count} of each chain, at least {FEWEST_DRAWS} are needed"
    ]


@pytest.mark.parametrize(("power", "heavy"), [(1, False), (2, False), (-0.4, True), ("t", True)])
def test_heavy_tails_of_the_square_are_told(power, heavy):
    """Light tails of powers of an exponential x; k of U^2 is 0.8 for x^-0.4, 0.91 for Student's t of 2.2 degrees."""
    rng = np.random.default_rng(5)
    shape = (4, 4000, 1, 1)
    values = rng.standard_t(2.2, size=shape) if power == "t" else rng.exponential(size=shape) ** power
    found = diagnose(tree(draws=4000, order_parameter=values))
    assert (found.pareto_k > 0.7) == heavy
    assert any(said.startswith("the tails of U^2 are heavy: Pareto k is ") for said in found.warnings()) == heavy


def test_draws_with_rhat_between_the_old_limit_and_the_new_decide_nothing():
    ess = np.array([900.0])
    assert doubts_about("U", 4, np.array([1.019]), ess) == []
    assert doubts_about("U", 4, np.array([1.03]), ess) == [
        "R-hat of U is 1.0300, expected at most 1.02: chains differ; draw longer"
    ]
    assert doubts_about("U", 4, np.array([1.0]), np.array([399.0])) == [
        "the effective sample size of U is 399, expected at least 400: draw more, about 1.1 times as many"
    ]
    # Of chains that differ it is not known how many.
    assert doubts_about("U", 4, np.array([1.03]), np.array([399.0]))[1].endswith("expected at least 400: draw more")


def test_as_many_draws_as_the_hardest_bound_needs():
    difference, bound = np.array([0.0, 0.04, 0.01]), np.array([0.10, 0.07, 0.03])
    assert times_as_many(difference, bound, 0.05) == pytest.approx(9.0)
    assert times_as_many(difference, bound, 0.04) == np.inf
    assert times_as_many(difference, bound, 0.2) == 1.0
    advice = {1.01: "about 1.1 times", 9.95: "about 10 times", 16.2: "about 17 times"}
    assert all(text in draw_more(times) for times, text in advice.items())
    assert draw_more(np.inf) == draw_more(np.nan) == draw_more(1.0) == "draw more"
    same = np.array([0.1])
    assert times_as_many(same, same, 0.05) == np.inf


def test_one_chain_that_stands_still_among_others_is_found():
    values = np.random.default_rng(1).normal(size=(4, 500, 1, 1))
    values[2] = 0.3
    found = diagnose(tree(order_parameter=values))
    assert found.rhat > 1.01
    assert found.worst["rhat"] == "order_parameter"
    assert any(warning.startswith("R-hat (of U) is ") for warning in found.warnings())


def test_chains_that_are_copies_are_found():
    draws = tree()
    numbered = lambda part: part.assign_coords(chain=range(4)) if "chain" in part.dims else part  # noqa: E731
    copies = draws.isel(chain=[0, 1, 1, 1]).map_over_datasets(numbered)
    assert (diagnose(draws).repeated, diagnose(copies).repeated) == (0, 1)
    assert any("same draws occur in several chains" in warning for warning in diagnose(copies).warnings())
    assert diagnose(draws).doubts_about_repeats() == []


def test_r_hat_of_one_chain_is_not_defined():
    draws = tree(chains=1, draws=2000)
    found = diagnose(draws)
    assert np.isnan(found.rhat)
    assert found.ess > 1000
    assert found.to_dict()["undefined"] == {"rhat": "there is one chain alone: draw several to see whether they agree"}
    assert not any("above" in warning for warning in found.warnings())
    assert found.overall().startswith("R-hat is not defined, the effective sample size is at least ")
    assert all(row["rhat"] is None and row["ess"] > 1000 for row in summary(draws))


def test_no_advice_is_to_use_the_parameterisation_in_use():
    """Collapsed draws of U come with Bartlett coordinates; of draws without U nothing is known."""
    for draws, more in (
        (tree(), ", or use the collapsed parameterisation"),
        (tree(bartlett=np.zeros((4, 500, 1))), ""),
    ):
        [said] = [warning for warning in diagnose(draws).warnings() if "divergent" in warning]
        assert said == f"1 divergent transitions: raise target_accept_prob{more}"


def test_tails_have_a_shape_from_enough_draws_on():
    """Of a Pareto law its own, and none of fewer draws, of draws that are not finite, and of draws that do not vary."""
    draws = np.random.default_rng(0).pareto(2.0, (4, 2, FEWEST_DRAWS_FOR_TAILS // 2))
    draws[2, 0, 0], draws[3] = np.inf, 1.0
    shapes = tail_shapes(draws)
    assert 0.2 < shapes[0] < 0.9
    assert np.isfinite(shapes).tolist() == [True, True, False, False]
    assert np.isnan(tail_shapes(draws[:, :, 1:])).all()
