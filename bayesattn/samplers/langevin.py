"""Langevin samplers as NumPyro kernels: BlackJAX's where it has them right, others with their source.

All of them move in coordinates y = x / s, where s is the standard deviation of each coordinate by NumPyro's warm-up
windows, so that one step size fits all. Step size and s are found in warm-up and live in the state with the random key,
so a chain continued from a state is bit-identical to one that never stopped. One transition of a kernel makes `steps`
steps of its algorithm, so that a draw costs about as much as one of NUTS.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.mcmc import adjusted_mclmc_dynamic, barker, integrators, mala, mclmc
from blackjax.util import generate_unit_vector
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key
from numpyro.infer import init_to_sample
from numpyro.infer.hmc_util import IntegratorState, warmup_adapter
from numpyro.infer.mcmc import MCMCKernel
from numpyro.infer.util import initialize_model

from bayesattn._checks import positive, positive_integer

Vector = Float[Array, " coordinate"]
MOST_ENERGY_ERROR = 1000.0
"""Error of the energy at which NumPyro calls a trajectory divergent."""
MOST_STEPS = 1023
"""Longest trajectory, as long as a NumPyro tree of depth 10."""


class Point(NamedTuple):
    """Where a chain is: scaled coordinates y, log density of x, its gradient in y, momentum in y."""

    position: Vector
    logdensity: Float[Array, ""]
    gradient: Vector
    momentum: Vector


class Move(NamedTuple):
    """Outcome of one step: the next point, its acceptance probability, error of the energy, gradients evaluated."""

    point: Point
    accept_prob: Float[Array, ""]
    energy_error: Float[Array, ""]
    gradients: Any


class LangevinState(NamedTuple):
    """State of a chain; fields that NumPyro's HMCState has mean the same.

    `tuning` is what a kernel tunes besides step size and scale, `half` the sites and momentum of a biased kernel's second
    chain, which takes two steps of half the size for each of the first.
    """

    i: Array
    z: Any
    potential_energy: Array
    z_grad: Any
    momentum: Vector
    num_steps: Array
    accept_prob: Array
    mean_accept_prob: Array
    energy_error: Array
    diverging: Array
    adapt_state: Any
    tuning: Any
    half: Any
    rng_key: Array


class Langevin(MCMCKernel):
    """What the kernels share.

    Args:
        program: NumPyro program.
        potential_fn: potential energy of unconstrained sites, instead of a program.
        step_size: where the search for the step size begins; fixed if `adapt_step_size` is false.
        steps: steps of the algorithm in each transition.
        adapt_step_size: whether warm-up looks for the step size that is accepted as often as `target_accept_prob`.
        adapt_mass_matrix: whether warm-up estimates the scale of each coordinate.
        target_accept_prob: mean acceptance probability to aim at.

    Raises:
        ValueError: a step size that is not above 0, fewer than one step, a probability outside (0, 1).
    """

    target: ClassVar[float] = 0.8

    def __init__(
        self,
        program: Callable | None = None,
        potential_fn: Callable | None = None,
        *,
        step_size: float = 1.0,
        steps: int = 1,
        adapt_step_size: bool = True,
        adapt_mass_matrix: bool = True,
        target_accept_prob: float | None = None,
    ):
        self._program, self._potential_fn = program, potential_fn
        self.step_size, self.steps = positive("step_size", step_size), positive_integer("steps", steps)
        self.adapt_step_size, self.adapt_mass_matrix = adapt_step_size, adapt_mass_matrix
        self.target_accept_prob = positive("target_accept_prob", target_accept_prob or self.target)
        if self.target_accept_prob >= 1:
            raise ValueError(f"target_accept_prob must be below 1, got {target_accept_prob}")
        self._potential_of: Callable = lambda *args, **kwargs: potential_fn
        self._postprocess: Callable | None = None

    @abstractmethod
    def step(self, key: Key[Array, ""], point: Point, step_size: Array, logdensity: Callable) -> Move:
        """One step of the algorithm in scaled coordinates."""

    def start_tuning(self) -> Any:
        """What a kernel tunes besides step size and scale, before warm-up."""
        return ()

    @property
    def sample_field(self) -> str:
        """Field of the state that holds a draw."""
        return "z"

    @property
    def default_fields(self) -> tuple[str, ...]:
        """Fields that `numpyro.infer.MCMC` collects."""
        return ("z", "diverging")

    @property
    def model(self) -> Callable | None:
        """The NumPyro program."""
        return self._program

    def get_diagnostics_str(self, state: LangevinState) -> str:
        """For NumPyro's progress bar."""
        size = state.adapt_state.step_size
        return f"{state.num_steps} gradients, step size {size:.2e}. acc. prob={state.mean_accept_prob:.2f}"

    def postprocess_fn(self, args: Any, kwargs: Any) -> Callable:
        """From unconstrained sites to those of the program."""
        return (lambda z: z) if self._postprocess is None else self._postprocess(*args, **kwargs)

    def init(self, rng_key, num_warmup, init_params=None, model_args=(), model_kwargs=None) -> LangevinState:
        """State before the first step; warm-up takes `num_warmup` transitions."""
        key, program_key, adapt_key, momentum_key = jax.random.split(rng_key, 4)
        kwargs = model_kwargs or {}
        if self._program is not None:
            found = initialize_model(
                program_key,
                self._program,
                dynamic_args=True,
                init_strategy=init_to_sample,
                model_args=model_args,
                model_kwargs=kwargs,
            )
            self._potential_of, self._postprocess = found.potential_fn, found.postprocess_fn
            init_params = found.param_info.z if init_params is None else init_params
        self.warmup = num_warmup
        flat = ravel_pytree(init_params)[0]
        adapt_init, self._adapt = warmup_adapter(
            num_warmup,
            adapt_step_size=self.adapt_step_size,
            adapt_mass_matrix=self.adapt_mass_matrix,
            target_accept_prob=self.target_accept_prob,
        )
        potential, gradient = jax.value_and_grad(self._potential_of(*model_args, **kwargs))(init_params)
        return LangevinState(
            jnp.array(0),
            init_params,
            potential,
            gradient,
            self.start_momentum(momentum_key, flat),
            jnp.array(0),
            jnp.zeros(()),
            jnp.zeros(()),
            jnp.zeros(()),
            jnp.array(False),
            adapt_init(IntegratorState(flat, flat, potential, flat), adapt_key, self.step_size, None, flat.size),
            self.start_tuning(),
            self.start_half(init_params, flat),
            key,
        )

    def start_half(self, z: Any, flat: Vector) -> Any:
        """The second chain of a biased kernel."""
        return ()

    def start_momentum(self, key: Key[Array, ""], flat: Vector) -> Vector:
        """Momentum before the first step."""
        return jax.random.normal(key, flat.shape)

    def refresh(self, state: LangevinState, model_args: Any, model_kwargs: Any) -> LangevinState:
        """The state with energy and gradient of other data."""
        potential = self._potential_of(*model_args, **(model_kwargs or {}))
        value, gradient = jax.value_and_grad(potential)(state.z)
        return state._replace(potential_energy=value, z_grad=gradient)

    def sample(self, state: LangevinState, model_args: Any, model_kwargs: Any) -> LangevinState:
        """The state one transition on."""
        key, step_key = jax.random.split(state.rng_key)
        scaled = _Scaled(state, self._potential_of(*model_args, **(model_kwargs or {})))
        size, warming = state.adapt_state.step_size, state.i < self.warmup

        def one(point: Point, key: Array) -> tuple[Point, Move]:
            move = self.step(key, point, size, scaled.logdensity)
            move = move._replace(accept_prob=jnp.nan_to_num(move.accept_prob))
            return move.point, move

        point, moves = jax.lax.scan(one, scaled.point, jax.random.split(step_key, self.steps))
        accept_prob = jnp.mean(moves.accept_prob)
        following = scaled.state_at(point)._replace(
            i=state.i + 1,
            num_steps=jnp.sum(moves.gradients),
            accept_prob=accept_prob,
            energy_error=jnp.max(jnp.abs(moves.energy_error)),
            diverging=jnp.any(jnp.abs(moves.energy_error) > MOST_ENERGY_ERROR),
            rng_key=key,
        )
        count = jnp.where(warming, state.i, state.i - self.warmup) + 1
        mean = state.mean_accept_prob + (accept_prob - state.mean_accept_prob) / count
        return jax.lax.cond(
            warming,
            lambda s: self.adapted(s, moves),
            lambda s: s,
            following._replace(mean_accept_prob=mean),
        )

    def adapted(self, state: LangevinState, moves: Move) -> LangevinState:
        """The state with step size and scale as warm-up finds them, after transition i."""
        at = IntegratorState(ravel_pytree(state.z)[0], 0.0, 0.0, 0.0)
        return state._replace(adapt_state=self._adapt(state.i - 1, state.accept_prob, at, state.adapt_state))

    def statistics(self, state: LangevinState) -> dict[str, Array]:
        """Sample statistics of one draw, under ArviZ's names; n_steps counts gradients."""
        return {
            "lp": -state.potential_energy,
            "acceptance_rate": state.accept_prob,
            "n_steps": state.num_steps,
            "step_size": state.adapt_state.step_size,
            "diverging": state.diverging,
        }


