"""The command line as its user meets it: output, exit status. Bad input: tests/attacks/test_entry.py."""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from unittest.mock import Mock

import jax
import numpy as np
import pandas
import platformdirs
import pytest
from typer.main import get_command

import bayesattn as ba
from bayesattn import runs
from bayesattn._util.compiled import keep_compiled
from bayesattn._util.progress import Bars
from bayesattn.checks.comparison import Compared
from bayesattn.checks.ranks import least_tail, uniform_probability
from bayesattn.checks.theory_predictions import predicted
from bayesattn.jobs import cli, sweep
from bayesattn.jobs.cli import screen
from bayesattn.jobs.cli.validate import _differs
from bayesattn.jobs.plots import style
from bayesattn.questions import calibration, joint_law
from bayesattn.tasks.load import ready_models
from bayesattn.theory import potential
from tests.processes import Started, run_command
from tests.screens import fits

SMALL = """
temperature = 0.1
[architecture]
width = 8
[task]
name = "hidden_markov"
examples = 10
test_examples = 20
dimension = 10
tokens = 5
"""
# The command has the name of its module.
THEORY = importlib.import_module("bayesattn.jobs.cli.theory")
QUICK = ("--warmup", "60", "--draws", "150")
ENTRY = re.compile(r"^ *(?:\d+ +)?\d+,\d+ .* [+-][\d.]+!? +\S+ +\d+ +\d+ *$", re.MULTILINE)
"""A row of the table of U."""


@pytest.fixture
def run(command, tmp_path):
    (tmp_path / "small.toml").write_text(SMALL)
    return command


@pytest.fixture
def shown(run):
    """What a command says that succeeds, on a screen that it fits."""

    def ask(*arguments):
        status, out, err = run(*arguments)
        assert status == 0, err
        assert fits(out)
        return out

    return ask


@pytest.fixture
def unpainted(monkeypatch):
    """A function after which figures are made and saved, but not painted, which is most of the work."""
    return lambda: monkeypatch.setattr(style, "png", lambda figure, resolution: b"")


def test_no_cell_of_a_table_is_cut(monkeypatch, capsys):
    cells = ["1000", "4,2", "-0.00442", "-0.00448", "-0.00399 ± 0.00034", "+1.3", "1.000", "10498", "3132"]
    for more in ([], ["12345678"] * 3):
        row = {f"heading {n}" if n > 7 else "N" + n * " ": text for n, text in enumerate(cells + more)}
        monkeypatch.setattr(screen.console, "width", 80)
        screen.print_table("U", [row])
        _, _, row = capsys.readouterr().out.splitlines()
        assert row.split() == " ".join(cells + more).split()
        assert (len(row.rstrip()) > 80) == bool(more)


def test_theory(run, shown):
    asked = ("theory", "small.toml", "--width", "8", "--width", "20")
    out = shown(*asked, "--evidence")
    rows = [line.split() for line in out.splitlines() if " -> " in line]
    assert [row[:3] for row in rows[::4]] == [["8", "0.1", "1:"], ["20", "0.1", "1:"]]
    assert [row[0] for row in rows[1:4]] == ["2:", "3:", "4:"]
    assert out.count(" ± ") == 2
    rows = json.loads(run(*asked, "--json")[1])
    assert [row["width"] for row in rows] == [8, 20]
    assert len(rows[0]["order_parameter"]) == 4


def test_heads_of_one_name_are_all_printed(capsys):
    numbers = {"order_parameter": np.eye(2), "corrected_order_parameter": None, "width": 3, "temperature": 0.1}
    heads = {"way_names": [["same", "random", "random"]], "ways": [["1", "2", "3"]], "head_scores": [[1.0, 0.25, 0.5]]}
    THEORY._print_diagonals("m", [numbers | heads | {"paths": ["a", "b"]}])
    _, scores = capsys.readouterr().out.split("score of each head")
    assert all(text in scores for text in ("1: same", "1: random (2)", "1: random (3)", "1.000", "0.250", "0.500"))


