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

from bayesattn._util.checks import entries, is_prior, not_negative, one_of, positive, shown
from bayesattn._util.plain_values import PlainDict, PlainMapping
from bayesattn._util.random import first_key
from bayesattn.architecture import Architecture
from bayesattn.errors import BayesattnError
from bayesattn.likelihoods import Likelihood
from bayesattn.models.whitened_priors import draws_of
from bayesattn.theory.potential import Problem, WithNumbers

VARIANCES = "variances"
"""Name of the variances among the variables of draws."""
QUERIES_AND_KEYS = ("query_variance", "key_variance")
"""Names of the prior variances of queries and keys among them."""
VECTORS = (VARIANCES, *QUERIES_AND_KEYS)
"""Variables that have an entry for each layer; all others are numbers of the likelihood."""
PRIOR_DRAWS = 4001
"""Number of draws from which the median and the spread of a prior are computed."""
CLASS = "distribution"
"""Key of the name of a distribution in tables."""
Position = Float[Array, " hyperparameter"]
Values = dict[str, Array]
Vectors = Mapping[str, Sequence[Any]]


class Hyperpriors(eqx.Module):
    """Independent priors of the numbers that are not known, in the order of a likelihood's fields, then of the layers.

    Args:
        names: such as "temperature" and "variances[1]".
        priors: NumPyro distributions.
        vectors: those of `VECTORS` that have an entry that is not known, which is NaN.
    """

    names: tuple[str, ...] = eqx.field(static=True)
    priors: tuple[dist.Distribution, ...]
    vectors: Mapping[str, Float[Array | np.ndarray, " entry"]]

    @classmethod
    def of(cls, likelihood: Likelihood, vectors: Vectors) -> "Hyperpriors":
        """Priors that stand in place of numbers."""
        found = {name: value for name, value in _numbers(likelihood, vectors).items() if is_prior(value)}
        known = {
            name: np.array([np.nan if is_prior(value) else value for value in entries], float)
            for name, entries in vectors.items()
            if any(map(is_prior, entries))
        }
        return cls((*found,), (*found.values(),), known)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def variables(self) -> tuple[str, ...]:
        """Variables of draws: fields of the likelihood, and vectors of which an entry is not known."""
        return (*dict.fromkeys(name.partition("[")[0] for name in self.names),)

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of the likelihood that have priors."""
        return tuple(name for name in self.variables if name not in VECTORS)

    def values(self, position: Position) -> Values:
        """Value of each variable at a position; entries of vectors that are known are among the others."""
        values: Values = {name: jnp.asarray(vector) for name, vector in self.vectors.items()}
        for at, name in enumerate(self.names):
            variable, entry = _place(name)
            value = self._bijection(at)(position[at])
            values[variable] = value if entry is None else values[variable].at[entry].set(value)
        return values

    @jax.jit
    def position(self, values: Values) -> Position:
        """Position of values of the variables."""
        return jnp.stack([self._bijection(at).inv(value) for at, value in enumerate(self.listed(values))])

    def listed(self, values: Values) -> Float[Array, " hyperparameter"]:
        """The numbers that have priors, in the order of `names`."""
        places = map(_place, self.names)
        return jnp.stack([values[name] if entry is None else values[name][entry] for name, entry in places])

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
        values: PlainDict = {name: np.array(vector) for name, vector in self.vectors.items()}
        for name, prior in zip(self.names, self.priors, strict=True):
            variable, entry = _place(name)
            if entry is None:
                values[variable] = median(prior)
            else:
                values[variable][entry] = median(prior)
        return values

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
    return {name: value for name, value in values.items() if name not in VECTORS}


def scale_of(own_variance: Float[Array, ""], values: Values) -> Float[Array, ""]:
    """Ratio of s_0^2 among the values to that of the features: by it U at the values is larger than that of the network."""
    return values[VARIANCES][0] / own_variance if VARIANCES in values else jnp.ones(())


def in_units(drawn: Mapping[str, Array], ratio: Float[Array, ""]) -> dict[str, Array]:
    """U and weights of a network, from those whose s_0^2 is smaller, and s_a^2 larger, by the ratio of `scale_of`."""
    factors = {"order_parameter": 1 / ratio, "a": 1 / jnp.sqrt(ratio), "V_0": jnp.sqrt(ratio)}
    return {name: value * factors[name] if name in factors else value for name, value in drawn.items()}


def _place(name: str) -> tuple[str, int | None]:
    """Variable of a number and, if the variable is a vector, its entry."""
    variable, _, entry = name.partition("[")
    return variable, int(entry[:-1]) if entry else None


def _numbers(likelihood: Likelihood, vectors: Vectors) -> PlainDict:
    """Numbers, or priors in their place, by name."""
    fields = {each.name: getattr(likelihood, each.name) for each in dataclasses.fields(likelihood)}
    return fields | {f"{name}[{at}]": value for name, entries in vectors.items() for at, value in enumerate(entries)}


def at(likelihood: Likelihood, vectors: Vectors, values: PlainMapping) -> tuple[Likelihood, dict[str, tuple]]:
    """Likelihood and vectors with numbers, by variable, in place of priors; raises ValueError for other names."""
    variables = Hyperpriors.of(likelihood, vectors).variables
    if values and not variables:
        raise BayesattnError(f"values must be empty for a model without priors, got {', '.join(map(repr, values))}")
    for name in values:
        one_of("value", name, variables)
    numbers = {name: positive(name, value) for name, value in values.items() if name not in VECTORS}
    if numbers:
        likelihood = replace(likelihood, **numbers)
    changed = {}
    for name in [name for name in values if name in VECTORS]:
        each = enumerate(entries(name, values[name], f"{len(vectors[name])} numbers"))
        # Of queries and keys a known variance may be 0.
        check = positive if name == VARIANCES else not_negative
        changed[name] = tuple(check(f"{name}[{entry}]", value) for entry, value in each)
    return likelihood, changed


def checked(likelihood: Likelihood, arch: Architecture) -> tuple[Likelihood, Architecture]:
    """The same with point masses replaced by their numbers; raises ValueError for priors that cannot be used."""
    variances = tuple(usable(f"{VARIANCES}[{layer}]", value) for layer, value in enumerate(arch.variances))
    fields = {each.name: getattr(likelihood, each.name) for each in dataclasses.fields(likelihood)}
    changed = {name: number for name, value in fields.items() if (number := usable(name, value)) is not value}
    return (
        replace(likelihood, **changed) if changed else likelihood,
        arch if variances == arch.variances else replace(arch, variances=variances),
    )


def usable(name: str, prior: Any) -> Any:
    """A number, or a prior, or the number of a point mass; raises ValueError for an improper prior of a positive number."""
    if not is_prior(prior):
        return prior
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


def table(likelihood: Likelihood, vectors: Vectors) -> PlainDict:
    """Table [priors] of a model file: priors by field of the likelihood, and all entries of a vector if one has a prior."""

    def plain(name: str, value: Any) -> Any:
        return table_of(name, value) if is_prior(value) else value

    priors = {name: value for name, value in _numbers(likelihood, {}).items() if is_prior(value)}
    return {name: plain(name, prior) for name, prior in priors.items()} | {
        name: [plain(f"{name}[{at}]", value) for at, value in enumerate(entries)]
        for name, entries in vectors.items()
        if any(map(is_prior, entries))
    }


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
