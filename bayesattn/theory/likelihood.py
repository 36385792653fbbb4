"""The likelihood of the labels given a factor F of the order parameter U = F F^T: Y ~ Normal(0, K(U) + T I).

What theory and samplers ask of the training data they ask of this object, which has three exact forms. Its methods whose
names end in "of" take U itself, which may be any symmetric matrix for which K(U) + T I is positive definite; gradients in U
are symmetric, those along symmetric changes.
"""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bayesattn._checks import finite_array, is_traced, one_of, positive
from bayesattn.architecture import Architecture
from bayesattn.theory.bartlett import layer_shapes
from bayesattn.theory.energies import gram_energy, kernel_energy, packed_energy, pairs_of, projection_energy, unpacked
from bayesattn.theory.kernels import checked_path_inputs, input_scale

Factor = Float[Array, "path column"]
OrderParameter = Float[Array, "path path"]
BLOCK_BYTES = 2**27
SIDES = {"features": "examples", "feature_space": "features"}
LEAST_PIVOT = 1e4
"""Times that a pivot must be above the rounding of K: with 40 and 100 examples and K of rank 6 and 10, from about 1000 times
down (T = 3e-11 and less), the search of the saddle point ended at wrong points as if it had converged."""
PAIRS_BYTES = 2**30
"""Most memory that path-path kernels may take; beyond it K is formed from features."""


class Prediction(NamedTuple):
    """Mean and variance of the network's output f on each test example (without the label noise T)."""

    mean: Float[Array, "*batch test_example"]
    variance: Float[Array, "*batch test_example"]


class EnergyExpansion(NamedTuple):
    """Second-order expansion of the energy in U: its value, dE/dU and d^2E/dU^2 (entries of U row by row)."""

    value: Float[Array, ""]
    slope: Float[Array, "path path"]
    curvature: Float[Array, "path*path path*path"]


class Solved(NamedTuple):
    """With A = K(U) + T I = L L^T and X the scaled path inputs: L, L^{-1} X, L^{-1} Y, and X^T A^{-1} Y."""

    cholesky: Float[Array, "example example"]
    whitened: Float[Array, "example path feature"]
    labels: Float[Array, " example"]
    weighted: Float[Array, "path feature"]


