"""Posterior of a network whose queries and keys have priors too (docs/theory.md, section 9)."""

import copy
import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from bayesattn import fixed_attention
from bayesattn._util.checks import (
    Checked,
    entries,
    labels_array,
    names,
    not_negative,
    one_of,
    owned,
    positive_integer,
    require_kind,
    shown,
    truth,
)
from bayesattn._util.errors import BayesattnError
from bayesattn._util.plain import PlainDict, PlainMapping
from bayesattn.architecture import Architecture
from bayesattn.classes import names_of_outputs
from bayesattn.kernels.path_inputs import input_scale, refuse_contradictions
from bayesattn.labels import doubtful_labels
from bayesattn.likelihoods import (
    Likelihood,
    at_temperature,
    likelihood_from,
)
from bayesattn.models.model import Model
from bayesattn.models.network_posterior import NetworkPosterior, listed
from bayesattn.models.tokens import Tokens

ATTENTION_ON = ("inputs", "hidden")
VALUES = ("linear", "relu", "gelu")
SHAPE = ("heads", "widths", "variances", "skips", "outputs")
"""Fields of `bayesattn.Architecture` that may be given one by one instead of an architecture."""


@dataclass(frozen=True, eq=False, repr=False, init=False)
class AttentionModel(NetworkPosterior):
    """Posterior p(all weights | labels) of a network whose queries and keys have Gaussian priors, like its values.

    A head has logits (K x_key).(Q x_query) / sqrt(G), where x are the tokens of the input, as for the pairs (Q, K) of
    `bayesattn.attention.path_inputs`. For fixed queries and keys, `given` returns the posterior as a `bayesattn.Model`.

    Args:
        inputs: training sequences, shape (P, T, N_0).
        labels: Y of shape (P,), or (P, m) for m > 1 outputs.
        heads: H_1..H_L, heads of each layer.
        key_width: G, rows of each Q and K.
        widths: N_1..N_L, N_a.
        variances: s_0^2, s_1^2..s_L^2, s_a^2; 1 by default.
        query_variance: s_q^2, prior variance of the entries of all Q, or one for each layer; 0 means uniform attention.
        key_variance: s_k^2, the same for K.
        temperature: T of the Gaussian likelihood, if no other likelihood is given.
        likelihood: distribution of the labels given the outputs.
        readout: "last", "first" or "mean".
        causal: whether tokens attend to no later tokens.
        mask: shape (P, T), True for tokens and False for padding.
        skips: rho_1..rho_L, strengths of the skip connections.
        outputs: m, the number of outputs.
        architecture: in place of heads, widths, variances, skips and outputs.
        test_inputs: sequences at which to predict, shape (P_test, T_test, N_0).
        test_mask: their mask.
        test_labels: their labels.
        attention_on: input of a layer's logits: "inputs", the tokens x, or "hidden", the layer's own input
            z^{l-1} / sqrt(N_l), as in a transformer.
        values: activation phi of each entry of the values: "linear" (none), "relu" or "gelu".
        values_strength: share alpha of the activation: values are v + alpha (phi(v) - v), with v = V_l^h z / sqrt(N_l).
        watched: indices of the test sequences whose attention is kept with each draw.
        head_names: names of the heads of each layer.
        output_names: names of several outputs.
        name: name shown in tables.
        task: origin of the data, as a [task] of a model file; recorded only.

    Raises:
        ValueError: shapes that do not fit, entries that are not finite, a negative variance, a sequence of padding alone.

    Arrays are copied, and the arrays of a model are read-only.
    """

    weight_space: ClassVar[str] = "token"
    labelled: ClassVar[tuple[str, ...]] = ("labels", "test_labels")
    posterior_names: ClassVar[tuple[str, ...]] = ("labels", "inputs", "mask")
    data_names: ClassVar[tuple[str, ...]] = (*posterior_names, "test_inputs", "test_mask", "watched")

    inputs: Any
    labels: Any
    architecture: Architecture
    key_width: int
    query_variances: tuple[float, ...]
    key_variances: tuple[float, ...]
    likelihood: Likelihood
    readout: str
    causal: bool
    mask: Any
    test_inputs: Any
    test_mask: Any
    test_labels: Any
    attention_on: str
    values: str
    values_strength: float
    watched: np.ndarray | None
    head_names: Sequence[Sequence[str]] | None
    output_names: Sequence[str] | None
    name: str
    task: PlainMapping

    def __init__(
        self,
        *,
        inputs: Checked,
        labels: Checked,
        key_width: Checked,
        heads: Checked = None,
        widths: Checked = None,
        variances: Checked = None,
        skips: Checked = None,
        outputs: Checked = None,
        architecture: Architecture | None = None,
        query_variance: Checked = 1.0,
        key_variance: Checked = 1.0,
        temperature: Checked = None,
        likelihood: Likelihood | None = None,
        readout: str = "last",
        causal: bool = False,
        mask: Checked = None,
        test_inputs: Checked = None,
        test_mask: Checked = None,
        test_labels: Checked = None,
        attention_on: str = "inputs",
        values: str = "linear",
        values_strength: Checked = 1.0,
        watched: Checked = (),
        head_names: Checked = None,
        output_names: Checked = None,
        name: str = "model",
        task: PlainMapping | None = None,
    ):
        put = partial(object.__setattr__, self)
        if architecture is None:
            architecture = _architecture(heads, widths, variances, skips, outputs)
        elif any(each is not None for each in (heads, widths, variances, skips, outputs)):
            raise BayesattnError(f"architecture must not be given together with {', '.join(SHAPE)}")
        require_kind("architecture", architecture, Architecture)
        arch: Architecture = architecture
        inputs, mask = fixed_attention.checked_tokens("inputs", inputs, mask)
        put("inputs", owned(inputs))
        put("mask", None if mask is None else owned(mask))
        put("labels", owned(labels_array("labels", labels, len(inputs), arch.outputs)))
        put("architecture", arch)
        put("key_width", positive_integer("key_width", key_width))
        put("query_variances", _by_layer("query_variance", query_variance, arch.depth))
        put("key_variances", _by_layer("key_variance", key_variance, arch.depth))
        put("likelihood", likelihood_from(likelihood, temperature))
        put("readout", one_of("readout", readout, fixed_attention.READOUTS))
        put("causal", truth("causal", causal))
        put("attention_on", one_of("attention_on", attention_on, ATTENTION_ON))
        put("values", one_of("values", values, VALUES))
        put("values_strength", not_negative("values_strength", values_strength))
        self._check_test(test_inputs, test_mask, test_labels)
        put("watched", self._checked_watched(watched))
        put("head_names", None if head_names is None else arch.checked_head_names(head_names))
        output_names = names_of_outputs(output_names, labels=labels, test_labels=test_labels)
        put("output_names", None if output_names is None else names("output_names", output_names))
        put("name", name)
        if task is not None and not isinstance(task, Mapping):
            raise BayesattnError(f"task must be settings by name, got {shown(task)}")
        put("task", copy.deepcopy(dict(task or {})))
        arch.row_names(self.head_names, self.output_names)
        self.check_labels()
        self._refuse_contradictions()
        if self.likelihood.conjugate and self.labels.ndim == 1 and (doubt := doubtful_labels("labels", self.labels)):
            warnings.warn(doubt, stacklevel=2)

    def _refuse_contradictions(self) -> None:
        """Raise ValueError if equal sequences have different labels and T is lost in rounding."""
        if self.likelihood.conjugate:
            tokens, arch = self.inputs, self.architecture
            if self.mask is not None:  # Zeros at padding are not tokens.
                tokens = np.concatenate([tokens, self.mask[..., None]], axis=2)
            scale = input_scale(arch.input_variance * max(arch.path_variances), *tokens.shape[1:]) ** 2
            refuse_contradictions(tokens, self.labels, scale, self.temperature)

    def _check_test(self, inputs: Checked, mask: Checked, labels: Checked) -> None:
        """Check the test sequences and put them into the model."""
        put = partial(object.__setattr__, self)
        for name, value in (("test_mask", mask), ("test_labels", labels)):
            if inputs is None and value is not None:
                raise BayesattnError(f"{name} need test_inputs, got None for the latter")
            put(name, None)
        put("test_inputs", None)
        if inputs is None:
            return
        shape = ("test_examples", "test_tokens", self.features)
        inputs, mask = fixed_attention.checked_tokens("test_inputs", inputs, mask, shape)
        put("test_inputs", owned(inputs))
        put("test_mask", None if mask is None else owned(mask))
        if labels is not None:
            put("test_labels", owned(labels_array("test_labels", labels, len(inputs), self.architecture.outputs)))

    def _checked_watched(self, watched: Checked) -> np.ndarray | None:
        """Indices of test sequences, or None if there are none."""
        chosen = () if watched is None else entries("watched", watched, "a list of test sequences, by index")
        if not chosen:
            return None
        if self.test_inputs is None:
            raise BayesattnError("watched need test_inputs, got None for the latter")
        last = self.test_examples - 1
        return owned(np.array([positive_integer(f"watched[{n}]", each, 0, last) for n, each in enumerate(chosen)]))

    @property
    def is_linear(self) -> bool:
        """Whether the network is linear in its values given queries and keys, so that it has path inputs."""
        return self.attention_on == "inputs" and (self.values == "linear" or self.values_strength == 0)

    def require_linear(self, what: str) -> None:
        """Raise ValueError unless the network has path inputs, which `what` needs."""
        if not self.is_linear:
            raise BayesattnError(
                f"{what} needs attention on the inputs and linear values, got attention_on={self.attention_on!r} and"
                f" values={self.values!r}"
            )

    def require_gaussian(self) -> None:
        """Always raise ValueError, because the theory applies only to networks with fixed attention."""
        raise BayesattnError(
            "model must have fixed attention for the theory, the evidence and what is compared with them, got an"
            " AttentionModel: give it queries and keys, model.given(queries_and_keys)"
        )

    @property
    def examples(self) -> int:
        """P, the number of training examples."""
        return len(self.labels)

    @property
    def features(self) -> int:
        """N_0, the number of features of a token."""
        return self.inputs.shape[2]

    @property
    def test_examples(self) -> int:
        """Number of test examples."""
        return 0 if self.test_inputs is None else len(self.test_inputs)

    @property
    def identifying_arrays(self) -> list[np.ndarray]:
        """Labels and sequences, and the mask if there is one."""
        return [array for array in super().identifying_arrays if array is not None]

    def table(self) -> PlainDict:
        """Settings that, together with the arrays, determine the posterior."""
        settings: PlainDict = {
            "key_width": self.key_width,
            "query_variance": list(self.query_variances),
            "key_variance": list(self.key_variances),
            "readout": self.readout,
            "causal": self.causal,
        }
        if self.attention_on != "inputs":
            settings["attention_on"] = self.attention_on
        if self.values != "linear":
            settings |= {"values": self.values, "values_strength": self.values_strength}
        return super().table() | {"attention": settings}

    def checked_heads(self, queries_and_keys: Checked) -> tuple[Any, ...]:
        """Queries and keys, or bilinear heads, of each layer as arrays; raises ValueError as `given` does."""
        self.require_linear("a model with fixed attention")
        heads, arch = fixed_attention.checked_heads(queries_and_keys, self.features), self.architecture
        counts = tuple(len(layer[0] if isinstance(layer, tuple) else layer) for layer in heads)
        if counts != arch.heads:
            raise BayesattnError(f"queries_and_keys must have {arch.heads} heads per layer, got {counts}")
        return heads

    def given(self, queries_and_keys: Checked) -> Model:
        """Model with fixed queries and keys: posterior of values, input projection and readout, which has a theory.

        Args:
            queries_and_keys: for each layer a pair (Q, K), each of shape (H_l, G, N_0), as
                `bayesattn.attention.path_inputs` takes them; or an array of bilinear heads.

        Raises:
            ValueError: other shapes or numbers of heads, a network that is not linear given queries and keys.
        """
        heads, arch = self.checked_heads(queries_and_keys), self.architecture
        skips = [skip > 0 for skip in arch.skips]
        path_inputs = partial(
            fixed_attention.path_inputs, weights=heads, readout=self.readout, causal=self.causal, skips=skips
        )
        test = None if self.test_inputs is None else path_inputs(self.test_inputs, mask=self.test_mask)
        matrices = partial(fixed_attention.matrices, self.inputs, heads, "softmax", self.causal, self.mask)
        return Model(
            path_inputs=path_inputs(self.inputs, mask=self.mask),
            labels=self.labels,
            test_path_inputs=test,
            test_labels=self.test_labels,
            output_names=self.output_names,
            architecture=arch,
            likelihood=self.likelihood,
            head_names=self.head_names,
            tokens=Tokens(self.inputs, matrices, self.readout, self.mask),
            name=self.name,
        )

    def _described(self) -> tuple[str, dict[str, str]]:
        (examples, tokens, features), arch = self.inputs.shape, self.architecture
        test = "" if self.test_inputs is None else f"; {len(self.test_inputs)} to test"
        rows = {
            "examples": f"{examples} of {tokens} tokens and {features} features{test}",
            "heads": f"{arch.layers_text}, queries and keys of width {self.key_width} with prior variances"
            f" {listed(self.query_variances)} and {listed(self.key_variances)}",
            **({} if self.is_linear else {"blocks": self._blocks()}),
            **self._described_network(),
        }
        return f"AttentionModel {self.name!r}", rows

    def _blocks(self) -> str:
        """Settings of attention and values, as text."""
        strength = (
            "" if self.values == "linear" or self.values_strength == 1 else f" of strength {self.values_strength:g}"
        )
        return f"attention on {self.attention_on}, values {self.values}{strength}"

    def replace(self, **changes: Any) -> "AttentionModel":
        """Copy with some fields changed; `width=N` sets every width. Raises ValueError as `AttentionModel` does."""
        own = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        own["query_variance"], own["key_variance"] = own.pop("query_variances"), own.pop("key_variances")
        for name in changes:
            one_of("field of a model", name, sorted({*own, *SHAPE, "temperature", "width"}))
        arch = changes.pop("architecture", self.architecture)
        require_kind("architecture", arch, Architecture)
        if {"width", "widths"} <= changes.keys():
            raise BayesattnError("width must not be given together with widths")
        if "width" in changes:
            arch = arch.with_width(changes.pop("width"))
        arch = dataclasses.replace(arch, **{name: changes.pop(name) for name in SHAPE if name in changes})
        temperature = changes.pop("temperature", None)
        if temperature is not None:
            changes.setdefault("likelihood", at_temperature(self.likelihood, temperature))
        return AttentionModel(**own | changes | {"architecture": arch})


def _architecture(
    heads: Checked, widths: Checked, variances: Checked, skips: Checked, outputs: Checked
) -> Architecture:
    """Architecture from the arguments; all variances are 1 if none are given."""
    for name, value in (("heads", heads), ("widths", widths)):
        if value is None:
            raise BayesattnError(f"{name} must be a sequence of numbers with an entry for each layer, got None")
    if variances is None:
        variances = (1.0,) * (len(entries("heads", heads, "a sequence of numbers with an entry for each layer")) + 2)
    return Architecture(heads, widths, variances, skips or (), 1 if outputs is None else outputs)


def _by_layer(name: str, value: Checked, depth: int) -> tuple[float, ...]:
    """Variance of each layer, from one number for all layers or one number per layer."""
    if not isinstance(value, Sequence) and np.ndim(value) == 0:
        return (not_negative(name, value),) * depth
    listed = entries(name, value, f"a number, or one for each of {depth} layers")
    if len(listed) != depth:
        raise BayesattnError(f"{name} must be a number, or one for each of {depth} layers, got {len(listed)}")
    return tuple(not_negative(f"{name}[{place}]", each) for place, each in enumerate(listed))
