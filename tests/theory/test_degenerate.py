"""Data on the edge: a finite correct answer, or an error that names the cause; never NaN."""

import re

import numpy as np
import pytest

import bayesattn as ba
from bayesattn.gather import gather
from tests.conftest import model_of
from tests.statistics import agree

ARCH = ba.Architecture((2, 2), (6, 5, 7), (1.0,) * 4)
RNG = np.random.default_rng(0)
XI, Y = RNG.normal(size=(12, 4, 3)), RNG.choice([-1.0, 1.0], 12)
TWICE, SAME_LABELS = np.concatenate([XI[:6]] * 2), np.concatenate([Y[:6]] * 2)


@pytest.mark.heavy
@pytest.mark.parametrize(("inputs", "labels", "temperature"), [(0 * XI, Y, 0.1), (TWICE, SAME_LABELS, 1e-4)])
def test_zero_path_inputs_and_duplicated_examples_are_served(inputs, labels, temperature):
    """Zero inputs leave the prior."""
    model = model_of(inputs, labels, ARCH, temperature, test_path_inputs=XI)
    draws = ba.sample(model, warmup=200, draws=500)["posterior"]
    found = [solve(model).order_parameter for solve in (ba.theory.solve, ba.theory.finite_width)]
    for values in (*found, draws["order_parameter"], draws["prediction"]):
        assert np.isfinite(values).all()
    if not inputs.any():
        agree(draws["order_parameter"], np.eye(4))


THEORY = (ba.theory.solve, ba.theory.finite_width, ba.theory.evidence, ba.theory.gp_evidence)


@pytest.mark.parametrize("call", [*THEORY, ba.sample])
def test_a_singular_kernel_at_tiny_temperature_is_named(call):
    with pytest.raises(ba.theory.NotConverged, match=r"K has rank 6 for 12 labels .* temperature 1e-15 is too small"):
        call(model_of(TWICE, SAME_LABELS, ARCH, 1e-15))


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_what_is_lost_in_rounding_is_no_prediction_no_action_and_no_saddle_point(seed):
    """40 labels that 6 features cannot explain: U_11 came out as 0.199, 1.000 and 0.955, not 0.196, 0.290 and 0.250."""
    rng, arch, u = np.random.default_rng(seed), ba.Architecture((2,), (5, 5), (1.0,) * 3), np.eye(2)
    inputs, labels = rng.normal(size=(40, 2, 3)), rng.choice([-1.0, 1.0], 40)
    cold, served = (model_of(inputs, labels, arch, t, test_path_inputs=inputs) for t in (1e-12, 1e-6))
    with pytest.raises(ba.theory.NotConverged, match="singular in float64"):
        ba.theory.solve(cold)
    message = "^temperature must be larger: K.* I is singular in float64, .*, got temperature 1e-12$"
    for call in (lambda model: ba.theory.predict(u, model), lambda model: ba.theory.action([u], model)):
        with pytest.raises(ValueError, match=message):
            call(cold)
        assert all(np.isfinite(each).all() for each in call(served))


def test_a_cause_counts_all_examples():
    statistics = gather((np.concatenate([TWICE] * 20), np.tile(SAME_LABELS, 20)), ARCH)
    model = ba.Model(compressed=statistics, architecture=ARCH, temperature=1e-15)
    with pytest.raises(ba.theory.NotConverged, match="K has rank 6 for 240 labels"):
        ba.theory.solve(model)


def test_the_advice_is_a_temperature_that_is_served():
    """Where pivots are above rounding, but too near to it for six digits."""
    model = model_of(TWICE, SAME_LABELS, ARCH, 1e-11)
    with pytest.raises(ba.theory.NotConverged, match=r"K has rank 6 .* raise it above") as failure:
        ba.theory.solve(model)
    least, sure = (float(number) for number in re.findall(r"above (\S+?),? ", str(failure.value)))
    assert 1e-11 < least < 1e-8
    assert 1e-7 < sure < 1e-5
    assert np.isfinite(ba.theory.gp_evidence(model.replace(temperature=2 * least)))
    for temperature in np.geomspace(sure, 10 * sure, 8):
        assert ba.theory.solve(model, temperature=temperature).converged
    # Between them some are served and some are not, by rounding, which is another on another processor.
    for temperature in np.geomspace(10 * least, sure / 3, 8):
        try:
            assert ba.theory.solve(model, temperature=temperature).converged
        except ba.theory.NotConverged as error:
            assert "nearly singular" in str(error)  # noqa: PT017


def test_labels_of_absurd_size_are_named():
    with pytest.raises(ba.theory.NotConverged, match=r"labels are .* times larger than the prior expects"):
        ba.theory.finite_width(model_of(XI, 1e7 * Y, ARCH, 0.1), about="mode")
    # The expansion about the saddle point, the default in so narrow a network, copes with labels 1000 times too large. Of
    # larger ones a step of the search may end where K is singular by rounding: 1 of 20 at 1e4, 3 of 20 at 1e6.
    assert np.isfinite(ba.theory.finite_width(model_of(XI, 1e3 * Y, ARCH, 0.1)).order_parameter).all()
    failed = 0
    for seed in range(20):
        labels = 1e6 * Y * (1 + 1e-3 * np.random.default_rng(seed).normal(size=Y.shape))
        try:
            assert np.isfinite(ba.theory.finite_width(model_of(XI, labels, ARCH, 0.1)).order_parameter).all()
        except ba.theory.NotConverged as error:
            failed += 1
            assert "labels are 1e+06 times larger than the prior expects" in str(error)  # noqa: PT017
    assert failed < 7  # How it is compiled matters; the others are solved.


def test_a_draw_that_is_not_finite_ends_the_run(monkeypatch):
    from bayesattn.models import Collapsed

    honest = Collapsed.quantities

    def broken(posterior, sites, key):
        result = honest(posterior, sites, key)
        return result | {"order_parameter": result["order_parameter"] * np.nan}

    monkeypatch.setattr(Collapsed, "quantities", broken)
    arch = ba.Architecture((1,), (6, 5), (1.0,) * 3)
    model = model_of(XI[:9, :1], Y[:9], arch, 0.3)
    with pytest.raises(FloatingPointError, match=r"not finite at draws 8 to 27 \(warm-up included\) of chain 0"):
        ba.sample(model, warmup=7, draws=20, chains=1, options={"max_tree_depth": 3})
