"""Model files: the tables of which a .toml file is made, and what is said of one that is not like that."""

from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bayesattn._util.checks import LARGEST_SEED, MOST_COUNT, shown, suggestion

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
            raise ValueError("needs either width or widths, and not both")
        return self


class HiddenMarkovTable(Table):
    """[task] name = "hidden_markov": arguments of `bayesattn.tasks.HiddenMarkov`."""

    name: Literal["hidden_markov"]
    examples: PositiveInt | None = None
    test_examples: PositiveInt | None = None
    tokens: PositiveInt | None = None
    dimension: PositiveInt | None = None
    stay_probability: float | None = None
    noise_difference: float | None = None
    noise_sum: float | None = None
    noise_orthogonal: float | None = None
    layers: list[list[str]] | None = None
    inverse_temperature: float | None = None
    seed: Seed = 0


class DigitsTable(Table):
    """[task] name = "digits": arguments of `bayesattn.tasks.Digits`."""

    name: Literal["digits"]
    examples: PositiveInt | None = None
    test_examples: PositiveInt | None = None
    patch: PositiveInt | None = None
    layers: list[list[str]] | None = None
    inverse_temperature: float | None = None
    seed: Seed = 0


class SpliceTable(Table):
    """[task] name = "splice": arguments of `bayesattn.tasks.Splice`."""

    name: Literal["splice"]
    examples: PositiveInt | None = None
    test_examples: PositiveInt | None = None
    layers: list[list[str]] | None = None
    inverse_temperature: float | None = None
    seed: Seed = 0


class TrainingTable(Table):
    """[task.training]: arguments of `bayesattn.tasks.training.Training`."""

    steps: PositiveInt | None = None
    batch: PositiveInt | None = None
    learning_rate: PositiveFloat | None = None
    width: PositiveInt | None = None
    weight_decay: Annotated[float, Field(ge=0)] | None = None
    seed: Seed = 0


class OneShotTable(Table):
    """[task] name = "one_shot": arguments of `bayesattn.tasks.OneShot`; paths are relative to the model file."""

    name: Literal["one_shot"]
    train_images: str | None = None
    test_images: str | None = None
    examples: int | None = None
    test_examples: int | None = None
    validation_examples: int | None = None
    side: int | None = None
    patch: int | None = None
    width: int | None = None
    key_width: int | None = None
    heads: list[int] | None = None
    turned: bool | None = None
    attention: str | None = None
    seed: Seed = 0
    training: TrainingTable = TrainingTable()


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
            raise ValueError("needs file or statistics")
        return self


class ValidateTable(Table):
    """[validate]: how `bayesattn validate` looks at the model unless it is told otherwise."""

    widths: Annotated[list[PositiveInt], Field(min_length=1)] = [10, 30, 100, 300, 1000]
    theory_widths: list[PositiveInt] = []
    sampler: str = "nuts"
    warmup: Annotated[int, Field(ge=0)] = 200
    draws: PositiveInt = 1000


class ModelTable(Table):
    """A whole model file."""

    temperature: PositiveFloat
    observation: Literal["gaussian", "categorical"] = "gaussian"
    architecture: ArchitectureTable
    task: HiddenMarkovTable | DigitsTable | SpliceTable | OneShotTable | ArraysTable = Field(discriminator="name")
    validate_by: ValidateTable = Field(default=ValidateTable(), alias="validate")


TASKS: dict[str, type[Table]] = {
    "hidden_markov": HiddenMarkovTable,
    "digits": DigitsTable,
    "splice": SpliceTable,
    "one_shot": OneShotTable,
    "arrays": ArraysTable,
}
TableKind = TypeVar("TableKind", bound=BaseModel)


def validated(kind: type[TableKind], content: Any) -> TableKind:
    """Content of a file as a table of some kind; raises ValueError, in one sentence, if it is not."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise ValueError(describe(error, kind)) from None


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
