"""Networks in which the losses of heads are computed by two routes."""

import numpy as np
import xarray as xr

import bayesattn as ba


def drawn(order_parameters):
    """Chains of given U."""
    axes = ("chain", "draw", "path", "other_path")
    return xr.DataTree.from_dict({"posterior": xr.Dataset({"order_parameter": (axes, order_parameters)})})


def two_layers(width, skips, outputs):
    """Two heads in each of two layers; the labels follow the first path, and weakly the last."""
    rng, arch = np.random.default_rng(1), ba.Architecture((2, 2), (width,) * 3, (1.0,) * 4, skips, outputs)
    inputs = rng.normal(size=(15, arch.paths, 3))
    signal = inputs[:, 0, :outputs] + 0.3 * inputs[:, -1, 1 : 1 + outputs]
    labels = np.sign(signal + 0.2 * rng.normal(size=signal.shape))
    labels = labels[:, 0] if outputs == 1 else labels
    return ba.Model(path_inputs=inputs, labels=labels, architecture=arch, temperature=0.3)
