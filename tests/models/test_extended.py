"""Networks with skip connections and several outputs (EXTENSIONS section 1) and without, by weights and by factors."""

from functools import cache

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayesattn as ba
from bayesattn.compressed import Compressed
from bayesattn.gather import gather
from bayesattn.kernels.expansions import expansion, expansion_in_factor
from bayesattn.kernels.forms import gaussian_process
from bayesattn.models import Tokens, collapsed, path
from bayesattn.network import effective_weights
from bayesattn.questions import calibration
from bayesattn.samplers.program import program
from bayesattn.tasks import TokenDataset
from bayesattn.theory import bartlett
from bayesattn.theory.potential import problem_of
from bayesattn.theory.predictor import readouts
from tests import zoo
from tests.conftest import relative_error
from tests.statistics import near

NETWORKS = {
    # heads, widths, skips, outputs
    "a skip": ((2,), (5, 5), (0.7,), 1),
    "two outputs": ((2,), (4, 3), (0.0,), 2),
    "a skip and two outputs": ((2,), (3, 3), (0.7,), 2),
    "a skip beside free columns": ((2,), (5, 5), (0.7,), 2),
    "skips in both layers": ((2, 1), (5, 5, 5), (0.5, 0.8), 2),
    "skips that fill the widths": ((2, 1), (2, 2, 2), (0.5, 0.8), 2),
    "a skip in the second": ((2, 2), (6, 3, 3), (0.0, 0.8), 1),
    "a skip in the first, three outputs": ((2, 2), (4, 4, 5), (0.9, 0.0), 3),
    "as many outputs as widths": ((2,), (2, 2), (0.5,), 2),
    "all widths one": ((2, 2), (1, 1, 1), (1.0, 0.5), 2),
    "unequal widths": ((2, 2), (10, 7, 12), (0.0, 0.0), 1),
    "three layers": ((2, 1, 2), (10, 8, 9, 10), (0.0, 0.0, 0.0), 1),
    "first width below paths": ((2, 2), (3, 5, 4), (0.0, 0.0), 1),
    "all widths one, no skips": ((2, 2), (1, 1, 1), (0.0, 0.0), 1),
    "upper width below heads": ((2, 3), (10, 2, 4), (0.0, 0.0), 1),
}
LIGHT = ("skips in both layers", "upper width below heads")
EACH = [pytest.param(name, marks=[pytest.mark.heavy] * (name not in LIGHT)) for name in NETWORKS]


def extended_model(name, examples=5, features=2, temperature=0.5):
    """Labels of some class each, or their sign, at random; token data included."""
    heads, widths, skips, outputs = NETWORKS[name]
    arch = ba.Architecture(heads, widths, tuple(0.8 + 0.2 * np.arange(len(heads) + 2)), skips, outputs)
    rng = np.random.default_rng(0)
    inputs, test = rng.normal(size=(2, examples, 4, features))
    weights = [rng.normal(size=(count, features, features)) for count in heads]
    flags = tuple(skip > 0 for skip in skips)
    mask = np.ones((examples, 4), bool)
    mask[0, 2:] = False
    options = {"causal": True, "mask": mask}
    labels = rng.normal(size=(examples,) if outputs == 1 else (examples, outputs))
    return ba.Model(
        path_inputs=ba.attention.path_inputs(inputs, weights, skips=flags, **options),
        labels=labels,
        architecture=arch,
        temperature=temperature,
        test_path_inputs=ba.attention.path_inputs(test, weights, skips=flags, causal=True)[:2],
        tokens=Tokens(inputs, ba.attention.matrices(inputs, weights, **options), "last", mask),
    )


@cache
def functions_by_weights(name, count):
    """Functions of U of weights drawn from the prior."""
    posterior = path.Path.of(extended_model(name))

    @jax.jit
    @jax.vmap
    def draw(key):
        effective = effective_weights(posterior.draw_prior(key), posterior.skips)
        return effective @ effective.T / effective.shape[1]

    return functions_of(draw(jax.random.split(jax.random.key(1), count)))


def functions_of(order_parameters):
    """U, the squares of its entries, products of its first and last rows, and a Laplace functional, of each draw."""
    u = np.asarray(order_parameters)
    flat = u[:, *np.tril_indices(u.shape[1])]  # U is symmetric.
    return np.column_stack([flat, flat**2, u[:, 0] * u[:, -1], np.exp(-np.trace(u, axis1=1, axis2=2))])


