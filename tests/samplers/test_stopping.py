"""Sampling that stops early: at a target, a limit of time or an interrupt; its draws are the first of a longer run."""

import time

import arviz_stats
import numpy as np
import pytest
import xarray as xr

import bayesattn as ba
from bayesattn import runs
from bayesattn.samplers import blocks as block_runner
from bayesattn.samplers import stopping
from bayesattn.samplers.stopping import Goal, least_ess
from tests.killed_run import BLOCK
from tests.posteriors import tiny_model
from tests.test_runs import StopAfter

JOB = {"chains": 2, "warmup": 100, "draws": 600, "seed": 3, "progress": False}
TARGET = 200


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(block_runner, "MOST_DRAWS_PER_BLOCK", BLOCK)


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture(scope="module")
def whole(model):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_runner, "MOST_DRAWS_PER_BLOCK", BLOCK)
        return ba.sample(model, **JOB)


def require_first_draws(tree, whole):
    kept = tree["posterior"].sizes["draw"]
    assert tree["sample_stats"].sizes["draw"] == kept
    np.testing.assert_array_equal(tree["posterior"]["draw"], np.arange(kept))
    for name, of in whole["posterior"].data_vars.items():
        np.testing.assert_array_equal(tree["posterior"][name], of[:, :kept])
    return kept


def least_of(whole, draws=None):
    entry = whole["posterior"]["order_parameter"].isel(draw=slice(draws))[..., 0, 0]
    return min(float(arviz_stats.ess(entry, method=method)) for method in ("bulk", "tail"))


def first_look(whole, target):
    """The first count of draws looked at that has the target, by ArviZ."""
    look = 100
    while least_of(whole, look) < target:
        look = int(np.ceil(1.25 * look))
        assert look <= 600
    return look


def test_a_target_stops_where_every_machine_stops(model, whole, monkeypatch):
    wanted = first_look(whole, TARGET)
    assert 100 < wanted < 600
    assert require_first_draws(ba.sample(model, **JOB, target_ess=TARGET), whole) == wanted
    # Looks that come late, while blocks go on, find the same.
    slowly = Goal.enough
    monkeypatch.setattr(Goal, "enough", lambda self, drawn: drawn > wanted + 60 and slowly(self, drawn))
    assert require_first_draws(ba.sample(model, **JOB, target_ess=TARGET), whole) == wanted


def test_a_limit_of_time_says_how_far_draws_are(model, whole, monkeypatch):
    monkeypatch.setattr(Goal, "enough", over_after(100))
    with pytest.warns(UserWarning, match=r"1\d\d of 600 draws of each chain are there after max_seconds = 50$"):
        kept = require_first_draws(ba.sample(model, **JOB, max_seconds=50), whole)
    assert 100 < kept < 200
    monkeypatch.setattr(Goal, "enough", over_after(-1))
    with pytest.raises(TimeoutError, match="max_seconds = 50 are over, and no draws of all chains are there yet"):
        ba.sample(model, **JOB, max_seconds=50)


def over_after(draws):
    def enough(self, drawn):
        self.over = drawn > draws
        return self.over

    return enough


def test_the_clock_runs(model):
    goal = Goal(ba.samplers.Job(chains=1), max_seconds=0.05)
    assert not goal.enough(0)
    time.sleep(0.06)
    assert goal.enough(0)


def test_draws_of_an_interrupted_call_are_returned_on_request(model, whole):
    with pytest.warns(UserWarning, match=r"interrupted: \d+ of 600 draws of each chain are there"):
        tree = ba.sample(model, **JOB | {"progress": StopAfter(500)}, on_interrupt="return")
    assert 0 < require_first_draws(tree, whole) < 300
    with pytest.raises(KeyboardInterrupt):
        ba.sample(model, **JOB | {"progress": StopAfter(500)})
    with pytest.raises(KeyboardInterrupt):  # There are none yet.
        ba.sample(model, **JOB | {"progress": StopAfter(10)}, on_interrupt="return")


