"""Parallel tempering: replicas of a chain at powers of the likelihood, from 1 (the posterior) to 0 (the prior).

Posteriors of narrow networks with skips and several outputs have several modes. A chain at power 1 does not cross between
them in thousands of gradients, in any coordinates. Replicas at lower powers do, and neighbouring replicas exchange states.
"""

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Key, PyTree
from numpyro.infer import init_to_sample
from numpyro.infer.mcmc import MCMCKernel
from numpyro.infer.util import initialize_model
from numpyro.primitives import Message, Messenger

from bayesattn._util.checks import positive, positive_integer
from bayesattn.errors import BayesattnError
from bayesattn.samplers.adapter import MOST_ENERGY_ERROR, statistics_of

REPLICAS = 12
MOST_LEAPFROG_STEPS = 64
"""Leapfrog steps of the longest trajectory: exchanges move a replica far, long trajectories do not."""
LARGEST_DENSE_METRIC = 100
"""Largest number of coordinates for which each replica has a dense metric; in more, it has a scale per coordinate."""
WINDOWS = (1 / 16, 1 / 16, 1 / 8, 1 / 4, 3 / 8)
"""Lengths of the warm-up windows as shares of warm-up.

Powers and metrics are updated at the end of each window; in the rest of warm-up only step sizes are adapted.
"""
SHORTEST_WINDOW = 10
LEAST_POWER = 1e-3
"""Second lowest power of the first ladder."""
TRANSITIONS_PER_DRAW = 3
"""Assumed number of transitions per independent draw, for the shrinkage of a metric's correlations."""

Replicas = Float[Array, "replica coordinate"]
PerReplica = Float[Array, " replica"]


class Seen(NamedTuple):
    """Statistics of the transitions in a warm-up window: mean position, sum of products, sum of exchange probabilities."""

    count: Int[Array, ""]
    mean: Replicas
    products: Array
    exchanged: Float[Array, " neighbours"]


class Adapted(NamedTuple):
    """Powers of the likelihood, and step sizes and metrics of their replicas: S^{1/2}, or a scale of each coordinate.

    `step_size` is the step size of the replica at power 1.
    """

    powers: PerReplica
    step_sizes: PerReplica
    scales: Array

    @property
    def step_size(self) -> Float[Array, ""]:
        """Step size of the replica at power 1."""
        return self.step_sizes[0]


