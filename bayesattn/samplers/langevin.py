"""Langevin samplers: wrappers of BlackJAX's kernels, and our own where BlackJAX has none or is wrong (see `Underdamped`).

BlackJAX takes half a second to import, so it is imported only when one of its algorithms is compiled.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from bayesattn._util.checks import positive, positive_integer, truth
from bayesattn.errors import BayesattnError
from bayesattn.models import Parameterisation
from bayesattn.samplers.langevin_base import (
    MOST_ENERGY_ERROR,
    Half,
    Langevin,
    LangevinOptions,
    LangevinState,
    Move,
    Point,
    Scaled,
    Unadjusted,
    Vector,
)

MOST_TRAJECTORY_STEPS = 1023
"""Number of steps of the longest trajectory, equal to that of a NumPyro tree of depth 10."""
MCLACHLAN_GRADIENTS = 2
"""Gradients per step of BlackJAX's microcanonical integrator, McLachlan's two-stage one."""


def _proposed_by(
    algorithm: ModuleType, state_class: type, key: Array, point: Point, step_size: Array, logdensity: Callable
) -> Move:
    """Move of a BlackJAX algorithm without momentum, with Metropolis-Hastings acceptance."""
    state = state_class(point.position, point.logdensity, point.gradient)
    state, info = algorithm.build_kernel()(key, state, logdensity, step_size)
    return Move(
        Point(state.position, state.logdensity, state.logdensity_grad, point.momentum),
        info.acceptance_rate,
        jnp.zeros(()),
        1,
    )


class Mala(Langevin):
    """Metropolis-adjusted Langevin algorithm (Roberts & Tweedie 1996), BlackJAX's `mala`."""

    target = 0.574

    def step(self, key, point, step_size, logdensity) -> Move:
        """Proposal y' = y + eps grad + sqrt(2 eps) noise, accepted by Metropolis-Hastings."""
        from blackjax.mcmc import mala

        return _proposed_by(mala, mala.MALAState, key, point, step_size, logdensity)


class Barker(Langevin):
    """Barker proposal (Livingstone & Zanella 2022), BlackJAX's `barker`; robust to a step size that is too large."""

    target = 0.4

    def step(self, key, point, step_size, logdensity) -> Move:
        """Proposal in which each coordinate's increment more likely has the sign of its gradient."""
        from blackjax.mcmc import barker

        return _proposed_by(barker, barker.BarkerState, key, point, step_size, logdensity)


