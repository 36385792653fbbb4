"""Exact distribution of the order parameter to first order in 1/N.

The expansion of a posterior mean is known (Lindley 1980); its form in Bartlett coordinates and the choice between two
centres were worked out for this project. With V minus the log posterior density of a point of
`bayesattn.theory.bartlett`, c a centre, S the inverse of V's Hessian there and T3 its third derivative,

    E[g] = g(c) + grad g . shift + tr(Hess g S) / 2,   shift = -S (grad V + T3 : S / 2),   Cov[g] = grad g S grad g^T,

up to relative errors O(1/N^2) of the mean. There are two centres. The mode of V in Bartlett coordinates keeps the
shapes of the chi-squared distributions, but those have N, N - 1, N - 2, .. degrees of freedom, which treats path
suffixes unequally and fails if a layer is hardly wider than their number, or narrower. About the saddle point, all of V
that does not grow with N counts as a perturbation, so every path is treated alike.

The predictor depends on the point only through U. With dU_c the derivatives of U along columns c that span S, its mean
is g(U(c)) + Dg[E[U] - U(c)] + sum_c D^2 g[dU_c, dU_c] / 2, and the derivatives of g are known in closed form.
"""

import warnings
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayesattn._util.checks import Checked, one_of
from bayesattn._util.settings import with_own_settings
from bayesattn._util.text import as_html, as_text
from bayesattn.architecture import Architecture
from bayesattn.kernels.conditionals import Prediction
from bayesattn.kernels.forms import compressed
from bayesattn.kernels.path_inputs import by_label, checked_path_inputs, scaled_features
from bayesattn.theory.arguments import gaussian_density, refuse_traced
from bayesattn.theory.bartlett import layer_shapes
from bayesattn.theory.mode import Mode, find_mode, spanning
from bayesattn.theory.potential import Point, Problem, Shapes, Whitening, problem_of, refuse_many
from bayesattn.theory.saddle_point import NUMBERS_SHOWN, NotConverged, likely_cause, saddle_point

CENTRE_NAMES = {"mode": "mode", "saddle": "saddle point"}
LEAST_WIDTH_RATIO = 2
"""Least ratio of a layer's width to the number of its path suffixes for an expansion about the mode.

The width must also be at least half the square of that number, because degrees of freedom N, N - 1, .. fall short of N
by as much in total. With 18 rows at N = 40 (two layers, three outputs), the last entries were off by 8 % about the mode,
without a visible error about the saddle point. A skip counts as one more way although it only copies: the other
columns lack the degrees of freedom of the copied ones.
"""


class Moments(NamedTuple):
    """E[U] to first order, and the derivatives of U along columns that span its covariance."""

    mean: Float[Array, "path path"]
    slopes: Float[Array, "coordinate path path"]


class FiniteWidth(NamedTuple):
    """Posterior mean of the entries of U, and the predictor, with their corrections of order 1/N; and the variance of U.

    `order_parameter_variance` is the leading order, 1/N, without a correction: its relative error is of order 1/N, 11
    to 23 % at N = 20. `prediction` is None without test examples; its variance is the mean of variances plus the
    variance of means. `about` is the centre of the expansion.
    """

    order_parameter: Float[Array, "path path"]
    order_parameter_variance: Float[Array, "path path"]
    prediction: Prediction | None
    gradient_norm: Float[Array, ""]
    about: str

    __repr__ = as_text  # pyright: ignore[reportAssignmentType]
    _repr_html_ = as_html

    def _described(self) -> tuple[str, dict[str, str]]:
        own, deviation = np.diag(self.order_parameter), np.sqrt(np.diag(self.order_parameter_variance))
        greatest = np.argsort(-own, kind="stable")[:NUMBERS_SHOWN]
        entries = ", ".join(f"{own[row]:.4g} (row {row + 1}, deviation {deviation[row]:.2g})" for row in greatest)
        which = "greatest" if len(own) > NUMBERS_SHOWN else "all"
        rows = {"U": f"{len(own)} x {len(own)}; {which} entries on its diagonal: {entries}"}
        if self.prediction is not None:
            means = np.asarray(self.prediction.mean)
            rows["prediction"] = f"of {len(means)} examples, means {np.min(means):.3g} to {np.max(means):.3g}"
        return f"FiniteWidth: to first order in 1/N, about the {CENTRE_NAMES[self.about]}", rows


