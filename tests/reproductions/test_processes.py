"""Work side by side. (Its processes import this module: what is imported here, they wait for.)"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from reproductions import processes
from reproductions.processes import Unforeseen, side_by_side
from tests.processes import FORKS


class NotSent(Exception):
    """An error that cannot be made from its message alone."""

    def __init__(self, message, detail):
        super().__init__(message)
        self.detail = detail


def work(name, tell):
    """What a process does: it is found by its name there, as this module is imported."""
    tell("begun")
    match name:
        case "bad input":
            raise ValueError("temperature must be above 0")
        case "fault":
            raise NotSent("the saddle point was not found", None)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "endless":
            tell(str(os.getpid()))
            time.sleep(1000)
    return name.upper(), os.getpid()


def forked(method):
    """In place of multiprocessing's context: forks of a process that has imported everything, which begin at once."""
    assert method == "spawn"
    return FORKS


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(processes, "get_context", forked)


def test_work_is_done_by_as_many_processes_as_are_asked_for():
    found = {name: result for name, words, result in side_by_side(work, [*"abcde"], 2) if words is None}
    assert {name: word for name, (word, _) in found.items()} == {name: name.upper() for name in "abcde"}
    assert 1 <= len({process for _, process in found.values()} - {os.getpid()}) <= 2


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("bad input", ValueError, "^temperature must be above 0\n"),
        ("fault", Unforeseen, "NotSent: the saddle point was not found"),
        ("killed", ChildProcessError, r"the process of killed was ended \(-9\)"),
    ],
)
def test_errors_of_other_processes_are_raised_here(name, error, words):
    with pytest.raises(error, match=words) as raised:
        list(side_by_side(work, [name], 2))
    if error is not ChildProcessError:
        assert "_serve" in raised.value.__notes__[0]


def test_processes_do_not_outlive_the_one_that_they_work_for():
    """However it ends, and without any message."""
    program = (
        "from tests.reproductions.test_processes import *\n"
        "for found in side_by_side(work, ['endless'], 1):\n"
        "    print(found[1], flush=True)"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as parent:
        assert parent.stdout.readline() == "begun\n"
        process = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    process.wait(timeout=10)


def test_processes_end_with_whom_they_work_for():
    found = side_by_side(work, ["endless"], 1)
    assert next(found) == ("endless", "begun", None)
    process = int(next(found)[1])
    os.kill(process, signal.SIGINT)  # Ctrl-C goes to all of them.
    found.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
