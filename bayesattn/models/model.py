"""Posterior of a network: data, architecture and likelihood, independent of the parameterisation."""

import copy
import dataclasses
import threading
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, TypeGuard

import numpy as np
from jax.core import eval_context

from bayesattn import fixed_attention
from bayesattn._util.checks import Checked, labels_array, one_of, require_kind
from bayesattn._util.errors import BayesattnError
from bayesattn._util.plain import PlainDict, PlainMapping
from bayesattn._util.random import rounded
from bayesattn._util.settings import with_own_settings
from bayesattn.architecture import Architecture
from bayesattn.dataset import Dataset
from bayesattn.kernels.choice import by_products, cheapest_form, gaussian_process
from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.kernels.path_inputs import input_scale, refuse_contradictions, require_paths
from bayesattn.labels import warn_of_labels
from bayesattn.likelihoods import Likelihood, at_temperature, likelihood_from, require_gaussian
from bayesattn.models.network_posterior import NetworkPosterior
from bayesattn.models.tokens import TokenDataset, Tokens

KERNEL_ATTRIBUTES = ("_kernels_of_inputs", "_origin")
"""Attributes that lead to the kernels. Pickles and copies omit them: kernels can be 1000 times larger than the data."""
MAKING_KERNELS = threading.RLock()
"""Threads that ask for the kernels of one model wait for the first; since Python 3.12 cached properties have no lock."""
DATASET_FIELDS = tuple(each.name for each in dataclasses.fields(Dataset))
"""Fields of the dataset that a model accepts by name."""


