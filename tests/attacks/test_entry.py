"""The command line under attack: one line for what a user can mend, a notice for what only we can, JSON that is JSON."""

import errno
import json
import os
import sys
from types import SimpleNamespace

import jinja2
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console

import bayesattn as ba
from bayesattn._util.progress import Bars
from bayesattn.jobs import cli, plots
from bayesattn.jobs.cli import output, screen, theory
from bayesattn.jobs.plots.diagnostics import trace
from bayesattn.jobs.plots.validation import order_parameter_against_width, order_parameters
from bayesattn.jobs.report import figures, sections
from tests.screens import Terminal
from tests.test_cli import SMALL

FILES = {
    "small.toml": SMALL,
    "arrays.toml": SMALL[: SMALL.index("[task]")] + '[task]\nname = "arrays"\nfile = "nowhere.npz"\n',
    "task.toml": '[settings]\nmodel = "small.toml"\n[grid]\ntask = [1]\n',
    "date.toml": '[settings]\nmodel = "small.toml"\ntask.x = 2020-01-01\n',
}
ROW = {
    "width": 8,
    "temperature": 0.1,
    "paths": ["one", "two"],
    "order_parameter": np.eye(2).tolist(),
    "corrected_order_parameter": np.eye(2).tolist(),
    "ways": [["1", "2"]],
    "way_names": [["1", "2"]],
    "head_scores": [[1.0, 0.5]],
}


@pytest.fixture
def run(command, monkeypatch, tmp_path):
    monkeypatch.setattr(screen.console, "width", 300)
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    return command


@pytest.fixture
def theory_is(monkeypatch):
    """Let `bayesattn theory` say what the test wants, without solving anything."""

    def put(act):
        monkeypatch.setattr(theory, "_theory_row", lambda *_: act() if callable(act) else act)

    return put


def raises(error):
    def act(*_):
        raise error

    return act


def told(run, *typed, status=2):
    """The one line that a command which fails with this status leaves."""
    ended, out, err = run(*typed)
    assert (ended, out, len(err.splitlines())) == (status, "", 1)
    return err


def shown(run, *typed):
    """What a command prints that does not fail."""
    status, out, err = run(*typed)
    assert status == 0, err
    return out


COMMANDS = {
    "theory nowhere.toml": "model must be a .toml file, got 'nowhere.toml', which is not there",
    "theroy small.toml": "No such command 'theroy'. Did you mean 'theory'?",
    "theory small.toml --width 0": "architecture.width: Input should be greater than or equal to 1",
    "theory small.toml --width nan": "--width must be a whole number, such as 1000, got 'nan'",
    "theory small.toml --width 10,100": "a whole number, such as 1000, got '10,100': repeat --width",
    "theory small.toml --temperature 0.1,1": "such as 0.01, got '0.1,1': repeat --temperature",
    "sample small.toml --out x --width 1e3": "--width must be a whole number, such as 1000, got '1e3'\n",
    "sample small.toml --out x --option depth=" + 3000 * "[": "--option must be NAME=VALUE",
    "sample small.toml --out small.toml": "small.toml must be a run, a Zarr store that",
    "sample small.toml": "Missing option '--out'",
    "sample small.toml --out x --option steps": "--option must be NAME=VALUE, such as max_tree_depth=8, got 'steps'",
    "sample small.toml --out x --option depth=3\nx=4": r"--option must be NAME=VALUE, such as max_tree_depth=8, got 'dep",
    "theory small.toml --width 3 --width 0": "widths[0] must be",
    "theory small.toml --data-seed -1": "task.seed must be a whole number of at least 0",
    f"theory small.toml --evidence --seed {2**63}": "--seed must be a whole number of at most",
    "validate small.toml --margin nan": "--margin must be a finite number above 0",
    "validate small.toml --theory-width 0": "must be a whole number of at least",
    "theory arrays.toml --data-seed 1": 'seed of the data must not be given where [task] name = "arrays"',
    "sweep task.toml": "grid.task must be a table or a list of tables, got [1]",
    "sweep date.toml": "task.x is unknown",
    "report nowhere --out small.toml": "got nowhere, which is not a folder",
    "runs .": "folder must be a run or hold runs, got ., which holds none",
    "theory \x1b[31mred.toml": r"\x1b[31mred.toml",
}
"""What is said of what is typed."""


