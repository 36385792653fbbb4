"""Claims: when they hold, what their errors and p-values are, and which wrong laws they find."""

import numpy as np
import pytest
from scipy import stats

from bayesattn.checks.thresholds import CANNOT_TELL, DOES_NOT_HOLD, HOLDS
from reproductions import claims
from reproductions.claims import Claim, Mean, above_zero, mean_of, worst
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
    _, expected = stats.ttest_ind(second, first, equal_var=False)
    assert Claim("", "", mean_of(first), mean_of(second)).p_value == pytest.approx(expected, rel=1e-9)
    for relation, alternative in (("=", "two-sided"), ("<=", "greater"), (">=", "less")):
        claim = Claim("", "", 0.1, mean_of(second), relation)
        assert claim.p_value == pytest.approx(stats.ttest_1samp(second, 0.1, alternative=alternative)[1], rel=1e-9)
    assert claims.combined(Mean(1.0), Mean(2.0)) == Mean(3.0, 0.0, np.inf)


def test_the_worst_of_many_pays_for_their_number():
    measured = [Mean(0.0, 1.0), Mean(-3.0, 1.0), Mean(2.0, 1.0)]
    found = worst("", "", [0.0] * 3, measured)
    assert found.measured == measured[1]
    assert found.p_value == pytest.approx(3 * Claim("", "", 0.0, measured[1]).p_value)
    assert worst("", "", [0.0, 0.0], [Mean(0.0, 1.0), Mean(np.nan, 1.0)]).as_expected(0.01) is False


@pytest.mark.parametrize(
    ("measured", "literal", "expected"),
    [
        (Mean(1.5, 0.1), True, True),
        (Mean(1.2, 0.1), True, False),
        (np.nan, True, False),
        (Mean(1.0, np.nan), False, False),
        (Mean(np.nan, 1.0), False, False),
        (Mean(1.0, np.inf), False, False),
    ],
)
def test_literal_claims_are_expected_to_fail_significantly_and_what_is_not_finite_never_holds(
    measured, literal, expected
):
    assert Claim(**CLAIM, measured=measured, literal=literal).as_expected(1e-4) == expected


def test_slopes_of_known_powers():
    x = np.array([10, 100, 1000])
    squares = (x**-0.8)[:, None] * RNG.chisquare(4, size=(3, 2000)) / 4
    found = claims.slope(x, squares)
    near(found.value, -0.4, found.error, found.degrees, finds=0.02)
    assert claims.law_slope(x, x**-0.8) == pytest.approx(-0.4)
    # Errors of means that are known: weights of a least-squares slope.
    means = [Mean(1.0, 0.1, 10), Mean(10.0, 1.0, 10)]
    assert claims.exponent([1, 10], means) == pytest.approx((1.0, np.hypot(0.1, 0.1) / np.log(10), 20))


def test_the_jackknife_of_a_mean_is_its_standard_error():
    data = RNG.normal(size=30)
    assert claims.jackknife(float, [data]) == pytest.approx(mean_of(data), rel=1e-9)
    # The bias of a square, variance / 30, is taken away.
    assert claims.jackknife(lambda mean: mean**2, [data]).value == pytest.approx(
        data.mean() ** 2 - data.var(ddof=1) / 30
    )


def test_what_a_law_leaves_out_is_allowed_and_no_more():
    far = float(stats.norm.isf(0.005))
    for sign in (1, -1):
        assert Claim(**CLAIM, measured=Mean(1 + 0.29 * sign, 0.1), allowance=0.3).p_value == 1
        beyond = Claim(**CLAIM, measured=Mean(1 + sign * (0.3 + 0.1 * far), 0.1), allowance=0.3)
        assert beyond.p_value == pytest.approx(0.01)
    above = Claim(**CLAIM, measured=Mean(1.3 + 0.1 * far, 0.1), relation="<=", allowance=0.3)
    assert above.p_value == pytest.approx(0.005)
    assert Claim(**CLAIM, measured=1.35, tolerance=0.1, allowance=0.3).holds(0.01)
    for allowance, finds in ((0.3, False), (0.1, True)):
        claim = Claim(**CLAIM, measured=Mean(1.0, 0.01), planted=1.2, allowance=allowance)
        assert claim.finds_planted(0.01) == finds
    with pytest.raises(ValueError, match="allowance must be at least 0, got -1"):
        Claim(**CLAIM, measured=Mean(1.0, 0.1), allowance=-1.0)
    with pytest.raises(ValueError, match=r"tolerance must be 0 for a claim with a standard error, got 0\.1"):
        Claim(**CLAIM, measured=Mean(1.0, 0.1), tolerance=0.1)


def test_a_gain_or_a_fall_holds_where_none_is_found_wrong():
    verdicts = {0.5: HOLDS, 0.1: CANNOT_TELL, -0.1: CANNOT_TELL, -0.5: DOES_NOT_HOLD}
    for value, verdict in verdicts.items():
        assert above_zero("", Mean(value, 0.05)).verdict == verdict
        assert above_zero("", Mean(-value, 0.05), below=True).verdict == verdict


def test_planted_laws_are_off_by_the_size_that_is_asked_for():
    assert Claim("", "", 2.0, Mean(2.0, 0.1)).with_planted(0.5).planted.value == 3.0
    assert Claim("", "", 2.0, Mean(2.0, 0.1), "<=").with_planted(0.5).planted.value == 1.0
    assert Claim("", "", 0.0, Mean(0.0, 0.1)).with_planted(0.5).planted.value == 0.5
    exact = Claim("", "", 0.0, 1e-12, tolerance=1e-10).with_planted(0.5)
    assert exact.finds_planted(1e-4)
    assert exact.holds(1e-4)
    given, literal = Claim(**CLAIM, measured=1.0, planted=2.0), Claim(**CLAIM, measured=Mean(1.0, 0.1), literal=True)
    assert given.with_planted(0.5) is given
    assert literal.with_planted(0.5).planted is None
