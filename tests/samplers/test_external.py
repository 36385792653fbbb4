"""NumPyro kernels that are not on the list of samplers: classes, instances, one's own."""

from collections import namedtuple
from typing import NamedTuple

import blackjax
import jax
import numpy as np
import numpyro.infer
import pytest

import bayesattn as ba
from bayesattn import runs
from bayesattn.errors import BayesattnError
from bayesattn.models import collapsed
from bayesattn.questions import calibration
from bayesattn.samplers import Job, Tempered, blocks, curvature, external
from tests import zoo as models
from tests.statistics import agree
from tests.test_runs import StopAfter

REFERENCE = models.LONG | {"chains": 4, "draws": 2000}
SEED = 41
BARKER = "numpyro.infer.barker.BarkerMH"
BARKERS = {"sampler": numpyro.infer.BarkerMH, "warmup": 1000, "options": {"target_accept_prob": 0.5}}
"""Settings of one compiled program."""
HMC = {"warmup": 200, "options": {"trajectory_length": 2.0}}
"""Settings of chains that need fewer draws."""


class Forgetful(numpyro.infer.BarkerMH):
    """A kernel that returns the sites of its new state alone."""

    def sample(self, state, model_args, model_kwargs):
        return super().sample(state, model_args, model_kwargs).z


class Bare(numpyro.infer.HMC):
    """A kernel whose state has no random key."""

    State = namedtuple("State", "z")

    def init(self, *arguments):
        return self.State(super().init(*arguments).z)


@pytest.fixture(scope="module")
def model():
    return models.model("two")


@pytest.fixture(scope="module")
def reference(zoo):
    return zoo.draws("two", REFERENCE, SEED)


@pytest.fixture(scope="module")
def pair(model):
    density = model.log_density()
    return {"sampler": blackjax.hmc(density.function, 0.4, np.ones(density.size), 6), "warmup": 200}


@pytest.fixture(scope="module")
def simulations(model):
    return calibration.simulate(model, calibration.SIMULATIONS_PER_BATCH, seed=1)


def require_like(tree, reference):
    """U, and its square, of two trees of draws."""
    u, v = (np.arcsinh(each["posterior"]["order_parameter"]) for each in (tree, reference))
    agree(u, v)
    agree(u**2, v**2)


@pytest.mark.parametrize(
    ("of", "thin", "statistics"), [("NumPyro", 4, {"step_size"}), ("BlackJAX", 2, {"n_steps", "diverging"})]
)
def test_draws_are_like_ours(model, reference, pair, of, thin, statistics):
    tree = ba.sample(model, **BARKERS if of == "NumPyro" else pair, chains=4, draws=2000 * thin, thin=thin, seed=2)
    require_like(tree, reference)
    assert statistics | {"lp", "acceptance_rate"} <= {*tree["sample_stats"].data_vars}
    found = ba.diagnose(tree)
    assert found.rhat < 1.05
    assert np.isnan(found.bfmi)  # There are no momenta.


def test_a_run_stops_and_goes_on_to_the_same_bits(model, tmp_path):
    settings = BARKERS | {"chains": 2, "draws": 600, "seed": 3}
    with pytest.raises(KeyboardInterrupt):
        runs.sample(model, tmp_path / "run", progress=StopAfter(2400), **settings)
    run = runs.sample(model, tmp_path / "run", **settings)
    whole = ba.sample(model, **settings)
    np.testing.assert_array_equal(run.draws()["posterior"]["order_parameter"], whole["posterior"]["order_parameter"])
    assert runs.Run(run.path).job.sampler == BARKER
    # By its name it is the same.
    assert runs.sample(model, tmp_path / "run", **settings | {"sampler": BARKER}).state == "complete"


def test_calibration_takes_it(model, simulations):
    found = calibration.calibrate(model, simulations, sampler=numpyro.infer.HMC, draws=30, thin=4, **HMC)
    assert found.holds is not False


BAD = [
    (numpyro.infer.AIES, {}, r"moves all together: run model.numpyro\(..\) with numpyro.infer.MCMC"),
    (numpyro.infer.HMCECS, {}, "sampler must take a NumPyro model as its first argument, got .*HMCECS"),
    (3, {}, r"sampler must be a name, a NumPyro kernel or an \(init, step\) pair, got 3"),
    ("numpyro.infer.barker.Baker", {}, "sampler must be one of 'auto', 'nuts'"),
    (numpyro.infer.BarkerMH, {"stepsize": 1.0}, f"options of sampler '{BARKER}' must be some of"),
    (Bare, {}, "init of sampler .*Bare.* must return a named tuple with the fields z and rng_key, got 'State'"),
    (Forgetful, {}, "sample of .*Forgetful.* must return a named tuple with the fields z and rng_key, got 'dict'"),
    (Tempered(print), {}, r"sampler must be the name 'tempered', its settings options=, got Tempered\(..\)"),
]