def test_a_best_temperature_at_the_edge_is_said(shown):
    out = shown("theory", "small.toml", "--width", "8", *("--temperature", "0.1", "--temperature", "1e9"), "--evidence")
    assert "N = 8: the best T, 0.1, is the lowest of those tried: try lower ones" in " ".join(out.split())


def test_theory_of_many_paths_is_told_by_heads(run, shown, monkeypatch):
    monkeypatch.setattr(potential, "MOST_COORDINATES", 5)
    monkeypatch.setattr(THEORY, "MOST_PATHS_SHOWN", 3)
    out = shown("theory", "small.toml", "--width", "8")
    assert [line.split()[-1] for line in out.splitlines() if " -> " in line] == ["n/a"] * 3
    assert "n/a: more than" in " ".join(out.split())
    _, scores, diagonal = out.split("\n\n")
    assert scores.splitlines()[0].startswith("score of each head, N = 8, T = 0.1")
    assert [line.split()[0] for line in scores.splitlines()[-2:]] == ["1", "2"]
    assert [line.split()[0] for line in diagonal.splitlines()[-2:]] == ["1.1", "1.2"]
    [row] = json.loads(run("theory", "small.toml", "--width", "8", "--json")[1])
    assert row["corrected_order_parameter"] is None
    own = [float(cell) for line in diagonal.splitlines()[-2:] for cell in line.split()[1:]]
    np.testing.assert_allclose(own, np.diag(row["order_parameter"]), rtol=0.05)


def test_sample_starts_a_run_and_finds_it_complete(run, shown, tmp_path):
    asked = ("sample", "small.toml", "--out", "draws", *QUICK)
    status, out, err = run(*asked, "--json")
    assert status == 0, err
    content = json.loads(out)
    assert len(content["order_parameter"]) == 10
    assert content["order_parameter"][0]["path"] == "same_token -> uniform"
    assert content["diagnostics"]["ess"] > 10
    before = {p: p.read_bytes() for p in (tmp_path / "draws").rglob("*") if p.is_file()}
    assert "draws was already complete: 150 draws of 4 chains" in shown(*asked)
    advice = "ask for the same, choose another folder, or replace it with overwrite=True (--overwrite)"
    assert run(*asked, "--seed", "1") == (2, "", f"bayesattn: draws holds a run with seed = 0, got 1: {advice}\n")
    assert before == {p: p.read_bytes() for p in (tmp_path / "draws").rglob("*") if p.is_file()}
    row = shown("runs", ".").splitlines()[2].split()
    assert row[:8] == ["draws", "small", "8", "0.1", "nuts", "complete", "100", "%"]
    assert json.loads(run("runs", "draws", "--json")[1])[0]["progress"] == 1
    file = tmp_path / ("a long name " * 9 + "with spaces.nc")
    assert run("runs", "draws", "--netcdf", file.name)[1] == f"draws written to {file.name}\n"
    assert file.stat().st_size > 10**5
    assert run(*asked, "--seed", "1", "--overwrite")[0] == 0


def test_a_stopped_command_says_how_to_resume_and_resumes(tmp_path):
    (tmp_path / "small.toml").write_text(SMALL)
    options = ("--out", "run", "--draws", "100000", "--chains", "2", "--keep", "order_parameter")
    started = Started(run_command, "sample", "small.toml", *options, cwd=tmp_path)
    log = tmp_path / "run" / ".run" / "log.jsonl"
    while started.process.is_alive() and not (log.exists() and log.read_text().count("block") > 8):
        time.sleep(0.05)
    os.kill(started.process.pid, signal.SIGTERM)
    status, _, err = started.wait()
    assert status == 143, err
    done = sum(runs.Run(tmp_path / "run").done)
    assert err == (f"bayesattn: interrupted; {done} of 201000 steps are recorded in run; the same command resumes\n")
    assert done > 1000
    assert runs.Run(tmp_path / "run").state == "interrupted"