class _Scaled:
    """A state in scaled coordinates."""

    def __init__(self, state: LangevinState, potential: Callable):
        self.state = state
        flat, self.unravel = ravel_pytree(state.z)
        self.scale = jnp.sqrt(state.adapt_state.inverse_mass_matrix)

        def logdensity(position: Vector) -> Array:
            value = -potential(self.unravel(position * self.scale))
            return jnp.where(jnp.isnan(value), -jnp.inf, value)

        self.logdensity = logdensity
        gradient = -ravel_pytree(state.z_grad)[0] * self.scale
        self.point = Point(flat / self.scale, -state.potential_energy, gradient, state.momentum)

    def state_at(self, point: Point) -> LangevinState:
        """The state with the chain at another point."""
        return self.state._replace(
            z=self.unravel(point.position * self.scale),
            potential_energy=-point.logdensity,
            z_grad=self.unravel(-point.gradient / self.scale),
            momentum=point.momentum,
        )


class Mala(Langevin):
    """Metropolis-adjusted Langevin algorithm (Roberts & Tweedie 1996), BlackJAX's `mala`."""

    target = 0.574

    def step(self, key, point, step_size, logdensity) -> Move:
        """y' = y + eps grad + sqrt(2 eps) noise, accepted by Metropolis and Hastings."""
        state = mala.MALAState(point.position, point.logdensity, point.gradient)  # pyright: ignore[reportArgumentType]
        state, info = mala.build_kernel()(key, state, logdensity, step_size)  # pyright: ignore[reportArgumentType]
        return Move(Point(*state, point.momentum), info.acceptance_rate, jnp.zeros(()), 1)  # pyright: ignore