class Underdamped(Langevin):
    """Kinetic Langevin dynamics with a Metropolis correction: Langevin trajectories (Riou-Durand & Vogrinc 2022).

    A trajectory of length `length` begins with a new momentum and loses a share 1 - 1/e of it over the distance
    `damping_length`, both in units of the posterior's standard deviations. The trajectory is accepted or rejected as a
    whole. Generalised HMC instead reverses the momentum at each rejected step, so that its chains hardly move at low
    temperature. (BlackJAX has generalised HMC as `ghmc`; without a drift of its slice, its variance of a Gaussian is wrong
    by 31 standard errors.)

    With `float32_gradients`, the gradient of the likelihood is computed in float32, and everything else in float64, also
    the energies that decide on acceptance. Draws have the same distribution, because a leapfrog trajectory may follow any
    function of the position in place of the gradient.
    """

    def __init__(
        self,
        program=None,
        potential_fn=None,
        *,
        length: float = 2.0,
        damping_length: float = 4.0,
        float32_gradients: bool = False,
        **options: Unpack[LangevinOptions],
    ):
        super().__init__(program, potential_fn, **options)
        self.float32_gradients = truth("float32_gradients", float32_gradients)
        self.length, self.damping_length = positive("length", length), positive("damping_length", damping_length)

    def potential_of(self, model_args, model_kwargs) -> Callable:
        """Potential energy, with gradients in float32 if `float32_gradients`; raises ValueError if it cannot have them."""
        if self.float32_gradients:
            ours = [isinstance(argument, Parameterisation) for argument in model_args]
            if self._program is None or ours != [True]:
                raise BayesattnError("float32_gradients must be false for a program of your own, got true")
            model_args = (model_args[0].with_float32_gradients(),)
        return super().potential_of(model_args, model_kwargs)

    def step(self, key, point, step_size, logdensity) -> Move:
        """Trajectory of leapfrog steps with partial refreshment of the momentum between them."""
        momentum_key, walk_key, accept_key = jax.random.split(key, 3)
        steps = jnp.clip(jnp.ceil(self.length / step_size), 1, MOST_TRAJECTORY_STEPS).astype(int)
        persistence = jnp.exp(-step_size / self.damping_length)

        def leap(number: Array, carry: tuple[Point, Array]) -> tuple[Point, Array]:
            at, gained = carry
            half = at.momentum + step_size / 2 * at.gradient
            position = at.position + step_size * half
            if self.float32_gradients:
                value, gradient = at.logdensity, jax.grad(logdensity)(position)
            else:
                value, gradient = jax.value_and_grad(logdensity)(position)
            momentum = half + step_size / 2 * gradient
            gained = gained + (jnp.sum(momentum**2) - jnp.sum(at.momentum**2)) / 2
            noise = jax.random.normal(jax.random.fold_in(walk_key, number), momentum.shape)
            refreshed = persistence * momentum + jnp.sqrt(1 - persistence**2) * noise
            return Point(position, value, gradient, refreshed), gained

        begin = point._replace(momentum=jax.random.normal(momentum_key, point.momentum.shape))
        proposed, gained = jax.lax.fori_loop(0, steps, leap, (begin, jnp.zeros(())))
        if self.float32_gradients:  # The only energy in float64 of a trajectory.
            proposed = proposed._replace(logdensity=logdensity(proposed.position))
        rise = point.logdensity - proposed.logdensity + gained
        rise = jnp.where(jnp.isnan(rise), jnp.inf, rise)
        accept_prob = jnp.exp(-jnp.maximum(rise, 0))
        accepted = jax.random.uniform(accept_key) < accept_prob
        following = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), proposed, point)
        return Move(following, accept_prob, rise, steps)


class AdjustedMclmc(Langevin):
    """Metropolis-adjusted microcanonical Langevin (Robnik, Cohn-Gordon & Seljak 2025), BlackJAX's `adjusted_mclmc_dynamic`.

    A trajectory has on average `length` sqrt(d) / step size steps, drawn uniformly between 1 and twice that number.
    """

    target = 0.9

    def __init__(self, program=None, potential_fn=None, *, length: float = 1.5, **options: Unpack[LangevinOptions]):
        super().__init__(program, potential_fn, **options)
        self.length = positive("length", length)

    def step(self, key, point: Any, step_size, logdensity) -> Move:
        """Trajectory of constant energy, with Metropolis acceptance."""
        from blackjax.mcmc import adjusted_mclmc_dynamic

        length_key, step_key = jax.random.split(key)
        average = self.length * jnp.sqrt(point.position.size) / step_size
        kernel: Any = adjusted_mclmc_dynamic.build_kernel(
            lambda key: jnp.clip(jnp.ceil(2 * average * jax.random.uniform(key)), 1, MOST_TRAJECTORY_STEPS).astype(int)
        )
        state = adjusted_mclmc_dynamic.DynamicHMCState(point.position, point.logdensity, point.gradient, length_key)
        state, info = kernel(step_key, state, logdensity, step_size)
        following = Point(state.position, state.logdensity, state.logdensity_grad, point.momentum)
        return Move(
            following,
            jnp.asarray(info.acceptance_rate),
            jnp.where(info.is_divergent, jnp.inf, 0.0),
            MCLACHLAN_GRADIENTS * info.num_integration_steps,
        )


