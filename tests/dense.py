"""The network and its densities in plain NumPy, from their definitions up (THEORY sections 2, 3, 5 and 8), by loops.

Nothing here knows of compiled programs, compressed examples, whitened labels or cheapest forms. Weights have the names and
shapes of the path parameterisation; rows of U are pairs of path and output, outputs fastest.
"""

import numpy as np
from scipy import special, stats

import bayesattn as ba


def ways(arch):
    """Choices of a path in each layer: a head, or None for the skip, which comes first."""
    strengths = arch.skips or (0.0,) * arch.depth
    return [[None] * (skip > 0) + [*range(count)] for skip, count in zip(strengths, arch.heads, strict=True)]


def rows(arch, weights):
    """a V_L .. V_1 of every path and output, each layer with its 1 / sqrt(H_l N_l), a skip with rho_l in its place."""
    found = []
    for place in np.ndindex(*map(len, ways(arch))):
        row = np.atleast_2d(weights["a"])
        for layer in reversed(range(arch.depth)):
            head, values = ways(arch)[layer][place[layer]], weights[f"V_{layer + 1}"]
            scale = np.sqrt(arch.heads[layer] * values.shape[2])
            row = arch.skips[layer] * row if head is None else row @ values[head] / scale
        found.append(row)
    return np.concatenate(found)


def order_parameter(arch, weights):
    """U of weights."""
    every = rows(arch, weights)
    return np.prod(arch.heads) * every @ every.T / arch.widths[-1]


def outputs(arch, weights, path_inputs):
    """f of examples through their path inputs, shape (P, m), or (P,) for one output."""
    features = path_inputs.shape[2]
    readout = (rows(arch, weights) @ weights["V_0"]).reshape(-1, arch.outputs, features)
    f = np.zeros((len(path_inputs), arch.outputs))
    for example, path, output in np.ndindex(len(path_inputs), len(readout), arch.outputs):
        f[example, output] += readout[path, output] @ path_inputs[example, path]
    return (f / np.sqrt(features * arch.widths[-1])).reshape(f.shape[: 1 + (arch.outputs > 1)])


def outputs_by_tokens(arch, weights, tokens):
    """f of examples, token by token, read at the last token that is no padding."""
    assert tokens.readout == "last"
    f = np.zeros((len(tokens.inputs), arch.outputs))
    for example, x in enumerate(tokens.inputs):
        hidden = x @ weights["V_0"].T / np.sqrt(x.shape[1])
        for layer in range(arch.depth):
            values, attended = weights[f"V_{layer + 1}"], 0.0
            for head, value in enumerate(values):
                attended = attended + tokens.matrices[layer][example, head] @ hidden @ value.T
            attended = attended / np.sqrt(arch.heads[layer] * values.shape[2])
            skip = arch.skips[layer] if arch.skips else 0.0
            hidden = attended + skip * hidden if skip else attended
        last = len(x) - 1 if tokens.mask is None else np.flatnonzero(tokens.mask[example])[-1]
        f[example] = np.atleast_2d(weights["a"]) @ hidden[last] / np.sqrt(arch.widths[-1])
    return f.reshape(f.shape[: 1 + (arch.outputs > 1)])


def random_weights(arch, features, rng):
    """Weights from the prior."""
    outward = (*arch.widths[1:], arch.widths[-1])
    shapes = {"V_0": (arch.widths[0], features)}
    for layer, count in enumerate(arch.heads):
        shapes[f"V_{layer + 1}"] = (count, outward[layer], arch.widths[layer])
    shapes["a"] = (*(arch.outputs,) * (arch.outputs > 1), arch.widths[-1])
    return {
        name: np.sqrt(variance) * rng.normal(size=shape)
        for (name, shape), variance in zip(shapes.items(), arch.variances, strict=True)
    }


def log_prior_of_weights(arch, weights):
    """Independent normal weights, of one variance in each layer."""
    names = ["V_0", *(f"V_{layer + 1}" for layer in range(arch.depth)), "a"]
    return sum(
        stats.norm.logpdf(weights[name], scale=np.sqrt(variance)).sum()
        for name, variance in zip(names, arch.variances, strict=True)
    )


def log_likelihood(model, f):
    """log p(Y | f)."""
    return log_likelihoods(model, f).sum()


