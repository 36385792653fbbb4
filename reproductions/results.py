"""Runs of experiments, and the verdict of each row."""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bayesattn import __version__
from bayesattn._util.checks import positive_integer, suggestion
from bayesattn._util.files import finite, replace_file, user_path
from bayesattn.checks.thresholds import CANNOT_TELL, DOES_NOT_HOLD, HOLDS
from reproductions.claims import LEVEL, Findings
from reproductions.experiment import Experiment, Settings
from reproductions.processes import side_by_side
from reproductions.registry import PAPERS, ROWS, TOKENS, Row
from reproductions.stored import RESULTS_VERSION, Results, alone, file_of, folder_of, load

VERDICTS = REPRODUCED, QUALIFIED, NOT_REPRODUCED, OPEN, MISSING = (
    "reproduced",
    "reproduced with a qualification",
    "not reproduced",
    "cannot tell",
    "not run",
)
"""Verdicts of a row."""


def experiments() -> dict[str, Experiment]:
    """All experiments by name, imported here, as they come with samplers and training; the longest first."""
    from reproductions import paths, tokens

    return {**paths.EXPERIMENTS, **tokens.EXPERIMENTS}


@dataclass(frozen=True)
class Outcome:
    """Result of a row: the claims of all its experiments as plain values, and the experiments that were not run."""

    row: Row
    claims: list[dict[str, Any]]
    missing: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`: by the plain claims, and by the literal readings that fail beside them."""
        plain = [claim["verdict"] for claim in self.claims if not claim["literal"]]
        if DOES_NOT_HOLD in plain:
            return NOT_REPRODUCED
        if self.missing or not plain:
            return MISSING
        if CANNOT_TELL in plain:
            return OPEN
        readings = [claim["verdict"] for claim in self.claims if claim["literal"]]
        return QUALIFIED if DOES_NOT_HOLD in readings or self.row.qualification else REPRODUCED

    @property
    def unexpected(self) -> list[dict[str, Any]]:
        """Literal readings of theorems that hold, where they should fail; those of experiments may hold in a fast run."""
        theorem = self.row.paper == TOKENS
        return [claim for claim in self.claims if theorem and claim["literal"] and claim["verdict"] != DOES_NOT_HOLD]

    @property
    def deciding(self) -> dict[str, Any] | None:
        """The claim that decides: one that fails or cannot tell, or else the least sure one."""
        plain = [claim for claim in self.claims if not claim["literal"]]
        order = (DOES_NOT_HOLD, CANNOT_TELL, HOLDS)
        return min(plain, key=lambda c: (order.index(c["verdict"]), _or_one(c["p_value"])), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return self.row._asdict() | {
            "command": self.row.command,
            "verdict": self.verdict,
            "missing": list(self.missing),
            "claims": self.claims,
        }


def _or_one(value: float | None) -> float:
    return 1.0 if value is None else value


def chosen(names: Sequence[str] = ()) -> list[Row]:
    """Rows by the beginning of their paper's number or of their id, or by the name of an experiment; all by default.

    Raises:
        ValueError: a name of no row.
    """
    known = {*PAPERS, *(row.id for row in ROWS), *(name for row in ROWS for name in row.by)}
    for name in names:
        if not any(_matches(row, name) for row in ROWS):
            raise ValueError(
                f"ROW must be a paper ({', '.join(PAPERS)}), a row such as {ROWS[0].id}, the beginning of its name, or an"
                f" experiment, got {name!r}{suggestion(name, known)}"
            )
    return [row for row in ROWS if not names or any(_matches(row, name) for name in names)]


def _matches(row: Row, name: str) -> bool:
    name = name.casefold()
    return bool(name) and (row.paper.startswith(name) or row.id.startswith(name) or name in map(str.casefold, row.by))


def outcomes(results: Results, rows: Iterable[Row] = ROWS) -> list[Outcome]:
    """The verdict of each row, from the results of its experiments."""
    return [
        Outcome(
            row,
            [claim for name in row.by for claim in _claims(results, name, row)],
            tuple(name for name in row.by if not _claims(results, name, row)),
        )
        for row in rows
    ]


def _claims(results: Results, experiment: str, row: Row) -> list[dict[str, Any]]:
    return [claim for claim in results.get(experiment, {"claims": []})["claims"] if claim["row"] == row.id]


class Progress(NamedTuple):
    """Progress of a check: experiments done, their total number, and a message of each that is running, by its name."""

    done: int
    total: int
    running: dict[str, str]


def check(
    folder: str | Path,
    names: Sequence[str] = (),
    *,
    seed: int = 0,
    fast: bool = False,
    again: bool = False,
    workers: int = 1,
    progress: Callable[[Progress], None] | None = None,
) -> list[Outcome]:
    """Run the experiments of some rows that have no results yet, and return the outcome of each row.

    Each result is written as soon as its experiment ends: an interrupted check continues with the next experiment.

    Args:
        folder: of results, one folder in it for each version, seed and mode.
        names: which rows, see `chosen`.
        seed: of all draws.
        fast: with fewer draws, in minutes instead of hours.
        again: repeat experiments that have results.
        workers: number of experiments at a time; several run in a process each, which imports the main module: a script
            needs its `if __name__ == "__main__"`.
        progress: called whenever an experiment makes progress.

    Raises:
        ValueError: a seed below 0, no such row, workers below 1, a folder that cannot be written or that another process
            writes, a result that cannot be read.
    """
    positive_integer("workers", workers)
    rows, place = chosen(names), folder_of(user_path("folder", folder), seed, fast)
    with alone(place):
        results = {**load(folder, seed, fast)}
        todo = [
            name
            for name in sorted({name for row in rows for name in row.by}, key=list(experiments()).index)
            if again or not all(_claims(results, name, row) for row in rows if name in row.by)
        ]
        work, running, done = partial(_result, seed=seed, fast=fast, folder=place), dict[str, str](), 0

        def report(name: str, message: str) -> None:
            running[name] = message
            if progress is not None:
                progress(Progress(done, len(todo), dict(running)))

        if workers == 1 or len(todo) == 1:
            found = ((name, None, work(name, partial(report, name))) for name in todo)
        else:
            found = side_by_side(work, todo, workers)
        with closing(found):
            for name, message, result in found:
                if message is not None:
                    report(name, message)
                    continue
                results[name] = result
                replace_file(place / f"{file_of(name)}.json", json.dumps(result, indent=1).encode())
                done, _ = done + 1, running.pop(name, None)
    return outcomes(results, rows)


def _result(name: str, progress: Callable[[str], None], seed: int, fast: bool, folder: Path) -> dict[str, Any]:
    """Run one experiment."""
    experiment, start = experiments()[name], time.perf_counter()
    progress(experiment.title)
    found = experiment.run(Settings(seed, fast, progress, folder))
    return _content(name, found, seed, fast, time.perf_counter() - start)


def _content(name: str, found: Findings, seed: int, fast: bool, seconds: float) -> dict[str, Any]:
    return finite(
        {
            "experiment": name,
            "version": __version__,
            "results_version": RESULTS_VERSION,
            "seed": seed,
            "fast": fast,
            "seconds": round(seconds, 1),
            "level": LEVEL,
            "claims": [claim.to_dict() for claim in found.claims],
            "panels": [panel.to_dict() for panel in found.panels],
        }
    )