def test_entries_whose_errors_are_not_known_are_not_said_to_differ():
    """As of fewer than four draws a chain."""
    unknown = np.full(1, np.nan)
    entries = Compared(["11"], np.ones(1), unknown, unknown, np.zeros(1), np.ones(1), 0.01, 0.01)
    assert not entries.agrees.any()
    assert not _differs(entries).any()


def test_validate_answers_with_its_exit_status(run, shown, tmp_path, monkeypatch, unpainted):
    command = ("validate", "small.toml", "--width", "8", *QUICK)
    # So few draws show agreement within a wide margin only.
    out = shown(*command, "--width", "40", "--margin", "0.3", "--draws", "600", "--all")
    assert out.count("McNemar p = ") == out.count("kernel-target alignment") == 2
    assert len(ENTRY.findall(out)) == 2 * 10
    folder = tmp_path / "out" / "validate-small"
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    content = json.loads((folder / "result.json").read_text())
    assert (content["holds"], content["verdict"]) == (True, "holds")
    # First the answer, then one row for each width: of the greatest entry, and the accuracy.
    answer, *rows = out.split("Accuracy of the mean predictor (")[0].splitlines()
    assert answer.startswith("Does the theory hold on small.toml? It holds to within")
    own = [result["order_parameter"] for result in content["results"]]
    path = int(np.argmax(np.mean([np.diag(each) for each in own], axis=0)))
    assert f"Order parameter of {content['results'][0]['paths'][path]}, by theory" in " ".join(rows)
    told = [row.split() for row in rows if row.split()[:1] in (["8"], ["40"])]
    assert [float(row[3]) for row in told] == pytest.approx([each[path][path] for each in own], rel=0.05)
    shares = [100 * result["accuracy"]["draws"] for result in content["results"]]
    assert [float(row[6]) for row in told] == pytest.approx(shares, abs=0.06)
    assert max(result["bound"] for result in content["results"]) == content["bound"] <= content["margin"] == 0.3
    assert [result["level"] for result in content["results"]] == [content["level"] / 2] * 2
    unpainted()
    status, out, _ = run(*command, "--margin", "0.001")
    assert status == 2, out
    assert "The draws cannot tell" in out
    assert "draw more" in " ".join(out.split())
    assert ENTRY.findall(out) == []
    assert json.loads((tmp_path / "out" / "validate-small-2" / "result.json").read_text())["verdict"] == "cannot tell"
    # A theory at another temperature than the draws: the same command must say so and end with 1.
    other = {"prediction": predicted(ba.load_model("small.toml", width=8, temperature=1.0))}
    honest = ba.validate
    monkeypatch.setattr(ba, "validate", lambda draws, model, **how: honest(draws, model=model, **how | other))
    status, out, _ = run(*command)
    assert status == 1
    assert "does NOT hold" in out
    # What is off is said without being asked for.
    assert "N = 8: does not hold: " in out
    assert " by the draws, " in " ".join(out.split())
    assert (tmp_path / "out" / "validate-small-3" / "figure.png").is_file()


def test_validate_draws_nothing_where_the_theory_of_a_width_fails(run, monkeypatch):
    solved = Mock(side_effect=[None, ba.theory.NotConverged("no saddle point was found", None)])
    monkeypatch.setattr(importlib.import_module("bayesattn.jobs.cli.validate"), "predicted", solved)
    monkeypatch.setattr(ba, "sample", lambda *_, **__: pytest.fail("drawn before all theory is solved"))
    status, _, err = run("validate", "small.toml", "--width", "8", "--width", "9", *QUICK)
    assert (status, err) == (2, "bayesattn: no saddle point was found\n")


