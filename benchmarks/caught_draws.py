"""Draws of a reference posterior by a sampler of whatever versions are installed; `caught.py` runs it, without bayesattn.

python caught_draws.py SAMPLER PROGRAM SEED FILE

PROGRAM is a NumPyro program of all weights that `bayesattn.reference.export` wrote. FILE gets the draws of each weight, of
shape (chain, draw, ..), and the seconds that they took.
"""

import importlib.util
import inspect
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import potential_energy

# Names that BlackJAX 0.2 and before use, and that JAX for Python 3.11 no longer has.
for module, name, value in ((jnp, "DeviceArray", jax.Array), (jax.tree_util, "tree_multimap", jax.tree_util.tree_map)):
    try:
        getattr(module, name)
    except AttributeError:
        setattr(module, name, value)

CHAINS, DRAWS = 4, 4000
WALKERS, ENSEMBLE_STEPS, ENSEMBLE_THIN = 200, 30_000, 100
"""Walkers depend on each other's past: only states far apart are kept."""

SAMPLER, PROGRAM, SEED, FILE = sys.argv[1:]
spec = importlib.util.spec_from_file_location("reference", PROGRAM)
reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference)


def weights_of(key: Any) -> dict[str, Any]:
    """Weights drawn from the prior."""
    trace = handlers.trace(handlers.seed(reference.model, key)).get_trace()
    return {name: site["value"] for name, site in trace.items() if site["type"] == "sample" and not site["is_observed"]}


_, unravel = ravel_pytree(weights_of(jax.random.PRNGKey(0)))


def start(key: Any) -> Any:
    """A draw of the prior as one vector."""
    return ravel_pytree(weights_of(key))[0]


def log_density(vector: Any) -> Any:
    """Log density of weights and labels."""
    return -potential_energy(reference.model, (), {}, unravel(vector))


def log_prior(vector: Any) -> Any:
    """Log density of the weights."""
    return -potential_energy(handlers.block(reference.model, hide=["labels"]), (), {}, unravel(vector))


def log_likelihood(vector: Any) -> Any:
    """Log density of the labels given the weights."""
    return log_density(vector) - log_prior(vector)


def chains(make: Callable[[Any, Any], Any], thin: int, burn: int, draws: int = DRAWS) -> dict[str, Any]:
    """Draws of chains of an (init, step) pair that `make` builds from a start and a key."""

    def chain(key: Any) -> Any:
        start_key, make_key, burn_key, key = jax.random.split(key, 4)
        vector = start(start_key)
        init, step = make(vector, make_key)

        def move(state: Any, key: Any) -> Any:
            return step(key, state)[0], None

        def kept(state: Any, key: Any) -> Any:
            state, _ = jax.lax.scan(move, state, jax.random.split(key, thin))
            return state, state.position

        state, _ = jax.lax.scan(move, init(vector), jax.random.split(burn_key, burn))
        return jax.lax.scan(kept, state, jax.random.split(key, draws))[1]

    vectors = jax.jit(jax.vmap(chain))(jax.random.split(jax.random.PRNGKey(int(SEED)), CHAINS))
    return jax.vmap(jax.vmap(unravel))(vectors)


def ensemble(name: str) -> dict[str, Any]:
    """NumPyro's ensembles, as its documentation runs them."""
    import numpyro.infer

    mcmc = MCMC(
        getattr(numpyro.infer, name)(reference.model, randomize_split=False),
        num_warmup=4000,
        num_samples=ENSEMBLE_STEPS,
        thinning=ENSEMBLE_THIN,
        num_chains=WALKERS,
        chain_method="vectorized",
        progress_bar=False,
    )
    return drawn(mcmc)


