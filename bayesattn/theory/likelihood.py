"""The likelihood of the labels given a factor F of the order parameter U = F F^T: Y ~ Normal(0, K(U) + T I).

With several outputs Y counts (example, output) pairs, and rows of F (path, output) pairs, outputs fastest: the law is that
of one output on P m examples with Pi m path inputs, of which those of other outputs are 0 (EXTENSIONS section 1).

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
from threadpoolctl import threadpool_limits

from bayesattn._checks import is_traced, one_of, positive
from bayesattn.architecture import Architecture
from bayesattn.theory.energies import (
    energy_by_products,
    gram,
    gram_by_products,
    gram_energy,
    kernel_energy,
    packed_energy,
    pairs_of,
    projection_energy,
    unpacked,
)
from bayesattn.theory.features import blocks, mixed, of_outputs, outputs_of, scaled_features
from bayesattn.theory.forms import FORMS, SIDES, by_products, cheapest_form, rows_of, smaller_by_features
from bayesattn.theory.kernels import checked_labels, checked_path_inputs

Factor = Float[Array, "row column"]
OrderParameter = Float[Array, "row row"]
LEAST_PIVOT = 1e5
"""Times that a pivot must be above the rounding of K, so that the energy has six digits: with K of rank 3 it had 5.5 at 1e4
and 6.5 at 1e5 (6 to 40 examples), in feature space all. From about 1000 times down (40 and 100 examples, K of rank 6 and 10)
the search of the saddle point ended at wrong points as if it had converged."""


class Prediction(NamedTuple):
    """Mean and variance of the network's output f on each test example (without the label noise T).

    With several outputs the last axis counts them.
    """

    mean: Float[Array, "*batch test_example"]
    variance: Float[Array, "*batch test_example"]


class EnergyExpansion(NamedTuple):
    """Second-order expansion of the energy E in U, or in F: E, its slope, and its curvature (entries row by row)."""

    value: Float[Array, ""]
    slope: Float[Array, "path column"]
    curvature: Float[Array, "path*column path*column"]


class Solved(NamedTuple):
    """With A = K(U) + T I = L L^T and X the scaled path inputs: L, L^{-1} X, L^{-1} Y, and X^T A^{-1} Y."""

    cholesky: Float[Array, "example example"]
    whitened: Float[Array, "example feature path"]
    labels: Float[Array, " example"]
    weighted: Float[Array, "feature path"]


class Unseen(NamedTuple):
    """Examples beyond those that are held, whose outputs are 0 whatever the weights: their number and |Y|^2.

    `bayesattn.Dataset` turns any number of examples into Pi N_0 and such as these.
    """

    examples: Any
    square: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Likelihood:
    """Y ~ Normal(0, K(U) + T I), with K formed from features: as the Gram matrix of path inputs times F.

    Args:
        features: path inputs times s_0 / sqrt(N_0 Pi), shape (P, N_0, Pi): paths last, so that they are mixed by a
            product of matrices.
        labels: Y of shape (P m,), the outputs of the first example first.
        temperature: T.
        products: of features with features over all examples, X^T X of shape (N_0, Pi, N_0, Pi), where A^T A takes fewer
            operations by them.
        side: of A = `features` F, P rows and r N_0 columns, on which A A^T + T I or A^T A + T I is formed: "examples" or
            "features", by default the shorter one.
        unseen: further examples that no U gives an output, if there are any.
        outputs: m.
    """

    features: Float[Array, "example feature path"]
    labels: Float[Array, " label"]
    temperature: Any
    side: str | None = field(default=None, kw_only=True, metadata={"static": True})
    outputs: int = field(default=1, kw_only=True, metadata={"static": True})
    unseen: Unseen | None = field(default=None, kw_only=True)
    products: Float[Array, "feature path feature path"] | None = field(default=None, kw_only=True)

    def at(self, temperature: Any) -> "Likelihood":
        """The same at another temperature."""
        return replace(self, temperature=jnp.asarray(temperature, float))

    def with_labels(self, labels: Float[Array, " *labels"]) -> "Likelihood":
        """The same of other labels, of shape (P,) or (P, m)."""
        return replace(self, labels=jnp.ravel(labels))

    def condensed(self, arch: Architecture) -> "Likelihood":
        """The same of fewer examples, where they are many: those that the triangle R of [X Y] = Q R makes, and unseen ones.

        Searches, which take a matrix of the labels' size apart at every step, and chains look at these. The form is the
        cheapest of as few, unless one without pairs was asked for by name.
        """
        examples, features, paths = self.features.shape
        columns = features * paths
        if rows_of(examples, columns, self.outputs) == examples:
            return self
        rows = jnp.column_stack([self.flat, self.labels.reshape(examples, -1)])
        with threadpool_limits(
            1, user_api="blas"
        ):  # As many threads every time: their number may change the last bits.
            triangle = jax.block_until_ready(jnp.linalg.qr(rows, mode="r"))
        more = Unseen(0, 0.0) if self.unseen is None else self.unseen
        left = jnp.sum(triangle[columns:, columns:] ** 2)
        return _in_form(
            next((form for form, side in SIDES.items() if side == self.side), None),
            triangle[:columns, :columns].reshape(columns, features, paths),
            triangle[:columns, columns:].reshape(-1),
            self.temperature,
            arch,
            Unseen(more.examples + examples - columns, more.square + left),
        )

    def kernel(self, factor: Factor) -> Float[Array, "label label"]:
        """K(U)."""
        return gram(self.mixed(factor))

    def kernel_of(self, order_parameter: OrderParameter) -> Float[Array, "label label"]:
        """The same of any symmetric U; where U is nearly singular a factor keeps more digits."""
        mixed = self.mixed(order_parameter)
        if self.outputs == 1:
            return mixed @ self.flat.T
        by_output = mixed.reshape(len(mixed), -1, self.outputs)
        return jnp.einsum("xkc,ek->xec", by_output, self.flat).reshape(len(mixed), -1)

    @property
    def flat(self) -> Float[Array, "example column"]:
        """`features`, a row for each example."""
        return self.features.reshape(len(self.features), -1)

    @property
    def of_labels(self) -> Float[Array, "label feature row"]:
        """`features` of each label, with paths of each output: those of other outputs are 0."""
        return of_outputs(self.features, self.outputs)

    @property
    def constant(self) -> Any:
        """P m log(2 pi): minus twice the log density is this and the energy."""
        return (len(self.labels) + self._more_labels) * np.log(2 * np.pi)

    @property
    def _more_labels(self) -> Any:
        return 0 if self.unseen is None else self.unseen.examples * self.outputs

    def mixed(self, factor: Factor) -> Float[Array, "label mixed_column"]:
        """A with A A^T = K(U): f is A times standard normal numbers, those of Z, feature by feature."""
        return mixed(self.features, factor, self.outputs)

    def energy(self, factor: Factor) -> Float[Array, ""]:
        """log det(K + T I) + Y^T (K + T I)^{-1} Y (THEORY section 4)."""
        in_features = self.in_feature_space(factor.shape[1])
        if in_features and self.products is not None:
            pulled = (factor.T @ self._pulled(self.labels)).T.reshape(-1)
            known = (self.products, pulled, self.labels, self.temperature)
            return energy_by_products(factor, self.features, *known, self.outputs) + self._of_unseen()
        energy = projection_energy if in_features else gram_energy
        return energy(self.mixed(factor), self.labels, self.temperature) + self._of_unseen()

    def in_feature_space(self, columns: int) -> bool:
        """Whether A^T A + T I is formed of factors of so many columns, not A A^T + T I."""
        features = self.features.shape[1]
        return self.side == "features" if self.side else smaller_by_features(columns, features, len(self.labels))

    def energy_of(self, order_parameter: OrderParameter) -> Float[Array, ""]:
        """The same of any symmetric U."""
        return kernel_energy(self.kernel_of(order_parameter), self.labels, self.temperature) + self._of_unseen()

    def _of_unseen(self) -> Any:
        """What further examples add to the energy."""
        if self.unseen is None:
            return 0.0
        return self._more_labels * jnp.log(self.temperature) + self.unseen.square / self.temperature

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
        # L^-1 (X, Y)
        features = self.of_labels
        both = jnp.column_stack([features.reshape(len(features), -1), self.labels])
        both = jax.scipy.linalg.solve_triangular(cholesky, both, lower=True)
        whitened, labels = both[:, :-1], both[:, -1]
        weighted = (whitened.T @ labels).reshape(features.shape[1:])
        return Solved(cholesky, whitened.reshape(features.shape), labels, weighted)

    def expansion(self, factor: Factor) -> EnergyExpansion:
        """The energy around U, to second order.

        With Z_p = L^{-1} X_p of each path and v_p = X_p^T A^{-1} Y: dE/dU_pq = tr(Z_p^T Z_q) - v_p . v_q, and
        d^2E/dU_pq dU_rs = -tr(Z_q^T Z_r Z_s^T Z_p) + 2 v_p^T (Z_q^T Z_r) v_s, on changes of U that are symmetric.
        All examples enter through the Gram matrix of the Z alone, so that this costs a few kernels, however many entries U
        has.
        """
        cholesky, whitened, labels, weighted = self.solved(factor)
        examples, _, paths = whitened.shape
        energy = 2 * jnp.sum(jnp.log(jnp.diag(cholesky))) + labels @ labels + self._of_unseen()
        slope = jnp.einsum("efp,efq->pq", whitened, whitened) - weighted.T @ weighted
        # Features last: pairs of paths are then in front of pairs of features without single numbers being moved.
        by_path = jnp.swapaxes(whitened, 1, 2)

        def add(traces, block):
            rows = jnp.einsum("epf,eqg->pqfg", by_path, block).reshape(paths**2, -1)
            return traces + rows @ rows.T, None

        # Rows (q, r) and columns (p, s).
        traces, _ = jax.lax.scan(add, jnp.zeros((paths**2, paths**2)), blocks(by_path, paths))
        trace_term = jnp.einsum("qrps->pqrs", traces.reshape((paths,) * 4)).reshape(traces.shape)
        # Z_q v_p
        pulled = jnp.einsum("efq,fp->pqe", whitened, weighted).reshape(paths**2, examples)
        return EnergyExpansion(energy, slope, 2 * pulled @ pulled.T - trace_term)

    def expansion_in_factor(self, factor: Factor) -> EnergyExpansion:
        """The energy around F of r columns, to second order: (Pi r)^2 numbers, fewer than Pi^4 where r < Pi.

        With B = X F, A = B B^T + T I, v = X^T A^{-1} Y, w = B^T A^{-1} Y and changes d of F, which change A by dA:

            d log det A = 2 tr(d^T X^T A^{-1} B),   d^2 log det A = 2 |A^{-1/2} X d|^2 - tr(A^{-1} dA A^{-1} dA),
            d Y^T A^{-1} Y = -2 v d w,   d^2 Y^T A^{-1} Y = 2 |A^{-1/2} dA A^{-1} Y|^2 - 2 |d^T v|^2.
        """
        cholesky, whitened, labels, weighted = self.solved(factor)
        examples, _, paths = whitened.shape
        columns = factor.shape[1]
        # A^{-1/2} B and w
        mixed, read = whitened @ factor, weighted @ factor
        energy = 2 * jnp.sum(jnp.log(jnp.diag(cholesky))) + labels @ labels + self._of_unseen()
        slope = 2 * (jnp.einsum("efp,efq->pq", whitened, mixed) - weighted.T @ read)
        entries = paths * columns
        by_path, by_column = jnp.swapaxes(whitened, 1, 2), jnp.swapaxes(mixed, 1, 2)

        def add(sums, block):
            alike, crossed = sums
            outer, inner = block
            of_paths = jnp.einsum("epf,erg->prfg", by_path, outer).reshape(paths**2, -1)
            of_columns = jnp.einsum("eqf,esg->qsfg", by_column, inner).reshape(columns**2, -1)
            there = jnp.einsum("epf,esg->psfg", by_path, inner).reshape(entries, -1)
            back = jnp.einsum("eqf,erg->rqfg", by_column, outer).reshape(entries, -1)
            return (alike + of_paths @ of_columns.T, crossed + there @ back.T), None

        nothing = jnp.zeros((paths**2, columns**2)), jnp.zeros((entries, entries))
        (alike, crossed), _ = jax.lax.scan(add, nothing, (blocks(by_path, paths), blocks(by_column, paths)))
        # tr(A^{-1} dA A^{-1} dA') / 2 of entries (p, q) and (r, s)
        traces = jnp.einsum("prqs->pqrs", alike.reshape(paths, paths, columns, columns))
        traces += jnp.einsum("psrq->pqrs", crossed.reshape(paths, columns, paths, columns))
        direct = jnp.einsum("efp,efr->pr", whitened, whitened) - weighted.T @ weighted
        # A^{-1/2} dA A^{-1} Y
        moved = jnp.einsum("efp,fq->epq", whitened, read) + jnp.einsum("efq,fp->epq", mixed, weighted)
        moved = moved.reshape(examples, -1)
        curvature = jnp.einsum("pr,qs->pqrs", direct, jnp.eye(columns)) - traces
        return EnergyExpansion(energy, slope, 2 * (curvature.reshape(moved.shape[1], -1) + moved.T @ moved))

    def readout_of(self, order_parameter: OrderParameter) -> Float[Array, "row feature"]:
        """U X^T (K + T I)^{-1} Y, whose product with scaled path inputs is the mean of f there (THEORY section 5)."""
        coefficients = jax.scipy.linalg.cho_solve((self._cholesky(self.kernel_of(order_parameter)), True), self.labels)
        return order_parameter @ self._pulled(coefficients)

    def _pulled(self, coefficients: Float[Array, " label"]) -> Float[Array, "row feature"]:
        """X^T times a number for each label."""
        by_output = jnp.tensordot(coefficients.reshape(-1, self.outputs).T, self.features, 1)
        return jnp.moveaxis(by_output, 2, 0).reshape(-1, self.features.shape[1])

    def prediction_of(
        self, order_parameter: OrderParameter, features: Float[Array, "test_example feature path"]
    ) -> Prediction:
        """Mean k_*^T (K + T I)^{-1} Y and variance k_** - k_*^T (K + T I)^{-1} k_* of f given U, at scaled path inputs.

        With several outputs both have shape (P_test, m).
        """
        weighed, test = mixed(features, order_parameter, self.outputs), of_outputs(features, self.outputs)
        train, test = self.of_labels.reshape(len(self.labels), -1), test.reshape(len(test), -1)
        cross = train @ weighed.T
        # K + T I = L L^T: mean = (L^-1 k_*)^T L^-1 Y, explained variance = |L^-1 k_*|^2
        both = jnp.column_stack([self.labels, cross])
        whitened = jax.scipy.linalg.solve_triangular(self._cholesky(self.kernel_of(order_parameter)), both, lower=True)
        variance = jnp.sum(weighed * test, axis=1) - jnp.sum(whitened[:, 1:] ** 2, axis=0)
        return Prediction(*(self.by_example(each) for each in (whitened[:, 1:].T @ whitened[:, 0], variance)))

    def by_example(self, values: Float[Array, "*batch label"]) -> Float[Array, "*batch_and_example"]:
        """Values of all labels with an axis of outputs, where there are several."""
        return values if self.outputs == 1 else values.reshape(*values.shape[:-1], -1, self.outputs)

    def leave_one_out_of(self, order_parameter: OrderParameter) -> Float[Array, " example"]:
        """log p(Y_i | Y of all other examples, U) of each example, without a solve for each of them.

        With A = K + T I it is that of a normal law of mean Y_i - (A^{-1} Y)_i / (A^{-1})_ii and variance 1 / (A^{-1})_ii
        (Sundararajan and Keerthi 2001; Rasmussen and Williams 2006, equations 5.10 to 5.12). Of several outputs, all those
        of an example are left out, and its entries of A^{-1} are a block.
        """
        cholesky = self._cholesky(self.kernel_of(order_parameter))
        both = jnp.column_stack([jnp.eye(len(cholesky)), self.labels])
        whitened = jax.scipy.linalg.solve_triangular(cholesky, both, lower=True)
        solution = whitened[:, :-1].T @ whitened[:, -1]
        if self.outputs > 1:
            columns = whitened[:, :-1].reshape(len(cholesky), -1, self.outputs)
            blocks = jnp.einsum("xec,xed->ecd", columns, columns)
            solution = solution.reshape(-1, self.outputs)
            squares = jnp.einsum("ec,ec->e", solution, jnp.linalg.solve(blocks, solution[..., None])[..., 0])
            return (jnp.linalg.slogdet(blocks / (2 * np.pi))[1] - squares) / 2
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

    def _projection(self, factor: Factor, labels: Float[Array, " label"]) -> Float[Array, "column feature"]:
        """Posterior mean of Z given labels."""
        if self.in_feature_space(factor.shape[1]):
            if self.products is None:
                found = gram(self.mixed(factor).T)
            else:
                found = gram_by_products(factor, self.products, self.outputs)
            pulled = (factor.T @ self._pulled(labels)).T.reshape(-1)
            return jax.scipy.linalg.cho_solve((self._cholesky(found), True), pulled).reshape(-1, factor.shape[1]).T
        coefficients = jax.scipy.linalg.cho_solve((self._cholesky(self.kernel(factor)), True), labels)
        return factor.T @ self._pulled(coefficients)

    def sample_labels(self, key: Key[Array, ""], factor: Factor) -> Float[Array, " label"]:
        """Labels drawn given U: Normal(0, K + T I)."""
        prior_key, noise_key = jax.random.split(key)
        return self._noisy(noise_key, factor, self._prior_projection(prior_key, factor))

    def _prior_projection(self, key, factor: Factor) -> Float[Array, "column feature"]:
        return jax.random.normal(key, (factor.shape[1], self.features.shape[1]))

    def _noisy(self, key, factor: Factor, projection: Float[Array, "column feature"]) -> Float[Array, " label"]:
        output = outputs_of(self.features, factor @ projection, self.outputs)
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
        labels: Y of shape (P,), or (P, m) of m > 1 outputs.
        arch: the network.
        temperature: T, variance of the likelihood.
        form: "pairs" of paths, of one output alone, "features" for the P x P kernel as a Gram matrix, or "feature_space".
        unseen: further examples that no U gives an output, if there are any.

    Raises:
        ValueError: wrong shapes, entries that are not finite, a temperature that is not above 0, another form.
    """
    path_inputs = checked_path_inputs("path_inputs", path_inputs, arch)
    labels = checked_labels("labels", labels, len(path_inputs), arch)
    temperature = positive("temperature", temperature)
    if form is not None and one_of("form", form, FORMS) == "pairs" and arch.outputs > 1:
        raise ValueError(f"form must be 'features' or 'feature_space' of {arch.outputs} outputs, got 'pairs'")
    scaled = scaled_features(path_inputs, arch.input_variance)
    # Of the type that `at` gives it: programs are compiled once for both.
    return _in_form(form, scaled, jnp.ravel(jnp.asarray(labels)), jnp.asarray(temperature, float), arch, unseen)