def _dataset_property(name: str, description: str) -> Any:
    """Read-only property that returns a field of the model's dataset."""
    return property(lambda model: getattr(model.dataset, name), doc=description)


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Model(NetworkPosterior):
    """Posterior p(weights | labels) of a network with fixed attention (THEORY section 1).

    With the Gaussian likelihood, the density is proportional to the prior times exp(-loss / T), where the loss is half
    the sum of squared errors.

    Args:
        dataset: training, test and validation examples (`bayesattn.Dataset`); or its fields by name, such as
            path_inputs, labels and test_path_inputs.
        architecture: heads, widths, prior variances.
        temperature: T, shorthand for `likelihood=bayesattn.Gaussian(T)`; omit it if `likelihood` is given.
        likelihood: distribution of the labels given the outputs: `bayesattn.Gaussian(T)`, `bayesattn.Categorical(T)`,
            or another `bayesattn.Likelihood`. Samplers accept all of them; the theory requires the Gaussian one.
        head_names: names of the heads of each layer; path names are composed of them.
        path_groups: groups of path indices by name; the GP limit of each group alone is computed for comparison.
        tokens: training tokens, needed only by the token parameterisation; set by `Model.from_tokens`.
        name: name shown in tables.
        task: content of the [task] table of a model file; stored, but it does not change the posterior.

    Raises:
        ValueError: shapes that do not fit, entries that are not finite real numbers, a temperature that is not above 0,
            names that cannot be printed; with the Gaussian likelihood, two equal inputs that have different labels, if T
            is below the rounding error of their kernel in float64.

    Arrays are copied, so changing the originals later has no effect. The arrays of a model are read-only.

    With the Gaussian likelihood, a warning is issued if the labels of one output take just two values that do not have
    opposite signs (such as 0 and 1), if they look like class numbers (0, 1, 2, ..), and if the size of training labels is
    far from what the prior expects.
    """

    weight_space: ClassVar[str] = "path"
    labelled: ClassVar[tuple[str, ...]] = ("labels", "test_labels", "validation_labels")
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
            one_of("field of a model", key, [*MODEL_FIELDS, *DATASET_FIELDS])
        if dataset is None:
            dataset = Dataset(**data)
        elif data:
            raise BayesattnError(f"{next(iter(data))} must not be given together with dataset: use dataset.replace")
        require_kind("dataset", dataset, Dataset)
        put = partial(object.__setattr__, self)
        put("dataset", dataset)
        put("architecture", architecture)
        put("likelihood", likelihood_from(likelihood, temperature))
        put("head_names", head_names)
        put("path_groups", path_groups or {})
        put("tokens", tokens)
        put("name", name)
        put("task", copy.deepcopy(dict(task or {})))
        self._check({*MODEL_FIELDS, *DATASET_FIELDS})

    def _check(self, changed: Set[str]) -> None:
        """Validate the changed fields, replace some by their normal form, and warn of doubtful labels."""
        put, arch, data = partial(object.__setattr__, self), self.architecture, self.dataset
        architecture_changed = "architecture" in changed
        for part in ("", "test_", "validation_"):
            inputs = getattr(data, f"{part}path_inputs")
            labels = getattr(data, f"{part}labels")
            if inputs is not None and (architecture_changed or f"{part}path_inputs" in changed):
                require_paths(f"{part}path_inputs", inputs, arch)
            if labels is not None and (architecture_changed or {f"{part}path_inputs", f"{part}labels"} & changed):
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

    path_inputs = _dataset_property("path_inputs", "xi of the training examples, shape (P, Pi, N_0).")
    labels = _dataset_property("labels", "Y of the training examples, shape (P,) or (P, m).")
    test_path_inputs = _dataset_property("test_path_inputs", "xi of the test examples, or None.")
    test_labels = _dataset_property("test_labels", "Labels of the test examples, or None.")
    validation_path_inputs = _dataset_property("validation_path_inputs", "xi of the validation examples, or None.")
    validation_labels = _dataset_property("validation_labels", "Labels of the validation examples, or None.")
    output_names = _dataset_property("output_names", "Names of the outputs, or None.")
    compressed = _dataset_property("compressed", "Training examples in compressed form; None if they are plain.")

    def _check_labels(self) -> None:
        """Raise ValueError if the likelihood refuses the labels, or a compressed dataset (only the Gaussian accepts it)."""
        if self.compressed is not None and not self.likelihood.conjugate:
            raise BayesattnError(
                "likelihood must be bayesattn.Gaussian for a compressed dataset, which holds no single examples, got"
                f" {self.likelihood!r}"
            )
        self.check_labels()

    @property
    def identifying_arrays(self) -> list[np.ndarray]:
        """Labels and path inputs; rounded for compressed data, whose last digits differ between processors."""
        arrays = super().identifying_arrays
        return arrays if self.compressed is None else list(map(rounded, arrays))

    @property
    def examples(self) -> int:
        """P, the number of training examples."""
        return self.dataset.examples

    @property
    def features(self) -> int:
        """N_0, the number of features of a path input."""
        return self.path_inputs.shape[2]

    @property
    def test_examples(self) -> int:
        """Number of test examples."""
        return 0 if self.test_path_inputs is None else len(self.test_path_inputs)

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
        """Posterior of a network that reads a task's dataset.

        All parameterisations can sample it, except the token parameterisation if the readout is "all"; labels then have
        one row per token that is not padding. Path groups are those of the dataset, without the paths that skips add. The
        dataset's arrays are copied.

        Args:
            data: tokens, labels and attention of a task.
            widths: hidden widths, as for `bayesattn.Architecture`.
            variances: prior variances, as for `bayesattn.Architecture`.
            temperature: T of the Gaussian likelihood.
            name: name shown in tables.
            skips: strengths of the skip connections, as for `bayesattn.Architecture`.

        Raises:
            ValueError: head names that do not fit the attention heads; as for `bayesattn.Architecture` and `Model`.
        """
        shape = (tuple(map(len, data.head_names)), widths, variances, skips)
        arch = Architecture(*shape, outputs=max(1, len(data.output_names)))
        heads = tuple(len(layer[0] if isinstance(layer, tuple) else layer) for layer in data.weights)
        if heads != arch.heads:
            raise BayesattnError(f"head_names must name {heads} heads per layer, got {arch.heads}")
        path_inputs_of = partial(
            fixed_attention.path_inputs,
            weights=data.weights,
            readout=data.readout,
            nonlinearity=data.nonlinearity,
            causal=data.causal,
            skips=[skip > 0 for skip in arch.skips],
        )
        tokens = None if data.readout == fixed_attention.EVERY_POSITION else Tokens.of(data)
        plain = Architecture(arch.heads, arch.widths, arch.variances)
        places = [
            arch.path_heads().index(tuple(head + (skip > 0) for head, skip in zip(heads, arch.skips, strict=True)))
            for heads in plain.path_heads()
        ]
        return cls(
            path_inputs=path_inputs_of(data.inputs, mask=data.mask),
            labels=data.labels,
            architecture=arch,
            temperature=temperature,
            test_path_inputs=path_inputs_of(data.test_inputs, mask=data.test_mask),
            test_labels=data.test_labels,
            validation_path_inputs=None
            if data.validation_inputs is None
            else path_inputs_of(data.validation_inputs, mask=data.validation_mask),
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
        """Resolved model in the form of a model file; without [task] if the data were given as arrays."""
        table = super().table()
        if self.compressed is not None:
            residual = self.compressed.residual
            # Nine digits, because the last ones may differ between processors.
            table["statistics"] = {"examples": self.examples, "unexplained": float(f"{residual.square:.9g}")}
        return table

    def require_gaussian(self) -> None:
        """Raise ValueError if the likelihood is not Gaussian, because there is then no theory in closed form."""
        require_gaussian(self.likelihood)

    @property
    @with_own_settings
    def kernels(self) -> GaussianProcess:
        """Gaussian process of the training set; likelihoods that are not Gaussian do not use its density of labels.

        `replace` reuses the kernel, unless the path inputs, the paths, the outputs, s_0 or the form of the kernel change.
        """
        with MAKING_KERNELS:
            kernels = self._kernels_of_inputs.with_labels(self.labels)
        return kernels if self.temperature is None else kernels.at(self.temperature)

    @cached_property
    def _kernels_of_inputs(self) -> GaussianProcess:
        """Gaussian process at T = 1, computed once for all models that share it; `kernels` sets labels and temperature."""
        if (origin := vars(self).get("_origin")) is not None:
            return origin._kernels_of_inputs
        residual = None if self.compressed is None else self.compressed.residual
        # Outside any JAX trace, because a tracer in the cache would leak. Under JAX's `ensure_compile_time_eval`, what is
        # traced inside would compile small programs of its own.
        with eval_context():
            return gaussian_process(self.path_inputs, self.labels, self.architecture, 1.0, residual=residual)

    @property
    def _form(self) -> tuple[str, bool]:
        """Form of the Gaussian process and whether it stores products of features; if changed, kernels are not reused."""
        examples, _, features = self.path_inputs.shape
        sizes = (examples, features, self.architecture)
        return cheapest_form(*sizes), by_products(*sizes)

    def __getstate__(self) -> PlainDict:
        """State for pickles and copies, without the kernels, which may be a thousand times larger."""
        return {name: value for name, value in vars(self).items() if name not in KERNEL_ATTRIBUTES}

    def _described(self) -> tuple[str, dict[str, str]]:
        arch, (_, paths, features) = self.architecture, self.path_inputs.shape
        rows = {
            "examples": f"{self.examples} of {features} features"
            + "".join(f", {other}" for other in self.dataset.others),
            "paths": f"{paths}, of {arch.layers_text}: {', '.join(self.path_names)}",
            **self._described_network(),
        }
        return f"Model {self.name!r}", rows

    @property
    def has_theory(self) -> bool:
        """Whether the finite-width theory applies, which requires the Gaussian likelihood."""
        return self.likelihood.conjugate

    @property
    def shown_names(self) -> PlainDict:
        """Names of the paths, and groups of paths by name."""
        return super().shown_names | {"groups": dict(self.path_groups)}

    def replace(self, **changes: Any) -> "Model":
        """Copy with some fields changed; `width=N` sets every width. Raises ValueError as `Model` does."""
        if "width" in changes:
            arch = changes.get("architecture", self.architecture)
            changes["architecture"] = arch.with_width(changes.pop("width"))
        for name in changes:
            one_of("field of a model", name, sorted({*MODEL_FIELDS, *DATASET_FIELDS, "temperature", "width"}))
        names = {*changes}
        put = partial(object.__setattr__, changed := copy.copy(self))
        if {"likelihood", "temperature"} & names:
            likelihood, temperature = changes.pop("likelihood", None), changes.pop("temperature", None)
            if likelihood is None:
                likelihood = at_temperature(self.likelihood, temperature)
            put("likelihood", likelihood_from(likelihood, temperature))
            names |= {"likelihood"}
        require_kind("architecture", changes.get("architecture", self.architecture), Architecture)
        require_kind("dataset", changes.get("dataset", self.dataset), Dataset)
        if parts := {name: changes.pop(name) for name in DATASET_FIELDS if name in changes}:
            changes["dataset"] = changes.get("dataset", self.dataset).replace(**parts)
        if "task" in changes:
            changes["task"] = copy.deepcopy(dict(changes["task"] or {}))
        for name, value in changes.items():
            put(name, value)
        arch, own = changed.architecture, self.architecture
        same_paths = (arch.heads, arch.ways, arch.outputs) == (own.heads, own.ways, own.outputs)
        same_inputs = changed.path_inputs is self.path_inputs and "dataset" not in names
        changed._check(names if same_paths and same_inputs else {*MODEL_FIELDS, *DATASET_FIELDS})
        if (
            not same_inputs
            or changed.compressed is not self.compressed
            or arch.variances[0] != own.variances[0]
            or not same_paths
            or changed._form != self._form
        ):
            return changed
        put("_origin", vars(self).get("_origin", self))
        return changed


def has_fixed_attention(posterior: object) -> TypeGuard[Model]:
    """Whether a posterior is that of a network with fixed attention."""
    return isinstance(posterior, Model)


MODEL_FIELDS = tuple(each.name for each in dataclasses.fields(Model))
