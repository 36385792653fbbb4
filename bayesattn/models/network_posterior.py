"""Base class for posteriors of networks, with fixed or sampled attention."""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, TypeGuard

from bayesattn._util.plain import PlainDict, PlainMapping
from bayesattn.architecture import Architecture
from bayesattn.likelihoods import BY_NAME, Likelihood, name_of, require_usable, settings_of
from bayesattn.models.posterior import Posterior


class NetworkPosterior(Posterior):
    """Posterior of a network: `bayesattn.Model` with fixed attention, `bayesattn.AttentionModel` with a sampled one.

    Draws have an order parameter U, with the rows of the architecture.
    """

    labelled: ClassVar[tuple[str, ...]]
    """Names of the arrays of labels."""
    architecture: Architecture
    likelihood: Likelihood
    labels: Any
    test_labels: Any
    head_names: Sequence[Sequence[str]] | None
    output_names: Any
    compressed: Any = None
    """Training examples in compressed form, or None."""
    task: PlainMapping

    @property
    @abc.abstractmethod
    def examples(self) -> int:
        """P, the number of training examples."""

    @property
    @abc.abstractmethod
    def test_examples(self) -> int:
        """Number of test examples."""

    @property
    @abc.abstractmethod
    def features(self) -> int:
        """N_0, the number of input features."""

    @abc.abstractmethod
    def require_gaussian(self) -> None:
        """Raise ValueError if there is no theory in closed form."""

    @abc.abstractmethod
    def replace(self, **changes: Any) -> "NetworkPosterior":
        """Copy with some fields changed; `width=N` sets every width."""

    def check_labels(self) -> None:
        """Raise ValueError if labels do not suit the likelihood."""
        for name in self.labelled:
            if getattr(self, name) is not None:
                self.likelihood.check_labels(name, getattr(self, name))
        if type(self.likelihood) not in BY_NAME.values():
            require_usable(self.likelihood, self.labels)

    def table(self) -> PlainDict:
        """Temperature, architecture and likelihood as in a model file, with [task] if the data come from a task."""
        arch = {name: list(each) if isinstance(each, tuple) else each for name, each in self.architecture.table.items()}
        table: PlainDict = {"temperature": self.temperature, "architecture": arch}
        table |= {} if self.likelihood.conjugate else {"observation": name_of(self.likelihood)}
        if type(self.likelihood) not in BY_NAME.values():
            table["likelihood"] = settings_of(self.likelihood)
        return table | ({"task": self.task} if self.task else {})

    @property
    def temperature(self) -> Any:
        """T of the likelihood; None if it has none."""
        return getattr(self.likelihood, "temperature", None)

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
    def path_names(self) -> list[str]:
        """Names of the paths."""
        return self.architecture.path_names(self.head_names)

    def _described_network(self) -> dict[str, str]:
        """Widths, temperature and likelihood, as text."""
        arch = self.architecture
        return {
            "widths": f"N = {', '.join(map(str, arch.widths))}; prior variances {listed(arch.variances)}",
            **({} if self.temperature is None else {"temperature": f"T = {self.temperature:g}"}),
            **({} if self.likelihood.conjugate else {"labels": self.likelihood.description}),
        }


def listed(numbers: Sequence[float]) -> str:
    """Numbers as text."""
    return ", ".join(f"{number:g}" for number in numbers)


def is_network(posterior: object) -> TypeGuard[NetworkPosterior]:
    """Whether a posterior is that of a network, with fixed or with sampled attention."""
    return isinstance(posterior, NetworkPosterior)
