"""Base classes of the Langevin algorithms as NumPyro kernels.

All of them move in coordinates y = x / s, where s is the standard deviation of each coordinate, estimated in NumPyro's
warm-up windows, so that one step size fits all coordinates. Warm-up determines the step size and s. The state contains
both, together with the random key, so a chain continued from a state is bit-identical to one that never stopped. One
transition of a kernel makes `steps` steps of its algorithm, so that a draw costs about as much as one of NUTS.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Key, PyTree
from numpyro.infer import init_to_sample
from numpyro.infer.hmc_util import HMCAdaptState, IntegratorState, warmup_adapter
from numpyro.infer.mcmc import MCMCKernel
from numpyro.infer.util import initialize_model

from bayesattn._util.checks import positive, positive_integer, probability

Vector = Float[Array, " coordinate"]
MOST_ENERGY_ERROR = 1000.0
"""Energy error above which NumPyro calls a trajectory divergent."""


class Point(NamedTuple):
    """Position of a chain: scaled coordinates y, log density of x, gradient of the log density in y, momentum in y."""

    position: Vector
    logdensity: Float[Array, ""]
    gradient: Vector
    momentum: Vector


class Move(NamedTuple):
    """Outcome of one step: next point, acceptance probability, energy error, number of gradients evaluated."""

    point: Point
    accept_prob: Float[Array, ""]
    energy_error: Float[Array, ""]
    gradients: int | Int[Array, ""]


class LangevinState(NamedTuple):
    """State of a chain; fields named as in NumPyro's HMCState have the same meaning.

    `tuning` contains the quantities that a kernel tunes besides step size and scale. `half` contains the sites and the
    momentum of a biased kernel's second chain, which takes two steps of half the size for each step of the first chain.
    """

    i: Array
    z: PyTree[Array]
    potential_energy: Array
    z_grad: PyTree[Array]
    momentum: Vector
    num_steps: Array
    accept_prob: Array
    mean_accept_prob: Array
    energy_error: Array
    diverging: Array
    adapt_state: HMCAdaptState
    tuning: PyTree[Array]
    half: PyTree[Array]
    rng_key: Array


class LangevinOptions(TypedDict, total=False):
    """Options of all Langevin kernels."""

    step_size: float
    steps: int
    adapt_step_size: bool
    adapt_mass_matrix: bool
    target_accept_prob: float | None


class Langevin(MCMCKernel):
    """Base class of the Langevin kernels.

    Args:
        program: NumPyro program.
        potential_fn: potential energy of unconstrained sites, instead of a program.
        step_size: initial step size of the adaptation; the step size itself if `adapt_step_size` is false.
        steps: steps of the algorithm in each transition.
        adapt_step_size: whether warm-up adapts the step size to the acceptance probability `target_accept_prob`.
        adapt_mass_matrix: whether warm-up estimates the scale of each coordinate.
        target_accept_prob: target mean acceptance probability.

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
        self._program = program
        self.step_size, self.steps = positive("step_size", step_size), positive_integer("steps", steps)
        self.adapt_step_size, self.adapt_mass_matrix = adapt_step_size, adapt_mass_matrix
        target = self.target if target_accept_prob is None else target_accept_prob
        self.target_accept_prob = probability("target_accept_prob", target)
        self._potential_of: Callable = lambda *args, **kwargs: potential_fn
        self._postprocess: Callable = lambda *args, **kwargs: lambda z: z

    @abstractmethod
    def step(self, key: Key[Array, ""], point: Point, step_size: Array, logdensity: Callable) -> Move:
        """One step of the algorithm in scaled coordinates."""

    def start_tuning(self) -> tuple:
        """Initial values, before warm-up, of the quantities that a kernel tunes besides step size and scale."""
        return ()

    @property
    def sample_field(self) -> str:
        """Field of the state that contains a draw."""
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
        """Text for NumPyro's progress bar."""
        size = state.adapt_state.step_size
        return f"{state.num_steps} gradients, step size {size:.2e}. acc. prob={state.mean_accept_prob:.2f}"

    def postprocess_fn(self, args: tuple, kwargs: dict) -> Callable:
        """Map from unconstrained sites to the sites of the program."""
        return self._postprocess(*args, **kwargs)

    def init(self, rng_key, num_warmup, init_params=None, model_args=(), model_kwargs=None) -> LangevinState:
        """State before the first step; warm-up takes `num_warmup` transitions."""
        key, program_key, adapt_key, momentum_key = jax.random.split(rng_key, 4)
        kwargs = model_kwargs or {}
        if self._program is not None:
            info = initialize_model(
                program_key,
                self._program,
                dynamic_args=True,
                init_strategy=init_to_sample,
                model_args=model_args,
                model_kwargs=kwargs,
            )
            self._potential_of, self._postprocess = info.potential_fn, info.postprocess_fn
            init_params = info.param_info.z if init_params is None else init_params
        self.warmup = num_warmup
        flat = ravel_pytree(init_params)[0]
        adapt_init, self._adapt = warmup_adapter(
            num_warmup,
            adapt_step_size=self.adapt_step_size,
            adapt_mass_matrix=self.adapt_mass_matrix,
            target_accept_prob=self.target_accept_prob,
        )
        potential, gradient = jax.value_and_grad(self.potential_of(model_args, kwargs))(init_params)
        start = IntegratorState(flat, flat, potential, flat)
        return LangevinState(
            i=jnp.array(0),
            z=init_params,
            potential_energy=potential,
            z_grad=gradient,
            momentum=self.start_momentum(momentum_key, flat),
            num_steps=jnp.array(0),
            accept_prob=jnp.zeros(()),
            mean_accept_prob=jnp.zeros(()),
            energy_error=jnp.zeros(()),
            diverging=jnp.array(False),
            adapt_state=adapt_init(start, adapt_key, self.step_size, None, flat.size),
            tuning=self.start_tuning(),
            half=self.start_half(init_params, flat),
            rng_key=key,
        )

    def potential_of(self, model_args: tuple, model_kwargs: dict | None) -> Callable:
        """Potential energy of unconstrained sites for these data."""
        return self._potential_of(*model_args, **(model_kwargs or {}))

    def start_half(self, z: PyTree[Array], flat: Vector) -> tuple:
        """Initial second chain of a biased kernel; empty for a kernel without bias."""
        return ()

    def start_momentum(self, key: Key[Array, ""], flat: Vector) -> Vector:
        """Momentum before the first step."""
        return jax.random.normal(key, flat.shape)

    def refresh(self, state: LangevinState, model_args: tuple, model_kwargs: dict | None) -> LangevinState:
        """State with the energy and the gradient recomputed for other data."""
        value, gradient = jax.value_and_grad(self.potential_of(model_args, model_kwargs))(state.z)
        return state._replace(potential_energy=value, z_grad=gradient)

    def sample(self, state: LangevinState, model_args: tuple, model_kwargs: dict | None) -> LangevinState:
        """State after one more transition."""
        key, step_key = jax.random.split(state.rng_key)
        scaled = Scaled(state, self.potential_of(model_args, model_kwargs))
        size, warming = state.adapt_state.step_size, state.i < self.warmup

        def one(point: Point, key: Array) -> tuple[Point, Move]:
            move = self.step(key, point, size, scaled.logdensity)
            return move.point, move

        point, moves = jax.lax.scan(one, scaled.point, jax.random.split(step_key, self.steps))
        accept_prob = jnp.mean(jnp.nan_to_num(moves.accept_prob))
        count = jnp.where(warming, state.i, state.i - self.warmup) + 1
        following = scaled.state_at(point)._replace(
            i=state.i + 1,
            num_steps=jnp.sum(moves.gradients),
            accept_prob=accept_prob,
            mean_accept_prob=state.mean_accept_prob + (accept_prob - state.mean_accept_prob) / count,
            energy_error=jnp.max(jnp.abs(moves.energy_error)),
            diverging=jnp.any(jnp.abs(moves.energy_error) > MOST_ENERGY_ERROR),
            rng_key=key,
        )
        return jax.lax.cond(warming, lambda s: self.adapted(s, moves), lambda s: s, following)

    def adapted(self, state: LangevinState, moves: Move) -> LangevinState:
        """State with the step size and the scale adapted after transition i of warm-up."""
        at = IntegratorState(ravel_pytree(state.z)[0], 0.0, 0.0, 0.0)
        return state._replace(adapt_state=self._adapt(state.i - 1, state.accept_prob, at, state.adapt_state))

    def statistics(self, state: LangevinState) -> dict[str, Array]:
        """Sample statistics of one draw, under ArviZ's names; n_steps is the number of gradients."""
        return statistics_of(state)


