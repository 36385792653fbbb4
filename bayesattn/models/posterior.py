"""A posterior: data, architecture and temperature, whatever the parameterisation it is sampled in."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float

from bayesattn import attention
from bayesattn._checks import finite_array, one_of, positive
from bayesattn.architecture import Architecture
from bayesattn.tasks import Dataset
from bayesattn.theory.kernels import checked_path_inputs


class Tokens(NamedTuple):
    """What the token parameterisation needs beyond path inputs: training tokens and their attention."""

    inputs: Float[np.ndarray, "example token feature"]
    matrices: list[Float[np.ndarray, "example head query key"]]
    readout: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Model:
    """The posterior p(weights | labels) of a network with fixed attention: Gibbs at temperature T (THEORY section 1).

    Args:
        path_inputs: xi of shape (P, Pi, N_0), from `bayesattn.attention`.
        labels: Y of shape (P,); +1 or -1 where accuracy is asked for.
        architecture: heads, widths, prior variances.
        temperature: T, variance of the Gaussian likelihood.
        test_path_inputs: xi of shape (P_test, Pi, N_0) at which predictions are wanted.
        test_labels: of shape (P_test,).
        validation_path_inputs: xi of shape (P_validation, Pi, N_0), to choose the temperature by.
        validation_labels: of shape (P_validation,).
        head_names: names of the heads of each layer, from which paths get their names.
        path_groups: groups of paths, by index, whose own GP limit is drawn for comparison.
        tokens: needed by the token parameterisation only; `Model.from_dataset` fills it in.
        name: shown in tables.
        task: how the data were made, as a [task] of a model file; for the record only.

    Raises:
        ValueError: shapes that do not fit, entries that are not finite, a temperature that is not above 0.
    """

    parameterisations: ClassVar[tuple[str, ...]] = ("token", "path", "collapsed")
    posterior_names: ClassVar[tuple[str, ...]] = ("labels", "path_inputs")
    data_names: ClassVar[tuple[str, ...]] = (*posterior_names, "test_path_inputs")
    """Arrays that decide the posterior, and the draws."""

    path_inputs: Any
    labels: Any
    architecture: Architecture
    temperature: float
    test_path_inputs: Any = None
    test_labels: Any = None
    validation_path_inputs: Any = None
    validation_labels: Any = None
    head_names: Sequence[Sequence[str]] | None = None
    path_groups: Mapping[str, Sequence[int]] = field(default_factory=dict)
    tokens: Tokens | None = None
    name: str = "model"
    task: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        arch = self.architecture
        if not isinstance(arch, Architecture):
            raise ValueError(f"architecture must be a bayesattn.Architecture, got {type(arch).__name__}")
        path_inputs = checked_path_inputs("path_inputs", self.path_inputs, arch)
        checked = {
            "path_inputs": path_inputs,
            "labels": finite_array("labels", self.labels, (len(path_inputs),)),
            "temperature": positive("temperature", self.temperature),
        }
        for part in ("test", "validation"):
            inputs_name, labels_name = f"{part}_path_inputs", f"{part}_labels"
            inputs, labels = getattr(self, inputs_name), getattr(self, labels_name)
            if inputs is not None:
                checked[inputs_name] = checked_path_inputs(inputs_name, inputs, arch, features=path_inputs.shape[2])
            if labels is not None:
                if inputs is None:
                    raise ValueError(f"{labels_name} need {inputs_name}, got None for the latter")
                checked[labels_name] = finite_array(labels_name, labels, (len(checked[inputs_name]),))
        if self.tokens is not None:
            inputs = finite_array(
                "tokens.inputs", self.tokens.inputs, (len(path_inputs), "tokens", path_inputs.shape[2])
            )
            matrices = attention.checked_matrices(self.tokens.matrices, *inputs.shape[:2])
            if tuple(matrix.shape[1] for matrix in matrices) != arch.heads:
                got = [matrix.shape[1] for matrix in matrices]
                raise ValueError(f"tokens.matrices must have {arch.heads} heads per layer, got {got}")
            one_of("tokens.readout", self.tokens.readout, attention.READOUTS)
            checked["tokens"] = Tokens(inputs, matrices, self.tokens.readout)
        arch.path_names(self.head_names)
        for name, paths in self.path_groups.items():
            if not set(paths) <= set(range(arch.paths)):
                raise ValueError(f"path_groups[{name!r}] must hold paths below {arch.paths}, got {tuple(paths)}")
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_dataset(
        cls, data: Dataset, widths: Sequence[int], variances: Sequence[float], temperature: float, name: str = "model"
    ) -> "Model":
        """The posterior of a network that reads a task's dataset; all parameterisations can sample it."""
        arch = Architecture(tuple(map(len, data.head_names)), tuple(widths), tuple(variances))
        options = {"readout": data.readout, "nonlinearity": data.nonlinearity}
        return cls(
            path_inputs=attention.path_inputs(data.inputs, data.weights, **options),
            labels=data.labels,
            architecture=arch,
            temperature=temperature,
            test_path_inputs=attention.path_inputs(data.test_inputs, data.weights, **options),
            test_labels=data.test_labels,
            validation_path_inputs=None
            if data.validation_inputs is None
            else attention.path_inputs(data.validation_inputs, data.weights, **options),
            validation_labels=data.validation_labels,
            head_names=data.head_names,
            path_groups=data.path_groups,
            tokens=Tokens(
                data.inputs,
                [np.asarray(m) for m in attention.matrices(data.inputs, data.weights, data.nonlinearity)],
                data.readout,
            ),
            name=name,
        )

    def table(self) -> dict[str, Any]:
        """The resolved model in the form of a model file; without [task] where the data came as arrays."""
        arch = self.architecture
        shape = {"heads": list(arch.heads), "widths": list(arch.widths), "variances": list(arch.variances)}
        table: dict[str, Any] = {"temperature": self.temperature, "architecture": shape}
        return table | ({"task": self.task} if self.task else {})

    def dims(self) -> dict[str, list[str]]:
        """Names of the axes of each variable in ArviZ's groups, without chain and draw."""
        return {
            "order_parameter": ["path", "other_path"],
            "prediction": ["test_example"],
            "labels": ["example"],
            "path_inputs": ["example", "path", "feature"],
            "test_path_inputs": ["test_example", "path", "feature"],
            "test_labels": ["test_example"],
            "bartlett": ["coordinate"],
            "token_inputs": ["example", "token", "feature"],
            **{
                f"token_matrices_{layer + 1}": ["example", f"head_{layer + 1}", "query", "key"]
                for layer in range(self.architecture.depth)
            },
            **self.architecture.weight_dims(),
        }

    def coords(self) -> dict[str, list[str]]:
        """Names along axes: those of the paths."""
        return {"path": self.path_names, "other_path": self.path_names}

    def groups(self, tokens: bool = False) -> dict[str, dict[str, np.ndarray]]:
        """ArviZ's observed_data and constant_data, the latter with the tokens and their attention if asked for."""
        constant = {"temperature": self.temperature, "path_inputs": self.path_inputs}
        for name in ("test_path_inputs", "test_labels"):
            if getattr(self, name) is not None:
                constant[name] = getattr(self, name)
        if tokens and self.tokens is not None:
            constant["token_inputs"] = self.tokens.inputs
            constant |= {f"token_matrices_{layer + 1}": matrix for layer, matrix in enumerate(self.tokens.matrices)}
        return {
            "observed_data": {"labels": np.asarray(self.labels)},
            "constant_data": {name: np.asarray(value) for name, value in constant.items()},
        }

    def about(self, tokens: bool = False) -> dict[str, Any]:
        """What, besides `table` and the arrays of `groups`, makes the model; plain values."""
        return {
            "head_names": self.head_names,
            "path_groups": {name: list(paths) for name, paths in self.path_groups.items()},
            "name": self.name,
            "task": self.task,
            "readout": self.tokens.readout if self.tokens and tokens else None,
        }

    @classmethod
    def restored(cls, table: Mapping[str, Any], about: Mapping[str, Any], arrays: Mapping[str, Any]) -> "Model":
        """The model of which `table`, `about` and the arrays of `groups` were stored."""
        shape, tokens = table["architecture"], None
        if about["readout"]:
            matrices = [arrays[f"token_matrices_{layer + 1}"] for layer in range(len(shape["heads"]))]
            tokens = Tokens(arrays["token_inputs"], matrices, about["readout"])
        wanted = ("path_inputs", "labels", "test_path_inputs", "test_labels")
        return cls(
            **{name: arrays[name] for name in wanted if name in arrays},
            temperature=float(arrays["temperature"]),
            architecture=Architecture(*(tuple(shape[key]) for key in ("heads", "widths", "variances"))),
            tokens=tokens,
            **{key: about[key] for key in ("head_names", "path_groups", "name", "task")},
        )

    @property
    def path_names(self) -> list[str]:
        """Names of the paths, in the order of the order parameter's rows."""
        return self.architecture.path_names(self.head_names)

    def replace(self, **changes: Any) -> "Model":
        """The same model with some fields changed; `width=N` sets every width."""
        if "width" in changes:
            arch = changes.get("architecture", self.architecture)
            changes["architecture"] = arch.with_width(changes.pop("width"))
        return dataclasses.replace(self, **changes)
