"""Paths that users name: every entry expands `~`, refuses URLs by the argument's name, and reads back what it wrote."""

import inspect
import os
import pkgutil
import pwd
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import bayesattn as ba
from bayesattn import runs
from bayesattn._util.files import user_path
from bayesattn.jobs import plots, sweep
from bayesattn.jobs.report import report
from tests.test_settings import documented
from tests.zoo import LIGHT
from tests.zoo import model as zoo_model

MODEL = zoo_model("one")
BATCHES = [(MODEL.path_inputs, MODEL.labels)]
URLS = ("s3://bucket/runs/a", "simplecache::s3://bucket/a", Path("file:///tmp/a"))


def task_file(entry, path):
    """A model file in this folder whose [task] names a path."""
    file, network = Path(f"{entry}.toml").absolute(), "[architecture]\nwidth = 8\nheads = [2, 2]\n"
    file.write_text(f'temperature = 0.1\n{network}[task]\nname = "arrays"\n{entry} = "{path}"\n')
    return file


def sweep_file(folder, model):
    file = folder / "sweep.toml"
    file.write_text(f'[settings]\nmodel = "{model}"\n[grid]\nseed = [0, 1]\n')
    return file


ENTRIES = {
    "jobs.runs.sample": ("out", lambda path, _: runs.sample(MODEL, path, **LIGHT)),
    "jobs.runs.Run": ("run", lambda path, _: runs.Run(path)),
    "jobs.runs.Run.to_netcdf": ("file", lambda path, run: run.to_netcdf(path)),
    "jobs.runs.is_run": ("run", lambda path, _: runs.is_run(path)),
    "jobs.runs.overview": ("folder", lambda path, _: runs.overview(path)),
    "jobs.sweep.Sweep": ("sweep file", lambda path, _: sweep.Sweep(path)),
    "jobs.report.report": ("runs|run", lambda path, _: report([path], "page.html")),
    "Dataset.gather": ("store", lambda path, _: ba.Dataset.gather(BATCHES, MODEL.architecture, store=path)),
    "Dataset.save": ("file", lambda path, _: ba.Dataset.gather(BATCHES, MODEL.architecture).save(path)),
    "Dataset.open": ("file", lambda path, _: ba.Dataset.open(path)),
    "load_model": ("model", lambda path, _: ba.load_model(path)),
    "jobs.plots.save": ("file", lambda path, _: plots.save(None, path)),
    "questions.reference.formats.export": ("folder", lambda path, _: ba.reference.export("two_heads", path)),
}
"""Each documented function that takes a path, what it calls the path, and a call that hands it one."""
OTHERS = {"attention.from_transformers", "questions.reference.truth.Truth.open"}
"""One needs PyTorch, the other opens the package's own files."""
FURTHER = {
    "draws": ("run", lambda path, _: ba.predict(str(path), np.zeros((2, 1, 3)))),
    "a run under way": ("out", lambda path, _: runs.under_way(path)),
    "out of a sweep": ("out", lambda path, _: sweep.Sweep(sweep_file(Path(), "hidden_markov"), path)),
    "model of a sweep": ("model", lambda path, _: sweep.Sweep(sweep_file(Path(), f"{path}.toml"))),
    "out of a report": ("out", lambda path, run: report([run.path], path)),
    "security of a sweep": ("tls_ca_file", lambda path, _: sweep.clusters._security({"tls_ca_file": path})),
    "task.file": ("task.file", lambda path, _: ba.load_model(task_file("file", path))),
    "task.statistics": ("task.statistics", lambda path, _: ba.load_model(task_file("statistics", path))),
}


def documented_members():
    for name in documented():
        thing = pkgutil.resolve_name(name)
        yield name, thing
        if inspect.isclass(thing):
            yield from ((f"{name}.{member}", getattr(thing, member)) for member in vars(thing) if member[0] != "_")


def test_every_documented_function_that_takes_a_path_is_known():
    found = set()
    for name, thing in documented_members():
        with suppress(TypeError, ValueError):
            annotations = [str(parameter.annotation) for parameter in inspect.signature(thing).parameters.values()]
            if any("Path" in each and "DataTree" not in each for each in annotations):  # Draws may be a folder.
                found.add(name.removeprefix("bayesattn."))
    assert found == ENTRIES.keys() | OTHERS


@pytest.fixture(scope="module")
def run(zoo):
    return runs.Run(zoo.run("one", LIGHT))


