"""Heads, widths and prior variances of a network, and its attention paths (THEORY sections 1 and 2)."""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bayesattn._checks import names, positive, positive_integer

WIDEST = 10**12
"""Beyond it the logarithm of a density, of the order of N log N, loses all digits after the point."""


@dataclass(frozen=True)
class Architecture:
    """A deep multi-head attention network with independent Gaussian priors on its weights.

    >>> arch = Architecture(heads=(2, 3), widths=(10, 10, 10), variances=(1.0, 1.0, 1.0, 1.0))
    >>> arch.paths, arch.order_parameter_sizes, arch.path_heads()[1]
    (6, (6, 3), (0, 1))

    Args:
        heads: H_1..H_L, attention heads of each layer; L is the depth.
        widths: N_1..N_L, N_a, hidden widths with the readout width last (L + 1 numbers).
        variances: s_0^2, s_1^2..s_L^2, s_a^2, prior variances of input projection, values and readout (L + 2 numbers).

    Raises:
        ValueError: a tuple of the wrong length, a head or width below 1, a width above 10^12, where only the limit of
            infinite width is left to be computed, a variance that is not above 0.
    """

    heads: tuple[int, ...]
    widths: tuple[int, ...]
    variances: tuple[float, ...]

    def __post_init__(self):
        for name in ("heads", "widths", "variances"):
            value = getattr(self, name)
            if not isinstance(value, Sequence) or isinstance(value, str) or len(value) == 0:
                raise ValueError(f"{name} must be a sequence of numbers with an entry for each layer, got {value!r}")
        depth = len(self.heads)
        for name, length, meaning in (
            ("widths", depth + 1, "N_1..N_L, N_a"),
            ("variances", depth + 2, "s_0^2, s_1^2..s_L^2, s_a^2"),
        ):
            if len(getattr(self, name)) != length:
                raise ValueError(
                    f"{name} must have {length} entries ({meaning}) for {depth} layers of heads,"
                    f" got {len(getattr(self, name))}: {getattr(self, name)!r}"
                )
        set_field = object.__setattr__
        set_field(self, "heads", tuple(positive_integer(f"heads[{i}]", h) for i, h in enumerate(self.heads)))
        set_field(
            self, "widths", tuple(positive_integer(f"widths[{i}]", n, 1, WIDEST) for i, n in enumerate(self.widths))
        )
        set_field(self, "variances", tuple(positive(f"variances[{i}]", v) for i, v in enumerate(self.variances)))

    @property
    def depth(self) -> int:
        """L, the number of attention layers."""
        return len(self.heads)

    @property
    def paths(self) -> int:
        """Pi = H_1 x .. x H_L, the number of attention paths."""
        return math.prod(self.heads)

    @property
    def order_parameter_sizes(self) -> tuple[int, ...]:
        """Rows of U_1, .., U_L: the number of path suffixes that start in layer l."""
        return tuple(math.prod(self.heads[layer:]) for layer in range(self.depth))

    def path_heads(self) -> list[tuple[int, ...]]:
        """(h_1, .., h_L) of each path, in the flat order used throughout (C order, h_1 slowest)."""
        return list(itertools.product(*map(range, self.heads)))

    def path_names(self, head_names: Sequence[Sequence[str]] | None = None) -> list[str]:
        """Names of the paths, such as "same_token -> uniform"; heads are numbered from 1 where `head_names` is None.

        Of paths that would have one name, as those of two random heads, all are numbered.
        """
        if head_names is None:
            head_names = self.numbered_heads()
        head_names = [names(f"head_names[{layer}]", heads) for layer, heads in enumerate(head_names)]
        if tuple(map(len, head_names)) != self.heads:
            raise ValueError(f"head_names must name {self.heads} heads per layer, got {tuple(map(len, head_names))}")
        joined = [" -> ".join(heads) for heads in itertools.product(*head_names)]
        if len(set(joined)) == len(joined):
            return joined
        counts, met = Counter(joined), Counter[str]()
        numbered = []
        for name in joined:
            met[name] += 1
            numbered.append(f"{name} ({met[name]})" if counts[name] > 1 else name)
        return numbered

    def numbered_heads(self, first: int = 1) -> list[list[str]]:
        """Names of the heads of each layer where they have no others: their numbers."""
        return [[str(first + head) for head in range(count)] for count in self.heads]

    def number_of_weights(self, features: int) -> int:
        """Entries of V_0, V_1, .., V_L, a for inputs of so many features N_0."""
        outward = (*self.widths[1:], self.widths[-1])
        values = sum(h * m * n for h, m, n in zip(self.heads, outward, self.widths, strict=False))
        return features * self.widths[0] + values + self.widths[-1]

    def weight_dims(self) -> dict[str, list[str]]:
        """Names of the axes of each weight."""
        dims = {"V_0": ["width_1", "feature"], "a": ["readout_width"]}
        for layer in range(1, self.depth + 1):
            outward = f"width_{layer + 1}" if layer < self.depth else "readout_width"
            dims[f"V_{layer}"] = [f"head_{layer}", outward, f"width_{layer}"]
        return dims

    def with_width(self, width: int) -> "Architecture":
        """The same network with every width set to `width`."""
        return dataclasses.replace(self, widths=(width,) * (self.depth + 1))
