"""Priors of numbers of a posterior that are not known: those of its likelihood, such as T, and prior variances of weights.

Chains sample them through NumPyro's bijection from a real number: the logarithm, for a prior of all positive numbers.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, Key

from bayesattn._util.checks import entries, is_prior, one_of, positive, shown
from bayesattn._util.plain_values import PlainDict, PlainMapping
from bayesattn._util.random import first_key
from bayesattn.architecture import Architecture
from bayesattn.errors import BayesattnError
from bayesattn.likelihoods import Likelihood
from bayesattn.models.priors import draws_of
from bayesattn.theory.potential import Problem, WithNumbers

VARIANCES = "variances"
"""Name of the variances among the variables of draws."""
PRIOR_DRAWS = 4001
"""Number of draws from which the median and the spread of a prior are computed."""
CLASS = "distribution"
"""Key of the name of a distribution in tables."""
Position = Float[Array, " hyperparameter"]
Values = dict[str, Array]


class Hyperpriors(eqx.Module):
    """Independent priors of the numbers that are not known, in the order of a likelihood's fields, then of the layers.

    Args:
        names: such as "temperature" and "variances[1]".
        priors: NumPyro distributions.
        variances: s_0^2 .. s_a^2, NaN where they are not known.
    """

    names: tuple[str, ...] = eqx.field(static=True)
    priors: tuple[dist.Distribution, ...]
    variances: Float[Array | np.ndarray, " layer_and_input"]

    @classmethod
    def of(cls, likelihood: Likelihood, arch: Architecture) -> "Hyperpriors":
        """Priors that stand in place of numbers."""
        found = {name: value for name, value in _numbers(likelihood, arch).items() if is_prior(value)}
        known = [np.nan if is_prior(value) else value for value in arch.variances]
        return cls((*found,), (*found.values(),), np.array(known, float))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def variables(self) -> tuple[str, ...]:
        """Variables of draws: fields of the likelihood, and "variances" if one of them is not known."""
        return (*dict.fromkeys(name.partition("[")[0] for name in self.names),)

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of the likelihood that have priors."""
        return tuple(name for name in self.variables if name != VARIANCES)

    def values(self, position: Position) -> Values:
        """Value of each variable at a position; the known variances are among "variances"."""
        each = {name: self._bijection(at)(position[at]) for at, name in enumerate(self.names)}
        variances = jnp.asarray(self.variances)
        for name in [name for name in each if name.startswith(VARIANCES)]:
            variances = variances.at[_layer(name)].set(each.pop(name))
        return each | ({VARIANCES: variances} if VARIANCES in self.variables else {})

    @jax.jit
    def position(self, values: Values) -> Position:
        """Position of values of the variables."""
        return jnp.stack([self._bijection(at).inv(value) for at, value in enumerate(self.listed(values))])

    def listed(self, values: Values) -> Float[Array, " hyperparameter"]:
        """The numbers that have priors, in the order of `names`."""
        return jnp.stack([values[VARIANCES][_layer(n)] if n.startswith(VARIANCES) else values[n] for n in self.names])

    def log_density(self, position: Position) -> Float[Array, ""]:
        """Log prior density of a position."""
        total = jnp.zeros(())
        for at, prior in enumerate(self.priors):
            value = self._bijection(at)(position[at])
            total += prior.log_prob(value) + self._bijection(at).log_abs_det_jacobian(position[at], value)
        return total

    def draw(self, key: Key[Array, ""]) -> Position:
        """Position drawn from the prior."""
        keys = jax.random.split(key, len(self))
        drawn = [self._bijection(at).inv(prior.sample(keys[at])) for at, prior in enumerate(self.priors)]
        return jnp.stack(drawn)

    def _bijection(self, at: int) -> Any:
        return dist.biject_to(self.priors[at].support)

    @property
    def medians(self) -> PlainDict:
        """Median of each variable."""
        variances, values = np.array(self.variances), {}
        for name, prior in zip(self.names, self.priors, strict=True):
            if name.startswith(VARIANCES):
                variances[_layer(name)] = median(prior)
            else:
                values[name] = median(prior)
        return values | ({VARIANCES: variances} if VARIANCES in self.variables else {})

    def posed(self, problem: Problem) -> WithNumbers:
        """A posterior at some values, with these priors."""
        return WithNumbers(problem, self, self.position(self.medians), self.spread())

    @jax.jit
    def spread(self) -> Position:
        """Standard deviation of each entry of positions drawn from the prior."""
        return jnp.std(jax.vmap(self.draw)(jax.random.split(first_key(0), PRIOR_DRAWS)), axis=0)