class Ula(Unadjusted):
    """Unadjusted Langevin algorithm: y' = y + eps grad + sqrt(2 eps) noise (Parisi 1981; Roberts & Tweedie 1996).

    Warm-up makes MALA steps, so that the step size is the one at which MALA has acceptance probability
    `target_accept_prob`. Both chains share the same noise, so their difference, and the estimate of the bias, is precise.
    """

    target = 0.95
    step = Mala.step

    def sample_after_warmup(self, state, model_args, model_kwargs) -> LangevinState:
        """Steps of both chains."""
        key, step_key = jax.random.split(state.rng_key)
        scaled = Scaled(state, self.potential_of(model_args, model_kwargs))
        size = state.adapt_state.step_size
        drift = self.drift(scaled, model_args, model_kwargs)

        def one(chains: tuple[Vector, Vector], key: Array) -> tuple[tuple[Vector, Vector], None]:
            first, second, batch, other_batch = jax.random.split(key, 4)
            at, half = chains
            noise, more = (jax.random.normal(k, at.shape) for k in (first, second))
            at = at + size * drift(at, batch) + jnp.sqrt(size) * (noise + more)
            half = half + size / 2 * drift(half, batch) + jnp.sqrt(size) * noise
            half = half + size / 2 * drift(half, other_batch) + jnp.sqrt(size) * more
            return (at, half), None

        half = ravel_pytree(state.half.z)[0] / scaled.scale
        keys = jax.random.split(step_key, self.steps)
        (at, half), _ = jax.lax.scan(one, (scaled.point.position, half), keys)
        value, gradient = jax.value_and_grad(scaled.logdensity)(at)
        point = Point(at, value, gradient, state.momentum)
        half_chain = Half(scaled.unravel(half * scaled.scale), state.half.momentum)
        return self.following(scaled, point, half_chain, 3 * self.steps + 1, key)

    def drift(self, scaled: Scaled, model_args: tuple, model_kwargs: dict) -> Callable:
        """Gradient of the log density as a function of position and key; a subclass may choose a minibatch by the key."""
        gradient = jax.grad(scaled.logdensity)
        return lambda position, key: gradient(position)


class Sgld(Ula):
    """Stochastic gradient Langevin dynamics (Welling & Teh 2011): `ula` with the likelihood of a random minibatch.

    The gradient of a step is the gradient of the log prior plus P / minibatch times the gradient of the log likelihood of
    `minibatch` examples, drawn without replacement. The noise of this estimate adds a bias of the same order in the step
    size.
    """

    target = 0.98

    def __init__(self, program=None, potential_fn=None, *, minibatch: int, **options: Unpack[LangevinOptions]):
        super().__init__(program, potential_fn, **options)
        self.minibatch = positive_integer("minibatch", minibatch)

    def init(self, rng_key, num_warmup, init_params=None, model_args=(), model_kwargs=None) -> LangevinState:
        """State before the first step; raises ValueError if a minibatch is larger than the data."""
        examples = len(model_args[0].labels)
        if self.minibatch > examples:
            raise BayesattnError(f"minibatch must be at most the number of examples, {examples}, got {self.minibatch}")
        return super().init(rng_key, num_warmup, init_params, model_args, model_kwargs)

    def drift(self, scaled, model_args, model_kwargs) -> Callable:
        """Estimate of the gradient from a minibatch."""
        [posterior] = model_args
        examples = len(posterior.labels)

        def estimate(position: Vector, key: Array) -> Vector:
            chosen = jax.random.choice(key, examples, (self.minibatch,), replace=False)
            potential = self.potential_of((posterior.minibatch(chosen),), model_kwargs)
            return -jax.grad(lambda y: potential(scaled.unravel(y * scaled.scale)))(position)

        return estimate


class EnergyTuning(NamedTuple):
    """Running weight and mean of (energy error)^2 / eps^6, in units of the desired energy variance."""

    weight: Array
    mean: Array


