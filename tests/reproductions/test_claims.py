"""Claims: when they hold, what their errors and p-values are."""

import numpy as np
import pytest
from scipy import stats

from reproductions.claims import Claim, Mean, combined, exponent, jackknife, law_slope, mean_of, slope, worst
from tests.statistics import near

RNG = np.random.default_rng(0)
CLAIM = {"statement": "", "law": "", "predicted": 1.0}


def test_exact_claims_keep_their_tolerance():
    assert Claim(**CLAIM, measured=1.09, tolerance=0.1).p_value == 1
    assert Claim(**CLAIM, measured=1.11, tolerance=0.1).p_value == 0
    assert Claim(**CLAIM, measured=0.0, relation="<=").p_value == 1
    assert Claim(**CLAIM, measured=0.0, relation=">=").p_value == 0


def test_p_values_are_those_of_students_t_with_the_errors_of_both_sides():
    first, second = RNG.normal(size=12), RNG.normal(0.3, 3, size=20)
    claim = Claim("", "", mean_of(first), mean_of(second))
    _, expected = stats.ttest_ind(second, first, equal_var=False)
    assert claim.p_value == pytest.approx(expected, rel=1e-9)
    one = Claim("", "", 0.1, mean_of(second))
    assert one.p_value == pytest.approx(stats.ttest_1samp(second, 0.1)[1], rel=1e-9)
    for relation, alternative in (("<=", "greater"), (">=", "less")):
        sided = Claim("", "", 0.1, mean_of(second), relation)
        assert sided.p_value == pytest.approx(stats.ttest_1samp(second, 0.1, alternative=alternative)[1], rel=1e-9)
    assert combined(Mean(1.0), Mean(2.0)) == Mean(3.0, 0.0, np.inf)


def test_the_worst_of_many_pays_for_their_number():
    measured = [Mean(0.0, 1.0), Mean(-3.0, 1.0), Mean(2.0, 1.0)]
    found = worst("", "", [0.0] * 3, measured)
    assert found.measured == measured[1]
    assert found.p_value == pytest.approx(3 * Claim("", "", 0.0, measured[1]).p_value)
    assert worst("", "", [0.0, 0.0], [Mean(0.0, 1.0), Mean(np.nan, 1.0)]).as_expected(0.01) is False


def test_literal_claims_are_expected_to_fail_significantly():
    level = 1e-4
    assert Claim(**CLAIM, measured=Mean(1.5, 0.1), literal=True).as_expected(level)
    assert not Claim(**CLAIM, measured=Mean(1.2, 0.1), literal=True).as_expected(level)
    assert not Claim(**CLAIM, measured=np.nan, literal=True).as_expected(level)
    assert not Claim(**CLAIM, measured=Mean(1.0, np.nan)).as_expected(level)
    assert not Claim(**CLAIM, measured=Mean(np.nan, 1.0), relation="<=").as_expected(level)
    assert not Claim(**CLAIM, measured=Mean(1.0, np.inf)).as_expected(level)


def test_a_tolerance_does_not_widen_a_statistical_claim():
    with pytest.raises(ValueError, match=r"tolerance must be 0 for a claim with a standard error, got 0\.1"):
        Claim(**CLAIM, measured=Mean(1.0, 0.1), tolerance=0.1)


def test_slopes_of_known_powers():
    x = np.array([10, 100, 1000])
    squares = (x**-0.8)[:, None] * RNG.chisquare(4, size=(3, 2000)) / 4
    found = slope(x, squares)
    near(found.value, -0.4, found.error, found.degrees, finds=0.02)
    assert law_slope(x, x**-0.8) == pytest.approx(-0.4)
    # Errors of means that are known: weights of a least-squares slope.
    means = [Mean(1.0, 0.1, 10), Mean(10.0, 1.0, 10)]
    assert exponent([1, 10], means) == pytest.approx((1.0, np.hypot(0.1, 0.1) / np.log(10), 20))


def test_the_jackknife_of_a_mean_is_its_standard_error():
    data = RNG.normal(size=30)
    assert jackknife(float, [data]) == pytest.approx(mean_of(data), rel=1e-9)
    # The bias of a square, variance / 30, is taken away.
    assert jackknife(lambda mean: mean**2, [data]).value == pytest.approx(data.mean() ** 2 - data.var(ddof=1) / 30)


def test_what_a_law_leaves_out_is_allowed_and_no_more():
    far = float(stats.norm.isf(0.005))
    for sign in (1, -1):
        within = Claim(**CLAIM, measured=Mean(1 + 0.29 * sign, 0.1), allowance=0.3)
        assert within.p_value == 1
        beyond = Claim(**CLAIM, measured=Mean(1 + sign * (0.3 + 0.1 * far), 0.1), allowance=0.3)
        assert beyond.p_value == pytest.approx(0.01)
    above = Claim(**CLAIM, measured=Mean(1.3 + 0.1 * far, 0.1), relation="<=", allowance=0.3)
    assert above.p_value == pytest.approx(0.005)
    assert Claim(**CLAIM, measured=Mean(0.0, 0.1), relation="<=", allowance=0.3).p_value == pytest.approx(1)
    assert Claim(**CLAIM, measured=1.35, tolerance=0.1, allowance=0.3).holds(0.01)
    planted = Claim(**CLAIM, measured=Mean(1.0, 0.01), planted=1.2, allowance=0.3)
    assert not planted.finds_planted(0.01)
    assert Claim(**CLAIM, measured=Mean(1.0, 0.01), planted=1.2, allowance=0.1).finds_planted(0.01)
    with pytest.raises(ValueError, match="allowance must be at least 0, got -1"):
        Claim(**CLAIM, measured=Mean(1.0, 0.1), allowance=-1.0)
    assert within.to_dict()["allowance"] == 0.3
