"""Samplers of other libraries: NumPyro kernels, and algorithms of an (init, step) pair such as BlackJAX's.

A NumPyro kernel is a class or an instance whose state has the sites `z` and a random key. A class of `numpyro.infer` is
known by its name, such as "numpyro.infer.barker.BarkerMH", so a run with it can be resumed. Other classes, instances and
pairs are known only in their own process, and runs on disk refuse them.
"""

import copy
import inspect
import math
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Key, PyTree
from numpyro.infer import init_to_sample
from numpyro.infer.ensemble import EnsembleSampler
from numpyro.infer.mcmc import MCMCKernel

from bayesattn._util.checks import shown
from bayesattn._util.random import branch, first_key
from bayesattn.errors import BayesattnError
from bayesattn.models.interface import STATISTICS
from bayesattn.models.parameterisation import Parameterisation

NUMPYRO = "numpyro.infer."
PAIR_STATISTICS = {
    "acceptance_rate": "acceptance_rate",
    "num_integration_steps": "n_steps",
    "is_divergent": "diverging",
}
"""Fields of BlackJAX's infos, and ArviZ's names of them."""
PAIR = "(init, step) pair"


def class_named(name: str) -> type | None:
    """Class of `numpyro.infer` with a name; None for any other name."""
    if not name.startswith(NUMPYRO):
        return None
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError):
        return None


def checked_sampler(sampler: object) -> object:
    """Name of a class of `numpyro.infer`; any other kernel, a class or an instance, or (init, step) pair as it is.

    Raises ValueError for something else, for a kernel that moves all chains together, and for a kernel that does not take a
    model as its first argument.
    """
    if is_pair(sampler):
        return sampler
    kind = _kind(sampler)
    if not issubclass(kind, MCMCKernel):
        raise BayesattnError(f"sampler must be a name, a NumPyro kernel or an (init, step) pair, got {shown(sampler)}")
    name = name_of(sampler)
    if issubclass(kind, EnsembleSampler):
        raise BayesattnError(
            f"sampler must move each chain by itself, got {name}, which moves all together: run model.numpyro(..) with"
            " numpyro.infer.MCMC, and take its draws with bayesattn.from_numpyro"
        )
    if next(iter(inspect.signature(kind).parameters), None) != "model":
        raise BayesattnError(f"sampler must take a NumPyro model as its first argument, got {name}")
    return name if sampler is kind and name.startswith(NUMPYRO) else sampler


def name_of(sampler: object) -> str:
    """Name of a kernel's class, or "(init, step) pair"; a name as it is."""
    if isinstance(sampler, str):
        return sampler
    if is_pair(sampler):
        return PAIR
    kind = _kind(sampler)
    return f"{kind.__module__}.{kind.__qualname__}"


def _kind(sampler: object) -> type:
    """Class of a kernel that is given as a class or as an instance."""
    return sampler if isinstance(sampler, type) else type(sampler)


def is_pair(sampler: object) -> bool:
    """Whether a sampler is an (init, step) pair."""
    return isinstance(sampler, tuple) and len(sampler) == 2 and all(map(callable, sampler))


def is_kernel(sampler: object) -> bool:
    """Whether a sampler is an instance of a NumPyro kernel."""
    return isinstance(sampler, MCMCKernel)


def require_attribute(kernel: Any) -> None:
    """Raise ValueError for an instance that does not keep its program where NumPyro's do, so that it cannot get another."""
    if not hasattr(kernel, "_model"):
        raise BayesattnError(
            "kernel must keep its program in the attribute _model, and read it there, as NumPyro's do, got"
            f" {name_of(kernel)} without one: mend it, or give the class"
        )


def require_program(kernel: Any, program: Callable | None) -> None:
    """Raise ValueError for a kernel that was built for another target than a program: it would be run on the program."""
    require_attribute(kernel)
    if kernel._model is not program or program is None:
        got = "potential_fn" if kernel._model is None else "another program"
        raise BayesattnError(
            f"kernel must be built for the program that it is given, an argument called program, got one of {got}"
        )


def require_stored_name(sampler: object) -> None:
    """Raise ValueError for a sampler that another process could not find again by its name."""
    if not isinstance(sampler, str):
        raise BayesattnError(
            f"sampler of a run on disk must be one that can be found again by its name, got {name_of(sampler)!r}, known"
            " only in this process: draw in memory, with bayesattn.sample"
        )


