"""Ready models by name, and models from .toml files."""

import dataclasses
from pathlib import Path
from typing import Any

from bayesattn import tasks
from bayesattn._util.checks import shown, suggestion
from bayesattn._util.errors import BayesattnError
from bayesattn._util.files import user_path
from bayesattn._util.input_files import read_arrays, read_toml, regular_file
from bayesattn._util.plain import PlainDict, PlainMapping
from bayesattn.architecture import Architecture
from bayesattn.compressed import Compressed
from bayesattn.dataset import Dataset
from bayesattn.likelihoods import BY_NAME
from bayesattn.models.attention_model import AttentionModel
from bayesattn.models.model import Model
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.models.stored_model import plain_table
from bayesattn.tasks.files import (
    ArchitectureTable,
    ArraysTable,
    AttentionTable,
    ModelTable,
    TaskTable,
    ValidateTable,
    validated,
)

FOLDER = Path(__file__).parent


def ready_models() -> list[str]:
    """Names of the ready models of `load_model`."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_model(
    name: str | Path,
    *,
    width: int | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    task: PlainMapping | None = None,
) -> Any:
    """Ready model by name, or the model of a .toml file: a `Model`, or with a table [attention] an `AttentionModel`.

    Args:
        name: name such as "hidden_markov" (see `ready_models`), or a path that ends in .toml.
        width: replaces all widths.
        temperature: replaces T.
        seed: replaces the seed of the task's data; not allowed if the data come from a file.
        task: replaces entries of [task], such as {"noise_orthogonal": 2.0}.

    Raises:
        ValueError: an unknown name, a file that is not TOML, a key that is unknown, missing or of the wrong type (with the
            same message as on the command line), arrays that do not fit.
        FileNotFoundError: a .toml or .npz file that does not exist.
    """
    file, content = _read(name, seed, task)
    if width is not None:
        shape = _table(content, "architecture")
        content["architecture"] = {key: value for key, value in shape.items() if key != "widths"} | {"width": width}
    if temperature is not None:
        content["temperature"] = temperature
    return _build(_validated(content), file)


def _validated(content: PlainDict) -> ModelTable:
    """Validated content of a model file; NumPy numbers, which arguments may contain, become plain numbers."""
    return validated(ModelTable, plain_table(content))


def load_validate_table(name: str | Path) -> ValidateTable:
    """Table [validate] of a model file; errors as for `load_model`."""
    return _validated(_read(name, None, None)[1]).validate_by


def _read(name: str | Path, seed: int | None, task: PlainMapping | None) -> tuple[Path, PlainDict]:
    """Model file and its content, with the seed of the data and the entries of [task] replaced."""
    file = user_path("model", name)
    if file.suffix == ".toml":
        content = read_toml("model", file)
    elif str(name) in ready_models():
        file = FOLDER / f"{name}.toml"
        content = read_toml("model", file)
    else:
        raise BayesattnError(
            f"model must be one of {', '.join(ready_models())} or a path to a .toml file, got {shown(str(name))}"
            + suggestion(str(name), ready_models())
        )
    if seed is not None:
        if _of_arrays(content):
            raise BayesattnError(
                f'seed of the data must not be given where [task] name = "arrays": they are in a file, got {seed}'
            )
        content["task"] = _table(content, "task") | {"seed": seed}
    if task:
        content["task"] = _table(content, "task") | dict(task)
    return file, content


def _of_arrays(content: PlainDict) -> bool:
    return _table(content, "task").get("name") == "arrays"


def _table(content: PlainDict, key: str) -> PlainDict:
    """Table of a model file, empty if the file does not have it."""
    table = content.get(key, {})
    if not isinstance(table, dict):
        raise BayesattnError(f"{key} must be a table, [{key}], got {shown(table)}")
    return table


def _build(table: ModelTable, file: Path) -> NetworkPosterior:
    task = table.task
    if isinstance(task, ArraysTable):
        if table.attention is not None:
            raise BayesattnError(
                'attention needs a task with tokens, got [task] name = "arrays", which holds path inputs'
            )
        return _from_arrays(table, task, file)
    return _of_task(table, tasks.TASKS[task.name](**_arguments(task)), file)


def _of_task(table: ModelTable, maker: tasks.Task, file: Path) -> NetworkPosterior:
    data = maker.dataset()
    widths, variances = _widths_and_variances(table.architecture, len(data.weights))
    outputs = max(1, len(data.output_names))
    if table.architecture.outputs not in (1, outputs):
        raise BayesattnError(
            f"architecture.outputs must be {outputs} of task {table.task.name!r}, or be left out, got"
            f" {table.architecture.outputs}"
        )
    if table.attention is not None:
        return _with_attention(table, table.attention, maker, data, file)
    skips = tuple(table.architecture.skips or ())
    model = Model.from_tokens(data, widths, variances, table.temperature, name=file.stem, skips=skips)
    task = {"name": table.task.name} | dataclasses.asdict(maker)
    return model.replace(task=task, likelihood=BY_NAME[table.observation](table.temperature))


def _with_attention(
    table: ModelTable, settings: AttentionTable, maker: tasks.Task, data: tasks.TokenDataset, file: Path
) -> AttentionModel:
    """Model that samples queries and keys; from the task it takes tokens, labels and the number of heads."""
    heads = table.architecture.heads or [len(layer) for layer in data.head_names]
    widths, variances = _widths_and_variances(table.architecture, len(heads))
    outputs, skips = max(1, len(data.output_names)), tuple(table.architecture.skips or ())
    return AttentionModel(
        inputs=data.inputs,
        labels=data.labels,
        mask=data.mask,
        test_inputs=data.test_inputs,
        test_mask=data.test_mask,
        test_labels=data.test_labels,
        readout=data.readout,
        causal=data.causal,
        output_names=data.output_names if len(data.output_names) else None,
        architecture=Architecture(tuple(heads), tuple(widths), tuple(variances), skips, outputs),
        likelihood=BY_NAME[table.observation](table.temperature),
        name=file.stem,
        task={"name": table.task.name} | {key: each for key, each in vars(maker).items() if key != "attention"},
        **settings.model_dump(),
    )


def heads_of_task(model: AttentionModel) -> list[Any] | None:
    """Fixed heads of a model's task, in the form that `AttentionModel.given` takes; None if the task has none that fit."""
    settings = dict(model.task)
    if settings.pop("name", None) not in tasks.TASKS:
        return None
    maker = tasks.TASKS[model.task["name"]](**{name: _with_tuples(value) for name, value in settings.items()})
    weights = list(maker.dataset().weights)
    counts = tuple(len(layer[0] if isinstance(layer, tuple) else layer) for layer in weights)
    return weights if counts == model.architecture.heads else None