class Unseen(NamedTuple):
    """Examples beyond those that are held, whose outputs are 0 whatever the weights: their number and |Y|^2.

    `bayesattn.Statistics` turns any number of examples into Pi N_0 and such as these.
    """

    examples: Any
    square: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Likelihood:
    """Y ~ Normal(0, K(U) + T I), with K formed from features: as the Gram matrix of path inputs times F.

    Args:
        features: path inputs times s_0 / sqrt(N_0 Pi), shape (P, Pi, N_0).
        labels: Y of shape (P,).
        temperature: T.
        side: of A = `features` F, P rows and r N_0 columns, on which A A^T + T I or A^T A + T I is formed: "examples" or
            "features", by default the shorter one.
        unseen: further examples that no U gives an output, if there are any.
    """

    features: Float[Array, "example path feature"]
    labels: Float[Array, " example"]
    temperature: Any
    side: str | None = field(default=None, kw_only=True, metadata={"static": True})
    unseen: Unseen | None = field(default=None, kw_only=True)

    def at(self, temperature: Any) -> "Likelihood":
        """The same at another temperature."""
        return replace(self, temperature=jnp.asarray(temperature, float))

    def with_labels(self, labels: Float[Array, " example"]) -> "Likelihood":
        """The same of other labels."""
        return replace(self, labels=labels)

    def kernel(self, factor: Factor) -> Float[Array, "example example"]:
        """K(U)."""
        mixed = _mixed(self.features, factor)
        return mixed @ mixed.T

    def kernel_of(self, order_parameter: OrderParameter) -> Float[Array, "example example"]:
        """The same of any symmetric U; where U is nearly singular a factor keeps more digits."""
        return _mixed(self.features, order_parameter) @ self.features.reshape(len(self.labels), -1).T

    @property
    def constant(self) -> Any:
        """P log(2 pi): minus twice the log density is this and the energy."""
        return (len(self.labels) + (0 if self.unseen is None else self.unseen.examples)) * np.log(2 * np.pi)

    def energy(self, factor: Factor) -> Float[Array, ""]:
        """log det(K + T I) + Y^T (K + T I)^{-1} Y (THEORY section 4)."""
        energy = projection_energy if self._in_feature_space(factor) else gram_energy
        return energy(_mixed(self.features, factor), self.labels, self.temperature) + self._of_unseen()

    def _in_feature_space(self, factor: Factor) -> bool:
        columns = factor.shape[1] * self.features.shape[2]
        return self.side == "features" if self.side else columns < len(self.labels)

    def energy_of(self, order_parameter: OrderParameter) -> Float[Array, ""]:
        """The same of any symmetric U."""
        return kernel_energy(self.kernel_of(order_parameter), self.labels, self.temperature) + self._of_unseen()

    def _of_unseen(self) -> Any:
        """What further examples add to the energy."""
        if self.unseen is None:
            return 0.0
        return self.unseen.examples * jnp.log(self.temperature) + self.unseen.square / self.temperature

    def log_density(self, factor: Factor) -> Float[Array, ""]:
        """log Normal(Y; 0, K + T I)."""
        return -(self.energy(factor) + self.constant) / 2

    def log_density_of(self, order_parameter: OrderParameter) -> Float[Array, ""]:
        """The same of any symmetric U."""
        return -(self.energy_of(order_parameter) + self.constant) / 2

    def is_singular(self, factor: Factor) -> Array:
        """Whether K + T I has a pivot so near to rounding that the energy's gradient may mean nothing."""
        kernel = self.kernel(factor)
        pivots = jnp.diag(self._cholesky(kernel)) ** 2
        # Written so that NaN is singular.
        return ~(jnp.min(pivots) > LEAST_PIVOT * len(kernel) * jnp.finfo(float).eps * jnp.max(jnp.diag(kernel)))

    def solved(self, factor: Factor) -> Solved:
        """What expansions and predictors at U are made of."""
        cholesky = self._cholesky(self.kernel(factor))
        flat = self.features.reshape(len(self.labels), -1)
        # L^-1 (X, Y)
        both = jax.scipy.linalg.solve_triangular(cholesky, jnp.column_stack([flat, self.labels]), lower=True)
        whitened, labels = both[:, :-1], both[:, -1]
        weighted = (whitened.T @ labels).reshape(self.features.shape[1:])
        return Solved(cholesky, whitened.reshape(self.features.shape), labels, weighted)

    def expansion(self, factor: Factor) -> EnergyExpansion:
        """The energy around U, to second order.

        With Z_p = L^{-1} X_p of each path and v_p = X_p^T A^{-1} Y: dE/dU_pq = tr(Z_p^T Z_q) - v_p . v_q, and
        d^2E/dU_pq dU_rs = -tr(Z_q^T Z_r Z_s^T Z_p) + 2 v_p^T (Z_q^T Z_r) v_s, on changes of U that are symmetric.
        All examples enter through the Gram matrix of the Z alone, so that this costs a few kernels, however many entries U
        has.
        """
        cholesky, whitened, labels, weighted = self.solved(factor)
        examples, paths, features = whitened.shape
        energy = 2 * jnp.sum(jnp.log(jnp.diag(cholesky))) + labels @ labels + self._of_unseen()
        slope = jnp.einsum("epf,eqf->pq", whitened, whitened) - weighted @ weighted.T
        # Features f' in blocks: all of the Gram matrix at once may not fit into memory.
        count = max(1, min(features, BLOCK_BYTES // (8 * paths**2 * features)))
        padded = jnp.pad(whitened, ((0, 0), (0, 0), (0, -features % count)))
        blocks = jnp.moveaxis(padded.reshape(examples, paths, -1, count), 2, 0)

        def add(traces, block):
            rows = jnp.einsum("epf,eqg->pqfg", whitened, block).reshape(paths**2, -1)
            return traces + rows @ rows.T, None

        # Rows (q, r) and columns (p, s).
        traces, _ = jax.lax.scan(add, jnp.zeros((paths**2, paths**2)), blocks)
        trace_term = jnp.einsum("qrps->pqrs", traces.reshape((paths,) * 4)).reshape(traces.shape)
        # Z_q v_p
        pulled = jnp.einsum("eqf,pf->pqe", whitened, weighted).reshape(paths**2, examples)
        return EnergyExpansion(energy, slope, 2 * pulled @ pulled.T - trace_term)

    def readout_of(self, order_parameter: OrderParameter) -> Float[Array, "path feature"]:
        """U X^T (K + T I)^{-1} Y, whose product with scaled path inputs is the mean of f there (THEORY section 5)."""
        coefficients = jax.scipy.linalg.cho_solve((self._cholesky(self.kernel_of(order_parameter)), True), self.labels)
        return order_parameter @ jnp.tensordot(coefficients, self.features, 1)

    def prediction_of(
        self, order_parameter: OrderParameter, features: Float[Array, "test_example path feature"]
    ) -> Prediction:
        """Mean k_*^T (K + T I)^{-1} Y and variance k_** - k_*^T (K + T I)^{-1} k_* of f given U, at scaled path inputs."""
        mixed, test = _mixed(features, order_parameter), features.reshape(len(features), -1)
        cross = self.features.reshape(len(self.labels), -1) @ mixed.T
        # K + T I = L L^T: mean = (L^-1 k_*)^T L^-1 Y, explained variance = |L^-1 k_*|^2
        both = jnp.column_stack([self.labels, cross])
        whitened = jax.scipy.linalg.solve_triangular(self._cholesky(self.kernel_of(order_parameter)), both, lower=True)
        variance = jnp.sum(mixed * test, axis=1) - jnp.sum(whitened[:, 1:] ** 2, axis=0)
        return Prediction(whitened[:, 1:].T @ whitened[:, 0], variance)

    def leave_one_out_of(self, order_parameter: OrderParameter) -> Float[Array, " example"]:
        """log p(Y_i | Y of all other examples, U) of each example, without a solve for each of them.

        With A = K + T I it is that of a normal law of mean Y_i - (A^{-1} Y)_i / (A^{-1})_ii and variance 1 / (A^{-1})_ii
        (Sundararajan and Keerthi 2001; Rasmussen and Williams 2006, equations 5.10 to 5.12).
        """
        cholesky = self._cholesky(self.kernel_of(order_parameter))
        both = jnp.column_stack([jnp.eye(len(cholesky)), self.labels])
        whitened = jax.scipy.linalg.solve_triangular(cholesky, both, lower=True)
        solution = whitened[:, :-1].T @ whitened[:, -1]
        precision = jnp.sum(whitened[:, :-1] ** 2, axis=0)
        return (jnp.log(precision / (2 * np.pi)) - solution**2 / precision) / 2

    def sample_projection(
        self, key: Key[Array, ""], factor: Factor, prior: Float[Array, "column feature"] | None = None
    ) -> Float[Array, "column feature"]:
        """Exact draw of Z, standard normal a priori, given Y = X . (F Z) + noise; `prior` is a draw of it, if there is one.

        Z is the part of V_0 / s_0 that the network sees: Q_1^T V_0 / s_0, with Q_1 the frame of the path vectors.
        Matheron's rule: a prior draw, moved by its covariance with the labels times (K + T I)^{-1} (labels - drawn labels).
        """
        prior_key, noise_key = jax.random.split(key)
        if prior is None:
            prior = self._prior_projection(prior_key, factor)
        return prior + self._projection(factor, self.labels - self._noisy(noise_key, factor, prior))

    def _projection(self, factor: Factor, labels: Float[Array, " example"]) -> Float[Array, "column feature"]:
        """Posterior mean of Z given labels."""
        if self._in_feature_space(factor):
            mixed = _mixed(self.features, factor)
            cholesky = self._cholesky(mixed.T @ mixed)
            return jax.scipy.linalg.cho_solve((cholesky, True), mixed.T @ labels).reshape(factor.shape[1], -1)
        coefficients = jax.scipy.linalg.cho_solve((self._cholesky(self.kernel(factor)), True), labels)
        return factor.T @ jnp.tensordot(coefficients, self.features, 1)

    def sample_labels(self, key: Key[Array, ""], factor: Factor) -> Float[Array, " example"]:
        """Labels drawn given U: Normal(0, K + T I)."""
        prior_key, noise_key = jax.random.split(key)
        return self._noisy(noise_key, factor, self._prior_projection(prior_key, factor))

    def _prior_projection(self, key, factor: Factor) -> Float[Array, "column feature"]:
        return jax.random.normal(key, (factor.shape[1], self.features.shape[2]))

    def _noisy(self, key, factor: Factor, projection: Float[Array, "column feature"]) -> Float[Array, " example"]:
        output = self.features.reshape(len(self.labels), -1) @ (factor @ projection).reshape(-1)
        return output + jnp.sqrt(self.temperature) * jax.random.normal(key, self.labels.shape)

    def _cholesky(self, kernel: Float[Array, "row row"]) -> Float[Array, "row row"]:
        """Of a matrix + T I."""
        return jnp.linalg.cholesky(kernel + self.temperature * jnp.eye(len(kernel)))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class LikelihoodByPairs(Likelihood):
    """The same, with K a sum over pairs of paths.

    Args:
        pairs: for each pair of paths (pi <= pi') the symmetrised kernel s_0^2 / (N_0 Pi) (xi^pi xi^pi'^T + its transpose),
            lower triangle only, shape (Pi (Pi + 1) / 2, P (P + 1) / 2).
    """

    pairs: Float[Array, "pair entry"]

    def kernel(self, factor: Factor) -> Float[Array, "example example"]:
        """K(U)."""
        return self.kernel_of(factor @ factor.T)

    def kernel_of(self, order_parameter: OrderParameter) -> Float[Array, "example example"]:
        """The same of any symmetric U."""
        return unpacked(self._packed(order_parameter), len(self.labels))

    def energy(self, factor: Factor) -> Float[Array, ""]:
        """log det(K + T I) + Y^T (K + T I)^{-1} Y (THEORY section 4)."""
        return self.energy_of(factor @ factor.T)

    def energy_of(self, order_parameter: OrderParameter) -> Float[Array, ""]:
        """The same of any symmetric U."""
        return packed_energy(self._packed(order_parameter), self.labels, self.temperature) + self._of_unseen()

    def _packed(self, order_parameter: OrderParameter) -> Float[Array, " entry"]:
        """Lower triangle of K(U), row by row."""
        symmetric = (order_parameter + order_parameter.T) / 2
        return symmetric[np.tril_indices(len(symmetric))] @ self.pairs


FORMS = ("pairs", "features", "feature_space")


def operations(examples: int, paths: int, features: int, columns: int) -> dict[str, float]:
    """Operations that the energy and its gradient take in each form, roughly, for F of so many columns.

    Each of the P^2 Pi^2 / 4 numbers that pairs are is read twice, each time as long as 16 operations take: measured from 60
    to 1000 examples and 4 to 16 paths, the form of fewest operations was the fastest, or within 5 % of it.
    """
    seen = columns * features
    return {
        "pairs": 8 * examples**2 * paths**2 + examples**3,
        "features": 4 * examples**2 * seen + examples**3,
        "feature_space": 4 * examples * seen**2 + seen**3,
    }


def cheapest_form(examples: int, features: int, arch: Architecture) -> str:
    """The form of fewest `operations`, but for pairs that would take more than `PAIRS_BYTES`."""
    work = operations(examples, arch.paths, features, layer_shapes(arch)[0].columns)
    if 8 * (arch.paths * (arch.paths + 1) // 2) * (examples * (examples + 1) // 2) > PAIRS_BYTES:
        del work["pairs"]
    return min(work, key=lambda form: work[form])


def likelihood(
    path_inputs: Any,
    labels: Any,
    arch: Architecture,
    temperature: Any,
    *,
    form: str | None = None,
    unseen: Unseen | None = None,
) -> Likelihood:
    """The likelihood of a training set, in its cheapest form or in the one asked for.

    Args:
        path_inputs: xi of shape (P, Pi, N_0).
        labels: Y of shape (P,).
        arch: the network.
        temperature: T, variance of the likelihood.
        form: "pairs" of paths, "features" for the P x P kernel as a Gram matrix, or "feature_space".
        unseen: further examples that no U gives an output, if there are any.

    Raises:
        ValueError: wrong shapes, entries that are not finite, a temperature that is not above 0, another form.
    """
    path_inputs = checked_path_inputs("path_inputs", path_inputs, arch)
    labels, temperature = finite_array("labels", labels, (len(path_inputs),)), positive("temperature", temperature)
    examples, paths, features = path_inputs.shape
    scaled = jnp.asarray(path_inputs) * input_scale(arch.variances[0], paths, features)
    held = (scaled, jnp.asarray(labels), jnp.asarray(temperature))
    if one_of("form", form or cheapest_form(examples, features, arch), FORMS) == "pairs":
        return LikelihoodByPairs(*held, pairs_of(scaled), unseen=unseen)
    return Likelihood(*held, side=SIDES[form] if form else None, unseen=unseen)


def likelihood_of(
    path_inputs: Any,
    labels: Any,
    arch: Architecture,
    temperature: Any,
    given: Likelihood | None,
    *,
    once: bool = False,
) -> Likelihood:
    """`likelihood`, or the one that is at hand for these data; for one kernel, `once`, pairs are not worth making.

    Raises ValueError as `likelihood` does, and where the one at hand is of other path inputs or another s_0.
    """
    if given is None:
        return likelihood(path_inputs, labels, arch, temperature, form="features" if once else None)
    if not isinstance(given, Likelihood):
        raise ValueError(f"likelihood must be a bayesattn.theory.likelihood.Likelihood, got {type(given).__name__}")
    path_inputs = checked_path_inputs("path_inputs", path_inputs, arch)
    labels = finite_array("labels", labels, (len(path_inputs),))
    if given.features.shape != path_inputs.shape:
        raise ValueError(
            f"likelihood must be of these path_inputs, of shape {path_inputs.shape}, got {given.features.shape}"
        )
    if not is_traced(path_inputs) and not is_traced(given.features):
        scaled = path_inputs * input_scale(arch.variances[0], *path_inputs.shape[1:])
        if not np.array_equal(scaled, given.features):
            raise ValueError("likelihood must be of these path_inputs and s_0, got one of others")
    return given.at(positive("temperature", temperature)).with_labels(jnp.asarray(labels))


def _mixed(features: Float[Array, "example path feature"], factor: Factor) -> Float[Array, "example column*feature"]:
    return jnp.einsum("epf,pq->eqf", features, factor).reshape(len(features), -1)
