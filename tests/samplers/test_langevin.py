"""Langevin kernels: known answers, stated biases, gradients that are counted; kills: tests/test_runs.py."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import bayesattn as ba
from bayesattn import runs
from bayesattn.models import collapsed, path
from bayesattn.questions import joint_law
from bayesattn.samplers import BIASED, Job, langevin
from bayesattn.samplers.langevin import AdjustedMclmc, Barker, Mala, Mclmc, Ula, Underdamped
from bayesattn.samplers.program import _strong, kernel, options_for
from tests.posteriors import exact_scalar_posterior, require_exact_means, tiny_model
from tests.samplers.targets import chains
from tests.statistics import agree, detectable, mean_of, near
from tests.test_runs import StopAfter, contents

ADJUSTED = {"mala": Mala, "barker": Barker, "underdamped": Underdamped, "adjusted_mclmc": AdjustedMclmc}
UNADJUSTED = {"mclmc": Mclmc, "ula": Ula}
KERNELS = ADJUSTED | UNADJUSTED
TRAJECTORIES = ("underdamped", "adjusted_mclmc")
"""Samplers whose step is a whole trajectory."""
STEPS = {"mala": 40, "barker": 30, "underdamped": 1, "adjusted_mclmc": 1}
DIMENSION = 50


def array_of(draws):
    return xr.DataArray(draws, dims=("chain", "draw", "coordinate"))


def correlated_gaussian():
    """50 dimensions, neighbours correlated at 0.8, standard deviations from 0.5 to 5: potential, mean, deviation."""
    deviation = np.geomspace(0.5, 5, DIMENSION)
    covariance = 0.8 ** np.abs(np.subtract.outer(np.arange(DIMENSION), np.arange(DIMENSION)))
    precision = jnp.asarray(np.linalg.inv(covariance * np.outer(deviation, deviation)))
    mean = np.linspace(-3, 3, DIMENSION)
    return lambda x: (x - mean) @ precision @ (x - mean) / 2, mean, deviation


@cache
def gaussian_draws(name):
    potential, mean, deviation = correlated_gaussian()
    kernel = KERNELS[name](potential_fn=potential, steps=STEPS[name])
    return *chains(kernel, jnp.asarray(mean), 600, 1500), mean, deviation


def require_moments(z, mean, deviation):
    standard = array_of((z - mean) / deviation)
    agree(standard, 0, finds=0.7)
    agree(standard**2, 1)


@pytest.mark.parametrize("name", [pytest.param("mala", marks=pytest.mark.heavy), *list(ADJUSTED)[1:]])
def test_adjusted_samplers_on_a_correlated_gaussian(name):
    z, _, mean, deviation = gaussian_draws(name)
    require_moments(z, mean, deviation)


def test_a_trajectory_may_follow_another_gradient():
    """The energies at its ends decide, so draws are right though the gradient is a tenth too large and misplaced."""
    potential, mean, deviation = correlated_gaussian()
    _, right, *_ = gaussian_draws("underdamped")

    @jax.custom_vjp
    def misled(x):
        return potential(x)

    misled.defvjp(lambda x: (potential(x), x), lambda x, ct: (1.1 * ct * jax.grad(potential)(x - 0.2 * deviation),))
    step = float(np.mean(right.adapt_state.step_size))
    kernel = Underdamped(potential_fn=misled, step_size=step, adapt_step_size=False)
    z, states = chains(kernel, jnp.asarray(mean), 600, 1500)
    require_moments(z, mean, deviation)
    lower, higher = (mean_of(xr.DataArray(each.accept_prob, dims=("chain", "draw"))) for each in (states, right))
    error, degrees = np.hypot(lower.error, higher.error), min(lower.degrees, higher.degrees)
    assert higher.value - lower.value > detectable(error, degrees)


def test_the_bias_of_ula_is_seen_and_is_what_theory_says():
    """On a unit Gaussian the variance of ULA is 1 / (1 - eps / 2)."""
    step = 0.2
    fixed = {"step_size": step, "adapt_step_size": False, "adapt_mass_matrix": False}
    kernel = Ula(potential_fn=lambda x: x @ x / 2, **fixed, steps=20)
    z, states = chains(kernel, jnp.zeros(20), 50, 4000)
    squares = (z**2).mean(-1, keepdims=True)
    exact = 1 / (1 - step / 2)
    agree(array_of(squares), exact, finds=0.15)
    stated = mean_of(array_of(kernel.bias(squares, (np.asarray(states.half.z) ** 2).mean(-1, keepdims=True))))
    # To leading order: the estimate leaves out terms of order eps^2.
    near(stated.value, exact - 1, stated.error, stated.degrees, allowed=step**2 / 4, finds=0.007)
    assert stated.value > 10 * stated.error


LIGHT = [("mala", "collapsed"), ("ula", "collapsed"), ("sgld", "path")]
CASES = [
    pytest.param(name, parameterisation, marks=[pytest.mark.heavy] * ((name, parameterisation) not in LIGHT))
    for name in langevin.KERNELS
    for parameterisation in ("collapsed", "path")
    if (name, parameterisation) != ("sgld", "collapsed")
]
RUN = {"chains": 4, "warmup": 400, "draws": 1000}
FLOAT32 = {"float32_gradients": True}


@pytest.fixture(scope="module")
def model():
    return tiny_model(widths=(4, 5))


def options_of(name):
    return ({} if name in TRAJECTORIES else {"steps": 20}) | ({"minibatch": 3} if name == "sgld" else {})


@pytest.mark.parametrize(("name", "parameterisation"), CASES)
def test_network_posterior_by_quadrature(model, name, parameterisation):
    tree = ba.sample(model, name, parameterisation, **RUN, options=options_of(name))
    if name in BIASED:
        unbiased = tree["posterior"]["order_parameter"] - tree["step_size_bias"]["order_parameter"]
        agree(unbiased, exact_scalar_posterior(model)[0])
        assert ba.diagnose(tree).bias_error < 0.1
    else:
        require_exact_means(tree["posterior"], model)


@pytest.mark.parametrize("chain_method", ["parallel", pytest.param("vectorised", marks=pytest.mark.heavy)])
def test_gradients_in_float32_leave_the_posterior_as_it_is(model, chain_method):
    settings = RUN | {"options": FLOAT32, "chain_method": chain_method}
    require_exact_means(ba.sample(model, "underdamped", **settings)["posterior"], model)
    if chain_method == "vectorised":
        assert joint_law.joint_test(model, sampler="underdamped", options=FLOAT32).holds


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="looks for LAPACK's names in the program")
def test_a_trajectory_in_float32_has_one_energy_in_float64(model):
    """At its end; along it, no matrix is decomposed in float64."""
    posterior = collapsed.Collapsed.of(model, **collapsed.prepare(model))
    made = kernel(Underdamped, type(posterior), FLOAT32)
    state = jax.eval_shape(lambda key: made.init(key, 2, posterior.initial(key), (posterior,), {}), jax.random.key(0))
    compiled = jax.jit(lambda state: made.sample(state, (posterior,), {})).lower(state).compile().as_text()
    assert "lapack_spotrf" in compiled
    assert compiled.count("lapack_dpotrf") == 1


def test_gradients_in_float32_are_refused_where_there_are_none(model):
    few, other = {"chains": 1, "warmup": 1, "draws": 1}, model.replace(likelihood=ba.StudentT(0.5, 4.0))
    with pytest.raises(ValueError, match="for a program of your own"):
        Underdamped(potential_fn=jnp.sum, float32_gradients=True).init(jax.random.key(0), 0, jnp.ones(2))
    with pytest.raises(ValueError, match=r"options\.float32_gradients must be true or false, got 'yes'"):
        ba.sample(model, "underdamped", **few, options={"float32_gradients": "yes"})
    for of, kind in ((model, "path"), (other, "collapsed")):
        with pytest.raises(ValueError, match=r"options\.float32_gradients must be false, got true: only the collapsed"):
            ba.sample(of, "underdamped", kind, **few, options=FLOAT32)


def test_minibatches_have_the_whole_gradient_on_average(model):
    """Those of one example, and the one of all examples, which is not too large."""
    posterior, count = path.Path.of(model), len(model.labels)
    sites = posterior.initial(jax.random.key(0))
    whole = jax.jit(jax.grad(posterior.log_density))(sites)
    of = jax.jit(jax.grad(lambda sites, chosen: posterior.minibatch(chosen).log_density(sites)))
    of_all, of_one = of(sites, np.arange(count)), [of(sites, np.array([example])) for example in range(count)]
    for name, expected in whole.items():
        np.testing.assert_allclose(of_all[name], expected, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(np.mean([each[name] for each in of_one], 0), expected, rtol=1e-9, atol=1e-11)

    def begun(minibatch):
        made = kernel(langevin.Sgld, path.Path, {"steps": 1, "minibatch": minibatch})
        return jax.eval_shape(lambda key: made.init(key, 0, sites, (posterior,)), jax.random.key(0))

    begun(count)
    with pytest.raises(ValueError, match=f"minibatch must be at most the number of examples, {count}, got {count + 1}"):
        begun(count + 1)


@pytest.mark.parametrize(("name", "warmup"), [("mala", 0), *((name, 2) for name in KERNELS)])
def test_n_steps_counts_gradients_and_no_step_has_the_key_of_another(name, warmup):
    """In warm-up and after it. With one key, noise would be the same in each step, which means need not show."""
    counted = []

    @jax.custom_vjp
    def potential(x):
        return x @ x / 2

    def backward(x, cotangent):
        jax.debug.callback(lambda: counted.append(1))
        return (cotangent * x,)

    potential.defvjp(lambda x: (x @ x / 2, x), backward)
    kernel = KERNELS[name](potential_fn=potential, steps=3, step_size=0.3)
    # Of JAX's strong types throughout, as in a block, so that it is compiled once.
    state = _strong(kernel.init(jax.random.key(0), warmup, jnp.ones(4)))
    sample = jax.jit(lambda state: _strong(kernel.sample(state, (), {})))
    keys = {str(state.rng_key)}
    for _ in range(warmup + 2):
        jax.effects_barrier()
        counted.clear()
        state = sample(state)
        jax.effects_barrier()
        assert len(counted) == state.num_steps
        keys.add(str(state.rng_key))
    assert len(keys) == warmup + 3


def test_options_take_the_place_of_presets():
    assert Job(sampler="mala").options == {"steps": 10}
    assert Job(sampler="mala", options={"steps": 3}).options["steps"] == 3
    # Whitened coordinates are their own metric where no layer is narrow.
    for widths, adapts in (((9, 9), False), ((4, 9), True)):
        model = tiny_model(heads=(2,), widths=widths)
        options = options_for(Mala, collapsed.Collapsed.of(model, **collapsed.prepare(model, "prior")), {})
        assert kernel(Mala, collapsed.Collapsed, options).adapt_mass_matrix is adapts


# Rubin's eight schools, non-centred. Reference means and their errors: posteriordb, eight_schools-eight_schools_noncentered,
# github.com/stan-dev/posteriordb, commit 0e97b72.
EFFECTS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
ERRORS = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
SCHOOL_MEANS = np.array([6.1505, 4.9396, 3.9059, 4.7960, 3.6144, 4.0511, 6.3172, 4.8840, 4.4105, 3.6021])
SCHOOL_ERRORS = np.array([0.0557, 0.0462, 0.0542, 0.0475, 0.0461, 0.0485, 0.0499, 0.0543, 0.0330, 0.0319])


def eight_schools_potential(z):
    """mu ~ Normal(0, 5), tau ~ HalfCauchy(5), theta = mu + tau eta; z = (eta, mu, log tau)."""
    eta, mu, log_tau = z[:8], z[8], z[9]
    tau = jnp.exp(log_tau)
    residuals = (EFFECTS - mu - tau * eta) / ERRORS
    log_prior = -jnp.sum(eta**2) / 2 - mu**2 / 50 - jnp.log1p((tau / 5) ** 2) + log_tau
    return jnp.sum(residuals**2) / 2 - log_prior


@pytest.mark.heavy
@pytest.mark.parametrize("name", ADJUSTED)
def test_eight_schools(name):
    kernel = ADJUSTED[name](potential_fn=eight_schools_potential, steps=1 if name in TRAJECTORIES else 20)
    z, _ = chains(kernel, jnp.zeros(10), 600, 3000)
    eta, mu, tau = z[..., :8], z[..., 8:9], np.exp(z[..., 9:])
    agree(array_of(np.concatenate([mu + tau * eta, mu, tau], -1)), SCHOOL_MEANS, SCHOOL_ERRORS)


@pytest.mark.parametrize("name", ["ula", pytest.param("underdamped", marks=pytest.mark.heavy)])
def test_a_resumed_run_has_the_same_bits(model, tmp_path, name):
    """Stopped in warm-up, and after a block of draws; with gradients in float32 where the sampler takes them."""
    options = options_of(name) | (FLOAT32 if name == "underdamped" else {})
    job = RUN | {"sampler": name, "parameterisation": "collapsed", "chains": 2, "draws": 300, "options": options}
    runs.sample(model, tmp_path / "whole", **job)
    for steps in (400, 1200):
        with pytest.raises(KeyboardInterrupt):
            runs.sample(model, tmp_path / "stopped", **job, progress=StopAfter(steps))
    runs.sample(model, tmp_path / "stopped", **job)
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")
