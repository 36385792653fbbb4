"""Plan of a sweep: a grid or list of settings in a TOML file, and the resulting runs."""

import dataclasses
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from bayesattn._util.checks import shown
from bayesattn._util.files import user_path
from bayesattn._util.input_files import read_toml
from bayesattn._util.plain_values import PlainDict
from bayesattn._util.random import digest
from bayesattn.errors import BayesattnError
from bayesattn.jobs import runs
from bayesattn.jobs.runs.sampling import difference, require_same
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.samplers import Job
from bayesattn.tasks.load import load_model
from bayesattn.tasks.tables import PositiveFloat, PositiveInt, Table, validated

NESTED_TABLES = ("task", "options")
RESULT_COLUMNS = ("run", "state", "seconds", "error_message", "divergences", "quantity")
"""Columns of the table of results that are not settings."""
LONGEST_NAME = 200
"""Largest length of a name in bytes: file systems allow 255, and temporary names of a run are longer."""


class Settings(Table):
    """Settings of a run: the options of `bayesattn sample`, and entries of the model's [task]."""

    model: str | None = None
    width: PositiveInt | None = None
    temperature: PositiveFloat | None = None
    data_seed: Annotated[int, Field(ge=0)] | None = None
    task: PlainDict | None = None
    sampler: str | None = None
    parameterisation: str | None = None
    chains: int | None = None
    warmup: int | None = None
    draws: int | None = None
    seed: int | None = None
    keep: list[str] | None = None
    thin: int | None = None
    chain_method: str | None = None
    options: PlainDict | None = None


class Cluster(Table):
    """Table [cluster]: a batch system of dask-jobqueue, with the options of its cluster class."""

    kind: Literal["slurm", "pbs", "sge", "lsf", "oar"]
    jobs: PositiveInt
    options: PlainDict = Field(default_factory=dict)


class SweepTable(Table):
    """Complete sweep file: [settings] of all runs, [grid] of lists, whose combinations are runs, and [[runs]]."""

    settings: Settings = Settings()
    grid: PlainDict = Field(default_factory=dict)
    runs: list[Settings] = Field(default_factory=list)
    cluster: Cluster | None = None


@dataclasses.dataclass(frozen=True)
class Planned:
    """Planned run of a sweep: name, settings that vary, all settings, and the folder `out` of its store."""

    name: str
    varied: PlainDict
    settings: PlainDict
    out: Path

    @property
    def job(self) -> Job:
        """Sampling settings of the run."""
        return Job(**{f.name: self.settings[f.name] for f in dataclasses.fields(Job) if f.name in self.settings})

    def model(self) -> NetworkPosterior:
        """Posterior of the run."""
        changes = {key: self.settings[key] for key in ("width", "temperature") if key in self.settings}
        return _data(*self._data_key).replace(**changes)

    @property
    def _data_key(self) -> tuple[str, int | None, str, tuple[str, ...]]:
        model, task = self.settings["model"], self.settings.get("task", {})
        return model, self.settings.get("data_seed"), json.dumps(task, default=str), _digests(model, task)

    def stored(self) -> runs.Run:
        """The run on disk, of whose draws only the requested ones are read; raises RunError if there is none."""
        run = runs.Run(self.out)
        if self.job.draws < run.job.draws:
            run.first = self.job.kept
        return run

    @property
    def is_finished(self) -> bool:
        """Whether exactly this run exists, with all the draws requested."""
        try:
            run = self.stored()
            if run.drawn < self.job.kept:
                return False
            require_same(run, self.model(), self.job)
            run.require_sound()
        except (runs.RunError, OSError):
            return False
        return True

    @property
    def steps_done(self) -> int:
        """Number of requested steps done by all chains of the run together, warm-up included.

        While the run replaces another, they are its own.
        """
        try:
            return sum(min(done, self.job.transitions) for done in runs.Run(runs.under_way(self.out)).done)
        except (runs.RunError, OSError):
            return 0

    @property
    def state(self) -> str:
        """State of the run: "new" if it does not exist, "short" if it is complete with fewer draws than requested.

        A run of another model or settings is "different", a folder that cannot be read as a run "unreadable".
        """
        if not self.out.exists():
            return "new"
        try:
            run = self.stored()
            if difference(run, self.model(), self.job):
                return "different"
            if run.drawn >= self.job.kept:
                return "complete"
            return "short" if run.complete else run.state
        except (runs.RunError, OSError):
            return "unreadable"


