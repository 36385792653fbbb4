"""Networks with skip connections and several outputs (THEORY section 8) and without, by weights and by factors."""

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayesattn as ba
from bayesattn.kernels.expansions import expansion, expansion_in_factor
from bayesattn.kernels.forms import gaussian_process
from bayesattn.models import Tokens
from bayesattn.tasks import TokenDataset
from bayesattn.theory import bartlett
from bayesattn.theory.potential import problem_of
from bayesattn.theory.predictor import readouts
from tests import dense, zoo
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


@pytest.fixture(scope="module")
def mixed():
    """Two layers with a skip each and two outputs, and a factor of full rank."""
    arch = ba.Architecture((2, 2), (4, 4, 4), (0.6, 0.8, 1.0, 1.2), (0.5, 0.8), 2)
    rng = np.random.default_rng(0)
    inputs, labels, test = rng.normal(size=(7, 9, 3)), rng.normal(size=(7, 2)), rng.normal(size=(5, 9, 3))
    model = ba.Model(path_inputs=inputs, labels=labels, architecture=arch, temperature=0.5, test_path_inputs=test)
    return model, jnp.asarray(rng.normal(size=(18, 18)))


@pytest.mark.parametrize("form", ["features", "feature_space"])
def test_the_likelihood_of_several_outputs_is_that_of_pairs_of_example_and_output(mixed, form):
    (model, factor), arch = mixed, mixed[0].architecture
    ours, u = gaussian_process(model.path_inputs, model.labels, arch, 0.5, form=form), np.asarray(factor @ factor.T)
    for value in (jax.jit(ours.log_density)(factor), jax.jit(ours.log_density_of)(u)):
        assert relative_error(value, dense.log_evidence(model, u)) < 1e-12
    kernel = dense.kernel(arch, u, model.path_inputs, model.path_inputs)
    assert relative_error(jax.jit(ours.kernel_of)(u), kernel) < 1e-12
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
        assert relative_error(outputs.ravel(), dense.predictor(model, u, model.test_path_inputs)[0]) < 1e-10


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
    limit = np.kron(np.kron(np.diag([2 * 0.5**2, 0.8, 0.8]), np.diag([2 * 0.8**2, 1.0, 1.0])), 1.2 * np.eye(2))
    np.testing.assert_allclose(ba.theory.gp_order_parameter(model.architecture), limit, rtol=1e-12)

    def apart(width):
        wide = model.replace(width=width)
        one, other = (ba.theory.finite_width(wide, about=about, variances=False) for about in ("mode", "saddle"))
        assert one.prediction.mean.shape == (5, 2)
        return tuple(np.abs(other.order_parameter - known).max() for known in (one.order_parameter, limit))

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
    mean = np.mean([each.log_evidence for each in annealed])
    error = np.sqrt(np.mean([each.error**2 for each in annealed]) / 5)
    # Each error is from 8 islands.
    near(by_importance.log_evidence, mean, np.hypot(by_importance.error, error), 5 * (8 - 1), finds=0.35)


def test_rows_are_named_by_path_and_output():
    arch = ba.Architecture((1, 2), (3, 3, 3), (1.0,) * 4, skips=(0.5, 0.0), outputs=2)
    named = arch.row_names([["same"], ["even", "odd"]], ["left", "right"])
    assert named[:3] == ["skip -> even: left", "skip -> even: right", "skip -> odd: left"]
    assert len(named) == arch.rows == 8
    assert repr(arch).endswith("skips=(0.5, 0.0), outputs=2)")
    plain = ba.Architecture((2,), (3, 3), (1.0,) * 3, skips=(0,), outputs=1)
    assert repr(plain) == "Architecture(heads=(2,), widths=(3, 3), variances=(1.0, 1.0, 1.0))"


def test_a_run_holds_skips_outputs_names_and_padding(tmp_path):
    model = extended_model("skips in both layers").replace(output_names=["left", "right"])
    run = ba.runs.sample(model, tmp_path / "run", **zoo.LIGHT | {"parameterisation": "token"})
    held = ba.runs.Run(tmp_path / "run").model
    assert held.architecture == model.architecture
    assert held.row_names[0] == "skip -> skip: left"
    np.testing.assert_array_equal(held.tokens.mask, model.tokens.mask)
    drawn = run.draws()
    assert drawn["posterior"]["prediction"].dims == ("chain", "draw", "test_example", "output")
    for group in ("posterior", "observed_data"):
        assert [*drawn[group]["output"].values] == ["left", "right"]
    assert ba.predict(run, model.test_path_inputs).mean.shape == (2, 2)


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
    for found, count in ((model.path_inputs, 3), (model.test_path_inputs, 1)):
        given = {"causal": True, "mask": mask[:count], "skips": (True,)}
        expected = ba.attention.path_inputs(inputs[:count], weights, readout, **given)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    if readout == "all":
        assert model.tokens is None
    else:
        assert np.all(np.triu(model.tokens.matrices[0], 1) == 0)
        assert np.all(model.tokens.matrices[0][0, :, :2, 2:] == 0)


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
        architecture=ba.Architecture((2, 2), (40,) * 3, skips=(0.0, 1.0), outputs=3),
        temperature=0.1,
    )
    draws = ba.sample(model, "hmc", chains=4, warmup=150, draws=1500)["posterior"]["order_parameter"]
    drawn, error = np.diag(draws.mean(("chain", "draw"))), np.diag(arviz_stats.mcse(draws))
    assert ba.theory.finite_width(model).about == "saddle"
    mode, saddle = (np.diag(ba.theory.finite_width(model, about=name).order_parameter) for name in ("mode", "saddle"))
    assert np.max(np.abs(mode / drawn - 1)) > 0.05
    near(saddle / drawn, 1, error / drawn, allowed=0.01, finds=0.1)


def test_statistics_of_several_outputs_have_the_same_posterior(mixed):
    (model, factor), rng = mixed, np.random.default_rng(1)
    data, u = (rng.normal(size=(60, 9, 3)), rng.normal(size=(60, 2))), factor @ factor.T
    whole = model.replace(path_inputs=data[0], labels=data[1])
    held = ba.Model(
        dataset=ba.Dataset.gather(data, model.architecture), architecture=model.architecture, temperature=0.5
    )
    known = jax.jit(lambda one: (one.log_density_of(u), one.readout_of(u)))
    for one, other, digits in zip(*(known(of.gaussian_process) for of in (held, whole)), (1e-12, 1e-10), strict=True):
        assert relative_error(one, other) < digits