@pytest.mark.parametrize("name", EACH)
def test_prior_moments_by_weights_and_by_factors_agree(name):
    model, count = extended_model(name), 40_000
    arch, shapes = model.architecture, collapsed.structure(model)
    problem = problem_of(model.gaussian_process, arch)

    @jax.jit
    @jax.vmap
    def by_factors(key):
        return problem.order_parameter(bartlett.sample_prior(key, shapes, problem.widths), shapes)

    drawn = by_factors(jax.random.split(jax.random.key(0), count))
    one, other = functions_of(drawn), functions_by_weights(name, count)
    # In deviations of each function of a draw.
    deviation = np.hypot(one.std(0), other.std(0))
    near((one.mean(0) - other.mean(0)) / deviation, 0, 1 / np.sqrt(count), finds=0.05)
    entries = np.tril_indices(arch.rows)
    u, limit = np.asarray(drawn)[:, *entries], np.asarray(ba.theory.gp_order_parameter(arch))[entries]
    near((u.mean(0) - limit) / u.std(0), 0, 1 / np.sqrt(count), finds=0.05)


@pytest.fixture(scope="module")
def mixed():
    """Two layers with a skip each and two outputs, a factor of full rank, and the kernel of its U by its definition."""
    arch = ba.Architecture((2, 2), (4, 4, 4), (0.6, 0.8, 1.0, 1.2), (0.5, 0.8), 2)
    rng = np.random.default_rng(0)
    inputs, labels, test = rng.normal(size=(7, 9, 3)), rng.normal(size=(7, 2)), rng.normal(size=(5, 9, 3))
    model = ba.Model(path_inputs=inputs, labels=labels, architecture=arch, temperature=0.5, test_path_inputs=test)
    factor = jnp.asarray(rng.normal(size=(18, 18)))
    u = np.asarray(factor @ factor.T).reshape(9, 2, 9, 2)
    everything = np.concatenate([inputs, test])
    # Scaled by the product of the heads, 4, and not by the number of paths.
    joint = np.einsum("epf,pcqd,gqf->ecgd", everything, u, everything) * 0.6 / (3 * 4)
    return model, factor, joint.reshape(24, 24)


@pytest.mark.parametrize("form", ["features", "feature_space"])
def test_the_likelihood_of_several_outputs_is_that_of_pairs_of_example_and_output(mixed, form):
    model, factor, joint = mixed
    ours = gaussian_process(model.path_inputs, model.labels, model.architecture, model.temperature, form=form)
    noisy, y = joint[:14, :14] + 0.5 * np.eye(14), model.labels.ravel()
    energy = np.linalg.slogdet(noisy)[1] + y @ np.linalg.solve(noisy, y)
    u = factor @ factor.T
    for value in (jax.jit(ours.energy)(factor), jax.jit(ours.energy_of)(u)):
        assert relative_error(value, energy) < 1e-12
    assert relative_error(jax.jit(ours.kernel_of)(u), joint[:14, :14]) < 1e-12
    few = factor[:, :3]
    slope, hessian = jax.jit(jax.grad(ours.energy))(few), jax.jit(jax.hessian(ours.energy))(few)
    by_u, by_factor = jax.jit(expansion)(ours, few), jax.jit(expansion_in_factor)(ours, few)
    assert relative_error(jax.jit(ours.energy)(few), by_u.value) < 1e-12
    assert relative_error(by_factor.slope, slope) < 1e-10
    assert relative_error(by_factor.curvature, hessian.reshape(by_factor.curvature.shape)) < 1e-10
    assert relative_error(2 * by_u.slope @ few, slope) < 1e-10
    projection, scale = jax.jit(ours.projection)(factor, ours.flat_labels), np.sqrt(0.6 / (3 * 4))
    for readout in (scale * jax.jit(ours.readout_of)(u), scale * factor @ projection, readouts(u[None], model)[0]):
        outputs = np.einsum("epf,pcf->ec", model.test_path_inputs, np.asarray(readout).reshape(9, 2, 3))
        assert relative_error(outputs.ravel(), joint[14:, :14] @ np.linalg.solve(noisy, y)) < 1e-10