class Barker(Langevin):
    """Barker proposal (Livingstone & Zanella 2022), BlackJAX's `barker`; forgiving of a step size that is too large."""

    target = 0.4

    def step(self, key, point, step_size, logdensity) -> Move:
        """Each coordinate's increment has the sign that its gradient makes likely."""
        state = barker.BarkerState(point.position, point.logdensity, point.gradient)  # pyright: ignore
        state, info = barker.build_kernel()(key, state, logdensity, step_size)  # pyright: ignore[reportArgumentType]
        return Move(Point(*state, point.momentum), info.acceptance_rate, jnp.zeros(()), 1)  # pyright: ignore


class Underdamped(Langevin):
    """Kinetic Langevin dynamics with a Metropolis correction: generalised HMC with one leapfrog step (Horowitz 1991).

    `damping_length` is the distance over which momentum is forgotten, in units of the posterior's standard deviations.
    BlackJAX's `ghmc` takes the uniform number of the Metropolis test from a slice variable that persists; without drift of
    the slice its variances are wrong (on a Gaussian by 30 standard errors), so the step is written out here.
    """

    target = 0.95

    def __init__(self, program=None, potential_fn=None, *, damping_length: float = 1.0, **options: Any):
        super().__init__(program, potential_fn, **options)
        self.damping_length = positive("damping_length", damping_length)

    def step(self, key, point, step_size, logdensity) -> Move:
        """Momentum is refreshed in part, then one leapfrog step is accepted, or the momentum turned round."""
        noise_key, accept_key = jax.random.split(key)
        persistence = jnp.exp(-step_size / self.damping_length)
        noise = jax.random.normal(noise_key, point.momentum.shape)
        momentum = persistence * point.momentum + jnp.sqrt(1 - persistence**2) * noise
        half = momentum + step_size / 2 * point.gradient
        position = point.position + step_size * half
        value, gradient = jax.value_and_grad(logdensity)(position)
        proposed = Point(position, value, gradient, half + step_size / 2 * gradient)
        rise: Array = point.logdensity - value + (jnp.sum(proposed.momentum**2) - jnp.sum(momentum**2)) / 2
        rise = jnp.where(jnp.isnan(rise), jnp.inf, rise)
        accept_prob = jnp.exp(-jnp.maximum(rise, 0))
        accepted = jax.random.uniform(accept_key) < accept_prob
        stayed = point._replace(momentum=-momentum)
        following = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), proposed, stayed)
        return Move(following, jnp.asarray(accept_prob), rise, 1)


