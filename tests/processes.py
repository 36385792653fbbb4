"""Processes for tests, forked from one that has imported everything: each begins at once instead of after seconds."""

import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
# Nothing that makes an array of JAX when it is imported: its threads do not live through a fork.
FORKS.set_forkserver_preload(["tests.killed_run"])


class Started:
    """A process that calls a function of a module, in a folder, with so many more environment variables.

    `process` is multiprocessing's. `wait` gives the exit status (minus the number of the signal that killed it), and what it
    printed to standard output and to standard error.
    """

    def __init__(self, function, *arguments, cwd=None, **environment):
        self._folder = tempfile.TemporaryDirectory()
        self._printed = [Path(self._folder.name, name) for name in ("out", "err")]
        self.process = FORKS.Process(target=_call, args=(self._printed, cwd, environment, function, *arguments))
        self.process.start()

    def wait(self, timeout=300):
        self.process.join(timeout)
        status = self.process.exitcode
        if status is None:
            self.process.kill()
        with self._folder:
            out, err = (file.read_text() for file in self._printed)
        assert status is not None, f"still running after {timeout} s: {err}"
        return status, out, err


def _call(files, cwd, environment, function, *arguments):
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(cwd or Path(__file__).parents[1])
    os.environ.update(environment)
    function(*arguments)


def run_command(*arguments):
    """What the command does with these arguments."""
    from bayesattn.jobs.cli import main

    sys.argv = ["bayesattn", *map(str, arguments)]
    main()
