"""Ready models by name, and models from .toml files."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bayesattn import tasks
from bayesattn._util.checks import number, shown, suggestion
from bayesattn._util.files import user_path
from bayesattn._util.input_files import read_toml, regular_file
from bayesattn._util.plain_values import PlainDict, PlainMapping
from bayesattn.architecture import Architecture
from bayesattn.compressed import Compressed
from bayesattn.errors import BayesattnError
from bayesattn.likelihoods import BY_NAME, Categorical, Gaussian
from bayesattn.models import hyperpriors
from bayesattn.models.attention_model import AttentionModel
from bayesattn.models.model import Model
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.models.stored_model import plain_table
from bayesattn.tasks.arrays import data_of
from bayesattn.tasks.tables import ArraysTable, ModelTable, ValidateTable, unknown_key, validated

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
        temperature: replaces T, or its prior.
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
        content["priors"] = {name: prior for name, prior in _table(content, "priors").items() if name != "temperature"}
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
        if _table(content, "task").get("name") == "arrays":
            raise BayesattnError(
                f'seed of the data must not be given where [task] name = "arrays": they are in a file, got {seed}'
            )
        content["task"] = _table(content, "task") | {"seed": seed}
    if task:
        content["task"] = _table(content, "task") | dict(task)
    return file, content


def _table(content: PlainDict, key: str) -> PlainDict:
    """Table of a model file, empty if the file does not have it."""
    table = content.get(key, {})
    if not isinstance(table, dict):
        raise BayesattnError(f"{key} must be a table, [{key}], got {shown(table)}")
    return table


def _build(table: ModelTable, file: Path) -> NetworkPosterior:
    if table.task.get("name") != "arrays":
        return _of_task(table, _task(table.task), file)
    if table.attention is not None:
        raise BayesattnError('attention needs a task with tokens, got [task] name = "arrays", which holds path inputs')
    return _of_arrays(table, validated(ArraysTable, table.task, "task"), file)


def _task(table: PlainDict) -> tasks.Task:
    """Ready task with the settings of a table; raises ValueError for unknown names, and for settings that do not suit."""
    settings, names = dict(table), (*tasks.TASKS, "arrays")
    name = settings.pop("name", None)
    if not isinstance(name, str) or name not in tasks.TASKS:
        got = "none" if name is None else shown(name)
        raise BayesattnError(
            f"task.name must be one of {', '.join(map(repr, names))}, got {got}{suggestion(name, names)}"
        )
    defaults = {field.name: field.default for field in dataclasses.fields(tasks.TASKS[name])}
    for key, value in settings.items():
        if key not in defaults:
            raise BayesattnError(unknown_key(f"task.{key}", shown(value), ["name", *defaults]))
        settings[key] = number(f"task.{key}", value) if isinstance(defaults[key], float) else _with_tuples(value)
    try:
        return tasks.TASKS[name](**settings)
    except BayesattnError as error:
        raise BayesattnError(f"task.{error}") from None


def _with_tuples(value: object) -> object:
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def _architecture(table: ModelTable, heads: Sequence[int], outputs: int) -> Architecture:
    shape, depth = table.architecture, len(heads)
    widths = shape.widths if shape.widths is not None else [shape.width or 1] * (depth + 1)
    variances = shape.variances if shape.variances is not None else [1.0] * (depth + 2)
    variances = hyperpriors.restored(table.priors.model_dump()).get("variances") or variances
    return Architecture(tuple(heads), tuple(widths), tuple(variances), tuple(shape.skips or ()), outputs)


def _likelihood(table: ModelTable) -> Gaussian | Categorical:
    temperature: Any = hyperpriors.restored(table.priors.model_dump())["temperature"] or table.temperature
    return BY_NAME[table.observation](temperature)


def _of_task(table: ModelTable, maker: tasks.Task, file: Path) -> NetworkPosterior:
    data, task = maker.dataset(), {"name": table.task["name"]} | dataclasses.asdict(maker)
    outputs = max(1, len(data.output_names))
    if table.architecture.outputs not in (1, outputs):
        raise BayesattnError(
            f"architecture.outputs must be {outputs} of task {task['name']!r}, or be left out, got"
            f" {table.architecture.outputs}"
        )
    likelihood = _likelihood(table)
    if table.attention is None:
        layers = [len(layer) for layer in data.head_names]
        if table.architecture.heads not in (None, layers):
            raise BayesattnError(
                f"architecture.heads must be {layers}, those of the layers of task {task['name']!r}, or be left out, got"
                f" {table.architecture.heads}"
            )
        arch = _architecture(table, layers, outputs)
        shape = {"widths": arch.widths, "variances": arch.variances, "skips": arch.skips}
        model = Model.from_tokens(data, temperature=likelihood.temperature, name=file.stem, **shape)
        return model.replace(task=task, likelihood=likelihood)
    heads = table.architecture.heads or [len(layer) for layer in data.head_names]
    of_heads, priors = table.attention.model_dump(), hyperpriors.restored(table.priors.model_dump())
    for each in hyperpriors.QUERIES_AND_KEYS:
        of_heads[each] = next((value for value in (priors[each], of_heads[each]) if value is not None), 1.0)
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
        architecture=_architecture(table, heads, outputs),
        likelihood=likelihood,
        name=file.stem,
        task=task,
        **of_heads,
    )


def heads_of_task(model: AttentionModel) -> list[Any] | None:
    """Fixed heads of a model's task, in the form that `AttentionModel.given` takes; None if the task has none that fit."""
    if model.task.get("name") not in tasks.TASKS:
        return None
    weights = list(_task(dict(model.task)).dataset().weights)
    counts = tuple(len(layer[0] if isinstance(layer, tuple) else layer) for layer in weights)
    return weights if counts == model.architecture.heads else None


def _of_arrays(table: ModelTable, task: ArraysTable, file: Path) -> Model:
    if table.architecture.heads is None:
        raise BayesattnError(
            'architecture.heads must be given with task name = "arrays", such as heads = [2, 2], got none'
        )
    arch = _architecture(table, table.architecture.heads, table.architecture.outputs)
    arrays: PlainDict = {}
    if task.file is not None:
        path = file.parent / user_path("task.file", task.file)
        arrays = data_of(path, task, arch)
    if task.statistics is not None:
        stored = file.parent / user_path("task.statistics", task.statistics)
        stored = regular_file("task.statistics", stored, "a file that bayesattn.Dataset wrote")
        arrays["compressed"] = Compressed.open(stored)
    return Model(
        architecture=arch,
        likelihood=_likelihood(table),
        head_names=task.head_names,
        output_names=task.output_names,
        name=file.stem,
        task=task.model_dump(),
        **arrays,
    )