def statistics_of(state: Any) -> dict[str, Array]:
    """Sample statistics, under ArviZ's names, of a state whose fields have the names of NumPyro's HMCState."""
    return {
        "lp": -state.potential_energy,
        "acceptance_rate": state.accept_prob,
        "n_steps": state.num_steps,
        "step_size": state.adapt_state.step_size,
        "diverging": state.diverging,
    }


class Scaled:
    """A state in scaled coordinates."""

    def __init__(self, state: LangevinState, potential: Callable):
        self.state, self.potential = state, potential
        flat, self.unravel = ravel_pytree(state.z)
        self.scale = jnp.sqrt(state.adapt_state.inverse_mass_matrix)
        gradient = -ravel_pytree(state.z_grad)[0] * self.scale
        self.point = Point(flat / self.scale, -state.potential_energy, gradient, state.momentum)

    def logdensity(self, position: Vector) -> Array:
        """Log density at scaled coordinates, minus infinity where it is undefined."""
        return _without_nan(-self.potential(self.unravel(position * self.scale)))

    def state_at(self, point: Point) -> LangevinState:
        """State with the chain moved to another point."""
        return self.state._replace(
            z=self.unravel(point.position * self.scale),
            potential_energy=-point.logdensity,
            z_grad=self.unravel(-point.gradient / self.scale),
            momentum=point.momentum,
        )


