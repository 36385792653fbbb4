"""Costs of each file of tests: programs that JAX compiles or loads, CPU seconds. A file over its budget fails the run.

Heavy tests say at once why they failed, since runs of them take hours.
"""

import os
import resource
import time
import tomllib
from collections import Counter
from pathlib import Path

import jax
import pytest

from tests import statistics

BUDGETS = tomllib.loads((Path(__file__).parent / "budgets.toml").read_text())
"""Largest number of programs of files, and of all others."""
COMPILED = "/jax/core/compile/backend_compile_duration"
STEPS = ("/jax/core/compile/jaxpr_trace_duration", "/jax/core/compile/jaxpr_to_mlir_module_duration", COMPILED)
DEAREST = 10


class Costs:
    """Plugin that counts, in the processes that run tests, and adds up, in the one that reports.

    Args:
        judged: whether budgets count; they are those of plain tests.
    """

    def __init__(self, judged: bool):
        self.judged = judged
        self.now, self.before = Counter(), Counter()
        self.of_files: dict[str, Counter] = {}
        jax.monitoring.register_event_duration_secs_listener(self._count)

    def _count(self, event, seconds, **_):
        self.now["programs"] += event == COMPILED
        self.now["compiling"] += seconds if event in STEPS else 0.0

    def _spent(self):
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = time.process_time() + children.ru_utime + children.ru_stime
        return Counter(self.now, cpu=cpu, comparisons=statistics.made)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.before = self._spent()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call):
        report = yield
        if call.when == "teardown":
            spent = self._spent()
            report.user_properties += [(name, spent[name] - self.before[name]) for name in spent]
        return report

    def pytest_sessionstart(self, session):
        self.terminal = session.config.pluginmanager.get_plugin("terminalreporter")

    def pytest_runtest_logreport(self, report):
        if report.failed and not self.judged and self.terminal:
            self.terminal.write_line(f"\n{report.longreprtext}")
        if report.when == "teardown":
            # Fixtures of a module or a session count for the test that needs them first.
            self.of_files.setdefault(report.nodeid.split("::")[0], Counter()).update(dict(report.user_properties))

    def _over(self):
        return {
            name: f"{costs['programs']} programs, its budget is {budget}"
            for name, costs in self.of_files.items()
            if self.judged and costs["programs"] > (budget := BUDGETS.get(name, BUDGETS["others"]))
        }

    def pytest_sessionfinish(self, session):
        if self._over() and "PYTEST_XDIST_WORKER" not in os.environ:
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        write, total = terminalreporter.write_line, sum(self.of_files.values(), Counter())
        rows = sorted(self.of_files.items(), key=lambda row: -row[1]["cpu"])[:DEAREST]
        terminalreporter.section("costs")
        write("programs  CPU s  of them compiling s")
        for name, costs in [*rows, (f"{len(self.of_files)} files", total)]:
            write(f"{costs['programs']:8d} {costs['cpu']:6.0f} {costs['compiling']:8.0f}  {name}")
        alarm = total["comparisons"] * statistics.LEVEL / statistics.COMPARISONS
        write(f"{total['comparisons']} comparisons by tests/statistics.py: false alarm {alarm:.1g} at most")
        for name, fault in self._over().items():
            write(f"{name} compiles {fault}", red=True)
