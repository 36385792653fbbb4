"""The Gaussian process of a training set: its forms against each other, and against what is known of a Gaussian."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import bayesattn as ba
from bayesattn.kernels import energies, expansions
from bayesattn.kernels.conditionals import conditional_moments, leave_one_out, moments_at_factor, sample_labels
from bayesattn.kernels.expansions import expansion, expansion_in_factor
from bayesattn.kernels.feature_space import mixes_pairs
from bayesattn.kernels.forms import FORMS, compressed, gaussian_process
from bayesattn.kernels.gaussian_process import smaller_by_features
from bayesattn.theory.bartlett import layer_shapes
from tests.conftest import relative_error
from tests.statistics import likely


@pytest.fixture(params=FORMS)
def case(request, two_layers):
    """A Gaussian process, a narrow factor and the covariance K + T I there."""
    found = gaussian_process(two_layers.path_inputs, two_layers.labels, two_layers.arch, 0.3, form=request.param)
    factor = jnp.asarray(np.random.default_rng(0).normal(size=(two_layers.arch.paths, 2)))
    root = np.asarray(factor)
    kernel = ba.theory.kernel(root @ root.T, two_layers.path_inputs, two_layers.path_inputs, two_layers.arch)
    return found, factor, np.asarray(kernel) + 0.3 * np.eye(len(two_layers.labels))


def test_its_kernel_is_the_stored_one_and_its_density_that_of_a_gaussian(case, two_layers):
    found, factor, covariance = case
    kernel = jax.jit(found.kernel_of)(two_layers.order_parameters[0])
    assert relative_error(kernel, two_layers.stored["kernel"]) < 1e-13
    expected = stats.multivariate_normal(cov=covariance).logpdf(found.flat_labels)
    for value in jax.jit(lambda factor: (found.log_density(factor), found.log_density_of(factor @ factor.T)))(factor):
        assert relative_error(value, expected) < 1e-12


def test_written_out_derivatives_of_the_energy_are_the_automatic_ones(case):
    """By factor, labels, temperature and, where K is formed from them, path inputs; second ones along a direction."""
    found, factor, _ = case
    names = ["labels", "temperature", "pairs" if hasattr(found, "pairs") else "features"]

    def energy(factor, changed):
        return dataclasses.replace(found, **changed).energy(factor)

    def plain(factor, changed):
        changed = dataclasses.replace(found, **changed)
        covariance = changed.kernel(factor) + changed.temperature * jnp.eye(changed.labels.size)
        return jnp.linalg.slogdet(covariance)[1] + changed.flat_labels @ jnp.linalg.solve(
            covariance, changed.flat_labels
        )

    direction = jnp.sin(jnp.arange(factor.size)).reshape(factor.shape)

    @jax.jit
    def slopes(factor, changed):
        """Of both, and the change of those by factor along the direction."""
        bent = [jax.jvp(lambda at, f=f: jax.grad(f)(at, {}), (factor,), (direction,))[1] for f in (energy, plain)]
        return [jax.grad(f, (0, 1))(factor, changed) for f in (energy, plain)], bent

    (ours, theirs), bent = slopes(factor, {name: getattr(found, name) for name in names})
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert relative_error(one, other) < 1e-10
    assert relative_error(*bent) < 1e-9


@pytest.mark.parametrize("examples", [48, 49, 200, 513])
@pytest.mark.parametrize("smallest", [0.1, 1e-9])
def test_its_slope_by_halves_is_the_inverse(examples, smallest):
    """As exact as the condition of K + T I allows."""
    rng = np.random.default_rng(0)
    vectors = np.linalg.qr(rng.normal(size=(examples, examples)))[0]
    eigenvalues = np.geomspace(smallest, 1, examples) - smallest / 2
    labels = jnp.asarray(vectors[:, -1])  # A^{-1} Y is of the size of Y.
    matrix = vectors * eigenvalues @ vectors.T
    _, slope, solution = jax.device_get(jax.jit(energies.energy_and_slope)(matrix, labels, smallest / 2))
    expected = vectors / (eigenvalues + smallest / 2) @ vectors.T
    assert relative_error(slope + np.outer(solution, solution), expected) < 100 * np.finfo(float).eps / smallest
    assert relative_error(slope, slope.T) < 1e-15


def in_blocks(monkeypatch, process, expand, factor):
    """An expansion with all 12 features at once and in blocks of 5, 5 and 2."""
    _, features, paths = process.features.shape
    assert features == 12
    for block in (12, 5):
        monkeypatch.setattr(expansions, "BLOCK_BYTES", block * 8 * paths**2 * features)
        yield jax.jit(lambda *arguments: expand(*arguments))(process, factor)


def test_the_energy_expansion_in_u_is_the_automatic_one(case, monkeypatch):
    """Slope and curvature along symmetric changes of U."""
    found, rng, paths = case[0], np.random.default_rng(0), case[0].features.shape[2]
    factor = jnp.asarray(rng.normal(size=(paths, paths)))
    changes = rng.normal(size=(2, paths, paths))
    changes = changes + changes.transpose(0, 2, 1)

    def energy(first, second):
        return found.energy_of(factor @ factor.T + first * changes[0] + second * changes[1])

    both = jax.value_and_grad(energy)
    value, slope = jax.jit(both)(0.0, 0.0)
    curvature = jax.jit(jax.grad(lambda first, second: both(first, second)[1], 1))(0.0, 0.0)
    first, second = changes.reshape(2, -1)
    for known in in_blocks(monkeypatch, found, expansion, factor):
        assert relative_error(known.value, value) < 1e-12
        assert relative_error(np.reshape(known.slope, -1) @ first, slope) < 1e-9
        assert relative_error(first @ np.asarray(known.curvature) @ second, curvature) < 1e-9


def test_the_energy_expansion_in_a_factor_is_the_automatic_one(case, monkeypatch):
    found, factor, _ = case

    def energy(flat):
        return found.energy(flat.reshape(factor.shape))

    value, slope, curvature = jax.jit(lambda at: (energy(at), jax.grad(energy)(at), jax.hessian(energy)(at)))(
        factor.reshape(-1)
    )
    for known in in_blocks(monkeypatch, found, expansion_in_factor, factor):
        assert relative_error(known.value, value) < 1e-12
        assert relative_error(np.reshape(known.slope, -1), slope) < 1e-11
        assert relative_error(known.curvature, curvature) < 1e-10


@pytest.mark.parametrize("rows", [128, 259, 601])
def test_a_gram_matrix_by_halves_is_the_product(rows):
    matrix = np.random.default_rng(0).normal(size=(rows, 40))
    product = np.asarray(jax.jit(energies.gram)(matrix))
    assert relative_error(product, matrix @ matrix.T) < 1e-14
    np.testing.assert_array_equal(product, product.T)


KEYS = jax.random.split(jax.random.key(0), 20000)


def moments_p_value(draws, mean, covariance):
    """Chi-squared test of all means and covariances of Gaussian draws together, in coordinates that make them standard."""
    whitened = np.linalg.solve(np.linalg.cholesky(covariance), (np.asarray(draws) - mean).T)
    size, count = whitened.shape
    found = np.sqrt(count) * (whitened @ whitened.T / count - np.eye(size))
    rows, columns = np.tril_indices(size)
    z = np.append(np.sqrt(count) * whitened.mean(1), found[rows, columns] / np.where(rows == columns, np.sqrt(2), 1))
    return stats.chi2.sf(z @ z, len(z))


def test_labels_and_projections_have_the_moments_of_their_laws(case):
    """Z given Y is Gaussian; a covariance 10 % too large is found, and a mean that is off by a tenth of its spread."""
    found, factor, covariance = case
    draws = jax.jit(jax.vmap(lambda key: found.sample_projection(key, factor)))(KEYS)
    flat = np.asarray(draws).reshape(len(KEYS), -1)
    # f = design . Z
    design = np.einsum("efp,pc->ecf", found.features, factor).reshape(len(covariance), -1)
    gain = np.linalg.solve(covariance, design).T
    mean, law = gain @ found.flat_labels, np.eye(design.shape[1]) - gain @ design
    likely(moments_p_value(flat, mean, law))
    assert moments_p_value(flat, mean + 0.1 * np.sqrt(np.diag(law)), law) < 1e-9
    assert moments_p_value(flat, mean, 1.1 * law) < 1e-9
    drawn = jax.jit(jax.vmap(lambda key: sample_labels(found, key, factor).reshape(-1)))(KEYS)
    likely(moments_p_value(drawn, 0, covariance))
    assert moments_p_value(drawn, 0, covariance + 0.03 * np.eye(len(covariance))) < 1e-9


@jax.jit
def known_of_outputs(process, factor, new):
    by_u = conditional_moments(process, factor @ factor.T, new)
    return moments_at_factor(process, factor, new), by_u, process.mixed(factor), leave_one_out(process, factor)


@pytest.mark.parametrize("strong", [1.0, 1e5], ids=["alike", "one decides"])
@pytest.mark.parametrize(("outputs", "features", "form"), [(1, 3, None), (3, 3, "feature_space"), (3, 7, "features")])
def test_predictions_and_leave_one_out_at_a_factor_are_those_of_the_covariance(outputs, features, form, strong):
    """In feature space and by labels, by NumPy's conditional Gaussians; an example alone may decide a direction."""
    arch = ba.Architecture((2, 2), (3, 3, 3), (1.0,) * 4, outputs=outputs)
    random, count = np.random.default_rng(outputs), 14 if outputs == 1 else 6
    path_inputs, new = random.normal(size=(count, 4, features)), jnp.asarray(random.normal(size=(5, features, 4)))
    path_inputs[0] *= strong
    labels = random.normal(size=(count, outputs)[: 1 + (outputs > 1)])
    process = gaussian_process(path_inputs, labels, arch, 0.1, form=form)
    factor = jnp.asarray(random.normal(size=(arch.rows, 3)))
    found, expected, mixed, densities = jax.device_get(known_of_outputs(process, factor, new))
    tolerance = 1e-10 if strong == 1 else 1e-3
    np.testing.assert_allclose(found.mean, expected.mean, rtol=tolerance)
    np.testing.assert_allclose(found.variance, expected.variance, rtol=tolerance)
    covariance, flat = mixed @ mixed.T + 0.1 * np.eye(len(mixed)), np.ravel(labels)
    for example in range(count):
        own = np.arange(len(flat)) // outputs == example
        law = covariance[np.ix_(own, own)], covariance[np.ix_(own, ~own)], covariance[np.ix_(~own, ~own)]
        read = np.linalg.solve(law[2], law[1].T).T
        exact = stats.multivariate_normal(read @ flat[~own], law[0] - read @ law[1].T)
        assert densities[example] == pytest.approx(exact.logpdf(flat[own]), rel=1e-8)