@pytest.mark.parametrize(("sampler", "options", "message"), BAD)
def test_what_cannot_be_served_says_so(model, sampler, options, message):
    with pytest.raises(ValueError, match=message):
        ba.sample(model, sampler=sampler, options=options, chains=1, warmup=5, draws=5)


def test_other_models_labels_and_coordinates_are_refused_to_a_pair(model, simulations, pair, tmp_path):
    density, settings = model.log_density(), pair | {"chains": 1, "draws": 5}
    once, again = ba.sample(model, **settings), ba.sample(model, **settings)
    shifted = blackjax.hmc(lambda vector: density.function(vector) + 3, 0.4, np.ones(density.size), 6)
    shifted = ba.sample(model, **settings | {"sampler": shifted})  # A constant in the log density is of no account.
    u, same, close = (each["posterior"]["order_parameter"].values for each in (once, again, shifted))
    np.testing.assert_array_equal(same, u)
    np.testing.assert_allclose(close, u, rtol=1e-6)
    lp = ba.from_vectors(np.zeros((1, 1, density.size)), model)["sample_stats"]["lp"].item()
    assert density.function(np.zeros(density.size)) == pytest.approx(lp, rel=1e-12)
    init, step = pair["sampler"]
    bare = init, lambda key, state: step(key, state)[0]
    for call, message in (
        (lambda: ba.sample(model.replace(temperature=0.01), **settings), "must hold the log density of this model"),
        (lambda: ba.sample(model, parameterisation="path", **settings), "takes a flat vector of 40 coordinates"),
        (lambda: ba.sample(model, **settings | {"sampler": bare}), "a field position, and an info, got HMCState"),
        (lambda: runs.sample(model, tmp_path / "run", **settings), "of a run on disk must be one that can be found"),
        (lambda: calibration.calibrate(model, simulations, sampler=pair["sampler"], draws=7), "must take other labels"),
    ):
        with pytest.raises(BayesattnError, match=message):
            call()
    assert not (tmp_path / "run").exists()


def test_a_pair_moves_in_the_coordinates_of_the_log_density_however_many_there_are(model, monkeypatch):
    """Above 1,000 coordinates, here above 3, chains here have others, refined by a pilot run."""
    monkeypatch.setattr(curvature, "MOST_COORDINATES_FOR_HESSIAN", 3)
    assert curvature.is_worthwhile(collapsed.structure(model))
    density = model.log_density()

    class State(NamedTuple):
        position: np.ndarray
        logdensity: float

    external.require_density((lambda vector: State(vector, density.function(vector) + 3.0), None), density.posterior)
    place = density.initial(jax.random.key(7))
    stays = (lambda vector: State(place, density.function(vector)), lambda key, state: (state, None))
    tree = ba.sample(model, sampler=stays, chains=1, warmup=0, draws=1, seed=4)
    there = ba.from_vectors(place[None, None], model)
    for group, name in (("posterior", "order_parameter"), ("sample_stats", "lp")):
        np.testing.assert_allclose(tree[group][name], there[group][name], rtol=1e-9)


def test_a_class_of_ones_own_draws_like_ours_and_defined_anew_is_another_sampler(model, reference):
    def make(moves):
        class Mine(numpyro.infer.HMC):
            def sample(self, state, *arguments):
                return super().sample(state, *arguments) if moves else state

        return Mine

    require_like(ba.sample(model, make(True), **HMC, chains=4, draws=2000, seed=2), reference)
    still = ba.sample(model, make(False), **HMC, chains=1, draws=50)["posterior"]["order_parameter"]
    assert np.ptp(still.values, axis=1).max() == 0


def test_an_instance_that_was_set_up_elsewhere_draws_from_the_model_at_hand(model):
    program = model.numpyro("collapsed")
    kernel = numpyro.infer.NUTS(lambda *_: program(), max_tree_depth=3)
    # As in numpyro.infer.MCMC: the kernel keeps functions of that model.
    jax.eval_shape(lambda key: kernel.init(key, 5, None, (), {}), jax.random.key(0))
    colder = model.replace(temperature=0.01)
    settings = {"chains": 2, "warmup": 300, "draws": 1500, "seed": 1}
    tree, reference = (ba.sample(colder, sampler=sampler, **settings) for sampler in (kernel, "nuts"))
    require_like(tree, reference)
    assert tree["sample_stats"]["n_steps"].max() == 2**3 - 1


def test_a_class_of_numpyro_has_two_names_and_one_sampler_and_an_instance_is_a_sampler_of_its_own(model):
    assert Job(sampler="numpyro.infer.BarkerMH").sampler == Job(sampler=numpyro.infer.BarkerMH).sampler == BARKER
    one, two = (Job(sampler=numpyro.infer.BarkerMH(model.numpyro("path"), step_size=step)) for step in (0.1, 0.2))
    assert one.sampler != two.sampler
    assert one.sampler_name == two.sampler_name == BARKER
    assert Job(sampler=Tempered).sampler == "tempered"


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
