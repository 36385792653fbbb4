"""Calibration of samplers, and that it finds those that are wrong."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from blackjax.mcmc import barker

import bayesattn as ba
from bayesattn.checks.ranks import least_tail, uniform_probability
from bayesattn.models import collapsed
from bayesattn.questions import calibration, joint_law
from bayesattn.samplers import BIASED, SAMPLERS, WITH_REPLICAS, Job, langevin
from bayesattn.samplers.blocks import _factorises_batches, of_each
from tests.posteriors import tiny_model

ADJUSTED = [name for name in SAMPLERS if name not in BIASED]
LARGE_STEP = {"sampler": "uncorrected", "options": {"step_size": 1.5, "adapt_step_size": False, "steps": 5}}


class Uncorrected(langevin.Barker):
    """Barker proposals, all of them accepted; unlike those of ULA they do not run away at a large step."""

    def step(self, key, point, step_size, logdensity):
        state = barker.BarkerState(point.position, point.logdensity, point.gradient)
        _, info = barker.build_kernel()(key, state, logdensity, step_size)
        return langevin.Move(langevin.Point(*info.proposal, point.momentum), jnp.ones(()), jnp.zeros(()), 1)


@pytest.fixture(autouse=True)
def _uncorrected(monkeypatch):
    monkeypatch.setitem(SAMPLERS, "uncorrected", Uncorrected)


@pytest.fixture(autouse=True)
def _each_example_keeps_its_label(monkeypatch):
    """Where labels are replaced, no chain looks at fewer examples than there are."""
    monkeypatch.setattr(collapsed, "compressed", lambda model: pytest.fail("other labels than these are to come"))


@pytest.fixture(scope="module")
def model():
    return tiny_model(heads=(2,), widths=(4, 3), variances=(1.0, 0.8, 1.2), examples=8)


@pytest.fixture(scope="module")
def simulations(model):
    return calibration.simulate(model, 200, seed=1)


@pytest.mark.parametrize(
    ("p", "effective", "holds"), [(1.0, 1.0, False), (1.01, 1.0, True), (1.0, 0.5, None), (1.01, 0.5, True)]
)
def test_ranks_are_uniform_above_the_threshold(p, effective, holds):
    """Only a quantity of independent draws fails a sampler."""
    found = calibration.Calibration(["a", "b"], np.zeros((1, 2), int), 9, np.ones(2), np.array([1.0, effective]), None)
    assert dataclasses.replace(found, p_values=np.array([0.5, p * found.threshold])).holds is holds


@pytest.mark.heavy
def test_a_wrong_temperature_and_a_large_step_are_found_by_ranks(model, simulations, monkeypatch):
    """Draws alone are of the wrong posterior; what is ranked stays the same function of parameters and labels."""
    assert not calibration.calibrate(model, simulations, **LARGE_STEP).holds
    honest = calibration._posterior_draws
    hot = model.replace(temperature=10 * model.temperature)
    monkeypatch.setattr(calibration, "_posterior_draws", lambda model, *rest: honest(hot, *rest))
    assert calibration.calibrate(model, simulations, sampler="nuts").holds is False


def test_a_large_step_without_metropolis_correction_is_found_by_the_joint_test(model):
    right, wrong = (joint_law.joint_test(model, **LARGE_STEP | each) for each in ({"sampler": "barker"}, {}))
    assert (right.holds, wrong.holds) == (True, False)
    assert min(right.moved, wrong.moved) > 0.9
    assert repr(right).startswith("JointTest: holds")
    assert repr(wrong).startswith("JointTest: does NOT hold")


def test_transitions_that_stand_still_cannot_tell():
    still = joint_law.JointTest(["U 1,1"], np.zeros(1), moved=0.4)
    assert still.holds is None
    assert "JointTest: cannot tell" in repr(still)
    assert still.doubts[0].startswith("a coordinate has moved in 40 % of the chains, expected at least 50 %")
    assert dataclasses.replace(still, z_scores=np.full(1, 9.0)).holds is False
    moving = dataclasses.replace(still, moved=0.5)
    assert (moving.holds, moving.doubts) == (True, [])


@pytest.mark.heavy
@pytest.mark.parametrize("sampler", ADJUSTED)
def test_every_adjusted_sampler_is_calibrated(model, sampler):
    simulated = calibration.simulate(model, 400, seed=2)
    found = calibration.calibrate(model, simulated, sampler=sampler)
    assert found.holds, dict(zip(found.names, found.p_values, strict=True))
    if sampler in WITH_REPLICAS:
        return
    joint = joint_law.joint_test(model, sampler=sampler, chains=4000)
    assert joint.holds, dict(zip(joint.names, joint.z_scores, strict=True))


@pytest.mark.heavy
@pytest.mark.parametrize("sampler", ADJUSTED)
def test_adjusted_samplers_are_calibrated_in_weight_space(model, simulations, sampler):
    options = {"steps": 20} if sampler in ("mala", "barker") else {}
    settings = {"sampler": sampler, "parameterisation": "path", "options": options}
    found = calibration.calibrate(model, simulations, thin=10, **settings)
    assert found.holds, dict(zip(found.names, found.p_values, strict=True))


@pytest.fixture(scope="module")
def narrow():
    model = calibration.narrow_model()
    return model, calibration.simulate(model, 50, seed=1)


def test_collapsed_chains_are_calibrated_where_a_layer_is_narrower_than_its_paths(narrow):
    """The posterior of the correlation of both paths has two parts, of either sign; chains that keep to one fail here.

    By NUTS alone: exchanges of replicas would help it across.
    """
    model, simulations = narrow
    half = calibration.Simulations(*(each[:25] for each in simulations))
    found = calibration.calibrate(model, half, sampler="nuts", draws=31)
    assert found.holds, dict(zip(found.names, found.p_values, strict=True))


@pytest.mark.heavy
def test_a_narrow_network_is_calibrated_in_weight_space(narrow):
    found = calibration.calibrate(*narrow, parameterisation="path", thin=20)
    assert found.holds, dict(zip(found.names, found.p_values, strict=True))


@pytest.mark.heavy
def test_chains_cut_in_two_are_found(narrow, monkeypatch):
    """Draws whose correlation has a sign for each chain, as of coordinates that cannot cross, in place of both signs."""
    model, simulations = narrow
    drawn = calibration._posterior_draws

    def cut(*arguments):
        outputs = drawn(*arguments)
        order_parameter = outputs["posterior"]["order_parameter"]
        signs = np.sign(order_parameter[:, :1])
        outputs["posterior"]["order_parameter"] = signs * np.abs(order_parameter)
        return outputs

    monkeypatch.setattr(calibration, "_posterior_draws", cut)
    assert calibration.calibrate(model, simulations, draws=31).holds is False


@pytest.mark.parametrize("simulations", [20, 200])
def test_one_rank_alone_fails_at_every_size(simulations):
    """All ranks 0, whose probability is (L + 1)^-n for each end, of the quantities of 24 paths."""
    p_value = uniform_probability(least_tail(np.zeros((simulations, 1), int), 63), simulations, 63)
    assert p_value == pytest.approx(2 * 64.0**-simulations, rel=1e-9)
    assert p_value < calibration.LEVEL / (24 * 25 // 2 + 24 * 23 // 2 + 6)


def test_bad_input_is_named(narrow):
    model, simulations = narrow
    one = calibration.Simulations(*(each[:1] for each in simulations))
    other = calibration.Simulations(simulations.labels[:, :3], simulations.quantities)
    for call, message in (
        (lambda: calibration.simulate(model, 0), "simulations must be a whole number of at least 1, got 0"),
        (lambda: calibration.calibrate(*narrow, sampler="gibbs"), "sampler must be one of"),
        (lambda: calibration.calibrate(*narrow, draws=6), "^draws must be a whole number of at least 7, got 6"),
        (
            lambda: calibration.calibrate(model, one),
            "^number of simulations must be a whole number of at least 20, got 1",
        ),
        (
            lambda: calibration.calibrate(model, other),
            "^simulations must be of the model, of 20 labels and .* got 3 and",
        ),
        (lambda: calibration.calibrate(*narrow, level=2), "^level must be a probability below 1, got 2"),
        (
            lambda: joint_law.joint_test(model, iterations=0),
            "^iterations must be a whole number of at least 1, got 0",
        ),
        (
            lambda: joint_law.joint_test(model, sampler=numpyro.infer.SA),
            "must be a name or .* got numpyro.infer.sa.SA without adapt_mass_matrix, adapt_step_size, step_size: use",
        ),
        (lambda: joint_law.joint_test(model, chains=1), "^chains must be a whole number of at least 100, got 1"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_each_simulation_has_random_numbers_of_its_own(model, monkeypatch):
    given = []

    def batched(program, slots):
        def start(keys, own, posterior):
            return given.extend(jax.random.bits(key).item() for key in keys)

        return start, lambda *rest: (None, {"order_parameter": np.zeros((3, 1, 1))})

    monkeypatch.setattr(calibration, "_batched", batched)
    job = Job(sampler="mala", chains=1, warmup=0, draws=1, chain_method="parallel").for_model(model)
    calibration._posterior_draws(model, np.tile(model.labels, (3, 1)), job, jax.random.key(0))
    assert len({*given}) == 3


def test_no_batch_is_factorised_on_a_cpu():
    """Two such in one program waited for each other for ever, on two cores, at a hundred examples."""
    batch = np.stack([np.eye(3)] * 2)
    assert _factorises_batches(jax.make_jaxpr(jax.vmap(jnp.linalg.cholesky))(batch).jaxpr)
    assert not _factorises_batches(jax.make_jaxpr(of_each(jnp.linalg.cholesky))(batch).jaxpr)


@pytest.mark.heavy
def test_a_hundred_examples_are_calibrated_to_the_end():
    model = ba.load_model("hidden_markov", width=4)
    short = {"sampler": "hmc", "warmup": 20, "level": 1e-9}
    simulated = calibration.simulate(model, 20)
    assert calibration.calibrate(model, simulated, draws=7, thin=1, **short).ranks.shape[0] == 20
    assert joint_law.joint_test(model, chains=100, **short).holds
