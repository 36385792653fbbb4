"""A reader of the Stan programs that this package writes: it gives their log density, up to a constant, by NumPy."""

import re

import numpy as np
from scipy import special, stats

DECLARATION = re.compile(
    r"(?:array\[(?:[^\[\]]|\[[^\]]*\])*\] )?"
    r"(?:matrix|vector|row_vector|int|real)(?:<[^>]*>)?(?:\[(.*?)\])? (\w+)(?: = (.*))?;$"
)


class Stan(np.ndarray):
    """Array with Stan's indices, from 1 and with ends included, and its matrix product."""

    def __getitem__(self, index):
        return super().__getitem__(_from_zero(index))

    def __setitem__(self, index, value):
        assert self[index].shape == np.shape(value), "Stan does not broadcast"
        self.view(np.ndarray)[_from_zero(index)] = value

    def __mul__(self, other):
        return self @ other if isinstance(other, Stan) else np.multiply(self, other)


def _from_zero(index):
    """An index of Stan's as Python counts."""
    if isinstance(index, tuple):
        return tuple(map(_from_zero, index))
    if isinstance(index, slice):
        return index if index == slice(None) else slice(int(index.start) - 1, int(index.stop))
    return int(index) - 1


def _array(values):
    return np.asarray(values, float).view(Stan)


LOG_DENSITIES = {
    "normal": lambda y, mean, sd: stats.norm.logpdf(y, mean, sd),
    "student_t": lambda y, freedom, mean, scale: stats.t.logpdf(y, freedom, mean, scale),
    "poisson_log": lambda y, rate: y * rate - np.exp(rate) - special.gammaln(y + 1),
    "bernoulli_logit": lambda y, logit: np.where(y > 0, -np.log1p(np.exp(-logit)), -np.log1p(np.exp(logit))),
    "categorical_logit": lambda y, logits: logits[int(y) - 1] - special.logsumexp(logits),
}
FUNCTIONS = {
    "sqrt": np.sqrt,
    "prod": np.prod,
    "size": np.size,
    "to_vector": lambda array: np.ravel(array, order="F"),
    "to_matrix": lambda array, rows, columns: np.reshape(array, (rows, columns), order="F"),
    "rep_matrix": lambda value, rows, columns: _array(np.full((int(rows), int(columns)), value)),
    "range": range,
    "zeros": lambda *sizes: _array(np.zeros([int(size) for size in sizes])),
} | {name: lambda *given, of=of: np.sum(of(*map(np.asarray, given))) for name, of in LOG_DENSITIES.items()}


def _to_python(line):
    """One statement of Stan as Python."""
    line = line.replace("[, ", "[:, ")
    line = re.sub(r"(\w+\[[^;]*?\]\])'|(\w+\[[^;]*\])'", lambda found: f"{found[0][:-1]}.T", line)
    if "~" in line:
        left, right = line.rstrip(";").split(" ~ ")
        name, rest = right.split("(", 1)
        return f"target.append({name}({left}, {rest})"
    return line.rstrip(";")


def _declared(block):
    return {found[2] for line in block.splitlines() if (found := DECLARATION.match(line.strip()))}


def log_density(program, data, parameters):
    """Sum of all that `~` stands for, constants included."""
    blocks = dict(re.findall(r"^([a-z ]+) \{\n(.*?)^\}", program, re.MULTILINE | re.DOTALL))
    assert _declared(blocks["data"]) == set(data), _declared(blocks["data"]) ^ set(data)
    assert _declared(blocks["parameters"]) == set(parameters)
    names = {name: _array(value) if isinstance(value, list) else value for name, value in data.items()}
    names |= {name: _array(value) for name, value in parameters.items()} | FUNCTIONS
    target, source, depth = [], [], 0
    for raw in (blocks["transformed parameters"] + blocks["model"]).splitlines():
        line = raw.strip()
        if line.startswith("//") or not line:
            continue
        if line == "}":
            depth -= 1
            continue
        if found := DECLARATION.match(line):
            sizes, name, value = found.groups()
            line = f"{name} = {value};" if value else f"{name} = zeros({sizes});"
        opened, text = line.endswith("{"), _to_python(line)
        if head := re.match(r"for \((\w+) in 1:((?:[^()]|\([^()]*\))*)\) ?(.*)$", line):
            rest = "" if opened else " " + _to_python(head[3])
            text = f"for {head[1]} in range(1, int({head[2]}) + 1):{rest}"
        source.append("    " * depth + text)
        depth += opened
    exec("\n".join(source), names | {"target": target})
    return sum(target)
