"""Small networks with an orthonormal design, whose learning coefficients are known."""

import numpy as np

import bayesattn as ba


def network(heads, widths, features, outputs=1, temperature=0.01, labels=None, skips=(), variances=None):
    """Model with X^T X = N_0 Pi I, and labels 0 by default."""
    arch = ba.Architecture(heads, widths, variances or (1.0,) * (len(heads) + 2), skips, outputs)
    rows = arch.paths * features
    inputs = np.sqrt(rows) * np.eye(rows).reshape(rows, arch.paths, features)
    if labels is None:
        labels = np.zeros((rows, outputs)) if outputs > 1 else np.zeros(rows)
    return ba.Model(path_inputs=inputs, labels=labels, architecture=arch, temperature=temperature)
