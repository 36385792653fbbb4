"""A posterior: data, architecture and temperature, whatever the parameterisation it is sampled in."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from bayesattn import attention
from bayesattn._util.checks import (
    Checked,
    labels_array,
    one_of,
    positive,
    require_kind,
    shown,
)
from bayesattn._util.errors import BayesattnError
from bayesattn._util.plain import PlainDict, PlainMapping
from bayesattn._util.settings import with_own_settings
from bayesattn.architecture import Architecture
from bayesattn.dataset import Dataset
from bayesattn.kernels.choice import by_products, cheapest_form, gaussian_process
from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.kernels.path_inputs import input_scale, refuse_contradictions, require_paths
from bayesattn.labels import warn_of_labels
from bayesattn.likelihoods import Gaussian, Likelihood, name_of
from bayesattn.posterior import Posterior
from bayesattn.tasks import TokenDataset
from bayesattn.tokens import Tokens

KERNELS = "_kernels_of_inputs"
"""Attribute of a model that may be a thousand times larger than its data: pickles and copies go without."""
DATA = tuple(each.name for each in dataclasses.fields(Dataset))
"""Fields of its dataset that a model takes by their names."""


def _of_dataset(name: str, said: str) -> Any:
    """Property that a model takes from its dataset."""
    return property(lambda model: getattr(model.dataset, name), doc=said)


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Model(Posterior):
    """The posterior p(weights | labels) of a network with fixed attention: Gibbs at temperature T (THEORY section 1).

    Args:
        dataset: training examples, and those to test and validate on; or its fields by their names, such as path_inputs,
            labels and test_path_inputs (`bayesattn.Dataset`).
        architecture: heads, widths, prior variances.
        temperature: T of the Gaussian likelihood, `likelihood=bayesattn.Gaussian(T)`, where no other is given.
        likelihood: distribution of the labels given the outputs: `bayesattn.Gaussian(T)`, `bayesattn.Categorical(T)`, or one
            of your own (`bayesattn.Likelihood`). Samplers draw from all; the theory is for the first.
        head_names: names of the heads of each layer, from which paths get their names.
        path_groups: groups of paths, by index, whose own GP limit is drawn for comparison.
        tokens: needed by the token parameterisation only; `Model.from_tokens` fills it in.
        name: shown in tables.
        task: how the data were made, as a [task] of a model file; for the record only.

    Raises:
        ValueError: shapes that do not fit, entries that are not finite real numbers, a temperature that is not above 0,
            names that cannot be printed, duplicated examples with different labels at a temperature that float64 cannot
            tell from 0.

    Arrays are copied: the model stays what it is when they, or the table or file that they belong to, change. Arrays that a
    model hands out cannot be written to.

    Labels of 0 and 1, of classes by number (0, 1, 2, ..), or of a size far from what the prior expects, get a warning.
    """

    parameterisations: ClassVar[tuple[str, ...]] = ("token", "path", "collapsed")
    posterior_names: ClassVar[tuple[str, ...]] = ("labels", "path_inputs")
    data_names: ClassVar[tuple[str, ...]] = (*posterior_names, "test_path_inputs")

    dataset: Dataset
    architecture: Architecture
    likelihood: Likelihood
    head_names: Sequence[Sequence[str]] | None
    path_groups: Mapping[str, Sequence[int]]
    tokens: Tokens | None
    name: str
    task: PlainMapping

    def __init__(
        self,
        *,
        architecture: Architecture,
        dataset: Dataset | None = None,
        temperature: Checked = None,
        likelihood: Likelihood | None = None,
        head_names: Checked = None,
        path_groups: Checked = None,
        tokens: Tokens | None = None,
        name: str = "model",
        task: PlainMapping | None = None,
        **data: Any,
    ):
        require_kind("architecture", architecture, Architecture)
        for key in data:
            one_of("field of a model", key, [*FIELDS, *DATA])
        if dataset is None:
            dataset = Dataset(**data)
        elif data:
            raise BayesattnError(f"{next(iter(data))} must not be given together with dataset: use dataset.replace")
        require_kind("dataset", dataset, Dataset)
        put = partial(object.__setattr__, self)
        put("dataset", dataset)
        put("architecture", architecture)
        put("likelihood", _likelihood(likelihood, temperature))
        put("head_names", head_names)
        put("path_groups", path_groups or {})
        put("tokens", tokens)
        put("name", name)
        put("task", copy.deepcopy(dict(task or {})))
        self._check({*FIELDS, *DATA})

    def _check(self, changed: Set[str]) -> None:
        """Check that fields fit each other, as far as some of them are new."""
        put, arch, data = partial(object.__setattr__, self), self.architecture, self.dataset
        new = "architecture" in changed
        for part in ("", "test_", "validation_"):
            inputs: Any = getattr(data, f"{part}path_inputs")
            labels = getattr(data, f"{part}labels")
            if inputs is not None and (new or f"{part}path_inputs" in changed):
                require_paths(f"{part}path_inputs", inputs, arch)
            if labels is not None and (new or {f"{part}path_inputs", f"{part}labels"} & changed):
                labels_array(f"{part}labels", labels, len(labels), arch.outputs)
        if self.tokens is not None and changed & {"tokens", "path_inputs", "compressed"}:
            if data.compressed is not None:
                raise BayesattnError(
                    "tokens must not be given for a compressed dataset, which holds no single examples"
                )
            examples, _, features = data.path_inputs.shape
            put("tokens", self.tokens.checked(examples, features, arch.heads))
        if {"architecture", "head_names", "output_names"} & changed:
            if self.head_names is not None:
                put("head_names", arch.checked_head_names(self.head_names))
            arch.row_names(self.head_names, data.output_names)
        if {"architecture", "path_groups"} & changed:
            put("path_groups", arch.checked_path_groups(self.path_groups))
        if {"labels", "test_labels", "validation_labels", "likelihood", "compressed"} & changed:
            self._check_labels()
        if self.likelihood.conjugate and {"path_inputs", "labels", "architecture", "likelihood"} & changed:
            scale = input_scale(arch.input_variance * max(arch.path_variances), *data.path_inputs.shape[1:]) ** 2
            if data.compressed is None:
                refuse_contradictions(data.path_inputs, data.labels, scale, self.temperature)
        for name in ("labels", "test_labels"):
            if name in changed and getattr(data, name) is not None:
                warn_of_labels(name, getattr(data, name), self)

    @property
    def temperature(self) -> Any:
        """T of the likelihood; None of one that has none."""
        return getattr(self.likelihood, "temperature", None)

    path_inputs = _of_dataset("path_inputs", "xi of the training examples, shape (P, Pi, N_0).")
    labels = _of_dataset("labels", "Y of the training examples, shape (P,) or (P, m).")
    test_path_inputs = _of_dataset("test_path_inputs", "xi of the test examples, or None.")
    test_labels = _of_dataset("test_labels", "Labels of the test examples, or None.")
    validation_path_inputs = _of_dataset("validation_path_inputs", "xi of the validation examples, or None.")
    validation_labels = _of_dataset("validation_labels", "Labels of the validation examples, or None.")
    output_names = _of_dataset("output_names", "Names of the outputs, or None.")
    compressed = _of_dataset("compressed", "Training examples in compressed form, or None of plain ones.")

    def _check_labels(self) -> None:
        """Raise ValueError where labels do not suit the likelihood."""
        if self.compressed is not None and not self.likelihood.conjugate:
            raise BayesattnError(
                "likelihood must be bayesattn.Gaussian for a compressed dataset, which holds no single examples, got"
                f" {self.likelihood!r}"
            )
        for name in ("labels", "test_labels", "validation_labels"):
            if getattr(self, name) is not None:
                self.likelihood.check_labels(name, getattr(self, name))

    @property
    def examples(self) -> int:
        """P, the number of training examples."""
        return self.dataset.examples

    @classmethod
    def from_tokens(
        cls,
        data: TokenDataset,
        widths: Checked,
        variances: Checked,
        temperature: Checked,
        name: str = "model",
        skips: Checked = (),
    ) -> "Model":
        """The posterior of a network that reads a task's dataset; all parameterisations can sample it.

        With readout "all" labels have a row for each token that is no padding, and there is no token parameterisation.
        Groups of paths are those of the dataset, without the paths that skips add. The dataset's arrays are copied.
        """
        shape = (tuple(map(len, data.head_names)), widths, variances, skips)
        arch = Architecture(*shape, outputs=max(1, len(data.output_names)))
        heads = tuple(len(layer[0] if isinstance(layer, tuple) else layer) for layer in data.weights)
        if heads != arch.heads:
            raise BayesattnError(f"head_names must name {heads} heads per layer, got {arch.heads}")
        asked = partial(
            attention.path_inputs,
            weights=data.weights,
            readout=data.readout,
            nonlinearity=data.nonlinearity,
            causal=data.causal,
            skips=[skip > 0 for skip in arch.skips],
        )
        tokens = None if data.readout == attention.EACH else Tokens.of(data)
        plain = Architecture(arch.heads, arch.widths, arch.variances)
        places = [
            arch.path_heads().index(tuple(head + (skip > 0) for head, skip in zip(heads, arch.skips, strict=True)))
            for heads in plain.path_heads()
        ]
        return cls(
            path_inputs=asked(data.inputs, mask=data.mask),
            labels=data.labels,
            architecture=arch,
            temperature=temperature,
            test_path_inputs=asked(data.test_inputs, mask=data.test_mask),
            test_labels=data.test_labels,
            validation_path_inputs=None
            if data.validation_inputs is None
            else asked(data.validation_inputs, mask=data.validation_mask),
            validation_labels=data.validation_labels,
            head_names=data.head_names,
            output_names=data.output_names if len(data.output_names) else None,
            path_groups={
                name: tuple(places[path] for path in paths)
                for name, paths in plain.checked_path_groups(data.path_groups).items()
            },
            tokens=tokens,
            name=name,
        )

    def table(self) -> PlainDict:
        """The resolved model in the form of a model file; without [task] where the data came as arrays."""
        arch = self.architecture
        shape = {"heads": list(arch.heads), "widths": list(arch.widths), "variances": list(arch.variances)}
        shape |= {name: list(value) if name == "skips" else value for name, value in arch.extensions.items()}
        table: PlainDict = {"temperature": self.temperature, "architecture": shape}
        table |= {} if self.likelihood.conjugate else {"observation": name_of(self.likelihood)}
        if self.compressed is not None:
            residual = self.compressed.residual
            # To nine digits: other processors may gather another last one.
            table["statistics"] = {"examples": self.examples, "unexplained": float(f"{residual.square:.9g}")}
        return table | ({"task": self.task} if self.task else {})

    def require_gaussian(self) -> None:
        """Raise ValueError where the likelihood is not Gaussian: there is no theory in closed form then."""
        if not self.likelihood.conjugate:
            raise BayesattnError(
                "likelihood must be bayesattn.Gaussian for the theory, the evidence and what is compared with them, got a"
                f" model with {self.likelihood!r}: draw from it (sample, predict), or use"
                " replace(likelihood=bayesattn.Gaussian(T))"
            )

    @property
    @with_own_settings
    def kernels(self) -> GaussianProcess:
        """What K(U) is made of, and the labels, whatever their likelihood.

        A model that `replace` makes of this one takes them over, as long as path inputs and s_0 are the same.
        """
        kernels = self._kernels_of_inputs.with_labels(jnp.asarray(self.labels))
        return kernels if self.temperature is None else kernels.at(self.temperature)

    @cached_property
    def _kernels_of_inputs(self) -> GaussianProcess:
        residual = None if self.compressed is None else self.compressed.residual
        # They outlive whatever is being traced when they are first asked for.
        with jax.ensure_compile_time_eval():
            return gaussian_process(self.path_inputs, self.labels, self.architecture, 1.0, residual=residual)

    @property
    def _form(self) -> tuple[str, bool]:
        """Of the likelihood, and whether it holds products of features."""
        examples, _, features = self.path_inputs.shape
        sizes = (examples, features, self.architecture)
        return cheapest_form(*sizes), by_products(*sizes)

    def __getstate__(self) -> PlainDict:
        """The state without kernels, which may be a thousand times larger, for pickles and copies."""
        return {name: value for name, value in vars(self).items() if name != KERNELS}

    def _described(self) -> tuple[str, dict[str, str]]:
        arch, (_, paths, features) = self.architecture, self.path_inputs.shape
        rows = {
            "examples": f"{self.examples} of {features} features"
            + "".join(f", {other}" for other in self.dataset.others),
            "paths": f"{paths}, of {_counted(arch)}: {', '.join(self.path_names)}",
            "widths": f"N = {', '.join(map(str, arch.widths))}; prior variances {_listed(arch.variances)}",
            **({} if self.temperature is None else {"temperature": f"T = {self.temperature:g}"}),
            **({} if self.likelihood.conjugate else {"labels": self.likelihood.description}),
        }
        return f"Model {self.name!r}", rows

    @property
    def has_theory(self) -> bool:
        """Whether there is a finite-width theory of it, which is for the Gaussian likelihood."""
        return self.likelihood.conjugate

    @property
    def size(self) -> str:
        """N_1, which stands for all widths."""
        return f"N = {self.architecture.widths[0]}"

    @property
    def shown_names(self) -> PlainDict:
        """Names of the paths, and groups of paths by their names."""
        return {"path": self.path_names, "groups": dict(self.path_groups)}

    @property
    def row_names(self) -> list[str]:
        """Names of the order parameter's rows: those of the paths, with the output where there are several."""
        return self.architecture.row_names(self.head_names, self.output_names)

    @property
    def path_names(self) -> list[str]:
        """Names of the paths."""
        return self.architecture.path_names(self.head_names)

    def replace(self, **changes: Any) -> "Model":
        """The same model with some fields changed; `width=N` sets every width. Raises ValueError as the model does."""
        if "width" in changes:
            arch = changes.get("architecture", self.architecture)
            changes["architecture"] = arch.with_width(changes.pop("width"))
        for name in changes:
            one_of("field of a model", name, sorted({*FIELDS, *DATA, "temperature", "width"}))
        names = {*changes}
        put = partial(object.__setattr__, changed := copy.copy(self))
        if {"likelihood", "temperature"} & names:
            known, temperature = changes.pop("likelihood", None), changes.pop("temperature", None)
            if known is None:
                known = dataclasses.replace(self.likelihood, temperature=positive("temperature", temperature))
            put("likelihood", _likelihood(known, temperature))
            names |= {"likelihood"}
        require_kind("architecture", changes.get("architecture", self.architecture), Architecture)
        require_kind("dataset", changes.get("dataset", self.dataset), Dataset)
        if parts := {name: changes.pop(name) for name in DATA if name in changes}:
            changes["dataset"] = changes.get("dataset", self.dataset).replace(**parts)
        if "task" in changes:
            changes["task"] = copy.deepcopy(dict(changes["task"] or {}))
        for name, value in changes.items():
            put(name, value)
        arch, own = changed.architecture, self.architecture
        same_paths = (arch.heads, arch.ways, arch.outputs) == (own.heads, own.ways, own.outputs)
        same_inputs = changed.path_inputs is self.path_inputs and "dataset" not in names
        changed._check(names if same_paths and same_inputs else {*FIELDS, *DATA})
        if (
            not same_inputs
            or changed.compressed is not self.compressed
            or arch.variances[0] != own.variances[0]
            or not same_paths
            or changed._form != self._form
        ):
            return changed
        if KERNELS in vars(self):
            put(KERNELS, self._kernels_of_inputs)
        return changed


FIELDS = tuple(each.name for each in dataclasses.fields(Model))


def _likelihood(likelihood: Checked, temperature: Checked) -> Likelihood:
    """The likelihood that is given, or the Gaussian one at a temperature."""
    if likelihood is None:
        return Gaussian(positive("temperature", temperature))
    if not isinstance(likelihood, Likelihood):
        raise BayesattnError(
            f"likelihood must be a bayesattn.Likelihood, such as bayesattn.Categorical(T), got {shown(likelihood)}"
        )
    own = getattr(likelihood, "temperature", None)
    if temperature is not None and temperature != own:
        raise BayesattnError(
            f"temperature must be that of the likelihood, {shown(own)}, or left out, got {shown(temperature)}"
        )
    return likelihood


def _counted(arch: Architecture) -> str:
    """Heads and skips of each layer, in words."""
    ways = [f"{heads} + skip" if skip else str(heads) for heads, skip in zip(arch.heads, arch.skips, strict=True)]
    outputs = f", {arch.outputs} outputs" if arch.output_axes else ""
    return f"{' x '.join(f'({way})' if '+' in way and len(ways) > 1 else way for way in ways)} heads{outputs}"


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)
