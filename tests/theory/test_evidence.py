"""Evidence by importance sampling and by annealing against quadrature, prior draws and closed forms."""

import importlib
import runpy
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy import special, stats

import bayesattn as ba
from bayesattn.kernels.forms import gaussian_process
from bayesattn.theory import particles
from bayesattn.theory import potential as potentials
from bayesattn.theory.bartlett import layer_shapes, mirrored
from bayesattn.theory.evidence import competing
from tests.conftest import model_of
from tests.posteriors import by_prior_draws, evidence_of, exact_scalar_posterior, tiny_model
from tests.statistics import likely, near


def random_problem(heads, widths, examples, features, size, temperature, seed, duplicated=False):
    """Gaussian path inputs and labels of either sign; with the second half of the inputs that of the first, if asked."""
    rng = np.random.default_rng(seed)
    arch = ba.Architecture(heads, widths, (1.0,) * (len(heads) + 2))
    path_inputs, labels = rng.normal(size=(examples, arch.paths, features)), size * rng.choice([-1.0, 1.0], examples)
    if duplicated:
        path_inputs[examples // 2 :] = path_inputs[: examples - examples // 2]
    return path_inputs, labels, arch, temperature


def by_chains(model, hot=30.0):
    """log p(Y) by prior draws at a temperature where these are many, and from there by thermodynamic integration.

    The derivative of log p(Y) by log T is E[|Y - f|^2] / 2T - P / 2, here at the nodes of a Gauss-Legendre rule.
    """
    exact, error = evidence_of(by_prior_draws(model.replace(temperature=hot), 100_000)[1])
    nodes, weights = np.polynomial.legendre.leggauss(8)
    half = np.log(hot / model.temperature) / 2
    found = ba.learning_coefficient(model, model.temperature * np.exp(half * (1 + nodes)), warmup=300, draws=2000)
    assert found.rhat.max() < 1.01
    slopes = found.value + found.best_fit.square / (2 * found.temperatures) - model.examples / 2
    return exact - half * weights @ slopes, np.hypot(error, half * np.linalg.norm(weights * found.error))


ISLANDS = 16
"""Of two bridges, whose scatter is the error of an evidence by annealing."""


def right(found, exact, error=0.0, *, finds):
    """The mean of evidences of some seeds is what is exact, or known up to an error; `finds` is in nats."""
    assert all(each.reliable for each in found)
    own = np.linalg.norm([each.error for each in found]) / len(found)
    degrees = len(found) * (ISLANDS - 2) if found[0].method == "annealing" else np.inf
    near(np.mean([each.log_evidence for each in found]), exact, np.hypot(own, error), degrees, finds=finds)


@pytest.mark.parametrize(
    ("temperature", "widths", "seeds"),
    [
        (0.01, (1, 1), 3),
        pytest.param(0.01, (12, 12), 3, marks=pytest.mark.heavy),
        pytest.param(1.0, (1, 1), 6, marks=pytest.mark.heavy),
        pytest.param(1.0, (12, 12), 3, marks=pytest.mark.heavy),
        (1.0, (12, 12), 0),
    ],
)
def test_both_routes_against_quadrature(temperature, widths, seeds):
    """Of wide layers annealing, which has no code of its own for these, takes part in the heavy cases."""
    model = tiny_model(temperature, widths=widths)
    exact = exact_scalar_posterior(model)[2]
    # A single network of width 1 at T = 1 has an error of 0.06.
    found = [ba.theory.evidence(model, seed=seed) for seed in range(seeds if seeds > 3 else 1)]
    right(found, exact, finds=0.15)
    if widths == (12, 12):
        assert found[0].method == "importance sampling"
    if seeds:
        annealed = [ba.theory.evidence(model, seed=seed, particles=128) for seed in range(seeds)]
        assert all(each.method == "annealing" for each in annealed)
        assert len({each.log_evidence for each in annealed}) == seeds
        right(annealed, exact, finds=0.3)


def test_a_seed_fixes_what_is_found():
    """Of arrays and of lists of the same numbers."""
    model = tiny_model(0.01, widths=(1, 1))
    lists = model_of(model.path_inputs.tolist(), model.labels.tolist(), model.architecture, 0.01)
    together = ba.theory.evidences(model, [0.01, 2.0, 0.01], particles=128)
    assert together == ba.theory.evidences(lists, [0.01, 2.0, 0.01], particles=128)
    assert together[0] == together[2]


def test_without_noise_one_path_is_a_deep_linear_network_with_meijers_function():
    """Hanin and Zlokapa 2022: p(Y) is a G function of |Y|^2 in the metric of the inputs, here by its contour integral.

    With U = c x product of gammas of shapes N_l / 2, E[U^(-P/2) exp(-q / (2 U))] is c^(-P/2) / product of Gamma(N_l / 2)
    times the integral over s of Gamma(s) product of Gamma(N_l / 2 - P / 2 + s) (q / (2 c))^(-s) / (2 pi i).
    """
    path_inputs, labels, arch, _ = random_problem((1, 1), (3, 2, 4), 5, 8, 1.0, 1.0, 5)
    unit = np.asarray(ba.theory.kernel([[1.0]], path_inputs, path_inputs, arch))
    half, quadratic, scale = len(labels) / 2, labels @ np.linalg.solve(unit, labels), np.prod(2 / np.array(arch.widths))
    contour = half + 1 + 1j * np.linspace(-60, 60, 20001)
    terms = special.loggamma(contour) - contour * np.log(quadratic / (2 * scale))
    terms += sum(special.loggamma(width / 2 - half + contour) for width in arch.widths)
    integral = np.exp(terms).sum().real * (contour[1] - contour[0]).imag / (2 * np.pi)
    exact = np.log(integral) - half * np.log(2 * np.pi * scale) - np.linalg.slogdet(unit)[1] / 2
    exact -= sum(special.gammaln(width / 2) for width in arch.widths)
    right([ba.theory.evidence(model_of(path_inputs, labels, arch, 1e-6))], exact, finds=0.2)


def test_gp_evidence_is_a_normal_density():
    model = tiny_model(heads=(2,), widths=(3, 4))
    limit = ba.theory.gp_order_parameter(model.architecture)
    kernel = ba.theory.kernel(limit, model.path_inputs, model.path_inputs, model.architecture)
    covariance = np.asarray(kernel) + model.temperature * np.eye(len(kernel))
    expected = stats.multivariate_normal(cov=covariance).logpdf(model.labels)
    assert ba.theory.gp_evidence(model) == pytest.approx(expected, rel=1e-12)


def test_it_tends_to_the_gp_limit():
    """The gap is of order 1/N: a tenth at ten times the width, up to the next order, of relative size below 10 % here."""
    models = [model_of(*random_problem((2,), (width,) * 2, 12, 5, 4.0, 0.3, 6)) for width in (2000, 20000)]
    found = [ba.theory.evidence(model) for model in models]
    gaps = [abs(each.log_evidence - ba.theory.gp_evidence(models[0])) for each in found]
    assert gaps[0] > 10 * found[0].error
    error = np.hypot(found[1].error, found[0].error / 10)
    near(gaps[1], gaps[0] / 10, error, finds=gaps[0] / 10, allowed=gaps[0] / 100)


def far_problem(temperature=0.01, widths=None, size=1.0):
    """Labels that rank-two kernels fit only far out in the prior's tail, where U is 3 to 60 times what the prior expects."""
    with np.load(Path(__file__).parent.parent / "data" / "evidence_far.npz") as file:
        heads, stored = (tuple(map(int, file[name])) for name in ("heads", "widths"))
        arch = ba.Architecture(heads, widths or stored, tuple(file["variances"]))
        return file["path_inputs"], size * file["labels"], arch, temperature


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.heavy)])
@pytest.mark.parametrize(
    ("problem", "exact", "error"),
    [
        (far_problem(), -25.111, 0.004),
        pytest.param(far_problem(0.003), -26.508, 0.004, marks=pytest.mark.heavy),
        pytest.param(far_problem(0.02, (2, 8, 3), 1.5), -31.814, 0.003, marks=pytest.mark.heavy),
    ],
)
def test_a_mode_far_out_in_the_tail_of_the_prior(problem, exact, error, seed):
    """Against `reference` of benchmarks/evidence.py, by NumPy alone; annealing from the prior misses the first by 9 nats."""
    right([ba.theory.evidence(model_of(*problem), seed=seed)], exact, error, finds=2)