class HyperPrior(dist.Distribution):
    """Prior of a position, as a NumPyro distribution."""

    support = dist.constraints.real_vector  # pyright: ignore[reportAssignmentType]
    pytree_data_fields = ("priors",)

    def __init__(self, priors: Hyperpriors, *, validate_args=None):
        self.priors = priors
        super().__init__((), (len(priors),), validate_args=validate_args)

    def sample(self, key, sample_shape=()):
        """Draws from the prior."""
        return draws_of(self.priors.draw, key, sample_shape)

    def log_prob(self, value):
        """Log density of a position."""
        return self.priors.log_density(value)


def fields_of(values: Values) -> Values:
    """Values of the fields of the likelihood."""
    return {name: value for name, value in values.items() if name != VARIANCES}


def scale_of(own_variance: Float[Array, ""], values: Values) -> Float[Array, ""]:
    """Ratio of s_0^2 among the values to that of the features: by it U at the values is larger than that of the network."""
    return values[VARIANCES][0] / own_variance if VARIANCES in values else jnp.ones(())


def in_units(drawn: Mapping[str, Array], ratio: Float[Array, ""]) -> dict[str, Array]:
    """U and weights of a network, from those whose s_0^2 is smaller, and s_a^2 larger, by the ratio of `scale_of`."""
    factors = {"order_parameter": 1 / ratio, "a": 1 / jnp.sqrt(ratio), "V_0": jnp.sqrt(ratio)}
    return {name: value * factors[name] if name in factors else value for name, value in drawn.items()}


def _layer(name: str) -> int:
    return int(name[len(VARIANCES) + 1 : -1])


def _numbers(likelihood: Likelihood, arch: Architecture) -> PlainDict:
    """Numbers, or priors in their place, by name."""
    fields = {each.name: getattr(likelihood, each.name) for each in dataclasses.fields(likelihood)}
    return fields | {f"{VARIANCES}[{layer}]": value for layer, value in enumerate(arch.variances)}


def at(likelihood: Likelihood, arch: Architecture, values: PlainMapping) -> tuple[Likelihood, Architecture]:
    """Likelihood and architecture with numbers, by variable, in place of priors; raises ValueError for other names."""
    variables = Hyperpriors.of(likelihood, arch).variables
    if values and not variables:
        raise BayesattnError(f"values must be empty for a model without priors, got {', '.join(map(repr, values))}")
    for name in values:
        one_of("value", name, variables)
    numbers = {name: positive(name, value) for name, value in values.items() if name != VARIANCES}
    if numbers:
        likelihood = replace(likelihood, **numbers)
    if VARIANCES in values:
        each = enumerate(entries(VARIANCES, values[VARIANCES], f"{len(arch.variances)} numbers"))
        arch = replace(arch, variances=tuple(positive(f"{VARIANCES}[{layer}]", value) for layer, value in each))
    return likelihood, arch


def checked(likelihood: Likelihood, arch: Architecture) -> tuple[Likelihood, Architecture]:
    """The same with point masses replaced by their numbers; raises ValueError for priors that cannot be used."""
    numbers = {
        name: _checked(name, value) if is_prior(value) else value for name, value in _numbers(likelihood, arch).items()
    }
    variances = tuple(numbers[f"{VARIANCES}[{layer}]"] for layer in range(len(arch.variances)))
    changed = {
        each.name: numbers[each.name]
        for each in dataclasses.fields(likelihood)
        if numbers[each.name] is not getattr(likelihood, each.name)
    }
    return (
        replace(likelihood, **changed) if changed else likelihood,
        arch if variances == arch.variances else replace(arch, variances=variances),
    )