def test_validate_chooses_temperatures_and_solves_the_theory_alone_at_other_widths(run, tmp_path, unpainted):
    """What it says of a width is what its own draws say."""
    rng, arrays = np.random.default_rng(0), {}
    for use in ("", "test_", "validation_"):
        arrays |= {f"{use}path_inputs": rng.normal(size=(8, 1, 3)), f"{use}labels": rng.choice([-1.0, 1.0], 8)}
    np.savez("arrays.npz", **arrays)
    task = '[task]\nname = "arrays"\nfile = "arrays.npz"\n'
    (tmp_path / "small.toml").write_text(f"temperature = 0.1\n[architecture]\nheads = [1]\nwidth = 8\n{task}")
    unpainted()
    content = json.loads(run("validate", "small.toml", "--width", "8", "--theory-width", "30", *QUICK, "--json")[1])
    assert [each["width"] for each in content["theory"]] == [8, 30]
    known = [each for each in content["theory"][0]["temperatures"] if each["log_evidence"] is not None]
    best = max(known, key=lambda each: each["log_evidence"])["temperature"]
    model = ba.load_model("small.toml", width=8, temperature=best)
    alone = ba.validate(ba.sample(model, warmup=60, draws=150, seed=0, progress=False), model=model)
    [found] = content["results"]
    assert found["temperature"] == best
    assert found["verdict"] == content["verdict"] == alone.verdict
    np.testing.assert_array_equal(found["order_parameter"], alone.order_parameter)


def calibrations(monkeypatch, ranks_of, joint_test=joint_law.JointTest):
    """Lets ranks and their effective number be those of `ranks_of(model, sampler)`; the levels that are asked for."""
    levels = []

    def calibrated(model, simulations, *, sampler, level, **settings):
        levels.append(level)
        ranks, effective = ranks_of(model, sampler)
        p_values = uniform_probability(least_tail(ranks, 63), 50, 63)
        return calibration.Calibration(["U 1,1"], ranks, 63, p_values, np.array([effective]), None, level)

    monkeypatch.setattr(calibration, "calibrate", calibrated)
    monkeypatch.setattr(joint_law, "joint_test", lambda *_, level, **__: joint_test(["U 1,1"], np.zeros(1), level))
    return levels


UNIFORM = np.random.default_rng(0).integers(0, 64, (50, 1))


@pytest.mark.parametrize(
    ("arguments", "narrow", "status"),
    [((), (1, 1.0), 0), ((), (0, 1.0), 1), ((), (0, 0.2), 2), (("--no-narrow",), (0, 1.0), 0)],
)
def test_calibrate_asks_about_a_narrow_network_too(run, tmp_path, monkeypatch, unpainted, arguments, narrow, status):
    """Ranks as if of a sampler that is right on the model asked for, and on the narrow one zero or of few draws."""
    if status:
        unpainted()
    waiting, shown = [], []

    def ranks_of(model, sampler):
        factor, effective = narrow if model.name == "narrow" else (1, 1.0)
        return factor * UNIFORM, effective

    def joint_test(*arguments):
        [task] = shown[-1].progress.tasks
        waiting.append((task.completed, task.total, task.description))
        return joint_law.JointTest(*arguments)

    levels = calibrations(monkeypatch, ranks_of, joint_test)
    monkeypatch.setattr(screen, "bars", lambda quiet: shown.append(Bars(False)) or shown[-1])
    ended, out, err = run("calibrate", "small.toml", "--sampler", "nuts", "--sampler", "hmc", *arguments)
    assert ended == status, err
    assert fits(out)
    assert "figure and results in out/calibrate-small" in out
    networks = 1 if arguments else 2
    # Whoever waits for a joint test sees that there is more to come.
    assert len(waiting) == 2 * networks
    assert all(done < total and said.endswith("joint test") for done, total, said in waiting)
    # Ranks and joint test of two samplers share the level.
    assert levels == [calibration.LEVEL / (2 * 2 * networks)] * 2 * networks
    assert ("2 paths at width 1" in out) == ("--no-narrow" not in arguments)
    content = json.loads((tmp_path / "out" / "calibrate-small" / "result.json").read_text())
    assert content["samplers"]["hmc"]["calibrated"] is True
    assert (content["width"], content["thin"], content["parameterisation"]) == (8, 5, "collapsed")
    if not arguments:
        assert content["narrow"]["samplers"]["hmc"]["calibrated"] is {0: True, 1: False, 2: None}[status]


