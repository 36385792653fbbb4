"""Chains of draws, block by block.

NumPyro's `MCMC.run` compiles anew at each call. Here a block of draws is one jitted `lax.scan` over `kernel.sample`,
compiled once for all blocks, chains and models of the same shape. Whatever a kernel adapts, and its random key, live in the
state that goes from block to block, so a chain continued from a state is bit-identical to one that never stopped.
"""

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, NamedTuple

import arviz_base
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from threadpoolctl import threadpool_limits

from bayesattn._checks import one_of, positive_integer
from bayesattn.models import PARAMETERISATIONS, Model
from bayesattn.models.collapsed import weight_dims, weights
from bayesattn.samplers import hmc

SAMPLERS = {"nuts": hmc.nuts, "hmc": hmc.hmc}
BLOCK = 50
"""Draws per block: small enough for a lively progress bar, large enough that its overhead is not seen."""


class Progress(NamedTuple):
    """What a progress callback is told after each block: chain, its draws done, its total, warm-up included."""

    chain: int
    done: int
    total: int


def sample(
    model: Model,
    sampler: str = "nuts",
    parameterisation: str = "collapsed",
    chains: int = 4,
    warmup: int = 500,
    draws: int = 1000,
    seed: int = 0,
    *,
    keep_weights: bool = False,
    chain_method: str | None = None,
    progress: Callable[[Progress], None] | None = None,
    options: Mapping[str, Any] | None = None,
) -> xr.DataTree:
    """Draw from the posterior of a model.

    Args:
        model: the posterior.
        sampler: "nuts" or "hmc".
        parameterisation: "collapsed", "path" or "token".
        chains: number of chains.
        warmup: adaptation steps of each chain, discarded.
        draws: draws kept of each chain.
        seed: same seed, same draws.
        keep_weights: also keep every draw of the sampled weights, which can be large.
        chain_method: "parallel" runs chains in threads, "vectorised" in one batch; by default the first on a CPU, the
            second elsewhere.
        progress: called after each block of each chain.
        options: further options of the sampler, such as {"max_tree_depth": 8}.

    Returns:
        DataTree with ArviZ groups: posterior["order_parameter"] (chain, draw, path, other_path),
        posterior["prediction"] (chain, draw, test_example) where the model has test examples, the weights if kept,
        sample_stats under ArviZ's names, observed_data, constant_data.

    Raises:
        ValueError: an unknown sampler, parameterisation or option, counts below 1, a model that the parameterisation
            cannot serve.
        FloatingPointError: a draw or its energy is not finite.
    """
    one_of("sampler", sampler, SAMPLERS)
    one_of("parameterisation", parameterisation, PARAMETERISATIONS)
    if chain_method is None:
        chain_method = "parallel" if jax.default_backend() == "cpu" else "vectorised"
    one_of("chain_method", chain_method, ("parallel", "vectorised"))
    for name, value in (("chains", chains), ("draws", draws)):
        positive_integer(name, value)
    positive_integer("warmup", warmup, minimum=0)
    positive_integer("seed", seed, minimum=0)
    data = PARAMETERISATIONS[parameterisation].data(model)
    compiled = _compiled(
        sampler,
        parameterisation,
        PARAMETERISATIONS[parameterisation].structure(model.architecture),
        warmup,
        keep_weights and parameterisation != "collapsed",
        tuple(sorted((PARAMETERISATIONS[parameterisation].KERNEL_OPTIONS | dict(options or {})).items())),
    )
    keys = jax.random.split(jax.random.key(seed), chains)
    if chain_method == "vectorised":
        outputs = _run_chain(compiled.vectorised(), keys, data, warmup, draws, range(chains), progress)
    else:
        outputs = _run_in_threads(compiled, keys, data, warmup, draws, progress)
    draws_tree = _datatree(model, outputs)
    if keep_weights and parameterisation == "collapsed":
        draws_tree["posterior"] = draws_tree["posterior"].to_dataset().merge(weights(draws_tree, model, seed))
    return draws_tree


class _Compiled(NamedTuple):
    """Jitted start(key, data) -> state and block(state, data, count, keep) -> (state, what is kept of BLOCK draws).

    Only the first `count` draws of a block are made, and described only if `keep` says so.
    """

    start: Callable
    block: Callable

    def vectorised(self) -> "_Compiled":
        return _Compiled(jax.jit(jax.vmap(self.start, (0, None))), jax.jit(jax.vmap(self.block, (0, None, None, None))))