class AdjustedMclmc(Langevin):
    """Metropolis-adjusted microcanonical Langevin (Robnik, Cohn-Gordon & Seljak 2025), BlackJAX's `adjusted_mclmc_dynamic`.

    A trajectory has on average `length` sqrt(d) / step size steps, drawn uniformly between 1 and twice that.
    """

    target = 0.9

    def __init__(self, program=None, potential_fn=None, *, length: float = 1.5, **options: Any):
        super().__init__(program, potential_fn, **options)
        self.length = positive("length", length)

    def step(self, key, point, step_size, logdensity) -> Move:
        """A trajectory of constant energy, accepted by Metropolis."""
        length_key, step_key = jax.random.split(key)
        average = self.length * jnp.sqrt(point.position.size) / step_size
        kernel = adjusted_mclmc_dynamic.build_kernel(
            lambda key: jnp.clip(jnp.ceil(2 * average * jax.random.uniform(key)), 1, MOST_STEPS).astype(int)
        )
        state = adjusted_mclmc_dynamic.DynamicHMCState(point.position, point.logdensity, point.gradient, length_key)  # pyright: ignore
        state, info = kernel(step_key, state, logdensity, step_size)  # pyright: ignore[reportArgumentType]
        following = Point(state.position, state.logdensity, state.logdensity_grad, point.momentum)  # pyright: ignore
        return Move(
            following,
            jnp.asarray(info.acceptance_rate),
            jnp.where(info.is_divergent, jnp.inf, 0.0),
            info.num_integration_steps,
        )


class Half(NamedTuple):
    """The second chain of a biased kernel."""

    z: Any
    momentum: Vector