def test_a_sampler_that_meets_nan_costs_no_other_its_calibration(run, tmp_path, monkeypatch):
    def ranks_of(model, sampler):
        if sampler == "hmc":
            raise FloatingPointError(f"sampler {sampler!r} met a value that is not finite")
        return UNIFORM, 1.0

    calibrations(monkeypatch, ranks_of)
    status, out, _ = run("calibrate", "small.toml", "--sampler", "hmc", "--sampler", "nuts", "--no-narrow")
    assert status == 2
    assert "not calibrated: small.toml: sampler 'hmc' met a value that is not finite" in out
    content = json.loads((tmp_path / "out" / "calibrate-small" / "result.json").read_text())
    assert [*content["samplers"]] == ["nuts"]
    assert len(content["failures"]) == 1
    assert run("calibrate", "small.toml", "--sampler", "hmc", "--no-narrow", "--overwrite")[0] == 2


def test_sweeps_fit_the_screen(shown, tmp_path, monkeypatch):
    """Their runs, and how they ended, without drawing anything."""
    (tmp_path / "sweep.toml").write_text('[settings]\nmodel = "small.toml"\n[grid]\nwidth = [10, 1000]\n')
    listed = shown("sweep", "sweep.toml", "--dry-run").splitlines()
    assert [line.split() for line in listed[-2:]] == [["width=10", "new"], ["width=1000", "new"]]
    ended = {"run": ["width=10", "width=1000"], "state": "complete", "error_message": None}
    monkeypatch.setattr(sweep, "run", lambda *_, **__: pandas.DataFrame(ended))
    assert "2 runs in out/sweep: 2 complete" in shown("sweep", "sweep.toml")


def test_one_chain_and_few_draws_are_told_in_tables(run, shown):
    """R-hat of one chain is not a number, in no table and no JSON."""
    asked = ("sample", "small.toml", "--out", "one", "--chains", "1", *QUICK)
    out = shown(*asked)
    assert "n/a" in out.splitlines()[2]
    assert len([line for line in out.splitlines() if re.match(r" *\d,\d ", line)]) == 7
    assert "warning: R-hat is not defined: there is one chain alone" in out
    assert "above 1.01" not in out
    content = json.loads(run(*asked, "--json")[1])
    assert content["order_parameter"][0]["rhat"] is None
    assert content["diagnostics"]["undefined"].keys() == {"rhat"}
    out = run("runs", ".")[1]
    assert out.splitlines()[2].split()[8] == "n/a"
    worst = "the worst of U or z, numbers with priors, predictions, readouts, energy and log posterior"
    assert worst in " ".join(out.split())


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_has_an_example_that_the_command_takes(run, name):
    status, out, _ = run(name, "--help")
    assert status == 0
    assert "Usage: bayesattn" in out
    [example] = [line.split() for line in out.splitlines() if line.strip().startswith("Example: ")]
    assert example[:3] == ["Example:", "bayesattn", name]
    group = get_command(cli.app)
    command = group.resolve_command(group.make_context("bayesattn", [], resilient_parsing=True), [name])[1]
    assert command.make_context(name, example[3:]).params


def test_help_of_a_command_tells_what_it_takes_and_serves(run):
    pages = {name: " ".join(run(name, "--help")[1].split()) for name in ("plot", "report", "theory")}
    assert not [name for name in ("plot", "report") if "--figure" in pages[name]]
    assert all(f"{model}," in pages["theory"] for model in ready_models())
    status, out, _ = run("--help")
    assert (status, "Usage: bayesattn" in out) == (0, True)
    assert run() == run("--debug") == (status, out, "")


