"""Properties of the theory that need no reference, and its error messages."""

import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayesattn as ba
from bayesattn import models
from bayesattn.kernels.expansions import expansion
from bayesattn.kernels.forms import FORMS, gaussian_process
from bayesattn.models import model as posterior
from bayesattn.theory import bartlett, mode, potential, saddle_point
from bayesattn.theory.predictor import outputs_at
from tests.conftest import model_of, relative_error

ARCH = ba.Architecture((2,), (5, 5), (1.0,) * 3)
RNG = np.random.default_rng(0)
FOUR, LABELS = RNG.normal(size=(4, 2, 9)), RNG.normal(size=4)


def process_of(of, arch=None, scale=1.0, form=None):
    """The Gaussian process of a stored network, of another architecture or with labels so much larger."""
    return gaussian_process(of.path_inputs, scale * of.labels, arch or of.arch, of.temperature, form=form)


def test_anything_but_a_model_is_refused():
    theory, u = ba.theory, np.eye(2)
    latent = models.LatentModel(features=np.ones((2, 3)), values=np.ones((2, 1)), noise=1.0, prior=1.0)
    for call, *arguments in (
        (theory.solve, FOUR),
        *((call, ARCH) for call in (theory.finite_width, theory.evidence, theory.gp_evidence)),
        (theory.action, [u], latent),
        (theory.predict, u, latent),
        (theory.evidences, latent, [0.3]),
    ):
        with pytest.raises(ValueError, match=r"^model must be a bayesattn\.Model, got [A-Za-z]+$"):
            call(*arguments)


@pytest.mark.parametrize("features", [9, 3], ids=["pairs", "features"])
def test_another_temperature_or_network_is_that_of_a_model_of_it(features):
    """A network of another s_0, which changes kernels, or of another width; what takes longest in one form of kernels."""
    theory, u = ba.theory, np.array([[1.0, 0.4], [0.4, 0.7]])
    xi, test = FOUR[..., :features], np.cos(FOUR[:3, :, :features])
    model = model_of(xi, LABELS, ARCH, 0.5, test_path_inputs=test)
    colder = model.replace(temperature=0.1)

    def same(found, expected):
        np.testing.assert_allclose(found, expected, rtol=1e-9)

    same(theory.gp_evidence(model, temperature=0.1), theory.gp_evidence(colder))
    same(theory.action([u], model, temperature=0.1).energy, theory.action([u], colder).energy)
    same(theory.solve(model, temperature=0.1).order_parameter, theory.solve(colder).order_parameter)
    for other in (ARCH.with_width(9), ba.Architecture((2,), (9, 9), (4.0, 1.0, 1.0))):
        found, alone = theory.solve(model, arch=other), theory.solve(model.replace(architecture=other))
        same(found.order_parameter, alone.order_parameter)
    same(theory.predict(u, model, xi).mean, theory.predict(u, model.replace(test_path_inputs=xi)).mean)
    same(theory.predict(u.tolist(), model, test.tolist()).mean, theory.predict(u, model).mean)
    if features == 3:
        return
    alone = theory.evidence(colder, seed=1)
    assert theory.evidence(model, temperature=0.1, seed=1) == alone
    assert theory.evidences(model, [0.1], seed=1) == [alone]
    expected = theory.finite_width(model.replace(test_path_inputs=xi)).prediction.mean
    same(theory.finite_width(model, xi).prediction.mean, expected)
    assert theory.finite_width(model.replace(test_path_inputs=None)).prediction is None


