"""Parallel tempering: replicas of a chain at powers of the likelihood, from 1 (the posterior) to 0 (the prior).

Posteriors of narrow networks with skips and several outputs have several modes. A chain at power 1 does not cross between
them in thousands of gradients, in any coordinates. Replicas at lower powers do, and neighbouring replicas exchange states.
At power 0, each transition draws from the prior, exactly, if the program allows it.
"""

import warnings
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.core import Tracer
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Int, Key, PyTree
from numpyro.infer import MCMC, init_to_sample
from numpyro.infer.mcmc import MCMCKernel
from numpyro.infer.util import constrain_fn, initialize_model
from numpyro.primitives import Messenger

from bayesattn._util.checks import positive, positive_integer, probability, shown
from bayesattn._util.random import first_key
from bayesattn.errors import BayesattnError
from bayesattn.models.interface import TEMPERED_FIELDS
from bayesattn.samplers.exchanges import PerReplica, at_prior, each_of, exchanges, trajectory
from bayesattn.samplers.ladder import (
    Adapted,
    Replicas,
    Seen,
    added_to_statistics,
    empty_statistics,
    even_powers,
    metrics,
)
from bayesattn.samplers.langevin_base import MOST_ENERGY_ERROR, statistics_of
from bayesattn.samplers.pilot import draws_prior, masked, potential, prior_draw, suited_replicas

AUTO = "auto"
"""Value of `replicas` for as many as the barrier of a pilot asks for (`suited_replicas`)."""
LARGEST_DENSE_METRIC = 100
"""Largest number of coordinates for which each replica has a dense metric; in more, it has a scale per coordinate."""
JITTER = 0.3
"""Largest deviation of a trajectory's length from its mean, as a share of it.

Of a normal density in many dimensions, a quarter of a period makes the log likelihood independent of the one before: lag-one
autocorrelations were 0.45 with lengths from 0 to twice the mean, and replicas moved less far.
"""
WINDOWS = (1 / 16, 1 / 16, 1 / 8, 1 / 4, 3 / 8)
"""Lengths of the warm-up windows as shares of warm-up.

Powers and metrics are updated at the end of each window; in the rest of warm-up only step sizes are adapted.
"""
SHORTEST_WINDOW = 10
DRAWS_LOOKED_AT = 100
"""Number of draws of a reference at which a log density is looked at."""
LEAST_POWER = 1e-3
"""Second lowest power of the first ladder."""

AT_ONE, RETURNING, FROM_ZERO = 1, 2, 3
"""Where a replica was last, in `TemperedState.visited`."""


class TemperedState(NamedTuple):
    """State of a chain; fields named as in NumPyro's HMCState have the same meaning, for the replica at power 1.

    `num_steps` is the number of gradients of all replicas. `replica_at` is the number of the replica at each power, and
    `log_likelihoods` the log likelihoods there. `visited` says where the replica at each power was last since warm-up: at
    power 1 (`AT_ONE`), at power 0 after power 1 (`RETURNING`), at power 0 only (`FROM_ZERO`), or at neither. `restarts`
    counts the arrivals at power 1 from power 0, `round_trips` those of replicas that had been at power 1 before.
    """

    i: Array
    z: PyTree[Array]
    potential_energy: Array
    z_grad: PyTree[Array]
    num_steps: Array
    accept_prob: Array
    mean_accept_prob: Array
    diverging: Array
    replicas: Replicas
    log_likelihoods: PerReplica
    replica_at: Int[Array, " replica"]
    visited: Int[Array, " replica"]
    round_trips: Int[Array, ""]
    restarts: Int[Array, ""]
    adapt_state: Adapted
    seen: Seen
    rng_key: Array


