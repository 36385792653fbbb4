"""The house: who imports which libraries, by the source alone (lint-imports sees the floors); extras not installed."""

import re
import tomllib
from pathlib import Path

import pytest

from bayesattn import runs
from bayesattn._util import extras as _extras
from bayesattn.jobs import report, sweep
from bayesattn.tasks import Digits

PACKAGE = Path(__file__).parents[1] / "bayesattn"
HOMES = {
    "blackjax": {"samplers.langevin"},
    "dask": {"gather", "jobs.sweep"},
    "distributed": {"jobs.sweep"},
    "jinja2": {"jobs.report"},
    "matplotlib": {"checks.tempering", "jobs.plots", "jobs.report"},
    "numpyro": {"models", "samplers"},
    "optax": {"questions.preferred_attention"},
    "sklearn": {"tasks.digits"},
    "torch": {"tasks.pretrained"},
    "typer": {"jobs.cli"},
    "zarr": {"compressed", "jobs.runs"},
    "equinox": {"likelihoods", "models"},
}
"""The only modules that import a library, with what stands below them."""


def users_of(*libraries):
    """Modules of the package that import a library, in functions too, but not for types alone."""
    users = set()
    for file in PACKAGE.rglob("*.py"):
        source = re.sub(r"^if TYPE_CHECKING:\n(?: +.*\n)+", "", file.read_text(), flags=re.MULTILINE)
        if re.search(rf"^ *(?:import|from) (?:{'|'.join(libraries)})\b", source, re.MULTILINE):
            users.add(".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"))
    return users


def test_the_package_does_without_the_reproductions():
    assert users_of("reproductions", "optimistix") == set()


@pytest.mark.parametrize("library", HOMES)
def test_libraries_have_homes(library):
    users, homes = users_of(library), HOMES[library]
    assert users
    assert {name for name in users if not any(name == home or name.startswith(home + ".") for home in homes)} == set()


@pytest.mark.parametrize("extra", _extras.EXTRAS)
def test_extras_are_those_of_the_project(extra):
    """Each has what the code asks for, and an install line that works."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    named = {re.match(r"[\w-]+", line)[0] for line in project["optional-dependencies"][extra]}
    core = {re.match(r"[\w-]+", line)[0] for line in project["dependencies"]}
    assert set(_extras.EXTRAS[extra].values()) <= named
    assert not named & core


def test_a_missing_library_is_named_with_its_install_line(monkeypatch, tmp_path):
    found = _extras.find_spec
    gone = {"sklearn", "distributed", "jinja2", "h5netcdf"}
    monkeypatch.setattr(_extras, "find_spec", lambda name: None if name in gone else found(name))
    (tmp_path / "sweep.toml").write_text('[settings]\nmodel = "hidden_markov"\n[grid]\nseed = [0]\n')
    run = runs.Run.__new__(runs.Run)
    for use, message in {
        lambda: Digits().dataset(): r"the task digits needs scikit-learn: pip install 'bayesattn\[images\]'",
        lambda: sweep.run(sweep.Sweep(tmp_path / "sweep.toml")): r"a sweep needs distributed: .*\[sweep\]",
        lambda: report.report(["run"], "page.html"): r"a report needs jinja2: .*\[report\]",
        lambda: run.to_netcdf("run.nc"): r"an export to NetCDF needs h5netcdf: .*\[netcdf\]",
    }.items():
        with pytest.raises(ImportError, match=message):
            use()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sweep.toml"]
