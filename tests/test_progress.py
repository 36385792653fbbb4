"""How sampling shows that it goes on: on a terminal, in Jupyter, in a log file; and that it changes nothing."""

import io
import itertools
import re
import sys
import time
from types import SimpleNamespace

import pytest

import bayesattn as ba
from bayesattn import runs
from bayesattn._util import progress as _progress
from bayesattn._util.progress import Bars
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


class Gone(Terminal):
    """A terminal that is gone, as after a lost connection."""

    def write(self, text):
        raise OSError(5, "Input/output error")


def event(chain, done):
    return SimpleNamespace(chain=chain, done=done)


def test_a_short_run_without_a_terminal_prints_nothing_and_progress_changes_no_draw(model, silent, capfd):
    ba.sample(model, **JOB)
    ba.sample(model, **JOB, progress=False)
    assert capfd.readouterr() == ("", "")
    events = []
    for progress in (True, events.append):
        assert ba.sample(model, **JOB, progress=progress)["posterior"].equals(silent["posterior"])
    assert {told.chain for told in events} == {0, 1}
    assert max(told.done for told in events) == 80
    out, err = capfd.readouterr()
    assert out == ""
    assert re.fullmatch(
        r"bayesattn: sampling, N = 3: 0/160 steps, preparing, elapsed 00:\d\d, left \?\n"
        r"bayesattn: sampling, N = 3: 160/160 steps, elapsed 00:\d\d, left 00:00\n",
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
        bar.begin_drawing()
        for done in (10, 20, 100):
            time.sleep(0.1)
            bar(event(0, done))
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "bayesattn: sampling: 10/100 steps, elapsed 00:00, left 00:00"
    assert lines[-1] == "bayesattn: sampling: 100/100 steps, elapsed 00:00, left 00:00"
    with Bars(False) as bars:
        bars.add("silent").update(1)
    assert capfd.readouterr().err == ""


def test_runs_on_disk_show_it_too_and_a_complete_run_does_not(model, tmp_path, capfd):
    runs.sample(model, tmp_path / "run", **JOB, progress=True)
    assert "preparing" in capfd.readouterr().err
    runs.sample(model, tmp_path / "run", **JOB, progress=True)
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ValueError, match="progress must be True, False, None or a function, got 'yes'"):
        runs.sample(model, tmp_path / "run", **JOB, progress="yes")


def test_a_terminal_shows_rate_elapsed_and_left(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    with Bars() as bars:
        bars.add("theory, N = 1000")
        bar = bars.sampling("sampling, N = 1000", 12000)
        bar.preparing()
        # Steps of an earlier process do not count in the rate.
        bar(event(0, 6000))
        bar.begin_drawing()
        time.sleep(0.5)
        bar(event(0, 6100))
    theory, before, *_, last = [line for line in stream.getvalue().split("\r") if ":" in line]
    assert theory == "theory, N = 1000, elapsed 00:00"
    assert "0/12000 steps, preparing" in before
    rate = float(re.search(r"6100/12000 steps +([\d.]+)steps/s, elapsed 00:00, left \d\d:\d\d", last)[1])
    assert 50 < rate <= 200


def test_names_of_work_move_no_cursor(capfd):
    with Bars(True) as bars:
        bars.add("seed \x1b[2J [red]0")
    assert capfd.readouterr().err.splitlines()[0] == "bayesattn: seed \\x1b[2J [red]0, elapsed 00:00"


def test_a_terminal_that_is_gone_costs_no_draws(model, silent, monkeypatch):
    monkeypatch.setattr("sys.stderr", Gone())
    for progress in (None, True):
        assert ba.sample(model, **JOB, progress=progress)["posterior"].equals(silent["posterior"])


def test_colours_wanted_in_a_file_are_no_bar(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with Bars(True) as bars:
        bars.add("work", 3)
    assert "work" in sys.stderr.getvalue()
    assert not {"\x1b", "\r"} & {*sys.stderr.getvalue()}


def test_a_bar_that_is_gone_may_be_told_more(capfd):
    with Bars(True) as bars:
        passing = bars.add("passing")
        bars.add("next", 3)
        told = capfd.readouterr().err
        passing.update(1, description="still passing")
        assert "next" in told
        assert capfd.readouterr().err == ""


def test_work_that_turns_out_to_be_slow_gets_a_bar(capfd, monkeypatch):
    assert _progress.SLOW_SECONDS == 2
    monkeypatch.setattr(_progress, "SLOW_SECONDS", 0.05)
    monkeypatch.setattr(_progress, "LINE_SECONDS", 0.02)
    assert list(_progress.watched(range(5), "quick")) == [0, 1, 2, 3, 4]
    assert capfd.readouterr() == ("", "")
    done = []
    for item in _progress.watched(range(8), "slow", "parts"):
        time.sleep(0.03)
        done.append(item)
    assert done == [*range(8)]
    lines = capfd.readouterr().err.splitlines()
    assert lines
    assert all(re.match(r"bayesattn: slow: \d/8 parts, elapsed", line) for line in lines)
    # The last of two parts is no longer than what is over.
    for _ in _progress.watched(range(2), "nearly done"):
        time.sleep(0.03)
    assert capfd.readouterr() == ("", "")
    steps = _progress.watched(itertools.count(), "without an end")
    for step in steps:
        time.sleep(0.03)
        if step == 4:
            break
    steps.close()
    assert "bayesattn: without an end, elapsed " in capfd.readouterr().err