def nuts() -> dict[str, Any]:
    """NumPyro's NUTS, the control."""
    mcmc = MCMC(
        NUTS(reference.model),
        num_warmup=1000,
        num_samples=DRAWS,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    return drawn(mcmc)


def drawn(mcmc: MCMC) -> dict[str, Any]:
    """Weights that an MCMC of NumPyro's draws."""
    mcmc.run(jax.random.PRNGKey(int(SEED)))
    names = weights_of(jax.random.PRNGKey(0))
    return {name: values for name, values in mcmc.get_samples(group_by_chain=True).items() if name in names}


def mala() -> dict[str, Any]:
    """BlackJAX's MALA."""
    import blackjax

    return chains(lambda vector, key: blackjax.mala(log_density, 3e-3), thin=50, burn=10_000)


def irmh() -> dict[str, Any]:
    """BlackJAX's independent Metropolis-Hastings with the prior as proposal, and its density where it is asked for."""
    import blackjax

    def make(vector: Any, key: Any) -> Any:
        try:
            return blackjax.irmh(log_density, start, lambda _, state: log_prior(state.position))
        except TypeError:
            return blackjax.irmh(log_density, start)

    return chains(make, thin=200, burn=10_000)


def first_versions(name: str, step: float, most: int, thin: int) -> dict[str, Any]:
    """HMC or NUTS of the first versions of BlackJAX, whose interfaces differ."""
    module = importlib.import_module(f"blackjax.{name}")
    parameters = getattr(module, f"{name.upper()}Parameters", None)

    def make(vector: Any, key: Any) -> Any:
        potential, scale = lambda each: -log_density(each), jnp.ones(len(vector))
        settings = (step, scale, most) if parameters is None else (parameters(step, most, scale),)
        return lambda each: module.new_state(each, potential), module.kernel(potential, *settings)

    return chains(make, thin=thin, burn=1000)


def adjusted_mclmc() -> dict[str, Any]:
    """BlackJAX's adjusted MCLMC with tuned step and length, as its documentation runs it."""
    import blackjax
    from blackjax.mcmc.adjusted_mclmc_dynamic import rescale

    def number(key: Any, average: Any) -> Any:
        return jnp.ceil(jax.random.uniform(key) * rescale(average)).astype(int)

    def make(vector: Any, key: Any) -> Any:
        init_key, tune_key = jax.random.split(key)
        state = blackjax.mcmc.adjusted_mclmc_dynamic.init(
            position=vector, logdensity_fn=log_density, random_generator_arg=init_key
        )
        find = blackjax.adjusted_mclmc_find_L_and_step_size
        if "logdensity_fn" in inspect.signature(find).parameters:
            kernel = blackjax.mcmc.adjusted_mclmc_dynamic.build_kernel(integration_steps_fn=number)
            found = find(
                mclmc_kernel=kernel,
                logdensity_fn=log_density,
                num_steps=5000,
                state=state,
                rng_key=tune_key,
                target=0.9,
                diagonal_preconditioning=False,
            )
        else:

            def kernel(rng_key, state, avg_num_integration_steps, step_size, inverse_mass_matrix):
                return blackjax.mcmc.adjusted_mclmc_dynamic.build_kernel(
                    integration_steps_fn=lambda key: number(key, avg_num_integration_steps),
                    inverse_mass_matrix=inverse_mass_matrix,
                )(rng_key=rng_key, state=state, step_size=step_size, logdensity_fn=log_density)

            found = find(
                mclmc_kernel=kernel,
                num_steps=5000,
                state=state,
                rng_key=tune_key,
                target=0.9,
                frac_tune1=0.1,
                frac_tune2=0.1,
                frac_tune3=0.0,
                diagonal_preconditioning=False,
            )
        state, parameters = found[:2]
        average = parameters.L / parameters.step_size
        algorithm = blackjax.adjusted_mclmc_dynamic(
            logdensity_fn=log_density,
            step_size=parameters.step_size,
            integration_steps_fn=lambda key: number(key, average),
            inverse_mass_matrix=parameters.inverse_mass_matrix,
        )
        return lambda _: state, algorithm.step

    return chains(make, thin=10, burn=0)


def tempered_smc() -> dict[str, Any]:
    """BlackJAX's adaptive tempered SMC with HMC; each run is a chain."""
    import blackjax
    from blackjax.smc import extend_params, resampling

    hmc = {
        "step_size": 0.1,
        "inverse_mass_matrix": jnp.ones(len(start(jax.random.PRNGKey(0)))),
        "num_integration_steps": 10,
    }
    algorithm = blackjax.adaptive_tempered_smc(
        log_prior,
        log_likelihood,
        blackjax.hmc.build_kernel(),
        blackjax.hmc.init,
        extend_params(hmc),
        resampling.systematic,
        0.5,
        num_mcmc_steps=10,
    )
    step, found = jax.jit(algorithm.step), []
    for key in jax.random.split(jax.random.PRNGKey(int(SEED)), CHAINS):
        start_key, key = jax.random.split(key)
        state = algorithm.init(jax.vmap(start)(jax.random.split(start_key, DRAWS)))
        for step_key in jax.random.split(key, 200):
            power = getattr(state, "lmbda", None) if hasattr(state, "lmbda") else state.tempering_param
            if power >= 1:
                break
            state, _ = step(step_key, state)
        chosen = resampling.systematic(key, state.weights, DRAWS)
        found.append(state.particles[chosen])
    return jax.vmap(jax.vmap(unravel))(jnp.stack(found))


def pints(name: str, chains: int, iterations: int, thin: int, **settings: Any) -> dict[str, Any]:
    """A sampler of PINTS, with a quarter of its iterations as warm-up."""
    import pints

    size, value = len(start(jax.random.PRNGKey(0))), jax.jit(log_density)
    value_and_slope = jax.jit(jax.value_and_grad(log_density))

    class Density(pints.LogPDF):
        def n_parameters(self) -> int:
            return size

        def __call__(self, vector: Any) -> float:
            return float(value(vector))

        def evaluateS1(self, vector: Any) -> Any:
            found, slope = value_and_slope(vector)
            return float(found), np.asarray(slope)

    np.random.seed(int(SEED))  # noqa: NPY002 - PINTS draws from NumPy's global generator
    starts = [np.asarray(start(key)) for key in jax.random.split(jax.random.PRNGKey(int(SEED)), chains)]
    controller = pints.MCMCController(Density(), chains, starts, method=getattr(pints, name))
    controller.set_max_iterations(iterations)
    controller.set_log_to_screen(False)
    if controller.method_needs_initial_phase():
        controller.set_initial_phase_iterations(iterations // 8)
    for sampler in controller.samplers():
        for setting, number in settings.items():
            getattr(sampler, setting)(number)
    vectors = np.asarray(controller.run())[:, iterations // 4 :: thin]
    return jax.vmap(jax.vmap(unravel))(jnp.asarray(vectors))


def flowmc_hmc() -> dict[str, Any]:
    """HMC of flowMC, which carries the energy of its last state along."""
    from flowMC.sampler.HMC import HMC

    size = len(start(jax.random.PRNGKey(0)))
    settings = {
        "step_size": 0.1,
        "n_leapfrog": 10,
        "inverse_metric": jnp.ones(size),
        "condition_matrix": jnp.ones(size),
    }
    with_data = "data" in inspect.signature(HMC(log_density, True, settings).get_initial_hamiltonian).parameters
    mine = (lambda vector, data: log_density(vector)) if with_data else log_density
    sampler = HMC(mine, True, settings)
    kernel, data = sampler.make_kernel(), (None,) if with_data else ()

    class State(NamedTuple):
        position: Any
        energy: Any

    def make(vector: Any, key: Any) -> Any:
        energy = (
            sampler.potential(vector, None) if with_data else sampler.get_initial_hamiltonian(key, vector, settings)
        )

        def step(key: Any, state: State) -> Any:
            return State(*kernel(key, *state, *data, settings)[:2]), None

        return lambda each: State(each, energy), step

    return chains(make, thin=5, burn=1000)


SAMPLERS = {
    "nuts": nuts,
    "aies": lambda: ensemble("AIES"),
    "ess": lambda: ensemble("ESS"),
    "mala": mala,
    "irmh": irmh,
    "old_hmc": lambda: first_versions("hmc", 0.08, 12, thin=5),
    "old_nuts": lambda: first_versions("nuts", 0.1, 8, thin=1),
    "adjusted_mclmc": adjusted_mclmc,
    "hammer": lambda: pints("EmceeHammerMCMC", 20, 400_000, 100),
    "population": lambda: pints("PopulationMCMC", 4, 200_000, 25),
    "relativistic": lambda: pints(
        "RelativisticMCMC", 4, 120_000, 20, set_leapfrog_step_size=0.1, set_leapfrog_steps=10, set_speed_of_light=3.0
    ),
    "dram": lambda: pints("DramACMC", 4, 60_000, 12),
    "flowmc_hmc": flowmc_hmc,
    "tempered_smc": tempered_smc,
}
begun = time.perf_counter()
found = {name: np.asarray(values) for name, values in SAMPLERS[SAMPLER]().items()}
np.savez(FILE, seconds=time.perf_counter() - begun, **found)
