"""The house: who imports whom, and which libraries, by the source alone; extras that are not installed."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
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


def name_of(file):
    return ".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


FILES = {name_of(file): file for file in PACKAGE.rglob("*.py")}


def imports(body):
    """Modules that a file imports, in functions too."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        else:
            yield from imports(ast.iter_child_nodes(node))


@cache
def imported_by(name):
    return [*imports(ast.parse(FILES[name].read_text()).body)]


def users_of(*libraries):
    return {name for name in FILES for imported in imported_by(name) if imported.partition(".")[0] in libraries}


@pytest.mark.parametrize(
    ("file", "line", "broken"),
    [
        (None, "", ()),
        ("kernels/pairs.py", "def late():\n    from bayesattn.jobs.runs import Run\n", ("Floors", "circles")),
        ("checks/mixing.py", "if TYPE_CHECKING:\n    import bayesattn.checks.diagnostics\n", ("circles",)),
    ],
    ids=["as it is", "a late import from above", "an import for types that closes a circle"],
)
def test_floors_hold(file, line, broken, tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "bayesattn", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PACKAGE.parent / "pyproject.toml", tmp_path)
    if file is not None:
        with (tmp_path / "bayesattn" / file).open("a") as stream:
            stream.write(line)
    linter = [Path(sys.executable).parent / "lint-imports", "--no-cache"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    linted = subprocess.run(linter, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    found = re.findall(r"^(.*?)(?: \(.*\))? (KEPT|BROKEN)", linted.stdout, re.MULTILINE)
    assert len(found) == 2, linted.stdout + linted.stderr
    assert (linted.returncode == 0) == (not broken)
    for name, state in found:
        assert (state == "BROKEN") == any(word in name for word in broken), linted.stdout


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