def _in_form(
    form: str | None, features: Array, labels: Array, temperature: Any, arch: Architecture, unseen: Unseen | None
) -> Likelihood:
    """In the form asked for by name, or in the cheapest."""
    examples, size, _ = features.shape
    if (form or cheapest_form(examples, size, arch)) == "pairs":
        return LikelihoodByPairs(features, labels, temperature, pairs_of(features), unseen=unseen)
    products = None
    if form != "features" and by_products(examples, size, arch):
        products = jnp.tensordot(features, features, (0, 0))
    side = SIDES[form] if form else None
    return Likelihood(features, labels, temperature, side=side, unseen=unseen, outputs=arch.outputs, products=products)


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
    labels = checked_labels("labels", labels, len(path_inputs), arch)
    examples, features, paths = given.features.shape
    if path_inputs.shape != (examples, paths, features):
        raise ValueError(
            f"likelihood must be of these path_inputs, of shape {path_inputs.shape}, got {(examples, paths, features)}"
        )
    known = not is_traced(path_inputs) and not is_traced(given.features)
    if known and not np.array_equal(scaled_features(path_inputs, arch.input_variance), given.features):
        raise ValueError("likelihood must be of these path_inputs and s_0, got one of others")
    if given.outputs != arch.outputs:
        raise ValueError(f"likelihood must be of {arch.outputs} outputs, got one of {given.outputs}")
    return given.at(positive("temperature", temperature)).with_labels(jnp.asarray(labels))
