"""Posterior of a network: data, architecture and likelihood, independent of the parameterisation."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Self, TypeGuard

import numpy as np
from jax.core import eval_context
from numpy.typing import ArrayLike

from bayesattn import fixed_attention
from bayesattn._util.checks import number, one_of, require_kind, seed_number, shown
from bayesattn._util.plain_values import PlainDict
from bayesattn._util.random import rounded
from bayesattn._util.settings import with_own_settings
from bayesattn.architecture import Architecture
from bayesattn.classes import labels_of
from bayesattn.dataset import Dataset
from bayesattn.errors import BayesattnError
from bayesattn.kernels.forms import by_products, cheapest_form, gaussian_process
from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.kernels.path_inputs import require_paths
from bayesattn.likelihoods import Likelihood, is_of_classes, require_gaussian
from bayesattn.models.network_posterior import NetworkPosterior, dataset_property, with_signature
from bayesattn.models.tokens import TokenDataset, Tokens

KERNEL_ATTRIBUTES = ("_process_of_inputs", "_origin")
"""Attributes that lead to the kernels. Pickles and copies omit them: kernels can be 1000 times larger than the data."""
UNEXPECTED_RATIO = 100
"""Ratio of the labels' size to the size that the prior expects, or its inverse, above which there is a warning."""
TEMPERATURE = 0.1
"""Temperature of a model of sequences unless one is given."""
MAKING_KERNELS = threading.RLock()
"""Threads that ask for the kernels of one model wait for the first; since Python 3.12 cached properties have no lock."""


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Model(NetworkPosterior):
    """Posterior p(weights | labels) of a network with fixed attention (THEORY section 1).

    With the Gaussian likelihood, the density is proportional to the prior times exp(-loss / T), where the loss is half
    the sum of squared errors.

    Args:
        dataset: training, test and validation examples (`bayesattn.Dataset`); or its fields by name, such as
            path_inputs, labels and test_path_inputs.
        architecture: heads, widths, prior variances (`bayesattn.Architecture`); or its fields by name.
        temperature: T, shorthand for `likelihood=bayesattn.Gaussian(T)`; omit it if `likelihood` is given. A prior of T, a
            NumPyro distribution of positive numbers, if T is not known; it is then sampled too.
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

    dataset_class: ClassVar[type[Dataset]] = Dataset
    weight_space: ClassVar[str] = "path"
    posterior_names: ClassVar[tuple[str, ...]] = ("labels", "path_inputs")
    data_names: ClassVar[tuple[str, ...]] = (*posterior_names, "test_path_inputs")

    path_groups: Mapping[str, Sequence[int]]
    tokens: Tokens | None = None

    path_inputs = dataset_property("path_inputs", "xi of the training examples, shape (P, Pi, N_0).")
    test_path_inputs = dataset_property("test_path_inputs", "xi of the test examples, or None.")
    validation_path_inputs = dataset_property("validation_path_inputs", "xi of the validation examples, or None.")
    validation_labels = dataset_property("validation_labels", "Labels of the validation examples, or None.")

    def _check(self) -> None:
        for part in ("", "test_", "validation_"):
            if (inputs := getattr(self, f"{part}path_inputs")) is not None:
                require_paths(f"{part}path_inputs", inputs, self.architecture)
        super()._check()
        object.__setattr__(self, "path_groups", self.architecture.checked_path_groups(self.path_groups or {}))
        if self.tokens is not None:
            if self.compressed is not None:
                raise BayesattnError(
                    "tokens must not be given for a compressed dataset, which holds no single examples"
                )
            require_kind("tokens", self.tokens, Tokens)
            self.tokens.require_fit(self.examples, self.features, self.architecture.heads)

    def _set_fields(self, current: PlainDict, changes: PlainDict) -> None:
        if changes.keys() & {"path_inputs", "dataset"}:
            changes.setdefault("tokens", None)  # Those that there were are of other path inputs.
        super()._set_fields(current, changes)

    def label_doubts(self) -> list[str]:
        """Sentences about labels that are valid but likely not intended, or of another size than the prior expects."""
        doubts = super().label_doubts()
        if not self.likelihood.conjugate or self.has_priors:
            return doubts
        arch, compressed = self.architecture, self.compressed
        squares = np.einsum("epf,epf->p", self.path_inputs, self.path_inputs) @ arch.path_variances
        expected = arch.input_variance * squares / (self.examples * np.prod(self.path_inputs.shape[1:]))
        square = np.mean(np.square(self.labels))
        if compressed is not None:
            square = compressed.square / (compressed.examples * arch.outputs)
        size = np.sqrt(square)
        larger = size / np.sqrt(expected + self.temperature)
        smaller = np.sqrt(expected) / size if size > 0 else 0
        if expected > 0 and max(larger, smaller) > UNEXPECTED_RATIO:
            than = f"{larger:.2g} times larger" if larger > smaller else f"{smaller:.2g} times smaller"
            doubts += [
                f"labels are {than} than the prior expects of these path_inputs; rescale inputs or labels, or change the"
                " variances"
            ]
        return doubts

    @property
    def identifying_arrays(self) -> list[np.ndarray]:
        """Labels and path inputs; rounded for compressed data, whose last digits differ between processors."""
        arrays = super().identifying_arrays
        return arrays if self.compressed is None else list(map(rounded, arrays))

    @classmethod
    def from_tokens(
        cls,
        data: TokenDataset,
        widths: Sequence[int],
        variances: Sequence[float],
        temperature: Any,
        name: str = "model",
        skips: Sequence[float] = (),
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
        shape: tuple[Any, ...] = (tuple(map(len, data.head_names)), widths, variances, skips)
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

    @classmethod
    def from_sequences(
        cls,
        x: ArrayLike,
        matrices: ArrayLike | Sequence[ArrayLike],
        y: Any,
        *,
        widths: int | Sequence[int],
        temperature: Any = None,
        likelihood: Likelihood | None = None,
        variances: Sequence[Any] | None = None,
        skips: Sequence[float] = (),
        readout: str = "last",
        mask: ArrayLike | None = None,
        renormalise: float | None = None,
        test_share: float | Sequence[int] = 0.2,
        seed: int = 0,
        head_names: Sequence[Sequence[str]] | None = None,
        name: str = "model",
    ) -> "Model":
        """Posterior of a network that reads token sequences through given attention, with some examples kept for a test.

        Args:
            x: token sequences, shape (P, T, N_0); scale tokens to a mean square of about 1 per feature.
            matrices: attention of each layer, first layer first, arrays of shape (P, H_l, T_query, T_key) whose rows sum to
                1; or the array of a single layer.
            y: an answer for each sequence: a number, several numbers in columns, or a class. Strings, truth values and
                whole numbers of few values, except counts, are classes; of two, in sorted order, the first is -1 and the
                second +1, of more each has an output, 1 for the class and 0 else. The network has no constant term: append
                a feature that is 1 to the tokens if labels have a mean that tokens do not explain, or T takes it for noise.
            widths: N_1, .., N_L and N_a, hidden widths of the layers and of the readout; one number if all are equal.
            temperature: T of Gaussian labels, or its prior; 0.1 by default, if there is no likelihood.
            likelihood: as for `Model`.
            variances: prior variances, as for `bayesattn.Architecture`; 1 by default.
            skips: strengths of the skip connections, as for `bayesattn.Architecture`.
            readout: which token answers: the "last", the "first", or the "mean" over all.
            mask: True for tokens and False for padding, shape (P, T).
            renormalise: as for `bayesattn.attention.paths_from_matrices`.
            test_share: share of the sequences, chosen at random, that are kept for a test, 0 for none; or the positions of
                these sequences, if you need to know which. Training and test sequences keep their order.
            seed: seed of that choice.
            head_names: names of the heads of each layer.
            name: name shown in tables.

        Raises:
            ValueError: arrays that do not fit together; as for `Model` and `bayesattn.Architecture`.
        """
        one_of("readout", readout, fixed_attention.READOUTS)
        layers = [matrices] if len(getattr(matrices, "shape", ())) == 4 else matrices
        inputs, tokens = fixed_attention.checked_tokens("x", x, mask)
        sequences, length, _ = inputs.shape
        several: Any = layers
        first = getattr(several[0], "shape", ()) if isinstance(several, list | tuple) and several else ()
        if len(first) == 4 and (first[0], first[3]) != (sequences, length):
            raise BayesattnError(
                "x, of shape (sequences, tokens, features), must have the sequences and tokens of matrices, of shape"
                f" (sequences, heads, query, key), got {inputs.shape} and {first}"
            )
        attention = fixed_attention.checked_matrices(layers, sequences, length, tokens, renormalise)
        heads = tuple(each.shape[1] for each in attention)
        counts = isinstance(likelihood, Likelihood) and not (likelihood.conjugate or is_of_classes(likelihood))
        labels, names = labels_of("y", y, counts=counts)
        if len(labels) != sequences:
            raise BayesattnError(f"y must have an answer for each of {sequences} sequences, got {len(labels)}")
        training, test = _split(sequences, test_share, seed)
        outputs = 1 if labels.ndim == 1 else labels.shape[1]
        shape: tuple[Any, ...] = (heads, widths, variances, skips)
        arch = Architecture(*shape, outputs=outputs)
        skipped = [skip > 0 for skip in arch.skips]
        paths = np.asarray(
            fixed_attention.paths_from_matrices(inputs, attention, readout, tokens, skipped, renormalise=renormalise)
        )
        own = None if tokens is None else tokens[training]
        return cls(
            path_inputs=paths[training],
            labels=labels[training],
            test_path_inputs=paths[test] if len(test) else None,
            test_labels=labels[test] if len(test) else None,
            output_names=names,
            architecture=arch,
            likelihood=likelihood,
            temperature=TEMPERATURE if temperature is None and likelihood is None else temperature,
            head_names=head_names,
            tokens=Tokens(inputs[training], [each[training] for each in attention], readout, own, renormalise),
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

    def require_theory(self) -> None:
        """Raise ValueError unless labels are Gaussian and no number has a prior: else there is no theory in closed form."""
        require_gaussian(self.likelihood)
        self.require_numbers()

    @property
    @with_own_settings
    def gaussian_process(self) -> GaussianProcess:
        """Gaussian process of the training set; likelihoods that are not Gaussian do not use its density of labels.

        Raises ValueError if T or a variance has a prior. `replace` reuses its kernels, unless the path inputs, the paths,
        the outputs, s_0 or the form of the kernels change.
        """
        self.require_numbers()
        with MAKING_KERNELS:
            process = self._process_of_inputs.with_labels(self.labels)
        return process if self.temperature is None else process.at(self.temperature)

    @cached_property
    def _process_of_inputs(self) -> GaussianProcess:
        """Gaussian process at T = 1, computed once for all models that share it."""
        if (origin := vars(self).get("_origin")) is not None:
            return origin._process_of_inputs
        residual = None if self.compressed is None else self.compressed.residual
        # Outside any JAX trace, because a tracer in the cache would leak. Under JAX's `ensure_compile_time_eval`, what is
        # traced inside would compile small programs of its own.
        with eval_context():
            return gaussian_process(self.path_inputs, self.labels, self.architecture, 1.0, residual=residual)

    def _share_with(self, origin: Self) -> None:
        """Use the kernels of another model if they are the same."""
        if self._kernel_settings == origin._kernel_settings:
            object.__setattr__(self, "_origin", vars(origin).get("_origin", origin))

    @property
    def _kernel_settings(self) -> tuple[object, ...]:
        """All that determines the kernels: the inputs by their identity, the paths, the outputs, s_0 and the form."""
        arch, sizes = self.architecture, (len(self.path_inputs), self.features, self.architecture)
        inputs = id(self.path_inputs if self.compressed is None else self.compressed)
        return (
            inputs,
            arch.heads,
            arch.ways,
            arch.outputs,
            arch.variances[0],
            cheapest_form(*sizes),
            by_products(*sizes),
        )

    def __getstate__(self) -> PlainDict:
        """State for pickles and copies, without the kernels, which may be a thousand times larger."""
        return {name: value for name, value in vars(self).items() if name not in KERNEL_ATTRIBUTES}

    def _described(self) -> tuple[str, dict[str, str]]:
        arch, (_, paths, features) = self.architecture, self.path_inputs.shape
        rows = {
            "examples": f"{self.examples} of {features} features"
            + "".join(f", {other}" for other in self.dataset.others),
            "heads": arch.layers_text,
            "paths": f"{paths}: {', '.join(self.path_names)}",
            **({} if self.tokens is None else {"readout": _described_readout(self.tokens.readout)}),
            **self._described_network(),
        }
        return f"Model {self.name!r}", rows

    @property
    def has_theory(self) -> bool:
        """Whether the finite-width theory applies, which requires Gaussian labels and known numbers."""
        return self.likelihood.conjugate and not self.has_priors

    @property
    def shown_names(self) -> PlainDict:
        """Names of the paths, and groups of paths by name."""
        return super().shown_names | {"groups": dict(self.path_groups)}


with_signature(Model)


def _described_readout(readout: str) -> str:
    return "the mean over tokens" if readout == "mean" else f"the {readout} token"


def _split(examples: int, share: Any, seed: Any) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the examples of training and of those of a test, each in their order."""
    everything = np.arange(examples)
    if np.ndim(share):
        given = np.asarray(share)
        test = np.isin(everything, given)
        if given.dtype.kind not in "iu" or given.ndim > 1 or test.sum() != len(given) or test.all():
            raise BayesattnError(
                f"test_share must be a share, or a list of different whole numbers from 0 to {examples - 1}, positions that"
                f" leave some for training, got {shown(share)}"
            )
        return everything[~test], everything[test]
    if not 0 <= number("test_share", share, "a share of the sequences") < 1:
        raise BayesattnError(f"test_share must be at least 0 and below 1, got {share:g}")
    order, count = np.random.default_rng(seed_number("seed", seed)).permutation(examples), round(share * examples)
    if count == examples:
        raise BayesattnError(f"test_share must leave sequences for training, got {share:g} of {examples}")
    return np.sort(order[count:]), np.sort(order[:count])


def has_fixed_attention(posterior: object) -> TypeGuard[Model]:
    """Whether a posterior is that of a network with fixed attention."""
    return isinstance(posterior, Model)
