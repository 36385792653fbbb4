"""Heads, widths and prior variances of a network, and its attention paths (THEORY sections 1 and 2)."""

import dataclasses
import itertools
import math
import numbers
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bayesattn._util.checks import (
    Checked,
    entries,
    is_prior,
    names,
    not_negative,
    positive_integer,
    positive_or_prior,
    shown,
)
from bayesattn._util.plain_values import PlainDict, PlainMapping
from bayesattn.errors import BayesattnError

SKIP = "skip"
LARGEST_WIDTH = 10**12
"""Largest width. Above it, a log density, of order N log N, has no correct digit after the decimal point."""


@dataclass(frozen=True, repr=False)
class Architecture:
    """Deep multi-head attention network with independent Gaussian priors on its weights.

    >>> arch = Architecture(heads=(2, 3), widths=(10, 10, 10), variances=(1.0, 1.0, 1.0, 1.0))
    >>> arch.paths, arch.order_parameter_sizes, arch.path_heads()[1]
    (6, (6, 3), (0, 1))

    A skip connection, z = rho z + attention, adds one way through its layer, listed before the heads:

    >>> arch = Architecture((2, 3), (10, 10, 10), (1.0, 1.0, 1.0, 1.0), skips=(0.0, 0.5))
    >>> arch.ways, arch.paths, arch.path_names()[:2]
    ((2, 4), 8, ['1 -> skip', '1 -> 1'])

    Args:
        heads: H_1..H_L, attention heads of each layer; L is the depth.
        widths: N_1..N_L, N_a, hidden widths with the readout width last (L + 1 numbers); one number if all are equal.
        variances: s_0^2, s_1^2..s_L^2, s_a^2, prior variances of input projection, values and readout (L + 2 numbers);
            all 1 by default. A NumPyro distribution of positive numbers in place of one that a model is to sample too.
        skips: rho_1..rho_L, strengths of the skip connections, 0 for layers without one (THEORY section 8).
        outputs: m, the number of outputs of the network.

    Raises:
        ValueError: a tuple of the wrong length; a number of heads or a width below 1; a width above 10^12, beyond which
            only the limit of infinite width can be computed; a variance that is not above 0; a skip below 0, or in a
            layer whose widths on both sides differ.
    """

    heads: tuple[int, ...]
    widths: tuple[int, ...]
    variances: tuple[float, ...] = ()
    skips: tuple[float, ...] = ()
    outputs: int = 1

    def __new__(cls, *_: object, **named: object) -> "Architecture":
        """Architecture; raises ValueError, which Python would not say in full, for a number in place of one per layer."""
        for name in ("width", "variance", "head", "skip"):
            if name in named:
                all_equal = ", or one number for all" if name == "width" else ""
                raise BayesattnError(
                    f"{name}s= must be given, a sequence of numbers with an entry for each layer{all_equal}, got {name}="
                )
        return super().__new__(cls)

    def __post_init__(self):
        set_field, expected = object.__setattr__, "a sequence of numbers with an entry for each layer"
        for name in ("heads", "widths", "variances", "skips"):
            value, optional = getattr(self, name), name in ("variances", "skips")
            if name == "widths" and isinstance(value, numbers.Number | np.ndarray) and not getattr(value, "ndim", 0):
                value = (positive_integer(name, value, 1, LARGEST_WIDTH),) * (len(self.heads) + 1)
            values = () if optional and value is None else entries(name, value, expected)
            if not values and not optional:
                raise BayesattnError(f"{name} must be {expected}, got {values!r}")
            set_field(self, name, values)
        depth = len(self.heads)
        set_field(self, "variances", self.variances or (1.0,) * (depth + 2))
        set_field(self, "skips", self.skips or (0.0,) * depth)
        for name, length, meaning in (
            ("widths", depth + 1, "N_1..N_L, N_a"),
            ("variances", depth + 2, "s_0^2, s_1^2..s_L^2, s_a^2"),
            ("skips", depth, "rho_1..rho_L"),
        ):
            if len(getattr(self, name)) != length:
                raise BayesattnError(
                    f"{name} must have {length} entries ({meaning}) for {depth} layers of heads,"
                    f" got {len(getattr(self, name))}: {getattr(self, name)!r}"
                )
        set_field(self, "heads", tuple(positive_integer(f"heads[{i}]", h) for i, h in enumerate(self.heads)))
        set_field(
            self,
            "widths",
            tuple(positive_integer(f"widths[{i}]", n, 1, LARGEST_WIDTH) for i, n in enumerate(self.widths)),
        )
        set_field(
            self, "variances", tuple(positive_or_prior(f"variances[{i}]", v) for i, v in enumerate(self.variances))
        )
        set_field(self, "skips", tuple(not_negative(f"skips[{i}]", rho) for i, rho in enumerate(self.skips)))
        set_field(self, "outputs", positive_integer("outputs", self.outputs))
        for layer, (skip, below, above) in enumerate(zip(self.skips, self.widths, self.widths[1:], strict=False)):
            if skip and below != above:
                raise BayesattnError(
                    f"widths must be equal on both sides of a skip, got {below} and {above} of layer {layer + 1}, whose"
                    f" skip is {skip:g}"
                )

    def __repr__(self) -> str:
        """Constructor call, without skips if there are none and without outputs if there is one."""
        return f"Architecture({', '.join(f'{name}={value!r}' for name, value in self.table.items())})"

    @classmethod
    def of_table(cls, table: PlainMapping) -> "Architecture":
        """Architecture from a table such as `table` returns; missing fields take their defaults."""
        shape: PlainDict = {
            name: tuple(table[name]) for name in ("heads", "widths", "variances", "skips") if name in table
        }
        return cls(**shape, outputs=table.get("outputs", 1))

    @property
    def table(self) -> PlainDict:
        """Heads, widths, variances and `extensions`: everything that identifies the architecture."""
        return {"heads": self.heads, "widths": self.widths, "variances": self.variances} | self.extensions

    @property
    def extensions(self) -> PlainDict:
        """Skips if there are any, and outputs if there are several."""
        skips = {"skips": self.skips} if any(self.skips) else {}
        return skips | ({"outputs": self.outputs} if self.output_axes else {})

    @property
    def output_axes(self) -> tuple[int, ...]:
        """Axes of outputs in user-facing arrays: (m,) for several outputs, () for one."""
        return (self.outputs,) if self.outputs > 1 else ()

    @property
    def depth(self) -> int:
        """L, the number of attention layers."""
        return len(self.heads)

    @property
    def ways(self) -> tuple[int, ...]:
        """Number of ways through each layer: its heads, and its skip if it has one."""
        return tuple(heads + (skip > 0) for heads, skip in zip(self.heads, self.skips, strict=True))

    @property
    def optional_skips(self) -> tuple[float | None, ...]:
        """rho_1..rho_L, None for layers without a skip."""
        return tuple(skip or None for skip in self.skips)

    @property
    def paths(self) -> int:
        """Pi, the number of attention paths: the product of `ways`, which are the heads if there are no skips."""
        return math.prod(self.ways)

    @property
    def rows(self) -> int:
        """Number of rows of U = U_1: one per (path, output) pair, outputs fastest."""
        return self.paths * self.outputs

    @property
    def factor_columns(self) -> int:
        """Number of columns of F in U = F F^T: as many as U has rows, or fewer if a layer is narrow."""
        columns = 1
        for count, width, skip in zip(
            (self.outputs, *reversed(self.heads)), reversed(self.widths), (0.0, *reversed(self.skips)), strict=True
        ):
            copied = columns if skip else 0
            columns = min(copied + count * columns, width)
        return columns

    @property
    def known_variances(self) -> tuple[float, ...]:
        """`variances`; raises ValueError if one of them has a prior."""
        for layer in range(len(self.variances)):
            self._known_variance(layer)
        return self.variances

    def _known_variance(self, layer: int) -> float:
        if is_prior(self.variances[layer]):
            raise BayesattnError(f"variances[{layer}] must be a number here, got a prior: use that of model.at(..)")
        return self.variances[layer]

    @property
    def input_variance(self) -> float:
        """s_0^2 Pi / (H_1 .. H_L), equal to s_0^2 without skips. Kernels have the factor `input_variance` / (N_0 Pi)."""
        return self._known_variance(0) * (self.paths / math.prod(self.heads))

    @property
    def order_parameter_sizes(self) -> tuple[int, ...]:
        """Number of rows of U_1, .., U_L: the number of path suffixes that start in layer l, times the outputs."""
        return tuple(math.prod(self.ways[layer:]) * self.outputs for layer in range(self.depth))

    @property
    def path_variances(self) -> tuple[float, ...]:
        """U of each path at infinite width: s_a^2 times s_l^2 for each head and H_l rho_l^2 for each skip on the path."""
        each = [
            ([heads * skip**2] if skip else []) + [variance] * heads
            for heads, skip, variance in zip(self.heads, self.skips, self.known_variances[1:-1], strict=True)
        ]
        return tuple(math.prod(way) * self.known_variances[-1] for way in itertools.product(*each))

    @property
    def layers_text(self) -> str:
        """Heads and skips of each layer, and the outputs if there are several, as text."""
        ways = [f"{heads} + skip" if skip else str(heads) for heads, skip in zip(self.heads, self.skips, strict=True)]
        outputs = f", {self.outputs} outputs" if self.output_axes else ""
        return f"{' x '.join(f'({way})' if '+' in way and len(ways) > 1 else way for way in ways)} heads{outputs}"

    def path_heads(self) -> list[tuple[int, ...]]:
        """(h_1, .., h_L) of each path, in the flat order used throughout (C order, h_1 slowest).

        Each h_l counts the ways through layer l: in a layer with a skip, 0 is the skip and the heads begin at 1.
        """
        return list(itertools.product(*map(range, self.ways)))

    def path_names(self, head_names: Sequence[Sequence[str]] | None = None) -> list[str]:
        """Names of the paths, such as "same_token -> uniform"; heads are numbered from 1 if `head_names` is None.

        A skip is called "skip". Paths that would share a name, such as those of two random heads, are all numbered.
        """
        named = self.numbered_heads() if head_names is None else self.checked_head_names(head_names)
        joined = [" -> ".join(ways) for ways in itertools.product(*self._with_skips(named))]
        if len(set(joined)) == len(joined):
            return joined
        counts, met = Counter(joined), Counter[str]()
        numbered = []
        for name in joined:
            met[name] += 1
            numbered.append(f"{name} ({met[name]})" if counts[name] > 1 else name)
        return numbered

    def checked_head_names(self, head_names: Checked) -> tuple[tuple[str, ...], ...]:
        """`head_names` as tuples of names for each layer; raises ValueError unless there is one name for each head."""
        layers = entries("head_names", head_names, "a list of names for each layer", most_axes=2)
        checked = tuple(names(f"head_names[{layer}]", heads) for layer, heads in enumerate(layers))
        if tuple(map(len, checked)) != self.heads:
            raise BayesattnError(f"head_names must name {self.heads} heads per layer, got {tuple(map(len, checked))}")
        return checked

    def checked_path_groups(self, groups: Checked) -> dict[str, tuple[int, ...]]:
        """Groups of paths by name, as tuples of path indices; raises ValueError for anything else."""
        if not isinstance(groups, Mapping):
            raise BayesattnError(f"path_groups must be a mapping of names to lists of paths, got {shown(groups)}")
        checked = {}
        for name, members in groups.items():
            key = f"path_groups[{name!r}]"
            if not (indices := entries(key, members, "a list of paths, by index")):
                raise BayesattnError(f"{key} must hold at least one path, got none")
            checked[name] = tuple(positive_integer(f"{key}[{place}]", path, 0) for place, path in enumerate(indices))
            if max(checked[name]) >= self.paths:
                raise BayesattnError(f"{key} must hold paths below {self.paths}, got {checked[name]}")
        return checked

    def row_names(
        self, head_names: Sequence[Sequence[str]] | None = None, output_names: Sequence[str] | None = None
    ) -> list[str]:
        """Names of the rows of U: path names, with the output if there are several, such as "1 -> 2: output 1".

        Names of one output may be two, of the classes -1 and +1.
        """
        paths = self.path_names(head_names)
        if output_names is None:
            output_names = [f"output {number + 1}" for number in range(self.outputs)]
        allowed = (self.outputs,) if self.output_axes else (1, 2)
        if len(output_names := names("output_names", output_names)) not in allowed:
            expected = f"{self.outputs} outputs" if self.output_axes else "one output, or its classes -1 and +1"
            raise BayesattnError(f"output_names must name {expected}, got {len(output_names)}")
        return [f"{path}: {output}" for path in paths for output in output_names] if self.output_axes else paths

    def way_names(self, head_names: Sequence[Sequence[str]] | None = None) -> list[list[str]]:
        """Names of the ways through each layer: "skip" if it has one, and its heads, numbered if they have no names."""
        return self._with_skips(head_names or self.numbered_heads())

    def _with_skips(self, heads: Sequence[Sequence[str]]) -> list[list[str]]:
        return [([SKIP] if skip else []) + [*layer] for skip, layer in zip(self.skips, heads, strict=True)]

    def numbered_heads(self, first: int = 1) -> list[list[str]]:
        """Default names of the heads of each layer: their numbers, counted from `first`."""
        return [[str(first + head) for head in range(count)] for count in self.heads]

    def number_of_weights(self, features: int) -> int:
        """Number of entries of V_0, V_1, .., V_L and a, for inputs with `features` features (N_0)."""
        outward = (*self.widths[1:], self.widths[-1])
        values = sum(h * m * n for h, m, n in zip(self.heads, outward, self.widths, strict=False))
        return features * self.widths[0] + values + self.outputs * self.widths[-1]

    def weight_dims(self) -> dict[str, list[str]]:
        """Names of the axes of each weight."""
        dims = {"V_0": ["width_1", "feature"], "a": ["output"] * len(self.output_axes) + ["readout_width"]}
        for layer in range(1, self.depth + 1):
            outward = f"width_{layer + 1}" if layer < self.depth else "readout_width"
            dims[f"V_{layer}"] = [f"head_{layer}", outward, f"width_{layer}"]
        return dims

    def with_width(self, width: int) -> "Architecture":
        """The same network with every width set to `width`."""
        return dataclasses.replace(self, widths=(width,) * (self.depth + 1))
