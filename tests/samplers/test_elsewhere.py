"""NumPyro kernels that are not on the list of samplers: classes, instances, one's own."""

from collections import namedtuple

import jax
import numpy as np
import numpyro.infer
import pytest
from numpyro.infer.mcmc import MCMCKernel

import bayesattn as ba
from bayesattn import runs
from bayesattn.checks import calibration
from bayesattn.samplers import Job
from tests.posteriors import tiny_model, two_sample_z_score

ERRORS = 4
BARKER = "numpyro.infer.barker.BarkerMH"


class Halved(numpyro.infer.NUTS):
    """NUTS by another name."""


class Bare(MCMCKernel):
    """A kernel whose state has no random key."""

    State = namedtuple("State", "z")

    def __init__(self, model=None):
        self._model = model

    def init(self, rng_key, num_warmup, init_params, model_args, model_kwargs):
        return self.State(init_params)

    def sample(self, state, model_args, model_kwargs):
        return state


@pytest.fixture(scope="module")
def model():
    return tiny_model(heads=(2,))


@pytest.fixture(scope="module")
def reference(model):
    return ba.sample(model, chains=4, warmup=300, draws=2000, seed=1)


@pytest.mark.parametrize(
    ("make", "options", "draws"),
    [
        (lambda model: numpyro.infer.BarkerMH, {"target_accept_prob": 0.5}, 8000),
        (lambda model: numpyro.infer.BarkerMH(model.numpyro("collapsed"), step_size=0.5), {}, 8000),
        (lambda model: Halved, {"max_tree_depth": 4}, 1500),
    ],
    ids=["a class", "an instance", "one's own"],
)
def test_draws_are_like_ours(model, reference, make, options, draws):
    settings = {"chains": 4, "warmup": 1000, "draws": draws, "thin": max(1, draws // 2000) if draws > 2000 else 1}
    tree = ba.sample(model, sampler=make(model), options=options, seed=2, **settings)
    u, v = (np.arcsinh(each["posterior"]["order_parameter"]) for each in (tree, reference))
    assert two_sample_z_score(u, v) < ERRORS
    assert two_sample_z_score(u**2, v**2) < ERRORS
    assert {"lp", "energy", "acceptance_rate"} <= {*tree["sample_stats"].data_vars}
    assert ba.diagnostics.diagnose(tree).rhat < 1.05


def test_a_pair_of_blackjax_draws_like_ours(model, reference):
    import blackjax

    density = model.log_density()
    algorithm = blackjax.hmc(density.function, 0.4, np.ones(density.size), 6)
    tree = ba.sample(model, sampler=algorithm, chains=4, warmup=200, draws=4000, thin=2, seed=2)
    u, v = (np.arcsinh(each["posterior"]["order_parameter"]) for each in (tree, reference))
    assert two_sample_z_score(u, v) < ERRORS
    assert two_sample_z_score(u**2, v**2) < ERRORS
    assert {"lp", "acceptance_rate", "n_steps", "diverging"} <= {*tree["sample_stats"].data_vars}


def test_a_run_stops_and_goes_on_to_the_same_bits(model, tmp_path):
    settings = {"sampler": numpyro.infer.BarkerMH, "chains": 2, "warmup": 100, "draws": 600, "seed": 3}

    def stop(progress):
        if progress.done > 200:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runs.sample(model, tmp_path / "run", progress=stop, **settings)
    run = runs.sample(model, tmp_path / "run", **settings)
    whole = ba.sample(model, **settings)
    np.testing.assert_array_equal(run.draws()["posterior"]["order_parameter"], whole["posterior"]["order_parameter"])
    assert runs.Run(run.path).job.sampler == BARKER
    # By its name it is the same.
    assert runs.sample(model, tmp_path / "run", **settings | {"sampler": BARKER}).state == "complete"


def test_calibration_takes_it(model):
    simulations = calibration.simulate(model, 60, seed=1)
    found = calibration.calibrate(model, simulations, sampler=numpyro.infer.BarkerMH, draws=30, thin=20)
    assert found.holds is not False


@pytest.mark.parametrize(
    ("sampler", "options", "message"),
    [
        (numpyro.infer.AIES, {}, r"moves all together: run model.numpyro\(..\) with numpyro.infer.MCMC"),
        (
            numpyro.infer.HMCECS,
            {},
            "sampler must take a NumPyro model as its first argument, got .*HMCECS",
        ),
        (3, {}, r"sampler must be a name, a NumPyro kernel or an \(init, step\) pair, got 3"),
        (jax.jit, {}, r"sampler must be a name, a NumPyro kernel or an \(init, step\) pair, got"),
        ("numpyro.infer.barker.Baker", {}, "sampler must be one of 'nuts'"),
        (
            numpyro.infer.BarkerMH,
            {"stepsize": 1.0},
            "options of sampler 'numpyro.infer.barker.BarkerMH' must be some of",
        ),
        (Bare, {}, "must have a state with the fields z and rng_key"),
    ],
)
def test_what_cannot_be_served_says_so(model, sampler, options, message):
    with pytest.raises(ValueError, match=message):
        ba.sample(model, sampler=sampler, options=options, chains=1, warmup=5, draws=5)


def test_an_instance_is_a_sampler_of_its_own(model):
    one, two = (Job(sampler=numpyro.infer.BarkerMH(model.numpyro("path"), step_size=step)) for step in (0.1, 0.2))
    assert one.sampler != two.sampler
    assert one.sampler.startswith(BARKER)