def test_temperatures_that_share_a_run_against_prior_draws():
    """Of that network, where the prior is not far from the posterior."""
    model, temperatures = model_of(*far_problem(size=2.0)), [0.3, 2.0]
    for found, temperature in zip(ba.theory.evidences(model, temperatures), temperatures, strict=True):
        exact, error = evidence_of(by_prior_draws(model.replace(temperature=temperature), 40_000)[1])
        right([found], exact, error, finds=1)
        assert found.method == "annealing"


@pytest.mark.parametrize(
    ("heads", "widths", "skips", "outputs", "images"),
    [
        ((2, 1), (2, 2, 3), (1.0, 0.0), 1, 2),
        ((1, 2, 2), (4, 4, 4, 1), (0.7, 0.5, 0.0), 2, 4),
        ((3, 2), (2, 1, 1), (0.0, 0.0), 2, 8),
        ((2, 2), (20, 30, 20), (0.0, 0.0), 1, 1),
    ],
)
def test_signs_of_columns_leave_u_as_it_is(heads, widths, skips, outputs, images):
    arch = ba.Architecture(heads, widths, (1.0,) * (len(heads) + 2), skips, outputs)
    shapes = layer_shapes(arch)
    random = np.random.default_rng(7)
    order = jax.numpy.asarray(np.concatenate([random.permutation(shape.rows) for shape in shapes]))
    path_inputs, labels = np.ones((2, arch.paths, 1)), np.ones((2, outputs) if outputs > 1 else 2)
    posterior = potentials.problem_of(gaussian_process(path_inputs, labels, arch, 1.0), arch)._replace(order=order)
    signs = mirrored(shapes, order)
    assert len(np.unique(signs, axis=0)) == len(signs) == images
    point = random.normal(size=signs.shape[1])
    found = np.array([posterior.order_parameter(jax.numpy.asarray(sign * point), shapes) for sign in signs])
    np.testing.assert_allclose(found, np.broadcast_to(found[0], found.shape), rtol=1e-10, atol=1e-12)