def test_thinned_chains_stop_at_draws_that_are_kept(model):
    job = JOB | {"draws": 1200, "thin": 2}
    whole = ba.sample(model, **job)["posterior"]
    tree = ba.sample(model, **job, target_ess=TARGET)["posterior"]
    kept = tree.sizes["draw"]
    assert 100 <= kept < 600
    np.testing.assert_array_equal(tree["draw"], 1 + 2 * np.arange(kept))
    np.testing.assert_array_equal(tree["order_parameter"], whole["order_parameter"][:, :kept])


def test_a_run_stops_at_its_target_and_goes_on_without(model, whole, tmp_path):
    run = runs.sample(model, tmp_path / "run", **JOB, target_ess=TARGET)
    assert (run.state, run.complete) == ("stopped", False)
    assert require_first_draws(run.draws(), whole) == run.drawn >= first_look(whole, TARGET)
    stands = run.stamp()
    assert runs.sample(model, tmp_path / "run", **JOB, target_ess=TARGET).stamp() == stands
    told = f"600 of 600 draws .* effective sample size is {least_of(whole):.0f}, target_ess = 1e"
    with pytest.warns(UserWarning, match=told):
        longer = runs.sample(model, tmp_path / "run", **JOB, target_ess=1e6)
    assert longer.state == "complete"
    assert require_first_draws(longer.draws(), whole) == 600
    with pytest.warns(UserWarning, match=told):  # One that is complete says so too.
        runs.sample(model, tmp_path / "run", **JOB, target_ess=1e6)


def test_a_run_is_replaced_by_what_is_complete_or_has_its_target_not_by_what_ran_out_of_time(
    model, whole, tmp_path, monkeypatch
):
    place = tmp_path / "run"
    runs.sample(model, place, **JOB | {"draws": 20, "seed": 4})
    before = runs.Run(place).stamp()
    with monkeypatch.context() as patch:
        patch.setattr(Goal, "enough", over_after(100))
        with pytest.warns(UserWarning, match="of 600 draws of each chain are there after max_seconds = 50"):
            stopped = runs.sample(model, place, **JOB, max_seconds=50, overwrite=True)
    assert (stopped.state, stopped.job.seed) == ("stopped", 3)
    assert 100 < require_first_draws(stopped.draws(), whole) < 200
    assert stopped.path != place
    assert runs.Run(place).stamp() == before
    run = runs.sample(model, place, **JOB, target_ess=TARGET, overwrite=True)
    assert (run.path, run.state, run.job.seed) == (place, "stopped", 3)
    assert require_first_draws(run.draws(), whole) >= first_look(whole, TARGET)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target_ess": 0}, "target_ess must be a finite number above 0, got 0"),
        ({"target_ess": 9, "keep": ["weights"], "parameterisation": "path"}, "needs draws of U, .* got weights"),
        ({"on_interrupt": "keep"}, "on_interrupt must be one of 'raise', 'return', got 'keep'"),
    ],
)
def test_bad_goals_are_refused_before_anything_is_drawn(model, settings, message):
    with pytest.raises(ValueError, match=message):
        ba.sample(model, **JOB | settings)


def test_entries_of_u_count_once_and_those_of_a_latent_all():
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(2, 50, 2, 2))
    assert stopping.entries({"latent": drawn, "prediction": None}, 40).shape == (2, 40, 4)
    np.testing.assert_array_equal(
        stopping.entries({"order_parameter": drawn}, 40), drawn[:, :40][..., [0, 1, 1], [0, 0, 1]]
    )
    assert least_ess(np.ones((2, 50, 1))) == least_ess(rng.normal(size=(2, 3, 1))) == 0


@pytest.mark.parametrize("warned", [False, True])
def test_poor_mixing_begins_below_the_fewest_effective_draws(monkeypatch, recwarn, warned):
    """At the threshold itself nothing is said, nor of an entry that never changes."""
    latent = np.random.default_rng(0).normal(size=(2, 400, 3))
    latent[:, :, 1] = 1.0
    least = float(arviz_stats.ess(xr.DataArray(latent[:, :, ::2], dims=("chain", "draw", "entry"))).min())
    monkeypatch.setattr(stopping, "FEWEST_EFFECTIVE_DRAWS", np.nextafter(least, np.inf) if warned else least)
    stopping.warn_of_poor_mixing({"latent": latent}, 400)
    assert [f"sample size {least:.0f}," in str(each.message) for each in recwarn] == [True] * warned