@lru_cache(maxsize=32)
def _compiled(
    sampler: str, parameterisation: str, structure: Any, warmup: int, keep_weights: bool, options: tuple
) -> _Compiled:
    module = PARAMETERISATIONS[parameterisation]

    def new_kernel():
        try:
            return SAMPLERS[sampler](module.program(structure), **dict(options))
        except TypeError as error:
            raise ValueError(f"options of sampler {sampler!r}: {error}") from None

    new_kernel()

    def start(key, data):
        init_key, start_key = jax.random.split(key)
        return new_kernel().init(init_key, warmup, module.initial(start_key, data), (data,), {})

    def describe(state, data):
        sites = state.z
        # A key of its own for each draw, which the chain itself never uses.
        key = jax.random.fold_in(state.rng_key, 0)
        outputs = {
            "posterior": module.quantities(sites, data, structure, key),
            "sample_stats": hmc.statistics(state),
        }
        if keep_weights:
            outputs["posterior"] |= sites
        return outputs

    def block(state, data, count, keep):
        kernel = new_kernel()
        # Sets up the kernel's functions; its result is unused, so it costs nothing once compiled.
        kernel.init(state.rng_key, warmup, state.z, (data,), {})
        shapes = jax.eval_shape(describe, state, data)
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        def step(state, index):
            drawn = index < count
            state = jax.lax.cond(drawn, lambda s: kernel.sample(s, (data,), {}), lambda s: s, state)
            return state, jax.lax.cond(drawn & keep, lambda s: describe(s, data), lambda s: nothing, state)

        return jax.lax.scan(step, state, jnp.arange(BLOCK))

    return _Compiled(jax.jit(start), jax.jit(block))


def _run_chain(compiled, key, data, warmup, draws, chains, progress) -> dict[str, dict[str, np.ndarray]]:
    """All kept draws of one chain, or of a batch of chains whose axis comes first."""
    state = compiled.start(key, data)
    _require_finite((state.potential_energy, state.z_grad), "the starting point", chains)
    total, done, kept, axis = warmup + draws, 0, [], np.ndim(key)
    while done < total:
        phase_end = warmup if done < warmup else total
        count = min(BLOCK, phase_end - done)
        state, outputs = jax.block_until_ready(compiled.block(state, data, count, done >= warmup))
        where = f"draws {done + 1} to {done + count} (warm-up included)"
        _require_finite((state.potential_energy, state.z_grad), where, chains)
        if done >= warmup:
            _require_finite(outputs["posterior"], where, chains)
            kept.append(jax.tree.map(partial(_first, count=count, axis=axis), outputs))
        done += count
        for chain in chains if progress else ():
            progress(Progress(chain, done, total))
    return jax.tree.map(lambda *blocks: np.concatenate(blocks, axis=axis), *kept)


def _first(leaf, count: int, axis: int) -> np.ndarray:
    return np.asarray(leaf).take(range(count), axis=axis)


def _require_finite(values, where: str, chains) -> None:
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(values)):
        raise FloatingPointError(
            f"sampling met a value that is not finite at {where} of chain {', '.join(map(str, chains))};"
            " a higher temperature or a smaller step size may help"
        )


def _run_in_threads(compiled, keys, data, warmup, draws, progress) -> dict[str, dict[str, np.ndarray]]:
    lock = threading.Lock()

    def tell(event: Progress) -> None:
        with lock:
            assert progress is not None
            progress(event)

    def one_chain(chain: int):
        return _run_chain(compiled, keys[chain], data, warmup, draws, (chain,), tell if progress else None)

    cores = os.cpu_count() or 1
    workers = min(len(keys), cores)
    # Chains that each start BLAS threads on every core take three times as long as chains that do not.
    with threadpool_limits(max(1, cores // workers), user_api="blas"), ThreadPoolExecutor(workers) as pool:
        outputs = list(pool.map(one_chain, range(len(keys))))
    return jax.tree.map(lambda *chains: np.stack(chains), *outputs)


def _datatree(model: Model, outputs: dict[str, dict[str, np.ndarray]]) -> xr.DataTree:
    observed = {"labels": np.asarray(model.labels)}
    constant = {"temperature": np.asarray(model.temperature), "path_inputs": np.asarray(model.path_inputs)}
    dims = {
        "order_parameter": ["path", "other_path"],
        "prediction": ["test_example"],
        "labels": ["example"],
        "path_inputs": ["example", "path", "feature"],
        "test_path_inputs": ["test_example", "path", "feature"],
        "test_labels": ["test_example"],
        "bartlett": ["coordinate"],
        **weight_dims(model.architecture),
    }
    for name in ("test_path_inputs", "test_labels"):
        if getattr(model, name) is not None:
            constant[name] = np.asarray(getattr(model, name))
    return arviz_base.from_dict(
        outputs | {"observed_data": observed, "constant_data": constant},
        coords={"path": model.path_names, "other_path": model.path_names},
        dims=dims,
    )