@pytest.mark.parametrize("typed", COMMANDS, ids=lambda typed: ascii(typed[:60]))
def test_what_a_user_can_mend_is_one_line(run, tmp_path, typed):
    err = told(run, *typed.split(" "))
    assert COMMANDS[typed] in err
    assert "\x1b" not in err
    assert {path.name for path in tmp_path.iterdir()} == FILES.keys()


def test_a_bad_setting_is_found_before_any_theory_is_solved(run, monkeypatch):
    for name in ("solve", "finite_width", "evidences"):
        monkeypatch.setattr(ba.theory, name, lambda *_, **__: pytest.fail("solved"))
    assert run("validate", "small.toml", "--warmup", "-1")[0] == 2


UNFORESEEN = [
    lambda: np.ones(3) @ np.ones(2),
    raises(ValueError("not of this package")),
    raises(EOFError("no more")),
    lambda: {}["[/red]"],
]
"""Of NumPy, of someone else, one that Typer takes for an abort, with markup."""


@pytest.mark.parametrize("act", UNFORESEEN)
def test_what_only_we_can_mend_says_so(run, theory_is, act):
    theory_is(act)
    err = told(run, "theory", "small.toml", status=70)
    assert err.startswith("bayesattn: internal error, ")
    assert "please report it, with the output of the same command with --debug" in err
    for place in (("--debug", "theory", "small.toml"), ("theory", "small.toml", "--debug")):
        status, _, err = run(*place)
        assert status == 70
        assert "Traceback (most recent call last)" in err
        assert "test_entry.py" in err


FORESEEN = {
    "[Errno 28] No space left on device: 'out'": OSError(errno.ENOSPC, "No space left on device", "out"),
    "memory does not suffice: Unable to allocate 1 TiB": MemoryError("Unable to allocate 1 TiB"),
    "memory does not suffice": RuntimeError("RESOURCE_EXHAUSTED: Out of memory"),
    "no saddle point": ba.theory.NotConverged("no saddle point", None),
    "JAX cannot start: Unable to initialize backend 'foo'": RuntimeError("Unable to initialize backend 'foo'"),
    "model must be a bayesattn.Model": None,
}
"""What is said of errors; the last is of a check of this package."""


@pytest.mark.parametrize("expected", FORESEEN)
def test_what_is_foreseen_is_one_line(run, theory_is, expected):
    error = FORESEEN[expected]
    theory_is(raises(error) if error else lambda: ba.theory.solve(np.ones(3)))
    assert told(run, "theory", "small.toml").startswith(f"bayesattn: {expected}")
    assert "Traceback" in run("theory", "small.toml", "--debug")[2]


def test_jax_that_cannot_start_is_one_line(run, monkeypatch):
    monkeypatch.setattr(cli, "import_module", raises(ValueError("Invalid value 'nope' for JAX flag")))
    assert told(run, "theory", "small.toml") == "bayesattn: JAX cannot start: Invalid value 'nope' for JAX flag\n"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_closed_streams_are_no_error(run, monkeypatch, stream):
    monkeypatch.setattr(sys, stream, None)
    status, out, _ = run("--version")
    getattr(sys, stream).close()
    assert (status, out) == (0, "" if stream == "stdout" else f"bayesattn {ba.__version__}\n")


def test_completion_after_a_misspelt_command_is_silent(run, monkeypatch):
    typed = {"COMP_WORDS": "bayesattn sampel --o", "COMP_CWORD": "2"}
    for name, value in {"_BAYESATTN_COMPLETE": "complete_bash", **typed}.items():
        monkeypatch.setenv(name, value)
    status, out, err = run()
    assert (status, out.strip(), err) == (0, "", "")


def test_an_interrupt_is_told(run, theory_is):
    for status, error in ((130, KeyboardInterrupt()), (143, KeyboardInterrupt(143))):
        theory_is(raises(error))
        assert told(run, "theory", "small.toml", status=status) == "bayesattn: interrupted\n"


def test_a_reader_that_has_gone_is_no_error(run, theory_is, monkeypatch):
    theory_is(ROW)
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        monkeypatch.setattr(screen, "print_json", lambda content: print(json.dumps(content) * 10**5, flush=True))
        assert run("theory", "small.toml", "--json")[0] == 141


