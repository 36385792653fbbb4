"""Base class for posteriors of networks, with fixed or sampled attention, and the arguments that both take."""

import abc
import copy
import dataclasses
import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self, TypeGuard

import numpy as np

from bayesattn._util.checks import is_prior, labels_array, positive_or_prior, require_kind, shown, suggestion
from bayesattn._util.plain_values import PlainDict, PlainMapping
from bayesattn.architecture import Architecture
from bayesattn.classes import doubtful_labels, many_classes
from bayesattn.errors import BayesattnError
from bayesattn.kernels.path_inputs import input_scale, refuse_contradictions
from bayesattn.likelihoods import Gaussian, Likelihood, is_built_in, name_of, require_usable, settings_of
from bayesattn.models import hyperpriors
from bayesattn.models.hyperpriors import VARIANCES, Hyperpriors, listed, shown_prior
from bayesattn.models.posterior import Posterior
from bayesattn.theory.predictor import are_classes

ARCHITECTURE_FIELDS = tuple(each.name for each in dataclasses.fields(Architecture))
"""Fields of the architecture, which a model accepts by name."""
NO_FIXED_ATTENTION = (
    "model must have fixed attention for the theory, got an AttentionModel: give it queries and keys,"
    " model.given(queries_and_keys)"
)


def dataset_property(name: str, description: str) -> Any:
    """Read-only property that returns a field of the model's dataset."""
    return property(lambda model: getattr(model.dataset, name), doc=description)


