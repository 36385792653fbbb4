import numpy as np
import pytest

import bayesattn as ba


def test_paths_are_in_c_order_with_the_first_layer_slowest():
    arch = ba.Architecture((2, 3), (4, 5, 6), (1, 2, 3, 4))
    assert arch.paths == 6
    assert arch.path_heads()[:4] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert arch.path_names([["a", "b"], ["x", "y", "z"]])[3] == "b -> x"
    assert arch.order_parameter_sizes == (6, 3)
    assert arch.with_width(7).widths == ba.Architecture(iter(arch.heads), np.int64(7)).widths == (7, 7, 7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((2, 2), 0), "widths must be a whole number of at least 1, got 0"),
        (((2, 2), (10, 10), (1,) * 4), r"widths must have 3 entries .* got 2"),
        (((2, 2), (10,) * 3, (1,) * 3), r"variances must have 4 entries .* got 3"),
        (((2, 2), (3,) * 3, (1,) * 4, (0.5,)), r"skips must have 2 entries \(rho_1..rho_L\) for 2 layers .*, got 1"),
        (((2, 2), (3,) * 3, (1,) * 4, (-1.0, 0.0)), r"skips\[0\] must be a number of at least 0, got -1"),
        (((2, 2), (3,) * 3, (1,) * 4, 0.5), "skips must be a sequence of numbers"),
        (((2, 2), (3, 3, 4), (1,) * 4, (0, 1)), "widths must be equal on both sides of a skip, got 3 and 4 of layer 2"),
        (((2, 2), (3,) * 3, (1,) * 4, (0, 0), 0), "outputs must be a whole number of at least 1, got 0"),
        (((2, 0), (10,) * 3, (1,) * 4), r"heads\[1\] must be a whole number of at least 1, got 0"),
        ((np.array([2.0, 2.0]), (10,) * 3, (1,) * 4), r"heads\[0\] must be a whole number"),
    ],
)
def test_bad_architecture_is_named(arguments, message):
    """Widths and variances of other kinds: tests/attacks/test_values.py."""
    with pytest.raises(ValueError, match=message):
        ba.Architecture(*arguments)