def log_likelihoods(model, f):
    """log p(Y_i | f_i) of each example; f may have axes of draws before its own."""
    law, y = model.likelihood, model.labels
    if isinstance(law, ba.Categorical):
        logits = f / law.temperature
        if y.ndim == 1:
            return -np.log1p(np.exp(-logits * y))
        return (logits * y).sum(-1) - special.logsumexp(logits, axis=-1)
    if isinstance(law, ba.Gaussian):
        each = stats.norm.logpdf(y, f, np.sqrt(law.temperature))
    elif isinstance(law, ba.StudentT):
        each = stats.t.logpdf(y, law.freedom, f, law.scale)
    else:
        assert isinstance(law, ba.Poisson)
        each = stats.poisson.logpmf(y, np.exp(f))
    return each.sum(-1) if y.ndim == 2 else each


def layers(arch):
    """Of each Bartlett factor: heads, rows, columns, and the columns that its skip copies."""
    found, columns = [], 1
    heads, skips = (*arch.heads, arch.outputs), (*(arch.skips or (0.0,) * arch.depth), 0.0)
    for count, width, skip in zip(reversed(heads), reversed(arch.widths), reversed(skips), strict=True):
        copied, above = columns if skip else 0, columns
        columns = min(copied + count * above, width)
        found.append((count, count * above, columns, copied))
    return found[::-1]


def bartlett(arch, point, order=None):
    """Factors B_l and the log prior density of their coordinates.

    Beside the columns copied, B_l is a lower trapezium with B_ii^2 ~ chi^2(N_l - i), i counting these columns too, and all
    other entries standard normal. Coordinates are the logarithms of the diagonal (an entry of one degree of freedom beside
    other rows takes either sign, and is its own), then the entries below it, row by row. Row r of what is drawn is row
    order[r] of B_l.
    """
    factors, log_density, point, start = [], 0.0, [*point], 0
    for (_, count, columns, copied), width in zip(layers(arch), arch.widths, strict=True):
        lower = np.zeros((count, columns))
        for i in range(columns - copied):
            freedom, entry = width - copied - i, point.pop(0)
            if freedom == 1 and count > 1:
                lower[i, copied + i] = entry
                log_density += stats.norm.logpdf(entry)
            else:
                lower[i, copied + i] = np.exp(entry)
                log_density += stats.chi.logpdf(np.exp(entry), freedom) + entry
        for i, j in np.ndindex(count, columns):
            if j - copied < i:
                lower[i, j] = point.pop(0)
                log_density += stats.norm.logpdf(lower[i, j])
        drawn = np.zeros_like(lower)
        drawn[np.arange(count) if order is None else order[start : start + count]] = lower
        factors.append(drawn)
        start += count
    assert not point
    return factors, log_density


def factor(arch, bartletts):
    """F_1, with U = F_1 F_1^T: F_l has rows sqrt(H_l) rho_l F_{l+1} of its skip, and s_l F_{l+1} B_l^h / sqrt(N_l)."""
    found = np.ones((1, 1))
    for layer in reversed(range(len(bartletts))):
        heads, _, columns, copied = layers(arch)[layer]
        scaled = bartletts[layer] * np.sqrt(arch.variances[layer + 1] / arch.widths[layer])
        blocks = [found @ block for block in scaled.reshape(heads, -1, columns)]
        if copied:
            above = np.sqrt(heads) * arch.skips[layer] * found
            blocks.insert(0, np.pad(above, ((0, 0), (0, columns - copied))))
        found = np.concatenate(blocks)
    return found


def kernel(arch, u, first, second):
    """K(U) between the outputs of two sets of examples, outputs fastest."""
    paths = len(u) // arch.outputs
    blocks = u.reshape(paths, arch.outputs, paths, arch.outputs)
    found = np.einsum("epf,pcqd,gqf->ecgd", first, blocks, second, optimize=True)
    scale = arch.variances[0] / (first.shape[2] * np.prod(arch.heads))
    return scale * found.reshape(len(first) * arch.outputs, -1)


def log_evidence(model, u):
    """log Normal(Y; 0, K(U) + T I)."""
    noisy = kernel(model.architecture, u, model.path_inputs, model.path_inputs)
    noisy = noisy + model.temperature * np.eye(len(noisy))
    return stats.multivariate_normal(cov=noisy).logpdf(model.labels.ravel())


def predictor(model, u, new):
    """Mean and variance of f on new examples, given U and the labels."""
    arch, noise = model.architecture, model.temperature * np.eye(model.labels.size)
    cross, own = (kernel(arch, u, one, new) for one in (model.path_inputs, new))
    solved = np.linalg.solve(kernel(arch, u, model.path_inputs, model.path_inputs) + noise, cross)
    return solved.T @ model.labels.ravel(), np.diag(own - cross.T @ solved)
