"""Samplers that are not in `SAMPLERS`: NumPyro kernels, and algorithms of an (init, step) pair such as BlackJAX's.

A NumPyro kernel is a class or an instance whose state has the sites `z` and a random key. A class of `numpyro.infer` is
known by its name, such as "numpyro.infer.barker.BarkerMH", so a run with it can be resumed. Other classes, instances and
pairs are known only in their own process: each object gets a name of its own, and runs on disk refuse it.
"""

import inspect
import itertools
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree
from numpyro.infer import init_to_sample
from numpyro.infer.ensemble import EnsembleSampler
from numpyro.infer.mcmc import MCMCKernel

from bayesattn._util.checks import shown
from bayesattn._util.errors import BayesattnError
from bayesattn._util.random import branch, first_key
from bayesattn.models.interface import STATISTICS
from bayesattn.models.parameterisation import Parameterisation

NO_OPTIONS = ("model", "potential_fn", "init_strategy")
"""Arguments of NumPyro's kernels that are not options of a sampler."""
NUMPYRO = "numpyro.infer."
PAIR_STATISTICS = {
    "acceptance_rate": "acceptance_rate",
    "num_integration_steps": "n_steps",
    "is_divergent": "diverging",
}
"""Fields of BlackJAX's infos, and ArviZ's names of them."""
PAIR = "(init, step) pair"
KEPT_FUNCTIONS = ("_init_fn", "_sample_fn", "_potential_fn", "_potential_fn_gen", "_postprocess_fn")
"""Attributes in which a NumPyro kernel keeps functions of the model that it has run on."""
_named: dict[str, Any] = {}
_numbers = itertools.count(1)


def name_of(kernel: object) -> str:
    """Name by which `kernel_class` knows a NumPyro kernel, a class or an instance, or an (init, step) pair.

    Raises ValueError for something else, for a kernel that moves all chains together, and for a kernel that does not take a
    model as its first argument.
    """
    if known := next((name for name, each in _named.items() if each is kernel), None):
        return known
    if isinstance(kernel, tuple) and len(kernel) == 2 and all(map(callable, kernel)):
        return _name(f"{PAIR} #{next(_numbers)}", kernel)
    kind = kernel if isinstance(kernel, type) else type(kernel)
    if not issubclass(kind, MCMCKernel):
        raise BayesattnError(f"sampler must be a name, a NumPyro kernel or an (init, step) pair, got {shown(kernel)}")
    name = f"{kind.__module__}.{kind.__qualname__}"
    if issubclass(kind, EnsembleSampler):
        raise BayesattnError(
            f"sampler must move each chain by itself, got {name}, which moves all together: run model.numpyro(..) with"
            " numpyro.infer.MCMC, and take its draws with bayesattn.from_numpyro"
        )
    if next(iter(inspect.signature(kind).parameters), None) != "model":
        raise BayesattnError(f"sampler must take a NumPyro model as its first argument, got {name}")
    if kernel is not kind or not name.startswith(NUMPYRO):
        name = f"{name} #{next(_numbers)}"
    return _name(name, kernel)


def _name(name: str, kernel: object) -> str:
    _named[name] = kernel
    return name


def without_number(name: str) -> str:
    """Name of a sampler without the number of its object, for streams of random numbers."""
    return name.partition(" #")[0]


def require_stored_name(name: str) -> None:
    """Raise ValueError for a sampler that another process could not find again by its name."""
    if name in _named and "#" in name:
        raise BayesattnError(
            f"sampler of a run on disk must be one that can be found again by its name, got {without_number(name)!r}, known"
            " only in this process: draw in memory, with bayesattn.sample"
        )


def canonical(name: str) -> str:
    """Name of a class of numpyro.infer by the module that defines it; any other name as it is."""
    if not name.startswith(NUMPYRO) or "#" in name or name in _named:
        return name
    module, _, attribute = name.rpartition(".")
    try:
        return name_of(getattr(import_module(module), attribute))
    except (ImportError, AttributeError):
        return name


def is_pair(name: str) -> bool:
    """Whether a sampler is an (init, step) pair."""
    return isinstance(_named.get(name), tuple)