def test_what_is_not_known_is_named(two_layers):
    with pytest.raises(ValueError, match=r"form must be one of 'pairs', .*, got 'pair'; did you mean 'pairs'\?"):
        gaussian_process(two_layers.path_inputs, two_layers.labels, two_layers.arch, 0.3, form="pair")
    two_outputs = ba.Architecture((2,), (3, 3), (1.0, 1.0, 1.0), outputs=2)
    with pytest.raises(ValueError, match="form must be 'features' or 'feature_space' of 2 outputs, got 'pairs'"):
        gaussian_process(np.ones((3, 2, 4)), np.ones((3, 2)), two_outputs, 0.3, form="pairs")


@jax.jit
def derivatives(process, *arguments):
    """Energy, slopes in F, labels and T, and the curvature along a direction."""

    def energy(factor, labels, temperature):
        return dataclasses.replace(process, labels=labels, temperature=temperature).energy(factor)

    both, factor = jax.value_and_grad(energy, (0, 1, 2)), arguments[0]
    (value, slopes), (_, bent) = jax.jvp(lambda at: both(at, *arguments[1:]), (factor,), (jnp.ones_like(factor),))
    return value, *slopes, bent[0]


@pytest.mark.parametrize(("outputs", "heads", "columns"), [(1, 2, 3), (3, 2, 3), (1, 12, 6)])
@pytest.mark.parametrize("temperature", [0.3, 1e-9])
def test_products_of_features_change_nothing(outputs, heads, columns, temperature):
    """As exact as the condition of K + T I allows."""
    rng = np.random.default_rng(0)
    arch = ba.Architecture((heads,), (columns, columns), (1.2, 1.0, 0.8), (0.7,), outputs)
    assert arch.factor_columns == layer_shapes(arch)[0].columns
    assert mixes_pairs(arch.rows, columns, outputs) == (heads == 2)
    inputs, labels = rng.normal(size=(180, heads + 1, 4)), rng.normal(size=(180, outputs))
    found = gaussian_process(inputs, labels[:, 0] if outputs == 1 else labels, arch, temperature)
    assert found.products is not None
    plain = dataclasses.replace(found, products=None)
    factor = jnp.asarray(rng.normal(size=(arch.rows, columns)))
    assert smaller_by_features(columns, 4, found.labels.size)
    ours, theirs = (derivatives(which, factor, which.labels, which.temperature) for which in (found, plain))
    assert relative_error(ours[0], theirs[0]) < 1e-9
    for one, other in zip(ours, theirs, strict=True):
        assert relative_error(one, other) < 1000 * np.finfo(float).eps / temperature