@pytest.mark.heavy
@pytest.mark.parametrize(("number", "exact", "error"), [(5, -56.219, 0.002)])
def test_two_images_of_a_mode_that_few_searches_find(number, exact, error):
    """One search in twenty ends in it; annealing from the prior and half of its images are 18.5 and 0.7 nats too small."""
    problem = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "evidence.py"))["network"](number)
    right([ba.theory.evidence(model_of(*problem), seed=seed) for seed in range(3)], exact, error, finds=0.5)


MANY_PATHS = ((4, 4), (10, 10, 10), 24, 5, 2.0)


@pytest.mark.heavy
def test_the_error_is_the_scatter_of_seeds():
    """Chi-squared over 48 seeds about the exact value."""
    model = tiny_model(0.1, widths=(2, 1))
    exact = exact_scalar_posterior(model)[2]
    found = [ba.theory.evidence(model, seed=seed, particles=32) for seed in range(48)]
    pulls = np.array([(each.log_evidence - exact) / each.error for each in found])
    # Stated errors are cautious: Student's factor, and never below the error of independent particles.
    law, total = stats.chi2(len(found)), np.sum(pulls**2)
    likely([law.sf(total), law.cdf(2 * total)])


@pytest.mark.heavy
def test_a_choice_leaves_out_what_is_too_cold_to_compete():
    """Equal inputs with different labels: log p(Y) falls as 1/T."""
    model = model_of(*random_problem((3,), (2, 1), 8, 4, 1.0, 1.0, 5, duplicated=True))
    cold, hot = competing(model, [1e-4, 1.0])
    assert cold is None
    assert hot is not None
    known = ba.theory.evidences(model, [0.01, 1.0])
    assert known[1] == hot
    assert known[0].log_evidence < hot.log_evidence - 30
    assert None not in competing(model, [0.3, 1.0])