@dataclass(frozen=True, eq=False, repr=False, init=False)
class NetworkPosterior(Posterior):
    """Posterior of a network: `bayesattn.Model` with fixed attention, `bayesattn.AttentionModel` with a sampled one.

    Both take a dataset or its fields by name, an architecture or its fields by name, and a likelihood or a temperature.
    Draws have an order parameter U, with the rows of the architecture.
    """

    dataset_class: ClassVar[Any]
    """Class of the dataset, whose fields a model accepts by name."""

    dataset: Any
    architecture: Architecture
    likelihood: Likelihood
    head_names: Sequence[Sequence[str]] | None = None
    name: str = "model"
    task: PlainMapping

    labels = dataset_property("labels", "Y of the training examples, shape (P,) or (P, m).")
    test_labels = dataset_property("test_labels", "Labels of the test examples, or None.")
    output_names = dataset_property("output_names", "Names of the outputs, or None.")
    compressed = dataset_property("compressed", "Training examples in compressed form; None if they are plain.")
    examples = dataset_property("examples", "P, the number of training examples.")
    test_examples = dataset_property("test_examples", "Number of test examples.")
    features = dataset_property("features", "N_0, the number of input features.")

    def __init__(
        self,
        *unnamed: Any,
        dataset: Any = None,
        architecture: Architecture | None = None,
        likelihood: Likelihood | None = None,
        temperature: float | None = None,
        **fields: Any,
    ):
        if unnamed:
            raise BayesattnError(
                f"{type(self).__name__} takes its fields by name, {self.dataset_class.required[0]}=.. and so on, got"
                f" {len(unnamed)} without a name"
            )
        if dataset is None and fields.get("compressed") is None:
            for name in self.dataset_class.required:
                if fields.get(name) is None:
                    raise BayesattnError(f"{name} must be given, or a dataset that has them, got None")
        if architecture is None and fields.get("heads") is None:
            raise BayesattnError("architecture must be given, or its fields, heads and widths among them, got None")
        for whole, given, parts in (
            ("dataset", dataset, self.dataset_class.names()),
            ("architecture", architecture, ARCHITECTURE_FIELDS),
        ):
            if given is not None and (doubled := [name for name in parts if fields.get(name) is not None]):
                raise BayesattnError(f"{doubled[0]} must not be given together with {whole}, which has its own")
        fields |= {"dataset": dataset, "architecture": architecture, "likelihood": likelihood}
        # Defaults are attributes of the class; a field without one is None.
        defaults = {each.name: getattr(self, each.name, None) for each in dataclasses.fields(self)}
        self._set_fields(defaults, fields | {"temperature": temperature})
        self._refuse_contradictions()
        for doubt in self.label_doubts():
            warnings.warn(doubt, stacklevel=2)

    def replace(self, **changes: Any) -> Self:
        """Copy with some fields changed; `width=N` sets every width. Raises ValueError as the class does."""
        for name in ("dataset", "architecture", "likelihood", "temperature"):
            if changes.get(name, name) is None:
                raise BayesattnError(f"{name} must not be None: what stays as it is, is left out")
        if "width" in changes:
            if "widths" in changes:
                raise BayesattnError("width must not be given together with widths")
            arch = changes.get("architecture", self.architecture)
            require_kind("architecture", arch, Architecture)
            changes["architecture"] = arch.with_width(changes.pop("width"))
        changed = self._changed(changes)
        changed._refuse_contradictions()
        if not changed.dataset.has_labels_of(self.dataset):
            for doubt in changed.label_doubts():
                warnings.warn(doubt, stacklevel=2)
        return changed

    def _changed(self, changes: PlainDict) -> Self:
        """Copy with some fields changed, which may say of labels what cannot be."""
        changed = object.__new__(type(self))
        changed._set_fields({each.name: getattr(self, each.name) for each in dataclasses.fields(self)}, changes)
        changed._share_with(self)
        return changed

    def _share_with(self, origin: Self) -> None:
        """Use what another model computes, or has computed, where it is the same for this one."""

    def _set_fields(self, current: PlainDict, changes: PlainDict) -> None:
        """Set the fields to `current`, except for `changes`, which may be parts of dataset, architecture and likelihood."""
        parts = {
            "dataset": self.dataset_class.names(),
            "architecture": ARCHITECTURE_FIELDS,
            "likelihood": ("temperature",),
        }
        known = {*current}.union(*parts.values())
        for name in changes:
            if name not in known:
                listed = f"one that help(bayesattn.{type(self).__name__}) lists"
                raise BayesattnError(f"field of a model must be {listed}, got {name!r}{suggestion(name, known, 3)}")
        of_dataset = {name: changes[name] for name in parts["dataset"] if name in changes}
        of_architecture = {name: changes[name] for name in ARCHITECTURE_FIELDS if name in changes}
        new = {name: changes.get(name, value) for name, value in current.items()}
        new["dataset"] = _dataset(self.dataset_class, new["dataset"], of_dataset)
        new["architecture"] = _architecture(new["architecture"], of_architecture)
        new["likelihood"] = _likelihood(changes.get("likelihood"), current["likelihood"], changes.get("temperature"))
        new["likelihood"], new["architecture"] = hyperpriors.checked(new["likelihood"], new["architecture"])
        for name, value in new.items():
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        """Check that the fields fit each other, and put some of them into their normal form."""
        arch, task = self.architecture, self.task or {}
        for name in self.dataset.labelled:
            if (labels := getattr(self.dataset, name)) is not None:
                labels_array(name, labels, len(labels), arch.outputs)
        if self.head_names is not None:
            object.__setattr__(self, "head_names", arch.checked_head_names(self.head_names))
        arch.row_names(self.head_names, self.output_names)
        if not isinstance(task, Mapping):
            raise BayesattnError(f"task must be settings by name, got {shown(task)}")
        object.__setattr__(self, "task", copy.deepcopy(dict(task)))
        self._check_likelihood()

    def _check_likelihood(self) -> None:
        """Raise ValueError if the likelihood refuses the labels."""
        if self.compressed is not None and not self.likelihood.conjugate:
            raise BayesattnError(
                "likelihood must be bayesattn.Gaussian for a compressed dataset, which holds no single examples, got"
                f" {self.likelihood!r}"
            )
        for name in self.dataset.labelled:
            if getattr(self.dataset, name) is not None:
                self.reference.likelihood.check_labels(name, getattr(self.dataset, name))
        if not is_built_in(self.likelihood):
            require_usable(self.reference.likelihood, self.labels)

    def _refuse_contradictions(self) -> None:
        """Raise ValueError if labels that differ have inputs that do not."""
        # Where T or a variance is not known, some values of it explain any labels, if not the medians of `reference`.
        if self.likelihood.conjugate and self.compressed is None and not self.has_priors:
            inputs = self.dataset.distinct_inputs
            variance = self.architecture.input_variance * max(self.architecture.path_variances)
            scale = input_scale(variance, *inputs.shape[1:]) ** 2
            refuse_contradictions(inputs, self.labels, scale, self.temperature)

    def label_doubts(self) -> list[str]:
        """Sentences about labels that are valid but likely not intended."""
        if not self.likelihood.conjugate:  # Other likelihoods check their labels themselves.
            return []
        given = {"labels": self.labels if self.compressed is None else None, "test_labels": self.test_labels}
        flat = [(name, labels) for name, labels in given.items() if np.ndim(labels) == 1]
        doubts = [doubtful_labels(*each) or many_classes(*each) for each in flat]
        return [doubt for doubt in doubts if doubt]

    @abc.abstractmethod
    def require_theory(self) -> None:
        """Raise ValueError if there is no theory in closed form."""

    def table(self) -> PlainDict:
        """Temperature, architecture and likelihood as in a model file, with [task] if the data come from a task."""
        arch = {name: list(each) if isinstance(each, tuple) else each for name, each in self.architecture.table.items()}
        table: PlainDict = {"temperature": self.temperature, "architecture": arch}
        table |= {} if self.likelihood.conjugate else {"observation": name_of(self.likelihood)}
        if not is_built_in(self.likelihood):
            settings = settings_of(self.reference.likelihood)
            table["likelihood"] = {
                name: value for name, value in settings.items() if name not in self.hyperpriors.fields
            }
        if self.has_priors:
            table["priors"] = hyperpriors.table(self.likelihood, self._vectors)
            arch |= {} if VARIANCES not in table["priors"] else {VARIANCES: None}
            table["temperature"] = None if is_prior(self.temperature) else self.temperature
        return table | ({"task": self.task} if self.task else {})

    @property
    def temperature(self) -> Any:
        """T of the likelihood, or its prior; None if it has none."""
        return getattr(self.likelihood, "temperature", None)

    @cached_property
    def hyperpriors(self) -> Hyperpriors:
        """Priors of the numbers that are not known; empty if all are."""
        return Hyperpriors.of(self.likelihood, self._vectors)

    @property
    def _vectors(self) -> PlainDict:
        """Prior variances that may have priors themselves, by name, an entry for each layer."""
        return {VARIANCES: self.architecture.variances}

    def _with_values(self, values: PlainMapping) -> PlainDict:
        """Changes of fields that put numbers, by variable, in place of priors."""
        likelihood, vectors = hyperpriors.at(self.likelihood, self._vectors, values)
        arch, variances = self.architecture, vectors.pop(VARIANCES, None)
        changed = arch if variances is None else dataclasses.replace(arch, variances=variances)
        return {"likelihood": likelihood, "architecture": changed, **vectors}

    @property
    def has_priors(self) -> bool:
        """Whether the temperature, another number of the likelihood or a variance has a prior."""
        return len(self.hyperpriors) > 0

    @cached_property
    def reference(self) -> Self:
        """The same model with medians in place of priors; itself if all numbers are known."""
        if not self.has_priors:
            return self
        return self._changed(self._with_values(self.hyperpriors.medians))

    def require_numbers(self) -> None:
        """Raise ValueError if a number has a prior in its place."""
        if self.has_priors:
            name, prior = self.hyperpriors.names[0], shown_prior(self.hyperpriors.priors[0])
            values = ", ".join(f"{each!r}: .." for each in self.hyperpriors.variables)
            raise BayesattnError(
                f"{name} must be a number for the theory and what is compared with it, got a prior, {prior}: draw from the"
                f" posterior (sample, predict), or use model.at({{{values}}})"
            )

    def at(self, values: PlainMapping) -> Self:
        """The same model with numbers in place of priors, by variable of draws: "temperature", "variances" (all of them).

        Raises ValueError for names without a prior, and for values that are no numbers of this kind.
        """
        return self.replace(**self._with_values(values))

    @property
    def size(self) -> str:
        """Text of N_1, which represents all widths, such as "N = 10"."""
        return f"N = {self.architecture.widths[0]}"

    @property
    def shown_names(self) -> PlainDict:
        """Names of the paths."""
        return {"path": self.path_names}

    @property
    def row_names(self) -> list[str]:
        """Names of the order parameter's rows: path names, with the output if there are several."""
        return self.architecture.row_names(self.head_names, self.output_names)

    @property
    def names_of_two_classes(self) -> tuple[str, ...]:
        """Names of the classes -1 and +1 of one output; none if there are none, or labels are others or gathered."""
        names = self.output_names or ()
        has_two = len(names) == 2 and not self.architecture.output_axes
        return tuple(names) if has_two and self.compressed is None and are_classes(self.labels) else ()

    @property
    def path_names(self) -> list[str]:
        """Names of the paths."""
        return self.architecture.path_names(self.head_names)

    def _described_network(self) -> dict[str, str]:
        """Widths, temperature and likelihood, as text."""
        arch = self.architecture
        noise = ", the variance of the noise in labels" if self.likelihood.conjugate else ""
        named, labels = self.output_names or (), self.labels
        if two := self.names_of_two_classes:
            named = [f"{name} ({sign:+d}, {np.sum(labels == sign)})" for name, sign in zip(two, (-1, 1), strict=True)]
        elif self.architecture.output_axes and named and self.compressed is None and are_classes(labels):
            named = [f"{name} ({count})" for name, count in zip(named, (labels == labels.max()).sum(0), strict=True)]
        return {
            **({} if not named else {"outputs": ", ".join(named)}),
            "widths": f"N = {', '.join(map(str, arch.widths))}; prior variances {listed(arch.variances)}",
            **({} if self.temperature is None else {"temperature": f"T = {shown_prior(self.temperature)}{noise}"}),
            **({} if self.likelihood.conjugate else {"labels": self._described_labels()}),
        }

    def _described_labels(self) -> str:
        """Description of a likelihood, whose own text has numbers in it that may not be known."""
        if is_built_in(self.likelihood) or not self.hyperpriors.fields:
            return self.reference.likelihood.description
        priors = (f"{name} = {shown_prior(getattr(self.likelihood, name))}" for name in self.hyperpriors.fields)
        return f"{name_of(self.likelihood)}, {', '.join(priors)}"