def test_a_model_makes_its_kernels_once_and_does_not_pickle_them(monkeypatch):
    """Nor are they made anew for other labels, temperatures and widths, or in a function that is traced."""
    model = model_of(FOUR, LABELS, ARCH, 0.5)
    size = len(pickle.dumps(model))
    pairs = np.asarray(model.gaussian_process.pairs)
    made, make = [], posterior.gaussian_process

    def counted(*arguments, **named):
        made.append(arguments)
        time.sleep(0.05)
        return make(*arguments, **named)

    monkeypatch.setattr(posterior, "gaussian_process", counted)
    other, wider_prior = model.replace(path_inputs=2 * FOUR), ba.Architecture((2,), (5, 5), (4.0, 1.0, 1.0))
    relabelled, colder = other.replace(labels=-LABELS), other.replace(temperature=0.1, width=9)
    with ThreadPoolExecutor(5) as pool:
        kernels = {id(found.pairs) for found in pool.map(lambda each: each.gaussian_process, (other, relabelled) * 2)}
    assert (len(made), len(kernels)) == (1, 1)
    jax.jit(lambda u: other.gaussian_process.energy_of(u))(jnp.eye(2))
    ba.theory.solve(relabelled, arch=ARCH.with_width(7), temperature=0.1)
    assert colder.gaussian_process.pairs is other.gaussian_process.pairs
    assert len(made) == 1
    np.testing.assert_array_equal(relabelled.gaussian_process.labels, -LABELS[:, None])
    assert (colder.gaussian_process.temperature, other.gaussian_process.temperature) == (0.1, 0.5)
    for changed in (other, model.replace(architecture=wider_prior)):
        np.testing.assert_allclose(changed.gaussian_process.pairs, 4 * pairs, rtol=1e-14)
    assert len(pickle.dumps(model)) == size
    again = pickle.loads(pickle.dumps(other))
    assert ba.theory.gp_evidence(again) == ba.theory.gp_evidence(other)


@pytest.mark.parametrize(
    ("search", "name"), [("solve", "temperature"), ("evidence", "temperature"), ("finite_width", "test_path_inputs")]
)
def test_what_searches_by_the_numbers_cannot_be_traced(two_layers, search, name):
    def value(traced):
        return getattr(ba.theory, search)(two_layers.model, **{name: traced})[0]

    with pytest.raises(ValueError, match=f"{name} must be numbers: {search} cannot be traced by JAX"):
        jax.grad(value)(jnp.asarray(getattr(two_layers.model, name)))


def by_differences(function, at, step):
    return (function(at + step) - function(at - step)) / (2 * step)


def test_the_predictor_can_be_differentiated(two_layers):
    """By the order parameter and by the test inputs, against differences."""
    u, test = np.asarray(two_layers.order_parameters[0]), two_layers.test_path_inputs

    @jax.jit
    def value(u, test):
        found = ba.theory.predict(u, two_layers.model, test)
        return jnp.sum(found.mean) + jnp.sum(found.variance)

    slopes, change = jax.device_get(jax.jit(jax.grad(value, (0, 1)))(u, test)), (u @ u, np.cos(test))
    along = sum(np.vdot(slope, direction) for slope, direction in zip(slopes, change, strict=True))
    expected = by_differences(lambda step: value(u + step * change[0], test + step * change[1]), 0.0, 1e-5)
    assert relative_error(along, expected) < 1e-6


def test_outputs_are_those_of_each_output_s_readout():
    rng = np.random.default_rng(0)
    readouts, path_inputs = rng.normal(size=(2, 3, 4, 5)), rng.normal(size=(6, 3, 5))  # (draw, path, output, feature)
    found = outputs_at(readouts.reshape(2, -1), path_inputs)
    np.testing.assert_allclose(found.reshape(2, 6, 4), np.einsum("dpof,epf->deo", readouts, path_inputs))


def test_evidence_of_the_gp_limit_can_be_differentiated(two_layers):
    def value(temperature):
        return ba.theory.gp_evidence(two_layers.model, temperature=temperature)

    assert isinstance(value(0.5), float)
    assert jax.jit(jax.grad(value))(0.5) == pytest.approx(by_differences(value, 0.5, 1e-5), rel=1e-6)


def test_the_action_can_be_differentiated(two_layers):
    """Its gradient vanishes at the saddle point, also through `jax.jit`, and matches differences by the temperature."""
    found = ba.theory.solve(two_layers.model)

    @jax.jit
    def value(order_parameters, temperature):
        at = ba.theory.action(order_parameters, two_layers.model, temperature=temperature)
        return at.energy + at.entropy

    slope_of = jax.jit(jax.grad(value, (0, 1)))
    slopes, by_temperature = slope_of(found.order_parameters, two_layers.temperature)
    away = slope_of(tuple(1.5 * np.asarray(u) for u in found.order_parameters), two_layers.temperature)[0]
    for slope, other in zip(slopes, away, strict=True):
        assert np.abs(slope).max() < 1e-6 * np.abs(other).max()
        assert relative_error(other, np.transpose(other)) < 1e-9

    @jax.jit
    def both(given, u):
        return jax.grad(given.energy_of)(u), expansion(given, jnp.linalg.cholesky(u)).slope

    for form in FORMS:
        assert relative_error(*both(process_of(two_layers, form=form), found.order_parameter)) < 1e-9
    temperature = two_layers.temperature
    expected = by_differences(lambda at: value(found.order_parameters, at), temperature, 1e-4 * temperature)
    assert relative_error(by_temperature, expected) < 1e-6