def _arguments(table: TaskTable) -> PlainDict:
    """Arguments of a task in its table, with tuples for lists."""
    return {name: _with_tuples(value) for name, value in table.model_dump(exclude={"name"}, exclude_none=True).items()}


def _with_tuples(value: object) -> object:
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def _widths_and_variances(table: ArchitectureTable, depth: int) -> tuple[list[int], list[float]]:
    widths = table.widths if table.widths is not None else [table.width or 1] * (depth + 1)
    return widths, table.variances if table.variances is not None else [1.0] * (depth + 2)


def _from_arrays(table: ModelTable, task: ArraysTable, file: Path) -> Model:
    if table.architecture.heads is None:
        raise BayesattnError(
            'architecture.heads must be given with task name = "arrays", such as heads = [2, 2], got none'
        )
    widths, variances = _widths_and_variances(table.architecture, len(table.architecture.heads))
    arrays = (
        {}
        if task.file is None
        else _arrays(file.parent / user_path("task.file", task.file), whole=task.statistics is None)
    )
    if task.statistics is not None:
        stored = file.parent / user_path("task.statistics", task.statistics)
        stored = regular_file("task.statistics", stored, "a file that bayesattn.Dataset wrote")
        arrays["compressed"] = Compressed.open(stored)
    skips, outputs = tuple(table.architecture.skips or ()), table.architecture.outputs
    arch = Architecture(tuple(table.architecture.heads), tuple(widths), tuple(variances), skips, outputs)
    return Model(
        architecture=arch,
        likelihood=BY_NAME[table.observation](table.temperature),
        head_names=task.head_names,
        output_names=task.output_names,
        name=file.stem,
        task=task.model_dump(),
        **arrays,
    )


def _arrays(path: Path, whole: bool) -> PlainDict:
    """Arrays of an .npz: all data of a model if `whole`, else without the training data, which are then refused."""
    path = regular_file("task.file", path, "an .npz of path inputs and labels")
    training = ("path_inputs", "labels")
    known = [f.name for f in dataclasses.fields(Dataset) if f.name.endswith(("inputs", "labels"))]
    known = [name for name in known if whole or name not in training]
    if path.suffix != ".npz":
        raise BayesattnError(f"task.file must be an .npz of path inputs and labels, got {path}")
    arrays = read_arrays("task.file", path)
    for key in arrays.keys() - set(known):
        beside = "" if whole or key not in training else " beside task.statistics"
        raise BayesattnError(
            f"task.file may hold {', '.join(known)}{beside}, got {shown(key)} in {path}{suggestion(key, known)}"
        )
    for key in set(training) - arrays.keys() if whole else ():
        raise BayesattnError(f"task.file must hold {key}, got only {sorted(arrays)} in {path}")
    return arrays
