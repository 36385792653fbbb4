"""What experiments found, kept as JSON, and the verdict of each row."""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bayesattn import __version__
from bayesattn._checks import positive_integer, suggestion
from bayesattn._files import finite, replace_file, user_path
from bayesattn._processes import side_by_side
from bayesattn.exchangeable.claims import Claim
from bayesattn.papers.experiment import Experiment, Findings, Settings
from bayesattn.papers.registry import PAPERS, ROWS, Row
from bayesattn.papers.stored import FORMAT, Results, alone, code, file_of, folder_of, load
from bayesattn.verdict import CANNOT_TELL, DOES_NOT_HOLD, HOLDS

LEVEL = 5e-5
"""p-value below which a claim fails: the two to three hundred of them fail by chance with a probability of 1 to 1.5 %."""
VERDICTS = REPRODUCED, QUALIFIED, NOT_REPRODUCED, OPEN, MISSING = (
    "reproduced",
    "reproduced with a qualification",
    "not reproduced",
    "cannot tell",
    "not run",
)
"""Of a row; that of a claim is one of `bayesattn.verdict.VERDICTS`."""


def experiments() -> dict[str, Experiment]:
    """All by name, those first that take longest; imported when asked for, as they come with samplers and training."""
    from bayesattn.papers import images, paths, tokens

    return {**images.EXPERIMENTS, **paths.EXPERIMENTS, **tokens.EXPERIMENTS}


def verdict_of(claim: Claim) -> str:
    """Of one claim: it cannot tell where the wrong law that was planted does as well as the right one."""
    if not claim.holds(LEVEL):
        return DOES_NOT_HOLD
    return HOLDS if claim.finds_planted(LEVEL) else CANNOT_TELL


@dataclass(frozen=True)
class Outcome:
    """What came out for a row.

    `claims` are those of all its experiments, as plain values with a "verdict" each; `missing` names experiments that have
    not been run.
    """

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
    def telling(self) -> dict[str, Any] | None:
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


def chosen(only: Sequence[str] = ()) -> list[Row]:
    """Rows by the beginning of their paper's number or of their name, or by the name of an experiment; all by default.

    Raises:
        ValueError: nothing is called so.
    """
    names = {*PAPERS, *(row.id for row in ROWS), *(name for row in ROWS for name in row.by)}
    for asked in only:
        if not any(_matches(row, asked) for row in ROWS):
            raise ValueError(
                f"--only must be a paper ({', '.join(PAPERS)}), a row such as {ROWS[0].id}, the beginning of its name, or an"
                f" experiment, got {asked!r}{suggestion(asked, names)}"
            )
    return [row for row in ROWS if not only or any(_matches(row, asked) for asked in only)]


def _matches(row: Row, asked: str) -> bool:
    asked = asked.casefold()
    names = (row.paper, row.id)
    return bool(asked) and (any(name.startswith(asked) for name in names) or asked in map(str.casefold, row.by))


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
    return results[experiment]["claims"].get(row.id, []) if experiment in results else []


class Stand(NamedTuple):
    """How far a check is: experiments that are done, of how many, and what those under way tell, by their names."""

    done: int
    total: int
    running: dict[str, str]


def check(
    folder: str | Path,
    only: Sequence[str] = (),
    *,
    seed: int = 0,
    fast: bool = False,
    again: bool = False,
    workers: int = 1,
    progress: Callable[[Stand], None] | None = None,
) -> list[Outcome]:
    """Run the experiments of some rows, but those whose results are there, and give the outcome of each row.

    Each result is written as soon as it is there: a check that was interrupted goes on with the next experiment.

    Args:
        folder: of results, one folder in it for each version, seed and mode.
        only: which rows, see `chosen`.
        seed: of all that is drawn.
        fast: in minutes instead of hours, with fewer draws.
        again: run also what has been run.
        workers: experiments at a time; more than one have a process each, which imports the main module of this one: a
            script needs its `if __name__ == "__main__"`.
        progress: told how far it is.

    Raises:
        ValueError: a seed below 0, no such row, workers below 1, a folder that cannot be written or that another process is
            at work on, a result that cannot be read.
    """
    positive_integer("workers", workers)
    rows, place = chosen(only), folder_of(user_path("folder", folder), seed, fast)
    with alone(place):
        results = {**load(folder, seed, fast)}
        names = [
            name
            for name in sorted({name for row in rows for name in row.by}, key=list(experiments()).index)
            if again or not all(_claims(results, name, row) for row in rows if name in row.by)
        ]
        work, running, done = partial(_result, seed=seed, fast=fast, folder=place), dict[str, str](), 0

        def tell(name: str, told: str) -> None:
            running[name] = told
            if progress is not None:
                progress(Stand(done, len(names), dict(running)))

        if workers == 1 or len(names) == 1:
            found = ((name, None, work(name, partial(tell, name))) for name in names)
        else:
            found = side_by_side(work, names, workers)
        with closing(found):
            for name, told, result in found:
                if told is not None:
                    tell(name, told)
                    continue
                results[name] = result
                replace_file(place / f"{file_of(name)}.json", json.dumps(result, indent=1).encode())
                done, _ = done + 1, running.pop(name, None)
    return outcomes(results, rows)


def _result(name: str, tell: Callable[[str], None], seed: int, fast: bool, folder: Path) -> dict[str, Any]:
    """Run one experiment."""
    experiment, start = experiments()[name], time.perf_counter()
    tell(experiment.title)
    found = experiment.run(Settings(seed, fast, tell, folder))
    return _content(name, found, seed, fast, time.perf_counter() - start)


def _content(name: str, found: Findings, seed: int, fast: bool, seconds: float) -> dict[str, Any]:
    return finite(
        {
            "format": FORMAT,
            "experiment": name,
            "version": __version__,
            "code": code(),
            "seed": seed,
            "fast": fast,
            "seconds": round(seconds, 1),
            "level": LEVEL,
            "claims": {row: [_plain(claim) for claim in claims] for row, claims in found.claims.items()},
            "panels": {title: [curve.to_dict() for curve in panel] for title, panel in found.panels.items()},
        }
    )


def _plain(claim: Claim) -> dict[str, Any]:
    planted = None if claim.planted is None else claim.planted.value
    return claim.to_dict() | {"planted": planted, "wrong": claim.wrong, "verdict": verdict_of(claim)}