@pytest.mark.parametrize("widths", [(4, 9, 9), (4, 2, 9)], ids=["narrow below", "narrow twice"])
def test_a_point_without_the_columns_of_a_narrow_layer(widths):
    """Its U are the nearest of their rank where the layer above has all columns, and itself where no layer is narrow."""
    arch, rng = ba.Architecture((2, 3), widths, (1.0, 1.3, 0.7, 0.9)), np.random.default_rng(0)
    full, fewer = bartlett.layer_shapes(arch, full=True), bartlett.layer_shapes(arch)
    sizes = jnp.array(arch.widths, float), jnp.array(arch.variances)
    point = jnp.asarray(0.3 * rng.normal(size=sum(shape.size for shape in full)))
    assert relative_error(bartlett.narrowed(point, full, full, *sizes)[0], point) < 1e-12
    whole = bartlett.cholesky_factors(point, full, *sizes)
    narrow, order = bartlett.narrowed(point, full, fewer, *sizes)
    found = jax.device_get(bartlett.cholesky_factors(narrow, fewer, *sizes, order))
    layer = 1 if widths[1] == 2 else 0
    above = np.kron(np.eye(arch.heads[layer]), whole[layer + 1])
    inner = np.linalg.solve(above, whole[layer])
    values, vectors = np.linalg.eigh(inner @ inner.T)
    kept = vectors[:, -widths[layer] :] * np.sqrt(values[-widths[layer] :])
    expected = (above @ kept) @ (above @ kept).T
    assert relative_error(found[layer] @ found[layer].T, expected) < 1e-12
    assert [factor.shape[1] for factor in found] == [shape.columns for shape in fewer]


@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_a_minimum_far_from_the_start_is_found_either_way(two_layers, monkeypatch, scale):
    """By gradients alone and by the whole Hessian.

    Of large labels slopes fall by orders of magnitude, and the function drowns in rounding before they are small.
    """
    networks, given = [two_layers.arch, two_layers.arch.with_width(3)], process_of(two_layers, scale=scale)
    model = model_of(two_layers.path_inputs, scale * two_layers.labels, two_layers.arch, two_layers.temperature)
    temperatures = [two_layers.temperature, 0.05 if scale == 1 else two_layers.temperature]
    few = ba.theory.solve(model, arch=networks, temperature=temperatures)
    # From the GP limit itself it took up to 39 steps, on one processor to a higher minimum of the narrow network.
    assert max(few.iterations) <= 20
    usual, _ = mode.find_mode(given, two_layers.arch)
    monkeypatch.setattr(saddle_point, "MOST_COORDINATES_FOR_HESSIAN", 0)
    monkeypatch.setattr(mode, "MOST_COORDINATES", 0)
    many = ba.theory.solve(model, arch=networks, temperature=temperatures)
    assert many.converged.all()
    assert relative_error(many.energy, few.energy) < 1e-9
    assert relative_error(many.entropy, few.entropy) < (1e-9 if scale == 1 else 1e-6)
    assert relative_error(many.order_parameter, few.order_parameter) < (1e-7 if scale == 1 else 1e-6)
    assert relative_error(mode.find_mode(given, two_layers.arch)[0].potential, usual.potential) < 1e-10


def test_what_many_coordinates_do_not_allow():
    arch = ba.Architecture((9, 9), (300,) * 3, (1.0,) * 4)
    for search in (ba.theory.finite_width, ba.theory.evidence):
        with pytest.raises(ValueError, match=r"at most 3,000 coordinates of its order parameters .* got 3,367"):
            search(model_of(np.ones((2, 81, 1)), np.ones(2), arch, 1.0))