@pytest.mark.filterwarnings("default:.* draws of each chain are there")
def test_sample_stops_at_a_target_or_a_limit(run):
    given = ("sample", "small.toml", "--out", "draws", *QUICK, "--draws", "600", "--chains", "1")
    status, out, err = run(*given, "--target-ess", "5")
    assert (status, err) == (0, "")
    assert f"draws is stopped: {ba.runs.Run('draws').drawn} draws of 1 chains; without target and limit" in out
    assert 100 <= ba.runs.Run("draws").drawn < 600
    assert " stopped " in run("runs", "draws")[1]
    status, out, err = run(*given, "--draws", "50")
    assert (status, err) == (0, "")
    assert "has the first 50 draws of 1 chains, of a run that is not complete" in " ".join(out.split())
    assert "--draws 600 continues it" in " ".join(out.split())
    status, out, err = run(*given, "--target-ess", "1e6")
    assert status == 0
    assert "draws is complete: 600 draws of 1 chains" in out
    assert "target_ess = 1e+06" in err
    status, out, _ = run(*given[:3], "elsewhere", *QUICK, "--max-seconds", "1e-9")
    assert (status, out) == (2, "elsewhere has no draws of all chains yet: run the same command to continue\n")


def imported_by(code, *arguments):
    """What a program prints, and the top-level modules that it imports."""
    told = "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    code = f"import sys\ntry:\n    {code}\nfinally:\n    {told}"
    ended = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return ended.stdout, set(ended.stderr.split())


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_the_command_alone_imports_nothing_heavy(option):
    out, modules = imported_by("from bayesattn.jobs.cli import main; main()", option)
    assert "bayesattn" in modules
    assert not modules & {"jax", "numpy", "numpyro", "scipy", "xarray", "pandas", "matplotlib"}
    assert out == f"bayesattn {ba.__version__}\n" if option == "--version" else "validate" in out


def test_importing_it_imports_what_sampling_needs():
    """Runs on disk need more, but not all."""
    printed = "print(*sys.modules); ba.runs; import jax.numpy as jnp; print(jnp.ones(1).dtype)"
    out, modules = imported_by(f"import bayesattn as ba; ba.sample, ba.load_model, ba.theory; {printed}")
    before_runs, precision = out.splitlines()
    assert precision == "float64"
    assert not {"xarray", "pandas", "zarr"} & set(before_runs.split())
    assert modules >= {"jax", "numpyro"}
    unneeded = {"matplotlib", "arviz_stats", "arviz_plots", "optax", "pooch", "h5py", "distributed", "blackjax"}
    assert not modules & unneeded


@pytest.fixture
def before_jax(monkeypatch, tmp_path):
    """As if JAX were not imported yet, and nobody had chosen a folder for what it compiles."""
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")


def test_compiled_programs_are_kept_in_the_users_cache_folder(before_jax, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
        assert keep_compiled() is None
        assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "elsewhere"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "jax", jax)  # Whose cache is that of the tests.
        assert keep_compiled() is None
    assert list(tmp_path.iterdir()) == []
    folder = keep_compiled()
    assert [folder] == [*(tmp_path / "bayesattn").iterdir()]
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(folder)


def test_a_session_that_has_compiled_already_keeps_what_follows(tmp_path):
    code = (
        "import jax, bayesattn as ba; jax.jit(lambda x: x + 1)(1.0); folder = ba.keep_compiled();"
        "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0);"
        "jax.jit(lambda x: x + 2)(1.0); assert any(folder.iterdir())"
    )
    settings = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    subprocess.run([sys.executable, "-c", code], env=settings | {"XDG_CACHE_HOME": str(tmp_path)}, check=True)


def test_whoever_has_no_place_for_a_cache_does_without(before_jax, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    keep_compiled()
    monkeypatch.setattr(platformdirs, "user_cache_dir", Mock(side_effect=RuntimeError("no home directory")))
    keep_compiled()
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda _: str(tmp_path))
    monkeypatch.setattr(os, "access", lambda *_: False)
    keep_compiled()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