@jax.custom_jvp
def _without_nan(value: Array) -> Array:
    """Minus infinity in place of NaN; the gradient is passed through, so computing it does not evaluate the density."""
    return jnp.where(jnp.isnan(value), -jnp.inf, value)


_without_nan.defjvps(lambda tangent, _, value: tangent)


class Half(NamedTuple):
    """Second chain of a biased kernel, at half the step size."""

    z: PyTree[Array]
    momentum: Vector


class Unadjusted(Langevin):
    """Kernel without a Metropolis correction, whose draws are biased by the step size.

    A second chain runs beside the first, at half the step size. If the bias of a mean is of order eps^p, then to leading
    order the bias is 2^p / (2^p - 1) times the mean difference between the two chains (Richardson).
    """

    order: ClassVar[int] = 1
    """Order p of the step-size bias."""

    def start_half(self, z: PyTree[Array], flat: Vector) -> Half:
        """Second chain at the start of the first, with zero momentum."""
        return Half(z, jnp.zeros_like(flat))

    def adapted(self, state: LangevinState, moves: Move) -> LangevinState:
        """State adapted in warm-up, with the second chain at the point of the first."""
        return super().adapted(state, moves)._replace(half=Half(state.z, state.momentum))

    def sample(self, state: LangevinState, model_args: tuple, model_kwargs: dict | None) -> LangevinState:
        """State after one more transition: of the first chain in warm-up, of both chains after it."""
        return jax.lax.cond(
            state.i < self.warmup,
            lambda s: super(Unadjusted, self).sample(s, model_args, model_kwargs),
            lambda s: self.sample_after_warmup(s, model_args, model_kwargs or {}),
            state,
        )

    @abstractmethod
    def sample_after_warmup(self, state: LangevinState, model_args: tuple, model_kwargs: dict) -> LangevinState:
        """State after one more transition of both chains, after warm-up."""

    def following(self, scaled: Scaled, point: Point, half: Half, gradients: int, key: Key[Array, ""]) -> LangevinState:
        """State after one more transition to a point, in which all steps were accepted."""
        return scaled.state_at(point)._replace(
            i=scaled.state.i + 1,
            num_steps=jnp.array(gradients),
            accept_prob=jnp.ones(()),
            mean_accept_prob=jnp.ones(()),
            diverging=jnp.array(False),
            half=half,
            rng_key=key,
        )

    def bias(self, values: PyTree, half: PyTree) -> PyTree:
        """Estimate of the bias of a draw's values, from the values of both chains."""
        factor = 2**self.order / (2**self.order - 1)
        return jax.tree.map(lambda at, at_half: factor * (at - at_half), values, half)