def require_density(pair: tuple[Callable, Callable], posterior: Parameterisation) -> None:
    """Raise ValueError unless a pair takes a posterior's coordinates and has its log density, up to a constant."""
    init, differences = pair[0], []
    for number in range(2):
        sites = posterior.initial(branch(first_key(0), "density of a pair", str(number)))
        vector = ravel_pytree(sites)[0]
        try:
            state = init(vector)
        except Exception as error:
            raise BayesattnError(
                f"sampler must have an init that takes a flat vector of {vector.size} coordinates of this parameterisation,"
                f" got {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            ) from error
        if not hasattr(state, "position"):
            raise BayesattnError("sampler must have a state with a field position, as those of BlackJAX do")
        if hasattr(state, "logdensity"):
            differences.append(float(state.logdensity - posterior.log_density(sites)))
    if any(map(math.isnan, differences)):
        raise BayesattnError("sampler must have a finite log density, got NaN at a draw from the prior")
    if differences and not abs(differences[0] - differences[1]) <= 1e-6 * max(1.0, abs(differences[0])):
        raise BayesattnError(
            "sampler must hold the log density of this model in this parameterisation, model.log_density(..).function, got"
            f" a pair whose log density differs from it by {differences[0]:.6g} at one point and {differences[1]:.6g} at"
            " another"
        )


class NumpyroKernel:
    """Kernel of NumPyro's for a program, with the statistics of a draw.

    Args:
        sampler: a class of kernels, or an instance, which may have been set up for another program.
        program: NumPyro program.
        options: options of the class.
    """

    def __init__(self, sampler: Any, program: Callable, **options: Any):
        if isinstance(sampler, type):
            if "init_strategy" in inspect.signature(sampler).parameters:
                options["init_strategy"] = init_to_sample
            self.kernel: Any = sampler(program, **options)
        else:
            require_attribute(sampler)
            if sampler._model is None:
                raise BayesattnError(
                    "sampler must be built for a program, which is replaced by that of the model, got one of potential_fn"
                )
            self.kernel = copy.copy(sampler)
            self.kernel._model = program

    def init(self, *arguments: Any) -> Any:
        """State before the first step; raises ValueError if it has no sites or no random key."""
        return self._checked("init", self.kernel.init(*arguments))

    def _checked(self, method: str, state: Any) -> Any:
        if not (hasattr(state, "z") and hasattr(state, "rng_key") and hasattr(state, "_replace")):
            raise BayesattnError(
                f"{method} of sampler {name_of(self.kernel)!r} must return a named tuple with the fields z and rng_key, got"
                f" {shown(type(state).__name__)}"
            )
        return state

    def refresh(self, *arguments: Any) -> Any:
        """State with the energy and the gradient recomputed for other data."""
        return self.kernel.refresh(*arguments)

    def sample(self, state: Any, model_args: tuple, model_kwargs: dict) -> Any:
        """State after one transition; if a density in it is NaN, the chain and its adapted quantities stay unchanged."""
        new = self._checked("sample", self.kernel.sample(state, model_args, model_kwargs))
        numbers = [
            jnp.ravel(leaf) for leaf in jax.tree.leaves(new) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        ]
        defined = ~jnp.isnan(jnp.concatenate(numbers)).any()
        kept = jax.tree.map(
            lambda after, before: jnp.where(defined, after, before),
            *(each._replace(rng_key=0) for each in (new, state)),
        )
        counted = {name: getattr(new, name) for name in ("i", "rng_key") if hasattr(new, name)}
        return kept._replace(**counted)

    def statistics(self, state: Any) -> dict[str, Array]:
        """Sample statistics of one draw, by ArviZ's names."""
        found = {ours: getattr(state, theirs) for theirs, ours in STATISTICS.items() if hasattr(state, theirs)}
        if hasattr(state, "potential_energy"):
            found["lp"] = -state.potential_energy
        if hasattr(getattr(state, "adapt_state", None), "step_size"):
            found["step_size"] = state.adapt_state.step_size
        return found


class _PairState(NamedTuple):
    """State of a chain of a pair: its sites, its own state, statistics of its last step."""

    z: PyTree[Array]
    inner: PyTree[Array]
    statistics: dict[str, Array]
    rng_key: Array


class PairKernel:
    """Kernel of an algorithm that holds the log density of one flat vector: init(vector), step(key, state).

    Its states have a field `position`. It does not adapt: warm-up is burn-in.
    """

    def __init__(self, pair: tuple[Callable, Callable]):
        self._init, self._step = pair

    def init(
        self,
        rng_key: Key[Array, ""],
        num_warmup: int,
        init_params: PyTree[Array],
        model_args: tuple,
        model_kwargs: dict,
    ) -> _PairState:
        """Initial state at the sites `init_params`, arrays of any shapes, which the algorithm sees as one flat vector.

        Warm-up and arguments are ignored: the algorithm does not adapt, and holds its log density itself.
        """
        inner = self._init(ravel_pytree(init_params)[0])
        statistics = jax.eval_shape(lambda: _statistics(self._moved(rng_key, inner)[1]))
        nothing = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), statistics)
        return _PairState(init_params, inner, nothing, rng_key)

    def sample(self, state: _PairState, model_args: tuple, model_kwargs: dict) -> _PairState:
        """State after one more step, with sites of the same shapes; arguments are ignored."""
        rng_key, step_key = jax.random.split(state.rng_key)
        inner, info = self._moved(step_key, state.inner)
        return _PairState(ravel_pytree(state.z)[1](inner.position), inner, _statistics(info), rng_key)

    def _moved(self, key: Key[Array, ""], inner: Any) -> Any:
        moved = self._step(key, inner)
        several = isinstance(moved, tuple | list) and not hasattr(moved, "_fields")
        if not (several and len(moved) == 2 and hasattr(moved[0], "position")):
            got = f"({', '.join(type(each).__name__ for each in moved)})" if several else type(moved).__name__
            raise BayesattnError(
                f"step(key, state) of an {PAIR} must return a state with a field position, and an info, got {got}"
            )
        return moved

    def statistics(self, state: _PairState) -> dict[str, Array]:
        """Sample statistics of one draw, by ArviZ's names."""
        return state.statistics


def _statistics(info: object) -> dict[str, Array]:
    """Statistics of the step that led to a state."""
    found = {ours: getattr(info, theirs, None) for theirs, ours in PAIR_STATISTICS.items()}
    return {name: jnp.asarray(value) for name, value in found.items() if value is not None}