class Mclmc(Unadjusted):
    """Microcanonical Langevin dynamics (Robnik, De Luca, Silverstein & Seljak 2023), BlackJAX's `mclmc`.

    Warm-up adapts the step size so that the variance of the energy per coordinate and step is `desired_energy_var`, by the
    update of BlackJAX's `mclmc_find_L_and_step_size`. The momentum decorrelates over `length` sqrt(d) in scaled coordinates.
    """

    order = 2
    memory = 150
    """Number of recent steps from which the step size is estimated."""
    trust = 1.5
    """Standard deviation of the weight of an energy error, in logarithms of the step size that this error suggests."""

    def __init__(
        self,
        program=None,
        potential_fn=None,
        *,
        length: float = 1.0,
        desired_energy_var: float = 5e-4,
        **options: Unpack[LangevinOptions],
    ):
        options.setdefault("step_size", 0.5)
        super().__init__(program, potential_fn, **options)
        self.length = positive("length", length)
        self.desired_energy_var = positive("desired_energy_var", desired_energy_var)

    def start_tuning(self) -> EnergyTuning:
        """Weight and mean before the first step, both 0."""
        return EnergyTuning(jnp.zeros(()), jnp.zeros(()))

    def start_momentum(self, key, flat) -> Vector:
        """Random unit vector."""
        from blackjax.util import generate_unit_vector

        return generate_unit_vector(key, flat)

    def step(self, key, point: Any, step_size, logdensity) -> Move:
        """One step of the isokinetic integrator, with partial refreshment of the direction."""
        from blackjax.mcmc import integrators, mclmc

        kernel: Any = mclmc.build_kernel()
        state = integrators.IntegratorState(point.position, point.momentum, point.logdensity, point.gradient)
        length = self.length * jnp.sqrt(point.position.size)
        (position, momentum, value, gradient), info = kernel(key, state, logdensity, 1.0, length, step_size)
        # BlackJAX takes back a step to where the density is not finite, and calls its energy error 0.
        error = jnp.where(info.nonans, info.energy_change, jnp.inf)
        return Move(Point(position, value, gradient, momentum), jnp.ones(()), error, MCLACHLAN_GRADIENTS)

    def adapted(self, state: LangevinState, moves: Move) -> LangevinState:
        """State with the step size adapted to the energy errors of the transition's steps, whose variance grows as eps^6."""
        size, dimension = state.adapt_state.step_size, state.momentum.size
        decay = (self.memory - 1) / (self.memory + 1)

        def updated(tuning: EnergyTuning, error: Array) -> tuple[EnergyTuning, None]:
            is_finite = jnp.isfinite(error)
            error = jnp.where(is_finite, error, 0.0)
            ratio = error**2 / (dimension * self.desired_energy_var) + 1e-8
            weight = is_finite * jnp.exp(-(jnp.log(ratio) ** 2) / (2 * (6 * self.trust) ** 2))
            return EnergyTuning(decay * tuning.weight + weight, decay * tuning.mean + weight * ratio / size**6), None

        tuning, _ = jax.lax.scan(updated, state.tuning, moves.energy_error)
        state = super().adapted(state, moves)
        if self.adapt_step_size:
            step_size = (tuning.mean / tuning.weight) ** (-1 / 6)
            state = state._replace(adapt_state=state.adapt_state._replace(step_size=step_size))
        return state._replace(tuning=tuning)

    def sample_after_warmup(self, state, model_args, model_kwargs) -> LangevinState:
        """Steps of both chains."""
        key, step_key, half_key = jax.random.split(state.rng_key, 3)
        scaled = Scaled(state, self.potential_of(model_args, model_kwargs))
        size = state.adapt_state.step_size

        def walk(point: Point, key: Array, size: Array, count: int) -> tuple[Point, Array]:
            def one(point: Point, key: Array) -> tuple[Point, Array]:
                move = self.step(key, point, size, scaled.logdensity)
                return move.point, move.energy_error

            return jax.lax.scan(one, point, jax.random.split(key, count))

        half_position = ravel_pytree(state.half.z)[0] / scaled.scale
        half = Point(half_position, *jax.value_and_grad(scaled.logdensity)(half_position), state.half.momentum)
        point, errors = walk(scaled.point, step_key, size, self.steps)
        half, _ = walk(half, half_key, size / 2, 2 * self.steps)
        half_chain = Half(scaled.unravel(half.position * scaled.scale), half.momentum)
        gradients = 3 * MCLACHLAN_GRADIENTS * self.steps + 1
        return self.following(scaled, point, half_chain, gradients, key)._replace(
            energy_error=jnp.max(jnp.abs(errors)), diverging=jnp.any(jnp.abs(errors) > MOST_ENERGY_ERROR)
        )


KERNELS = {
    "mala": Mala,
    "barker": Barker,
    "underdamped": Underdamped,
    "adjusted_mclmc": AdjustedMclmc,
    "mclmc": Mclmc,
    "ula": Ula,
    "sgld": Sgld,
}