@with_own_settings
def finite_width(
    model: Checked,
    test_path_inputs: Checked = None,
    *,
    about: str | None = None,
    variances: bool = True,
    max_steps: int = 200,
) -> FiniteWidth:
    """Order parameter and predictor at finite width, to first order beyond the saddle point.

    Args:
        model: the posterior, a `bayesattn.Model` with Gaussian labels.
        test_path_inputs: xi of shape (P_test, Pi, N_0) for the predictor, by default those of the model.
        about: "mode" or "saddle", the centre of the expansion; by default the saddle point if a layer is narrower than
            twice the number of its path suffixes, H_l .. H_L, or than half the square of that number. Outputs multiply
            it, and a skip counts as a head.
        variances: whether to compute the predictor's variances, which cost most; otherwise they are NaN.
        max_steps: most Newton steps to the mode or the saddle point.

    Raises:
        ValueError: not a model, or a model of classes; wrong shapes, entries that are not finite or that JAX traces,
            too many coordinates, another centre.
        NotConverged: the mode or the saddle point was not found.
    """
    density, arch = gaussian_density(model), model.architecture
    refuse_traced("finite_width", test_path_inputs=test_path_inputs)
    process = compressed(density, arch)
    full = layer_shapes(arch, full=True)
    refuse_many("an expansion to first order in 1/N", full)
    about = usual_centre(arch) if about is None else about
    if one_of("about", about, ("mode", "saddle")) == "mode":
        (centre, problem), shapes = find_mode(process, arch, max_steps), layer_shapes(arch)
    else:
        saddle, problem, shapes = saddle_point(process, arch, max_steps), problem_of(process, arch), full
        whitening = Whitening(saddle.point, _scale(saddle.point, problem, shapes))
        centre = Mode(whitening, jnp.array(jnp.nan), saddle.gradient_norm)
        if not np.isfinite(whitening.scale).all():
            raise NotConverged(
                f"the curvature at the saddle point is not positive definite in float64; {likely_cause(process, arch)}",
                centre,
            )
    moments = _moments(centre, problem, shapes)
    prediction = None
    test = model.test_path_inputs if test_path_inputs is None else test_path_inputs
    if test is not None:
        test = checked_path_inputs("test_path_inputs", test, arch, features=density.features.shape[1])
        prediction = _predictor(centre, moments, problem, scaled_features(test, arch.input_variance), shapes, variances)
        prediction = Prediction(*map(process.by_example, prediction))
    variance = jnp.asarray(np.sum(np.square(moments.slopes), axis=0))
    if (least := float(np.min(np.diag(moments.mean)))) < 0:
        warnings.warn(
            f"to first order in 1/N a mean of a diagonal entry of U is {least:.3g}, below 0: the series does not converge at"
            " this width",
            stacklevel=3,
        )
    return FiniteWidth(moments.mean, variance, prediction, centre.gradient_norm, about)


def usual_centre(arch: Architecture) -> str:
    """Default centre of the expansion."""
    full = layer_shapes(arch, full=True)
    least = (max(LEAST_WIDTH_RATIO * shape.columns, shape.columns**2 / 2) for shape in full)
    wide = all(width >= rows for width, rows in zip(arch.widths, least, strict=True))
    return "mode" if wide else "saddle"


@partial(jax.jit, static_argnames="shapes")
def _scale(point: Point, problem: Problem, shapes: Shapes) -> Float[Array, "coordinate coordinate"]:
    return spanning(problem.local(shapes)(point).hessian)