class Sweep:
    """Runs defined by a sweep file.

    Args:
        file: the TOML file.
        out: folder for the store of each run and the table of results; by default `out/` and the name of the file.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: not TOML, an unknown key, an invalid value, two equal runs.
    """

    def __init__(self, file: str | Path, out: str | Path | None = None):
        self.file = user_path("sweep file", file)
        self.out = user_path("out", out) if out is not None else Path("out") / self.file.stem
        self.table = validated(SweepTable, read_toml("sweep file", self.file))
        self.runs = self._planned()
        for planned in self.runs:
            self._check(planned)

    def _planned(self) -> list[Planned]:
        shared = self.table.settings.model_dump(exclude_none=True)
        listed = [entry.model_dump(exclude_none=True) for entry in self.table.runs] or [{}]
        pairs: list[tuple[PlainDict, PlainDict]] = []
        for entry, point in itertools.product(listed, _grid_points(self.table.grid)):
            for key in _keys(entry) & _keys(point):
                raise BayesattnError(f"{'.'.join(key)} must be either in [grid] or in [[runs]], got both")
            varied = _merged(entry, point)
            settings = _merged(shared, varied)
            if "model" not in settings:
                name = _name(varied)
                raise BayesattnError(f"model must be given in [settings], [grid] or [[runs]], got none for {name!r}")
            if settings["model"].endswith(".toml"):
                settings["model"] = str((self.file.parent / user_path("model", settings["model"])).absolute())
            pairs.append((varied, settings))
        # Models are named by their files, unless files of one name are several.
        stems = Counter(Path(model).stem for model in {settings["model"] for _, settings in pairs})
        for varied, settings in pairs:
            if "model" in varied and stems[stem := Path(settings["model"]).stem] == 1:
                varied["model"] = stem
        names = [_name(varied) for varied, _ in pairs]
        planned: dict[str, Planned] = {}
        for (varied, settings), name in zip(pairs, names, strict=True):
            # Two runs may differ in settings that a file name cannot show.
            name = f"{name},{digest(settings)[:8]}" if names.count(name) > 1 else name
            if name in planned:
                raise BayesattnError(f"runs must differ in their settings, got {_name(varied)!r} twice")
            planned[name] = Planned(name, varied, settings, (self.out / f"{name}.zarr").absolute())
        return list(planned.values())

    def _check(self, planned: Planned) -> None:
        """Check a run as far as possible before the first run starts."""
        try:
            _ = planned.job, planned.model()
        except (ValueError, OSError) as error:
            raise BayesattnError(f"{planned.name}: {error}") from error


@lru_cache(maxsize=16)
def _data(model: str, data_seed: int | None, task: str, digests: tuple[str, ...]) -> NetworkPosterior:
    """Model at its own width and temperature, shared by runs on the same data while the files have the same digests."""
    return load_model(model, seed=data_seed, task=json.loads(task))


def _digests(model: str, task: PlainDict) -> tuple[str, ...]:
    """Digests of a model file and of the data files that it or `task` names; none for a ready model."""
    if not model.endswith(".toml"):
        return ()
    table = read_toml("model", model).get("task")
    named = (table if isinstance(table, dict) else {}) | task
    data = [user_path(f"task.{key}", named[key]) for key in ("file", "statistics") if named.get(key) is not None]
    files = [Path(model), *(Path(model).parent / file for file in data)]
    return tuple(hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file())


def _grid_points(grid: PlainDict) -> Iterator[PlainDict]:
    """Yield every combination of the lists in [grid], validated like other settings."""
    axes: list[list[PlainDict]] = []
    for key, values in grid.items():
        if key not in Settings.model_fields:
            raise BayesattnError(f"[grid] may hold {', '.join(Settings.model_fields)}, got {key!r}")
        if key in NESTED_TABLES and isinstance(values, dict):
            axes += [_axis(key, (key, inner), choices) for inner, choices in values.items()]
        else:
            axes.append(_axis(key, (key,), values))
    for combination in itertools.product(*axes):
        point: PlainDict = {}
        for part in combination:
            point = _merged(point, part)
        checked = validated(Settings, point).model_dump()
        yield {key: checked[key] for key in point}


def _keys(settings: PlainDict) -> set[tuple[str, ...]]:
    """Keys of settings; of nested tables, those of their entries."""
    nested = {(key, inner) for key in NESTED_TABLES for inner in settings.get(key, {})}
    return nested | {(key,) for key in settings.keys() - set(NESTED_TABLES)}


def _axis(key: str, names: tuple[str, ...], choices: object) -> list[PlainDict]:
    """Settings for each choice of one list; `names` are those of its key, and of the entry inside of a nested table."""
    if not isinstance(choices, list) or not choices:
        raise BayesattnError(f"grid.{'.'.join(names)} must be a list of at least one value, got {choices!r}")
    if len(names) == 2:
        return [{key: {names[1]: choice}} for choice in choices]
    if key in NESTED_TABLES and not all(isinstance(choice, dict) for choice in choices):
        raise BayesattnError(f"grid.{key} must be a table or a list of tables, got {shown(choices)}")
    return [{key: choice} for choice in choices]


def _merged(first: PlainDict, second: PlainDict) -> PlainDict:
    """Settings of `first` overridden by those of `second`, also inside [task] and options."""
    nested = {
        key: {**first.get(key, {}), **second.get(key, {})} for key in NESTED_TABLES if key in first or key in second
    }
    return first | second | nested


def flattened(varied: PlainDict) -> PlainDict:
    """Settings, with entries of [task] and options on the same level, for columns and names.

    An entry with the name of another setting or column has the name of its table as a prefix.
    """
    columns = {key: value for key, value in varied.items() if key not in NESTED_TABLES}
    taken = {
        *Settings.model_fields,
        *RESULT_COLUMNS,
        *(varied.get("task", {}).keys() & varied.get("options", {}).keys()),
    }
    for key in NESTED_TABLES:
        columns |= {f"{key}.{name}" if name in taken else name: value for name, value in varied.get(key, {}).items()}
    return columns


def _name(varied: PlainDict) -> str:
    """Name of a run by its varying settings, valid as a file name."""
    name = ",".join(f"{key}={_text(value)}" for key, value in flattened(varied).items()) or "run"
    name = "".join("-" if letter in "/\\" or not letter.isprintable() else letter for letter in name)
    if len(name.encode()) > LONGEST_NAME:
        name = f"{name.encode()[: LONGEST_NAME - 9].decode(errors='ignore')},{digest(varied)[:8]}"
    return name


def _text(value: object) -> str:
    """Text of a value in names, with all digits that distinguish numbers."""
    if isinstance(value, list):
        return "+".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