class TemperedState(NamedTuple):
    """State of a chain; fields named as in NumPyro's HMCState have the same meaning, for the replica at power 1.

    `num_steps` is the number of gradients of all replicas. `visited` says of the state at each power whether it has been
    at power 1 (1), and at power 0 since then (2); `round_trips` counts the returns of such states to power 1 since warm-up.
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
    visited: Int[Array, " replica"]
    round_trips: Int[Array, ""]
    adapt_state: Adapted
    seen: Seen
    rng_key: Array


class _Power(Messenger):
    """Handler that raises the likelihood, all observed sites of a NumPyro program, to a power."""

    def __init__(self, power: float | Array):
        self.power = power
        super().__init__()

    def process_message(self, msg: Message) -> None:
        if msg["type"] == "sample" and msg["is_observed"]:
            msg["scale"] = self.power if msg.get("scale") is None else self.power * msg["scale"]


class Tempered(MCMCKernel):
    """Parallel tempering (Geyer 1991) of Hamiltonian trajectories, with non-reversible exchanges (Syed et al. 2022).

    Each transition moves every replica by a trajectory of random length, then proposes to exchange the even or the odd
    pairs of neighbours, alternately. Warm-up adapts the step size and the metric of each replica, and the powers of the
    likelihood so that all pairs of neighbours are exchanged equally often.

    Args:
        program: NumPyro program; its observed sites and factors are the likelihood.
        replicas: number of powers of the likelihood, 0 and 1 among them.
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
        replicas: int = REPLICAS,
        length: float = 1.5,
        step_size: float = 0.3,
        adapt_step_size: bool = True,
        adapt_mass_matrix: bool = True,
        target_accept_prob: float = 0.8,
    ):
        self._program = program
        self.replicas = positive_integer("replicas", replicas, 2)
        self.length, self.step_size = positive("length", length), positive("step_size", step_size)
        self.adapt_step_size, self.adapt_mass_matrix = adapt_step_size, adapt_mass_matrix
        self.target_accept_prob = positive("target_accept_prob", target_accept_prob)
        if self.target_accept_prob >= 1:
            raise BayesattnError(f"target_accept_prob must be below 1, got {target_accept_prob}")

    @property
    def sample_field(self) -> str:
        """Field of the state that contains a draw."""
        return "z"

    def postprocess_fn(self, args: tuple, kwargs: dict) -> Callable:
        """Map from unconstrained sites to the sites of the program."""
        return partial(self._postprocess, 1.0)(*args, **kwargs)

    def init(self, rng_key, num_warmup, init_params=None, model_args=(), model_kwargs=None) -> TemperedState:
        """State before the first step, with all replicas at one point; warm-up takes `num_warmup` transitions."""
        key, program_key = jax.random.split(rng_key)
        kwargs = model_kwargs or {}

        def program(power: float | Array, *args: object, **kwargs: object) -> None:
            with _Power(power):
                return self._program(*args, **kwargs)

        info = initialize_model(
            program_key,
            program,
            dynamic_args=True,
            init_strategy=init_to_sample,
            model_args=(1.0, *model_args),
            model_kwargs=kwargs,
        )
        self._potential_of, self._postprocess = info.potential_fn, info.postprocess_fn
        z = info.param_info.z if init_params is None else init_params
        self.warmup = num_warmup
        lengths = [max(SHORTEST_WINDOW, int(share * num_warmup)) for share in WINDOWS]
        self._ends = jnp.array([end for end in accumulate(lengths) if end < num_warmup] or [-1])
        flat, count = ravel_pytree(z)[0], self.replicas
        shape = (count, flat.size, flat.size) if flat.size <= LARGEST_DENSE_METRIC else (count, flat.size)
        powers = jnp.append(jnp.geomspace(1.0, LEAST_POWER, count - 1), 0.0)
        scales = jnp.broadcast_to(jnp.eye(flat.size) if len(shape) == 3 else jnp.ones(flat.size), shape)
        value, gradient = jax.value_and_grad(partial(self._potential_of, 1.0)(*model_args, **kwargs))(z)
        return TemperedState(
            jnp.array(0),
            z,
            value,
            gradient,
            jnp.array(0),
            jnp.zeros(()),
            jnp.zeros(()),
            jnp.array(False),
            jnp.broadcast_to(flat, (count, flat.size)),
            jnp.zeros(count, int),
            jnp.array(0),
            Adapted(powers, jnp.full(count, self.step_size), scales),
            _empty_statistics(shape),
            key,
        )

    def sample(self, state: TemperedState, model_args: tuple, model_kwargs: dict | None) -> TemperedState:
        """State after one more transition: trajectories of all replicas, then exchanges."""
        key, move_key, exchange_key = jax.random.split(state.rng_key, 3)
        unravel, kwargs = ravel_pytree(state.z)[1], model_kwargs or {}
        powers = state.adapt_state.powers

        def potential(position: Array, power: Array) -> Array:
            value = self._potential_of(power, *model_args, **kwargs)(unravel(position))
            return jnp.where(jnp.isnan(value), jnp.inf, value)

        move = partial(_trajectory, potential, self.length)
        keys = jax.random.split(move_key, self.replicas)
        # Sequentially, because trajectories differ in their number of steps.
        moves = jax.lax.map(move, (keys, state.replicas, *state.adapt_state))
        order, probability = _exchanges(exchange_key, powers, moves.log_likelihood, state.i)
        replicas = moves.position[order]
        value, gradient = jax.value_and_grad(potential)(replicas[0], powers[0])
        warming = state.i < self.warmup
        count = jnp.where(warming, state.i, state.i - self.warmup) + 1
        accept_prob = moves.accept_prob[0]
        visited = state.visited[order]
        returned = (visited[0] == 2) & ~warming
        visited = visited.at[-1].set(2 * (visited[-1] > 0)).at[0].set(1)
        following = state._replace(
            i=state.i + 1,
            z=unravel(replicas[0]),
            potential_energy=value,
            z_grad=unravel(gradient),
            num_steps=jnp.sum(moves.gradients) + 1,
            accept_prob=accept_prob,
            mean_accept_prob=state.mean_accept_prob + (accept_prob - state.mean_accept_prob) / count,
            diverging=moves.energy_error[0] > MOST_ENERGY_ERROR,
            replicas=replicas,
            visited=visited,
            round_trips=state.round_trips + returned,
            rng_key=key,
        )
        adapted = partial(self._adapted, moves.accept_prob, probability)
        return jax.lax.cond(warming, adapted, lambda s: s, following)

    def _adapted(self, accepted: PerReplica, exchanged: Array, state: TemperedState) -> TemperedState:
        """State with step sizes adapted and, at the end of a window, powers and metrics as well."""
        tuned, seen = state.adapt_state, _added_to_statistics(state.seen, state.replicas, exchanged)
        if self.adapt_step_size:
            # Robbins and Monro (1951), restarted in each window; the first changes are small enough to be corrected later.
            change = (accepted - self.target_accept_prob) * (seen.count + 4.0) ** -0.6
            tuned = tuned._replace(step_sizes=tuned.step_sizes * jnp.exp(change))

        def renewed(tuned: Adapted, seen: Seen) -> tuple[Adapted, Seen]:
            powers = _even_powers(tuned.powers, 1 - seen.exchanged / seen.count)
            scales = _metrics(seen) if self.adapt_mass_matrix else tuned.scales
            return Adapted(powers, tuned.step_sizes, scales), _empty_statistics(seen.products.shape)

        ended = jnp.any(state.i == self._ends)
        tuned, seen = jax.lax.cond(ended, renewed, lambda *same: same, tuned, seen)
        return state._replace(adapt_state=tuned, seen=seen)

    def statistics(self, state: TemperedState) -> dict[str, Array]:
        """Sample statistics of one draw, under ArviZ's names; n_steps is the number of gradients of all replicas.

        `round_trips` counts, from the end of warm-up to this draw, the states that went from power 1 to power 0 and back.
        """
        return statistics_of(state) | {"round_trips": state.round_trips}


