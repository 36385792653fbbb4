"""Compiled functions shared by all jobs of one kind.

A block of draws is one jitted `lax.scan` over `kernel.sample`, compiled once for all blocks, chains and models of one shape.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from bayesattn._util.plain_values import PlainDict, PlainMapping
from bayesattn._util.random import branch, first_key
from bayesattn._util.run_once import jit_once
from bayesattn.errors import BayesattnError
from bayesattn.models import CENTRAL, Parameterisation
from bayesattn.samplers.external import NumpyroKernel, PairKernel, is_pair
from bayesattn.samplers.job import QUANTITIES, SAMPLERS
from bayesattn.samplers.langevin_base import Unadjusted
from bayesattn.samplers.options import option_names

State = TypeVar("State")
ALWAYS_KEPT = "attention"
"""Quantity kept regardless of `Job.keep`: a model has it only if it was asked to watch sequences."""
QUANTITY_OF = {name: name for name in QUANTITIES} | {
    "bartlett": "order_parameter",
    "readout": "order_parameter",
    "queries": "queries_keys",
    "keys": "queries_keys",
    "attention": ALWAYS_KEPT,
}
"""Name in `Job.keep` of each variable, without the number of its layer; all other variables are weights."""


def quantity_of(variable: str) -> str:
    """Name in `Job.keep` of a variable, such as "queries" of "queries_1"."""
    return QUANTITY_OF.get(variable) or QUANTITY_OF.get(variable.rpartition("_")[0], "weights")


class Program(NamedTuple):
    """Compiled functions shared by all jobs of one kind; their posterior is a `Parameterisation`.

    - start(key, posterior) -> state before the first step.
    - block(state, posterior, count, keep, thin, slots) -> (state, outputs): state after `count` more steps and, if `keep`,
      the kept values of every thin-th step, in arrays of shape (chain, slots, ..).
    - shapes(posterior) -> shapes of the kept values of one draw.
    """

    start: Callable
    block: Callable
    shapes: Callable


def options_for(sampler: Any, posterior: Parameterisation, options: PlainMapping) -> PlainDict:
    """Options of a sampler, which override the posterior's defaults for the options that the sampler takes."""
    takes = option_names(sampler)
    return {name: value for name, value in posterior.options.items() if name in takes} | dict(options)


def program_of(
    posterior: Parameterisation,
    sampler: Any,
    options: PlainMapping,
    warmup: int,
    keep: tuple[str, ...],
    vectorised: bool = False,
) -> "Program":
    """`program` for a sampler with the options given and the defaults of a posterior."""
    settings = tuple(sorted(options_for(sampler, posterior, options).items()))
    return program(sampler, type(posterior), warmup, settings, keep, vectorised)


def kernel(sampler: Any, parameterisation: type[Parameterisation], options: PlainMapping) -> Any:
    """A new kernel of a sampler, as `Job.kernel` has it, for the NumPyro program of a parameterisation.

    Raises:
        ValueError: an option that the sampler does not have, or an invalid value.
    """
    if is_pair(sampler):
        return PairKernel(sampler)
    make = sampler if sampler in SAMPLERS.values() else partial(NumpyroKernel, sampler)
    try:
        return make(parameterisation.program, **options)
    except TypeError as error:
        raise BayesattnError(f"options of sampler {sampler.__name__!r}: {error}") from None


@lru_cache(maxsize=32)
def program(
    sampler: Any,
    parameterisation: type[Parameterisation],
    warmup: int,
    options: tuple,
    keep: tuple[str, ...],
    vectorised: bool,
) -> Program:
    """Compiled functions of all jobs with these settings; `options` are the (name, value) pairs of the kernel."""
    new_kernel = partial(kernel, sampler, parameterisation, dict(options))
    described = new_kernel()

    def start(key, posterior):
        init_key, start_key = jax.random.split(key)
        return _strong(new_kernel().init(init_key, warmup, posterior.initial(start_key), (posterior,), {}))

    def describe(state, posterior):
        # Separate random streams for each draw, which the chain itself never uses.
        key = branch(state.rng_key, "prediction")
        values, weights = posterior.quantities(state.z, key), {}
        if "weights" in keep:
            weights = posterior.weights_of(state.z, branch(state.rng_key, "weights"))
            values |= weights | posterior.predictions_of(weights)
        kept = {
            name: value
            for name, value in values.items()
            if quantity_of(name) in (*keep, ALWAYS_KEPT) or name in weights or name in posterior.numbers
        }
        statistics = described.statistics(state)
        if "lp" not in statistics:
            statistics |= {"lp": posterior.log_density(state.z)}
        outputs = {"posterior": kept, "sample_stats": statistics}
        if isinstance(described, Unadjusted) and (central := {name: kept[name] for name in CENTRAL if name in kept}):
            half = posterior.quantities(state.half.z, key)
            outputs["step_size_bias"] = described.bias(central, {name: half[name] for name in central})
        return outputs

    def block(state, posterior, count, keep, thin, slots):
        transition = new_kernel()
        # Sets up the kernel's functions; the result is unused, so the call costs nothing once compiled.
        transition.init(state.rng_key, warmup, state.z, (posterior,), {})
        # Once in a block, because the copy of the data in float32 takes as long as a gradient.
        rounded = getattr(transition, "float32_gradients", False)
        evaluated = posterior.with_float32_gradients() if rounded else posterior
        shapes = jax.eval_shape(describe, state, posterior)
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        def step(state, slot):
            steps = jnp.clip(count - slot * thin, 0, thin)
            state = jax.lax.fori_loop(0, steps, lambda _, s: _strong(transition.sample(s, (evaluated,), {})), state)
            return state, jax.lax.cond(
                keep & (steps == thin), lambda s: describe(s, posterior), lambda s: nothing, state
            )

        return jax.lax.scan(step, state, jnp.arange(slots))

    def shapes(posterior):
        state = jax.eval_shape(start, first_key(0), posterior)
        return jax.eval_shape(describe, state, posterior)

    def block_of_one(*arguments):
        state, outputs = block(*arguments)
        return state, jax.tree.map(lambda leaf: leaf[None], outputs)

    def block_of_all(state, posterior, count, keep, thin, slots):
        return jax.vmap(partial(block, slots=slots), (0, None, None, None, None))(state, posterior, count, keep, thin)

    return Program(
        jit_once(jax.vmap(start, (0, None)) if vectorised else start),
        jax.jit(block_of_all if vectorised else block_of_one, static_argnums=5),
        shapes,
    )


def _strong(state: State) -> State:
    """State without JAX's weak types, which a state read from disk does not have either."""
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, jnp.asarray(leaf).dtype), state)
