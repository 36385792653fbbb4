"""The block runner: known answers, reproducibility, agreement with NumPyro's own; messages: tests/attacks/test_values.py."""

import dataclasses
import signal
import threading
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer import MCMC, NUTS, init_to_sample

import bayesattn as ba
from bayesattn._util.random import branch
from bayesattn.models import Path
from bayesattn.samplers import QUANTITIES, Job
from bayesattn.samplers import blocks as block_runner
from bayesattn.samplers.blocks import plan
from tests.posteriors import exact_scalar_posterior, require_exact_means, tiny_model
from tests.statistics import COMPARISONS, LEVEL, p_values
from tests.zoo import LIGHT

RUN = {"chains": 4, "warmup": 400, "draws": 1000}


@pytest.fixture(scope="module")
def scalar_model():
    return tiny_model(widths=(4, 5))


@pytest.fixture(scope="module")
def scalar_draws(scalar_model):
    @cache
    def draw(sampler, parameterisation, chain_method):
        settings = {"chain_method": chain_method, "options": {"trajectory_length": 2.0} if sampler == "hmc" else {}}
        return ba.sample(scalar_model, sampler, parameterisation, **RUN, **settings)

    return draw


@pytest.fixture
def interruptible():
    """Processes that a shell begins in the background ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_signal_that_another_thread_takes_interrupts(scalar_model):
    """The main thread, which handles it, sleeps until a block ends or it looks itself; it slept until all chains ended."""
    done, sent = dict.fromkeys(range(RUN["chains"]), 0), []

    def signals(event):
        done[event.chain] = event.done
        # Before all chains have draws, an interrupt leaves none to return.
        if min(done.values()) > RUN["warmup"] and not sent:
            sent.append(event)
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    settings = RUN | {"draws": 100_000, "keep": ["order_parameter"], "progress": signals, "on_interrupt": "return"}
    with pytest.warns(UserWarning, match="interrupted"):
        draws = ba.sample(scalar_model, "nuts", "path", **settings)
    assert draws["posterior"].sizes["draw"] < 50_000


LIGHT_CASES = [("nuts", "path", None), ("nuts", "collapsed", None), ("nuts", "collapsed", "vectorised")]
HEAVY_CASES = [("nuts", "token", None), ("hmc", "path", None), ("hmc", "collapsed", None)]


@pytest.mark.parametrize(
    ("sampler", "parameterisation", "chain_method"),
    [*LIGHT_CASES, *(pytest.param(*case, marks=pytest.mark.heavy) for case in HEAVY_CASES)],
)
def test_draws_have_the_known_posterior_means_and_not_those_of_another_temperature(
    scalar_model, scalar_draws, sampler, parameterisation, chain_method
):
    posterior = scalar_draws(sampler, parameterisation, chain_method)["posterior"]
    require_exact_means(posterior, scalar_model)
    wrong_u, wrong_f, _ = exact_scalar_posterior(scalar_model.replace(temperature=1.5 * scalar_model.temperature))
    found = p_values(posterior["order_parameter"], wrong_u)[0], p_values(posterior["prediction"], wrong_f)[0]
    assert min(map(np.min, found)) < LEVEL / COMPARISONS


def test_trajectories_of_a_number_of_steps_adapt_their_step(scalar_model):
    """Given both, NumPyro would take the step from them; a preset has a length."""
    draws = ba.sample(scalar_model, "hmc", chains=2, warmup=60, draws=20, options={"num_steps": 3})
    steps = draws["sample_stats"]["step_size"].values
    assert (draws["sample_stats"]["n_steps"].values == 3).all()
    assert abs(steps - 2.0 / 3).min() > 1e-6
    assert "trajectory_length" not in Job.of(sampler="hmc", options={"num_steps": 3}).options
    assert Job.of(sampler="hmc").options["trajectory_length"] == 2.0


def test_blocks_are_bit_identical_to_numpyro(monkeypatch):
    """Warm-up and draws, each full and part blocks of 50, against numpyro.infer.MCMC from the same state."""
    model = tiny_model()
    monkeypatch.setattr(block_runner, "MOST_DRAWS_PER_BLOCK", 50)
    job = Job(parameterisation="path", chains=1, warmup=60, draws=110, seed=5, keep=("weights",))
    ours = ba.sample(model, **{field.name: getattr(job, field.name) for field in dataclasses.fields(job)})["posterior"]
    posterior = Path.of(model)
    kernel = NUTS(Path.program, init_strategy=init_to_sample)
    ready = plan(model, job)
    state = ready.program.start(jax.random.split(ready.key, 1)[0], posterior)
    # Sets up the kernel's functions; its result is not needed.
    jax.eval_shape(lambda key: kernel.init(key, 60, None, (posterior,), {}), state.rng_key)
    mcmc = MCMC(kernel, num_warmup=0, num_samples=60 + 110, progress_bar=False, jit_model_args=True)
    mcmc.post_warmup_state = state
    mcmc.run(state.rng_key, posterior)
    for name, values in mcmc.get_samples().items():
        np.testing.assert_array_equal(ours[name].values[0], values[60:])


@pytest.mark.parametrize("chain_method", ["parallel", pytest.param("vectorised", marks=pytest.mark.heavy)])
def test_thinning_keeps_every_fifth_draw_of_the_same_chain(scalar_model, chain_method):
    run = RUN | {"chains": 2, "draws": 60, "chain_method": chain_method}
    every, fifth = (ba.sample(scalar_model, **run, thin=thin) for thin in (1, 5))
    numbers = list(range(4, 60, 5))
    assert list(fifth["posterior"]["draw"].values) == numbers
    assert not np.any(np.equal(*every["posterior"]["order_parameter"].values)), "each chain has draws of its own"
    for group in ("posterior", "sample_stats"):
        for name, values in fifth[group].data_vars.items():
            np.testing.assert_array_equal(values, every[group][name].sel(draw=numbers).values)


def test_models_widths_and_purposes_have_random_numbers_of_their_own(scalar_model):
    """Chains begin elsewhere in every posterior, and no stream of a draw is one that the chain comes by."""
    wider = scalar_model.replace(width=5)
    otherwise = [wider, scalar_model.replace(temperature=0.6), scalar_model.replace(labels=-scalar_model.labels)]
    keys = [plan(model, Job(seed=0)).key for model in (scalar_model, *otherwise)]
    keys += [plan(scalar_model, job).key for job in (Job(seed=1), Job(sampler="hmc"), Job(parameterisation="path"))]
    assert len({tuple(jax.random.key_data(key).tolist()) for key in keys}) == len(keys)
    again = plan(scalar_model.replace(test_path_inputs=None, test_labels=None), Job(seed=0, draws=7)).key
    assert jnp.array_equal(jax.random.key_data(again), jax.random.key_data(keys[0]))
    # The key of a prediction was, bit for bit, that of a later transition: the first of a split.
    children = jax.random.split(keys[0], 8)
    for purpose in ("prediction", "weights"):
        assert not jnp.any(jnp.all(jax.random.key_data(branch(keys[0], purpose)) == jax.random.key_data(children), 1))


def test_datatree_has_arviz_groups_and_path_names(scalar_draws):
    model = tiny_model(heads=(2, 2), widths=(3, 4, 2), variances=(1.0, 0.8, 1.2, 1.1))
    events = []
    tree = ba.sample(model, **LIGHT | {"keep": QUANTITIES, "progress": events.append})
    assert set(tree.children) == {"posterior", "sample_stats", "observed_data", "constant_data"}
    posterior = tree["posterior"]
    assert posterior["order_parameter"].dims == ("chain", "draw", "path", "other_path")
    assert posterior["order_parameter"].shape == (2, 60, 4, 4)
    assert posterior["prediction"].dims == ("chain", "draw", "test_example")
    assert list(posterior["path"].values) == ["head0 -> head0", "head0 -> head1", "head1 -> head0", "head1 -> head1"]
    assert posterior["V_1"].dims == ("chain", "draw", "head_1", "width_2", "width_1")
    assert posterior["V_2"].shape == (2, 60, 2, 2, 4)
    langevin, nuts = tree["sample_stats"], scalar_draws("nuts", "path", None)
    assert {"lp", "acceptance_rate", "n_steps", "step_size", "diverging"} <= set(langevin.data_vars)
    assert (langevin["n_steps"] == 2).all()
    assert np.ptp(langevin["step_size"].values, axis=1).max() == 0
    assert "V_0" not in nuts["posterior"]
    assert {"lp", "energy", "diverging", "tree_depth", "n_steps", "step_size"} <= set(nuts["sample_stats"].data_vars)
    np.testing.assert_array_equal(tree["observed_data"]["labels"], model.labels)
    assert sorted((e.chain, e.done, e.total) for e in events)[-1] == (1, 80, 80)