class Unadjusted(Langevin):
    """A kernel without a Metropolis correction, whose draws are biased by its step size.

    Beside its chain runs a second one at half the step size. If the bias of a mean is of order eps^p, it is
    2^p / (2^p - 1) times the mean difference between the two chains (Richardson), to the leading order.
    """

    order: ClassVar[int] = 1
    """p of the step-size bias."""

    def start_half(self, z: Any, flat: Vector) -> Half:
        """Where the chain itself begins."""
        return Half(z, jnp.zeros_like(flat))

    def adapted(self, state: LangevinState, moves: Move) -> LangevinState:
        """Until warm-up ends, the second chain follows the first."""
        return super().adapted(state, moves)._replace(half=Half(state.z, state.momentum))

    def sample(self, state: LangevinState, model_args: Any, model_kwargs: Any) -> LangevinState:
        """The state one transition on: of the kernel's warm-up, or of both chains."""
        return jax.lax.cond(
            state.i < self.warmup,
            lambda s: super(Unadjusted, self).sample(s, model_args, model_kwargs),
            lambda s: self.free(s, model_args, model_kwargs or {}),
            state,
        )

    @abstractmethod
    def free(self, state: LangevinState, model_args: Any, model_kwargs: Any) -> LangevinState:
        """The state one transition on, after warm-up."""

    def bias(self, values: Any, half: Any) -> Any:
        """Estimate of the bias of a draw's values, from theirs and from those of the second chain."""
        factor = 2**self.order / (2**self.order - 1)
        return jax.tree.map(lambda at, at_half: factor * (at - at_half), values, half)


class Ula(Unadjusted):
    """Unadjusted Langevin algorithm: y' = y + eps grad + sqrt(2 eps) noise (Parisi 1981; Roberts & Tweedie 1996).

    Warm-up makes steps of MALA, so that the step size is one that MALA would accept `target_accept_prob` of the time. Both
    chains feel the same noise, which makes their difference, and so the estimate of the bias, precise.
    """

    target = 0.95

    step = Mala.step

    def free(self, state, model_args, model_kwargs) -> LangevinState:
        """Steps of both chains."""
        key, step_key = jax.random.split(state.rng_key)
        scaled = _Scaled(state, self._potential_of(*model_args, **model_kwargs))
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
        return scaled.state_at(Point(at, value, gradient, state.momentum))._replace(
            i=state.i + 1,
            num_steps=jnp.array(3 * self.steps + 1),
            accept_prob=jnp.ones(()),
            mean_accept_prob=jnp.ones(()),
            diverging=jnp.array(False),
            half=Half(scaled.unravel(half * scaled.scale), state.half.momentum),
            rng_key=key,
        )

    def drift(self, scaled: _Scaled, model_args: Any, model_kwargs: Any) -> Callable:
        """Gradient of the log density at a position; the key would choose a minibatch."""
        gradient = jax.grad(scaled.logdensity)
        return lambda position, key: gradient(position)


class Sgld(Ula):
    """Stochastic gradient Langevin dynamics (Welling & Teh 2011): `ula` with the likelihood of a random minibatch.

    Each step's gradient is that of the prior plus P / minibatch times that of the likelihood of `minibatch` examples, drawn
    without replacement. The noise of that estimate adds to the bias, to the same order of the step size.
    """

    target = 0.98

    def __init__(self, program=None, potential_fn=None, *, minibatch: int, subset: Callable, **options: Any):
        super().__init__(program, potential_fn, **options)
        self.minibatch, self.subset = positive_integer("minibatch", minibatch), subset

    def init(self, rng_key, num_warmup, init_params=None, model_args=(), model_kwargs=None) -> LangevinState:
        """State before the first step; raises ValueError if a minibatch is larger than the data."""
        examples = len(model_args[0]["labels"])
        if self.minibatch > examples:
            raise ValueError(f"minibatch must be at most the number of examples, {examples}, got {self.minibatch}")
        return super().init(rng_key, num_warmup, init_params, model_args, model_kwargs)

    def drift(self, scaled, model_args, model_kwargs) -> Callable:
        """Estimate of the gradient by a minibatch."""
        [data] = model_args
        examples = len(data["labels"])

        def estimate(position: Vector, key: Array) -> Vector:
            chosen = jax.random.choice(key, examples, (self.minibatch,), replace=False)
            part = self.subset(data, chosen) | {"likelihood_scale": examples / self.minibatch}
            potential = self._potential_of(part, **model_kwargs)
            return -jax.grad(lambda y: potential(scaled.unravel(y * scaled.scale)))(position)

        return estimate