def test_the_mode_of_many_paths_is_that_of_few(two_layers, monkeypatch):
    """And where the data know most, so is its covariance; elsewhere it is the prior's, of variance 2 when whitened.

    Of whitened coordinates a point comes back, and the volume is the determinant.
    """
    given = process_of(two_layers)
    few, problem = mode.find_mode(given, two_layers.arch)
    monkeypatch.setattr(mode, "MOST_COORDINATES", 0)
    many, _ = mode.find_mode(given, two_layers.arch)
    np.testing.assert_allclose(many.point, few.point, rtol=0, atol=1e-7)
    shapes = bartlett.layer_shapes(two_layers.arch)
    stretch = np.asarray(bartlett.affine_from_whitened(shapes, problem.widths)[1])
    covariances = []
    for whitening in (few.whitening, many.whitening):
        scale = np.asarray(jax.jit(jax.jacfwd(whitening.point))(np.zeros_like(stretch)))
        np.testing.assert_allclose(whitening.log_volume(), np.linalg.slogdet(scale)[1], rtol=1e-12)
        assert relative_error(jax.jit(lambda z, of=whitening: of.whitened(of.point(z)))(stretch), stretch) < 1e-12
        covariances.append(scale @ scale.T / np.outer(stretch, stretch))
    exact, found = covariances
    variances, directions = np.linalg.eigh(exact)
    known = len(stretch) // 4
    assert known >= 3
    for variance, direction in zip(variances[:known], directions.T[:known], strict=True):
        assert relative_error(direction @ found @ direction, variance) < 1e-2
    np.testing.assert_allclose(np.linalg.eigvalsh(found)[known:], 2.0, rtol=1e-6)


def test_curvature_by_the_expansion_in_f_is_that_by_the_expansion_in_u(two_layers, monkeypatch):
    arch = two_layers.arch.with_width(2)
    given = process_of(two_layers, arch)
    posterior, shapes = potential.problem_of(given, arch), bartlett.layer_shapes(arch)
    point, found = 0.5 * np.random.default_rng(0).normal(size=sum(shape.size for shape in shapes)), []
    for in_factor in (True, False):
        monkeypatch.setattr(potential, "expands_in_factor", lambda *_, chosen=in_factor: chosen)
        found.append(jax.jit(posterior.local(shapes))(point))
    for one, other in zip(*found, strict=True):
        assert relative_error(one, other) < 1e-9


def test_the_mode_is_found_from_afar_by_gradients_first(two_layers, monkeypatch):
    """As of more than 1000 coordinates; and where a layer is narrow, from a rough saddle point."""
    narrow = two_layers.arch.with_width(2)
    for arch in (two_layers.arch, narrow):
        given = process_of(two_layers, arch)
        usual, problem = mode.find_mode(given, arch)
        with monkeypatch.context() as changed:
            for module in (mode, saddle_point):
                changed.setattr(module, "MOST_COORDINATES_FOR_HESSIAN", 0)
            rough, other = mode.find_mode(given, arch)
        # Of a narrow layer there is a mode for each order of its rows.
        assert rough.potential < usual.potential + (1 if arch is narrow else 1e-6)
        if arch is not narrow:
            shapes = bartlett.layer_shapes(arch)
            ours, theirs = (of.order_parameter(at.point, shapes) for of, at in ((other, rough), (problem, usual)))
            assert relative_error(ours, theirs) < 1e-6


@pytest.mark.parametrize("width", [10**9, 10**12])
def test_infinite_width_is_the_gp_limit(two_layers, width):
    """Of the saddle point, and of the mode from which expansion, evidence and chains set out."""
    arch = two_layers.arch.with_width(width)
    gp, (found, of) = ba.theory.gp_order_parameter(arch), mode.find_mode(process_of(two_layers, arch), arch)
    assert relative_error(ba.theory.solve(two_layers.model, arch=arch).order_parameter, gp) < 1e-5
    assert relative_error(of.order_parameter(found.point, bartlett.layer_shapes(arch)), gp) < 1e-5


def test_failure_to_converge_is_raised_and_can_be_had_as_data(two_layers, monkeypatch):
    model = two_layers.model.replace(temperature=1e-6)
    with pytest.raises(ba.theory.NotConverged, match=r"relative gradient .* expected at most 1e-08") as raised:
        ba.theory.solve(model, max_steps=1)
    assert not raised.value.solution.converged
    assert ba.theory.solve(model, max_steps=1, throw=False).converged is False
    monkeypatch.setattr(saddle_point, "MOST_COORDINATES_FOR_HESSIAN", 0)
    with pytest.raises(saddle_point.NotConverged):
        ba.theory.solve(two_layers.model, max_steps=1)