class _Moved(NamedTuple):
    """Result of a trajectory: next position, its log likelihood, acceptance probability, energy error and cost."""

    position: Float[Array, " coordinate"]
    log_likelihood: Float[Array, ""]
    accept_prob: Float[Array, ""]
    energy_error: Float[Array, ""]
    gradients: Int[Array, ""]


_Leap = tuple[Array, Array, tuple[Array, tuple[Array, Array]]]
"""Position, momentum, and the potential with its slopes in position and power."""


def _trajectory(potential: Callable, length: float, arguments: tuple[Array, ...]) -> _Moved:
    """Hamiltonian trajectory of a replica, from (key, position, power, step size, scale), with Metropolis acceptance."""
    key, start, power, step, scale = arguments
    momentum_key, length_key, accept_key = jax.random.split(key, 3)
    times, transposed = (jnp.matmul, scale.T) if scale.ndim == 2 else (jnp.multiply, scale)
    # The potential is linear in the power: its slope is minus the log likelihood.
    sloped = jax.value_and_grad(potential, argnums=(0, 1))

    def leap(_: Array, at: _Leap) -> _Leap:
        position, momentum, (_, (gradient, _)) = at
        momentum = momentum - step / 2 * times(transposed, gradient)
        position = position + step * times(scale, momentum)
        value_and_slopes = sloped(position, power)
        return position, momentum - step / 2 * times(transposed, value_and_slopes[1][0]), value_and_slopes

    leaps = jnp.ceil(2 * length / step * jax.random.uniform(length_key))
    leaps = jnp.clip(leaps, 1, MOST_LEAPFROG_STEPS).astype(int)
    momentum = jax.random.normal(momentum_key, start.shape)
    begin = sloped(start, power)
    position, turned, end = jax.lax.fori_loop(0, leaps, leap, (start, momentum, begin))
    error = end[0] - begin[0] + (turned @ turned - momentum @ momentum) / 2
    error = jnp.where(jnp.isfinite(error), error, jnp.inf)
    accept_prob = jnp.exp(-jnp.maximum(error, 0))
    accepted = jax.random.uniform(accept_key) < accept_prob
    position, slope = (jnp.where(accepted, *pair) for pair in ((position, start), (end[1][1], begin[1][1])))
    return _Moved(position, -slope, accept_prob, error, leaps + 1)


