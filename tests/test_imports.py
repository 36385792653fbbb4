"""The house: who imports whom, and which libraries, by the source alone; extras that are not installed."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from bayesattn import report, runs, sweep
from bayesattn._util import extras as _extras
from bayesattn.tasks import load_images

PACKAGE = Path(__file__).parents[1] / "bayesattn"
FLOORS = [
    names.split()
    for names in (
        "_util",
        "architecture attention classes labels posterior checks.ranks",
        "kernels likelihoods",
        "theory",
        "compressed",
        "gather",
        "dataset network tasks",
        "tokens",
        "attention_model model network_posterior",
        "models",
        "joining samplers",
        "checks.accuracy checks.alignment checks.calibration checks.comparison checks.diagnostics checks.mean_predictor"
        " checks.mixing checks.pruning checks.scaling checks.temperature",
        "head_posterior plots checks.grading checks.predicted prediction predictive prior_draws preferred_attention"
        " reference runs singular checks.statements checks.validation checks.verdict",
        "exchangeable checks.study sweep",
        "report",
        "cli",
    )
]
"""A module imports those of its own floor and of the floors below."""
HOMES = {
    "PIL": {"tasks.images"},
    "blackjax": {"samplers.langevin", "samplers.smc"},
    "dask": {"gather", "sweep"},
    "distributed": {"sweep"},
    "jinja2": {"report"},
    "matplotlib": {"plots", "report"},
    "numpyro": {"models", "samplers"},
    "optax": {"preferred_attention", "tasks.training"},
    "pooch": {"tasks.images"},
    "sklearn": {"tasks.images"},
    "torch": {"attention"},
    "typer": {"cli"},
    "zarr": {"compressed", "runs"},
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


@cache
def of_this_package(name):
    found = set()
    for imported in imported_by(name):
        package, _, module = imported.partition(".")
        if package == PACKAGE.name:
            found.add(module if module in FILES else module.rpartition(".")[0])
    return found - {name}


def users_of(*libraries):
    return {name for name in FILES for imported in imported_by(name) if imported.partition(".")[0] in libraries}


def test_no_module_imports_itself_by_way_of_others():
    graph = {name: of_this_package(name) for name in FILES}
    while free := {name for name, needs in graph.items() if not needs & graph.keys()}:
        graph = {name: needs for name, needs in graph.items() if name not in free}
    assert graph == {}


def floor_of(name):
    parts = name.split(".")
    above = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return next(floor for floor, names in enumerate(FLOORS) if above & {*names})


def test_imports_point_downwards():
    names = FILES.keys() - {""}
    needs = [(name, needed) for name in names for needed in of_this_package(name) & names]
    assert len(needs) > 200
    assert [(name, needed) for name, needed in needs if floor_of(needed) > floor_of(name)] == []


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
    gone = {"PIL", "optax", "distributed", "jinja2", "h5netcdf"}
    monkeypatch.setattr(_extras, "find_spec", lambda name: None if name in gone else found(name))
    (tmp_path / "sweep.toml").write_text('[settings]\nmodel = "hidden_markov"\n[grid]\nseed = [0]\n')
    run = runs.Run.__new__(runs.Run)
    for use, message in {
        lambda: load_images("digits"): r"a task of images needs pillow, optax: pip install 'bayesattn\[images\]'",
        lambda: sweep.run(sweep.Sweep(tmp_path / "sweep.toml")): r"a sweep needs distributed: .*\[sweep\]",
        lambda: report.report(["run"], "page.html"): r"a report needs jinja2: .*\[report\]",
        lambda: run.to_netcdf("run.nc"): r"an export to NetCDF needs h5netcdf: .*\[netcdf\]",
    }.items():
        with pytest.raises(ImportError, match=message):
            use()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sweep.toml"]