class Tempered(MCMCKernel):
    """Parallel tempering (Geyer 1991) of Hamiltonian trajectories, with non-reversible exchanges (Syed et al. 2022).

    Each transition moves every replica by a trajectory of random length, the same for all in their standard deviations.
    It then proposes to exchange the even or the odd pairs of neighbours, alternately. The replica at power 0 moves by a draw
    from the prior instead, if every latent site of the program can be drawn. Warm-up adapts the step size and the metric of
    each replica, and the powers of the likelihood so that all pairs of neighbours are exchanged equally often.

    `bayesattn.tempering` has the round trips of the replicas, and computes the evidence. The kernel runs in
    `numpyro.infer.MCMC` too, its chains one after the other or vectorised.

    Args:
        program: NumPyro program; its observed sites and factors are the likelihood.
        replicas: number of powers of the likelihood, 0 and 1 among them; "auto" is `suited_replicas`, by a pilot before the
            first chain, or 12 if the prior cannot be drawn.
        length: mean length of a trajectory in units of a replica's standard deviations.
        step_size: initial step size of the adaptation; the step size itself if `adapt_step_size` is false.
        adapt_step_size: whether warm-up adapts the step sizes to the acceptance probability `target_accept_prob`.
        adapt_mass_matrix: whether warm-up estimates the metric of each replica.
        target_accept_prob: target mean acceptance probability.

    Raises:
        ValueError: fewer than 2 replicas, a length or step size that is not above 0, a probability outside (0, 1).
    """

    def __init__(
        self,
        program: Callable,
        *,
        replicas: int | str = AUTO,
        length: float = 1.5,
        step_size: float = 0.3,
        adapt_step_size: bool = True,
        adapt_mass_matrix: bool = True,
        target_accept_prob: float = 0.8,
    ):
        inner: Any = program
        while isinstance(inner, Messenger):
            if isinstance(inner, numpyro.handlers.seed):
                raise BayesattnError(
                    "program must not be seeded, or all draws from its prior are one, got handlers.seed"
                )
            inner = inner.fn
        self._program = program
        self.replicas = checked_replicas("replicas", replicas)
        self._pilot: tuple[list, int] | None = None
        self.length, self.step_size = positive("length", length), positive("step_size", step_size)
        self.adapt_step_size, self.adapt_mass_matrix = adapt_step_size, adapt_mass_matrix
        self.target_accept_prob = probability("target_accept_prob", target_accept_prob)

    @classmethod
    def of_density(cls, log_density: Callable, reference: dist.Distribution, **options: Any) -> "Tempered":
        """Kernel for a log density of one array, tempered from a reference distribution that covers it.

        Args:
            log_density: function of an array of the shape of a draw from `reference`.
            reference: NumPyro distribution, such as `dist.Normal(0, 3).expand([10]).to_event(1)`. The density at power b is
                proportional to reference^(1 - b) exp(log_density)^b, and the evidence is the integral of exp(log_density).
            options: as for the class.

        Draws are those of the site "position". Where the log density is NaN, the density counts as 0.

        Raises:
            ValueError: `reference` is no distribution; `log_density` returns no single number, or +inf at one of
                `DRAWS_LOOKED_AT` draws of the reference.

        Warns if the log density is NaN at some of these draws, or finite at none.
        """
        _require_density(log_density, reference)

        def program() -> None:
            position = numpyro.sample("position", reference)
            numpyro.factor("density", log_density(position) - jnp.sum(reference.log_prob(position)))

        return cls(program, **options)

    @property
    def model(self) -> Callable:
        """The NumPyro program."""
        return self._program

    @property
    def sample_field(self) -> str:
        """Field of the state that contains a draw."""
        return "z"

    @property
    def default_fields(self) -> tuple[str, ...]:
        """Fields that `numpyro.infer.MCMC` collects: those that `bayesattn.tempering` reads."""
        return ("z", "diverging", *TEMPERED_FIELDS)

    def get_diagnostics_str(self, state: TemperedState) -> str:
        """Text for NumPyro's progress bar."""
        return f"{state.round_trips} round trips. acc. prob={state.mean_accept_prob:.2f}"

    def postprocess_fn(self, args: tuple, kwargs: dict) -> Callable:
        """Map from unconstrained sites to the sites of the program."""
        return jax.jit(partial(constrain_fn, self._program, args, kwargs, return_deterministic=True))

    def init(self, rng_key, num_warmup, init_params=None, model_args=(), model_kwargs=None) -> TemperedState:
        """State before the first step, with all replicas at one point; warm-up takes `num_warmup` transitions.

        Raises ValueError if `replicas` is "auto" while JAX traces, as `numpyro.infer.MCMC` does with parallel chains.
        """
        kwargs = model_kwargs or {}
        count = self.replicas if self.replicas != AUTO else self._suited(rng_key, model_args, kwargs)
        self.draws_prior, self.warmup = draws_prior(self._program, *model_args, **kwargs), num_warmup
        lengths = [max(SHORTEST_WINDOW, int(share * num_warmup)) for share in WINDOWS]
        self._ends = np.array([end for end in accumulate(lengths) if end < num_warmup] or [-1])
        start = partial(self._start, count=int(count), args=model_args, kwargs=kwargs)
        return jax.jit(start if _is_one(rng_key) else jax.vmap(start))(rng_key, init_params)

    def _suited(self, rng_key: Array, args: tuple, kwargs: dict) -> int:
        """Number of replicas by a pilot before the first chain, and again where the arguments are others."""
        if isinstance(rng_key, Tracer):
            raise BayesattnError(
                "replicas must be a number if chains run in parallel, since a pilot finds it before them, got 'auto':"
                " take chain_method='vectorized' or 'sequential'"
            )
        arguments = jax.tree.leaves((args, kwargs))
        if self._pilot is None or [*map(id, self._pilot[0])] != [*map(id, arguments)]:
            first = rng_key if _is_one(rng_key) else rng_key[0]
            self._pilot = arguments, suited_replicas(self._program, first, *args, **kwargs)
        return self._pilot[1]

    def _start(
        self, key: Key[Array, ""], z: PyTree[Array] | None, count: int, args: tuple, kwargs: dict
    ) -> TemperedState:
        """State of one chain before the first step, at `z` or else at a draw from the prior."""
        key, program_key = jax.random.split(key)
        if z is None:
            z = initialize_model(
                program_key, self._program, init_strategy=init_to_sample, model_args=args, model_kwargs=kwargs
            ).param_info.z
        flat = ravel_pytree(z)[0]
        shape = (count, flat.size, flat.size) if flat.size <= LARGEST_DENSE_METRIC else (count, flat.size)
        powers = jnp.append(jnp.geomspace(1.0, LEAST_POWER, count - 1), 0.0)
        scales = jnp.broadcast_to(jnp.eye(flat.size) if len(shape) == 3 else jnp.ones(flat.size), shape)
        value, gradient = jax.value_and_grad(partial(potential, self._program, args, kwargs, 1.0))(z)
        return TemperedState(
            i=jnp.array(0),
            z=z,
            potential_energy=value,
            z_grad=gradient,
            num_steps=jnp.array(0),
            accept_prob=jnp.zeros(()),
            mean_accept_prob=jnp.zeros(()),
            diverging=jnp.array(False),
            replicas=jnp.broadcast_to(flat, (count, flat.size)),
            log_likelihoods=jnp.zeros(count),
            replica_at=jnp.arange(count),
            visited=jnp.zeros(count, int),
            round_trips=jnp.array(0),
            restarts=jnp.array(0),
            adapt_state=Adapted(powers, jnp.full(count, self.step_size), scales),
            seen=empty_statistics(shape),
            rng_key=key,
        )

    def sample(self, state: TemperedState, model_args: tuple, model_kwargs: dict | None) -> TemperedState:
        """State after one more transition: moves of all replicas, then exchanges."""
        if state.i.ndim:
            return jax.vmap(lambda each: self.sample(each, model_args, model_kwargs))(state)
        key, move_key, exchange_key = jax.random.split(state.rng_key, 3)
        unravel, kwargs = ravel_pytree(state.z)[1], model_kwargs or {}
        tuned, count = state.adapt_state, len(state.replicas)

        def energy(position: Array, power: Array) -> Array:
            value = potential(self._program, model_args, kwargs, power, unravel(position))
            return jnp.where(jnp.isnan(value), jnp.inf, value)

        length_key, *keys = jax.random.split(move_key, count + 1)
        length = self.length * jax.random.uniform(length_key, minval=1 - JITTER, maxval=1 + JITTER)
        move = partial(trajectory, energy, length)
        moving = count - self.draws_prior
        moves = each_of(move, jax.tree.map(lambda leaf: leaf[:moving], (jnp.stack(keys), state.replicas, *tuned)))
        if self.draws_prior:
            sites = prior_draw(self._program, keys[-1], *model_args, **kwargs)
            drawn = at_prior(energy, ravel_pytree(sites)[0], state.replicas[-1])
            moves = jax.tree.map(lambda several, one: jnp.append(several, one[None], axis=0), moves, drawn)
        order, probability = exchanges(exchange_key, tuned.powers, moves.log_likelihood, state.i)
        replicas = moves.position[order]
        value, gradient = jax.value_and_grad(energy)(replicas[0], tuned.powers[0])
        warming = state.i < self.warmup
        done = jnp.where(warming, state.i, state.i - self.warmup) + 1
        accept_prob = moves.accept_prob[0]
        visited = jnp.where(state.i == self.warmup, 0, state.visited)[order]
        returned, arrived = (visited[0] == RETURNING) & ~warming, (visited[0] >= RETURNING) & ~warming
        visited = visited.at[-1].set(jnp.array([FROM_ZERO, RETURNING, RETURNING, FROM_ZERO])[visited[-1]])
        following = state._replace(
            i=state.i + 1,
            z=unravel(replicas[0]),
            potential_energy=value,
            z_grad=unravel(gradient),
            num_steps=jnp.sum(moves.gradients) + 1,
            accept_prob=accept_prob,
            mean_accept_prob=state.mean_accept_prob + (accept_prob - state.mean_accept_prob) / done,
            diverging=moves.energy_error[0] > MOST_ENERGY_ERROR,
            replicas=replicas,
            log_likelihoods=moves.log_likelihood[order],
            replica_at=state.replica_at[order],
            visited=visited.at[0].set(AT_ONE),
            round_trips=state.round_trips + returned,
            restarts=state.restarts + arrived,
            rng_key=key,
        )
        adapted = partial(self._adapted, moves.accept_prob, probability)
        return jax.lax.cond(warming, adapted, lambda s: s, following)

    def _adapted(self, accepted: PerReplica, exchanged: Array, state: TemperedState) -> TemperedState:
        """State with step sizes adapted and, at the end of a window, powers and metrics as well."""
        tuned, seen = state.adapt_state, added_to_statistics(state.seen, state.replicas, exchanged)
        if self.adapt_step_size:
            # Robbins and Monro (1951), restarted in each window; the first changes are small enough to be corrected later.
            change = (accepted - self.target_accept_prob) * (seen.count + 4.0) ** -0.6
            tuned = tuned._replace(step_sizes=tuned.step_sizes * jnp.exp(change))

        def renewed(tuned: Adapted, seen: Seen) -> tuple[Adapted, Seen]:
            powers = even_powers(tuned.powers, 1 - seen.exchanged / seen.count)
            scales = metrics(seen) if self.adapt_mass_matrix else tuned.scales
            return Adapted(powers, tuned.step_sizes, scales), empty_statistics(seen.products.shape)

        ended = jnp.any(state.i == self._ends)
        tuned, seen = jax.lax.cond(ended, renewed, lambda *same: same, tuned, seen)
        return state._replace(adapt_state=tuned, seen=seen)

    def statistics(self, state: TemperedState) -> dict[str, Array]:
        """Sample statistics of one draw, under ArviZ's names, and those of `TEMPERED_FIELDS`.

        n_steps is the number of gradients of all replicas.
        """
        return statistics_of(state) | {name: attrgetter(field)(state) for field, name in TEMPERED_FIELDS.items()}