def test_of_several_networks_the_one_that_failed_is_named_with_its_own_cause(two_layers):
    """Both as in a call of its own."""
    huge = replace(two_layers.arch, variances=(two_layers.arch.variances[0], 1e12, 1e12, 1e12))
    half = len(two_layers.labels) // 2
    twice = (np.concatenate([array[:half], array[:half]]) for array in (two_layers.path_inputs, two_layers.labels))
    double = model_of(*twice, two_layers.arch, 1.0)
    with pytest.raises(ba.theory.NotConverged, match=r"^the saddle point was not found: .* K \+ T I is singular"):
        ba.theory.solve(double, arch=huge, temperature=1e-3)
    with pytest.raises(ba.theory.NotConverged, match=r"point of network 2 of 2 was not found: .* K \+ T I is singular"):
        ba.theory.solve(double, arch=[two_layers.arch, huge], temperature=[1.0, 1e-3])


XI, Y = np.ones((3, 2, 4)), np.ones(3)
MODEL = model_of(XI, Y, ARCH, 0.1)

BAD = [
    (lambda: ba.theory.solve(MODEL, temperature=0.0), "temperature must be a finite number above 0, got 0"),
    (lambda: ba.theory.solve(MODEL, arch=[ARCH] * 3, temperature=[0.1, 0.2]), "got 3 networks and 2 temperatures"),
    (lambda: ba.theory.solve(MODEL, arch=[]), "got 0 networks"),
    (lambda: ba.theory.solve(MODEL, arch=[3]), "arch must be a bayesattn.Architecture or a list of them, got 3"),
    (lambda: ba.theory.solve(MODEL, max_steps=0), "max_steps must be a whole number of at least 1, got 0"),
    (lambda: ba.theory.action([np.eye(3)], MODEL), r"order_parameters\[0\] must have shape \(2, 2\)"),
    (lambda: ba.theory.action([-np.eye(2)], MODEL), "must be positive definite, got smallest eig"),
    (lambda: ba.theory.action([np.tri(2)], MODEL), "must be symmetric"),
    (lambda: ba.theory.action([], MODEL), r"L = 1, got 0"),
    (lambda: ba.theory.predict(np.tri(2), MODEL, XI), "order_parameter must be symmetric"),
    (lambda: ba.theory.predict(-1e3 * np.eye(2), MODEL, XI), r"must leave K\(U\) \+ T I positive definite"),
    (lambda: ba.theory.kernel(np.tri(2), XI, XI, ARCH), "order_parameter must be symmetric"),
    (lambda: ba.theory.evidence(MODEL, particles=12), "particles must be a multiple of 8, got 12"),
    (lambda: ba.theory.evidences(MODEL, []), "temperatures must hold at least one number above 0, got none"),
    (lambda: ba.theory.predict(np.eye(2), MODEL, XI[..., :2]), "test_path_inputs must have shape"),
    (lambda: ba.theory.predict(np.eye(2), MODEL), r"predict\(\) needs test_path_inputs, got a model that has none"),
    (lambda: ba.theory.alignment(np.eye(3), np.zeros(3)), "labels must not all be zero"),
    (lambda: ba.theory.head_scores(np.zeros((2, 2)), ARCH), "order_parameter must not be zero"),
]


def test_bad_input_is_named():
    for call, message in BAD:
        with pytest.raises(ValueError, match=message):
            call()


def test_the_action_of_layers_with_skips_can_be_differentiated():
    """Blocks that skips demand can't be checked then; along a scale of all order parameters they stay what they must be."""
    arch = ba.Architecture((1, 2), (5, 5, 5), (1.0,) * 4, (0.5, 0.8))
    model = model_of(np.random.default_rng(0).normal(size=(4, arch.paths, 9)), LABELS, arch, 0.3)
    order_parameters, step = ba.theory.solve(model).order_parameters, 1e-5

    @jax.jit
    def total(scale):
        found = ba.theory.action([scale * u for u in order_parameters], model)
        return found.energy + found.entropy

    differences = (total(1.5 + step) - total(1.5 - step)) / (2 * step)
    assert jax.grad(total)(1.5) == pytest.approx(float(differences), rel=1e-6)