@pytest.mark.parametrize("entry", [*ENTRIES, *FURTHER])
def test_urls_and_strangers_homes_are_refused_by_the_name_of_the_argument(entry, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, call = (ENTRIES | FURTHER)[entry]
    for path in URLS:
        with pytest.raises(ValueError, match=rf"(?:{name}) must be a path on this machine, got .*, a URL"):
            call(path, run)
    with pytest.raises(ValueError, match=rf"(?:{name}) must begin with a folder that is there, got '~nobody-here/a"):
        call("~nobody-here/a", run)
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".toml"]


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        (["runs", "s3://bucket/a"], "FOLDER"),
        (["report", "run", "s3://bucket/a"], "RUN"),
        (["sample", "hidden_markov", "--out=s3://bucket/a"], "--out"),
        (["validate", "hidden_markov", "--figure=s3://bucket/a"], "--figure"),
    ],
)
def test_commands_refuse_urls_by_the_name_of_the_option(typed, name, command, tmp_path):
    said = f"{name} must be a path on this machine, got 's3:/bucket/a', a URL, which is not served"
    assert command(*typed) == (2, "", f"bayesattn: {said}\n")
    assert not [*tmp_path.iterdir()]


def test_home_is_where_runs_figures_and_files_of_home_are(tmp_path, monkeypatch, command):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    run = runs.sample(MODEL, "~/runs/a", **LIGHT)
    assert run.path == home / "runs" / "a"
    # As a shell expands it: not another run, whose draws would be read under this one's title.
    with pytest.raises(runs.RunError, match="holds a run with"):
        runs.sample(MODEL.replace(temperature=1.0), home / "runs" / "a", **LIGHT)
    user = pwd.getpwuid(os.getuid())
    assert user_path("out", f"~{user.pw_name}/a") == Path(user.pw_dir) / "a"
    assert runs.is_run("~/runs/a")
    assert [row["run"] for row in runs.overview("~/runs")] == ["a"]
    run.to_netcdf("~/draws.nc")
    plots.save(plots.style.Figure(), "~/figures/a.png")
    ba.Dataset.gather(BATCHES, MODEL.architecture).save("~/statistics.zip")
    assert ba.Dataset.open("~/statistics.zip").examples == len(MODEL.labels)
    np.savez(home / "data.npz", path_inputs=MODEL.path_inputs, labels=MODEL.labels)
    file = 'temperature = 0.1\n[architecture]\nheads = [1]\nwidth = 3\n[task]\nname = "arrays"\nfile = "~/data.npz"\n'
    (home / "mine.toml").write_text(file)
    assert ba.load_model("~/mine.toml").name == "mine"
    swept = sweep.Sweep(sweep_file(tmp_path, "~/mine.toml"), "~/swept")
    assert {planned.out.parent for planned in swept.runs} == {home / "swept"}
    assert command("runs", "~/runs/a", "--netcdf=~/more.nc")[:2] == (0, f"draws written to {home}/more.nc\n")
    assert command("init", "~/new.toml")[0] == 0
    made = {path.name for path in home.iterdir()}
    assert made == {"runs", "draws.nc", "more.nc", "figures", "statistics.zip", "data.npz", "mine.toml", "new.toml"}
    assert {path.name for path in tmp_path.iterdir()} == {"home", "sweep.toml"}


def test_a_folder_that_is_called_tilde_is_not_a_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    once = user_path("out", "./~/a")
    assert once == user_path("out", once) == tmp_path / "~" / "a"


@pytest.mark.parametrize("name", ["seed::1", "file::a b%20#?*[1]"])
def test_runs_of_any_name_are_read_back(name, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs.sample(MODEL, name, **LIGHT | {"draws": 20})
    again = runs.sample(MODEL, name, **LIGHT)
    wanted = run.draws()["posterior"]["order_parameter"].values
    np.testing.assert_array_equal(again.draws()["posterior"]["order_parameter"].values, wanted)
    again.to_netcdf(f"{name}.nc")
    with xr.open_datatree(tmp_path / f"{name}.nc", engine="h5netcdf") as exported:
        np.testing.assert_array_equal(exported["posterior"]["order_parameter"].values, wanted)
    again.diagnose()
    assert sorted(path.name for path in tmp_path.iterdir()) == [name, f"{name}.nc"]


@pytest.mark.parametrize("path", [None, 3, b"bytes", "", "nul\0"])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(ValueError, match="out must be a path, got"):
        runs.sample(MODEL, path, **LIGHT)