def require_density(name: str, posterior: Parameterisation) -> None:
    """Raise ValueError unless a pair takes a posterior's coordinates and has its log density, up to a constant."""
    init, differences = _named[name][0], []
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
    if differences and not abs(differences[0] - differences[1]) <= 1e-6 * max(1.0, abs(differences[0])):
        raise BayesattnError(
            "sampler must hold the log density of this model in this parameterisation, model.log_density(..).function, got"
            f" a pair whose log density differs from it by {differences[0]:.6g} at one point and {differences[1]:.6g} at"
            " another"
        )


def kernel_class(name: str) -> type | None:
    """Constructor of the kernel with a name, in the form of this package's samplers; None for an unknown name."""
    kernel = _named.get(name)
    if kernel is None:
        return None
    if isinstance(kernel, tuple):
        return type("Pair", (_Pair,), {"pair": kernel})
    return _adapted(name, kernel)


def _adapted(name: str, kernel: object) -> type:
    """Class of kernels for a program, with the statistics of a draw."""
    kind: Any = kernel if isinstance(kernel, type) else type(kernel)
    taken = inspect.signature(kind).parameters
    strategy = {"init_strategy": init_to_sample} if "init_strategy" in taken else {}

    class Elsewhere(kind):
        options = tuple(each for each in taken if each not in NO_OPTIONS) if kernel is kind else ()

        def __init__(self, program: Callable | None = None, **options: object):
            if kernel is kind:
                super().__init__(program, **strategy, **options)
            else:
                kept = {key: None if key in KEPT_FUNCTIONS else value for key, value in vars(kernel).items()}
                self.__dict__.update(kept | {"_model": program})

        def init(self, *arguments: object, **named: object) -> tuple:
            state = super().init(*arguments, **named)
            if not hasattr(state, "z") or not hasattr(state, "rng_key"):
                raise BayesattnError(f"sampler {name!r} must have a state with the fields z and rng_key")
            return state

        def sample(self, state: NamedTuple, model_args: tuple, model_kwargs: dict) -> tuple:
            """State after one transition; if a density in it is NaN, the chain and its adapted quantities stay unchanged."""
            new = super().sample(state, model_args, model_kwargs)
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
                found = {"energy": state.potential_energy} | found | {"lp": -state.potential_energy}
            if hasattr(getattr(state, "adapt_state", None), "step_size"):
                found["step_size"] = state.adapt_state.step_size
            return found

    return Elsewhere


class _PairState(NamedTuple):
    """State of a chain of a pair: its sites, its own state, statistics of its last step."""

    z: PyTree[Array]
    inner: PyTree[Array]
    statistics: dict[str, Array]
    rng_key: Array


class _Pair(MCMCKernel):
    """Kernel of an algorithm that holds the log density of one flat vector: init(vector), step(key, state).

    Its states have a field `position`. It does not adapt: warm-up is burn-in.
    """

    options: tuple[str, ...] = ()
    pair: tuple[Callable, Callable]

    def __init__(self, program: Callable | None = None):
        self._init, self._step = self.pair

    def init(self, rng_key, num_warmup, init_params, model_args, model_kwargs):
        """Initial state at the given sites."""
        inner = self._init(ravel_pytree(init_params)[0])
        statistics = jax.eval_shape(lambda: _statistics(self._step(rng_key, inner)[1]))
        nothing = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), statistics)
        return _PairState(init_params, inner, nothing, rng_key)

    def sample(self, state, model_args, model_kwargs):
        """State after one more step."""
        rng_key, step_key = jax.random.split(state.rng_key)
        inner, info = self._step(step_key, state.inner)
        return _PairState(ravel_pytree(state.z)[1](inner.position), inner, _statistics(info), rng_key)

    def statistics(self, state: _PairState) -> dict[str, Array]:
        """Sample statistics of one draw, by ArviZ's names."""
        return state.statistics


def _statistics(info: object) -> dict[str, Array]:
    """Statistics of the step that led to a state."""
    found = {ours: getattr(info, theirs, None) for theirs, ours in PAIR_STATISTICS.items()}
    return {name: jnp.asarray(value) for name, value in found.items() if value is not None}
