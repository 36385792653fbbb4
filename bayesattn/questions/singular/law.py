"""Learning coefficients in the limit of small T that are known in closed form, or by a linear program.

Labels are zero or, for deep linear networks, those of a teacher of known rank; path inputs have full column rank, so that
the loss is equivalent to the squared norm of the readout. The prior is Gaussian, and its variances do not matter.
"""

import itertools
import math
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import optimize, sparse

from bayesattn._util.checks import Checked, entries, positive_integer, require_kind
from bayesattn.architecture import Architecture
from bayesattn.errors import BayesattnError

SLACK = 1e-9
"""Amount by which a point of the optimal face may exceed the least cost."""


class Law(NamedTuple):
    """Learning coefficient lambda and multiplicity theta: log Z = -lambda log(1/T) + (theta - 1) log log(1/T) + .."""

    coefficient: float
    multiplicity: int


def deep_linear_law(sizes: Checked, rank: int = 0) -> Law:
    """Learning coefficient of a deep linear network with a teacher (Aoyagi 2024, Theorem 1).

    One attention head of L layers on one token is such a network, of sizes N_0, N_1, .., N_a, and m outputs.

    Args:
        sizes: sizes of all layers, inputs and outputs included.
        rank: rank of the teacher.

    Raises:
        ValueError: fewer than two sizes, a rank that no network of these sizes has.
    """
    sizes = [positive_integer("sizes", size) for size in entries("sizes", sizes, "two or more sizes of layers")]
    if len(sizes) < 2:
        raise BayesattnError(f"sizes must be two or more sizes of layers, got {tuple(sizes)}")
    rank = positive_integer("rank", rank, 0, min(sizes))
    surplus = sorted(size - rank for size in sizes)
    for count in range(2, len(surplus) + 1):
        narrow, rest = surplus[:count], surplus[count:]
        products, total = count - 1, sum(narrow)
        if total < products * narrow[-1] or (rest and (narrow[-1] >= rest[0] or total >= products * rest[0])):
            continue
        part = total - (math.ceil(total / products) - 1) * products if total else 0
        coefficient = (
            (rank * (sizes[0] + sizes[-1]) - rank**2) / 2
            + part * (products - part) / (4 * products)
            - products * (products - 1) / 4 * (total / products) ** 2
            + sum(first * second for first, second in itertools.combinations(narrow, 2)) / 2
        )
        return Law(coefficient, part * (products - part) + 1)
    raise AssertionError(f"no set of narrow layers among {surplus}")


def attention_law(arch: Architecture, features: int) -> Law:
    """Learning coefficient of an attention network of any heads, widths and outputs with labels 0, by power counting.

    The law is ours; docs/learning-coefficient.md derives it. The readout is the product of a, the values of all heads and
    V_0. Each matrix on the way from the outputs to V_0 gets singular values T^(x/2). The prior probability of these
    exponents is T^(cost/2), with a cost that is piecewise linear and convex in sorted exponents. The coefficient is
    half of the least cost, found by linear programming. The multiplicity is 1 plus the dimension of the set of exponents of
    least cost. Path inputs must have full column rank, which several heads on one token never have.

    Args:
        arch: the network, without skips.
        features: N_0.

    Raises:
        ValueError: skips, a number of features below 1.
    """
    require_kind("arch", arch, Architecture)
    if any(arch.skips):
        raise BayesattnError(f"arch must have no skips, for which no law is known, got skips {arch.skips}")
    features = positive_integer("features", features)
    program = _Program()
    rows: list[int | None] = [None] * arch.outputs  # Rows of the identity, of exponent 0.
    for width, heads in zip(reversed(arch.widths), (1, *reversed(arch.heads)), strict=True):
        rows = [*program.multiplied([row for row in rows for _ in range(heads)], width)]
    for row in rows:
        program.excess(features, less=row, constant=1.0)
    return program.solved()