def _exchanges(
    key: Key[Array, ""], powers: PerReplica, log_likelihoods: PerReplica, transition: Int[Array, ""]
) -> tuple[Int[Array, " replica"], Float[Array, " neighbours"]]:
    """Replica that each power has next, and acceptance probability of the exchange of each pair of neighbours.

    Exchanges of pairs with an even first index are proposed in even transitions, those with an odd one in odd transitions.
    """
    probability = jnp.exp(jnp.minimum((powers[:-1] - powers[1:]) * jnp.diff(log_likelihoods), 0.0))
    proposed: Bool[Array, " neighbours"] = jnp.arange(len(probability)) % 2 == transition % 2
    moved = (proposed & (jax.random.uniform(key, probability.shape) < probability)).astype(int)
    return jnp.arange(len(powers)).at[:-1].add(moved).at[1:].add(-moved), probability


def _even_powers(powers: PerReplica, rejected: Float[Array, " neighbours"]) -> PerReplica:
    """Powers between which exchanges are rejected equally often (Syed et al. 2022, section 5.1).

    The cumulative rejection from power 1 down is interpolated linearly in the fourth root of the power, which resolves
    powers near 0, the prior.
    """
    barrier = jnp.append(0.0, jnp.cumsum(rejected + 1e-3))
    roots = jnp.interp(jnp.linspace(0.0, 1.0, len(powers)) * barrier[-1], barrier, powers**0.25)
    return (roots**4).at[0].set(1.0).at[-1].set(0.0)


def _empty_statistics(shape: tuple[int, ...]) -> Seen:
    return Seen(jnp.array(0), jnp.zeros(shape[:2]), jnp.zeros(shape), jnp.zeros(shape[0] - 1))


def _added_to_statistics(seen: Seen, replicas: Replicas, exchanged: Array) -> Seen:
    """Statistics of a window with one more transition, by Welford's recursion."""
    count = seen.count + 1
    before = replicas - seen.mean
    mean = seen.mean + before / count
    after = replicas - mean
    dense = seen.products.ndim == 3
    products = before[:, :, None] * after[:, None, :] if dense else before * after
    return Seen(count, mean, seen.products + products, seen.exchanged + exchanged)


def _metrics(seen: Seen) -> Array:
    """S^{1/2} of each replica, with S the covariance in a window, shrunk towards its diagonal; or standard deviations."""
    covariance = seen.products / jnp.maximum(seen.count - 1, 1)
    if covariance.ndim == 2:
        return jnp.sqrt(jnp.maximum(covariance, jnp.finfo(float).tiny))
    size = covariance.shape[-1]
    shrinkage = size / (size + seen.count / TRANSITIONS_PER_DRAW)
    diagonal = covariance * jnp.eye(size)
    shrunk = covariance + shrinkage * (diagonal - covariance)
    # The jitter keeps the scale of a replica that has not moved above 0.
    return jax.lax.map(jnp.linalg.cholesky, shrunk + 1e-12 * jnp.eye(size))