def _checked(name: str, prior: Any) -> Any:
    """A prior, or the number of a point mass; raises ValueError for one that is not a proper prior of a positive number."""
    expected = f"{name} must be a positive number or a proper prior of one, a distribution of NumPyro"
    if not isinstance(prior, dist.Distribution):
        raise BayesattnError(f"{expected}, got {shown(prior)}")
    if prior.batch_shape or prior.event_shape:
        raise BayesattnError(f"{expected}, got one of shape {(*prior.batch_shape, *prior.event_shape)}")
    if isinstance(prior, dist.Delta):
        return positive(name, prior.v)
    kind = type(prior).__name__
    support: Any = prior.support
    lowest = getattr(support, "lower_bound", None)
    if lowest is None or support.is_discrete or not float(lowest) >= 0:
        raise BayesattnError(f"{expected}, got {kind}, whose support is not that of positive numbers")
    try:
        drawn = np.asarray(_drawn(prior))
        table_of(name, prior)
    except NotImplementedError:
        raise BayesattnError(f"{expected}, got {kind}, which is improper: it cannot be drawn from") from None
    if not np.all(np.isfinite(drawn) & (drawn > 0)):
        raise BayesattnError(
            f"{expected}, got {shown_prior(prior)}, some draws from which are 0 or infinite in float64"
        )
    return prior


def median(prior: dist.Distribution) -> float:
    """Median of some draws from a prior, since not all priors have one in closed form."""
    return float(np.median(_drawn(prior)))


@jax.jit
def _drawn(prior: dist.Distribution) -> Float[Array, " draw"]:
    return jnp.asarray(prior.sample(first_key(0), (PRIOR_DRAWS,)))


def table_of(name: str, prior: dist.Distribution) -> PlainDict:
    """Class and parameters of a prior, as in a model file; raises ValueError for one that they do not determine."""
    kind = type(prior)
    parameters = {field: getattr(prior, field) for field in kind.arg_constraints}
    if (
        getattr(dist, kind.__name__, None) is kind
        and parameters
        and all(np.ndim(each) == 0 for each in parameters.values())
    ):
        plain = {field: float(value) for field, value in parameters.items()}
        # A distribution may be made of another one too, which is no parameter.
        with suppress(TypeError):
            ours, theirs = jax.tree.leaves(kind(**plain)), jax.tree.leaves(prior)
            if len(ours) == len(theirs) and all(map(np.array_equal, ours, theirs)):
                return {CLASS: kind.__name__} | plain
    raise BayesattnError(
        f"{name} must be a proper prior that numbers determine, such as numpyro.distributions.LogNormal(-2.0, 1.0), got"
        f" {kind.__name__}"
    )


def table(likelihood: Likelihood, arch: Architecture) -> PlainDict:
    """Table [priors] of a model file: priors by field of the likelihood, and all variances if one has a prior."""
    numbers = _numbers(likelihood, arch)
    plain = {name: table_of(name, value) if is_prior(value) else value for name, value in numbers.items()}
    fields = {
        name: plain[name] for name, value in numbers.items() if is_prior(value) and not name.startswith(VARIANCES)
    }
    variances = [plain[f"{VARIANCES}[{layer}]"] for layer in range(len(arch.variances))]
    return fields | ({VARIANCES: variances} if any(map(is_prior, arch.variances)) else {})


def restored(priors: PlainMapping) -> PlainDict:
    """Numbers and priors of a table [priors], by field; raises ValueError for what is not a distribution."""

    def entry(name: str, value: Any) -> Any:
        return _restored(name, value) if isinstance(value, Mapping) else value

    return {
        name: tuple(entry(f"priors.{name}[{layer}]", each) for layer, each in enumerate(value))
        if isinstance(value, list | tuple)
        else entry(f"priors.{name}", value)
        for name, value in priors.items()
    }


def _restored(name: str, table: PlainMapping) -> dist.Distribution:
    kind = getattr(dist, str(table.get(CLASS)), None)
    if not (isinstance(kind, type) and issubclass(kind, dist.Distribution)):
        known = f"{name}.{CLASS} must be the name of one of numpyro.distributions"
        raise BayesattnError(f"{known}, got {table.get(CLASS)!r}")
    try:
        return kind(**{field: value for field, value in table.items() if field != CLASS}, validate_args=True)
    except (TypeError, ValueError) as error:
        raise BayesattnError(f"{name} must have the parameters of {kind.__name__}: {error}") from None


def shown_prior(value: Any) -> str:
    """A number, or a prior or its table, as text, such as "LogNormal(loc=-2, scale=1)"."""
    if not (is_prior(value) or isinstance(value, Mapping)):
        return f"{value:g}"
    parameters = dict(value) if isinstance(value, Mapping) else table_of("prior", value)
    return f"{parameters.pop(CLASS)}({', '.join(f'{name}={number:g}' for name, number in parameters.items())})"


def listed(numbers: Sequence[Any]) -> str:
    """Numbers, or priors of them, as text."""
    return ", ".join(map(shown_prior, numbers))