class _Program:
    """Linear program over exponents of singular values, and over excesses max(0, ..) of differences of exponents."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.exponents: list[int] = []
        self.bounds: list[tuple[dict[int, float], float]] = []
        """Pairs of a and b, with a . x <= b."""

    def variable(self, cost: float) -> int:
        """New variable, at least 0."""
        self.cost.append(cost)
        return len(self.cost) - 1

    def excess(self, cost: float, less: int | None, more: int | None = None, constant: float = 0.0) -> None:
        """Cost of max(0, constant + more - less), where None is an exponent of 0."""
        signs = {self.variable(cost): -1.0, more: 1.0, less: -1.0}
        self.bounds.append(({name: sign for name, sign in signs.items() if name is not None}, -constant))

    def multiplied(self, rows: list[int | None], width: int) -> list[int]:
        """Exponents of singular values, ascending, of a Gaussian matrix of `width` columns, its rows scaled by T^(row/2).

        Let M = D G, with D the scales. The density of its singular values is that of M without the prior, times
        det(D)^(-width), restricted to M whose entries are at most as large as their row's scale. The restriction orders the
        exponents, x_k >= d_k, and confines rotations: entry (i, k) below the diagonal is at most T^((d_i - x_k) / 2).
        """
        few, many = sorted((len(rows), width))
        exponents = [self.variable(many - few + 1 + 2 * (few - 1 - place)) for place in range(few)]
        self.exponents += exponents
        self.bounds += [({low: 1.0, high: -1.0}, 0.0) for low, high in itertools.pairwise(exponents)]
        for place, row in enumerate(rows):
            if row is None:
                continue
            self.cost[row] -= width
            if place < few:
                self.bounds.append(({row: 1.0, exponents[place]: -1.0}, 0.0))
        below = Counter(
            (row, exponent)
            for place, row in enumerate(rows)
            for exponent in exponents[: min(place, few)]
            if row is not None
        )
        for (row, exponent), repeats in below.items():
            self.excess(repeats, less=exponent, more=row)
        return exponents

    def solved(self) -> Law:
        """Half of the least cost, and 1 plus the dimension of the set of exponents at which it is attained."""
        limits = np.array([limit for _, limit in self.bounds])
        rows = sparse.lil_array((len(self.bounds), len(self.cost)))
        for row, (coefficients, _) in enumerate(self.bounds):
            for name, coefficient in coefficients.items():
                rows[row, name] = coefficient
        rows = rows.tocsr()
        cost = np.array(self.cost)
        optimum = _minimum(cost, rows, limits)
        value = float(cost @ optimum)
        face = sparse.vstack([rows, cost[None]]), np.append(limits, value + SLACK)
        # Two ends of the face in a random direction differ almost surely in a further dimension, if there is one.
        rng, spread = np.random.default_rng(0), np.empty((0, len(self.exponents)))
        for _ in range(len(self.exponents) + 1):
            normal = rng.normal(size=len(self.exponents))
            if len(spread):
                normal -= spread.T @ (spread @ normal)
            if np.linalg.norm(normal) < np.sqrt(SLACK):
                break
            direction = np.zeros(len(cost))
            direction[self.exponents] = normal
            ends = [_minimum(sign * direction, *face)[self.exponents] for sign in (1, -1)]
            difference = ends[1] - ends[0]
            difference -= spread.T @ (spread @ difference)
            if np.linalg.norm(difference) < np.sqrt(SLACK):
                break
            spread = np.vstack([spread, difference / np.linalg.norm(difference)])
        return Law(value / 2, len(spread) + 1)


def _minimum(
    cost: Float[np.ndarray, " variable"], rows: Any, limits: Float[np.ndarray, " bound"]
) -> Float[np.ndarray, " variable"]:
    """Point at which a linear cost is least."""
    found = optimize.linprog(cost, A_ub=rows, b_ub=limits, bounds=(0, None), method="highs")
    assert found.status == 0, found.message
    return found.x