class EnergyTuning(NamedTuple):
    """Running weight and mean of (energy error)^2 / eps^6 in units of what is desired."""

    weight: Array
    mean: Array


class Mclmc(Unadjusted):
    """Microcanonical Langevin dynamics (Robnik, De Luca, Silverstein & Seljak 2023), BlackJAX's `mclmc`.

    Warm-up finds the step size at which the energy varies by `desired_energy_var` per coordinate and step, by the update of
    BlackJAX's `mclmc_find_L_and_step_size`; momentum is forgotten over `length` sqrt(d) in scaled coordinates.
    """

    order = 2
    memory = 150
    """Steps that the step size is estimated from."""
    trust = 1.5

    def __init__(
        self, program=None, potential_fn=None, *, length: float = 1.0, desired_energy_var: float = 5e-4, **options: Any
    ):
        settings: dict[str, Any] = {"step_size": 0.5} | options
        super().__init__(program, potential_fn, **settings)
        self.length = positive("length", length)
        self.desired_energy_var = positive("desired_energy_var", desired_energy_var)
        self.kernel = mclmc.build_kernel()

    def start_tuning(self) -> EnergyTuning:
        """Nothing seen yet."""
        return EnergyTuning(jnp.zeros(()), jnp.zeros(()))

    def start_momentum(self, key, flat) -> Vector:
        """A random direction."""
        return generate_unit_vector(key, flat)

    def step(self, key, point, step_size, logdensity) -> Move:
        """One step of the isokinetic integrator, with partial refreshment of the direction."""
        state = integrators.IntegratorState(point.position, point.momentum, point.logdensity, point.gradient)  # pyright: ignore
        length = self.length * jnp.sqrt(point.position.size)
        state, info = self.kernel(key, state, logdensity, 1.0, length, step_size)  # pyright: ignore[reportArgumentType]
        position, momentum, value, gradient = state
        return Move(Point(position, value, gradient, momentum), jnp.ones(()), info.energy_change, 1)  # pyright: ignore

    def adapted(self, state: LangevinState, moves: Move) -> LangevinState:
        """Step size by the energy errors of the transition's steps: their variance grows as eps^6."""
        size, dimension = state.adapt_state.step_size, state.momentum.size
        decay = (self.memory - 1) / (self.memory + 1)

        def seen(tuning: EnergyTuning, error: Array) -> tuple[EnergyTuning, None]:
            ratio = error**2 / (dimension * self.desired_energy_var) + 1e-8
            weight = jnp.exp(-(jnp.log(ratio) ** 2) / (2 * (6 * self.trust) ** 2))
            return EnergyTuning(decay * tuning.weight + weight, decay * tuning.mean + weight * ratio / size**6), None

        tuning, _ = jax.lax.scan(seen, state.tuning, moves.energy_error)
        state = super().adapted(state, moves)
        if self.adapt_step_size:
            found = (tuning.mean / tuning.weight) ** (-1 / 6)
            state = state._replace(adapt_state=state.adapt_state._replace(step_size=found))
        return state._replace(tuning=tuning)

    def free(self, state, model_args, model_kwargs) -> LangevinState:
        """Steps of both chains."""
        key, step_key, half_key = jax.random.split(state.rng_key, 3)
        scaled = _Scaled(state, self._potential_of(*model_args, **model_kwargs))
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
        return scaled.state_at(point)._replace(
            i=state.i + 1,
            num_steps=jnp.array(3 * self.steps + 1),
            accept_prob=jnp.ones(()),
            mean_accept_prob=jnp.ones(()),
            energy_error=jnp.max(jnp.abs(errors)),
            diverging=jnp.any(jnp.abs(errors) > MOST_ENERGY_ERROR),
            half=Half(scaled.unravel(half.position * scaled.scale), half.momentum),
            rng_key=key,
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
