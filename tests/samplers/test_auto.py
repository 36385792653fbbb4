"""The default sampler: right where posteriors have modes apart; what diagnostics say of chains that stay in one mode."""

import numpy as np
import pytest
import xarray as xr

import bayesattn as ba
from bayesattn import runs
from bayesattn.samplers import Job, suited_sampler
from bayesattn.samplers.stopping import FEWEST_ROUND_TRIPS, warn_of_poor_mixing
from tests.posteriors import two_modes
from tests.statistics import agree, near

SMALL = {"warmup": 200, "draws": 500, "progress": False}


@pytest.fixture(scope="module")
def drawn():
    """Draws that a user gets who reads nothing."""
    model, _ = two_modes()
    return ba.sample(model, **SMALL | {"draws": 2000})


def signs(draws, row):
    """Whether V_l and the skip's factor have the same sign: the sign of U between their rows."""
    return (draws["posterior"]["order_parameter"][..., 0, row] > 0).astype(float)


def test_the_default_crosses_between_modes(drawn):
    """As both routes say; by NUTS, P(V_2 > 0) is 0 where 0.083 is right, and R-hat is clean."""
    _, exact = two_modes()
    for row, name in ((2, "v1"), (4, "v2")):
        agree(signs(drawn, row).rename("sign"), float(exact[name]), 0.006)
    heads = ba.heads(drawn)
    near(heads.scores, exact["scores"], np.hypot(heads.error, 0.006), finds=0.15)


def test_diagnostics_count_round_trips(drawn):
    trips = drawn["sample_stats"]["round_trips"].values
    assert np.all(np.diff(trips) >= 0)
    found = ba.diagnose(drawn)
    assert found.round_trips == trips[:, -1].min() > FEWEST_ROUND_TRIPS
    assert found.uncrossed == []
    few = drawn.isel(draw=slice(0, 4))
    assert any("round trips between posterior and prior" in each for each in ba.diagnose(few).warnings())


def test_diagnostics_name_signs_that_never_change(drawn):
    """Of draws without replicas; on synthetic signs, since which chains cross depends on rounding."""
    tree = drawn.copy()
    tree["sample_stats"] = xr.DataTree(drawn["sample_stats"].to_dataset().drop_vars("round_trips"))
    posterior = tree["posterior"].to_dataset().copy(deep=True)
    values = np.abs(posterior["order_parameter"].values)
    values[0, 7, 2, 0] *= -1
    values[1, :, 4, 0] *= -1
    tree["posterior"] = xr.DataTree(posterior.assign(order_parameter=(posterior["order_parameter"].dims, values)))
    found = ba.diagnose(tree)
    first, second, third = (str(tree["posterior"]["path"].values[row]) for row in (0, 2, 4))
    assert f"{second} and {first}" not in found.uncrossed
    assert f"{third} and {first}" in found.uncrossed
    assert len(found.uncrossed) == 15 - 1
    assert any("of 13 other pairs never changes in a chain" in each for each in found.warnings())


ARCHITECTURES = {  # heads, widths, skips, outputs
    "one neuron": ((2,), (1, 1), (), 1, "tempered"),
    "a narrow upper layer": ((2, 2), (10, 3, 10), (), 1, "tempered"),
    "a skip": ((1,), (2, 2), (1.0,), 1, "tempered"),
    "outputs": ((1,), (3, 3), (), 2, "tempered"),
    "one row": ((1, 1), (2, 2, 2), (), 1, "nuts"),
    "four neurons": ((2, 2), (4, 4, 4), (0.5, 0.5), 2, "nuts"),
    "more coordinates than were tried": ((12, 12), (2, 2, 2), (1.0, 1.0), 3, "nuts"),
}


@pytest.mark.parametrize(("heads", "widths", "skips", "outputs", "expected"), ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_narrow_networks_are_tempered(heads, widths, skips, outputs, expected):
    arch = ba.Architecture(heads, widths, (1.0,) * (len(widths) + 1), skips, outputs)
    inputs, labels = np.ones((1, arch.paths, 1)), np.zeros((1, outputs) if outputs > 1 else 1)
    model = ba.Model(path_inputs=inputs, labels=labels, architecture=arch, temperature=1.0)
    assert suited_sampler(model) == Job().for_model(model).sampler == expected
    assert Job(sampler="hmc").for_model(model).sampler == "hmc"


def test_a_run_keeps_the_sampler_that_was_chosen(drawn, tmp_path):
    model, _ = two_modes()
    run = runs.sample(model, tmp_path / "run", **SMALL)
    assert run.job.sampler == "tempered"
    first = drawn["posterior"]["order_parameter"][:, : SMALL["draws"]]
    np.testing.assert_array_equal(run.draws()["posterior"]["order_parameter"], first)
    assert runs.sample(model, tmp_path / "run", **SMALL).complete
    with pytest.raises(runs.RunError, match="sampler = tempered, got nuts"):
        runs.sample(model, tmp_path / "run", sampler="nuts", **SMALL)


def test_chains_that_have_not_mixed_are_told():
    rng = np.random.default_rng(0)
    good = rng.normal(size=(2, 100, 1, 1))
    apart = good + np.arange(2)[:, None, None, None]
    # Warnings are errors in the tests.
    warn_of_poor_mixing({"order_parameter": good}, 100)
    with pytest.warns(UserWarning, match="50 draws of each chain are too few"):
        warn_of_poor_mixing({"order_parameter": apart}, 50)
    warn_of_poor_mixing({"order_parameter": good}, 90, thin=2)
    with pytest.warns(UserWarning, match="40 draws of each chain are too few .*; draw 50 or more"):
        warn_of_poor_mixing({"order_parameter": good}, 40, thin=2)
    with pytest.warns(UserWarning, match=r"chains have not mixed: R-hat is 1\.[1-9]"):
        warn_of_poor_mixing({"order_parameter": apart}, 100)
    walks = np.cumsum(rng.normal(size=(2, 400, 3)), axis=1)
    with pytest.warns(UserWarning, match="chains have not mixed"):
        warn_of_poor_mixing({"order_parameter": np.tile(good, (1, 4, 1, 1)), "prediction": walks}, 400)