def collected(mcmc: object) -> dict[str, np.ndarray] | None:
    """Statistics of the draws of a `numpyro.infer.MCMC`, by the names of `TEMPERED_FIELDS`; None of anything else.

    Raises ValueError if it has not run.
    """
    if not isinstance(mcmc, MCMC):
        return None
    if mcmc.last_state is None:
        raise BayesattnError("draws must be a numpyro.infer.MCMC that has run, got one that has not")
    extra = mcmc.get_extra_fields(group_by_chain=True)
    return {name: np.asarray(extra[field]) for field, name in TEMPERED_FIELDS.items() if field in extra}


def checked_replicas(name: str, value: object) -> int | str:
    """A number of replicas, or "auto"; raises ValueError for anything else."""
    return AUTO if isinstance(value, str) and value == AUTO else positive_integer(name, value, 2)


def _is_one(key: Array) -> bool:
    """Whether an array of keys is one key, of either of JAX's two forms."""
    return key.ndim == (0 if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else 1)


def _require_density(log_density: Callable, reference: Any) -> None:
    """Check a log density at draws of its reference, as `Tempered.of_density` says."""
    if not isinstance(reference, dist.Distribution):
        raise BayesattnError(f"reference must be a NumPyro distribution, got {shown(reference)}")
    if masked(reference):
        raise BayesattnError(
            f"reference must be a normalised distribution with draws, or the evidence is off, got {type(reference).__name__}"
        )
    found = jax.eval_shape(log_density, jax.ShapeDtypeStruct(reference.shape(), float))
    if (shape := getattr(found, "shape", None)) != ():
        got = type(found).__name__ if shape is None else f"one of shape {shape}"
        raise BayesattnError(f"log_density must return a single number, a JAX array of shape (), got {got}")
    try:
        draw = jax.jit(lambda key: jax.lax.map(log_density, reference.sample(key, (DRAWS_LOOKED_AT,))))
        values = np.asarray(draw(first_key(0)))
    except (NotImplementedError, jax.errors.TracerArrayConversionError):  # It has no draws, or JAX traces.
        return
    of_draws = f"of {len(values)} draws of reference"
    if infinite := int(np.isposinf(values).sum()):
        raise BayesattnError(f"log_density must be below infinity, got +inf at {infinite} {of_draws}")
    if undefined := int(np.isnan(values).sum()):
        warnings.warn(f"log_density is NaN at {undefined} {of_draws}: the density counts as 0 there", stacklevel=3)
    if not np.isfinite(values).any():
        warnings.warn(f"log_density is finite at none {of_draws}, which may not cover it", stacklevel=3)
