"""NumPyro kernels that are not on the list of samplers: classes, instances, one's own."""

from collections import namedtuple
from typing import NamedTuple

import jax
import numpy as np
import numpyro.infer
import pytest
from numpyro.infer.mcmc import MCMCKernel

import bayesattn as ba
from bayesattn import runs
from bayesattn.checks import calibration
from bayesattn.samplers import Job, blocks
from tests.posteriors import tiny_model, two_sample_z_score

ERRORS = 4
BARKER = "numpyro.infer.barker.BarkerMH"
BARKERS = {"sampler": numpyro.infer.BarkerMH, "warmup": 1000, "options": {"target_accept_prob": 0.5}}
"""Settings of one compiled program."""


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
    return ba.sample(model, "nuts", chains=4, warmup=300, draws=2000, seed=1)


@pytest.mark.parametrize(
    ("make", "options", "draws"),
    [
        (lambda model: numpyro.infer.BarkerMH, BARKERS["options"], 8000),
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
    settings = BARKERS | {"chains": 2, "draws": 600, "seed": 3}

    def stop(progress):
        if progress.done > 1200:
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
        ("numpyro.infer.barker.Baker", {}, "sampler must be one of 'auto', 'nuts'"),
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


def test_other_models_labels_and_coordinates_are_refused_to_a_pair(model, tmp_path):
    import blackjax

    density = model.log_density()
    pair = blackjax.hmc(density.function, 0.4, np.ones(density.size), 4)
    settings = {"sampler": pair, "chains": 1, "warmup": 5, "draws": 5}
    once, again = ba.sample(model, **settings), ba.sample(model, **settings)
    np.testing.assert_array_equal(once["posterior"]["order_parameter"], again["posterior"]["order_parameter"])
    lp = ba.from_vectors(np.zeros((1, 1, density.size)), model)["sample_stats"]["lp"].item()
    assert density.function(np.zeros(density.size)) == pytest.approx(lp, rel=1e-12)
    for use, message in (
        (lambda: ba.sample(model.replace(temperature=0.01), **settings), "must hold the log density of this model"),
        (
            lambda: ba.sample(model, parameterisation="path", **settings),
            "takes a flat vector of 40 coordinates",
        ),
        (
            lambda: runs.sample(model, tmp_path / "run", **settings),
            "sampler of a run on disk must be one that can be found",
        ),
        (
            lambda: calibration.calibrate(model, calibration.simulate(model, 20), **{"sampler": pair, "draws": 5}),
            "sampler must take other labels here",
        ),
    ):
        with pytest.raises(ba.BayesattnError, match=message):
            use()
    assert not (tmp_path / "run").exists()


def test_a_pair_moves_in_the_coordinates_of_the_log_density_however_many_there_are():
    """Above 1,000 coordinates chains here have others, refined by a pilot run."""
    rng = np.random.default_rng(0)
    arch = ba.Architecture((4, 4, 4), (20,) * 4, (1.0,) * 5)
    model = ba.Model(
        path_inputs=rng.normal(size=(6, 64, 2)), labels=rng.normal(size=6), architecture=arch, temperature=0.5
    )
    density = model.log_density()
    assert density.size > 1000

    class State(NamedTuple):
        position: np.ndarray
        logdensity: float

    place = density.initial(jax.random.key(7))
    stays = (lambda vector: State(place, density.function(vector)), lambda key, state: (state, None))
    tree = ba.sample(model, sampler=stays, chains=1, warmup=0, draws=1, seed=4)
    there = ba.from_vectors(place[None, None], model)
    for group, name in (("posterior", "order_parameter"), ("sample_stats", "lp")):
        np.testing.assert_allclose(tree[group][name], there[group][name], rtol=1e-9)


def test_a_class_that_is_defined_anew_is_another_sampler(model):
    def make(step):
        class Mine(numpyro.infer.BarkerMH):
            def __init__(self, model=None, init_strategy=numpyro.infer.init_to_sample):
                super().__init__(model, step_size=step, adapt_step_size=False, init_strategy=init_strategy)

        return Mine

    drawn = [
        ba.sample(model, sampler=make(step), chains=1, warmup=5, draws=50)["posterior"]["order_parameter"].values
        for step in (0.5, 1e-9)
    ]
    assert drawn[0].std() > 1e3 * np.ptp(drawn[1], axis=1).max()


def test_an_instance_that_has_run_elsewhere_draws_from_the_model_at_hand(model):
    program = model.numpyro("collapsed")
    kernel = numpyro.infer.NUTS(lambda *_: program())
    numpyro.infer.MCMC(kernel, num_warmup=5, num_samples=5, progress_bar=False).run(jax.random.key(0))
    colder = model.replace(temperature=0.01)
    settings = {"chains": 2, "warmup": 300, "draws": 1500, "seed": 1}
    u, v = (
        np.arcsinh(ba.sample(colder, sampler=sampler, **settings)["posterior"]["order_parameter"])
        for sampler in (kernel, "nuts")
    )
    assert two_sample_z_score(u, v) < ERRORS


def test_a_class_of_numpyro_has_two_names_and_one_sampler():
    assert Job(sampler="numpyro.infer.BarkerMH").sampler == Job(sampler=numpyro.infer.BarkerMH).sampler == BARKER


def test_an_instance_is_a_sampler_of_its_own(model):
    one, two = (Job(sampler=numpyro.infer.BarkerMH(model.numpyro("path"), step_size=step)) for step in (0.1, 0.2))
    assert one.sampler != two.sampler
    assert one.sampler.startswith(BARKER)


@pytest.mark.parametrize(
    ("settings", "most"), [({"sampler": numpyro.infer.SA, "warmup": 5}, 1), (BARKERS, 2)], ids=["SA", "BarkerMH"]
)
def test_chains_that_factorise_batches_run_one_at_a_time(model, settings, most, monkeypatch):
    """SA evaluates the density of many points at once; two of its chains at a time could wait for each other for ever."""
    workers = []

    class Pool(blocks.ThreadPoolExecutor):
        def __init__(self, count):
            workers.append(count)
            super().__init__(count)

    monkeypatch.setattr(blocks, "cores", lambda: 2)
    monkeypatch.setattr(blocks, "ThreadPoolExecutor", Pool)
    ba.sample(model, chains=2, draws=5, seed=0, progress=False, **settings)
    assert workers == [most]
