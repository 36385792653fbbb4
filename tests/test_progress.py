"""How sampling shows that it goes on: on a terminal, in Jupyter, in a log file; and that it changes nothing."""

import io
import itertools
import re
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from rich.console import Console

import bayesattn as ba
from bayesattn import runs
from bayesattn._util import progress as _progress
from bayesattn._util import slow_loops
from bayesattn._util.progress import NOTEBOOK_COLUMNS, Bars
from tests import zoo
from tests.screens import Terminal

JOB = {key: value for key, value in zoo.LIGHT.items() if key != "progress"}


@pytest.fixture(scope="module")
def model():
    return zoo.model("one")


@pytest.fixture(scope="module")
def silent(model):
    """Draws of which nobody is told."""
    return ba.sample(model, **JOB, progress=False)


def event(chain, done):
    return SimpleNamespace(chain=chain, done=done)


def test_a_short_run_without_a_terminal_prints_nothing_and_progress_changes_no_draw(model, silent, capfd):
    ba.sample(model, **JOB)
    assert capfd.readouterr() == ("", "")
    events = []
    for progress in (True, events.append):
        assert ba.sample(model, **JOB, progress=progress)["posterior"].equals(silent["posterior"])
    assert {told.chain for told in events} == {0, 1}
    assert max(told.done for told in events) == 80
    out, err = capfd.readouterr()
    assert out == ""
    assert re.fullmatch(
        r"bayesattn: sampling, N = 3: 0/160 steps, compiling \(once for each shape\), elapsed 0:\d\d\n"
        r"bayesattn: sampling, N = 3: 160/160 steps, (\S+/s, )?elapsed 0:\d\d\n",
        err,
    )


def test_a_log_file_gets_a_line_now_and_then(model, capfd, monkeypatch):
    assert _progress.LINE_SECONDS == 30
    monkeypatch.setattr(_progress, "LINE_SECONDS", 0.05)
    ba.sample(model, **JOB, progress=lambda _: time.sleep(0.1))
    assert capfd.readouterr().err == ""
    with Bars() as bars:
        bar = bars.sampling("sampling", 100)
        bar.preparing()
        time.sleep(0.2)
        bar.begin_drawing()
        bar(event(0, 10))
        time.sleep(0.2)
        bar(event(0, 100))
        time.sleep(0.2)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "bayesattn: sampling: 0/100 steps, compiling (once for each shape), elapsed 0:00"
    # What is finished is not told again and again.
    assert lines[-1] == "bayesattn: sampling: 10/100 steps, elapsed 0:00"
    with Bars(False) as bars:
        bars.add("silent")
        time.sleep(0.1)
    assert capfd.readouterr().err == ""


def test_runs_on_disk_show_it_too_and_a_complete_run_does_not(model, tmp_path, capfd):
    runs.sample(model, tmp_path / "run", **JOB, progress=True)
    assert "compiling" in capfd.readouterr().err
    runs.sample(model, tmp_path / "run", **JOB, progress=True)
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ValueError, match="progress must be True, False, None or a function, got 'yes'"):
        runs.sample(model, tmp_path / "run", **JOB, progress="yes")


def test_a_terminal_that_is_gone_costs_no_draws(model, silent, monkeypatch):
    gone = Terminal()
    gone.write = Mock(side_effect=OSError(5, "Input/output error"))
    monkeypatch.setattr("sys.stderr", gone)
    assert ba.sample(model, **JOB, progress=True)["posterior"].equals(silent["posterior"])
    assert gone.write.called


def test_a_terminal_of_80_columns_shows_rate_elapsed_and_left():
    stream = Terminal()
    console = Console(file=stream, force_terminal=True, width=80, legacy_windows=False, _environ={})

    def rendered(bars):
        shown = Console(file=io.StringIO(), width=80)
        shown.print(bars.progress)
        return shown.file.getvalue().rstrip()

    with Bars(console=console) as bars:
        bars.add("theory, N = 1000")
        bar = bars.sampling("sampling, N = 1000", 12000)
        bar.preparing()
        assert "compiling" in rendered(bars)
        assert "theory" not in rendered(bars)
        # Steps of an earlier process do not count in the rate.
        bar(event(0, 6000))
        bar.begin_drawing()
        clock = [time.monotonic() + 3600]
        bars.progress.get_time = lambda: clock[0]
        for done in (6100, 6200):
            clock[0] += 1
            bar(event(0, done))
        [line] = rendered(bars).splitlines()
        for part in ("sampling, N = 1000", "6200/12000 steps", "100/s", "elapsed 0:00", "left 0:58"):
            assert part in line
        assert len(line) <= 80
    assert "6200/12000" in stream.getvalue()


def test_jupyter_shows_one_display_that_changes(monkeypatch):
    pytest.importorskip("IPython")
    shown = []

    def update(thing):
        shown.append(thing._repr_mimebundle_([], [])["text/plain"])

    def display(thing, display_id):
        assert display_id is True
        update(thing)
        return SimpleNamespace(update=update)

    monkeypatch.setattr("IPython.display.display", display)
    with Bars(console=Console(force_jupyter=True, file=io.StringIO())) as bars:
        bar = bars.sampling("sampling", 10)
        bar.preparing()
        bar.begin_drawing()
        bar(event(0, 10))
    assert "compiling" in shown[0]
    assert "10/10 steps" in shown[-1]
    assert max(len(line) for text in shown for line in text.splitlines()) <= NOTEBOOK_COLUMNS


def test_a_file_gets_neither_bars_nor_colours_nor_control_characters(capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Bars(True) as bars:
        assert not bars.on_terminal
        bars.add("seed \x1b[2J [red]0")
    first, *others = capfd.readouterr().err.splitlines()
    assert first == "bayesattn: seed \\x1b[2J [red]0: elapsed 0:00"
    assert "\x1b" not in "".join(others)


def test_what_is_printed_into_a_file_beside_a_bar_goes_there(monkeypatch):
    printed = io.StringIO()
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setattr("sys.stdout", printed)
    with Bars() as bars:
        assert bars.on_terminal
        bars.add("work", 3)
        print("data")
    assert printed.getvalue() == "data\n"


def test_a_bar_that_is_gone_may_be_told_more_and_told_of(monkeypatch):
    with Bars(False) as bars:
        passing = bars.add("passing")
        bars.add("next", 3)
        passing.update(1, description="still passing")
        assert [task.description for task in bars.progress.tasks] == ["next"]
        looks = iter([bars.progress.tasks])
        monkeypatch.setattr(type(bars.progress), "tasks", property(lambda _: next(looks, [])))
        bars._tell()


def test_work_that_turns_out_to_be_slow_gets_a_bar(capfd, monkeypatch):
    def said(items, *arguments, **options):
        passed = []
        for item in slow_loops.watched(items, *arguments, **options):
            time.sleep(0.03)
            passed.append(item)
            if item == 7:
                break
        assert passed == [*range(len(passed))]
        return capfd.readouterr().err

    assert slow_loops.SLOW_SECONDS == 2
    monkeypatch.setattr(slow_loops, "SLOW_SECONDS", 0.05)
    monkeypatch.setattr(_progress, "LINE_SECONDS", 0.02)
    lines = said(range(8), "slow", "parts").splitlines()
    assert lines
    assert all(re.match(r"bayesattn: slow: \d/8 parts, ", line) for line in lines)
    # The last of two parts is no longer than what is over.
    assert said(range(2), "nearly done") == ""
    assert said(range(2), "known", is_slow=True).startswith("bayesattn: known: 0/2")
    assert "bayesattn: without an end: elapsed " in said(itertools.count(), "without an end")
