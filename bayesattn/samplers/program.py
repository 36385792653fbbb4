"""Compiled functions of a kind of job.

A block of draws is one jitted `lax.scan` over `kernel.sample`, compiled once for all blocks, chains and models of one shape.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bayesattn._random import branch, first_key
from bayesattn.models import CENTRAL, PARAMETERISATIONS, WEIGHT_SPACE, path
from bayesattn.network import path_readouts
from bayesattn.samplers.job import BIASED, QUANTITIES, SAMPLERS
from bayesattn.samplers.options import option_names

QUANTITY_OF = {name: name for name in QUANTITIES} | {"bartlett": "order_parameter", "readout": "order_parameter"}
"""What `Job.keep` calls each variable; all others are weights."""


class Program(NamedTuple):
    """Compiled functions of a kind of job.

    start(key, data) -> state; block(state, data, count, keep, thin, slots) -> (state, outputs): the state `count` steps on,
    and what is kept of every thin-th, if `keep`, in arrays (chain, slots, ..); shapes(data): what is kept of one draw.
    """

    start: Callable
    block: Callable
    shapes: Callable


def kernel(sampler: str, parameterisation: str, structure: Any, options: Mapping[str, Any]) -> Any:
    """A new kernel of a sampler for the NumPyro program of a parameterisation.

    Raises:
        ValueError: an option that the sampler does not have, or a value that makes no sense.
    """
    module = PARAMETERISATIONS[parameterisation]
    takes = option_names(SAMPLERS[sampler])
    usual = {name: value for name, value in module.options(structure).items() if name in takes}
    subset = {"subset": WEIGHT_SPACE[parameterisation].minibatch} if sampler == "sgld" else {}
    try:
        return SAMPLERS[sampler](module.program(structure), **subset, **(usual | dict(options)))
    except TypeError as error:
        raise ValueError(f"options of sampler {sampler!r}: {error}") from None


@lru_cache(maxsize=32)
def program(
    sampler: str,
    parameterisation: str,
    structure: Any,
    warmup: int,
    options: tuple,
    keep: tuple[str, ...],
    widths: tuple[int, ...] | None,
    vectorised: bool,
) -> Program:
    """Compiled functions of all jobs with these settings, whose kernel has the (name, value) pairs `options`."""
    module = PARAMETERISATIONS[parameterisation]

    new_kernel = partial(kernel, sampler, parameterisation, structure, dict(options))
    described = new_kernel()

    def start(key, data):
        init_key, start_key = jax.random.split(key)
        return _strong(new_kernel().init(init_key, warmup, module.initial(start_key, data, structure), (data,), {}))

    def describe(state, data):
        # Streams of their own for each draw, which the chain itself never uses.
        key = branch(state.rng_key, "prediction")
        values = module.quantities(state.z, data, structure, key)
        if "weights" in keep:
            weights = module.network_weights(state.z, data, structure, widths, branch(state.rng_key, "weights"))
            values |= weights
            if "readout" in values:
                values["readout"] = path_readouts(weights, data["skips"])
            if "prediction" in values:
                values["prediction"] = path.network(weights, data["test_path_inputs"], data["skips"])
        kept = {name: value for name, value in values.items() if QUANTITY_OF.get(name, "weights") in keep}
        outputs = {"posterior": kept, "sample_stats": described.statistics(state)}
        if sampler in BIASED and (central := {name: kept[name] for name in CENTRAL if name in kept}):
            half = module.quantities(state.half.z, data, structure, key)
            outputs["step_size_bias"] = described.bias(central, {name: half[name] for name in central})
        return outputs

    def block(state, data, count, keep, thin, slots):
        transition = new_kernel()
        # Sets up the kernel's functions; its result is unused, so it costs nothing once compiled.
        transition.init(state.rng_key, warmup, state.z, (data,), {})
        shapes = jax.eval_shape(describe, state, data)
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        def step(state, slot):
            steps = jnp.clip(count - slot * thin, 0, thin)
            state = jax.lax.fori_loop(0, steps, lambda _, s: _strong(transition.sample(s, (data,), {})), state)
            return state, jax.lax.cond(keep & (steps == thin), lambda s: describe(s, data), lambda s: nothing, state)

        return jax.lax.scan(step, state, jnp.arange(slots))

    def shapes(data):
        state = jax.eval_shape(start, first_key(0), data)
        return jax.eval_shape(describe, state, data)

    def block_of_one(*arguments):
        state, outputs = block(*arguments)
        return state, jax.tree.map(lambda leaf: leaf[None], outputs)

    def block_of_all(state, data, count, keep, thin, slots):
        return jax.vmap(partial(block, slots=slots), (0, None, None, None, None))(state, data, count, keep, thin)

    return Program(
        jax.jit(jax.vmap(start, (0, None)) if vectorised else start),
        jax.jit(block_of_all if vectorised else block_of_one, static_argnums=5),
        shapes,
    )


def _strong(state: Any) -> Any:
    """Without JAX's weak types, which a state read from disk has lost."""
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, jnp.asarray(leaf).dtype), state)