def with_signature(kind: type[NetworkPosterior]) -> None:
    """Make help and editors show all arguments by name."""
    own = [each.name for each in dataclasses.fields(kind) if each.name not in ("dataset", "architecture", "likelihood")]
    names = ["dataset", *kind.dataset_class.names(), "architecture", *ARCHITECTURE_FIELDS, "likelihood", "temperature"]
    parameters = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=getattr(kind, name, None) if name in own else None
        )
        for name in [*names, *own]
    ]
    kind.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]


def _dataset(kind: Any, dataset: Any, parts: PlainDict) -> Any:
    """Dataset with some of its fields replaced; a new one of the class `kind` made of them if `dataset` is None."""
    if dataset is None:
        return kind(**parts)
    require_kind("dataset", dataset, kind)
    return dataset.replace(**parts) if parts else dataset


def _architecture(architecture: Architecture | None, parts: PlainDict) -> Architecture:
    """Architecture with some of its fields replaced; a new one made of them if `architecture` is None."""
    parts = {name: part for name, part in parts.items() if part is not None}
    if architecture is None:
        required: PlainDict = {"heads": None, "widths": None}
        return Architecture(**required | parts)
    require_kind("architecture", architecture, Architecture)
    return dataclasses.replace(architecture, **parts) if parts else architecture


def _likelihood(new: Likelihood | None, own: Likelihood | None, temperature: Any) -> Likelihood:
    """Likelihood of a model: a new one, its own, at another temperature if one is given, or the Gaussian one."""
    if new is None:
        if own is None:
            return Gaussian(positive_or_prior("temperature", temperature))
        if temperature is None:
            return own
        if not hasattr(own, "temperature"):
            raise BayesattnError(
                f"temperature must be left out with a likelihood that has none, {own!r}: replace the likelihood"
            )
        return dataclasses.replace(own, temperature=positive_or_prior("temperature", temperature))
    if not isinstance(new, Likelihood):
        raise BayesattnError(
            f"likelihood must be a bayesattn.Likelihood, such as bayesattn.Categorical(T), got {shown(new)}"
        )
    its_own = getattr(new, "temperature", None)
    if temperature is not None and temperature != its_own:
        raise BayesattnError(
            f"temperature must be that of the likelihood, {shown(its_own)}, or left out, got {shown(temperature)}"
        )
    return new


def is_network(posterior: object) -> TypeGuard[NetworkPosterior]:
    """Whether a posterior is that of a network, with fixed or with sampled attention."""
    return isinstance(posterior, NetworkPosterior)
