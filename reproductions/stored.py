"""Results of experiments as files, checked when they are read."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import filelock
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bayesattn import __version__
from bayesattn._util.checks import seed_number
from bayesattn._util.files import user_path
from bayesattn._util.input_files import regular_file
from reproductions.registry import ROWS

RESULTS_VERSION = 1
"""Version of the code that makes results, raised by hand with every change of the package or of an experiment that changes
numbers; results of another version are shown with a note that `--again` replaces them."""
MOST_BYTES = 50_000_000
"""Largest size of a result file; those of all experiments together have one or two millions."""
Results = Mapping[str, dict[str, Any]]
"""Content of result files, by the name of the experiment."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class StoredClaim(_Table):
    """A comparison with its verdict; p_value is null where nothing can be compared, and then the law does not hold."""

    row: str
    statement: str
    law: str
    relation: Literal["=", "<=", ">="]
    literal: bool
    predicted: float | None
    predicted_error: float | None
    measured: float | None
    measured_error: float | None
    planted: float | None
    wrong: str
    allowance: Annotated[float, Field(ge=0)]
    p_value: Annotated[float, Field(ge=0, le=1)] | None
    verdict: Literal["holds", "does not hold", "cannot tell"]

    @model_validator(mode="after")
    def _decided(self) -> "StoredClaim":
        if self.p_value is None and self.verdict != "does not hold":
            raise ValueError(f"a verdict without a p_value must be 'does not hold', got {self.verdict!r}")
        return self


class StoredCurve(_Table):
    """A curve, with lists of one length."""

    label: str
    x: Annotated[list[float | None], Field(min_length=1)]
    y: list[float | None]
    error: list[Annotated[float, Field(ge=0)] | None] | None
    law: list[float | None] | None

    @model_validator(mode="after")
    def _alike(self) -> "StoredCurve":
        lengths = {len(values) for values in (self.x, self.y, self.error, self.law) if values is not None}
        if len(lengths) != 1:
            raise ValueError(f"lists of a curve must be of one length, got {sorted(lengths)}")
        return self


class StoredPanel(_Table):
    """A panel with its axes."""

    title: str
    x: str
    y: str
    curves: Annotated[list[StoredCurve], Field(min_length=1)]


class StoredResult(_Table):
    """The content of a file."""

    experiment: str
    version: str
    results_version: int
    seed: int
    fast: bool
    seconds: float
    level: float
    claims: list[StoredClaim]
    panels: list[StoredPanel]


def folder_of(folder: Path, seed: int, fast: bool) -> Path:
    """Folder of the results of one version, seed and mode."""
    return folder / f"{__version__}-{'fast' if fast else 'full'}-seed{seed_number('seed', seed)}"


def file_of(experiment: str) -> str:
    """Name of an experiment's files, without an ending."""
    return experiment.replace(" ", "-").replace(",", "")


def load(folder: str | Path, seed: int = 0, fast: bool = False) -> Results:
    """Results of this version, seed and mode; see `read`.

    Raises:
        ValueError: a seed below 0, a file that is not a result, or one of another version, seed or mode.
    """
    there = folder_of(user_path("folder", folder), seed, fast)
    results = read(there)
    wanted = {"version": __version__, "seed": seed, "fast": fast}
    for name, result in results.items():
        got = {key: result[key] for key in wanted}
        if got != wanted:
            file = there / f"{file_of(name)}.json"
            raise ValueError(
                f"{file} must be a result with {_described(wanted)}, got one with {_described(got)}: remove it"
            )
    return results


def _described(settings: Mapping[str, Any]) -> str:
    mode = "the fast mode" if settings["fast"] else "the full mode"
    return f"version {settings['version']}, seed {settings['seed']}, {mode}"


def read(folder: Path) -> Results:
    """Results in a folder, by the name of the experiment; other files are ignored.

    Raises:
        ValueError: a file of an experiment's name that is not its result.
    """
    results: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(name for row in ROWS for name in row.by):
        file = folder / f"{file_of(name)}.json"
        if not file.is_symlink() and not file.exists():
            continue
        try:
            if (size := regular_file("result", file, "a file").stat().st_size) > MOST_BYTES:
                raise ValueError(f"{size:,} bytes")
            content = StoredResult.model_validate_json(file.read_bytes())
            if content.experiment != name:
                raise ValueError(f"that of {content.experiment!r}")
        except (ValueError, OSError) as error:
            raise ValueError(
                f"{file} must be a result of the experiment {name!r}, got one that cannot be read ({_first(error)}):"
                " remove it"
            ) from error
        results[name] = content.model_dump()
    return results


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False)[0]
        place = ".".join(map(str, found["loc"]))
        return f"{place}: {found['msg']}" if place else found["msg"]
    return str(error)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Make a folder of results, and lock it against other processes.

    Raises:
        ValueError: it cannot be made or written, or another process is at work on it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"out must be a folder that can be written, got {folder}: {error.strerror}") from error
    lock = filelock.FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise ValueError(f"out must be a folder that no other process is at work on, got {folder}") from None
    try:
        yield
    finally:
        lock.release()
