"""A reader of the Stan programs that this package writes: it gives their log density, up to a constant, by NumPy."""

import re

import numpy as np
from scipy import special, stats

DECLARATION = re.compile(
    r"(?:array\[(?:[^\[\]]|\[[^\]]*\])*\] )?"
    r"(?:matrix|vector|row_vector|int|real)(?:<[^>]*>)?(?:\[(.*?)\])? (\w+)(?: = (.*))?;$"
)


class Stan:
    """Array with Stan's indices, from 1 and with ends included, and its matrix product."""

    def __init__(self, values):
        self.values = np.asarray(values, float)

    def _index(self, index):
        def shifted(part):
            if isinstance(part, slice):
                return slice(
                    None if part.start is None else int(part.start) - 1, None if part.stop is None else int(part.stop)
                )
            return int(part) - 1

        return tuple(map(shifted, index)) if isinstance(index, tuple) else shifted(index)

    def __getitem__(self, index):
        found = self.values[self._index(index)]
        return Stan(found) if np.ndim(found) else float(found)

    def __setitem__(self, index, value):
        place = self._index(index)
        assert self.values[place].shape == np.shape(_plain(value)), "Stan does not broadcast"
        self.values[place] = _plain(value)

    def __mul__(self, other):
        return Stan(self.values @ other.values if isinstance(other, Stan) else self.values * other)

    def __rmul__(self, other):
        return Stan(self.values * other)

    def __truediv__(self, other):
        return Stan(self.values / other)

    def __add__(self, other):
        return Stan(self.values + other.values)

    def transposed(self):
        return Stan(self.values.T)


def _plain(value):
    return value.values if isinstance(value, Stan) else value


def _functions():
    logs = {
        "normal": lambda y, mean, sd: stats.norm.logpdf(y, mean, sd),
        "student_t": lambda y, freedom, mean, scale: stats.t.logpdf(y, freedom, mean, scale),
        "poisson_log": lambda y, rate: y * rate - np.exp(rate) - special.gammaln(y + 1),
        "bernoulli_logit": lambda y, logit: np.where(y > 0, -np.log1p(np.exp(-logit)), -np.log1p(np.exp(logit))),
        "categorical_logit": lambda y, logits: logits[int(y) - 1] - special.logsumexp(logits),
    }
    return {name: lambda *given, of=of: float(np.sum(of(*map(_plain, given)))) for name, of in logs.items()} | {
        "sqrt": np.sqrt,
        "prod": lambda array: float(np.prod(array.values)),
        "size": lambda array: array.values.size,
        "to_vector": lambda array: Stan(array.values.ravel(order="F")),
        "to_matrix": lambda array, rows, columns: Stan(array.values.reshape(rows, columns, order="F")),
        "rep_matrix": lambda value, rows, columns: Stan(np.full((int(rows), int(columns)), value)),
        "range": range,
        "zeros": lambda *sizes: Stan(np.zeros([int(size) for size in sizes])),
    }


def _to_python(line):
    """One statement of Stan as Python."""
    line = line.replace("[, ", "[:, ")
    line = re.sub(r"(\w+\[[^;]*?\]\])'|(\w+\[[^;]*\])'", lambda found: f"{found[0][:-1]}.transposed()", line)
    if "~" in line:
        left, right = line.rstrip(";").split(" ~ ")
        name, rest = right.split("(", 1)
        return f"target.append({name}({left}, {rest})"
    return line.rstrip(";")


def log_density(program, data, parameters):
    """Sum of all that `~` stands for, constants included."""
    blocks = dict(re.findall(r"^([a-z ]+) \{\n(.*?)^\}", program, re.MULTILINE | re.DOTALL))
    names = {name: Stan(value) if isinstance(value, list) else value for name, value in data.items()}
    names |= {name: Stan(value) for name, value in parameters.items()} | _functions()
    declared = {found[2] for line in blocks["data"].splitlines() if (found := DECLARATION.match(line.strip()))}
    assert declared == set(data), declared ^ set(data)
    in_stan = {found[2] for line in blocks["parameters"].splitlines() if (found := DECLARATION.match(line.strip()))}
    assert in_stan == set(parameters)
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
        opened = line.endswith("{")
        head = re.match(r"for \((\w+) in 1:((?:[^()]|\([^()]*\))*)\) ?(.*)$", line)
        if head:
            rest = "" if opened else " " + _to_python(head[3])
            text = f"for {head[1]} in range(1, int({head[2]}) + 1):{rest}"
        else:
            text = _to_python(line)
        source.append("    " * depth + text)
        depth += opened
    exec("\n".join(source), names | {"target": target})
    return sum(target)