def test_the_saddle_point_minimises_the_action(mixed):
    """The action by order parameters, which knows nothing of Bartlett factors."""
    model = mixed[0]
    saddle = ba.theory.solve(model)
    found = ba.theory.action(saddle.order_parameters, model)
    assert relative_error(found.energy + found.entropy, saddle.energy + saddle.entropy) < 1e-12
    assert relative_error(found.scalar_order_parameter, saddle.scalar_order_parameter) < 1e-7
    rng, arch = np.random.default_rng(0), model.architecture
    problem, shapes = problem_of(model.gaussian_process, arch), bartlett.layer_shapes(arch, full=True)
    for _ in range(3):
        factors = problem.factors(saddle.point + 1e-2 * rng.normal(size=saddle.point.shape), shapes)
        moved = ba.theory.action([factor @ factor.T for factor in factors[:-1]], model)
        assert moved.energy + moved.entropy > found.energy + found.entropy
    with pytest.raises(ValueError, match=r"order_parameters\[0\] must begin with a block of H rho\^2 = 0.5 times"):
        ba.theory.action([saddle.order_parameters[0] + np.eye(18), saddle.order_parameters[1]], model)


def test_theory_at_finite_width_has_one_answer(mixed):
    """About mode and saddle point the mean differs by the order 1/N^2, and from the GP limit by 1/N."""
    model = mixed[0]

    def apart(width):
        wide = model.replace(width=width)
        one, other = (ba.theory.finite_width(wide, about=about, variances=False) for about in ("mode", "saddle"))
        assert one.prediction.mean.shape == (5, 2)
        correction = np.abs(other.order_parameter - ba.theory.gp_order_parameter(wide.architecture)).max()
        return np.abs(one.order_parameter - other.order_parameter).max(), correction

    (near, small), (far, large) = apart(800), apart(200)
    assert near < far / 8
    assert small > large / 8
    scores = ba.theory.head_scores(ba.theory.solve(model).order_parameter, model.architecture)
    assert [len(layer) for layer in scores] == [3, 3]


def test_evidence_by_both_routes(mixed):
    model = mixed[0].replace(width=100)
    by_importance = ba.theory.evidence(model)
    annealed = [ba.theory.evidence(model, particles=64, seed=seed) for seed in range(5)]
    assert {each.method for each in annealed} == {"annealing"} != {by_importance.method}
    # Each error is from 8 islands.
    mean, error = (
        np.mean([each.log_evidence for each in annealed]),
        np.sqrt(np.mean([each.error**2 for each in annealed]) / 5),
    )
    near(by_importance.log_evidence, mean, np.hypot(by_importance.error, error), 5 * (8 - 1), finds=0.35)


def test_rows_are_named_by_path_and_output():
    arch = ba.Architecture((1, 2), (3, 3, 3), (1.0,) * 4, skips=(0.5, 0.0), outputs=2)
    named = arch.row_names([["same"], ["even", "odd"]], ["left", "right"])
    assert named[:3] == ["skip -> even: left", "skip -> even: right", "skip -> odd: left"]
    assert len(named) == arch.rows == 8
    assert repr(arch).endswith("skips=(0.5, 0.0), outputs=2)")
    plain = ba.Architecture((2,), (3, 3), (1.0,) * 3)
    assert plain == ba.Architecture((2,), (3, 3), (1.0,) * 3, skips=(0,), outputs=1)
    assert repr(plain) == "Architecture(heads=(2,), widths=(3, 3), variances=(1.0, 1.0, 1.0))"


def test_a_run_holds_skips_outputs_names_and_padding(tmp_path):
    model = extended_model("skips in both layers").replace(output_names=["left", "right"])
    run = ba.runs.sample(model, tmp_path / "run", **zoo.LIGHT | {"parameterisation": "token"})
    held = ba.runs.Run(tmp_path / "run").model
    assert held.architecture == model.architecture
    assert held.row_names == model.row_names
    assert held.row_names[0] == "skip -> skip: left"
    np.testing.assert_array_equal(held.tokens.mask, model.tokens.mask)
    drawn = run.draws()
    assert drawn["posterior"]["prediction"].dims == ("chain", "draw", "test_example", "output")
    for group in ("posterior", "observed_data"):
        assert [*drawn[group]["output"].values] == ["left", "right"]
    found = ba.predict(run, model.test_path_inputs)
    assert found.mean.shape == found.error.shape == (2, 2)
    assert found.probabilities is None