def test_products_of_features_are_made_where_they_take_fewer_operations():
    """Of many examples, and not of paths so many that the products are more than the features."""
    # Of the last, fewer operations, but slower ones.
    cases = {(200, 4, 10, 20): True, (30, 4, 10, 20): False, (70, 30, 20, 3): False, (300, 20, 5, 6): False}
    for (examples, paths, features, width), made in cases.items():
        inputs = np.random.default_rng(0).normal(size=(examples, paths, features))
        arch = ba.Architecture((paths,), (width, width), (1.0, 1.0, 1.0))
        found = gaussian_process(inputs, np.ones(examples), arch, 0.3, form="feature_space")
        assert (found.products is not None) == made, (examples, paths, features, width)


@pytest.mark.parametrize("outputs", [1, 3])
def test_many_examples_are_compressed_to_the_same_density(outputs):
    rng = np.random.default_rng(0)
    arch = ba.Architecture((2,), (3, 3), (1.2, 1.0, 0.8), (0.7,), outputs)
    examples = 1600 if outputs == 1 else 600
    inputs, labels = rng.normal(size=(examples, 3, 4)), rng.normal(size=(examples, outputs))
    found = gaussian_process(inputs, labels[:, 0] if outputs == 1 else labels, arch, 0.3)
    few = compressed(found, arch)
    assert few.labels.shape == (12, outputs)
    factor = jnp.asarray(rng.normal(size=(arch.rows, 3)))

    @jax.jit
    def known(one):
        return one.log_density(factor), expansion(one, factor).slope, one.readout_of(factor @ factor.T)

    exact = known(found)
    for value, expected, digits in zip(known(few), exact, (1e-12, 1e-10, 1e-10), strict=True):
        assert relative_error(value, expected) < digits
    if outputs == 1:
        by_pairs = compressed(gaussian_process(inputs, labels[:, 0], arch, 0.3, form="pairs"), arch)
        assert relative_error(jax.jit(by_pairs.log_density)(factor), exact[0]) < 1e-12
    assert compressed(few, arch) is few
