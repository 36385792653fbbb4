"""Tables of a model file, a .toml, and messages for invalid ones."""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bayesattn._util.checks import LARGEST_COUNT, shown, suggestion
from bayesattn._util.plain_values import PlainDict
from bayesattn.errors import BayesattnError

LONGEST_KEY = 200
"""Largest number of characters of a key that an error shows."""
PositiveInt = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Table(BaseModel):
    """Table of a TOML file: unknown keys and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ArchitectureTable(Table):
    """Table [architecture]: `width` of all layers or `widths` of each; `variances`, default 1; `heads` for arrays.

    `skips` are the strengths of skip connections, default 0. `outputs` is the number of outputs of the network, default 1.
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


class ArraysTable(Table):
    """Table [task] with name = "arrays": an .npz with path_inputs, or tokens and attention matrices, and labels.

    `readout` and `renormalise` are arguments of `bayesattn.attention.paths_from_matrices`. `statistics`, a file written by
    `bayesattn.Dataset`, replaces training data.
    """

    name: Literal["arrays"]
    file: str | None = None
    statistics: str | None = None
    readout: Literal["last", "first", "mean", "all"] = "last"
    renormalise: PositiveFloat | None = None
    output_names: list[str] | None = None
    head_names: list[list[str]] | None = None

    @model_validator(mode="after")
    def _some_data(self):
        if self.file is None and self.statistics is None:
            raise BayesattnError("needs file or statistics")
        return self


class AttentionTable(Table):
    """Table [attention]: queries and keys are sampled too, with prior variances of their entries (`AttentionModel`)."""

    key_width: PositiveInt
    query_variance: NotNegative | list[NotNegative] | None = None
    key_variance: NotNegative | list[NotNegative] | None = None
    attention_on: Literal["inputs", "hidden"] = "inputs"
    values: Literal["linear", "relu", "gelu"] = "linear"
    values_strength: NotNegative = 1.0
    watched: list[Annotated[int, Field(ge=0)]] = []


class ValidateTable(Table):
    """Table [validate]: defaults of `bayesattn validate` for the model."""

    widths: Annotated[list[PositiveInt], Field(min_length=1)] = [10, 30, 100, 300, 1000]
    theory_widths: list[PositiveInt] = []
    sampler: str = "auto"
    warmup: Annotated[int, Field(ge=0)] = 200
    draws: PositiveInt = 1000


class PriorsTable(Table):
    """Table [priors]: distributions in place of numbers, such as {distribution = "LogNormal", loc = -2.0, scale = 1.0}.

    `variances` has a number or a distribution for each layer, in the order of [architecture]; so have `query_variance` and
    `key_variance`, in place of those of [attention], or one distribution for all layers.
    """

    temperature: PlainDict | None = None
    variances: list[PositiveFloat | PlainDict] | None = None
    query_variance: list[NotNegative | PlainDict] | PlainDict | None = None
    key_variance: list[NotNegative | PlainDict] | PlainDict | None = None


class ModelTable(Table):
    """Complete model file; [task] is an `ArraysTable`, or holds the name of a ready task and arguments of its dataclass."""

    temperature: PositiveFloat | None = None
    priors: PriorsTable = PriorsTable()
    observation: Literal["gaussian", "categorical"] = "gaussian"
    architecture: ArchitectureTable
    attention: AttentionTable | None = None
    task: PlainDict
    validate_by: ValidateTable = Field(default=ValidateTable(), alias="validate")

    @model_validator(mode="after")
    def _one_temperature(self):
        if self.temperature is None and self.priors.temperature is None:
            raise BayesattnError("needs temperature, or priors.temperature in its place")
        if self.temperature is not None and self.priors.temperature is not None:
            raise BayesattnError("needs temperature or priors.temperature, and not both")
        if self.priors.variances is not None and self.architecture.variances is not None:
            raise BayesattnError("needs architecture.variances or priors.variances, and not both")
        for name in ("query_variance", "key_variance"):
            if getattr(self.priors, name) is None:
                continue
            if self.attention is None:
                raise BayesattnError(f"needs a table [attention] for priors.{name}")
            if getattr(self.attention, name) is not None:
                raise BayesattnError(f"needs attention.{name} or priors.{name}, and not both")
        return self


TableKind = TypeVar("TableKind", bound=BaseModel)


def validated(kind: type[TableKind], content: object, *within: str) -> TableKind:
    """Content of a table, or of the table `within` a file; raises ValueError, with one sentence, if it is invalid."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise BayesattnError(describe(error, kind, *within)) from None


def describe(error: ValidationError, kind: type[BaseModel] | None = None, *within: str) -> str:
    """First error of a ValidationError as one sentence: key of the file, value and expected value.

    `kind` is the type of the validated table; unknown keys are compared with its keys.
    """
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, (*within, *first["loc"])))[:LONGEST_KEY] or "file"
    got = shown(first["input"])
    if first["type"] == "extra_forbidden":
        return unknown_key(key, got, _known_keys(kind, first["loc"][:-1]))
    if first["type"] == "missing":
        return f"{key}: {first['msg']}"
    return f"{key}: {first['msg']}, got {got}"


def unknown_key(key: str, got: str, known: Sequence[str]) -> str:
    """Sentence about a key that its table does not have."""
    listed = f"one of {', '.join(known)}" if known else "no such key"
    return f"{key[:LONGEST_KEY]} is unknown: expected {listed}, got {got}{suggestion(key.rpartition('.')[2], known)}"


def _known_keys(kind: type[BaseModel] | None, place: tuple[int | str, ...]) -> list[str]:
    """Keys, as named in the file, of the table at a path."""
    for part in place:
        if kind is not None and isinstance(part, str):
            fields = {field.alias or name: field for name, field in kind.model_fields.items()}
            kinds = [fields[part].annotation, *get_args(fields[part].annotation)]
            kinds += [inner for hint in kinds for inner in get_args(hint)]
            kind = next((hint for hint in kinds if isinstance(hint, type) and issubclass(hint, BaseModel)), None)
    return [] if kind is None else [field.alias or name for name, field in kind.model_fields.items()]