@partial(jax.jit, static_argnames="shapes")
def _moments(mode: Mode, problem: Problem, shapes: Shapes) -> Moments:
    local = problem.local(shapes)
    scale = mode.whitening.scale
    covariance = scale @ scale.T

    def curvature(point: Point):
        """tr(Hess V S) at fixed S, whose gradient is T3 : S; and the gradient of V."""
        here = local(point)
        return jnp.sum(here.hessian * covariance), here.gradient

    third, gradient = jax.grad(curvature, has_aux=True)(mode.point)

    def order_parameter(point: Point) -> Float[Array, "path path"]:
        return problem.order_parameter(point, shapes)

    def along(column: Point):
        """First and second derivative along a column at the mode."""
        return jax.jvp(lambda p: jax.jvp(order_parameter, (p,), (column,))[1], (mode.point,), (column,))

    # At the saddle point, only the prior's degrees of freedom contribute to V's gradient; they are not in Hessian and T3.
    shift = -covariance @ (gradient + third / 2)
    value, shifted = jax.jvp(order_parameter, (mode.point,), (shift,))
    slopes, curvatures = jax.vmap(along)(scale.T)
    return Moments(value + shifted + jnp.sum(curvatures, axis=0) / 2, slopes)


@partial(jax.jit, static_argnames=("shapes", "variances"))
def _predictor(
    mode: Mode, moments: Moments, problem: Problem, test_features, shapes: Shapes, variances: bool
) -> Prediction:
    """Predictor from A = K(U) + T I = L L^T, Z = L^{-1} X with X the scaled path inputs, and v = X^T A^{-1} Y.

    The mean is x . r with the readout r = U v, whose derivatives along D are r' = D v - U u and r'' = 2 (U Z^T Z D u
    - D u), u = Z^T Z D v. The variance is x . U x - |Z U x|^2; with R = x - Z^T Z U x its derivatives are R . D R
    and -2 |Z D R|^2.
    """
    factor = problem.factor(mode.point, shapes)
    at, change = factor @ factor.T, moments.mean - factor @ factor.T
    solved = problem.process.solve(factor)
    labels, *shape = solved.features.shape
    whitened, pulled = solved.features.reshape(labels, -1), solved.weighted

    def through(vector: Float[Array, "feature path"]) -> Float[Array, "feature path"]:
        return (whitened.T @ (whitened @ vector.reshape(-1))).reshape(shape)

    def derivatives(direction: Float[Array, "path path"]):
        first = through(pulled @ direction)
        return pulled @ direction - first @ at, 2 * (through(first @ direction) @ at - first @ direction)

    slopes, curvatures = jax.vmap(derivatives)(moments.slopes)
    readout = pulled @ at + derivatives(change)[0] + jnp.sum(curvatures, axis=0) / 2
    test = by_label(test_features, problem.process.outputs)
    flat_test = test.reshape(len(test), -1)
    mean = flat_test @ readout.reshape(-1)
    if not variances:
        return Prediction(mean, jnp.full_like(mean, jnp.nan))
    weighed = (test @ at).reshape(len(test), -1)
    explained = weighed @ whitened.T
    residual = (flat_test - explained @ whitened).reshape(test.shape)

    def bend(direction: Float[Array, "path path"]) -> Float[Array, " test_example"]:
        turned = (residual @ direction).reshape(len(test), -1)
        return jnp.sum((turned @ whitened.T) ** 2, axis=1)

    variance = jnp.sum(flat_test * weighed, axis=1) - jnp.sum(explained**2, axis=1)
    variance += jnp.einsum("efp,pq,efq->e", residual, change, residual)
    variance -= jnp.sum(jax.lax.map(bend, moments.slopes), axis=0)
    of_means = jnp.sum((flat_test @ slopes.reshape(len(slopes), -1).T) ** 2, axis=1)
    return Prediction(mean, variance + of_means)
