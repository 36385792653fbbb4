"""Model files: the tables of which a .toml file is made, and what is said of one that is not like that."""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from bayesattn import tasks
from bayesattn._util.checks import LARGEST_SEED, MOST_COUNT, shown, suggestion
from bayesattn._util.errors import BayesattnError
from bayesattn.likelihoods import BY_NAME
from bayesattn.tasks import OneShot
from bayesattn.tasks.training import Training

LONGEST_KEY = 200
"""Characters of a key that an error shows."""
PositiveInt = Annotated[int, Field(ge=1, le=MOST_COUNT)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Table(BaseModel):
    """A table of a TOML file: unknown keys and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ArchitectureTable(Table):
    """[architecture]: `width` for every layer or `widths` one by one; `variances`, 1 unless given; `heads` with arrays.

    `skips` are the strengths of skip connections, 0 unless given, and `outputs` of the network, one unless given.
    """

    width: PositiveInt | None = None
    widths: list[PositiveInt] | None = None
    variances: list[PositiveFloat] | None = None
    heads: list[PositiveInt] | None = None
    skips: list[Annotated[float, Field(ge=0)]] | None = None
    outputs: PositiveInt = 1

    @model_validator(mode="after")
    def _one_of_width_and_widths(self):
        if (self.width is None) == (self.widths is None):
            raise BayesattnError("needs either width or widths, and not both")
        return self


def _entry(name: str, hint: Any) -> Any:
    """Type of an argument of a task as TOML has it: lists for tuples, counts from 1 and seeds from 0 on."""
    if get_origin(hint) is tuple:
        return list[_entry(name, get_args(hint)[0])]
    if given := [each for each in get_args(hint) if each is not type(None)]:
        return _entry(name, given[0])
    return (Seed if name == "seed" else PositiveInt) if hint is int else hint


def _table_of(settings: type, **others: Any) -> type[Table]:
    """The table of a dataclass, whose entries are its arguments and may be left out."""
    hints = get_type_hints(settings)
    entries: Any = {
        each.name: (_entry(each.name, hints[each.name]) | None, None) for each in dataclasses.fields(settings)
    }
    summary = f"Arguments of `{settings.__module__}.{settings.__name__}`."
    return create_model(f"{settings.__name__}Table", __base__=Table, __doc__=summary, **(others | entries))


class ArraysTable(Table):
    """[task] name = "arrays": your own data, an .npz with path_inputs, labels and perhaps test_path_inputs, test_labels.

    `statistics`, a file that `bayesattn.Dataset` wrote, stands in place of path_inputs and labels.
    """

    name: Literal["arrays"]
    file: str | None = None
    statistics: str | None = None
    output_names: list[str] | None = None
    head_names: list[list[str]] | None = None

    @model_validator(mode="after")
    def _some_data(self):
        if self.file is None and self.statistics is None:
            raise BayesattnError("needs file or statistics")
        return self


class ValidateTable(Table):
    """[validate]: how `bayesattn validate` looks at the model unless it is told otherwise."""

    widths: Annotated[list[PositiveInt], Field(min_length=1)] = [10, 30, 100, 300, 1000]
    theory_widths: list[PositiveInt] = []
    sampler: str = "nuts"
    warmup: Annotated[int, Field(ge=0)] = 200
    draws: PositiveInt = 1000


_TRAINING = _table_of(Training)
_TRAINED = {"training": (_TRAINING, _TRAINING())}
TASKS: dict[str, type[Table]] = {
    name: _table_of(task, name=(Literal[name], ...), **(_TRAINED if task is OneShot else {}))
    for name, task in tasks.TASKS.items()
} | {"arrays": ArraysTable}
"""Tables [task] by their `name`."""
if TYPE_CHECKING:
    LikelihoodName = str

    class TaskTable(Table):
        """One of `TASKS`."""

        name: str
else:
    LikelihoodName = Literal[tuple(BY_NAME)]
    TaskTable = Annotated[Union[tuple(TASKS.values())], Field(discriminator="name")]  # noqa: UP007


class ModelTable(Table):
    """A whole model file."""

    temperature: PositiveFloat
    observation: LikelihoodName = "gaussian"
    architecture: ArchitectureTable
    task: TaskTable
    validate_by: ValidateTable = Field(default=ValidateTable(), alias="validate")


TableKind = TypeVar("TableKind", bound=BaseModel)


def validated(kind: type[TableKind], content: Any) -> TableKind:
    """Content of a file as a table of some kind; raises ValueError, in one sentence, if it is not."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise BayesattnError(describe(error, kind)) from None


def describe(error: ValidationError, kind: type[BaseModel] | None = None) -> str:
    """The first complaint of a ValidationError as one sentence: which key of the file, what it got, what it expected.

    `kind` is the table that was validated, whose keys an unknown one is compared with.
    """
    first = error.errors(include_url=False)[0]
    # A table that is one of several has the name of its kind in its place.
    place = [str(part) for number, part in enumerate(first["loc"]) if not (number == 1 and part in TASKS)]
    key = ".".join(place)[:LONGEST_KEY] or "file"
    got = shown(first["input"])
    if first["type"].startswith("union_tag"):
        tag = first["input"].get("name") if isinstance(first["input"], dict) else None
        got = "none" if tag is None else shown(tag)
        return f"{key}.name must be one of {', '.join(map(repr, TASKS))}, got {got}{suggestion(tag, TASKS)}"
    if first["type"] == "extra_forbidden":
        known = _known_keys(kind, first["loc"][:-1])
        listed = f"one of {', '.join(known)}" if known else "no such key"
        return f"{key} is unknown: expected {listed}, got {got}{suggestion(place[-1], known)}"
    if first["type"] == "missing":
        return f"{key}: {first['msg']}"
    return f"{key}: {first['msg']}, got {got}"


def _known_keys(kind: type[BaseModel] | None, place: tuple[int | str, ...]) -> list[str]:
    """Keys of the table at a place, by their names in the file."""
    for part in place:
        if part in TASKS:
            kind = TASKS[str(part)]
        elif kind is not None and isinstance(part, str):
            fields = {field.alias or name: field for name, field in kind.model_fields.items()}
            kinds = [fields[part].annotation, *get_args(fields[part].annotation)]
            kinds += [inner for hint in kinds for inner in get_args(hint)]
            kind = next((hint for hint in kinds if isinstance(hint, type) and issubclass(hint, BaseModel)), None)
    return [] if kind is None else [field.alias or name for name, field in kind.model_fields.items()]