@pytest.mark.parametrize("readout", ["last", "all"])
def test_a_dataset_may_be_causal_and_padded(readout):
    rng = np.random.default_rng(0)
    inputs, mask, weights = rng.normal(size=(3, 4, 2)), np.ones((3, 4), bool), [rng.normal(size=(2, 2, 2))]
    mask[0, 2:] = False
    labels = rng.normal(size=mask.sum() if readout == "all" else 3)
    tests = {"test_inputs": inputs[:1], "test_labels": labels[: 2 if readout == "all" else 1], "test_mask": mask[:1]}
    heads = {"weights": weights, "head_names": (("first", "second"),), "path_groups": {}}
    data = TokenDataset(inputs, labels, **heads, **tests, readout=readout, causal=True, mask=mask)
    model = ba.Model.from_tokens(data, (3, 3), (1.0,) * 3, 0.1, skips=(1.0,))
    alone = [
        ba.attention.path_inputs(x[real][None], weights, readout, causal=True, skips=(True,))
        for x, real in zip(inputs, mask, strict=True)
    ]
    np.testing.assert_allclose(model.path_inputs, np.concatenate(alone), rtol=0, atol=1e-12)
    np.testing.assert_allclose(model.test_path_inputs, alone[0], rtol=0, atol=1e-12)
    if readout == "all":
        assert model.tokens is None
    else:
        assert np.all(np.triu(model.tokens.matrices[0], 1) == 0)
        assert np.all(model.tokens.matrices[0][0, :, :2, 2:] == 0)


@pytest.mark.heavy
def test_chains_are_calibrated_and_a_prior_from_the_wrong_column_is_found(monkeypatch):
    model = extended_model("a skip beside free columns")
    simulations = calibration.simulate(model, 200, seed=1)
    found = calibration.calibrate(model, simulations)
    assert found.holds, dict(zip(found.names, found.p_values, strict=True))
    honest = bartlett.log_prior

    def wrong(point, shapes, widths):
        return honest(point, shapes, widths + jnp.array([shape.copied for shape in shapes]))

    monkeypatch.setattr(bartlett, "log_prior", wrong)
    program.cache_clear()
    jax.clear_caches()
    assert calibration.calibrate(model, simulations).holds is False
    program.cache_clear()
    jax.clear_caches()


@pytest.mark.heavy
def test_the_expansion_is_about_the_saddle_point_where_rows_are_many():
    """Three classes, two layers, a skip: 18 rows at N = 40. About the mode the last rows are off by more than 5 %."""
    rng = np.random.default_rng(0)
    found = ba.one_hot(rng.integers(0, 3, 90))
    inputs = rng.normal(size=(90, 6, 5))
    inputs[:, :, :3] += 1.2 * found.labels[:, None]
    weights = [rng.normal(size=(2, 5, 5)) / 2 for _ in range(2)]
    model = ba.Model(
        path_inputs=ba.attention.path_inputs(inputs, weights, "mean", skips=(False, True)),
        labels=found.labels - 1 / 3,
        architecture=ba.Architecture((2, 2), (40,) * 3, (1.0,) * 4, (0.0, 1.0), 3),
        temperature=0.1,
    )
    draws = ba.sample(model, "hmc", chains=4, warmup=150, draws=1500)["posterior"]["order_parameter"]
    drawn, error = np.diag(draws.mean(("chain", "draw"))), np.diag(arviz_stats.mcse(draws))
    assert ba.theory.finite_width(model).about == "saddle"
    about = {name: np.diag(ba.theory.finite_width(model, about=name).order_parameter) for name in ("mode", "saddle")}
    assert np.max(np.abs(about["mode"] / drawn - 1)) > 0.05
    near(about["saddle"] / drawn, 1, error / drawn, allowed=0.01, finds=0.1)


def test_statistics_of_several_outputs_have_the_same_posterior(mixed):
    model, factor, _ = mixed
    many = np.random.default_rng(1).normal(size=(60, 9, 3))
    labels = np.random.default_rng(2).normal(size=(60, 2))
    whole = model.replace(path_inputs=many, labels=labels)
    gathered = gather((many, labels), model.architecture)
    held = ba.Model(compressed=gathered, architecture=model.architecture, temperature=model.temperature)
    u = factor @ factor.T
    known = [
        jax.jit(lambda one: (one.log_density_of(u), one.readout_of(u)))(of.gaussian_process) for of in (held, whole)
    ]
    for one, other in zip(*known, strict=True):
        assert relative_error(one, other) < 1e-10
    assert relative_error(known[0][0], known[1][0]) < 1e-12
    restored = Compressed.restored(gathered.path_inputs, gathered.labels, gathered.residual)
    assert restored.outputs == 2
    assert restored.square == pytest.approx(gathered.square)