TWELVE = [
    (*MANY_PATHS, 1.0, 1),
    (*MANY_PATHS, 0.3, 2),
    ((4, 4), (6, 6, 6), 20, 4, 2.0, 1.0, 3),
    ((2,), (1, 1), 12, 4, 1.0, 0.3, 4),
    ((3,), (2, 1), 12, 4, 1.0, 0.1, 5),
    ((2, 2), (2, 3, 2), 16, 4, 1.0, 0.3, 6),
    ((2, 2), (8, 8, 8), 16, 4, 1.0, 0.1, 7, True),
    ((3,), (6, 5), 14, 3, 1.0, 0.2, 8, True),
    ((3, 2), (3, 4, 5), 15, 4, 2.0, 0.5, 9),
    ((2,), (20, 20), 20, 6, 1.0, 0.3, 10),
    ((2, 2, 2), (5, 5, 5, 5), 12, 4, 1.0, 0.5, 11),
    ((4,), (3, 2), 10, 5, 1.0, 0.3, 12),
]


@pytest.mark.heavy
@pytest.mark.parametrize("case", TWELVE)
def test_twelve_random_networks_against_prior_draws_or_chains(case):
    """Two of them with singular kernels, three with 16 paths; means of three seeds."""
    model = model_of(*random_problem(*case))
    exact, error = evidence_of(by_prior_draws(model, 200_000)[1])
    if error > 0.05:
        exact, error = by_chains(model)
    right([ba.theory.evidence(model, seed=seed) for seed in range(3)], exact, error, finds=1)


def test_blocks_of_importance_sampling_are_of_different_draws(monkeypatch):
    """Repeated draws would leave the value what it is, and its stated error too small."""
    module, drawn = importlib.import_module("bayesattn.theory.importance"), []
    honest = module._weighed
    monkeypatch.setattr(module, "_weighed", lambda *arguments: drawn.append(honest(*arguments)) or drawn[-1])
    monkeypatch.setattr(module, "TARGET_ERROR", 0.0)
    assert ba.theory.evidence(tiny_model(1.0, widths=(12, 12))).reliable
    assert len(drawn) == module.MOST_BLOCKS
    log_weights = [weights for _, weights in drawn]
    assert len(np.unique(log_weights)) == np.size(log_weights)


def islands(*values):
    """Annealed particles whose islands say these log evidences."""
    return particles.Particles(np.zeros((len(values), 1, 1)), np.ones((len(values), 1)), np.array(values), 0.0, 1.0)


def test_bridges_that_differ_or_miss_what_the_particles_found_say_so_in_their_error():
    """One island of eight found a mode 15 nats higher: its own error is large, but so much too large it hardly ever is."""
    agreed, spread = importlib.import_module("bayesattn.theory.evidence")._agreed, np.linspace(-0.1, 0.1, 8)
    bridges = [islands(*spread), islands(*(spread + 0.05))]
    lost = agreed(bridges, islands(*spread[:7], 15.0))
    assert not lost.reliable
    assert lost.log_evidence > 12
    found = agreed(bridges, islands(*(10 * spread)))
    assert found.reliable
    assert abs(found.log_evidence) < 0.1
    low, high = islands(*(5 * spread)), islands(*(5 * spread + 0.55))
    alone, both = agreed([low, low], low), agreed([low, high], low)
    assert alone.error == pytest.approx(low.error / np.sqrt(2))
    assert both.error == pytest.approx(abs(high.log_evidence - low.log_evidence) / 2, rel=0.02)


def test_few_weights_need_lighter_tails(monkeypatch):
    """Pareto k of 0.66 is fine of 1,200 draws, and not of 512 (Vehtari et al. 2024)."""
    route = importlib.import_module("bayesattn.theory.importance")
    monkeypatch.setattr(route, "_smoothed", lambda log_weights: (0 * log_weights, 0.66))
    model = tiny_model(1.0)
    for blocks in (1, 3):
        monkeypatch.setattr(route, "MOST_BLOCKS", blocks)
        found = route.by_importance(model.gaussian_process, model.architecture, None, jax.random.key(0), "")
        assert found.evidence.reliable == (blocks * route.BLOCK_DRAWS > 1000)
