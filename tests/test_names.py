"""Names at the top of the package, and what the version before had there."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import bayesattn as ba
from tests.zoo import model as zoo_model

PAGES = "\n".join(page.read_text() for page in (Path(__file__).parents[1] / "docs" / "api").glob("*.md"))


def test_what_the_package_holds():
    assert len(ba.__all__) <= 32
    assert {*dir(ba)} == {*ba.__all__, "__version__"}
    for name in ba.__all__:
        assert getattr(ba, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'smaple'"):
        ba.smaple  # noqa: B018
    with pytest.raises(AttributeError, match=r"'combining_width': write ba.heads\(draws\).combining_width"):
        ba.combining_width  # noqa: B018
    assert not hasattr(ba, "a.b")


def test_every_name_has_its_place_in_the_reference():
    assert not [name for name in ba.__all__ if not re.search(rf"(::: bayesattn\.{name}\b|## `ba\.{name}`)", PAGES)]


NAMES_BEFORE = """
import warnings
import bayesattn
for name, home in bayesattn._MOVED.items():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        thing = getattr(bayesattn, name)
    said = [str(each.message) for each in caught if each.category is FutureWarning]
    exec(said[0].partition("release: ")[2])
    assert globals()[name] is thing, said
"""


def test_names_of_the_version_before_say_where_they_are():
    """In a process of its own, because an import leaves modules as attributes."""
    subprocess.run([sys.executable, "-c", NAMES_BEFORE], check=True)


def test_the_order_before_still_holds_and_warns(zoo):
    draws, model = zoo.draws("two"), zoo_model("two")
    with pytest.warns(FutureWarning, match=r"^validate takes draws first.*: write validate\(draws\); "):
        before = ba.validate(model, draws)
    np.testing.assert_array_equal(before.order_parameter, ba.validate(draws).order_parameter)
    with pytest.warns(FutureWarning, match="^validate takes draws first"):
        ba.validate(model, draws=draws)
    with pytest.warns(FutureWarning, match="^heads takes draws first"):
        ba.heads(draws, model)
    with pytest.warns(FutureWarning, match="^weights takes draws first"):
        before = ba.weights(draws, model, 3)
    xr.testing.assert_identical(before, ba.weights(draws, seed=3))