def test_a_terminal_that_lacks_a_character_gets_an_escape(run, theory_is):
    theory_is(ROW)
    shown(run, "theory", "small.toml")
    assert sys.stdout.errors == sys.stderr.errors == "backslashreplace"


def refuse(constant):
    raise AssertionError(f"{constant} is not JSON")


@pytest.mark.parametrize("number", [float("nan"), -float("inf"), np.float64("nan")])
def test_json_is_json(run, theory_is, tmp_path, number):
    theory_is(ROW | {"energy": number, "evidence": {"error": number, "all": [1.5, (number, 2)]}})
    [row] = json.loads(shown(run, "theory", "small.toml", "--json"), parse_constant=refuse)
    assert row["energy"] is None
    assert row["evidence"] == {"error": None, "all": [1.5, [None, 2]]}
    output.save_results(tmp_path / "out", {"bound": number, "holds": None}, Figure)
    stored = json.loads((tmp_path / "out" / "result.json").read_text(), parse_constant=refuse)
    assert stored == {"bound": None, "holds": None}


NAMES = ["[red]", "run[/]", "[link=file:x]y", ":smile:", "$\\foo{$", "<b>&amp;", "ä[x]"]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_printed_as_they_are(run, theory_is, tmp_path, name):
    theory_is(ROW | {"paths": [name, "other"], "way_names": [[name, "2"]]})
    place = name.replace("/", "-") + ".toml"
    (tmp_path / place).write_text(SMALL)
    out = shown(run, "theory", place)
    assert place in out
    assert name in out
    nowhere = f"no{name}.toml".replace("\\", "-")
    assert nowhere in told(run, "theory", nowhere)
    terminal = Console(file=Terminal(), force_terminal=True, color_system=None, width=200)
    with Bars(console=terminal) as bars:
        bars.add(name, total=1)
    assert name in terminal.file.getvalue()


@pytest.mark.parametrize("name", ["\x1b[2J", "\r", "\x9b31m", "\u202e"])
def test_control_characters_do_not_reach_the_terminal(run, theory_is, name):
    theory_is(ROW | {"paths": [f"a{name}b", "other"], "way_names": [[f"a{name}b", "2"]]})
    out = shown(run, "theory", "small.toml")
    assert name not in out
    assert f"a{ascii(name)[1:-1]}b" in out


SHOWN = ["$\\foo{$", "\\$x\\$", "_hidden", "%s {} <b>", "a^b_c"]


@pytest.mark.parametrize("name", SHOWN)
def test_names_are_drawn_as_they_are(name):
    matrices = dict.fromkeys(("saddle", "corrected", "order_parameter", "error"), np.eye(2))
    found = SimpleNamespace(model=SimpleNamespace(row_names=[name, "other"], name=name), width=8, **matrices)
    against_width, entries, traces = plt.figure(), plt.figure(), plt.figure()
    order_parameter_against_width(against_width.subplots(), [found])
    order_parameters(entries, found)
    trace(traces, {f"U[{name}]": np.ones((2, 5))})
    for figure, expected in ((against_width, name), (entries, name), (traces, f"U[{name}]")):
        figure.canvas.draw()
        start = plots.literal(expected).strip()
        texts = [text for text in figure.findobj(plt.Text) if text.get_text().strip().startswith(start)]
        assert texts
        shown_as = {text._preprocess_math(text.get_text()) for text in texts}
        assert shown_as <= {(expected, False), (" " + expected, False)}
    plt.close("all")


def test_names_are_text_of_a_report():
    name = '<script>alert(1)</script>" onload="{{ 7 * 7 }}</pre><img> & b'
    about = dict.fromkeys(("model", "sampler", "parameterisation", "state"), name)
    about |= {"width": 8, "temperature": 0.1, "seed": 0, "seconds": 1.0}
    about["diagnostics"] = {"rhat": 1.0, "ess": 100.0, "divergences": 0}
    figure = figures.EmbeddedFigure("data:", "data:", name, name)
    rows, tables = [{"entry of U": name}], {name: [{"head": name}]}
    section = sections.RunSection(name, name, about, [name], name, True, rows, tables, name, [figure], {"model": name})
    page = sections.page([section], [figure])
    assert page.count(str(jinja2.filters.do_forceescape(name))) >= 8
    for harm in ("<script>", "<img>", '" onload'):
        assert harm not in page
    assert "49" not in page.split("</style>")[1]
